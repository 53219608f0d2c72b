//! The adapter and its handles. Calls go to the driver over a channel.
use crate::adapter::capabilities::ChannelCapabilities;
use crate::adapter::driver::AdapterDriver;
use crate::adapter::event::{PlatformEvent, SettledEvent};
use crate::adapter::options::AdapterOptions;
use crate::adapter::output::AdapterStatus;
use crate::adapter::platform::Platform;
use crate::error::ClientError;
use crate::limits;
use serde_json::Value;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

/// An adapter of one account, which runs while [`Adapter::run`] is polled. Dropping the future of `run` drops the
/// connection and all work at once, as the end of the process would.
pub struct Adapter<P> {
    driver: AdapterDriver<P>,
    handle: AdapterHandle,
}

/// A handle of an adapter, for its author. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AdapterHandle {
    commands: mpsc::Sender<AdapterCommand>,
    status: watch::Receiver<AdapterStatus>,
    /// One permit for each event without an answer.
    forwards: Arc<Semaphore>,
}

/// A call of a handle.
#[derive(Debug)]
pub(crate) enum AdapterCommand {
    Forward(Box<PlatformEvent>, ForwardCall),
    Declare { conversation: Option<String>, capabilities: ChannelCapabilities, call: RequestCall },
    Request { message: Value, call: RequestCall },
    Stop,
}

/// The caller of `forward`.
#[derive(Debug)]
pub(crate) struct ForwardCall {
    pub(crate) answer: oneshot::Sender<Result<SettledEvent, ClientError>>,
    /// Given back with the answer.
    pub(crate) _permit: OwnedSemaphorePermit,
}

/// The caller of `declare` or `request`.
pub(crate) type RequestCall = oneshot::Sender<Result<Value, ClientError>>;

// === impl Adapter ===

impl<P: Platform> Adapter<P> {
    /// Creates an adapter. Nothing happens before [`Adapter::run`].
    ///
    /// # Errors
    /// An address, a name, a certificate or a capability is invalid.
    pub fn new(platform: P, options: &AdapterOptions) -> Result<Self, ClientError> {
        let (commands, inbox) = mpsc::channel(limits::COMMANDS_MAX);
        let (status_sender, status) = watch::channel(AdapterStatus::Disconnected);
        let driver = AdapterDriver::new(platform, options, inbox, status_sender)?;
        let forwards = Arc::new(Semaphore::new(limits::FORWARDS_MAX));
        Ok(Self { driver, handle: AdapterHandle { commands, status, forwards } })
    }

    /// Returns a handle.
    pub fn handle(&self) -> AdapterHandle {
        self.handle.clone()
    }

    /// Serves the account until [`AdapterHandle::stop`].
    ///
    /// # Errors
    /// The gateway refuses the account for good, for example because the key does not allow it.
    pub async fn run(self) -> Result<(), ClientError> {
        let Self { driver, handle: _handle } = self;
        driver.run().await
    }

    /// Serves the account until a future ends, such as one that waits for SIGTERM; then ends the open work.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Adapter::run`].
    pub async fn run_until<F: Future<Output = ()>>(self, stop: F) -> Result<(), ClientError> {
        let handle = self.handle();
        let stop = async {
            stop.await;
            handle.stop().await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = self.run() => ended,
            () = stop => Ok(()),
        }
    }
}

// === impl AdapterHandle ===

impl AdapterHandle {
    /// Brings an event to the gateway. Returns only after the event was durably accepted, or refused for good; so
    /// acknowledge the event at the platform, or save its offset, after the call.
    ///
    /// Until then the event is sent again, through lost connections, restarts of the gateway and the loss of the lease,
    /// without a limit, because an event that is given up is lost. Events of one conversation are sent in the order of
    /// the calls, each after the answer to the one before. A dropped call does not take the event back.
    ///
    /// # Errors
    /// The adapter has ended, or an id is invalid.
    pub async fn forward(&self, event: PlatformEvent) -> Result<SettledEvent, ClientError> {
        let permit = Arc::clone(&self.forwards).acquire_owned().await.map_err(|_| ClientError::Closed)?;
        let (answer, reply) = oneshot::channel();
        let call = ForwardCall { answer, _permit: permit };
        self.send(AdapterCommand::Forward(Box::new(event), call)).await?;
        reply.await.map_err(|_| ClientError::Closed)?
    }

    /// Declares other capabilities from now on, for the account or for one conversation. Returns once the gateway has
    /// them; without a connection at once, because the next one declares them. No capabilities for a conversation mean
    /// those of the account.
    ///
    /// # Errors
    /// A capability is invalid, or the adapter has ended.
    pub async fn declare(
        &self,
        capabilities: ChannelCapabilities,
        conversation: Option<&str>,
    ) -> Result<(), ClientError> {
        let (call, reply) = oneshot::channel();
        let conversation = conversation.map(str::to_owned);
        self.send(AdapterCommand::Declare { conversation, capabilities, call }).await?;
        reply.await.map_err(|_| ClientError::Closed)?.map(|_| ())
    }

    /// Sends another request of an adapter, such as `bind` or `resolve`, once, and returns the answer.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for an error of the gateway; [`ClientError::ConnectionLost`] if nobody knows whether
    /// the request was performed.
    pub async fn request(&self, message: Value) -> Result<Value, ClientError> {
        let (call, reply) = oneshot::channel();
        self.send(AdapterCommand::Request { message, call }).await?;
        reply.await.map_err(|_| ClientError::Closed)?
    }

    /// Returns the state of the adapter.
    pub fn status(&self) -> AdapterStatus {
        *self.status.borrow()
    }

    /// Returns once this adapter serves the account.
    ///
    /// # Errors
    /// The adapter has ended.
    pub async fn wait_active(&self) -> Result<(), ClientError> {
        let mut status = self.status.clone();
        let is_decided = |status: &AdapterStatus| matches!(status, AdapterStatus::Active | AdapterStatus::Ended);
        let found = *status.wait_for(is_decided).await.map_err(|_| ClientError::Closed)?;
        if found == AdapterStatus::Active { Ok(()) } else { Err(ClientError::Closed) }
    }

    /// Stops the adapter: new orders are answered `not_sent`, and orders that run have 10 s to end.
    pub async fn stop(&self) {
        // An error means that the adapter has ended already.
        let _ = self.send(AdapterCommand::Stop).await;
    }

    async fn send(&self, command: AdapterCommand) -> Result<(), ClientError> {
        self.commands.send(command).await.map_err(|_| ClientError::Closed)
    }
}

//! The driver of an adapter: owns the connection and the tasks of the platform, and performs the outputs of the state
//! machine.
use crate::adapter::handle::{AdapterCommand, ForwardCall, RequestCall};
use crate::adapter::machine::AdapterMachine;
use crate::adapter::offset_file::OffsetFile;
use crate::adapter::options::AdapterOptions;
use crate::adapter::order::{ChangeKind, ReportedOrder, SignalOrder};
use crate::adapter::output::{AdapterOutput, AdapterStatus, AdapterWork, Moment, WorkResult};
use crate::adapter::platform::Platform;
use crate::error::ClientError;
use crate::invoke::fresh_id;
use crate::output::Lost;
use crate::transport::{ClientTransport, GatewayAddress, Received};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

type PendingAdapterDial = Pin<Box<dyn Future<Output = Result<ClientTransport, Lost>> + Send>>;

/// The task between an [`AdapterMachine`], its connection, the platform, and the author's calls.
pub(crate) struct AdapterDriver<P> {
    platform: Arc<P>,
    offset_file: Option<OffsetFile>,
    machine: AdapterMachine,
    addresses: Vec<GatewayAddress>,
    started: Instant,
    commands: mpsc::Receiver<AdapterCommand>,
    status: watch::Sender<AdapterStatus>,
    transport: Option<ClientTransport>,
    dialing: Option<PendingAdapterDial>,
    tasks: JoinSet<(u64, WorkResult)>,
    running: BTreeMap<u64, AbortHandle>,
    forwards: BTreeMap<u64, ForwardCall>,
    requests: BTreeMap<u64, RequestCall>,
    /// The end of the adapter, with the reason of a refusal.
    ended: Option<Option<String>>,
}

/// The reason why the driver woke up.
enum AdapterWake {
    Command(Option<AdapterCommand>),
    Dialed(Result<ClientTransport, Lost>),
    Received(Received),
    Finished(u64, WorkResult),
    Timeout,
}

// === impl AdapterDriver ===

impl<P: Platform> AdapterDriver<P> {
    /// Checks the options.
    pub(crate) fn new(
        platform: P,
        options: &AdapterOptions,
        commands: mpsc::Receiver<AdapterCommand>,
        status: watch::Sender<AdapterStatus>,
    ) -> Result<Self, ClientError> {
        let addresses = options.addresses()?;
        let setup = options.setup()?;
        let capabilities = platform.capabilities();
        setup.check(&capabilities)?;
        // The low half of a UUIDv7 is random; it names requests and is not secret.
        let machine = AdapterMachine::new(setup, capabilities, fresh_id().as_u64_pair().1);
        Ok(Self {
            platform: Arc::new(platform),
            offset_file: options.offset_file.clone(),
            machine,
            addresses,
            started: Instant::now(),
            commands,
            status,
            transport: None,
            dialing: None,
            tasks: JoinSet::new(),
            running: BTreeMap::new(),
            forwards: BTreeMap::new(),
            requests: BTreeMap::new(),
            ended: None,
        })
    }

    /// Runs until the adapter has ended.
    pub(crate) async fn run(mut self) -> Result<(), ClientError> {
        loop {
            self.perform().await;
            if let Some(refusal) = self.ended.take() {
                self.hang_up().await;
                return refusal.map_or(Ok(()), |reason| Err(ClientError::Connect(reason)));
            }
            match self.next_wake().await {
                AdapterWake::Command(Some(command)) => self.handle_command(command),
                // The adapter holds a handle itself.
                AdapterWake::Command(None) => self.machine.stop(self.now()),
                AdapterWake::Dialed(Ok(transport)) => {
                    self.dialing = None;
                    self.transport = Some(transport);
                    self.machine.handle_open(self.now());
                }
                AdapterWake::Dialed(Err(lost)) => {
                    self.dialing = None;
                    self.machine.handle_lost(self.now(), &lost);
                }
                AdapterWake::Received(received) => self.handle_received(received),
                AdapterWake::Finished(task, result) => {
                    self.running.remove(&task);
                    self.machine.handle_finished(self.now(), task, result);
                }
                AdapterWake::Timeout => self.machine.handle_timeout(self.now()),
            }
        }
    }

    fn now(&self) -> Moment {
        // A clock before 1970 makes every deadline a later one.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { elapsed: self.started.elapsed(), unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX) }
    }

    async fn next_wake(&mut self) -> AdapterWake {
        let deadline = self.machine.poll_timeout().map(|at| self.started + at);
        let wait = async move {
            match deadline {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let transport = &mut self.transport;
        let received = async move {
            match transport {
                Some(transport) => transport.recv(false).await,
                None => std::future::pending().await,
            }
        };
        let dialing = &mut self.dialing;
        let dialed = async move {
            match dialing {
                Some(dialing) => dialing.await,
                None => std::future::pending().await,
            }
        };
        let tasks = &mut self.tasks;
        let finished = async move {
            loop {
                match tasks.join_next().await {
                    Some(Ok((task, result))) => return (task, result),
                    // The task was abandoned; panics are caught within the task.
                    Some(Err(_)) => {}
                    None => std::future::pending().await,
                }
            }
        };
        tokio::select! {
            biased;
            (task, result) = finished => AdapterWake::Finished(task, result),
            command = self.commands.recv() => AdapterWake::Command(command),
            dialed = dialed => AdapterWake::Dialed(dialed),
            () = wait => AdapterWake::Timeout,
            received = received => AdapterWake::Received(received),
        }
    }

    // --- performing outputs ---

    async fn perform(&mut self) {
        self.perform_all().await;
        self.flush().await;
        // A flush that finds the connection lost adds outputs.
        self.perform_all().await;
    }

    async fn perform_all(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                AdapterOutput::Dial { address } => {
                    // The machine counts the same addresses.
                    let address = self.addresses.get(address).or(self.addresses.first());
                    self.dialing = address.map(|to| Box::pin(ClientTransport::dial(to.clone())) as PendingAdapterDial);
                }
                AdapterOutput::Send(text) => self.send(text).await,
                AdapterOutput::Hangup => self.hang_up().await,
                AdapterOutput::Start { task, work } => self.start(task, work),
                AdapterOutput::Abandon { task } => {
                    if let Some(running) = self.running.remove(&task) {
                        running.abort();
                    }
                }
                AdapterOutput::Settled { event, settled } => {
                    if let Some(call) = self.forwards.remove(&event) {
                        // The caller may have gone.
                        let _ = call.answer.send(Ok(settled));
                    }
                }
                AdapterOutput::Answered { request, answer } => {
                    if let Some(call) = self.requests.remove(&request) {
                        let _ = call.send(answer);
                    }
                }
                AdapterOutput::Status(status) => _ = self.status.send_replace(status),
                AdapterOutput::Ended { refusal } => self.ended = Some(refusal),
            }
        }
    }

    fn start(&mut self, task: u64, work: AdapterWork) {
        let platform = Arc::clone(&self.platform);
        let file = self.offset_file.clone();
        let running = self.tasks.spawn(async move {
            let work = AssertUnwindSafe(perform_work(&*platform, file, work)).catch_unwind();
            (task, work.await.unwrap_or(WorkResult::Panicked))
        });
        self.running.insert(task, running);
    }

    async fn send(&mut self, text: String) {
        if let Some(transport) = &mut self.transport {
            let sent = transport.feed_in_time(text).await;
            self.check_written(sent);
        }
    }

    async fn flush(&mut self) {
        if let Some(transport) = &mut self.transport {
            let sent = transport.flush_in_time().await;
            self.check_written(sent);
        }
    }

    fn check_written(&mut self, written: Result<(), Lost>) {
        if let Err(lost) = written {
            self.transport = None;
            self.machine.handle_lost(self.now(), &lost);
        }
    }

    async fn hang_up(&mut self) {
        self.dialing = None;
        if let Some(transport) = self.transport.take() {
            transport.close().await;
        }
    }

    // --- handling events ---

    fn handle_received(&mut self, received: Received) {
        let now = self.now();
        match received {
            Received::Text(text) | Received::UnorderedText(text) => self.machine.handle_text(now, &text),
            Received::Activity => self.machine.handle_bytes(now),
            Received::Lost(lost) => {
                self.transport = None;
                self.machine.handle_lost(now, &lost);
            }
        }
    }

    fn handle_command(&mut self, command: AdapterCommand) {
        let now = self.now();
        match command {
            AdapterCommand::Forward(event, call) => match self.machine.forward(now, &event) {
                Ok(id) => _ = self.forwards.insert(id, call),
                Err(error) => _ = call.answer.send(Err(error)),
            },
            AdapterCommand::Declare { conversation, capabilities, call } => {
                let request = self.machine.declare(now, conversation, capabilities);
                self.keep(request, call);
            }
            AdapterCommand::Request { message, call } => {
                let request = self.machine.request(now, message);
                self.keep(request, call);
            }
            AdapterCommand::Stop => self.machine.stop(now),
        }
    }

    fn keep(&mut self, request: Result<u64, ClientError>, call: RequestCall) {
        match request {
            Ok(request) => _ = self.requests.insert(request, call),
            Err(error) => _ = call.send(Err(error)),
        }
    }
}

/// Performs work; the result of a call is that of the platform.
async fn perform_work<P: Platform>(platform: &P, file: Option<OffsetFile>, work: AdapterWork) -> WorkResult {
    match work {
        AdapterWork::Order(ReportedOrder::Part(part)) => WorkResult::Sent(platform.send(*part).await),
        AdapterWork::Order(ReportedOrder::Change(kind, change)) => WorkResult::Changed(match kind {
            ChangeKind::Edit => platform.edit(change).await,
            ChangeKind::Delete => platform.delete(change).await,
            ChangeKind::React => platform.react(change).await,
        }),
        AdapterWork::Order(ReportedOrder::Conversation(order)) => {
            WorkResult::Created(platform.create_conversation(order).await)
        }
        AdapterWork::Signal(signal) => WorkResult::Shown(match signal {
            SignalOrder::Typing { conversation_id, is_on } => platform.typing(conversation_id, is_on).await,
            SignalOrder::Preview(preview) => platform.preview(*preview).await,
            SignalOrder::DeletePreview { conversation_id, key } => platform.delete_preview(conversation_id, key).await,
        }),
        AdapterWork::ReadUpdates { after } => WorkResult::Updates(platform.updates(after).await),
        AdapterWork::ReadOffset => WorkResult::Offset(with_file(file, |file| file.read()).await),
        AdapterWork::SaveOffset(offset) => WorkResult::Saved(with_file(file, move |file| file.save(&offset)).await),
    }
}

/// Calls the offset file where blocking is allowed.
async fn with_file<T, F>(file: Option<OffsetFile>, call: F) -> Result<T, String>
where
    T: Send + 'static,
    F: FnOnce(OffsetFile) -> std::io::Result<T> + Send + 'static,
{
    let Some(file) = file else { return Err("the adapter has no offset file".to_owned()) };
    match tokio::task::spawn_blocking(move || call(file)).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

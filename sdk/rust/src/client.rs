//! The handles that an application uses: the client and its sessions. Commands go to the driver task over a channel.
use crate::driver::ClientDriver;
use crate::error::ClientError;
use crate::event::{Bookmark, Event};
use crate::invoke::{Open, Subscribe, UserInput, fresh_id};
use crate::limits;
use crate::members::MemberChange;
use crate::options::Options;
use crate::requests::Decision;
use crate::state::ClientState;
use crate::transport::GatewayAddress;
use crate::trust::TrustedRoots;
use std::collections::VecDeque;
use std::fmt;
use tokio::sync::{mpsc, oneshot};

/// A connection to Turnway that reconnects automatically. Dropping the client closes the connection.
#[derive(Debug)]
pub struct Client {
    commands: mpsc::Sender<DriverCommand>,
    events: mpsc::Receiver<Event>,
    /// Events received while waiting for the first `welcome`.
    early: VecDeque<Event>,
}

/// One session of a client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Session {
    id: String,
    commands: mpsc::Sender<DriverCommand>,
}

/// A request from a handle to the driver.
#[derive(Debug)]
pub(crate) struct DriverCommand {
    pub(crate) session: String,
    pub(crate) action: DriverAction,
    pub(crate) answer: oneshot::Sender<Result<(), ClientError>>,
}

/// The action of a [`DriverCommand`].
#[derive(Debug)]
pub(crate) enum DriverAction {
    Subscribe(Subscribe),
    DecideHandover(Decision),
    Members(MemberChange),
    Invoke(UserInput),
    Cancel(Option<String>),
    Open(Open),
    Close,
    Bookmark,
    Resume(Box<Bookmark>),
    Leave,
    Refresh(SecretToken),
    Shutdown,
}

/// A credential; its `Debug` output does not reveal the value.
pub(crate) struct SecretToken(pub(crate) String);

impl fmt::Debug for SecretToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<token>")
    }
}

impl Client {
    /// Connects; fails if the gateway cannot be reached or refuses the client. After the first success the client
    /// reconnects automatically.
    pub async fn connect(options: Options) -> Result<Self, ClientError> {
        let mut client = Self::spawn(&options, true)?;
        let mut refusal = None;
        while let Some(event) = client.events.recv().await {
            if let Event::Disconnected { reason, retry_in: None, .. } = event {
                return Err(ClientError::Connect(refusal.unwrap_or(reason)));
            }
            if let Event::Error(failure) = &event {
                refusal = Some(format!("{}: {}", failure.code, failure.message));
            }
            let connected = matches!(event, Event::Connected { .. });
            client.early.push_back(event);
            if connected {
                return Ok(client);
            }
        }
        Err(ClientError::Closed)
    }

    /// Starts without waiting for a connection: events report when there is one.
    pub fn start(options: &Options) -> Result<Self, ClientError> {
        Self::spawn(options, false)
    }

    fn spawn(options: &Options, impatient: bool) -> Result<Self, ClientError> {
        let endpoint = options.endpoint()?;
        let trust = TrustedRoots::from_options(options)?;
        let (commands, inbox) = mpsc::channel(limits::COMMANDS_MAX);
        let (outbox, events) = mpsc::channel(limits::EVENTS_MAX);
        // The low half of a UUIDv7 is random; the seed is not secret.
        let seed = fresh_id().as_u64_pair().1;
        let state = ClientState::new(options, seed, impatient);
        tokio::spawn(ClientDriver::new(state, GatewayAddress { endpoint, trust }, inbox, outbox).run());
        Ok(Self { commands, events, early: VecDeque::new() })
    }

    /// Returns the next event; `None` once the client has ended. While the application takes no events, the client
    /// stops reading, so an application that pauses for long is disconnected and resumes later.
    pub async fn next_event(&mut self) -> Option<Event> {
        match self.early.pop_front() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        }
    }

    /// Returns a handle of a session by its id. Nothing is sent yet: an input or `open` creates the session.
    pub fn session(&self, id: impl Into<String>) -> Session {
        Session { id: id.into(), commands: self.commands.clone() }
    }

    /// Returns a handle of a new session, whose id is a fresh UUIDv7.
    pub fn new_session(&self) -> Session {
        self.session(fresh_id().to_string())
    }

    /// Resumes a session from a bookmark.
    pub async fn resume(&self, mark: Bookmark) -> Result<Session, ClientError> {
        let session = self.session(mark.session_id.clone());
        session.ask(DriverAction::Resume(Box::new(mark))).await?;
        Ok(session)
    }

    /// Replaces the token for the current connection and later ones. Call this before the previous token expires. The
    /// new token must be of the same user with the same rights, otherwise the gateway ends the client.
    pub async fn refresh(&self, token: impl Into<String>) -> Result<(), ClientError> {
        self.session("").ask(DriverAction::Refresh(SecretToken(token.into()))).await
    }

    /// Closes the connection. Inputs that were accepted continue to run.
    pub async fn close(self) {
        // An error means that the client has ended already.
        let _ = self.session("").ask(DriverAction::Shutdown).await;
    }
}

impl Session {
    /// Returns the session's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Sends an input and returns its message id. The input is sent again after every lost connection until its turn
    /// has ended; the gateway runs the input once.
    pub async fn invoke(&self, invoke: UserInput) -> Result<String, ClientError> {
        let id = invoke.message_id.clone();
        self.ask(DriverAction::Invoke(invoke)).await?;
        Ok(id)
    }

    /// Subscribes to the session's output from a chosen position.
    pub async fn subscribe(&self, request: Subscribe) -> Result<(), ClientError> {
        self.ask(DriverAction::Subscribe(request)).await
    }

    /// Cancels a run, or without a run id whatever is in progress. The cancellation of a named run is sent again
    /// after a lost connection until the run has ended; one without a name is not.
    pub async fn cancel(&self, run: Option<&str>) -> Result<(), ClientError> {
        self.ask(DriverAction::Cancel(run.map(str::to_owned))).await
    }

    /// Confirms or rejects a handover that an agent asked for ([`Event::Note`] `handover_prompt`). The answer is an
    /// [`Event::Note`] `handover` with the outcome: the first decision counts. Sent again after a lost connection
    /// until answered.
    pub async fn decide(&self, handover: &str, confirm: bool) -> Result<(), ClientError> {
        self.ask(DriverAction::DecideHandover(Decision { handover: handover.to_owned(), confirm })).await
    }

    /// Changes the session's members or the active one. Answered by [`Event::Members`] once the change is done, or by
    /// [`Event::Error`] with the name of the request (`switch_agent`, `invite_agent`, `remove_agent`). Sent again
    /// after a lost connection until answered: if a removal was already done, its repeat is answered with an error,
    /// because the agent is no longer a member.
    pub async fn change_members(&self, change: MemberChange) -> Result<(), ClientError> {
        self.ask(DriverAction::Members(change)).await
    }

    /// Creates or reopens the session; answered by [`Event::Opened`].
    pub async fn open(&self, open: Open) -> Result<(), ClientError> {
        self.ask(DriverAction::Open(open)).await
    }

    /// Closes the session; answered by [`Event::Closed`].
    pub async fn close(&self) -> Result<(), ClientError> {
        self.ask(DriverAction::Close).await
    }

    /// Inserts a bookmark into the stream of events, from which another process can resume.
    pub async fn bookmark(&self) -> Result<(), ClientError> {
        self.ask(DriverAction::Bookmark).await
    }

    /// Removes the session from the client; accepted inputs continue to run.
    pub async fn leave(&self) -> Result<(), ClientError> {
        self.ask(DriverAction::Leave).await
    }

    async fn ask(&self, what: DriverAction) -> Result<(), ClientError> {
        let (answer, reply) = oneshot::channel();
        let command = DriverCommand { session: self.id.clone(), action: what, answer };
        self.commands.send(command).await.map_err(|_| ClientError::Closed)?;
        reply.await.map_err(|_| ClientError::Closed)?
    }
}

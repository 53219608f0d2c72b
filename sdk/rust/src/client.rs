//! The handles an application holds.
use crate::ask::Decision;
use crate::error::ClientError;
use crate::event::{Bookmark, Event};
use crate::invoke::{Invoke, Open, Subscribe, fresh_id};
use crate::limits;
use crate::members::MemberChange;
use crate::options::Options;
use crate::road::Gateway;
use crate::socket::Driver;
use crate::state::ClientState;
use crate::trust::Trust;
use std::collections::VecDeque;
use std::fmt;
use tokio::sync::{mpsc, oneshot};

/// A connection to Turnway that comes back by itself. Dropping it ends it.
#[derive(Debug)]
pub struct Client {
    commands: mpsc::Sender<Command>,
    events: mpsc::Receiver<Event>,
    /// Events taken while waiting for the first `welcome`.
    early: VecDeque<Event>,
}

/// One session of a client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Session {
    id: String,
    commands: mpsc::Sender<Command>,
}

/// What a handle asks of the driver.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) session: String,
    pub(crate) what: What,
    pub(crate) answer: oneshot::Sender<Result<(), ClientError>>,
}

/// See [`Command`].
#[derive(Debug)]
pub(crate) enum What {
    Subscribe(Subscribe),
    Decide(Decision),
    Members(MemberChange),
    Invoke(Invoke),
    Cancel(Option<String>),
    Open(Open),
    Close,
    Bookmark,
    Resume(Box<Bookmark>),
    Leave,
    Refresh(Token),
    Quit,
}

/// A credential, which is not printed.
pub(crate) struct Token(pub(crate) String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<token>")
    }
}

impl Client {
    /// Connects; an error if the gateway cannot be reached now or will not have us. From then on
    /// the client reconnects by itself.
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

    /// Starts without waiting: whether and when there is a connection is told by events.
    pub fn start(options: &Options) -> Result<Self, ClientError> {
        Self::spawn(options, false)
    }

    fn spawn(options: &Options, impatient: bool) -> Result<Self, ClientError> {
        let (endpoint, trust) = (options.endpoint()?, Trust::of(options)?);
        let (commands, inbox) = mpsc::channel(limits::COMMANDS_MAX);
        let (outbox, events) = mpsc::channel(limits::EVENTS_MAX);
        // The low half of a UUIDv7 is chance; nothing secret hangs on it.
        let seed = fresh_id().as_u64_pair().1;
        let state = ClientState::new(options, seed, impatient);
        tokio::spawn(Driver::new(state, Gateway { endpoint, trust }, inbox, outbox).run());
        Ok(Self { commands, events, early: VecDeque::new() })
    }

    /// The next event; `None` once the client has ended. While nobody asks, the client stops
    /// reading, so an application that is away for long is disconnected and resumes.
    pub async fn next_event(&mut self) -> Option<Event> {
        match self.early.pop_front() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        }
    }

    /// A session by its id. Nothing is asked of the gateway yet: an input creates it, or `open`.
    pub fn session(&self, id: impl Into<String>) -> Session {
        Session { id: id.into(), commands: self.commands.clone() }
    }

    /// A session that nobody has yet: its id is a fresh UUIDv7.
    pub fn new_session(&self) -> Session {
        self.session(fresh_id().to_string())
    }

    /// A session from where a bookmark was put.
    pub async fn resume(&self, mark: Bookmark) -> Result<Session, ClientError> {
        let session = self.session(mark.session_id.clone());
        session.ask(What::Resume(Box::new(mark))).await?;
        Ok(session)
    }

    /// Shows this token from now on, on the connection that stands and on those that follow. To be called before
    /// the one before ends; it must be of the same user, with the same rights, or the gateway ends the client.
    pub async fn refresh(&self, token: impl Into<String>) -> Result<(), ClientError> {
        self.session("").ask(What::Refresh(Token(token.into()))).await
    }

    /// Says goodbye. Inputs that have been accepted run on.
    pub async fn close(self) {
        // An error means that it has ended already.
        let _ = self.session("").ask(What::Quit).await;
    }
}

impl Session {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Says something and gives its message id. It is said again after every lost connection until
    /// its turn has ended; the gateway runs it once.
    pub async fn invoke(&self, invoke: Invoke) -> Result<String, ClientError> {
        let id = invoke.message_id.clone();
        self.ask(What::Invoke(invoke)).await?;
        Ok(id)
    }

    /// Asks to see the session's output from a place of one's choice.
    pub async fn subscribe(&self, wish: Subscribe) -> Result<(), ClientError> {
        self.ask(What::Subscribe(wish)).await
    }

    /// Cancels a run, or with none whatever is in flight. A named run's cancel is said again after
    /// a lost connection until the run has ended; one without a name is not.
    pub async fn cancel(&self, run: Option<&str>) -> Result<(), ClientError> {
        self.ask(What::Cancel(run.map(str::to_owned))).await
    }

    /// Agrees to a handover that an agent has asked for ([`Event::Note`] `handover_prompt`), or not; answered by a
    /// [`Event::Note`] `handover`, which says what has become of it: the first decision counts. Said again after a
    /// lost connection until it is answered.
    pub async fn decide(&self, handover: &str, confirm: bool) -> Result<(), ClientError> {
        self.ask(What::Decide(Decision { handover: handover.to_owned(), confirm })).await
    }

    /// Changes who is a member of the session, or which of them is active; answered by [`Event::Members`] once the
    /// change is done, or by [`Event::Error`] with the name of the request (`switch_agent`, `invite_agent`,
    /// `remove_agent`). Said again after a lost connection until it is answered: the second saying of a removal that was
    /// done already is answered with an error, the agent being no member any more.
    pub async fn change_members(&self, change: MemberChange) -> Result<(), ClientError> {
        self.ask(What::Members(change)).await
    }

    /// Creates the session, or opens it again; answered by [`Event::Opened`].
    pub async fn open(&self, open: Open) -> Result<(), ClientError> {
        self.ask(What::Open(open)).await
    }

    /// Closes the session; answered by [`Event::Closed`].
    pub async fn close(&self) -> Result<(), ClientError> {
        self.ask(What::Close).await
    }

    /// Puts a bookmark into the stream of events, from where another process can go on.
    pub async fn bookmark(&self) -> Result<(), ClientError> {
        self.ask(What::Bookmark).await
    }

    /// Forgets the session; what was accepted runs on.
    pub async fn leave(&self) -> Result<(), ClientError> {
        self.ask(What::Leave).await
    }

    async fn ask(&self, what: What) -> Result<(), ClientError> {
        let (answer, reply) = oneshot::channel();
        let command = Command { session: self.id.clone(), what, answer };
        self.commands.send(command).await.map_err(|_| ClientError::Closed)?;
        reply.await.map_err(|_| ClientError::Closed)?
    }
}

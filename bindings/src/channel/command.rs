//! What a client may ask, already checked for form.
use crate::channel::authority::Action;
use turnway_core::id::{AgentId, Epoch, EventId, MessageId, RequestId, RunId, Seq, SessionId};
use turnway_core::protocol::history::History;
use turnway_core::protocol::input::{Ask, Message, Strategy};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::pattern::Pattern;
use turnway_core::store::Birth;

/// One request of a link (protocol.md §1.2).
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Create a session, or load it, or open it again after it was closed.
    Open {
        /// Echoed.
        request_id: Option<RequestId>,
        /// Which; none: the gateway makes one.
        session: Option<SessionId>,
        /// Members of a new session; empty: the default agent.
        agents: Vec<AgentId>,
        /// Which of them is active; none: the first.
        active: Option<AgentId>,
    },
    /// Close a session.
    Close {
        /// Echoed.
        request_id: Option<RequestId>,
        /// Which.
        session: SessionId,
    },
    /// Attach to a session's output, or move the link's cursor.
    Subscribe(Subscribe),
    /// Detach.
    Unsubscribe {
        /// Echoed.
        request_id: Option<RequestId>,
        /// Which.
        session: SessionId,
    },
    /// Say something.
    Invoke(Box<Invoke>),
    /// See a session's present state, and leave no trace of it.
    Look {
        /// Echoed.
        request_id: Option<RequestId>,
        /// Which.
        session: SessionId,
    },
    /// One's own sessions, the last made first; an operator's are all of the tenant. Answered by
    /// [`Note::Listed`](crate::channel::note::Note::Listed).
    List {
        /// Only those that were made before this one.
        before: Option<Birth>,
        /// At most so many, and no more than [`turnway_core::limits::LIST_SESSIONS_MAX`].
        limit: u32,
    },
    /// Where a run's facts lie. Answered by [`Note::Found`](crate::channel::note::Note::Found).
    Find {
        /// Which.
        run_id: RunId,
    },
    /// Delete a closed session for good. Answered by [`Note::Deleted`](crate::channel::note::Note::Deleted).
    Delete {
        /// Which.
        session: SessionId,
    },
    /// Change who belongs to a session, or who answers there.
    Members {
        /// Echoed.
        request_id: Option<RequestId>,
        /// Which.
        session: SessionId,
        /// What.
        wish: MemberWish,
    },
    /// Agree to a handover that an agent has asked for, or not. Answered by
    /// [`Note::Handover`](crate::channel::note::Note::Handover).
    Decide {
        /// Echoed.
        request_id: Option<RequestId>,
        /// Which session.
        session: SessionId,
        /// Which handover.
        handover_id: EventId,
        /// Whether they agree.
        confirm: bool,
    },
    /// Cancel a run, or whatever is in flight in a session.
    Cancel {
        /// Echoed.
        request_id: Option<RequestId>,
        /// What.
        target: Target,
        /// Says so too once the owner has taken it: for who does not follow the session.
        receipt: bool,
    },
}

impl Command {
    /// What it takes to be allowed: with [`Command::request_id`] the table of operations.
    pub fn action(&self) -> Action {
        match self {
            Self::Open { .. } => Action::Open,
            Self::Close { .. } | Self::Delete { .. } => Action::Close,
            Self::Invoke(_) => Action::Invoke,
            Self::Cancel { .. } => Action::Cancel,
            Self::Members { .. } => Action::Members,
            Self::Decide { .. } => Action::Decide,
            Self::Subscribe(_)
            | Self::Unsubscribe { .. }
            | Self::Look { .. }
            | Self::List { .. }
            | Self::Find { .. } => Action::Read,
        }
    }

    /// Tells whether it waits among a link's requests, of which only so many may.
    pub fn may_be_busy(&self) -> bool {
        match self {
            Self::Open { .. }
            | Self::Close { .. }
            | Self::Invoke(_)
            | Self::Members { .. }
            | Self::Decide { .. }
            | Self::Cancel { .. } => true,
            Self::Subscribe(_)
            | Self::Unsubscribe { .. }
            | Self::Look { .. }
            | Self::List { .. }
            | Self::Delete { .. }
            | Self::Find { .. } => false,
        }
    }

    /// What its answer echoes.
    pub fn request_id(&self) -> Option<&RequestId> {
        match self {
            Self::Open { request_id, .. }
            | Self::Close { request_id, .. }
            | Self::Unsubscribe { request_id, .. }
            | Self::Look { request_id, .. }
            | Self::Members { request_id, .. }
            | Self::Decide { request_id, .. }
            | Self::Cancel { request_id, .. } => request_id.as_ref(),
            Self::Subscribe(subscribe) => subscribe.request_id.as_ref(),
            Self::Invoke(invoke) => invoke.request_id.as_ref(),
            Self::List { .. } | Self::Find { .. } | Self::Delete { .. } => None,
        }
    }
}

/// What is to become of a member (protocol.md §1.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberWish {
    /// Of which agent.
    pub agent_id: AgentId,
    /// What.
    pub what: MemberChange,
    /// Why: a line for a person.
    pub reason: Option<String>,
}

/// See [`MemberWish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// It is to answer where nobody is addressed.
    Switch,
    /// It is to come.
    Invite {
        /// And to answer where nobody is addressed.
        activate: bool,
    },
    /// It is to go.
    Remove,
}

impl From<MemberWish> for Ask {
    fn from(wish: MemberWish) -> Self {
        let MemberWish { agent_id, what, reason } = wish;
        match what {
            MemberChange::Switch => Self::Switch { agent_id, reason },
            MemberChange::Invite { activate } => Self::Invite { agent_id, reason, activate },
            MemberChange::Remove => Self::Remove { agent_id, reason },
        }
    }
}

/// What a cancel names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// This run, in any non-terminal state.
    Run(RunId),
    /// Whatever is in flight.
    Session(SessionId),
}

/// One user input.
#[derive(Clone, Debug, PartialEq)]
pub struct Invoke {
    /// Echoed; also the default of `message_id`.
    pub request_id: Option<RequestId>,
    /// Where; none: a new session.
    pub session: Option<SessionId>,
    /// To whom, by field, metadata or mention (LN-SR10).
    pub agent_id: Option<AgentId>,
    /// What.
    pub message: Message,
    /// What was said before; only where a client keeps the conversation itself.
    pub history: Option<History>,
    /// The unit of de-duplication.
    pub message_id: Option<MessageId>,
    /// What it does while a run is open; none: the default.
    pub strategy: Option<Strategy>,
    /// The run that waits, in whose place it is put.
    pub replaces: Option<RunId>,
    /// Kept as it came.
    pub metadata: Option<Json>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

/// Where a link wants to go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Subscribe {
    /// Echoed.
    pub request_id: Option<RequestId>,
    /// Which session.
    pub session: SessionId,
    /// The last fact it has (0: none, so everything); absent: from now on.
    pub after_seq: Option<Seq>,
    /// That fact's epoch; absent: not checked.
    pub after_epoch: Option<Epoch>,
    /// How far it has the text of open runs.
    pub runs: Vec<TextCursor>,
    /// Facts it wants beyond those every link is shown, as `event`s.
    pub types: Vec<Pattern>,
}

/// How far a link has one run's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextCursor {
    /// Which run.
    pub run_id: RunId,
    /// Which attempt; an offset of another one counts as 0.
    pub attempt: u32,
    /// UTF-8 bytes.
    pub offset: u64,
}

//! What a link is shown.
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{
    AgentId, Cursor, Epoch, EventId, MessageId, RequestId, RunId, Seq, SessionId, UserId,
};
use turnway_core::private::Private;
use turnway_core::protocol::action::Printed;
use turnway_core::protocol::agent::TextKind;
use turnway_core::protocol::entry::Entry;
use turnway_core::protocol::refusal::Refusal;
use turnway_core::session::{Handover, Standing};
use turnway_core::store::Birth;

/// What a link's `types` must fit so that it is shown what processes print.
pub const OUTPUT: &str = "process.output";

/// One thing a link is shown (protocol.md §1.3, §4); its channel renders it.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// A durable fact.
    Fact {
        /// Whose.
        session: SessionId,
        /// Where.
        seq: Seq,
        /// By which ownership.
        epoch: Epoch,
        /// What.
        entry: Arc<Entry>,
        /// The link's `types` ask for it: shown as `event` where the table says "nothing".
        asked: bool,
    },
    /// A piece of an answer; provisional until `done`.
    Delta {
        /// Whose.
        session: SessionId,
        /// Of which run.
        run_id: RunId,
        /// Of which attempt.
        attempt: u32,
        /// UTF-8 bytes of this attempt's text of this kind before it.
        offset: u64,
        /// Answer or reasoning.
        kind: TextKind,
        /// The piece; a code point is never split.
        text: Private<Arc<str>>,
    },
    /// A piece of what a process prints ([`OUTPUT`]).
    Printed {
        /// Whose.
        session: SessionId,
        /// In which run it was asked for.
        run_id: RunId,
        /// What.
        printed: Box<Printed>,
    },
    /// The input is durable and will end in one terminal fact. Only for the link that asked.
    Accepted(Box<Accepted>),
    /// The answer to `subscribe`.
    Subscribed {
        /// Echoed.
        request_id: Option<RequestId>,
        /// The session's present state, at `snapshot.seq`.
        snapshot: Box<SnapshotNote>,
        /// Why the link's cursor was of no use, if it was not.
        reset: Option<Reset>,
    },
    /// The answer to `session_open`, and to a look.
    Opened {
        /// Echoed.
        request_id: Option<RequestId>,
        /// The session's present state.
        snapshot: Box<SnapshotNote>,
    },
    /// The answer to a wish about members, once that is done or undone.
    Members(Box<Members>),
    /// The answer to a decision on a handover: what has become of that.
    Handover(Box<Decided>),
    /// The answer to `session_close`, for a link that is not subscribed.
    Closed {
        /// Echoed.
        request_id: Option<RequestId>,
        /// Which.
        session: SessionId,
    },
    /// The owner has taken a cancel, and what could be cancelled by it is being. Only for who asked for a
    /// receipt; who follows the session is shown facts.
    CancelTaken {
        /// Echoed.
        request_id: Option<RequestId>,
        /// Where.
        session: SessionId,
        /// Which run, if the request named one.
        run_id: Option<RunId>,
    },
    /// Sessions in the order asked for.
    Listed {
        /// These.
        sessions: Vec<Listed>,
        /// There are more behind them.
        more: bool,
    },
    /// A session is deleted.
    Deleted {
        /// Which.
        session: SessionId,
    },
    /// Where a run's facts lie.
    Found {
        /// Which run.
        run_id: RunId,
        /// All of them are after this.
        after: Cursor,
        /// All of them are up to this, if the run has ended.
        ended: Option<Seq>,
    },
    /// Something was not done.
    Refused {
        /// Echoed.
        request_id: Option<RequestId>,
        /// Where, if the request named one.
        session: Option<SessionId>,
        /// Which run, if the request named one.
        run_id: Option<RunId>,
        /// Why.
        refusal: Refusal,
    },
    /// Come back elsewhere: this node leaves.
    GoAway {
        /// `drain`.
        reason: &'static str,
        /// Within this.
        within: Duration,
        /// Spread by this.
        jitter: Duration,
    },
}

/// See [`Note::Accepted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Echoed.
    pub request_id: Option<RequestId>,
    /// Where.
    pub session: SessionId,
    /// The turn; its root run has the same id.
    pub run_id: RunId,
    /// The message.
    pub message_id: MessageId,
    /// It had been accepted before.
    pub duplicate: bool,
}

/// Why a link starts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// What it lacks is forgotten.
    Trimmed {
        /// Facts up to this are.
        floor: Seq,
    },
    /// The log holds no such fact: the store lost acknowledged writes.
    Regressed,
}

/// A session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// When it was made, and which it is.
    pub birth: Birth,
    /// Whose it is.
    pub user: UserId,
    /// Whether it is closed.
    pub closed: bool,
    /// Its last fact.
    pub seq: Seq,
    /// Inputs that have not ended.
    pub pending: u32,
}

/// A session's present state as links are shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotNote {
    /// Which.
    pub session: SessionId,
    /// `open`, `closing` or `closed`.
    pub state: &'static str,
    /// Who answers where nobody is addressed.
    pub active_agent: Option<AgentId>,
    /// Members.
    pub agents: Vec<AgentId>,
    /// Turns that have not ended, the running one first.
    pub runs: Vec<RunNote>,
    /// The handover that a person is to decide on.
    pub handover: Option<Box<Handover>>,
    /// The last fact that is in it.
    pub seq: Seq,
    /// Its epoch.
    pub epoch: Epoch,
}

/// A turn that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunNote {
    /// Which.
    pub run_id: RunId,
    /// Who answers.
    pub agent_id: AgentId,
    /// `QUEUED`, `ROUTING`, `RUNNING` or `CANCELLING`.
    pub state: &'static str,
    /// 0 until it starts.
    pub attempt: u32,
    /// Bytes of its text that are recorded.
    pub text_bytes: u64,
}

/// Who belongs to a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Members {
    /// Echoed.
    pub request_id: Option<RequestId>,
    /// Which session.
    pub session: SessionId,
    /// In order.
    pub agents: Vec<AgentId>,
    /// Who answers where nobody is addressed.
    pub active_agent: Option<AgentId>,
}

/// See [`Note::Handover`].
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// Echoed.
    pub request_id: Option<RequestId>,
    /// Which session.
    pub session: SessionId,
    /// Which handover.
    pub handover_id: EventId,
    /// What has become of it.
    pub standing: Standing,
}

impl SnapshotNote {
    /// Bytes it takes on its way: an estimate.
    pub fn weight(&self) -> usize {
        let texts = |handover: &Handover| handover.reason.reveal().len() + handover.summary.reveal().len();
        512 + 256 * self.runs.len() + self.handover.as_deref().map_or(0, |handover| 512 + texts(handover))
    }
}

impl Note {
    /// Bytes it takes on its way to the link: an estimate that both ends compute alike.
    pub fn weight(&self) -> usize {
        match self {
            Self::Fact { entry, .. } => entry.weight(),
            Self::Delta { text, .. } => 256 + text.reveal().len(),
            Self::Printed { printed, .. } => 320 + printed.data.reveal().len(),
            Self::Subscribed { snapshot, .. } | Self::Opened { snapshot, .. } => snapshot.weight(),
            Self::Listed { sessions, .. } => 512 + 512 * sessions.len(),
            Self::Accepted(_)
            | Self::Members(_)
            | Self::Handover(_)
            | Self::Closed { .. }
            | Self::CancelTaken { .. }
            | Self::Found { .. }
            | Self::Deleted { .. }
            | Self::Refused { .. }
            | Self::GoAway { .. } => 512,
        }
    }
}

//! What an application is told.
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

/// How far a session's log has been seen: every fact up to `seq`, which is of `epoch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The last fact; 0 is before the first.
    pub seq: u64,
    /// Its epoch, so that a store that lost acknowledged writes gives itself away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
}

/// Where a fact lies in its session's log, and when it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// 1, 2, 3, …; what a link is shown may skip some.
    pub seq: u64,
    /// The generation of ownership that wrote it.
    pub epoch: Option<u64>,
    /// Unix milliseconds.
    pub ts: Option<u64>,
}

/// One thing that happened. Facts of a session come in the log's order, each once.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The gateway has said `welcome`.
    Connected {
        /// This connection, in the gateway's logs.
        connection_id: String,
        /// The node.
        node_id: String,
    },
    /// The connection is gone. Nothing is lost: what was not seen comes after the next `Connected`.
    Disconnected {
        /// Why, for a person.
        reason: String,
        /// The WebSocket close code, where there was one.
        code: Option<u16>,
        /// When the client tries again; `None`: never, this is the last event.
        retry_in: Option<Duration>,
    },
    /// The answer to a subscription.
    Subscribed {
        /// Which session.
        session: String,
        /// Its state at the end of its log.
        snapshot: Box<Snapshot>,
    },
    /// Everything that was in the log when the subscription was answered has been shown.
    CaughtUp {
        /// Which session.
        session: String,
        /// The last fact seen.
        seq: u64,
    },
    /// The input is durable: it will end in exactly one [`Event::Done`]. Once for each message id.
    Accepted(Accepted),
    /// A stored message, whoever sent it.
    Message(Box<Message>),
    /// An agent begins to answer.
    RunStarted {
        /// Which session.
        session: String,
        /// Which run.
        run: String,
        /// Who answers.
        agent: String,
        /// Which attempt, from 1.
        attempt: u32,
    },
    /// More of an answer: exactly the new text, in order, once. Provisional until [`Event::Done`].
    Text {
        /// Which session.
        session: String,
        /// Which run.
        run: String,
        /// The new text.
        text: String,
    },
    /// More of the agent's thinking; neither resumable nor counted.
    Reasoning {
        /// Which session.
        session: String,
        /// Which run.
        run: String,
        /// The new text.
        text: String,
    },
    /// Another attempt begins: the text of this run so far is void.
    Restarted {
        /// Which session.
        session: String,
        /// Which run.
        run: String,
        /// Which attempt, from 2.
        attempt: u32,
    },
    /// A state on the way.
    State {
        /// Which session.
        session: String,
        /// Which run.
        run: Option<String>,
        /// Whose: `run`, `tool_call` or `agent`.
        scope: String,
        /// The word.
        state: String,
        /// More of it.
        detail: Option<Value>,
    },
    /// Anything else that happened in the session's life, by its name on the wire.
    Note(Box<Note>),
    /// A turn has ended.
    Done(Box<Done>),
    /// Something was not done, and the client will not try again by itself.
    Error(Box<Failure>),
    /// What was held of this session is void: the log was trimmed or lost facts. Open runs start
    /// over, and inputs that have not ended are sent again.
    Reset {
        /// Which session.
        session: String,
        /// `trimmed`, `regressed` or `not_found`.
        reason: String,
        /// Where to start from, if the session exists.
        snapshot: Option<Box<Snapshot>>,
    },
    /// The session is open.
    Opened {
        /// Which session.
        session: String,
        /// Its state, where the gateway sends it.
        snapshot: Option<Box<Snapshot>>,
    },
    /// The session is closed; inputs are refused until it is opened again.
    Closed {
        /// Which session.
        session: String,
    },
    /// The answer to `Session::change_members`, once the change is done: who is a member now. A change that came to
    /// nothing is told as [`Event::Error`] where the session is followed.
    Members(Members),
    /// The answer to `Session::bookmark`: holds everything the events before it told, nothing after.
    Bookmark(Box<Bookmark>),
    /// A fact as it came, before its typed event; only where `Subscribe::with_facts` asked for it.
    Fact {
        /// Which session.
        session: String,
        /// Where.
        place: Place,
        /// The message.
        body: Map<String, Value>,
    },
}

/// See [`Event::Members`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// Which session.
    pub session: String,
    /// Its members, in the order in which they came.
    pub agents: Vec<String>,
    /// Who answers where nobody is addressed.
    pub active_agent: Option<String>,
}

/// See [`Event::Accepted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Which session.
    pub session: String,
    /// The message.
    pub message_id: String,
    /// The run that answers it.
    pub run: String,
    /// The gateway had it before.
    pub duplicate: bool,
    /// The level it is durable at, where the gateway says so.
    pub durability: Option<String>,
}

/// See [`Event::Message`].
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Which session.
    pub session: String,
    /// Where in the log.
    pub place: Place,
    /// The turn it opens.
    pub run: Option<String>,
    /// Its name.
    pub message_id: Option<String>,
    /// `user`, `assistant` or `system`.
    pub role: String,
    /// Who sent it, where the gateway says so.
    pub sender: Option<String>,
    /// Its text, or the texts of its parts joined.
    pub text: String,
    /// As it came: a text or content parts.
    pub content: Value,
}

/// See [`Event::Note`].
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Which session.
    pub session: String,
    /// Where in the log, if it is a fact.
    pub place: Option<Place>,
    /// `TURN_ADMITTED`, `AGENT_STARTED`, `handover_prompt`, `CANCEL_SENT`, … or a message type this client does not know.
    pub name: String,
    /// Which run, if it is about one.
    pub run: Option<String>,
    /// The message.
    pub body: Map<String, Value>,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The agent said all it wanted.
    Completed,
    /// It failed; [`Done::error`] says why.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// A word of a newer gateway.
    Other(String),
}

impl Status {
    pub(crate) fn parse(word: &str) -> Self {
        match word {
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            other => Self::Other(other.to_owned()),
        }
    }
    /// As on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Other(word) => word,
        }
    }
}

/// See [`Event::Done`].
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Which session.
    pub session: String,
    /// Where in the log.
    pub place: Option<Place>,
    /// Which run.
    pub run: String,
    /// The message it answers, if this client sent it.
    pub message_id: Option<String>,
    /// Who answered, where it is known.
    pub agent: Option<String>,
    /// How.
    pub status: Status,
    /// Why the agent stopped.
    pub stop_reason: Option<String>,
    /// The attempt whose text counts.
    pub attempt: u32,
    /// Bytes of the answer, by the gateway.
    pub text_bytes: u64,
    /// The answer as assembled, cut at `text_bytes`: this is what counts.
    pub text: String,
    /// `text` has all of `text_bytes`; false only if the gateway could not give the rest.
    pub complete: bool,
    /// As the agent counts.
    pub usage: Option<Value>,
    /// The run that the input has become part of: `stop_reason` is `steered` then, and the text is that run's.
    pub host_run: Option<String>,
    /// Why it failed.
    pub error: Option<Failure>,
}

/// Something that was not done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Where, if it is about a session.
    pub session: Option<String>,
    /// Which run, if it is about one.
    pub run: Option<String>,
    /// Which input, if it is about one; it is not sent again.
    pub message_id: Option<String>,
    /// What was asked: `agent_invoke`, `subscribe`, `cancel_run`, …; empty: nothing in particular.
    pub asked: String,
    /// One of the protocol's codes.
    pub code: String,
    /// For a person.
    pub message: String,
    /// The same may succeed later.
    pub retryable: bool,
    /// When to try, milliseconds, where the gateway or the agent said so.
    pub retry_after_ms: Option<u64>,
}

/// A session's present state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Which session.
    pub session_id: String,
    /// `open`, `closing` or `closed`.
    pub state: String,
    /// Who answers where nobody is addressed.
    pub active_agent: Option<String>,
    /// Its members.
    pub agents: Vec<Value>,
    /// Runs that have not ended.
    pub runs: Vec<OpenRun>,
    /// What waits for a person, by its kind: `handover` is as its `handover_prompt`.
    pub pending: Map<String, Value>,
    /// The last fact that is in it.
    pub seq: u64,
    /// Its epoch.
    pub epoch: Option<u64>,
}

/// A run that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenRun {
    /// Which run.
    pub run_id: String,
    /// Who answers.
    pub agent_id: Option<String>,
    /// `QUEUED`, `ROUTING`, `RUNNING`, …
    pub state: String,
    /// 0 until it starts.
    pub attempt: u32,
    /// Bytes of its text that are recorded.
    pub text_bytes: u64,
}

/// All a later process needs to go on where this one stopped, and to lose and repeat nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bookmark {
    /// Which session.
    pub session_id: String,
    /// How far it has been seen; none: nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
    /// The text of open runs so far.
    #[serde(default)]
    pub runs: Vec<RunMark>,
    /// Inputs that have not ended, oldest first.
    #[serde(default)]
    pub inputs: Vec<crate::invoke::Invoke>,
    /// What the subscription asks for beyond the usual.
    #[serde(default)]
    pub types: Vec<String>,
}

/// The text of an open run so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunMark {
    /// Which run.
    pub run_id: String,
    /// Who answers, where it is known.
    #[serde(default)]
    pub agent_id: Option<String>,
    /// Which attempt.
    pub attempt: u32,
    /// The text.
    pub text: String,
}

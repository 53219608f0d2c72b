//! The events that an application receives, and the data in them.
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

/// A position in a session's log: every fact up to `seq`, which belongs to `epoch`, was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCursor {
    /// Sequence number of the last fact; 0 is before the first.
    pub seq: u64,
    /// Epoch of that fact, by which a store is detected that lost acknowledged writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
}

/// The position of a fact in its session's log, and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactPosition {
    /// 1, 2, 3, …; a link may be shown only some of them.
    pub seq: u64,
    /// Generation of ownership that wrote the fact.
    pub epoch: Option<u64>,
    /// Time in Unix milliseconds.
    pub ts: Option<u64>,
}

/// An event. The facts of a session arrive in the log's order, each once.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The gateway has sent `welcome`.
    Connected {
        /// Id of this connection in the gateway's logs.
        connection_id: String,
        /// Id of the node.
        node_id: String,
    },
    /// The connection is lost. No events are lost: those not received follow the next `Connected`.
    Disconnected {
        /// Reason, as text for people.
        reason: String,
        /// WebSocket close code, if there was one.
        code: Option<u16>,
        /// Delay before the next attempt; `None` means never, and this is the last event.
        retry_in: Option<Duration>,
    },
    /// The answer to a subscription.
    Subscribed {
        /// Id of the session.
        session: String,
        /// State of the session at the end of its log.
        snapshot: Box<ClientSnapshot>,
    },
    /// Everything that was in the log when the subscription was answered has been delivered.
    CaughtUp {
        /// Id of the session.
        session: String,
        /// Sequence number of the last fact delivered.
        seq: u64,
    },
    /// The input is durable and will end in exactly one [`Event::Done`]. Delivered once for each message id.
    Accepted(InputAccepted),
    /// A stored message of any sender.
    Message(Box<StoredMessage>),
    /// An agent begins to answer.
    RunStarted {
        /// Id of the session.
        session: String,
        /// Id of the run.
        run: String,
        /// Id of the answering agent.
        agent: String,
        /// Number of the attempt, from 1.
        attempt: u32,
    },
    /// A further piece of an answer: exactly the new text, in order, once. Provisional until [`Event::Done`].
    Text {
        /// Id of the session.
        session: String,
        /// Id of the run.
        run: String,
        /// The new text.
        text: String,
    },
    /// A further piece of the agent's reasoning; neither resumable nor counted.
    Reasoning {
        /// Id of the session.
        session: String,
        /// Id of the run.
        run: String,
        /// The new text.
        text: String,
    },
    /// Another attempt begins: the text of this run so far is void.
    Restarted {
        /// Id of the session.
        session: String,
        /// Id of the run.
        run: String,
        /// Number of the attempt, from 2.
        attempt: u32,
    },
    /// An intermediate state.
    State {
        /// Id of the session.
        session: String,
        /// Id of the run, if the state is a run's.
        run: Option<String>,
        /// Kind of the object: `run`, `tool_call` or `agent`.
        scope: String,
        /// Name of the state.
        state: String,
        /// Further data about the state.
        detail: Option<Value>,
    },
    /// Any other event of the session, with its name on the wire.
    Note(Box<Note>),
    /// A turn has ended.
    Done(Box<Done>),
    /// A request failed, and the client does not repeat it.
    Error(Box<Failure>),
    /// The client's state of this session is void: the log was trimmed or lost facts. Open runs start over, and
    /// inputs that have not ended are sent again.
    Reset {
        /// Id of the session.
        session: String,
        /// `trimmed`, `regressed` or `not_found`.
        reason: String,
        /// State to start from, if the session exists.
        snapshot: Option<Box<ClientSnapshot>>,
    },
    /// The session is open.
    Opened {
        /// Id of the session.
        session: String,
        /// State of the session, if the gateway sends it.
        snapshot: Option<Box<ClientSnapshot>>,
    },
    /// The session is closed; inputs are refused until it is reopened.
    Closed {
        /// Id of the session.
        session: String,
    },
    /// The answer to `Session::change_members` once the change is done, with the current members. A failed change is
    /// delivered as [`Event::Error`] if the session is subscribed.
    Members(Members),
    /// The answer to `Session::bookmark`: covers all events before it and none after.
    Bookmark(Box<Bookmark>),
    /// A fact as received, before its typed event; only with `Subscribe::with_facts`.
    Fact {
        /// Id of the session.
        session: String,
        /// Position of the fact.
        position: FactPosition,
        body: Map<String, Value>,
    },
}

/// The members of a session; see [`Event::Members`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// Id of the session.
    pub session: String,
    /// Ids of the members, in the order in which they joined.
    pub agents: Vec<String>,
    /// Agent that answers messages without an addressee.
    pub active_agent: Option<String>,
}

/// The confirmation of an input; see [`Event::Accepted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputAccepted {
    /// Id of the session.
    pub session: String,
    /// Id of the message.
    pub message_id: String,
    /// Run that answers the message.
    pub run: String,
    /// True if the gateway had accepted the message before.
    pub duplicate: bool,
    /// Durability level of the input, if the gateway reports it.
    pub durability: Option<String>,
}

/// A stored message; see [`Event::Message`].
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    /// Id of the session.
    pub session: String,
    /// Position in the log.
    pub position: FactPosition,
    /// Run that the message starts.
    pub run: Option<String>,
    /// Id of the message.
    pub message_id: Option<String>,
    /// `user`, `assistant` or `system`.
    pub role: String,
    /// Id of the sender, if the gateway reports it.
    pub sender: Option<String>,
    /// Text of the message, or the joined texts of its parts.
    pub text: String,
    /// Content as received: a text or content parts.
    pub content: Value,
}

/// Any other event of a session; see [`Event::Note`].
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Id of the session.
    pub session: String,
    /// Position in the log, if the event is a fact.
    pub position: Option<FactPosition>,
    /// `TURN_ADMITTED`, `AGENT_STARTED`, `handover_prompt`, `CANCEL_SENT`, … or a message type unknown to this
    /// client.
    pub name: String,
    /// Id of the run, if the event is about one.
    pub run: Option<String>,
    pub body: Map<String, Value>,
}

/// The way in which a turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The agent finished its answer.
    Completed,
    /// The turn failed; [`Done::error`] has the reason.
    Failed,
    /// The turn was cancelled.
    Cancelled,
    /// A status that only a newer gateway knows.
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
    /// Returns the name on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Other(word) => word,
        }
    }
}

/// The end of a turn; see [`Event::Done`].
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Id of the session.
    pub session: String,
    /// Position in the log.
    pub position: Option<FactPosition>,
    /// Id of the run.
    pub run: String,
    /// Id of the answered message, if this client sent it.
    pub message_id: Option<String>,
    /// Id of the answering agent, if known.
    pub agent: Option<String>,
    /// Outcome of the turn.
    pub status: Status,
    /// Reason why the agent stopped.
    pub stop_reason: Option<String>,
    /// Attempt whose text counts.
    pub attempt: u32,
    /// Bytes of the answer according to the gateway.
    pub text_bytes: u64,
    /// Final text of the answer: as assembled, cut at `text_bytes`.
    pub text: String,
    /// True if `text` has all of `text_bytes`; false only if the gateway could not deliver the rest.
    pub complete: bool,
    /// Usage as counted by the agent.
    pub usage: Option<Value>,
    /// Run that the input became part of: `stop_reason` is then `steered`, and the text belongs to that run.
    pub host_run: Option<String>,
    /// Reason why the turn failed.
    pub error: Option<Failure>,
}

/// A failed request or run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Id of the session, if the failure is about one.
    pub session: Option<String>,
    /// Id of the run, if the failure is about one.
    pub run: Option<String>,
    /// Id of the input, if the failure is about one; the input is not sent again.
    pub message_id: Option<String>,
    /// Type of the request: `agent_invoke`, `subscribe`, `cancel_run`, …; empty if there is none.
    pub request_type: String,
    /// Error code of the protocol.
    pub code: String,
    /// Text for people.
    pub message: String,
    /// True if the same request may succeed later.
    pub retryable: bool,
    /// Delay before a retry in milliseconds, if the gateway or the agent named one.
    pub retry_after_ms: Option<u64>,
}

/// The current state of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientSnapshot {
    /// Id of the session.
    pub session_id: String,
    /// `open`, `closing` or `closed`.
    pub state: String,
    /// Agent that answers messages without an addressee.
    pub active_agent: Option<String>,
    /// Members of the session.
    pub agents: Vec<Value>,
    /// Runs that have not ended.
    pub runs: Vec<OpenRun>,
    /// Requests that wait for a person, by kind: `handover` has the form of its `handover_prompt`.
    pub pending: Map<String, Value>,
    /// Sequence number of the last fact in the snapshot.
    pub seq: u64,
    /// Epoch of that fact.
    pub epoch: Option<u64>,
}

/// A run that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenRun {
    /// Id of the run.
    pub run_id: String,
    /// Id of the answering agent.
    pub agent_id: Option<String>,
    /// `QUEUED`, `ROUTING`, `RUNNING`, …
    pub state: String,
    /// Number of the attempt; 0 until the run starts.
    pub attempt: u32,
    /// Recorded bytes of the run's text.
    pub text_bytes: u64,
}

/// The state that a later process needs to continue without loss or repetition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bookmark {
    /// Id of the session.
    pub session_id: String,
    /// Position up to which the session was seen; none if nothing was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<LogCursor>,
    /// Texts of the open runs so far.
    #[serde(default)]
    pub runs: Vec<RunMark>,
    /// Inputs that have not ended, oldest first.
    #[serde(default)]
    pub inputs: Vec<crate::invoke::UserInput>,
    /// Additional fact types of the subscription.
    #[serde(default)]
    pub types: Vec<String>,
}

/// The text of an open run so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunMark {
    /// Id of the run.
    pub run_id: String,
    /// Id of the answering agent, if known.
    #[serde(default)]
    pub agent_id: Option<String>,
    /// Number of the attempt.
    pub attempt: u32,
    /// Text of the attempt so far.
    pub text: String,
}

//! What an application asks.
use crate::event::Cursor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// What an input does while a run of its session is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Hand it to the running agent.
    Steer,
    /// Wait for one's turn.
    Enqueue,
    /// Cancel what runs and start next.
    Interrupt,
    /// `Interrupt`, and the cancelled turn is left out of the transcript.
    Rollback,
    /// Be refused with `busy`.
    Reject,
}

/// One user input. Its message id makes it safe to repeat: the gateway runs it once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Invoke {
    /// The unit of de-duplication.
    pub message_id: String,
    /// A text or OpenAI content parts.
    pub content: Value,
    /// To whom; none: the session's active agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// None: the gateway's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// The run of an own message that waits, in whose place this one is put; where it waits no more, this one is
    /// said like any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// Passed on as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// W3C trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl Invoke {
    fn new(content: Value) -> Self {
        let message_id = fresh_id().to_string();
        Self {
            message_id,
            content,
            agent_id: None,
            strategy: None,
            replaces: None,
            metadata: None,
            traceparent: None,
        }
    }
    /// A text, with a fresh message id.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Value::String(text.into()))
    }
    /// OpenAI content parts, with a fresh message id.
    pub fn parts(parts: Vec<Value>) -> Self {
        Self::new(Value::Array(parts))
    }
    /// With a message id of one's own: say the same thing under it as often as you like.
    #[must_use]
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = id.into();
        self
    }
    /// To this agent.
    #[must_use]
    pub fn agent(mut self, id: impl Into<String>) -> Self {
        self.agent_id = Some(id.into());
        self
    }
    /// With this strategy.
    #[must_use]
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = Some(strategy);
        self
    }
    /// In place of an own message that waits: its run.
    #[must_use]
    pub fn replaces(mut self, run_id: impl Into<String>) -> Self {
        self.replaces = Some(run_id.into());
        self
    }
    /// With this metadata.
    #[must_use]
    pub fn metadata(mut self, metadata: Value) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// The message that says it; the same bytes each time, so that a repeat is no conflict.
    pub(crate) fn to_wire(&self, session: &str) -> String {
        let message = json!({ "role": "user", "content": self.content, "message_id": self.message_id });
        let mut body = json!({
            "type": "agent_invoke", "ts": 0, "request_id": self.message_id, "session_id": session,
            "message": message,
        });
        let optional = [
            ("agent_id", self.agent_id.clone().map(Value::String)),
            ("strategy", self.strategy.and_then(|strategy| serde_json::to_value(strategy).ok())),
            ("replaces", self.replaces.clone().map(Value::String)),
            ("metadata", self.metadata.clone()),
            ("traceparent", self.traceparent.clone().map(Value::String)),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                body[key] = value;
            }
        }
        body.to_string()
    }
}

/// Where a subscription begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With the first fact of the log.
    Beginning,
    /// With what happens next.
    #[default]
    Now,
    /// After what has been seen.
    After(Cursor),
}

/// A wish to see a session's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscribe {
    pub(crate) start: Start,
    pub(crate) types: Vec<String>,
    pub(crate) facts: bool,
}

impl Subscribe {
    /// From there.
    pub fn from(start: Start) -> Self {
        Self { start, ..Self::default() }
    }
    /// Also facts of these types (`tool.*`, `>`), as [`crate::Event::Note`].
    #[must_use]
    pub fn with_types(mut self, types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.types = types.into_iter().map(Into::into).collect();
        self
    }
    /// Also each fact as it came, as [`crate::Event::Fact`].
    #[must_use]
    pub fn with_facts(mut self) -> Self {
        self.facts = true;
        self
    }
}

/// A wish for a session to exist and to be open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Members of a new session; empty: the gateway's default agent.
    pub agents: Vec<String>,
    /// Which of them is active; none: the first.
    pub active_agent: Option<String>,
}

/// A UUIDv7: names that sort by when they were made.
pub(crate) fn fresh_id() -> uuid::Uuid {
    // A clock before 1970 costs the order, not the uniqueness.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, since.as_secs(), since.subsec_nanos()))
}

//! The requests of an application: inputs, subscriptions, and the creation of sessions.
use crate::event::LogCursor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// The effect of an input while a run of its session is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputStrategy {
    /// The input is handed to the running agent.
    Steer,
    /// The input waits for its turn.
    Enqueue,
    /// The running turn is cancelled, and the input starts next.
    Interrupt,
    /// Like `Interrupt`, and the cancelled turn is left out of the transcript.
    Rollback,
    /// The input is refused with `busy`.
    Reject,
}

/// One user input. The message id makes the input safe to repeat: the gateway runs it once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UserInput {
    /// Key of deduplication.
    pub message_id: String,
    /// Text or OpenAI content parts.
    pub content: Value,
    /// Addressed agent; none for the session's active agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// None for the gateway's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<InputStrategy>,
    /// Run of an own waiting message that this input replaces; if that message no longer waits, the input is handled
    /// as any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// Data that is passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// W3C trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl UserInput {
    fn new(content: Value) -> Self {
        let message_id = fresh_id().to_string();
        Self { message_id, content, agent_id: None, strategy: None, replaces: None, metadata: None, traceparent: None }
    }
    /// Creates an input from a text, with a fresh message id.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Value::String(text.into()))
    }
    /// Creates an input from OpenAI content parts, with a fresh message id.
    pub fn parts(parts: Vec<Value>) -> Self {
        Self::new(Value::Array(parts))
    }
    /// Sets the message id, under which the same input may be sent any number of times.
    #[must_use]
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = id.into();
        self
    }
    /// Addresses the input to this agent.
    #[must_use]
    pub fn agent(mut self, id: impl Into<String>) -> Self {
        self.agent_id = Some(id.into());
        self
    }
    /// Sets the strategy.
    #[must_use]
    pub fn strategy(mut self, strategy: InputStrategy) -> Self {
        self.strategy = Some(strategy);
        self
    }
    /// Replaces an own waiting message, named by its run.
    #[must_use]
    pub fn replaces(mut self, run_id: impl Into<String>) -> Self {
        self.replaces = Some(run_id.into());
        self
    }
    /// Sets the metadata.
    #[must_use]
    pub fn metadata(mut self, metadata: Value) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Encodes the input; every repeat gives the same bytes and is therefore no conflict.
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

/// The start position of a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The first fact of the log.
    Beginning,
    /// The next fact.
    #[default]
    Now,
    /// The first fact after this position.
    After(LogCursor),
}

/// A request for a session's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscribe {
    pub(crate) start: Start,
    pub(crate) types: Vec<String>,
    pub(crate) facts: bool,
}

impl Subscribe {
    /// Subscribes from this position.
    pub fn from(start: Start) -> Self {
        Self { start, ..Self::default() }
    }
    /// Also subscribes to facts of these types (`tool.*`, `>`), delivered as [`crate::Event::Note`].
    #[must_use]
    pub fn with_types(mut self, types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.types = types.into_iter().map(Into::into).collect();
        self
    }
    /// Also delivers each fact as received, as [`crate::Event::Fact`].
    #[must_use]
    pub fn with_facts(mut self) -> Self {
        self.facts = true;
        self
    }
}

/// A request to create or reopen a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Members of a new session; empty for the gateway's default agent.
    pub agents: Vec<String>,
    /// Active member; none for the first.
    pub active_agent: Option<String>,
}

/// Returns a UUIDv7: ids sort by their creation time.
pub(crate) fn fresh_id() -> uuid::Uuid {
    // A clock before 1970 affects the order, not the uniqueness.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, since.as_secs(), since.subsec_nanos()))
}

//! The metadata of a fact: its envelope, a CloudEvents 1.0 shape (protocol.md §4).
use super::{Fact, parse};
use crate::id::{Epoch, EventId, RunId, Seq, SessionId, SessionKey};
use crate::protocol::json::json_bytes;
use crate::time::Millis;
use serde::Serialize;
use std::sync::Arc;

/// One fact with its metadata. The log assigns the position and the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    pub id: EventId,
    /// Time of the decision, by the store's clock.
    #[serde(with = "crate::time::rfc3339")]
    pub time: Millis,
    /// The originator: `user:<id>`, `agent:<id>` or `turnway`.
    pub source: Arc<str>,
    /// The causal chain that the fact belongs to: the id of its turn, or the fact's own id.
    pub correlation_id: Arc<str>,
    /// The fact that this one follows from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<EventId>,
    /// W3C trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Arc<str>>,
    /// The turn that the fact belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(flatten)]
    pub fact: Fact,
}

/// A fact with its position: the envelope of protocol.md §4, a CloudEvents 1.0 shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Envelope<E> {
    /// CloudEvents version, always `1.0`.
    pub specversion: String,
    pub session_id: String,
    pub seq: Seq,
    /// The ownership that recorded the fact.
    pub epoch: Epoch,
    #[serde(flatten)]
    pub entry: E,
}

impl Entry {
    /// Returns the entry with its position in a session's log.
    pub fn with_position(&self, session: &SessionId, seq: Seq, epoch: Epoch) -> Envelope<&Self> {
        let session_id = session.as_str().to_owned();
        Envelope { specversion: "1.0".to_owned(), session_id, seq, epoch, entry: self }
    }
    /// Returns the envelope as JSON, which the store keeps and `events` shows.
    pub fn to_json(&self, key: &SessionKey, seq: Seq, epoch: Epoch) -> String {
        // Facts have string keys and finite numbers only, so they always serialise.
        serde_json::to_string(&self.with_position(&key.session, seq, epoch)).unwrap_or_default()
    }
    /// Parses an envelope.
    pub fn from_json(json: &str) -> Result<Envelope<Self>, serde_json::Error> {
        parse::parse_envelope(json)
    }
    /// Returns the fact as everyone but operators may see it: without the body of an agent's error.
    pub fn for_users(self: &Arc<Self>) -> Arc<Self> {
        if !matches!(&self.fact, Fact::RunFailed { agent_body: Some(_), .. }) {
            return Arc::clone(self);
        }
        let mut entry = Self::clone(self);
        if let Fact::RunFailed { agent_body, .. } = &mut entry.fact {
            *agent_body = None;
        }
        Arc::new(entry)
    }
    /// Returns an estimate, in bytes, of the fact's size in a queue, a read or a frame; the same on every node.
    pub fn weight(&self) -> usize {
        let content = match &self.fact {
            Fact::UserMessage { message, .. } => match &message.content {
                crate::protocol::input::Content::Text(text) => text.len(),
                crate::protocol::input::Content::Parts(parts) => parts.len() * 512,
            },
            Fact::AgentStreamDelta { text, .. } => text.reveal().len(),
            Fact::HandoverRequested(asked) => asked.reason.reveal().len() + asked.summary.reveal().len(),
            Fact::AgentAction(asked) => asked.what.weight(),
            Fact::ToolInvoke(invoked) => json_bytes(&invoked.args),
            Fact::ToolResult(ended) => json_bytes(&(&ended.result, &ended.error)),
            Fact::ProcessSpawned(told)
            | Fact::ProcessProgress(told)
            | Fact::ProcessExited(told)
            | Fact::ProcessCanceled(told) => json_bytes(&told.data),
            Fact::SystemEvent(told) => json_bytes(&told.data),
            Fact::RunFailed { agent_body, .. } => agent_body.as_ref().map_or(0, |body| body.reveal().len()),
            Fact::SessionOpened { .. }
            | Fact::SessionClosing { .. }
            | Fact::SessionClosed { .. }
            | Fact::SessionNotice { .. }
            | Fact::AgentSwitched { .. }
            | Fact::AgentAdding(_)
            | Fact::AgentAdded(_)
            | Fact::AgentAddFailed(_)
            | Fact::AgentRemoving(_)
            | Fact::AgentRemoved(_)
            | Fact::AgentRemoveFailed(_)
            | Fact::HandoverConfirmed(_)
            | Fact::HandoverRejected(_)
            | Fact::TurnAdmitted { .. }
            | Fact::AgentSteerAcked { .. }
            | Fact::RunStarted { .. }
            | Fact::RunRestarted { .. }
            | Fact::RunResumed { .. }
            | Fact::AgentInvokeStarted { .. }
            | Fact::AgentInvokeDone { .. }
            | Fact::RunState { .. }
            | Fact::RunSuspended { .. }
            | Fact::RunCancelling { .. }
            | Fact::RunDone { .. }
            | Fact::RunCancelled { .. } => 0,
        };
        content + 512
    }
}

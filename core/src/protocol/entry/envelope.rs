//! The metadata of a fact: its envelope, a CloudEvents 1.0 shape (protocol.md §4).
use super::{Fact, RunFact, UnknownFact, parse};
use crate::id::{Epoch, EventId, RunId, Seq, SessionId, SessionKey};
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
    /// Returns the fact as everyone but operators may see it: without the body of an agent's error, and without the data
    /// of a later release's fact, of which nobody knows here who may see them.
    pub fn for_users(self: &Arc<Self>) -> Arc<Self> {
        let fact = match &self.fact {
            Fact::Run(RunFact::Failed { agent_body: Some(_), .. }) => {
                let mut fact = self.fact.clone();
                if let Fact::Run(RunFact::Failed { agent_body, .. }) = &mut fact {
                    *agent_body = None;
                }
                fact
            }
            Fact::Unknown(unknown) => Fact::Unknown(Box::new(UnknownFact { name: unknown.name.clone(), data: None })),
            Fact::Session(_)
            | Fact::Member(_)
            | Fact::Handover(_)
            | Fact::Action(_)
            | Fact::Binding(_)
            | Fact::Delivery(_)
            | Fact::Model(_)
            | Fact::Input(_)
            | Fact::Run(_) => return Arc::clone(self),
        };
        Arc::new(Self { fact, ..Self::clone(self) })
    }
    /// Returns an estimate, in bytes, of the fact's size in a queue, a read or a frame; the same on every node.
    pub fn weight(&self) -> usize {
        self.fact.content_bytes() + 512
    }
}

//! Facts of calls of models.
use super::*;
use turnway_core::protocol::entry::ModelFact;
use turnway_core::protocol::model_call::{
    ModelCallEnd, ModelCallEnded, ModelCallStarted, RecordedCallOutcome, RecordedTokens,
};

/// Returns a sample of each fact: none leads to a message.
pub(super) fn samples() -> Vec<(Fact, Vec<Value>)> {
    let agent_id = AgentId::parse("a").ok();
    let started = ModelCallStarted {
        call_id: EventId::default(),
        agent_id: agent_id.clone(),
        model: "gpt".to_owned(),
        format: "chat/completions".to_owned(),
        deadline_ms: Millis(7),
    };
    let end = ModelCallEnd {
        call_id: EventId::default(),
        outcome: RecordedCallOutcome::Complete,
        upstream: Some("gpt".to_owned()),
        attempts: 2,
        status: Some(200),
        latency_ms: 9,
        first_byte_ms: Some(7),
        first_token_ms: Some(8),
        usage: RecordedTokens { input: Some(5), cached_input: Some(1), output: Some(3), reasoning: Some(2) },
        cost: Some(11),
    };
    let ended = ModelCallEnded { agent_id, model: "gpt".to_owned(), end };
    vec![(Fact::Model(ModelFact::Started(started)), vec![]), (Fact::Model(ModelFact::Ended(Box::new(ended))), vec![])]
}

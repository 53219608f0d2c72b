//! The calls of models that a run has made, summed up from the facts of its session, as `GET …/runs/{id}/usage` returns
//! them.
use serde::Serialize;
use std::collections::BTreeSet;
use turnway_core::id::{AgentId, EventId, RunId};
use turnway_core::protocol::entry::{Entry, Fact, ModelFact};
use turnway_core::protocol::model_call::ModelCallEnded;

/// The calls of a run, as far as the processed facts reveal them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunUsage {
    pub run_id: RunId,
    /// Calls that have begun and not ended.
    pub open_calls: u64,
    #[serde(flatten)]
    pub total: UsageSum,
    /// The same for each agent and model.
    pub by_model: Vec<ModelUsage>,
    /// Some of the run's facts have been trimmed: the sums may lack calls.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trimmed: bool,
    #[serde(skip)]
    open: BTreeSet<EventId>,
    #[serde(skip)]
    is_over: bool,
}

/// The calls of one agent to one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelUsage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    pub model: String,
    #[serde(flatten)]
    pub sum: UsageSum,
}

/// Sums over calls that have ended. Counts of tokens include the calls whose upstreams reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UsageSum {
    /// Calls that have ended.
    pub calls: u64,
    /// Calls that have ended without a count of their input.
    pub calls_without_usage: u64,
    pub input_tokens: u64,
    /// The part of the input that came from caches.
    pub cached_input_tokens: u64,
    pub output_tokens: u64,
    /// The part of the output that is reasoning.
    pub reasoning_tokens: u64,
    /// Price of the calls that have one, in millionths of the operator's currency.
    pub cost: u64,
    /// Calls that have ended and have no price.
    pub calls_without_cost: u64,
}

// === impl RunUsage ===

impl RunUsage {
    /// Creates the usage of a run before its first fact.
    pub fn new(run_id: RunId) -> Self {
        let open = BTreeSet::new();
        let by_model = Vec::new();
        Self { run_id, open_calls: 0, total: UsageSum::default(), by_model, trimmed: false, open, is_over: false }
    }

    /// Applies the next fact of the session; facts of other runs change nothing.
    pub fn apply(&mut self, entry: &Entry) {
        if entry.run_id.as_ref() != Some(&self.run_id) {
            return;
        }
        self.is_over |= entry.fact.is_terminal();
        let Fact::Model(fact) = &entry.fact else { return };
        match fact {
            ModelFact::Started(started) => drop(self.open.insert(started.call_id)),
            ModelFact::Ended(ended) => {
                self.open.remove(&ended.end.call_id);
                self.total.add(ended);
                self.sum_of(ended.agent_id.as_ref(), &ended.model).add(ended);
            }
        }
        self.open_calls = self.open.len() as u64;
    }

    /// Returns whether the run and all of its calls have ended: no later fact changes the sums.
    pub fn is_final(&self) -> bool {
        self.is_over && self.open.is_empty()
    }

    fn sum_of(&mut self, agent: Option<&AgentId>, model: &str) -> &mut UsageSum {
        let is_same = |usage: &ModelUsage| usage.agent_id.as_ref() == agent && usage.model == model;
        let at = self.by_model.iter().position(is_same).unwrap_or_else(|| {
            let sum = UsageSum::default();
            self.by_model.push(ModelUsage { agent_id: agent.cloned(), model: model.to_owned(), sum });
            self.by_model.len() - 1
        });
        &mut self.by_model[at].sum
    }
}

impl UsageSum {
    fn add(&mut self, ended: &ModelCallEnded) {
        let usage = ended.end.usage;
        let counts = [
            (&mut self.calls, 1),
            (&mut self.calls_without_usage, u64::from(usage.input.is_none())),
            (&mut self.input_tokens, usage.input.unwrap_or(0)),
            (&mut self.cached_input_tokens, usage.cached_input.unwrap_or(0)),
            (&mut self.output_tokens, usage.output.unwrap_or(0)),
            (&mut self.reasoning_tokens, usage.reasoning.unwrap_or(0)),
            (&mut self.cost, ended.end.cost.unwrap_or(0)),
            (&mut self.calls_without_cost, u64::from(ended.end.cost.is_none())),
        ];
        for (sum, more) in counts {
            *sum = sum.saturating_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use turnway_core::id::{MessageId, SessionId, SessionKey, TenantId, UserId};
    use turnway_core::protocol::entry::RunFact;
    use turnway_core::protocol::model_call::{ModelCallEnd, ModelCallStarted, RecordedCallOutcome, RecordedTokens};
    use turnway_core::time::Millis;

    fn run(message: &str) -> RunId {
        let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
        RunId::derive(&key, &UserId::local(), &MessageId::parse(message).expect("a name"))
    }

    fn entry(run_id: &RunId, fact: Fact) -> Entry {
        Entry {
            id: EventId::default(),
            time: Millis(5),
            source: "turnway".into(),
            correlation_id: "c".into(),
            causation_id: None,
            traceparent: None,
            run_id: Some(run_id.clone()),
            fact,
        }
    }

    fn started(run_id: &RunId, n: u64) -> Entry {
        let call_id = EventId::new(Millis(n), u128::from(n));
        let format = "responses".to_owned();
        let model = "gpt".to_owned();
        let started = ModelCallStarted { call_id, agent_id: None, model, format, deadline_ms: Millis(9) };
        entry(run_id, Fact::Model(ModelFact::Started(started)))
    }

    fn ended(run_id: &RunId, n: u64, model: &str, usage: RecordedTokens, cost: Option<u64>) -> Entry {
        let end = ModelCallEnd {
            call_id: EventId::new(Millis(n), u128::from(n)),
            outcome: RecordedCallOutcome::Complete,
            upstream: None,
            attempts: 1,
            status: None,
            latency_ms: 1,
            first_byte_ms: None,
            first_token_ms: None,
            usage,
            cost,
        };
        let ended = ModelCallEnded { agent_id: None, model: model.to_owned(), end };
        entry(run_id, Fact::Model(ModelFact::Ended(Box::new(ended))))
    }

    /// Covers: PR-31.
    #[test]
    fn usage_is_the_sum_of_the_facts_of_its_run() {
        let [mine, other] = ["m1", "m2"].map(run);
        let mut usage = RunUsage::new(mine.clone());
        let whole = RecordedTokens { input: Some(10), cached_input: Some(4), output: Some(3), reasoning: Some(2) };
        let partial = RecordedTokens { output: Some(1), ..RecordedTokens::default() };
        let done = RunFact::Cancelled { attempt: 1, reason: "user".to_owned(), forced: false, text_bytes: 0 };
        let facts = [
            started(&mine, 1),
            started(&mine, 2),
            started(&other, 3),
            ended(&other, 3, "gpt", whole, Some(9)),
            ended(&mine, 1, "gpt", whole, Some(7)),
            entry(&mine, Fact::Run(done)),
        ];
        facts.iter().for_each(|fact| usage.apply(fact));
        assert_eq!((usage.open_calls, usage.is_final()), (1, false), "a call may end after its run");
        usage.apply(&ended(&mine, 2, "tiny", partial, None));
        assert!(usage.is_final());
        let of = |calls, unknown, input, cached, output, reasoning, cost, free| {
            json!({
                "calls": calls, "calls_without_usage": unknown, "input_tokens": input, "cached_input_tokens": cached,
                "output_tokens": output, "reasoning_tokens": reasoning, "cost": cost, "calls_without_cost": free,
            })
        };
        let mut total = of(2, 1, 10, 4, 4, 2, 7, 1);
        let mut first = of(1, 0, 10, 4, 3, 2, 7, 0);
        let mut second = of(1, 1, 0, 0, 1, 0, 0, 1);
        (first["model"], second["model"]) = (json!("gpt"), json!("tiny"));
        (total["run_id"], total["open_calls"], total["by_model"]) = (json!(mine), json!(0), json!([first, second]));
        assert_eq!(serde_json::to_value(&usage).expect("JSON"), total);
    }
}

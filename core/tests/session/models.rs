//! Calls of models that runs make: their facts, and the clocks that stand still meanwhile.
use crate::BEGUN;
use crate::script::{Script, check, run};
use turnway_core::id::EventId;
use turnway_core::limits;
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::entry::{Fact, ModelFact};
use turnway_core::protocol::input::ControlRequest;
use turnway_core::protocol::model_call::{ModelCallEnd, ModelCallStart, RecordedCallOutcome, RecordedTokens};
use turnway_core::time::Millis;

impl Script {
    /// Reports a call: `calls ID MESSAGE MS` begins one of the message's run that is lost after MS, `called ID` ends one.
    pub(super) fn call(&mut self, words: &[&str]) {
        let request = match words {
            ["calls", id, message, ms] => ControlRequest::StartModelCall {
                start: Box::new(ModelCallStart {
                    call_id: call_id(id),
                    run_id: run(message),
                    model: "gpt".to_owned(),
                    format: "chat/completions".to_owned(),
                    timeout_ms: ms.parse().expect("a time"),
                }),
            },
            ["called", id] => ControlRequest::EndModelCall { end: Box::new(end(id)) },
            other => panic!("no such step: {other:?}"),
        };
        self.ask(request);
    }
}

fn call_id(id: &str) -> EventId {
    let number: u64 = id.parse().expect("a number");
    EventId::new(Millis(number), u128::from(number))
}

fn end(id: &str) -> ModelCallEnd {
    ModelCallEnd {
        call_id: call_id(id),
        outcome: RecordedCallOutcome::Complete,
        upstream: Some("gpt".to_owned()),
        attempts: 1,
        status: Some(200),
        latency_ms: 7,
        first_byte_ms: Some(5),
        first_token_ms: None,
        usage: RecordedTokens { input: Some(7), ..RecordedTokens::default() },
        cost: Some(3),
    }
}

/// Returns the word of a fact in the record of a script.
pub(crate) fn word(fact: &ModelFact) -> String {
    match fact {
        ModelFact::Started(_) => "call".to_owned(),
        ModelFact::Ended(ended) => {
            let outcome = serde_json::to_value(ended.end.outcome).expect("JSON");
            format!("called({})", outcome.as_str().expect("a word"))
        }
    }
}

const ACKED: &str = "say m1; ack";

fn after(rest: &str) -> String {
    format!("{BEGUN} agent.invoke.started {rest}")
}

/// Covers: PR-13.
#[test]
fn silence_and_run_clocks_stand_still_during_a_call() {
    let long = format!("{ACKED}; calls 1 m1 9000000; wait 3000000; called 1");
    let begun = after("call answered called(complete) answered");
    check(&format!("{long}; wait 119999"), &begun);
    check(&format!("{long}; wait 120000"), &format!("{begun} failed(agent_timeout) DROP"));
    check(&format!("{long}; wait 119999; done"), &format!("{begun} agent.invoke.done done(0)"));
    // An agent that says something every minute has the rest of its run after the call.
    let alive = "; wait 60000; alive".repeat(29);
    check(&format!("{long}{alive}; wait 59999"), &begun);
    check(&format!("{long}{alive}; wait 60000"), &format!("{begun} failed(agent_timeout) DROP"));
}

/// Covers: PR-13.
#[test]
fn two_calls_at_a_time_stop_the_clocks_until_both_end() {
    check(
        &format!("{ACKED}; calls 1 m1 9000000; calls 2 m1 9000000; called 1; wait 1000000; called 2; wait 119999"),
        &after("call answered call answered called(complete) answered called(complete) answered"),
    );
}

/// Covers: PR-13. An agent may ask a model before it acknowledges its input.
#[test]
fn call_before_the_acknowledgement_is_no_route_timeout() {
    check(
        "say m1; calls 1 m1 60000; wait 50000; called 1; wait 14999; ack",
        &format!("{BEGUN} call answered called(complete) answered agent.invoke.started"),
    );
}

/// Covers: PR-13. The next owner knows how long the run has waited.
#[test]
fn clocks_stand_still_across_a_change_of_owner() {
    check(
        &format!("{ACKED}; calls 1 m1 9000000; wait 2000000; crash; wait 1000; called 1; ack; wait 119999; done"),
        &after(
            "call answered | run.restarted INVOKE(a,2) called(complete) answered agent.invoke.started \
                agent.invoke.done done(0)",
        ),
    );
}

/// Covers: PR-11.
#[test]
fn call_without_an_end_is_lost_in_time() {
    check(&format!("{ACKED}; calls 1 m1 1000; wait 999"), &after("call answered"));
    check(&format!("{ACKED}; calls 1 m1 1000; wait 1000"), &after("call answered called(lost)"));
    check(
        &format!("{ACKED}; calls 1 m1 1000; wait 1000; called 1"),
        &after("call answered called(lost) consume answered"),
    );
    check(
        &format!("{ACKED}; calls 1 m1 1000; crash 1000"),
        &after("call answered | called(lost) run.restarted INVOKE(a,2)"),
    );
}

/// Covers: PR-11. The end of a call is reported soon after the end of its run, or not at all.
#[test]
fn call_may_end_after_its_run() {
    let done = after("call answered agent.invoke.done done(0)");
    check(
        &format!("{ACKED}; calls 1 m1 600000; done; wait 59999; called 1"),
        &format!("{done} called(complete) answered"),
    );
    check(&format!("{ACKED}; calls 1 m1 600000; done; wait 60000"), &format!("{done} called(lost)"));
    // Nothing but the open call makes the next owner look at the session.
    check(&format!("{ACKED}; calls 1 m1 600000; done; crash; wait 59999"), &format!("{done} |"));
    check(&format!("{ACKED}; calls 1 m1 600000; done; crash; wait 60000"), &format!("{done} | called(lost)"));
}

/// Covers: PR-11.
#[test]
fn repeated_reports_of_a_call_change_nothing() {
    check(
        &format!("{ACKED}; calls 1 m1 600000; calls 1 m1 600000; called 1; called 1; done; calls 2 m1 600000"),
        &after(
            "call answered consume answered called(complete) answered consume answered agent.invoke.done done(0) \
                consume answered",
        ),
    );
}

/// The state of a session has all of its open calls.
#[test]
fn session_records_a_bounded_number_of_open_calls() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    for step in ["say m1", "ack"] {
        world.step(step);
    }
    for n in 0..limits::MODEL_CALLS_RECORDED_MAX + 5 {
        world.step(&format!("calls {n} m1 600000"));
    }
    let is_begun = |fact: &Fact| matches!(fact, Fact::Model(ModelFact::Started(_)));
    let begun = world.log.iter().filter(|(_, entry)| is_begun(&entry.fact)).count();
    assert_eq!(begun, limits::MODEL_CALLS_RECORDED_MAX);
    assert_eq!(world.runtime.state().model_calls.open.len(), limits::MODEL_CALLS_RECORDED_MAX);
    world.step("called 0");
    world.step("calls 9999 m1 600000");
    assert_eq!(world.runtime.state().model_calls.open.len(), limits::MODEL_CALLS_RECORDED_MAX);
}

/// Covers: PR-11. The facts name the agent and the model.
#[test]
fn facts_of_a_call_name_its_agent_and_model() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    for step in ["say m1", "ack", "calls 1 m1 600000", "called 1"] {
        world.step(step);
    }
    let [.., (_, started), (_, ended)] = &world.log[..] else { panic!("{:?}", world.record) };
    assert_eq!((&*started.source, &*ended.source), ("agent:a", "turnway"));
    assert_eq!([&started.run_id, &ended.run_id], [&Some(run("m1")); 2]);
    let data = |entry| serde_json::to_value(entry).expect("JSON")["data"].clone();
    let id = call_id("1").to_string();
    let deadline = started.time.0 + 600_000;
    let begun = serde_json::json!({
        "call_id": id, "agent_id": "a", "model": "gpt", "format": "chat/completions", "deadline_ms": deadline,
    });
    assert_eq!(data(&**started), begun);
    let over = serde_json::json!({
        "call_id": id, "agent_id": "a", "model": "gpt", "outcome": "complete", "upstream": "gpt", "attempts": 1,
        "status": 200, "latency_ms": 7, "first_byte_ms": 5, "usage": {"input_tokens": 7}, "cost": 3,
    });
    assert_eq!(data(&**ended), over);
}

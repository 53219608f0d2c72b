//! Attempts of resumable agents that continue under the next owner.
use crate::script::{Script, check_with};
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::entry::{Fact, RunFact};

const BEGUN: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1)";

fn check(script: &str, expected: &str) {
    check_with(OnOwnerLoss::Resume, script, expected);
}

/// Returns the record of an attempt with the recorded events `he` (`e1`) and `llo` (`e2`).
fn said() -> String {
    format!("{BEGUN} agent.invoke.started stretch(0+2 e1:2) 0'he' CREDIT(2) 2'llo' stretch(2+3 e2:5) CREDIT(5)")
}

/// Covers: G3, G6, RX-2: the same attempt, its text from where it is recorded, its hash that of the whole.
#[test]
fn attempt_resumes_after_the_last_recorded_event() {
    check(
        "say m1; ack; text he e1; text llo e2; wait 2100; crash; text ! e3; done",
        &format!(
            "{} | run.resumed RESUME(a,1 after e2:5 of 5) 5'!' stretch(5+1 e3:6) agent.invoke.done done(6)",
            said()
        ),
    );
    let mut world = Script::new(OnOwnerLoss::Resume);
    for step in ["say m1", "ack", "text he e1", "crash", "text llo e2", "done"] {
        world.step(step);
    }
    let hash = world.log.iter().find_map(|(_, entry)| {
        let Fact::Run(RunFact::Done { text_sha256, .. }) = &entry.fact else { return None };
        Some(text_sha256.clone())
    });
    let hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    assert_eq!(hash.as_deref(), Some(hello));
}

/// Resumes the attempt also when only the agent's connection is lost and the owner lives.
///
/// Covers: G3, G6, RX-2.
#[test]
fn attempt_resumes_at_another_connection() {
    check(
        "say m1; ack; text he e1; text llo e2; disconnect; text ! e3; done",
        &format!(
            "{BEGUN} agent.invoke.started stretch(0+2 e1:2) 0'he' CREDIT(2) 2'llo' stretch(2+3 e2:5) \
             run.resumed RESUME(a,1 after e2:5 of 5) 5'!' stretch(5+1 e3:6) agent.invoke.done done(6)"
        ),
    );
}

/// Starts the second attempt at once and the third after a second, and no fourth.
///
/// Covers: G3.
#[test]
fn turn_fails_after_three_lost_connections() {
    check_with(
        OnOwnerLoss::Retry,
        "say m1; ack; text he; disconnect; ack; disconnect; wait 1000; disconnect",
        &format!(
            "{BEGUN} agent.invoke.started 0'he' stretch(0+2) run.restarted \
             INVOKE(a,2) agent.invoke.started run.restarted INVOKE(a,3) failed(agent_unavailable)"
        ),
    );
}

/// Covers: G3.
#[test]
fn turn_with_delivered_text_is_not_retried() {
    check_with(
        OnOwnerLoss::RetryIfSilent,
        "say m1; ack; disconnect; text he; disconnect",
        &format!(
            "{BEGUN} agent.invoke.started run.restarted INVOKE(a,2) run.state \
             stretch(0+2) 0'he' CREDIT(2) failed(agent_unavailable)"
        ),
    );
}

/// Covers: G3.
#[test]
fn turn_without_retry_fails_with_its_connection() {
    check_with(OnOwnerLoss::Fail, "say m1; disconnect", &format!("{BEGUN} failed(agent_unavailable)"));
}

/// Covers: G3.
#[test]
fn draining_node_leaves_the_retry_to_the_next_owner() {
    check_with(
        OnOwnerLoss::Retry,
        "say m1; ack; drain; disconnect; crash",
        &format!("{BEGUN} agent.invoke.started | run.restarted INVOKE(a,2)"),
    );
}

/// Covers: G3, SR-C7.
#[test]
fn cancelled_turn_ends_with_its_connection() {
    check_with(
        OnOwnerLoss::Retry,
        "say m1; ack; cancel m1; disconnect",
        &format!(
            "{BEGUN} agent.invoke.started run.cancelling CANCEL answered \
             cancelled(user) DROP"
        ),
    );
}

/// Delivers text again that was delivered but not recorded; clients recognise it by its offset (protocol.md
/// §1.4).
#[test]
fn unrecorded_text_is_delivered_again() {
    check(
        "say m1; ack; text he e1; wait 20; text llo e2; crash; text llo e2; done",
        &format!(
            "{BEGUN} agent.invoke.started stretch(0+2 e1:2) 0'he' CREDIT(2) 2'llo' | run.resumed \
             RESUME(a,1 after e1:2 of 2) 2'llo' stretch(2+3 e2:5) agent.invoke.done done(5)"
        ),
    );
}

/// Skips the recorded part of a repeated event, however the agent cuts the event then.
#[test]
fn recorded_part_of_an_event_is_skipped() {
    let crash = format!(
        "{BEGUN} agent.invoke.started stretch(0+2 e1:2) 0'he' CREDIT(2) 2'llo' stretch(2+3 e1:2) CREDIT(5) | \
         run.resumed RESUME(a,1 after e1:2 of 5)"
    );
    let said = "say m1; ack; text he e1; text llo; wait 2100; crash";
    check(
        &format!("{said}; text llo, e2; text you e3; wait 20; done"),
        &format!("{crash} 5',' 6'you' stretch(5+4 e3:9) agent.invoke.done done(9)"),
    );
    check(
        &format!("{said}; text l; text l; text o e2; text ! e3; done"),
        &format!("{crash} 5'!' stretch(5+1 e3:6) agent.invoke.done done(6)"),
    );
    // The id of a repeated event covers only the text up to the event's end.
    let again = "run.resumed RESUME(a,1 after e1:2 of 5)";
    check(
        &format!("{said}; text ll e2; crash; wait 1000; text ll e2; text o e3; text ! e4; done"),
        &format!("{crash} | {again} 5'!' stretch(5+1 e4:6) agent.invoke.done done(6)"),
    );
}

/// Records states in order with the text, and therefore once.
#[test]
fn state_is_recorded_once() {
    check(
        "say m1; ack; text he e1; text llo e2; state busy e3; wait 20; text ! e4; crash; text ! e4; done",
        &format!(
            "{BEGUN} agent.invoke.started stretch(0+2 e1:2) 0'he' CREDIT(2) stretch(2+3 e2:5) run.state(e3:5) \
             CREDIT(5) 5'!' | run.resumed RESUME(a,1 after e3:5 of 5) 5'!' stretch(5+1 e4:6) \
             agent.invoke.done done(6)"
        ),
    );
}

/// Covers: G3: an agent that was asked and may not have heard is asked for the rest first; what it does not
/// know begins again, as long as nobody saw anything of it.
#[test]
fn unknown_run_restarts_only_without_delivered_text() {
    let lost = format!("{BEGUN} | run.resumed RESUME(a,1 after -:0 of 0)");
    check("say m1; crash; not-known", &format!("{lost} run.restarted INVOKE(a,2)"));
    check(
        "say m1; crash; ack; text hi e1; done",
        &format!("{lost} agent.invoke.started stretch(0+2 e1:2) 0'hi' CREDIT(2) agent.invoke.done done(2)"),
    );
    check(
        "say m1; ack; text he e1; crash; not-known",
        &format!(
            "{BEGUN} agent.invoke.started stretch(0+2 e1:2) 0'he' CREDIT(2) | run.resumed \
             RESUME(a,1 after e1:2 of 2) failed(owner_lost) DROP STOP(1)"
        ),
    );
}

/// Covers: G8: owners that are lost are counted, whether the attempt goes on or begins again.
#[test]
fn resumed_attempt_that_loses_three_owners_is_poison() {
    let again = "run.resumed RESUME(a,1 after -:0 of 0)";
    check(
        "say m1; crash; crash; wait 999; wait 1; crash",
        &format!("{BEGUN} | {again} | {again} | failed(poison_turn) STOP(1)"),
    );
    check(
        "say m1; crash; not-known; crash",
        &format!("{BEGUN} | {again} run.restarted INVOKE(a,2) | failed(poison_turn) STOP(2)"),
    );
}

/// Covers: G-14: a node that leaves hands over what can go on, and that does not count.
#[test]
fn draining_node_hands_over_resumable_runs_at_once() {
    let handed = format!(
        "{BEGUN} agent.invoke.started stretch(0+2 e1:2) 0'he' CREDIT(2) 2'llo' stretch(2+3 e2:5) run.suspended DROP"
    );
    let again = "run.resumed RESUME(a,1 after e2:5 of 5)";
    check("say m1; ack; text he e1; text llo e2; hand-over", &handed);
    check(
        "say m1; ack; text he e1; text llo e2; hand-over; crash; hand-over; crash; hand-over; crash; done",
        &format!(
            "{handed} | {again} run.suspended DROP | {again} run.suspended DROP | {again} agent.invoke.done done(5)"
        ),
    );
    // A run that is being cancelled, and a run of another kind of agent, end at this node.
    check(
        "say m1; ack; cancel; hand-over; cancel-ack",
        &format!("{BEGUN} agent.invoke.started run.cancelling CANCEL answered cancelled(user) DROP"),
    );
    check_with(
        OnOwnerLoss::Retry,
        "say m1; ack; hand-over; say m2; done",
        &format!("{BEGUN} agent.invoke.started user.message admitted(a,Queued,1) agent.invoke.done done(0)"),
    );
}

/// Sends a stop order when a resumable run ends and no attempt will follow.
#[test]
fn failed_resumable_run_gets_a_stop_order() {
    let begun = format!("{BEGUN} agent.invoke.started");
    check("say m1; ack; wait 120000", &format!("{begun} failed(agent_timeout) DROP STOP(1)"));
    check("say m1; ack; fail", &format!("{begun} failed(agent_error) DROP STOP(1)"));
    check("say m1; ack; cancel; cancel-ack", &format!("{begun} run.cancelling CANCEL answered cancelled(user) DROP"));
    check("say m1; ack; cancel; crash", &format!("{begun} run.cancelling CANCEL answered | cancelled(user) STOP(1)"));
    check("say m1; ack; hold; wait 120000", &format!("{begun} failed(agent_timeout) DROP"));
}

/// Covers: G6: what does not say again what it said is not taken for the rest of it.
#[test]
fn differing_repeated_text_fails_the_run() {
    let lost = format!(
        "{BEGUN} agent.invoke.started stretch(0+3 e1:3) 0'hé' CREDIT(3) 3'ßen' stretch(3+4 e1:3) CREDIT(7) | \
         run.resumed RESUME(a,1 after e1:3 of 7)"
    );
    let said = "say m1; ack; text hé e1; text ßen; wait 2100; crash";
    check(&format!("{said}; text xxxß e2"), &format!("{lost} failed(agent_error) DROP STOP(1)"));
    check(&format!("{said}; text ße e2; done"), &format!("{lost} failed(agent_error) DROP STOP(1)"));
}

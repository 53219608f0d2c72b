//! Facts that agents subscribe to: agent `w` to `user.message`, `run.*` and `tool.>`.
use crate::script::check;

const BEGUN: &str = "session.opened user.message admitted(w,Run) run.started INVOKE(w,1) agent.invoke.started";

fn runs(script: &str, expected: &str) {
    check(&format!("say m1 to w; ack; {script}"), &format!("{BEGUN} {expected}"));
}

/// Covers: EV-G1.
#[test]
fn agent_receives_subscribed_facts_during_its_run() {
    runs("say m2 to w", "user.message admitted(w,Queued,1) NEWS(user.message)");
    // The end of its own run, and facts before the run, are not sent.
    runs("done; say m2 to w", "agent.invoke.done done(0) user.message admitted(w,Run) run.started INVOKE(w,1)");
    // Facts without a subscription are not sent, here text checkpoints.
    runs("text hi; done", "0'hi' stretch(0+2) agent.invoke.done done(2)");
}

/// Sends facts of the agent's own actions once, whatever its subscriptions are.
///
/// Covers: EV-G1, EV-L3.
#[test]
fn facts_of_own_actions_are_sent_once() {
    runs(
        "act t; tool begun; tool ok",
        "agent.action NEWS(agent.action) EXECUTE(t) tool.invoke NEWS(tool.invoke) result(ok) NEWS(tool.result)",
    );
    // Facts of another agent's action during the run are sent if subscribed.
    check(
        "open a w; say m1 to a; ack; act t; done; say m2 to w; ack; tool begun; tool ok",
        "session.opened answered user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started \
            agent.action NEWS(agent.action) EXECUTE(t) agent.invoke.done done(0) \
            user.message switched(w,mention) admitted(w,Run) run.started INVOKE(w,1,1+0) agent.invoke.started \
            tool.invoke NEWS(tool.invoke) result(ok) NEWS(tool.result)",
    );
}

/// Covers: G4, SR-K2.
#[test]
fn facts_are_not_sent_before_durable_or_during_cancel() {
    runs("hold; say m2 to w", "user.message admitted(w,Queued,1)");
    runs("hold; say m2 to w; settle", "user.message admitted(w,Queued,1) NEWS(user.message)");
    runs("cancel; say m2 to w", "run.cancelling CANCEL answered user.message admitted(w,Queued,1)");
}

/// Sends facts to the attempt that the next owner starts.
///
/// Covers: EV-G1.
#[test]
fn next_attempt_receives_facts_after_its_start() {
    runs(
        "crash; say m2 to w; ack",
        "| run.restarted INVOKE(w,2) user.message admitted(w,Queued,1) NEWS(user.message) agent.invoke.started",
    );
}

//! Inputs that replace queued inputs: edits of messages that no agent has begun to answer.
use crate::script::check;

/// The start of every script: a running turn of `a`, and two queued ones.
const WAITS: &str = "say m1; ack; say m2; say m3";
const WAITED: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started \
                      user.message admitted(a,Queued,1) user.message admitted(a,Queued,2)";

fn waits(script: &str, expected: &str) {
    check(&format!("{WAITS}; {script}"), &format!("{WAITED} {expected}"));
}

/// Covers: ST-6.
#[test]
fn replacement_takes_the_position_of_the_original() {
    let done = "agent.invoke.done done(0)";
    let next = "run.started INVOKE(a,1)";
    let ends = "user.message cancelled(replaced) admitted(a,Queued,1,instead)";
    waits("say m4 for m2; done; done; done", &format!("{ends} {done} {next} {done} {next} {done}"));
    // A replacement can be replaced again, whatever strategy it names.
    waits(
        "say m4 for m2; steer m5 for m4; done; done; done",
        &format!("{ends} {ends} {done} {next} {done} {next} {done}"),
    );
}

/// Covers: ST-6, RX-4.
#[test]
fn running_ended_or_foreign_input_is_not_replaced() {
    let queued = "user.message admitted(a,Queued,3)";
    for script in ["say m4 for m1", "another m4 for m2", "say m4 for m9"] {
        waits(script, queued);
    }
    waits("cancel m2; say m4 for m2", "cancelled(user) answered user.message admitted(a,Queued,2)");
    // The original was sent to the running agent, so the replacement is steered in addition.
    waits(
        "steer m4; steer m5 for m4",
        "user.message admitted(a,Steered) STEER(m4) user.message admitted(a,Steered) STEER(m5)",
    );
}

/// Covers: ST-6, SR-B5.
#[test]
fn replacement_keeps_the_addressed_agent() {
    check(
        "open a c; say m1; ack; say m2 to c; say m3 for m2; done; done",
        "session.opened answered user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started user.message \
         switched(c,mention) admitted(c,Queued,1) user.message cancelled(replaced) admitted(c,Queued,1,instead) \
         agent.invoke.done done(0) run.started INVOKE(c,1) agent.invoke.done done(0)",
    );
}

//! Inputs that are steered to the agent of the running turn.
use crate::script::{check, check_with};
use turnway_core::protocol::agent::OnOwnerLoss;

/// The start of every script: a running turn of `a`.
const RUNS: &str = "say m1; ack";
const RAN: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started";

fn runs(script: &str, expected: &str) {
    check(&format!("{RUNS}; {script}"), &format!("{RAN} {expected}"));
}

/// Covers: ST-6, ST-7, ST-8, RX-4, EV-T6, LN-TP1, LN-TP6.
#[test]
fn accepted_steer_ends_with_its_host_run() {
    runs(
        "steer m2; takes m2; text one; done",
        "user.message admitted(a,Steered) STEER(m2) steer(accepted) 0'one' stretch(0+3) agent.invoke.done \
         done(3) done(steered)",
    );
}

/// Covers: ST-9, LN-TP5, BD-M2.
#[test]
fn refused_steer_becomes_the_next_turn() {
    runs(
        "steer m2; refuses m2; done; ack; done",
        "user.message admitted(a,Steered) STEER(m2) steer(refused) admitted(a,Queued,1) agent.invoke.done \
         done(0) run.started INVOKE(a,1) agent.invoke.started agent.invoke.done done(0)",
    );
}

/// Queues refused steers before waiting inputs, after an interrupt, and in their original order.
///
/// Covers: ST-9, LN-TP5.
#[test]
fn refused_steers_precede_queued_inputs() {
    check(
        "open a c; say m1; ack; say m2 to c; steer m3 to a; steer m4 to a; refuses m4; refuses m3; interrupt m5; \
         cancel-ack; ack; done; ack",
        "session.opened answered user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started \
         user.message switched(c,mention) admitted(c,Queued,1) \
         user.message switched(a,mention) admitted(a,Steered) STEER(m3) \
         user.message admitted(a,Steered) STEER(m4) \
         steer(refused) admitted(a,Queued,1) steer(refused) admitted(a,Queued,1) \
         user.message admitted(a,Interrupts) run.cancelling CANCEL cancelled(interrupt) DROP \
         run.started INVOKE(a,1) agent.invoke.started agent.invoke.done done(0) \
         run.started INVOKE(a,1) agent.invoke.started",
    );
}

/// Covers: ST-9.
#[test]
fn unanswered_steer_becomes_a_turn() {
    // The agent has not acknowledged the run, so the steer was not sent.
    check(
        "say m1; steer m2; gone",
        "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) user.message \
         admitted(a,Steered) failed(agent_unavailable) DROP admitted(a,Run) run.started INVOKE(a,1)",
    );
    // The agent reported the steer as pending, and nothing more.
    runs(
        "steer m2; ponders m2; done",
        "user.message admitted(a,Steered) STEER(m2) steer(pending) agent.invoke.done done(0) \
         admitted(a,Run) run.started INVOKE(a,1)",
    );
}

/// Waits for receipts at the end of a run, because a receipt may arrive after the end on another path.
///
/// Covers: ST-9.
#[test]
fn run_end_waits_for_pending_steer_receipts() {
    runs(
        "steer m2; done; takes m2",
        "user.message admitted(a,Steered) STEER(m2) steer(accepted) agent.invoke.done done(0) done(steered)",
    );
    runs(
        "steer m2; done; say m3; refuses m2",
        "user.message admitted(a,Steered) STEER(m2) user.message admitted(a,Queued,1) steer(refused) \
         agent.invoke.done done(0) admitted(a,Run) run.started INVOKE(a,1)",
    );
    // An input after the end is for the next turn.
    runs(
        "steer m2; done; steer m3; takes m2",
        "user.message admitted(a,Steered) STEER(m2) user.message admitted(a,Queued,1) steer(accepted) \
         agent.invoke.done done(0) done(steered) run.started INVOKE(a,1)",
    );
}

/// Covers: ST-9, G9.
#[test]
fn missing_steer_receipt_times_out() {
    runs("steer m2; done; wait 1999", "user.message admitted(a,Steered) STEER(m2)");
    runs(
        "steer m2; done; wait 2000; takes m2",
        "user.message admitted(a,Steered) STEER(m2) agent.invoke.done done(0) admitted(a,Run) run.started \
         INVOKE(a,1)",
    );
    // The steer's own deadline has passed, but its receipt may follow shortly after the end.
    runs("steer m2; wait 5000; done; wait 499", "user.message admitted(a,Steered) STEER(m2)");
}

/// Counts the agent's silence from the deadline of the steer's receipt.
#[test]
fn pending_steer_defers_the_silence_clock() {
    runs("wait 119000; steer m2; wait 121999", "user.message admitted(a,Steered) STEER(m2)");
    runs(
        "wait 119000; steer m2; wait 122000",
        "user.message admitted(a,Steered) STEER(m2) failed(agent_timeout) DROP admitted(a,Run) run.started \
         INVOKE(a,1)",
    );
}

/// Covers: ST-8, EV-N4.
#[test]
fn first_final_steer_receipt_wins() {
    runs(
        "steer m2; ponders m2; ponders m2; takes m2; refuses m2; takes m2; takes m9; done",
        "user.message admitted(a,Steered) STEER(m2) steer(pending) steer(accepted) agent.invoke.done \
         done(0) done(steered)",
    );
}

/// Covers: RX-4, ST-6, LN-TP4.
#[test]
fn input_to_an_agent_without_steer_is_queued() {
    check(
        "say m1 to c; ack; steer m2; done",
        "session.opened user.message admitted(c,Run) run.started INVOKE(c,1) agent.invoke.started \
         user.message admitted(c,Queued,1) agent.invoke.done done(0) run.started INVOKE(c,1)",
    );
    check("steer m1", "session.opened user.message admitted(a,Run) run.started INVOKE(a,1)");
    // Inputs to another agent, or with a history of their own, are queued.
    check(
        "open a b; say m1; ack; steer m2 to b; steer m3 to a; steer m4 after x",
        "session.opened answered user.message admitted(a,Run) run.started INVOKE(a,1) \
         agent.invoke.started user.message switched(b,mention) admitted(b,Queued,1) user.message \
         switched(a,mention) admitted(a,Steered) STEER(m3) user.message admitted(a,Queued,2)",
    );
}

/// Covers: ST-9, G3, EV-A2.
#[test]
fn next_attempt_gets_all_steers_again() {
    runs(
        "steer m2; takes m2; crash; ack; takes m2; done",
        "user.message admitted(a,Steered) STEER(m2) steer(accepted) | run.restarted INVOKE(a,2) \
         agent.invoke.started STEER(m2) steer(accepted) agent.invoke.done done(0) done(steered)",
    );
    // A crash between the steer and its receipt.
    runs(
        "steer m2; crash; ack; done; refuses m2",
        "user.message admitted(a,Steered) STEER(m2) | run.restarted INVOKE(a,2) agent.invoke.started \
         STEER(m2) steer(refused) agent.invoke.done done(0) admitted(a,Run) run.started INVOKE(a,1)",
    );
    // A refused steer stays a turn of its own.
    runs(
        "steer m2; refuses m2; crash; ack; done",
        "user.message admitted(a,Steered) STEER(m2) steer(refused) admitted(a,Queued,1) | run.restarted \
         INVOKE(a,2) agent.invoke.started agent.invoke.done done(0) run.started INVOKE(a,1)",
    );
}

/// Covers: ST-9, G3.
#[test]
fn resumed_attempt_keeps_accepted_steers() {
    let begun = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started";
    check_with(
        OnOwnerLoss::Resume,
        "say m1; ack; steer m2; takes m2; steer m3; crash; ack; takes m3; done",
        &format!(
            "{begun} user.message admitted(a,Steered) STEER(m2) steer(accepted) user.message \
             admitted(a,Steered) STEER(m3) | run.resumed RESUME(a,1 after -:0 of 0) STEER(m3) \
             steer(accepted) agent.invoke.done done(0) done(steered) done(steered)"
        ),
    );
}

/// Covers: ST-14, SR-C1.
#[test]
fn steered_input_can_be_cancelled() {
    runs(
        "steer m2; cancel m2; takes m2; done",
        "user.message admitted(a,Steered) STEER(m2) cancelled(user) answered agent.invoke.done done(0)",
    );
    // When the run is cancelled, accepted steers end with it, and the others become turns.
    runs(
        "steer m2; takes m2; steer m3; cancel m1; cancel-ack",
        "user.message admitted(a,Steered) STEER(m2) steer(accepted) user.message admitted(a,Steered) \
         STEER(m3) run.cancelling CANCEL answered cancelled(user) DROP done(steered) admitted(a,Run) \
         run.started INVOKE(a,1)",
    );
}

/// Covers: SR-H2, ST-9, LN-TP7.
#[test]
fn close_ends_accepted_and_pending_steers() {
    runs(
        "steer m2; takes m2; steer m3; close; cancel-ack",
        "user.message admitted(a,Steered) STEER(m2) steer(accepted) user.message admitted(a,Steered) \
         STEER(m3) session.closing run.cancelling CANCEL cancelled(session_close) DROP done(steered) \
         failed(session_closed) session.closed answered",
    );
}

/// Covers: G4.
#[test]
fn steer_waits_for_its_durable_fact() {
    runs("hold; steer m2", "user.message admitted(a,Steered)");
    runs("hold; steer m2; settle", "user.message admitted(a,Steered) STEER(m2)");
}

//! Members: switch, invite, remove, and interrupted changes.
use crate::script::{Script, check};
use turnway_core::protocol::agent::OnOwnerLoss;

const OPEN: &str = "session.opened answered";
const TOLD: &str = "session.opened answered user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started";

/// Covers: SR-S5, SR-B6, SR-B7, SR-W4.
#[test]
fn switch_changes_the_agent_of_later_turns() {
    check(
        "open a b; switch b; say m1",
        &format!("{OPEN} switched(b,switch_agent) answered user.message admitted(b,Run) run.started INVOKE(b,1)"),
    );
    // The running turn continues, and the next one uses the other agent.
    check(
        "open a b; say m1; ack; switch b; say m2; done",
        &format!(
            "{TOLD} switched(b,switch_agent) answered user.message admitted(b,Queued,1) agent.invoke.done done(0) run.started INVOKE(b,1)"
        ),
    );
    check(
        "open a b; switch a; switch c; close; switch b",
        &format!(
            "{OPEN} consume answered agent_not_in_session answered session.closing session.closed answered session_closed answered"
        ),
    );
}

/// Covers: SR-E1, SR-E2, SR-E4, SR-E5, SR-E7, SR-S11, SR-K3, SR-T13.
#[test]
fn invited_agent_is_a_member_after_its_task_succeeds() {
    check(
        "open a; invite b; say m1 to b; errand-done; say m2 to b",
        &format!(
            "{OPEN} adding(b) REQUEST_ADD(b) user.message failed(agent_not_in_session) added(b) answered \
         user.message switched(b,mention) admitted(b,Run) run.started INVOKE(b,1)"
        ),
    );
}

/// Covers: SR-E6.
#[test]
fn invite_can_activate_the_agent() {
    check(
        "open a; invite b active; errand-done; say m1",
        &format!(
            "{OPEN} adding(b) REQUEST_ADD(b) added(b) switched(b,invite_agent) answered user.message admitted(b,Run) run.started INVOKE(b,1)"
        ),
    );
}

/// Covers: SR-E8, SR-K3, SR-K7.
#[test]
fn failed_invitation_changes_nothing() {
    let asked = format!("{OPEN} adding(b) REQUEST_ADD(b)");
    check(
        "open a; invite b; errand-failed; say m1 to b",
        &format!("{asked} ADD_AGENT_FAILED(b) answered user.message failed(agent_not_in_session)"),
    );
    // Without a receipt the invitation times out, and a later receipt is ignored.
    check("open a; invite b; wait 10000; errand-done", &format!("{asked} ADD_AGENT_FAILED(b) answered"));
    check(
        "open a; invite a; invite b; invite b",
        &format!("{OPEN} added(a) answered adding(b) REQUEST_ADD(b) ADD_AGENT_FAILED(b) answered"),
    );
}

/// Covers: SR-D1, SR-D2, SR-D3, SR-D5, SR-D6, SR-D8, SR-D9, SR-D12, SR-T11, SR-S12, SR-K4, SR-P4, LN-SR16, LN-SR17,
/// LN-SR18.
#[test]
fn running_agent_is_cancelled_before_its_removal() {
    let stopping = format!("{TOLD} 0'so' removing(a) switched(b,remove_agent) run.cancelling CANCEL");
    check("open a b; say m1; ack; text so; remove a", &stopping);
    let stopped = format!("{stopping} stretch(0+2) cancelled(agent_removed) DROP REQUEST_REMOVE(a)");
    check("open a b; say m1; ack; text so; remove a; cancel-ack", &stopped);
    check(
        "open a b; say m1; ack; text so; remove a; cancel-ack; errand-done; say m2",
        &format!("{stopped} removed(a) answered user.message admitted(b,Run) run.started INVOKE(b,1)"),
    );
    // Without an acknowledgement the cancel is forced, and the removal continues.
    check(
        "open a b; say m1; ack; text so; remove a; wait 2000",
        &format!("{stopping} stretch(0+2) cancelled(agent_removed,forced) DROP REQUEST_REMOVE(a)"),
    );
}

/// Covers: SR-D10, SR-D11, SR-K4, SR-K7, RX-9.
#[test]
fn failed_removal_is_rolled_back() {
    let asked = format!("{OPEN} removing(a) switched(b,remove_agent) REQUEST_REMOVE(a)");
    check(
        "open a b; remove a; errand-failed; say m1",
        &format!(
            "{asked} switched(a,remove_agent) REMOVE_AGENT_FAILED(a) answered user.message admitted(a,Run) run.started INVOKE(a,1)"
        ),
    );
    check(
        "open a b; remove a; wait 10000",
        &format!("{asked} switched(a,remove_agent) REMOVE_AGENT_FAILED(a) answered"),
    );
    // A switch by the user in the meantime is kept.
    check(
        "open a b c; remove a; switch c; errand-failed; say m1",
        &format!(
            "{asked} switched(c,switch_agent) answered REMOVE_AGENT_FAILED(a) answered user.message admitted(c,Run) run.started INVOKE(c,1)"
        ),
    );
    check(
        "open a; remove a; remove b",
        &format!("{OPEN} REMOVE_AGENT_FAILED(a) answered REMOVE_AGENT_FAILED(b) answered"),
    );
}

/// Covers: SR-D4, SR-E5.
#[test]
fn returning_agent_has_its_state_restored() {
    check(
        "open a b; remove b; errand-done; invite b; errand-done",
        &format!(
            "{OPEN} removing(b) REQUEST_REMOVE(b) removed(b) answered adding(b) REQUEST_ADD(b) added(b,again) answered"
        ),
    );
}

/// Moves queued turns of a removed agent to another one, unless they were addressed; while the removal is
/// undecided, they wait.
///
/// Covers: SR-D5, G3.
#[test]
fn queued_turns_of_a_removed_agent_move_or_fail() {
    let both = format!("{OPEN} user.message admitted(b,Run) run.started INVOKE(b,1) user.message admitted(a,Queued,1)")
        .replace("user.message admitted(b", "user.message switched(b,mention) admitted(b");
    let script = "open a b; say m1 to b; switch a; say m2; remove a; done;";
    let waits = "switched(a,switch_agent) answered user.message admitted(a,Queued,1) removing(a) \
                 switched(b,remove_agent) REQUEST_REMOVE(a) agent.invoke.done done(0)";
    let begun = both.split(" user.message admitted(a").next().expect("the first turn");
    check(script, &format!("{begun} {waits}"));
    check(
        &format!("{script} errand-done"),
        &format!("{begun} {waits} removed(a) admitted(b,Run) run.started answered INVOKE(b,1)"),
    );
    check(
        &format!("{script} errand-failed"),
        &format!("{begun} {waits} switched(a,remove_agent) REMOVE_AGENT_FAILED(a) run.started answered INVOKE(a,1)"),
    );
    check(
        "open a b; say m1 to b; say m2 to a; remove a; errand-done",
        &format!(
            "{begun} user.message switched(a,mention) admitted(a,Queued,1) removing(a) switched(b,remove_agent) \
         REQUEST_REMOVE(a) removed(a) failed(agent_not_in_session) answered"
        ),
    );
}

/// Covers: SR-D12, SR-T11, SR-T14, G3: a change outlives its owner, at whatever place that is lost.
#[test]
fn member_change_survives_a_change_of_owner() {
    check(
        "open a; invite b; crash; errand-done",
        &format!("{OPEN} adding(b) REQUEST_ADD(b) | REQUEST_ADD(b) added(b) answered"),
    );
    check(
        "open a b; say m1; ack; remove a; crash; errand-done",
        &format!(
            "{TOLD} removing(a) switched(b,remove_agent) run.cancelling CANCEL | cancelled(agent_removed) \
         REQUEST_REMOVE(a) removed(a) answered"
        ),
    );
    // The deadline is recorded, so it does not restart.
    check(
        "open a; invite b; wait 9000; crash; wait 1000",
        &format!("{OPEN} adding(b) REQUEST_ADD(b) | REQUEST_ADD(b) ADD_AGENT_FAILED(b) answered"),
    );
    check(
        "open a b; remove a; errand-failed; crash; say m1",
        &format!(
            "{OPEN} removing(a) switched(b,remove_agent) REQUEST_REMOVE(a) switched(a,remove_agent) \
         REMOVE_AGENT_FAILED(a) answered | user.message admitted(a,Run) run.started INVOKE(a,1)"
        ),
    );
}

/// Covers: SR-H2, SR-D12: a session closes once its members are settled.
#[test]
fn close_waits_for_a_pending_member_change() {
    check(
        "open a; invite b; close; errand-done; open; say m1 to b",
        &format!(
            "{OPEN} adding(b) REQUEST_ADD(b) session.closing added(b) session.closed answered answered \
         session.opened answered user.message switched(b,mention) admitted(b,Run) run.started INVOKE(b,1)"
        ),
    );
}

/// A node releases idle sessions, and nobody would end what is pending in a session without an owner.
///
/// Covers: SR-K3.
#[test]
fn session_is_idle_only_if_nothing_is_pending() {
    for (script, is_idle) in [
        ("open a", true),
        ("open a; invite b", false),
        ("open a; invite b; errand-done", true),
        ("open a b; remove b", false),
        ("open a b; remove b; errand-done", true),
        ("open a; say m1", false),
        ("open a; say m1; ack; done", true),
    ] {
        let mut world = Script::new(OnOwnerLoss::Fail);
        for step in script.split("; ") {
            world.step(step);
        }
        assert_eq!(world.runtime.is_idle(), is_idle, "{script}");
    }
}

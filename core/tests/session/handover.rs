//! Handovers: requested by an agent, decided by a user, and interrupted ones.
use crate::script::{check, check_with};
use turnway_core::protocol::agent::OnOwnerLoss;

const TOLD: &str = "session.opened answered user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started";
const ENDED: &str = "agent.invoke.done done(0)";
const SWITCHED: &str = "confirmed(b) switched(b,handover) answered";

fn runs(script: &str, expected: &str) {
    check(&format!("open a b; say m1; ack; {script}"), &format!("{TOLD} {expected}"));
}

/// Passes the handover to the other agent with its next turn, and with no later one.
///
/// Covers: SR-F1, SR-F3, SR-F4, SR-F5, SR-F6, SR-F7, SR-F8, SR-T12, SR-P4, SR-M7, SR-S5, SR-S7, SR-K5, LN-SR13,
/// RX-26, LN-TP21.
#[test]
fn confirmed_handover_switches_the_agent_from_next_turn() {
    let next = "user.message admitted(b,Run) run.started INVOKE(b,1";
    runs(
        "asks b; yes; done; say m2; ack; done; say m3",
        &format!("asked(b) {SWITCHED} {ENDED} {next},from a) agent.invoke.started {ENDED} {next})"),
    );
    // The turn that requested the handover ends first, and queued inputs stay with the first agent.
    runs(
        "asks b; say m2; done; yes; say m3; ack; done",
        &format!(
            "asked(b) user.message admitted(a,Queued,1) {ENDED} run.started INVOKE(a,1) {SWITCHED} \
             user.message admitted(b,Queued,1) agent.invoke.started {ENDED} run.started INVOKE(b,1,from a)"
        ),
    );
}

/// Covers: SR-F3, SR-F9, SR-K5, LN-SR13, LN-SR21.
#[test]
fn unconfirmed_handover_changes_nothing() {
    let next = "user.message admitted(a,Run) run.started INVOKE(a,1)";
    runs("asks b; no; done; say m2", &format!("asked(b) rejected(refused) answered {ENDED} {next}"));
    // The first decision is final.
    runs("asks b; no; yes", "asked(b) rejected(refused) answered consume answered");
    runs("asks b; yes; no; yes", &format!("asked(b) {SWITCHED} consume answered consume answered"));
    // A decision without a request.
    runs("yes; done; say m2", &format!("consume answered {ENDED} {next}"));
}

/// Covers: SR-K7, SR-F9, SR-T10.
#[test]
fn undecided_handover_expires() {
    runs("asks b; done; wait 599999", &format!("asked(b) {ENDED}"));
    runs("asks b; done; wait 600000; yes", &format!("asked(b) {ENDED} rejected(expired) consume answered"));
}

#[test]
fn open_handover_stops_the_silence_clock() {
    runs("asks b; wait 599999", "asked(b)");
    runs("asks b; wait 719999", "asked(b) rejected(expired)");
    runs("asks b; wait 720000", "asked(b) rejected(expired) failed(agent_timeout) DROP");
}

/// Covers: SR-F9, LN-SR21, SR-H2, SR-S7.
#[test]
fn impossible_handover_is_rejected() {
    runs("asks nobody; done", &format!("asked(nobody) rejected(unavailable) {ENDED}"));
    runs(
        "asks b; close; cancel-ack",
        "asked(b) session.closing run.cancelling rejected(session_closed) CANCEL cancelled(session_close) DROP \
         session.closed answered",
    );
    // The requesting agent leaves before a decision.
    runs(
        "asks b; done; remove a; errand-done",
        &format!(
            "asked(b) {ENDED} removing(a) rejected(agent_left) switched(b,remove_agent) REQUEST_REMOVE(a) \
             removed(a) answered"
        ),
    );
}

/// Covers: SR-F1, SR-T12, SR-T14.
#[test]
fn invalid_handover_requests_are_ignored() {
    // A handover to itself, a second one, and one after the end of the run.
    runs("asks a; done", ENDED);
    runs("asks b; asks c; no; asks c", "asked(b) rejected(refused) answered asked(c)");
    runs("done; asks b", ENDED);
    runs("cancel; asks b; cancel-ack", "run.cancelling CANCEL answered cancelled(user) DROP");
    // A handover to the agent that is active already.
    runs("asks b; yes; asks b", &format!("asked(b) {SWITCHED}"));
    let again = "asks b; no; ".repeat(9);
    let times = "asked(b) rejected(refused) answered ".repeat(8) + "consume answered";
    runs(&again, &times);
}

/// Covers: SR-F5, SR-E4, SR-E8, SR-T13.
#[test]
fn handover_to_a_non_member_adds_it_first() {
    let asked = "asked(c) adding(c) REQUEST_ADD(c)";
    runs(
        "asks c; yes; no; errand-done; done; say m2",
        &format!(
            "{asked} added(c) confirmed(c) consume switched(c,handover) answered answered {ENDED} user.message \
             admitted(c,Run) run.started INVOKE(c,1,from a)"
        ),
    );
    runs(
        "asks c; yes; errand-failed; done; say m2",
        &format!(
            "{asked} ADD_AGENT_FAILED(c) rejected(unavailable) answered {ENDED} user.message admitted(a,Run) \
             run.started INVOKE(a,1)"
        ),
    );
    runs("asks c; yes; wait 10000", &format!("{asked} ADD_AGENT_FAILED(c) rejected(unavailable) answered"));
}

/// Covers: SR-T12, SR-T14, SR-K7, SR-F8, G3: at whatever place its owner is lost.
#[test]
fn handover_survives_a_change_of_owner() {
    let lost = format!("asked(b) {ENDED} |");
    let next = "user.message admitted(b,Run) run.started INVOKE(b,1,from a)";
    runs("asks b; done; crash; yes; say m2", &format!("{lost} {SWITCHED} {next}"));
    runs("asks b; done; crash; wait 600000", &format!("{lost} rejected(expired)"));
    runs(
        "asks b; done; wait 599000; crash; wait 1000; say m2",
        &format!("{lost} rejected(expired) user.message admitted(a,Run) run.started INVOKE(a,1)"),
    );
    runs(
        "asks c; yes; done; crash; errand-done",
        &format!(
            "asked(c) adding(c) REQUEST_ADD(c) {ENDED} | REQUEST_ADD(c) added(c) confirmed(c) switched(c,handover) answered"
        ),
    );
    // The turn that received the handover has not ended.
    runs(
        "asks b; yes; done; say m2; crash; ack; done; say m3",
        &format!(
            "asked(b) {SWITCHED} {ENDED} {next} | run.restarted INVOKE(b,2,from a) agent.invoke.started {ENDED} \
             user.message admitted(b,Run) run.started INVOKE(b,1)"
        ),
    );
}

/// Continues a resumed attempt, which repeats only events that were not recorded.
///
/// Covers: SR-F1, G3.
#[test]
fn resumed_attempt_does_not_repeat_the_handover() {
    check_with(
        OnOwnerLoss::Resume,
        "open a b; say m1; ack; text so e1; asks b e2; crash; no; done",
        &format!(
            "{TOLD} stretch(0+2 e1:2) 0'so' CREDIT(2) asked(b) | run.resumed RESUME(a,1 after e2:2 of 2) rejected(refused) \
             answered agent.invoke.done done(2)"
        ),
    );
}

/// Includes the first agent's text of the turn, before and after the request and across owners; of a
/// restarted attempt only the final text.
///
/// Covers: SR-T9, LN-SR15.
#[test]
fn handover_includes_the_previous_agents_text() {
    let next = "user.message admitted(b,Run) run.started INVOKE(b,1,from a:";
    runs(
        "text one; asks b; text two; yes; done; say m2",
        &format!("0'one' asked(b) {SWITCHED} 3'two' stretch(0+6) agent.invoke.done done(6) {next}onetwo)"),
    );
    runs(
        "asks b; text one; done; crash; yes; say m2",
        &format!("asked(b) 0'one' stretch(0+3) agent.invoke.done done(3) | {SWITCHED} {next}one)"),
    );
    runs(
        "text one; crash; ack; text two; asks b; done; yes; say m2",
        &format!(
            "0'one' | run.restarted INVOKE(a,2) agent.invoke.started 0'two' asked(b) stretch(0+3) agent.invoke.done \
             done(3) {SWITCHED} {next}two)"
        ),
    );
}

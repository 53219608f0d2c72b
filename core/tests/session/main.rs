//! The session's state machine, driven by scripts: its facts, orders and outputs.
mod acting;
mod bounds;
mod changes;
mod creations;
mod delivery;
mod events;
mod farewell;
mod gather;
mod handover;
mod kinds;
mod members;
mod messages;
mod mirror;
mod models;
mod replace;
mod resume;
mod script;
mod send;
mod snapshots;
mod steer;
mod tasks;

use script::{Script, check, check_with};
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::entry::{Fact, InputFact, RunFact};

const BEGUN: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1)";

/// Covers: SR-P1, SR-P3, SR-M1, SR-M2, SR-M3, SR-G1, SR-G2, SR-S1, SR-S7, SR-T1, SR-T5, SR-T6, SR-I1, SR-I3, SR-I5,
/// EV-C2, EV-T1, ST-20, MP-B1, SR-A2, SR-A3, SR-A5, SR-A7, SR-A9, SR-A11, SR-A12, SR-G4, SR-G6, SR-G7, SR-K1,
/// MP-E3, MP-T2, MP-T3, MP-T4, LN-SR6, LN-TP21.
#[test]
fn input_is_admitted_streamed_and_completed() {
    check(
        "say m1; ack; text he; text llo; done",
        &format!("{BEGUN} agent.invoke.started 0'he' 2'llo' stretch(0+5) agent.invoke.done done(5)"),
    );
}

/// Covers: G4, RX-7.
#[test]
fn order_waits_for_its_durable_fact() {
    check("hold; say m1", "session.opened user.message admitted(a,Run) run.started");
    check("hold; say m1; settle", BEGUN);
}

/// Covers: SR-K7, SR-A13, SR-T10, SR-M11, SR-A10, LN-SR1, LN-SR22.
#[test]
fn missing_acknowledgement_is_a_route_timeout() {
    check("say m1; wait 14999", BEGUN);
    check("say m1; wait 15000", &format!("{BEGUN} failed(ROUTE_TIMEOUT) DROP"));
    check("say m1; wait 14999; ack; wait 2", &format!("{BEGUN} agent.invoke.started"));
}

/// Covers: SR-G5 (a first chunk implies the start), SR-T8.
#[test]
fn text_before_the_ack_implies_the_start() {
    check(
        "say m1; text hi; wait 16000; done",
        &format!("{BEGUN} run.state 0'hi' stretch(0+2) CREDIT(2) agent.invoke.done done(2)"),
    );
}

#[test]
fn silent_agent_times_out() {
    check("say m1; ack; wait 120000", &format!("{BEGUN} agent.invoke.started failed(agent_timeout) DROP"));
}

#[test]
fn sign_of_life_restarts_the_silence_clock() {
    let lives = format!("{BEGUN} agent.invoke.started");
    check("say m1; ack; wait 119999; alive; wait 119999", &lives);
    check("say m1; ack; wait 119999; alive; wait 120000", &format!("{lives} failed(agent_timeout) DROP"));
    // The maximum duration of a run holds, whatever its agent sends.
    let minutes = "; alive; wait 60000".repeat(29);
    check(&format!("say m1; ack{minutes}; alive; wait 59999"), &lives);
    check(&format!("say m1; ack{minutes}; alive; wait 60000"), &format!("{lives} failed(agent_timeout) DROP"));
    // During a cancel only the acknowledgement counts.
    let stops = "run.cancelling CANCEL answered cancelled(user,forced) DROP";
    check("say m1; ack; cancel; wait 1999; alive; wait 1", &format!("{lives} {stops}"));
}

/// Stops the silence clock while the store is unavailable: no text is durable, so no more of the agent's text
/// is read.
#[test]
fn undurable_text_stops_the_silence_clock() {
    let said = format!("{BEGUN} agent.invoke.started 0'hi' stretch(0+2)");
    check("say m1; ack; hold; text hi; wait 600000", &said);
    check("say m1; ack; hold; text hi; wait 600000; settle; wait 119999", &format!("{said} CREDIT(2)"));
    let silent = "CREDIT(2) failed(agent_timeout) DROP";
    check("say m1; ack; hold; text hi; wait 600000; settle; wait 120000", &format!("{said} {silent}"));
}

/// Covers: SR-G10, SR-S9, MP-G7, LN-MP25 (one terminal, one error), LN-SR7.
#[test]
fn agent_failures_have_their_codes() {
    check("say m1; fail; done; text x", &format!("{BEGUN} failed(agent_error) DROP"));
    check("say m1; refuse; done; text x", &format!("{BEGUN} failed(blocked) DROP"));
    check("say m1; gone", &format!("{BEGUN} failed(agent_unavailable) DROP"));
    for policy in [OnOwnerLoss::RetryIfSilent, OnOwnerLoss::Fail, OnOwnerLoss::Resume] {
        check_with(policy, "say m1; 503", &format!("{BEGUN} failed(agent_unavailable,7000,busy) DROP"));
        // A resumable agent may run in spite of its error answer, so it gets a stop order.
        let stop = if policy == OnOwnerLoss::Resume { " STOP(1)" } else { "" };
        let failed = format!("{BEGUN} failed(agent_error,7000,busy) DROP{stop}");
        check_with(policy, "say m1; 429", &failed);
    }
    check("say m1; head", &format!("{BEGUN} failed(too_large) DROP"));
    check("say m1; ack; done; done; fail", &format!("{BEGUN} agent.invoke.started agent.invoke.done done(0)"));
}

/// Covers: SR-S9.
#[test]
fn too_large_response_head_is_refused_with_its_limits() {
    let mut script = Script::new(OnOwnerLoss::Retry);
    script.step("say m1");
    script.step("head");
    let failures = script.log.iter().filter_map(|(_, entry)| {
        let Fact::Run(RunFact::Failed { message, .. }) = &entry.fact else { return None };
        Some(message.as_str())
    });
    let limits = "the agent's response has more than 256 header fields, or more than 64 KiB of them";
    assert_eq!(failures.collect::<Vec<_>>(), [limits]);
}

/// Covers: BD-I5: the agent of the first input is busy, and the second one is accepted meanwhile.
#[test]
fn second_input_is_admitted_while_the_first_is_deferred() {
    check(
        "say m1; 503; say m2; wait 7000; ack; done",
        &format!(
            "{BEGUN} user.message admitted(a,Queued,1) run.restarted INVOKE(a,2) agent.invoke.started agent.invoke.done \
             done(0) run.started INVOKE(a,1)"
        ),
    );
}

/// Covers: G3, G8, BD-I7.
#[test]
fn busy_agent_is_retried_after_its_retry_after() {
    let second = format!("{BEGUN} run.restarted INVOKE(a,2)");
    check("say m1; 503; wait 6999", BEGUN);
    check("say m1; 503; wait 7000", &second);
    check("say m1; 429; wait 7000; ack; done", &format!("{second} agent.invoke.started agent.invoke.done done(0)"));
    let third = format!("{second} run.restarted INVOKE(a,3)");
    let busy = "failed(agent_unavailable,7000,busy) DROP";
    check("say m1; 503; wait 7000; 429; wait 7000; 503", &format!("{third} {busy}"));
    // An unavailable agent that does not report to be busy is not retried.
    check("say m1; 502", &format!("{BEGUN} failed(agent_unavailable,7000,) DROP"));
}

/// Covers: G3, G8.
#[test]
fn busy_agent_is_not_awaited_past_the_run_limit() {
    let minutes = "; alive; wait 60000".repeat(29);
    let busy = "failed(agent_unavailable,7000,busy) DROP";
    let lives = format!("{BEGUN} agent.invoke.started");
    check(&format!("say m1; ack{minutes}; alive; wait 52999; 503"), &lives);
    check(&format!("say m1; ack{minutes}; alive; wait 53000; 503"), &format!("{lives} {busy}"));
}

/// Covers: G3, G8.
#[test]
fn turn_waiting_for_a_busy_agent_can_be_cancelled() {
    let stopped = format!("{BEGUN} cancelled(user) answered");
    check("say m1; 503; wait 3000; cancel; wait 60000", &stopped);
}

/// Covers: SR-P4, SR-S5, SR-S7, SR-K7, SR-M4, SR-M5, SR-G3, SR-C3, SR-C4, SR-C5, SR-C6, SR-C7, SR-C8,
/// SR-C9, SR-K2, RX-5, RX-8, ST-12, LN-SR12, LN-SR19, LN-MP24.
#[test]
fn cancel_waits_for_its_acknowledgement() {
    let cancelling = format!("{BEGUN} agent.invoke.started 0'so' run.cancelling CANCEL answered");
    check("say m1; ack; text so; cancel m1", &cancelling);
    check(
        "say m1; ack; text so; cancel m1; text late; cancel-ack; text later; done",
        &format!("{cancelling} stretch(0+2) cancelled(user) DROP"),
    );
    check("say m1; ack; text so; cancel m1; done", &format!("{cancelling} stretch(0+2) cancelled(user) DROP"));
}

/// Covers: SR-K7, LN-SR2, SR-C7 (the wait has an end), ST-17 (partial text stays).
#[test]
fn cancel_without_acknowledgement_is_forced() {
    check(
        "say m1; ack; text so; cancel; wait 2000",
        &format!(
            "{BEGUN} agent.invoke.started 0'so' run.cancelling CANCEL answered stretch(0+2) cancelled(user,forced) DROP"
        ),
    );
}

/// Covers: SR-C2, RX-6, ST-11, ST-13.
#[test]
fn late_cancel_has_no_effect() {
    let done = format!("{BEGUN} agent.invoke.started agent.invoke.done done(0)");
    check("say m1; ack; done; cancel", &format!("{done} NO_ACTIVE_SPEAKING answered"));
    check("say m1; ack; done; cancel m1; caught-up", &format!("{done} catch_up consume answered"));
    check(
        "say m1; ack; say m2; cancel m2; cancel m2; caught-up; done",
        &format!(
            "{BEGUN} agent.invoke.started user.message admitted(a,Queued,1) cancelled(user) answered catch_up consume answered agent.invoke.done done(0)"
        ),
    );
}

/// Covers: ST-14, LN-SR20: a cancel may overtake the input that it names.
#[test]
fn cancel_before_its_input_still_applies() {
    check("cancel m1; say m1", "catch_up session.opened user.message cancelled(user) answered");
}

/// Covers: SR-S5, EV-T6, EV-N1, RX-4, ST-6, I6, LN-SR8, LN-TP1, LN-TP32, BD-M3: inputs begin in order, an interrupt
/// begins next.
#[test]
fn second_input_queues_or_interrupts() {
    check(
        "say m1; say m2; done; done",
        &format!(
            "{BEGUN} user.message admitted(a,Queued,1) agent.invoke.done done(0) run.started INVOKE(a,1) agent.invoke.done done(0)"
        ),
    );
    check(
        "say m1; say m2; interrupt m3; cancel-ack; done; done",
        &format!(
            "{BEGUN} user.message admitted(a,Queued,1) user.message admitted(a,Interrupts) run.cancelling CANCEL \
             cancelled(interrupt) DROP run.started INVOKE(a,1) agent.invoke.done done(0) run.started INVOKE(a,1) \
             agent.invoke.done done(0)"
        ),
    );
    check(
        "say m1; rollback m3; cancel-ack; done",
        &format!(
            "{BEGUN} user.message admitted(a,Interrupts) run.cancelling CANCEL cancelled(rollback) DROP run.started \
             INVOKE(a,1) agent.invoke.done done(0)"
        ),
    );
}

/// Covers: SR-S4, SR-B3, SR-B9, SR-B5, SR-B7, SR-B10, SR-W1, SR-W2, SR-W3, SR-T2, LN-SR14, SR-B4, SR-B6, SR-B8,
/// LN-SR11, EV-E1.
#[test]
fn addressed_member_answers_and_a_non_member_fails() {
    check(
        "open a b; say m1 to b; done; say m2",
        "session.opened answered user.message switched(b,mention) admitted(b,Run) run.started INVOKE(b,1) \
         agent.invoke.done done(0) user.message admitted(b,Run) run.started INVOKE(b,1)",
    );
    check("open a; say m1 to b", "session.opened answered user.message failed(agent_not_in_session)");
}

/// Covers: SR-S5, SR-H4, SR-H3, SR-H1, SR-H2, SR-H5, SR-H6, G3, LN-SR8, LN-TP7, BD-M6: neither an agent's late event
/// nor a cancel has an effect on what was ended.
#[test]
fn close_cancels_running_and_fails_queued_turns() {
    let closed = format!(
        "{BEGUN} user.message admitted(a,Queued,1) session.closing failed(session_closed) run.cancelling CANCEL \
         cancelled(session_close) DROP session.closed answered"
    );
    check("say m1; say m2; close; cancel-ack; ack; text late; done", &closed);
    check(
        "say m1; say m2; close; say m3; cancel-ack; say m4; open; say m5",
        &format!(
            "{BEGUN} user.message admitted(a,Queued,1) session.closing failed(session_closed) run.cancelling CANCEL \
             user.message failed(session_closed) cancelled(session_close) DROP session.closed answered user.message \
             failed(session_closed) session.opened answered user.message admitted(a,Run) run.started INVOKE(a,1)"
        ),
    );
    check(
        "open; open; close; close",
        "session.opened answered consume answered session.closing session.closed answered consume answered",
    );
}

/// Covers: SR-H4, EV-R4, EV-A2, SR-I4, RX-3, MP-D6, SR-H2 across a change of owner.
#[test]
fn close_survives_a_change_of_owner() {
    check(
        "say m1; close; crash",
        &format!("{BEGUN} session.closing run.cancelling CANCEL | cancelled(session_close) session.closed answered"),
    );
}

/// A label changes nothing else, in any phase of a session.
#[test]
fn label_is_recorded_and_survives_a_change_of_owner() {
    let set = r#"control {"ask":"label","label":"blue"}"#;
    let removed = r#"control {"ask":"label","label":""}"#;
    check(
        &format!("open; {set}; close; {removed}"),
        "session.opened answered session.labelled(blue) answered session.closing session.closed answered \
         session.labelled() answered",
    );
    check(
        &format!("say m1; {set}; ack; hold; {removed}; settle"),
        &format!("{BEGUN} session.labelled(blue) answered agent.invoke.started session.labelled() answered"),
    );
    check(
        &format!("say m1; {set}; crash; {removed}; crash"),
        &format!("{BEGUN} session.labelled(blue) answered | run.restarted INVOKE(a,2) session.labelled() answered |"),
    );
}

/// The changes of a binding change nothing else, in any phase of a session. An entry that is repeated is recorded once,
/// because the store gives each entry one place.
///
/// Covers: BD-S1.
#[test]
fn binding_changes_are_recorded_and_survive_a_change_of_owner() {
    let place = r#""binding_id":"5.7","conversation":{"channel":"rooms","account_id":"a","conversation_id":"7"}"#;
    let bound =
        format!(r#"control {{"ask":"record_binding","bound":{{{place},"target_kind":"session","bound_at":5}}}}"#);
    let ended =
        format!(r#"control {{"ask":"record_binding_end","ended":{{{place},"reason":"idle_expired","ended_at":9}}}}"#);
    check(
        &format!("open; {bound}; close; {ended}"),
        "session.opened answered binding.bound answered session.closing session.closed answered \
         binding.ended answered",
    );
    check(
        &format!("say m1; {bound}; crash; {ended}; crash"),
        &format!("{BEGUN} binding.bound answered | run.restarted INVOKE(a,2) binding.ended answered |"),
    );
}

/// Covers: G2, G3, BR-22: attempts are counted, the third after a while, and then no more; the next input follows.
#[test]
fn turn_that_loses_three_owners_is_poison() {
    let attempts = "run.restarted INVOKE(a,2) | run.restarted INVOKE(a,3) | failed(poison_turn)";
    let lost = "crash; crash; wait 999; wait 1; crash";
    check(&format!("say m1; {lost}"), &format!("{BEGUN} | {attempts}"));
    check(
        &format!("say m1; say m2; {lost}"),
        &format!("{BEGUN} user.message admitted(a,Queued,1) | {attempts} run.started INVOKE(a,1)"),
    );
}

/// Covers: BR-23: an input waits behind a healthy run as long as that lives, and begins by itself.
#[test]
fn input_waits_for_as_long_as_the_run_before_it_lives() {
    let minutes = "; alive; wait 60000".repeat(29);
    check(
        &format!("say m1; ack; say m2{minutes}; alive; done; ack"),
        &format!(
            "{BEGUN} agent.invoke.started user.message admitted(a,Queued,1) agent.invoke.done done(0) run.started \
             INVOKE(a,1) agent.invoke.started"
        ),
    );
}

#[test]
fn lost_owner_applies_the_agents_policy() {
    check_with(OnOwnerLoss::Fail, "say m1; crash", &format!("{BEGUN} | failed(owner_lost)"));
    check_with(
        OnOwnerLoss::RetryIfSilent,
        "say m1; ack; crash",
        &format!("{BEGUN} agent.invoke.started | run.restarted INVOKE(a,2)"),
    );
    check_with(
        OnOwnerLoss::RetryIfSilent,
        "say m1; ack; text hi; crash",
        &format!("{BEGUN} agent.invoke.started stretch(0+2) 0'hi' CREDIT(2) | failed(owner_lost)"),
    );
    // With `retry_if_silent` no text is delivered before it is recorded.
    check_with(
        OnOwnerLoss::RetryIfSilent,
        "say m1; ack; hold; text hi; text ho; settle",
        &format!("{BEGUN} agent.invoke.started stretch(0+2) 0'hi' CREDIT(2)"),
    );
}

/// Covers: MP-G3, G3: what was said before lies in the inbox with its input, and nowhere else.
#[test]
fn every_attempt_gets_the_input_history() {
    let invoke = |attempt: u32| format!("INVOKE(a,{attempt},[\"canary\"])");
    let mut world = Script::new(OnOwnerLoss::Retry);
    for step in ["say m1 after canary", "ack", "crash", "crash", "wait 1000"] {
        world.step(step);
    }
    let begun = format!("session.opened user.message admitted(a,Run) run.started {}", invoke(1));
    let again = format!("| run.restarted {} | run.restarted {}", invoke(2), invoke(3));
    assert_eq!(world.record.join(" "), format!("{begun} agent.invoke.started {again}"));
    let names_it = |fact: &Fact| matches!(fact, Fact::Input(InputFact::UserMessage { history_sha256: Some(_), .. }));
    assert!(world.log.iter().any(|(_, entry)| names_it(&entry.fact)));
    for (epoch, entry) in &world.log {
        let fact = entry.to_json(&script::key(), turnway_core::id::Seq(1), *epoch);
        assert!(!fact.contains("canary"), "no fact, and so no link, tells it: {fact}");
    }
    assert!(!format!("{:?}", world.runtime).contains("canary"));
}

/// Does not count an attempt that a draining node suspends (ownership: drains do not count).
#[test]
fn suspended_attempt_is_not_counted() {
    let again = "| run.restarted INVOKE(a,2) | run.restarted INVOKE(a,3) | run.restarted INVOKE(a,4)";
    let script = "say m1; ack; text hi; suspend; crash; crash; crash; wait 1000";
    check(
        script,
        &format!("{BEGUN} agent.invoke.started 0'hi' stretch(0+2) run.suspended DROP CREDIT(2) {again}")
            .replace(" CREDIT(2)", ""),
    );
}

/// Covers: EV-E10, RX-2, S-48, LN-SR6: text is recorded in stretches, and not without end.
#[test]
fn text_is_recorded_in_bounded_stretches() {
    check(
        "say m1; ack; flood 20000; wait 2100",
        &format!(
            "{BEGUN} agent.invoke.started stretch(0+16384) stretch(16384+3616) 0'{}' CREDIT(20000)",
            "x".repeat(20000)
        ),
    );
    let text = "x".repeat(4 * 1024 * 1024);
    let mut world = Script::new(OnOwnerLoss::Retry);
    world.step("say m1");
    world.step(&format!("flood {}", text.len()));
    world.step("text y");
    assert!(world.record.iter().any(|word| word == "failed(too_large)"));
    let facts = world.log.iter().filter(|(_, entry)| matches!(entry.fact, Fact::Run(RunFact::TextDelta { .. })));
    assert_eq!(facts.count(), 256);
}

/// Covers: ST-23, EV-E9: reasoning is shown and neither recorded nor counted.
#[test]
fn reasoning_is_delivered_but_not_recorded() {
    check(
        "say m1; ack; think hm; text hi; done",
        &format!("{BEGUN} agent.invoke.started 0'hm' 0'hi' stretch(0+2) agent.invoke.done done(2)"),
    );
}

/// Sends the first delta at once and batches those of the next 20 ms (protocol: coalescing).
///
/// Covers: SR-G11.
#[test]
fn deltas_are_batched() {
    check(
        "say m1; ack; text a; text b; text c; wait 20; text d; wait 40; text e",
        &format!("{BEGUN} agent.invoke.started 0'a' 1'bc' 3'd' 4'e'"),
    );
}

/// Covers: S-38: what people say is not printed by `Debug`.
#[test]
fn debug_output_contains_no_content() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    for step in ["say canary", "ack", "text canary-text"] {
        world.step(step);
    }
    let shown = format!("{:?}", world.runtime);
    assert!(!shown.contains("canary-text") && !shown.contains("text of canary"), "{shown}");
}

/// Admits a message whose owner was lost before its admission (G3, G9).
#[test]
fn unadmitted_message_is_admitted_by_the_next_owner() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    world.durable = false;
    world.step("say m1");
    world.log.truncate(2);
    assert_eq!(world.log.last().map(|(_, entry)| entry.fact.name()), Some("user.message"));
    (world.durable, world.record) = (true, Vec::new());
    world.step("crash");
    world.step("done");
    assert_eq!(world.record.join(" "), "| admitted(a,Run) run.started INVOKE(a,1) agent.invoke.done done(0)");
}

/// The facts of each level. A level that a release has announced never changes.
const LEVELS: &[(u32, &str)] = &[
    (
        1,
        "agent.action agent.add_failed agent.added agent.adding agent.invoke.done agent.invoke.started \
         agent.remove_failed agent.removed agent.removing agent.steer.acked agent.stream.delta agent.switched \
         handover.confirmed handover.rejected handover.requested process.canceled process.exited \
         process.progress process.spawned run.cancelled run.cancelling run.done run.failed run.restarted \
         run.resumed run.started run.state run.suspended session.closed session.closing session.notice \
         session.opened system.event tool.invoke tool.result turn.admitted user.message",
    ),
    (2, "binding.bound binding.ended session.labelled"),
    (
        3,
        "delivery.attempted delivery.failed delivery.held delivery.redriven delivery.refused delivery.requested delivery.sent",
    ),
    (4, "turn.gathered"),
    (5, "llm.call.ended llm.call.started"),
];

#[test]
fn each_fact_has_the_level_that_it_was_added_with() {
    let split = |(level, names): &(u32, &'static str)| names.split(' ').map(|name| (*level, name)).collect::<Vec<_>>();
    let mut known: Vec<(u32, &str)> = LEVELS.iter().flat_map(split).collect();
    let mut found: Vec<(u32, &str)> = Fact::kinds().map(|kind| (kind.since, kind.name)).collect();
    known.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, known, "a new fact has `since(N)`, with N above every level of a release: enter it there");
}

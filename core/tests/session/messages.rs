//! Buttons below answers. Script steps: `level N MESSAGE` submits what somebody wrote where buttons have this level;
//! `buttons ID…` has the agent ask for buttons; `presses ID PRESS` submits the press of one below the last delivery.
use crate::acting::call;
use crate::delivery::heard;
use crate::script::{Script, check, key, user};
use serde_json::json;
use turnway_core::id::{MessageId, RequestId, RunId};
use turnway_core::limits;
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::delivery::{ButtonPress, InputOrigin};
use turnway_core::protocol::input::Input as Request;

const BEGUN: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started";
const SET: &str = "agent.action result(ok) NEWS(agent.action) NEWS(tool.result)";
const ANSWERED: &str = "0'hi' stretch(0+2) agent.invoke.done done(2)";

impl Script {
    pub(crate) fn use_messages(&mut self, words: &[&str]) {
        match words {
            ["level", level, message] => {
                let level = level.parse().expect("a level");
                let mut input = heard(message, "lobby", None);
                input.origin.as_mut().expect("an origin").buttons = Some(level);
                self.submit(input);
            }
            ["buttons", ids @ ..] => {
                let buttons: Vec<_> = ids.iter().map(|id| json!({"id": id, "label": id.to_uppercase()})).collect();
                self.request_action(None, call("message.buttons", json!({"buttons": buttons})));
            }
            ["presses", button_id, press] => {
                let press_id = RequestId::parse(press).expect("a name");
                let button_id = (*button_id).to_owned();
                let decision = ButtonPress { delivery_id: self.last_requested(), button_id, press_id };
                let input = heard("x1", "lobby", None);
                let origin = *input.origin.clone().expect("an origin");
                let origin = InputOrigin { decision: Some(Box::new(decision)), ..origin };
                let message_id = MessageId::parse(press).expect("a name");
                let run_id = RunId::derive(&key(), &user(), &message_id);
                self.submit(Request { run_id, message_id, origin: Some(Box::new(origin)), ..input });
            }
            other => panic!("no such step: {other:?}"),
        }
    }
}

/// Covers: BR-36.
#[test]
fn buttons_are_shown_as_the_capability_allows() {
    let asked = "ack; buttons y n; text hi; done";
    let begun = format!("{BEGUN} {SET} {ANSWERED} requested(1)");
    check(&format!("level 2 m1; {asked}"), &format!("{begun} DELIVER(1/1,1 hi)[y,n]"));
    check(&format!("level 1 m1; {asked}"), &format!("{begun} DELIVER(1/1,1 hi)[y,n]"));
    check(&format!("level 0 m1; {asked}"), &format!("{begun} DELIVER(1/1,1 hi//1. Y/2. N)"));
    check(&format!("hears m1; {asked}"), &format!("{begun} DELIVER(1/1,1 hi//1. Y/2. N)"));
    check(&format!("level -1 m1; {asked}"), &format!("{begun} DELIVER(1/1,1 hi)"));
    let refused = "agent.action result(not_supported) NEWS(agent.action) NEWS(tool.result)";
    check(&format!("level -2 m1; {asked}"), &format!("{BEGUN} {refused} {ANSWERED} requested(1) DELIVER(1/1,1 hi)"));
    check("say m1; ack; buttons y", &format!("{BEGUN} {}", refused.replace("not_supported", "no_conversation")));
    let invalid = refused.replace("not_supported", "invalid_buttons");
    check("level 2 m1; ack; buttons y y", &format!("{BEGUN} {invalid}"));
    check("level 2 m1; ack; act message.buttons", &format!("{BEGUN} {invalid}"));
}

/// The last request counts, and an empty one takes the buttons back. A notice of a failure has none.
#[test]
fn buttons_belong_to_the_answer_of_their_turn() {
    let twice = format!("{BEGUN} {SET} {SET} {ANSWERED} requested(1)");
    check("level 2 m1; ack; buttons a b; buttons y; text hi; done", &format!("{twice} DELIVER(1/1,1 hi)[y]"));
    check("level 2 m1; ack; buttons a b; buttons; text hi; done", &format!("{twice} DELIVER(1/1,1 hi)"));
    check(
        "level 2 m1; ack; buttons a; gone",
        &format!(
            "{BEGUN} {SET} failed(agent_unavailable) DROP requested(1) DELIVER(1/1,1 The turn failed: cannot connect)"
        ),
    );
    // A later message of the conversation has none.
    check(
        "level 2 m1; ack; buttons a; text hi; done; delivery sent; level 2 m2; ack; text hi; done",
        &format!(
            "{BEGUN} {SET} {ANSWERED} requested(1) DELIVER(1/1,1 hi)[a] sent(1/1) user.message admitted(a,Run) \
             run.started INVOKE(a,1) agent.invoke.started {ANSWERED} requested(1) DELIVER(1/1,1 hi)"
        ),
    );
}

/// Rendered before the first attempt, the buttons are the same in every attempt and at every owner.
///
/// Covers: BR-07.
#[test]
fn buttons_are_frozen_with_their_delivery() {
    let answered = "level 2 m1; ack; buttons y; text hi; done";
    let begun = format!("{BEGUN} {SET} {ANSWERED} requested(1) DELIVER(1/1,1 hi)[y]");
    check(
        &format!("{answered}; delivery transient; wait 1000"),
        &format!("{begun} attempted(1,2) DELIVER(1/1,2 hi)[y]"),
    );
    check(&format!("{answered}; crash; wait 0"), &format!("{begun} | DELIVER(1/1,1? hi)[y]"));
    let long = "x".repeat(100);
    check(
        "level 2 m1; ack; buttons y; flood 100; done; delivery sent",
        &format!(
            "{BEGUN} {SET} 0'{long}' stretch(0+100) agent.invoke.done done(100) requested(2) DELIVER(1/2,1 {}) \
             sent(1/2) DELIVER(2/2,1 {})[y]",
            &long[..64],
            &long[64..],
        ),
    );
}

#[test]
fn first_press_decides_for_its_delivery() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    let steps = ["level 2 m1", "ack", "buttons y n", "text hi", "done", "delivery sent"];
    steps.into_iter().for_each(|step| world.step(step));
    let recent = world.runtime.state().deliveries.recent.clone();
    let [answer] = recent.as_slice() else { panic!("{recent:?}") };
    assert_eq!((answer.external_ids.len(), &answer.decided_by), (1, &None));
    ["presses n p1", "ack", "presses y p2"].into_iter().for_each(|step| world.step(step));
    let state = world.runtime.state();
    assert_eq!(state.deliveries.recent[0].decided_by, RequestId::parse("p1").ok());
    assert_eq!(state.deliveries.recent.len(), 1);
}

#[test]
fn oldest_answers_are_forgotten_past_the_limit() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    for n in 0..=limits::RECENT_DELIVERIES_MAX {
        for step in [&format!("level 2 m{n}"), "ack", "buttons y", "text hi", "done", "delivery sent"] {
            world.step(step);
        }
    }
    let recent = &world.runtime.state().deliveries.recent;
    assert_eq!(recent.len(), limits::RECENT_DELIVERIES_MAX);
    assert_eq!(recent.last().map(|answer| answer.delivery_id.clone()), Some(world.last_requested()));
}

/// A node that does not know the fields of the facts could not send the buttons.
#[test]
fn buttons_are_refused_during_an_upgrade() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    world.runtime.set_fact_level(3);
    ["level 2 m1", "ack", "buttons y", "text hi", "done"].into_iter().for_each(|step| world.step(step));
    assert!(world.record.iter().any(|word| word == "result(not_supported)"), "{:?}", world.record);
    assert!(world.runtime.state().deliveries.recent.is_empty());
}

#[test]
fn answers_with_many_buttons_are_forgotten_sooner() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    let label = "ü".repeat(limits::BUTTON_LABEL_CHARACTERS_MAX);
    let buttons: Vec<_> = (0..limits::BUTTONS_MAX).map(|n| json!({"id": n.to_string(), "label": label})).collect();
    for n in 0..20 {
        [&format!("level 2 m{n}"), "ack"].into_iter().for_each(|step| world.step(step));
        world.request_action(None, call("message.buttons", json!({"buttons": buttons})));
        ["text hi", "done", "delivery sent"].into_iter().for_each(|step| world.step(step));
    }
    let recent = &world.runtime.state().deliveries.recent;
    let bytes: usize = recent.iter().filter_map(|answer| answer.buttons.as_ref()).map(|set| set.bytes()).sum();
    assert!(bytes <= limits::RECENT_BUTTONS_BYTES_MAX, "{bytes}");
    // One more would not fit.
    assert!(bytes + bytes / recent.len() > limits::RECENT_BUTTONS_BYTES_MAX, "{bytes}");
    assert_eq!(recent.last().map(|answer| answer.delivery_id.clone()), Some(world.last_requested()));
}

//! Changes of messages that agents ask for. Script steps: `edits MESSAGE TEXT`, `deletes MESSAGE`, `reacts EMOJI [MESSAGE]`
//! and `unreacts EMOJI` name the message that led to the run, or `-`, which is a message of nobody.
use crate::acting::call;
use crate::script::{Script, check, key, user};
use serde_json::json;
use turnway_core::id::{DeliveryId, MessageId, RunId};
use turnway_core::limits;
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::delivery::DeliveryOrder;
use turnway_core::protocol::input::ControlRequest;
use turnway_core::session::{OpenDelivery, State};

const BEGUN: &str = "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started";
const ANSWERED: &str = "0'hi' stretch(0+2) agent.invoke.done done(2) requested(1) DELIVER(1/1,1 hi) sent(1/1)";
const NEXT: &str = "user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started";
/// A message was answered, and another one is being answered.
const TALK: &str = "hears m1; ack; text hi; done; delivery sent; hears m2; ack";
const ASKED: &str = "agent.action requested(1) result(ok)";
const NEWS: &str = "NEWS(agent.action) NEWS(tool.result)";

impl Script {
    pub(crate) fn change_messages(&mut self, words: &[&str]) {
        let run_of = |message: &str| {
            let message_id = MessageId::parse(if message == "-" { "nobody" } else { message }).expect("a name");
            RunId::derive(&key(), &user(), &message_id)
        };
        let (tool, args) = match words {
            ["edits", message, text @ ..] => {
                ("message.edit", json!({"run_id": run_of(message), "text": text.join(" ")}))
            }
            ["deletes", message] => ("message.delete", json!({"run_id": run_of(message)})),
            ["reacts", emoji] => ("message.react", json!({"emoji": emoji})),
            ["reacts", emoji, message] => ("message.react", json!({"emoji": emoji, "run_id": run_of(message)})),
            ["unreacts", emoji] => ("message.react", json!({"emoji": emoji, "remove": true})),
            other => panic!("no such step: {other:?}"),
        };
        self.request_action(None, call(tool, args));
    }

    fn retry(&mut self, delivery_id: &DeliveryId) {
        self.ask(ControlRequest::SettleDelivery { delivery_id: delivery_id.clone(), again: true });
    }

    fn delivery(&self, delivery_id: &DeliveryId) -> &OpenDelivery {
        self.runtime.state().deliveries.open.get(delivery_id).expect("the delivery")
    }
}

/// Describes the change that an order asks for.
pub(crate) fn shown(order: &DeliveryOrder) -> String {
    let target = order.target().map_or("-", MessageId::as_str);
    let reaction = order.change.as_ref().and_then(|change| change.reaction.as_ref());
    let reaction = reaction.map(|it| format!(" {}{}", if it.remove { "-" } else { "+" }, it.emoji.reveal()));
    format!("{} {target}{}", order.kind.as_str(), reaction.unwrap_or_default())
}

/// Asserts that a change is refused with a code, and nothing is requested.
fn refused(script: &str, code: &str) {
    let mut world = Script::new(OnOwnerLoss::Retry);
    script.split(';').for_each(|step| world.step(step.trim()));
    let requested = world.record.iter().rev().find(|word| word.starts_with("requested("));
    let at = |part: &str| world.record.iter().rposition(|word| word.starts_with(part));
    assert_eq!(at("result("), world.record.iter().rposition(|word| *word == format!("result({code})")), "{script}");
    assert!(requested.is_none() || at("requested(") < at("agent.action"), "{script}: {:?}", world.record);
}

/// Covers: BR-07, BD-Q7.
#[test]
fn edit_goes_to_the_message_of_the_answer() {
    let begun = format!("{BEGUN} {ANSWERED} {NEXT}");
    check(&format!("{TALK}; edits m1 ho"), &format!("{begun} {ASKED} {NEWS} DELIVER(1/1,1 ho)[edit x1]"));
    // The answer itself is delivered as if there had been no edit.
    check(
        &format!("{TALK}; edits m1 ho; delivery sent; text hi; done; delivery sent x2"),
        &format!("{begun} {ASKED} {NEWS} DELIVER(1/1,1 ho)[edit x1] sent(1/1) {ANSWERED}"),
    );
    // The older of two answers.
    check(
        &format!("{TALK}; text hi; done; delivery sent x2; hears m3; ack; edits m1 ho"),
        &format!("{begun} {ANSWERED} {NEXT} {ASKED} {NEWS} DELIVER(1/1,1 ho)[edit x1]"),
    );
}

#[test]
fn deletion_removes_each_message_of_an_answer() {
    let long = "hears m1; ack; flood 100; done; delivery sent x1; delivery sent x2; hears m2; ack";
    let mut world = Script::new(OnOwnerLoss::Retry);
    format!("{long}; deletes m1; delivery sent x1").split(';').for_each(|step| world.step(step.trim()));
    let asked: Vec<_> = world.record.iter().filter(|word| word.contains("[delete")).collect();
    assert_eq!(asked, ["DELIVER(1/2,1 )[delete x1]", "DELIVER(2/2,1 )[delete x2]"]);
    assert_eq!(world.runtime.state().deliveries.recent.len(), 1);
    world.step("delivery sent x2");
    assert!(world.runtime.state().deliveries.recent.is_empty(), "nothing of the answer is left to change");
    refused(&format!("{long}; edits m1 ho"), "several_parts");
    refused(&format!("{long}; deletes m1; deletes m1"), "no_such_delivery");
}

#[test]
fn reaction_goes_to_the_message_that_led_to_the_run() {
    let begun = format!("{BEGUN} {ANSWERED} {NEXT} {ASKED} {NEWS}");
    check(&format!("{TALK}; reacts ok"), &format!("{begun} DELIVER(1/1,1 )[reaction m2 +ok]"));
    check(&format!("{TALK}; reacts ok m1"), &format!("{begun} DELIVER(1/1,1 )[reaction m1 +ok]"));
    check(&format!("{TALK}; unreacts ok"), &format!("{begun} DELIVER(1/1,1 )[reaction m2 -ok]"));
}

/// Covers: BD-R8.
#[test]
fn change_that_cannot_be_made_is_refused() {
    refused(&format!("{TALK}; edits - ho"), "no_such_delivery");
    refused(&format!("{TALK}; deletes -"), "no_such_delivery");
    refused(&format!("{TALK}; deletes m2"), "no_such_delivery");
    refused(&format!("{TALK}; reacts ok -"), "no_such_message");
    refused(&format!("{TALK}; reacts {}", "x".repeat(65)), "invalid_arguments");
    refused(&format!("{TALK}; edits m1 {}", "x".repeat(65)), "too_long");
    refused(&format!("{TALK}; edits m1"), "invalid_arguments");
    refused(&format!("{TALK}; act message.edit"), "invalid_arguments");
    refused("hears m1; ack; text hi; done; hears m2; ack; edits m1 ho", "not_sent");
    refused("say m1; ack; reacts ok", "no_conversation");
    // A client's turn, in a session with an answer of a conversation.
    refused("hears m1; ack; text hi; done; delivery sent; say m2; ack; edits m1 ho", "no_conversation");
    // The task's own conversation is another one.
    refused("given m1; ack; reacts ok", "no_conversation");
    // Another conversation of the session.
    refused("hears m1; ack; text hi; done; delivery sent; hears m2 attic; ack; edits m1 ho", "no_such_delivery");
    refused("hears m1; ack; text hi; done; delivery sent; hears m2 attic; ack; reacts ok m1", "no_such_message");
}

/// Covers: BR-08.
#[test]
fn change_is_no_message_to_its_place() {
    let begun = format!("{BEGUN} {ANSWERED} {NEXT} {ASKED} {NEWS} DELIVER(1/1,1 ho)[edit x1]");
    // The message is gone; the conversation is not.
    let answer = "text hi; done; delivery sent x2";
    check(&format!("{TALK}; edits m1 ho; delivery gone; {answer}"), &format!("{begun} undelivered(1,gone) {ANSWERED}"));
    check(
        &format!("{TALK}; edits m1 ho; delivery unsupported; {answer}"),
        &format!("{begun} undelivered(1,not_supported) {ANSWERED}"),
    );
    check(
        &format!("{TALK}; edits m1 ho; delivery unknown; wait 1000"),
        &format!("{begun} attempted(1,2) DELIVER(1/1,2? ho)[edit x1]"),
    );
    check(
        &format!("{TALK}; edits m1 ho; crash; wait 0"),
        &format!("{begun} | DELIVER(1/1,1? ho)[edit x1] run.restarted INVOKE(a,2,0+1)"),
    );
}

/// The order of two edits is kept, and an earlier one is not brought back.
#[test]
fn earlier_edit_is_not_sent_again_after_a_later_one() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    format!("{TALK}; edits m1 one; edits m1 two").split(';').for_each(|step| world.step(step.trim()));
    assert_eq!(world.sending.len(), 2, "the second edit waits for the first");
    let first = world.sending.last().expect("an order").delivery_id.clone();
    world.step("delivery invalid");
    world.step("delivery sent");
    world.retry(&first);
    assert!(world.delivery(&first).has_failed(), "{:?}", world.record);
    // The last one may be tried again.
    world.step("edits m1 three");
    let third = world.sending.last().expect("an order").delivery_id.clone();
    world.step("delivery invalid");
    world.retry(&third);
    assert!(!world.delivery(&third).has_failed(), "{:?}", world.record);
}

#[test]
fn run_changes_a_limited_number_of_messages() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    ["hears m1", "ack"].into_iter().for_each(|step| world.step(step));
    for _ in 0..=limits::RUN_MESSAGE_CHANGES_MAX {
        world.step("reacts ok");
        world.step("delivery sent");
    }
    let results = |code: &str| world.record.iter().filter(|word| **word == format!("result({code})")).count();
    assert_eq!((results("ok"), results("too_many")), (limits::RUN_MESSAGE_CHANGES_MAX, 1));
    // The next run has all of them again.
    ["text hi", "done", "delivery sent x2", "hears m2", "ack", "reacts ok"]
        .into_iter()
        .for_each(|step| world.step(step));
    assert_eq!(world.record.iter().filter(|word| *word == "result(ok)").count(), limits::RUN_MESSAGE_CHANGES_MAX + 1);
}

/// A node of an earlier release could not read the request.
#[test]
fn changes_are_refused_during_an_upgrade() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    world.runtime.set_fact_level(3);
    ["hears m1", "ack", "reacts ok"].into_iter().for_each(|step| world.step(step));
    assert!(world.record.iter().any(|word| word == "result(not_supported)"), "{:?}", world.record);
}

/// An owner that stops between the request of an action and its end leaves an open action: nobody repeats the change.
#[test]
fn action_of_a_lost_owner_ends_as_unknown() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    ["hears m1", "ack", "hold", "reacts ok"].into_iter().for_each(|step| world.step(step));
    let asked = world.log.iter().position(|(_, entry)| entry.fact.name() == "agent.action").expect("it was asked");
    world.log.truncate(asked + 1);
    world.step("crash");
    assert!(world.record.iter().any(|word| word == "result(UNKNOWN)"), "{:?}", world.record);
    let state: &State = world.runtime.state();
    assert!(state.actions.open.is_empty() && state.deliveries.open.is_empty());
}

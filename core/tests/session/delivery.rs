//! Deliveries to conversations. Script steps: `hears MESSAGE [PLACE]` submits what somebody wrote in a conversation;
//! `delivery sent|elsewhere|unsent|unknown|lost|unsupported|CLASS [MS|ID]` reports on the last order, `receipt N` on the Nth;
//! `operator retry|drop` decides on the last requested delivery.
use crate::script::{Script, check, key, user};
use std::sync::Arc;
use turnway_core::id::{DeliveryId, Epoch, MessageId, RunId, UserId};
use turnway_core::limits;
use turnway_core::private::Private;
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::annotation::{Annotations, apply_annotations};
use turnway_core::protocol::conversation::ConversationRef;
use turnway_core::protocol::delivery::{
    DeliveryErrorClass, DeliveryOrder, DeliveryOutcome, DeliveryReport, InputOrigin, Sender, TextLimit, TextUnit,
};
use turnway_core::protocol::entry::{DeliveryFact, Entry, Fact};
use turnway_core::protocol::input::{Content, ControlRequest, Input as Request, Message, Role, Strategy};
use turnway_core::protocol::task::TaskOrigin;
use turnway_core::session::{DeliveryPhase, Input, State};

const ANSWERED: &str = "run.started INVOKE(a,1) agent.invoke.started 0'hi' stretch(0+2) agent.invoke.done done(2)";

/// Returns a conversation of the channel `rooms`, or of another one: `CHANNEL/ID`.
pub(crate) fn place(id: &str) -> ConversationRef {
    let (channel, id) = id.split_once('/').unwrap_or(("rooms", id));
    ConversationRef::without_parent(channel, "main", id).expect("a reference")
}

impl Script {
    pub(crate) fn deliver(&mut self, words: &[&str]) {
        match words {
            ["hears", message] => self.hear(message, "lobby"),
            ["hears", message, room] => self.hear(message, room),
            ["delivery", outcome, rest @ ..] => {
                let order = self.sending.last().expect("an order").clone();
                let outcome = outcome_of(outcome, rest.first().copied(), &order);
                let DeliveryOrder { delivery_id, part, attempt, .. } = DeliveryOrder::clone(&order);
                self.give(Input::Delivery(DeliveryReport { delivery_id, part, attempt, outcome }));
            }
            ["receipt", number] => {
                let number: usize = number.parse().expect("a number");
                let order = self.sending.get(number - 1).expect("an order").clone();
                let outcome = outcome_of("sent", None, &order);
                let DeliveryOrder { delivery_id, part, attempt, .. } = DeliveryOrder::clone(&order);
                self.give(Input::Delivery(DeliveryReport { delivery_id, part, attempt, outcome }));
            }
            ["operator", decision] => {
                let delivery_id = self.last_requested();
                self.ask(ControlRequest::SettleDelivery { delivery_id, again: *decision == "retry" });
            }
            other => panic!("no such step: {other:?}"),
        }
    }

    fn hear(&mut self, message: &str, room: &str) {
        self.submit(heard(message, room, None));
    }

    pub(crate) fn last_requested(&self) -> DeliveryId {
        let requested = self.log.iter().rev().find_map(|(_, entry)| {
            let Fact::Delivery(DeliveryFact::Requested(requested)) = &entry.fact else { return None };
            Some(requested.delivery_id.clone())
        });
        requested.expect("a delivery was requested")
    }
}

/// Returns the input that a message of a conversation, or a task, leads to.
pub(crate) fn heard(message: &str, room: &str, task: Option<TaskOrigin>) -> Request {
    let message_id = MessageId::parse(message).expect("a name");
    let origin = InputOrigin {
        conversation: place(room),
        message_id: message_id.clone(),
        sender: Sender { id: "ann".to_owned(), name: None, is_bot: false },
        platform_time: None,
        text_limit: TextLimit { max: 64, unit: TextUnit::Utf16 },
        debounce_ms: None,
        buttons: None,
        decision: None,
        task,
    };
    Request {
        run_id: RunId::derive(&key(), &user(), &message_id),
        message_id,
        request_id: None,
        user: user(),
        agent_id: None,
        message: Message { role: Role::User, content: Content::Text(format!("text of {message}")) },
        history: None,
        strategy: Strategy::Enqueue,
        replaces: None,
        metadata: None,
        origin: Some(Box::new(origin)),
        traceparent: None,
    }
}

fn outcome_of(word: &str, number: Option<&str>, order: &DeliveryOrder) -> DeliveryOutcome {
    let id = MessageId::parse(number.unwrap_or("x1")).expect("a name");
    let sent = |place| DeliveryOutcome::Sent { external_id: id, place };
    match word {
        "sent" => sent(order.conversation.clone()),
        "created" => {
            let external_id = MessageId::parse("t1").expect("a name");
            DeliveryOutcome::Sent { external_id, place: place("t1") }
        }
        "elsewhere" => sent(place("elsewhere")),
        "unsent" => DeliveryOutcome::NotSent,
        "unknown" => DeliveryOutcome::Unknown { may_repeat: true },
        "unsupported" => DeliveryOutcome::NotSupported,
        "lost" => DeliveryOutcome::Unknown { may_repeat: false },
        class => {
            let class = DeliveryErrorClass::ALL.into_iter().find(|known| known.as_str() == class).expect("a class");
            let retry_after_ms = number.map(|number| number.parse().expect("a number"));
            DeliveryOutcome::Rejected { class, retry_after_ms }
        }
    }
}

/// Asserts that after each fact the session's annotation has the number of deliveries that are held or have failed.
pub(crate) fn assert_counted(log: &[(Epoch, Arc<Entry>)]) {
    let mut annotations = Annotations::new();
    let mut state = State::default();
    for (epoch, entry) in log {
        state.apply(*epoch, entry);
        let Fact::Delivery(_) = &entry.fact else { continue };
        apply_annotations(&mut annotations, &entry.fact.annotation().into_iter().collect::<Vec<_>>());
        let is_over = |phase| matches!(phase, DeliveryPhase::Held | DeliveryPhase::Failed(_));
        let undelivered = state.deliveries.open.values().filter(|delivery| is_over(delivery.phase));
        let expected = match undelivered.count() {
            0 => None,
            count => Some(Private(count.to_string())),
        };
        assert_eq!(annotations.get("undelivered"), expected.as_ref(), "after {:?}", entry.fact);
    }
}

/// Describes a fact of a delivery.
pub(crate) fn shown(fact: &DeliveryFact) -> String {
    match fact {
        DeliveryFact::Requested(requested) => format!("requested({})", requested.parts.len()),
        DeliveryFact::Attempted(attempted) => format!("attempted({},{})", attempted.part, attempted.attempt),
        DeliveryFact::Sent(sent) => format!("sent({}/{})", sent.part, sent.parts),
        DeliveryFact::Held(held) => format!("held({})", held.part),
        DeliveryFact::Failed(failed) => format!("undelivered({},{})", failed.part, failed.reason.as_str()),
        DeliveryFact::Refused(refused) => format!("unrouted({})", refused.reason.as_str()),
        DeliveryFact::Redriven(_) => "redriven".to_owned(),
    }
}

/// Covers: BD-S8, BD-Q7.
#[test]
fn answer_is_delivered_part_by_part_to_its_conversation() {
    let begun = format!("session.opened user.message admitted(a,Run) {ANSWERED}");
    let answered = "hears m1; ack; text hi; done";
    check(answered, &format!("{begun} requested(1) DELIVER(1/1,1 hi)"));
    check(&format!("{answered}; delivery sent"), &format!("{begun} requested(1) DELIVER(1/1,1 hi) sent(1/1)"));
    // A receipt that comes twice is recorded once.
    check(
        &format!("{answered}; delivery sent; delivery sent"),
        &format!("{begun} requested(1) DELIVER(1/1,1 hi) sent(1/1)"),
    );
    let long = "x".repeat(100);
    let [first, second] = [&long[..64], &long[64..]];
    let begun = format!(
        "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started 0'{long}' \
         stretch(0+100) agent.invoke.done done(100) requested(2) DELIVER(1/2,1 {first}) sent(1/2) \
         DELIVER(2/2,1 {second})"
    );
    let sent = "hears m1; ack; flood 100; done; delivery sent";
    check(&format!("{sent}; delivery sent"), &format!("{begun} sent(2/2)"));
    // A receipt is for its own part, also when it comes again while the next part is on its way.
    check(&format!("{sent}; receipt 1"), &begun);
    // An operator sends the rest again, not what the platform has.
    check(
        &format!("{sent}; delivery lost; operator retry; delivery sent"),
        &format!("{begun} held(2) redriven answered DELIVER(2/2,1 {second}) sent(2/2)"),
    );
}

/// Covers: BD-Q2.
#[test]
fn part_has_a_limited_number_of_attempts() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    ["hears m1", "ack", "text hi", "done"].into_iter().for_each(|step| world.step(step));
    for attempt in 1..=limits::DELIVERY_ATTEMPTS_MAX {
        // Waits are random, and at most five minutes.
        while world.sending.len() < attempt as usize {
            world.step("wait 10000");
        }
        world.step("delivery transient");
    }
    world.step("wait 300000");
    assert_eq!(world.sending.len(), limits::DELIVERY_ATTEMPTS_MAX as usize);
    assert_eq!(world.record.last().map(String::as_str), Some("undelivered(1,too_many_attempts)"));
}

/// A conversation may be the first to write to a session whose user has opened it, and the owner reads inputs first.
///
/// Covers: G7.
#[test]
fn log_of_a_session_names_its_user_whoever_writes_first() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    let owner = UserId::parse("zoe").expect("a name");
    world.runtime.set_user(Some(owner.clone()));
    world.step("hears m1");
    assert_eq!(world.runtime.state().user, Some(owner));
}

/// A turn of a plain client leads to no delivery, nor does one that was cancelled or said nothing.
///
/// Covers: BD-C9, BD-I6.
#[test]
fn only_answers_to_conversations_are_delivered() {
    check("say m1; ack; text hi; done", &format!("session.opened user.message admitted(a,Run) {ANSWERED}"));
    check(
        "hears m1; ack; done",
        "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started agent.invoke.done \
         done(0)",
    );
    let mut world = Script::new(OnOwnerLoss::Retry);
    "hears m1; ack; blank; done".split("; ").for_each(|step| world.step(step));
    assert_eq!(world.record.last().map(String::as_str), Some("done(5)"), "white space is nothing");
    check(
        "hears m1; ack; cancel m1; cancel-ack",
        "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started run.cancelling \
         CANCEL answered cancelled(user) DROP",
    );
    check(
        "hears m1; gone",
        "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) failed(agent_unavailable) DROP requested(1) \
         DELIVER(1/1,1 The turn failed: cannot connect)",
    );
}

/// Covers: BD-C3, BD-Q2, BD-Q3, BD-Q4, BR-08, BR-17, BR-19.
#[test]
fn refused_part_waits_or_fails_by_the_class_of_its_error() {
    let begun = format!("session.opened user.message admitted(a,Run) {ANSWERED} requested(1) DELIVER(1/1,1 hi)");
    let answered = "hears m1; ack; text hi; done";
    for (class, doubt) in [("transient", ""), ("rate_limit", ""), ("unsent", ""), ("unknown", "?")] {
        check(
            &format!("{answered}; delivery {class}; wait 1000"),
            &format!("{begun} attempted(1,2) DELIVER(1/1,2{doubt} hi)"),
        );
    }
    check(&format!("{answered}; delivery rate_limit 5000; wait 4000"), &begun);
    check(&format!("{answered}; delivery auth; wait 50000"), &begun);
    check(
        &format!("{answered}; delivery rate_limit 5000; wait 5000"),
        &format!("{begun} attempted(1,2) DELIVER(1/1,2 hi)"),
    );
    for class in ["permission", "gone", "invalid", "conflict"] {
        check(&format!("{answered}; delivery {class}"), &format!("{begun} undelivered(1,{class})"));
    }
    check(&format!("{answered}; delivery elsewhere"), &format!("{begun} undelivered(1,misplaced)"));
    check(&format!("{answered}; delivery elsewhere; delivery elsewhere"), &format!("{begun} undelivered(1,misplaced)"));
    check(&format!("{answered}; wait 86400000"), &format!("{begun} undelivered(1,too_old) WITHDRAW"));
    // An operator's decision gives it another day.
    check(
        &format!("{answered}; wait 86400000; operator retry; delivery sent"),
        &format!("{begun} undelivered(1,too_old) WITHDRAW redriven answered DELIVER(1/1,1 hi) sent(1/1)"),
    );
    // A report on an attempt that is over changes nothing; a receipt counts whenever it comes.
    check(&format!("{answered}; delivery lost; delivery gone; delivery sent"), &format!("{begun} held(1) sent(1/1)"));
}

/// An owner asks for a part again while the adapter has it, until it knows what became of it.
///
/// Covers: BR-12, BR-13: a part on its way is not tried again, and no other message carries its text.
#[test]
fn part_on_its_way_is_not_sent_again() {
    let begun = format!("session.opened user.message admitted(a,Run) {ANSWERED} requested(1) DELIVER(1/1,1 hi)");
    let answered = "hears m1; ack; text hi; done";
    check(&format!("{answered}; wait 600000; delivery sent"), &format!("{begun} sent(1/1)"));
    // The next answer to the place waits, also while an operator has to decide about the first.
    let next = format!("user.message admitted(a,Run) {} requested(1)", ANSWERED.replace("hi", "ho"));
    check(&format!("{answered}; hears m2; ack; text ho; done; wait 600000"), &format!("{begun} {next}"));
    check(
        &format!("{answered}; hears m2; ack; text ho; done; delivery unknown; wait 1000"),
        &format!("{begun} {next} attempted(1,2) DELIVER(1/1,2? hi)"),
    );
}

/// Covers: BD-Q1, BD-Q7, BD-Q8.
#[test]
fn new_owner_asks_before_it_sends_again() {
    let begun = format!("session.opened user.message admitted(a,Run) {ANSWERED} requested(1) DELIVER(1/1,1 hi)");
    let answered = "hears m1; ack; text hi; done";
    check(&format!("{answered}; crash; wait 0"), &format!("{begun} | DELIVER(1/1,1? hi)"));
    check(
        &format!("{answered}; delivery transient; wait 1000; crash; wait 0"),
        &format!("{begun} attempted(1,2) DELIVER(1/1,2 hi) | DELIVER(1/1,2? hi)"),
    );
    check(
        &format!("{answered}; crash; wait 0; delivery unknown; wait 1000"),
        &format!("{begun} | DELIVER(1/1,1? hi) attempted(1,2) DELIVER(1/1,2? hi)"),
    );
    // The former owner was lost before it requested the delivery.
    check(
        "hears m1; ack; text hi; hold; done; crash; ack; text ho; done",
        "session.opened user.message admitted(a,Run) run.started INVOKE(a,1) agent.invoke.started 0'hi' stretch(0+2) \
         agent.invoke.done done(2) requested(1) | DELIVER(1/1,1? hi)",
    );
}

/// Covers: BD-Q4, BR-21.
#[test]
fn places_do_not_wait_for_each_other() {
    let said = |text: &str| format!("user.message admitted(a,Run) {}", ANSWERED.replace("hi", text));
    check(
        "hears m1 lobby; ack; text hi; done; delivery rate_limit 120000; hears m2 attic; ack; text ho; done; \
         delivery sent; wait 119999; wait 1",
        &format!(
            "session.opened {} requested(1) DELIVER(1/1,1 hi) {} requested(1) DELIVER(1/1,1 ho) sent(1/1) attempted(1,2) \
             DELIVER(1/1,2 hi)",
            said("hi"),
            said("ho"),
        ),
    );
    check(
        "hears m1 lobby; ack; text hi; done; hears m2 lobby; ack; text ho; done; hears m3 attic; ack; text ha; done",
        &format!(
            "session.opened user.message admitted(a,Run) {ANSWERED} requested(1) DELIVER(1/1,1 hi) user.message \
             admitted(a,Run) {} requested(1) user.message admitted(a,Run) {} requested(1) DELIVER(1/1,1 ha)",
            ANSWERED.replace("hi", "ho"),
            ANSWERED.replace("hi", "ha"),
        ),
    );
}

/// Covers: BD-C4: what was dropped is not sent by another way.
#[test]
fn operator_decides_on_a_held_delivery() {
    let begun =
        format!("session.opened user.message admitted(a,Run) {ANSWERED} requested(1) DELIVER(1/1,1 hi) held(1)");
    let held = "hears m1; ack; text hi; done; delivery lost";
    check(&format!("{held}; operator retry"), &format!("{begun} redriven answered DELIVER(1/1,1 hi)"));
    check(&format!("{held}; operator drop"), &format!("{begun} undelivered(1,dropped) answered"));
    check(
        &format!("{held}; operator drop; operator retry"),
        &format!("{begun} undelivered(1,dropped) answered not_found answered"),
    );
    // A delivery on its way may be dropped, and is not sent then.
    check(
        &format!("{}; operator drop", held.replace("; delivery lost", "")),
        &format!("{} undelivered(1,dropped) WITHDRAW answered", begun.replace(" held(1)", "")),
    );
    check(
        &format!("{}; operator retry", held.replace("; delivery lost", "")),
        &format!("{} not_found answered", begun.replace(" held(1)", "")),
    );
}

/// Failed deliveries beyond the number that is kept are forgotten, oldest first, and no longer counted; `check` compares
/// the count with the state after each fact.
///
/// Covers: BD-Q6.
#[test]
fn oldest_failed_deliveries_are_forgotten() {
    let count = limits::DELIVERIES_FAILED_KEPT_MAX + 2;
    let failing = |n: usize| format!("hears m{n}; ack; text hi; done; delivery gone; ");
    let script: String = (0..count).map(failing).collect();
    let begun = format!("user.message admitted(a,Run) {ANSWERED} requested(1) DELIVER(1/1,1 hi) undelivered(1,gone) ");
    check(&script, &format!("session.opened {}", begun.repeat(count)));
    check(
        &format!("{script}operator retry; delivery sent; hears mx; ack; text hi; done; delivery lost; delivery sent"),
        &format!(
            "session.opened {}redriven answered DELIVER(1/1,1 hi) sent(1/1) {}held(1) sent(1/1)",
            begun.repeat(count),
            begun.replace("undelivered(1,gone) ", ""),
        ),
    );
}

/// Nothing is sent to a place that has refused a delivery for good, until somebody writes there.
///
/// Covers: BR-18.
#[test]
fn place_that_refuses_for_good_gets_no_further_delivery() {
    for class in ["gone", "permission"] {
        let mut world = Script::new(OnOwnerLoss::Retry);
        "hears m1; hears m2; hears m3; ack; text one; done; ack; text two; done"
            .split("; ")
            .for_each(|step| world.step(step));
        world.record.clear();
        world.step(&format!("delivery {class}"));
        // The second delivery waited for the first; the third is requested later.
        assert_eq!(world.record, [&format!("undelivered(1,{class})"), "undelivered(1,suppressed)"]);
        world.record.clear();
        "crash; ack; text three; done; hears m4; ack; text four; done".split("; ").for_each(|step| world.step(step));
        let deliveries = world.record.iter().filter(|word| word.contains("deliver") || word.contains("DELIVER"));
        assert_eq!(deliveries.collect::<Vec<_>>(), ["undelivered(1,suppressed)", "DELIVER(1/1,1 four)"]);
        let rebuilt = State::from_facts(world.log.iter().map(|(epoch, entry)| (*epoch, &**entry)));
        assert_eq!(rebuilt, *world.runtime.state());
        assert_counted(&world.log);
    }
}

/// Covers: BR-18.
#[test]
fn operator_and_late_receipt_lift_the_suppression() {
    let refused = "hears m1; hears m2; ack; text one; done; delivery gone; ack; text two; done";
    let after = |steps: &str| {
        let mut world = Script::new(OnOwnerLoss::Retry);
        refused.split("; ").for_each(|step| world.step(step));
        assert_eq!(world.runtime.state().deliveries.suppressed.len(), 1);
        world.record.clear();
        steps.split("; ").for_each(|step| world.step(step));
        assert!(world.runtime.state().deliveries.suppressed.is_empty(), "{steps}");
        world.record
    };
    assert_eq!(after("operator retry"), ["redriven", "answered", "DELIVER(1/1,1 two)"]);
    assert_eq!(after("delivery sent"), ["sent(1/1)"], "the platform had the first one after all");
}

/// Other classes of errors, and other places, suppress nothing.
///
/// Covers: BR-18.
#[test]
fn only_a_refused_place_is_suppressed() {
    for class in ["invalid", "conflict", "elsewhere"] {
        let mut world = Script::new(OnOwnerLoss::Retry);
        let steps = format!("hears m1; hears m2; ack; text one; done; delivery {class}; ack; text two; done");
        steps.split("; ").for_each(|step| world.step(step));
        assert_eq!(world.record.last().map(String::as_str), Some("DELIVER(1/1,1 two)"), "{class}");
    }
    let mut world = Script::new(OnOwnerLoss::Retry);
    let steps = "hears m1; hears m2 attic; ack; text one; done; delivery gone; ack; text two; done";
    steps.split("; ").for_each(|step| world.step(step));
    assert_eq!(world.record.last().map(String::as_str), Some("DELIVER(1/1,1 two)"));
}

/// A node of an earlier release could not read the reason.
#[test]
fn nothing_is_suppressed_while_a_node_does_not_know_the_reason() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    world.runtime.set_fact_level(3);
    let steps = "hears m1; hears m2; ack; text one; done; delivery gone; ack; text two; done";
    steps.split("; ").for_each(|step| world.step(step));
    assert_eq!(world.record.last().map(String::as_str), Some("DELIVER(1/1,1 two)"));
}

/// Covers: BR-18.
#[test]
fn oldest_suppressed_place_is_forgotten() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    for number in 0..=limits::SUPPRESSED_PLACES_MAX {
        let steps = format!("hears m{number} place{number}; ack; text hi; done; delivery gone");
        steps.split("; ").for_each(|step| world.step(step));
    }
    let places = &world.runtime.state().deliveries.suppressed;
    assert_eq!(places.len(), limits::SUPPRESSED_PLACES_MAX);
    assert_eq!(places.first(), Some(&place("place1")));
}

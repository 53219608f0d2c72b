//! Turns that gather messages. Script steps: `writes MESSAGE [by SENDER] [in PLACE]` submits what somebody wrote in a
//! conversation whose channel has a debounce of 1 s; a name that begins with a comma is a command. `shows MESSAGE` has a
//! picture besides its text.
use crate::delivery::heard;
use crate::script::{Script, check};
use serde_json::{Value, json};
use turnway_core::id::MessageId;
use turnway_core::limits;
use turnway_core::protocol::agent::OnOwnerLoss;
use turnway_core::protocol::delivery::{InputOrigin, Sender, TextLimit};
use turnway_core::protocol::entry::{DeliveryFact, Fact, RunFact};
use turnway_core::protocol::input::{Content, Input as Request, Message, Role};
use turnway_core::session::State;

const BEGUN: &str = "session.opened user.message admitted(a,Run)";
const NEXT: &str = "user.message admitted(a,Queued,1)";
const STARTED: &str = "run.started INVOKE(a,1)";

impl Script {
    pub(crate) fn write(&mut self, words: &[&str]) {
        let (sender, room) = match words {
            [_, _] => ("ann", "lobby"),
            [_, _, "by", sender] => (*sender, "lobby"),
            [_, _, "in", room] => ("ann", *room),
            other => panic!("no such step: {other:?}"),
        };
        let text = words[1].to_owned();
        let content = match words[0] {
            "shows" => Content::Parts(vec![json!({"type": "text", "text": text}), picture()]),
            _ => Content::Text(text),
        };
        self.submit(written(words[1], sender, room, content));
    }
}

fn picture() -> Value {
    json!({"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}})
}

fn written(message: &str, sender: &str, room: &str, content: Content) -> Request {
    let heard = heard(message, room, None);
    let origin = heard.origin.as_deref().expect("an origin");
    let origin = InputOrigin {
        sender: Sender { id: sender.to_owned(), name: None, is_bot: false },
        text_limit: TextLimit::default(),
        debounce_ms: Some(1_000),
        ..origin.clone()
    };
    Request { message: Message { role: Role::User, content }, origin: Some(Box::new(origin)), ..heard }
}

/// Runs a script; asserts that the log gives the state.
fn world(script: &str) -> Script {
    let mut world = Script::new(OnOwnerLoss::Retry);
    script.split("; ").for_each(|step| world.step(step));
    let rebuilt = State::from_facts(world.log.iter().map(|(epoch, entry)| (*epoch, &**entry)));
    assert_eq!(rebuilt, *world.runtime.state(), "{script}");
    world
}

/// Asserts the prompts that a script leads to: the text, and the message that it answers.
fn check_prompts(script: &str, expected: &[(&str, &str)]) {
    let prompts = world(script).prompts;
    let shown = prompts.iter().map(|(content, answered)| {
        let Content::Text(text) = content else { panic!("{content:?}") };
        (text.as_str(), answered.as_ref().map_or("", MessageId::as_str))
    });
    assert_eq!(shown.collect::<Vec<_>>(), expected, "{script}");
}

/// Returns the message that the first delivery replies to.
fn answered_message(world: &Script) -> Option<MessageId> {
    let requested = world.log.iter().find_map(|(_, entry)| {
        if let Fact::Delivery(DeliveryFact::Requested(requested)) = &entry.fact { Some(requested) } else { None }
    });
    requested.and_then(|requested| requested.reply_to.clone())
}

/// The answer replies to the last message, and the others end with it, without a delivery.
///
/// Covers: LN-TP9, LN-TP10, BD-M8.
#[test]
fn messages_in_quick_succession_become_one_turn() {
    check(
        "writes one; wait 900; writes two; wait 999; wait 1; ack; text hi; done; delivery sent",
        &format!(
            "{BEGUN} {NEXT} turn.gathered {STARTED} agent.invoke.started 0'hi' stretch(0+2) agent.invoke.done done(2) \
             requested(1) done(steered) DELIVER(1/1,1 hi) sent(1/1)"
        ),
    );
    check_prompts("writes one; writes two; writes three; wait 1000", &[("one\ntwo\nthree", "three")]);
    let world = world("writes one; writes two; wait 1000; ack; text hi; done");
    assert_eq!(answered_message(&world), MessageId::parse("two").ok());
    let state = world.runtime.state();
    assert!(state.runs.is_empty() && state.deliveries.gathered.is_empty() && state.deliveries.origins.is_empty());
}

/// Covers: BD-M8.
#[test]
fn turn_starts_five_windows_after_its_first_message() {
    let mut script = "writes m0".to_owned();
    (1..=8).for_each(|number| script.push_str(&format!("; wait 700; writes m{number}")));
    // The eighth message comes 5.6 s after the first.
    check_prompts(&script, &[("m0\nm1\nm2\nm3\nm4\nm5\nm6\nm7", "m7")]);
}

/// Covers: BD-M8.
#[test]
fn commands_and_pictures_start_at_once() {
    check_prompts("writes ,help", &[(",help", ",help")]);
    check_prompts("writes one; writes ,help; ack; done", &[("one", "one"), (",help", ",help")]);
    check_prompts("writes ,-); wait 999", &[]);
    let prompts = world("writes one; writes two; shows three; writes four").prompts;
    let text = json!({"type": "text", "text": "one\ntwo\nthree"});
    assert_eq!(prompts, [(Content::Parts(vec![text, picture()]), MessageId::parse("three").ok())]);
    assert_eq!(world("shows one; writes two; wait 1000").prompts.len(), 1, "the second message is the next turn");
}

/// Covers: LN-TP9, BD-M8.
#[test]
fn only_messages_of_one_person_in_one_place_are_gathered() {
    check_prompts("writes one; writes two by bob; ack; done; wait 1000", &[("one", "one"), ("two", "two")]);
    check_prompts("writes one; writes two in attic; ack; done; wait 1000", &[("one", "one"), ("two", "two")]);
    check_prompts("writes one; say two; ack; done", &[("one", "one"), ("text of two", "")]);
    // Messages that waited for a turn are taken along when it ends.
    check_prompts(
        "say zero; ack; writes one; wait 3000; writes two; wait 1000; done",
        &[("text of zero", ""), ("one\ntwo", "two")],
    );
}

/// Covers: LN-TP9.
#[test]
fn messages_without_a_debounce_start_at_once() {
    check_prompts("hears one; hears two; ack; done", &[("text of one", "one"), ("text of two", "two")]);
    let idle = world("hears one");
    assert!(idle.runtime.state().deliveries.gathered.is_empty());
}

/// A new owner waits as long as the old one would have, and every attempt has the same prompt.
///
/// Covers: BD-C5, BD-M8.
#[test]
fn gathered_messages_survive_the_loss_of_their_owner() {
    check_prompts("writes one; wait 600; crash; wait 399; writes two; wait 999", &[]);
    check_prompts("writes one; wait 600; writes two; crash; wait 999; wait 1", &[("one\ntwo", "two")]);
    // The old owner had not recorded the second message, and the wait was over before there was a new owner.
    check_prompts("writes one; crash 5000; writes two; wait 100", &[("one\ntwo", "two")]);
    check_prompts("writes one; crash 5000; wait 100; writes two", &[("one", "one")]);
    let script = "writes one; writes two; wait 1000; ack; crash; ack; text hi; done; delivery sent";
    check_prompts(script, &[("one\ntwo", "two"), ("one\ntwo", "two")]);
    check(
        script,
        &format!(
            "{BEGUN} {NEXT} turn.gathered {STARTED} agent.invoke.started | run.restarted INVOKE(a,2) agent.invoke.started \
             0'hi' stretch(0+2) agent.invoke.done done(2) requested(1) done(steered) DELIVER(1/1,1 hi) sent(1/1)"
        ),
    );
    // The owner was lost between the end of the turn and the end of its second message.
    let mut lost = world("writes one; writes two; wait 1000; ack; text hi");
    lost.durable = false;
    lost.step("done");
    let end = lost.log.iter().position(|(_, entry)| matches!(entry.fact, Fact::Run(RunFact::Done { .. })));
    lost.log.truncate(end.expect("the end") + 1);
    (lost.durable, lost.record) = (true, Vec::new());
    lost.step("crash");
    // Its input is still in the inbox.
    lost.step("writes two");
    assert_eq!(lost.record, ["|", "requested(1)", "done(steered)", "DELIVER(1/1,1 hi)"]);
    let state = lost.runtime.state();
    assert!(state.runs.is_empty() && state.deliveries.gathered.is_empty());
}

/// A gathered message is cancelled with its turn; one that was cancelled by itself is in no further attempt.
#[test]
fn cancelled_messages_are_not_asked_again() {
    check(
        "writes one; writes two; wait 1000; ack; cancel; cancel-ack",
        &format!(
            "{BEGUN} {NEXT} turn.gathered {STARTED} agent.invoke.started run.cancelling CANCEL answered \
             cancelled(user) DROP done(steered)"
        ),
    );
    check_prompts(
        "writes one; writes two; writes three; wait 1000; ack; cancel two; crash",
        &[("one\ntwo\nthree", "three"), ("one\nthree", "three")],
    );
    check_prompts("writes one; writes two; cancel two; wait 1000", &[("one", "one")]);
}

/// Deleted messages are cancelled: the answer replies to the last one that is left.
///
/// Covers: BD-M8.
#[test]
fn answer_replies_to_the_last_message_that_is_left() {
    let deletions: [(&[&str], &str); 6] = [
        (&["three"], "two"),
        (&["two"], "three"),
        (&["three", "two"], "one"),
        (&["two", "three"], "one"),
        (&[], "three"),
        // An owner that takes the turn over knows it from the log.
        (&["three", "crash", "ack", "two"], "one"),
    ];
    for (deleted, expected) in deletions {
        let mut script = "writes one; writes two; writes three; wait 1000; ack".to_owned();
        for step in deleted {
            let verb = if ["crash", "ack"].contains(step) { "" } else { "cancel " };
            script.push_str(&format!("; {verb}{step}"));
        }
        let world = world(&format!("{script}; text hi; done"));
        assert_eq!(answered_message(&world), MessageId::parse(expected).ok(), "{script}");
    }
}

/// The limit keeps the prompt as small as one message may be.
#[test]
fn messages_beyond_the_byte_limit_are_the_next_turn() {
    let mut world = Script::new(OnOwnerLoss::Retry);
    let half = usize::try_from(limits::GATHERED_BYTES_MAX / 2).expect("a size") - 1024;
    for message in ["one", "two", "three"] {
        world.submit(written(message, "ann", "lobby", Content::Text("x".repeat(half))));
    }
    let lengths: Vec<usize> = world.prompts.iter().map(|(content, _)| content.plain_text().len()).collect();
    assert_eq!(lengths, [2 * half + 1], "the third message closes the turn at once");
}

/// Covers: LN-TP10.
#[test]
fn joined_contents_keep_every_text_and_part() {
    let text = |text: &str| Content::Text(text.to_owned());
    let part = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(Content::joined(&[text("a"), text("b")]), text("a\nb"));
    assert_eq!(Content::joined(&[text("a"), Content::Parts(vec![part("b"), part("c")])]), text("a\nbc"));
    let mixed = [text("a"), Content::Parts(vec![part("b"), picture(), part("c")]), text("d")];
    let expected = vec![part("a\nb"), picture(), part("c"), part("d")];
    assert_eq!(Content::joined(&mixed), Content::Parts(expected));
    assert_eq!(Content::joined(&[Content::Parts(vec![picture()])]), Content::Parts(vec![picture()]));
}

//! Tests of `forward`: events are sent again until the gateway has accepted or finally refused each, in the order of
//! their conversation.
use super::*;
use crate::adapter::event::PlatformEventKind;

/// Covers: BR-26.
#[test]
fn event_is_settled_only_by_the_gateways_answer() {
    let mut rig = Rig::new();
    let (number, lines) = rig.forward("lobby", "m1");
    assert_eq!(lines, ["> inbound m1"]);
    let event = rig.sent.last().expect("an event").clone();
    assert_eq!(event["conversation"], place("lobby"));
    assert_eq!(event["message"], json!({ "message_id": "m1", "content": "text of m1" }));
    assert_eq!((&event["event"], &event["sender"]), (&json!("message"), &json!({ "id": "ann" })));
    assert_eq!(rig.accept("m1"), [format!("settled {number}")]);
    assert_eq!(rig.settled[&number], Disposition::Run);
    assert_eq!(rig.accept("m1"), Vec::<String>::new(), "a second answer means nothing");
}

/// Covers: BR-26.
#[test]
fn event_without_an_answer_is_sent_again() {
    let mut rig = Rig::new();
    let (number, _) = rig.forward("lobby", "m1");
    let first = rig.sent.last().expect("an event").clone();
    let lines = rig.reconnect();
    assert_eq!(lines.last().expect("lines"), "> inbound m1", "{lines:?}");
    assert_eq!(rig.sent.last(), Some(&first), "the same bytes");
    // The node answers pings and has lost the event.
    let wait = limits::ANSWER_TIMEOUT + limits::INBOUND_RETRY_BASE;
    assert_eq!(rig.wait_alive(wait), ["> inbound m1"]);
    assert_eq!(rig.accept("m1"), [format!("settled {number}")]);
}

/// Covers: BR-26.
#[test]
fn retryable_refusal_is_repeated_after_the_named_time() {
    let mut rig = Rig::new();
    let (number, _) = rig.forward("lobby", "m1");
    assert_eq!(rig.refuse("m1", true), Vec::<String>::new());
    assert_eq!(rig.wait(limits::INBOUND_RETRY_BASE), ["> inbound m1"]);
    let answer = json!({ "type": "error", "code": "rate_limited", "retryable": true, "retry_after_ms": 5000 });
    rig.answer("inbound m1", answer);
    assert_eq!(rig.wait_alive(Duration::from_secs(5)), Vec::<String>::new());
    assert_eq!(rig.wait_alive(Duration::from_secs(1)), ["> inbound m1"]);
    assert_eq!(rig.refuse("m1", false), [format!("settled {number}")]);
    assert_eq!(rig.settled[&number], Disposition::Refused);
}

/// Covers: BR-26.
#[test]
fn delay_of_repeats_is_bounded() {
    let mut rig = Rig::new();
    rig.forward("lobby", "m1");
    for n in 0..40 {
        rig.refuse("m1", true);
        let lines = rig.wait_alive(limits::INBOUND_RETRY_MAX);
        assert_eq!(lines, ["> inbound m1"], "{n}");
    }
}

#[test]
fn events_of_a_conversation_wait_for_each_other() {
    let mut rig = Rig::new();
    assert_eq!(rig.forward("lobby", "m1").1, ["> inbound m1"]);
    assert_eq!(rig.forward("lobby", "m2").1, Vec::<String>::new());
    assert_eq!(rig.forward("attic", "m3").1, ["> inbound m3"]);
    rig.refuse("m1", true);
    assert_eq!(rig.wait(limits::INBOUND_RETRY_BASE), ["> inbound m1"], "not m2, which came later");
    let lines = rig.accept("m1");
    assert_eq!(lines[1..], ["> inbound m2"], "{lines:?}");
    let lines = rig.reconnect();
    assert_eq!(lines[lines.len() - 2..], ["> inbound m2", "> inbound m3"], "{lines:?}");
}

#[test]
fn adapter_on_standby_brings_nothing() {
    let mut rig = Rig::new();
    assert_eq!(rig.stand_by(), ["standby"]);
    let (number, lines) = rig.forward("lobby", "m1");
    assert_eq!(lines, Vec::<String>::new());
    assert_eq!(rig.lease(), ["active", "> inbound m1"]);
    rig.stand_by();
    assert_eq!(rig.accept("m1"), [format!("settled {number}")], "a late answer counts");
}

#[test]
fn events_at_a_time_are_limited_and_room_comes_back() {
    let mut rig = Rig::new();
    for n in 0..=limits::INBOUND_AT_A_TIME {
        rig.forward(&format!("room {n}"), &format!("m{n}"));
    }
    let last = format!("m{}", limits::INBOUND_AT_A_TIME);
    assert!(!rig.sent.iter().any(|message| message["message"]["message_id"] == last.as_str()));
    assert_eq!(rig.accept("m3")[1..], [format!("> inbound {last}")]);
}

/// The gateway would close the connection with such a message, for good.
#[test]
fn event_beyond_the_gateways_limit_is_refused_here() {
    let mut rig = Rig::new();
    let huge = PlatformEvent::message("lobby", "m1", "ann", "x".repeat(limits::MESSAGE_BYTES_MAX));
    let number = rig.machine.forward(rig.moment(), &huge).expect("taken");
    assert_eq!(rig.drain(), [format!("settled {number}")]);
    assert_eq!(rig.settled[&number], Disposition::Refused);
    assert_eq!(rig.forward("lobby", "m2").1, ["> inbound m2"]);
}

#[test]
fn event_with_an_invalid_id_is_an_error() {
    let mut rig = Rig::new();
    let bad = [("", "m", "ann"), (" lobby", "m", "ann"), ("lobby", "a\nb", "ann"), ("lobby", "m", "")];
    for (room, message, sender) in bad {
        let event = PlatformEvent::message(room, message, sender, "text");
        let found = rig.machine.forward(rig.moment(), &event);
        assert!(matches!(found, Err(ClientError::BadName { .. })), "{event:?}");
    }
}

/// A person chooses the name; ten refused messages in a minute would end the adapter.
#[test]
fn name_of_a_sender_becomes_one_line() {
    let mut rig = Rig::new();
    let named = PlatformEvent { sender_name: Some("Ann\nof the attic".to_owned()), ..event("lobby", "m1") };
    rig.machine.forward(rig.moment(), &named).expect("taken");
    rig.drain();
    assert_eq!(rig.sent.last().expect("an event")["sender"]["name"], "Annof the attic");
}

#[test]
fn each_kind_of_event_has_its_fields() {
    let edit = PlatformEventKind::Edit { content: json!("new"), edit_id: Some("e1".to_owned()) };
    let edited = json!({ "message_id": "m", "content": "new", "edit_id": "e1" });
    let press_id = "i1".to_owned();
    let button_id = "yes".to_owned();
    let decision = PlatformEventKind::Decision { press_id, button_id, delivery_id: None };
    let decided = json!({ "press_id": "i1", "button_id": "yes" });
    let moved = PlatformEventKind::Moved { to: "attic".to_owned() };
    let plain = json!({ "message_id": "m" });
    let cases = [
        (edit, "edit", "message", edited),
        (PlatformEventKind::Delete, "delete", "message", plain.clone()),
        (PlatformEventKind::Reaction, "reaction", "message", plain.clone()),
        (decision, "decision", "decision", decided),
        (PlatformEventKind::ConversationClosed, "conversation_closed", "message", plain),
        (moved, "moved", "moved_to", json!("attic")),
    ];
    for (kind, name, field, value) in cases {
        let mut rig = Rig::new();
        let event = PlatformEvent { kind, is_bot: Some(false), platform_time: Some(7), ..event("lobby", "m") };
        rig.machine.forward(rig.moment(), &event).expect("taken");
        rig.drain();
        let sent = rig.sent.last().expect("an event");
        assert_eq!((&sent["event"], &sent[field]), (&json!(name), &value), "{sent}");
        assert_eq!((&sent["sender"]["is_bot"], &sent["platform_time"]), (&json!(false), &json!(7)), "{sent}");
    }
}

//! Tests of capabilities that change, and of other requests.
use super::*;
use crate::adapter::capabilities::CapabilityLevel;

impl Rig {
    fn declare(&mut self, room: Option<&str>, max: u32) -> (u64, Vec<String>) {
        let capabilities = ChannelCapabilities::default().text(max, LengthUnit::Utf16);
        let request = self.machine.declare(self.moment(), room.map(str::to_owned), capabilities).expect("taken");
        (request, self.drain())
    }

    fn set(&mut self, scope: &str) -> Vec<String> {
        self.answer(&format!("capabilities {scope}"), json!({ "type": "capabilities_set" }))
    }
}

/// Covers: BR-36.
#[test]
fn capabilities_change_and_are_declared_again() {
    let mut rig = Rig::new();
    let (account, lines) = rig.declare(None, 4096);
    assert_eq!(lines, ["> capabilities account", "standby"], "events wait for the answer");
    assert_eq!(rig.set("account"), [format!("answered {account}"), "active".to_owned()]);
    let (room, _) = rig.declare(Some("sms"), 140);
    assert_eq!(rig.sent.last().expect("a message")["conversation"], place("sms"));
    assert_eq!(rig.set("sms"), [format!("answered {room}"), "active".to_owned()]);
    rig.lose();
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.activate(), ["> hello", "> capabilities sms", "standby"]);
    let hello = &rig.sent[rig.sent.len() - 2];
    assert_eq!(hello["capabilities"], json!({ "text": { "level": 2, "max": 4096, "unit": "utf16" } }));
    assert_eq!(rig.set("sms"), ["active"], "a message keeps the limits that were declared when it was brought");
}

/// Covers: BR-36.
#[test]
fn withdrawn_capabilities_are_not_declared_again() {
    let mut rig = Rig::new();
    rig.declare(Some("sms"), 140);
    rig.set("sms");
    let none = ChannelCapabilities::default();
    rig.machine.declare(rig.moment(), Some("sms".to_owned()), none).expect("taken");
    rig.drain();
    assert_eq!(rig.sent.last().expect("a message")["capabilities"], json!({}));
    rig.set("sms");
    let lines = rig.reconnect();
    assert_eq!(lines.last().expect("lines"), "active", "{lines:?}");
}

#[test]
fn change_without_a_connection_is_declared_by_the_next_one() {
    let mut rig = Rig::new();
    rig.lose();
    let (request, lines) = rig.declare(None, 100);
    assert_eq!(lines, [format!("answered {request}")]);
    rig.wait(Duration::from_secs(1));
    rig.machine.handle_open(rig.moment());
    rig.drain();
    assert_eq!(rig.sent.last().expect("hello")["capabilities"]["text"]["max"], 100);
    // `hello` is on its way, so the change needs a message of its own.
    let (request, lines) = rig.declare(None, 200);
    assert_eq!(lines, Vec::<String>::new());
    assert_eq!(rig.hear(json!({ "type": "welcome" })), ["> capabilities account", "standby"]);
    assert_eq!(rig.set("account"), [format!("answered {request}")]);
}

#[test]
fn changes_of_one_scope_wait_for_each_other() {
    let mut rig = Rig::new();
    let (first, _) = rig.declare(Some("sms"), 140);
    let (second, lines) = rig.declare(Some("sms"), 150);
    assert_eq!(lines, Vec::<String>::new());
    assert_eq!(rig.set("sms"), ["> capabilities sms"]);
    assert_eq!(rig.sent.last().expect("a message")["capabilities"]["text"]["max"], 150);
    let lines = rig.set("sms");
    assert_eq!(lines, [format!("answered {first}"), format!("answered {second}"), "active".to_owned()]);
}

#[test]
fn lost_connection_answers_open_declarations() {
    let mut rig = Rig::new();
    let (request, _) = rig.declare(Some("sms"), 140);
    assert!(rig.lose().contains(&format!("answered {request}")));
    assert_eq!(rig.answered[&request], Ok(Value::Null));
    rig.wait(Duration::from_secs(1));
    assert!(rig.connect().contains(&"> capabilities sms".to_owned()));
}

#[test]
fn conversations_with_own_capabilities_are_limited() {
    let mut rig = Rig::new();
    rig.lose();
    for n in 0..=limits::OWN_CAPABILITIES_MAX {
        rig.declare(Some(&format!("room {n}")), 100);
    }
    rig.wait(Duration::from_secs(1));
    let mut declared: Vec<String> = rig.connect().into_iter().filter(|line| line.starts_with("> cap")).collect();
    assert_eq!(declared.len(), limits::DECLARATIONS_AT_A_TIME);
    for n in 1..=limits::OWN_CAPABILITIES_MAX {
        let lines = rig.set(&format!("room {n}"));
        declared.extend(lines.into_iter().filter(|line| line.starts_with("> cap")));
    }
    assert_eq!(declared.len(), limits::OWN_CAPABILITIES_MAX);
    assert!(!declared.contains(&"> capabilities room 0".to_owned()), "the oldest is forgotten");
}

#[test]
fn declarations_that_wait_are_limited() {
    let mut rig = Rig::new();
    for n in 0..limits::DECLARATIONS_MAX {
        rig.declare(Some(&format!("room {n}")), 100);
    }
    let more = ChannelCapabilities::default();
    let found = rig.machine.declare(rig.moment(), None, more.clone());
    assert_eq!(found, Err(ClientError::TooMany { what: "declarations", max: limits::DECLARATIONS_MAX }));
    rig.set("room 0");
    assert!(rig.machine.declare(rig.moment(), None, more).is_ok());
}

#[test]
fn capabilities_that_do_not_fit_into_hello_are_refused() {
    let mut rig = Rig::new();
    let level = CapabilityLevel::Full;
    let add = |all: ChannelCapabilities, n: usize| all.limited(&format!("{n:0>64}"), level, 1000, LengthUnit::Chars);
    let many = (0..limits::CAPABILITIES_MAX).fold(ChannelCapabilities::default(), add);
    let found = rig.machine.declare(rig.moment(), None, many);
    assert!(matches!(found, Err(ClientError::TooLarge { .. })), "{found:?}");
}

#[test]
fn other_request_is_sent_once_and_answered_or_lost() {
    let mut rig = Rig::new();
    let bind = json!({ "type": "bind", "session_id": "s", "conversation": place("lobby") });
    let first = rig.machine.request(rig.moment(), bind.clone()).expect("sent");
    assert_eq!(rig.drain(), ["> bind"]);
    assert_eq!(rig.answer("bind", json!({ "type": "bound" })), [format!("answered {first}")]);
    assert_eq!(rig.answered[&first].as_ref().expect("an answer")["type"], "bound");
    let second = rig.machine.request(rig.moment(), bind.clone()).expect("sent");
    rig.drain();
    rig.answer("bind", json!({ "type": "error", "code": "forbidden", "message": "no" }));
    let refused = ClientError::Refused { code: "forbidden".to_owned(), message: "no".to_owned(), retryable: false };
    assert_eq!(rig.answered[&second], Err(refused));
    let third = rig.machine.request(rig.moment(), bind.clone()).expect("sent");
    rig.drain();
    let lines = rig.reconnect();
    assert!(!lines.contains(&"> bind".to_owned()), "{lines:?}");
    assert_eq!(rig.answered[&third], Err(ClientError::ConnectionLost));
    rig.lose();
    assert_eq!(rig.machine.request(rig.moment(), bind), Err(ClientError::ConnectionLost));
}

#[test]
fn other_requests_are_limited_and_room_comes_back() {
    let mut rig = Rig::new();
    let ask = |rig: &mut Rig| rig.machine.request(rig.moment(), json!({ "type": "resolve" }));
    for _ in 0..limits::PLAIN_REQUESTS_AT_A_TIME {
        ask(&mut rig).expect("sent");
    }
    assert!(matches!(ask(&mut rig), Err(ClientError::TooMany { .. })));
    rig.drain();
    rig.answer("resolve", json!({ "type": "resolved" }));
    assert!(ask(&mut rig).is_ok());
}

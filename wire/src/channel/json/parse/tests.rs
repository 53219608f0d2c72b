//! Parsing of well-formed and malformed client messages.
use super::*;
use crate::channel::account::AccountCommand;
use crate::channel::adapter::InboundEvent;
use crate::channel::binding::BindingCommand;
use crate::channel::json::documented;
use std::sync::Arc;
use turnway_core::id::{EventId, SessionKey, TenantId};
use turnway_core::limits;
use turnway_core::protocol::entry::{Entry, Fact, InputFact};
use turnway_core::protocol::input::{Content, ControlRequest};
use turnway_core::rng::Rng;
use turnway_core::time::Millis;

const RUN: &str = "s1.abcdefghijklmnopqrstuvwxyz";

fn read(text: &str) -> ClientMessage {
    let message = parse(text).unwrap_or_else(|malformed| panic!("{text}: {malformed}"));
    if !matches!(message, ClientMessage::Unsupported { .. }) {
        documented::assert_received(text);
    }
    message
}

fn command(text: &str) -> LinkCommand {
    let ClientMessage::Command(command) = read(text) else { panic!("no command: {text}") };
    command
}

fn invoked(text: &str) -> InvokeCommand {
    let LinkCommand::Invoke(invoke) = command(text) else { panic!("no invoke: {text}") };
    *invoke
}

fn flaw(text: &str) -> MalformedReason {
    parse(text).expect_err(text).reason
}

fn session_id() -> SessionId {
    SessionId::parse("s1").expect("a name")
}

fn request_id() -> Option<RequestId> {
    RequestId::parse("r1").ok()
}

/// Covers: MP-C1, MP-C2, MP-C3, MP-C6, MP-A3, MP-A6.
#[test]
fn messages_of_the_first_protocol_form_are_parsed() {
    let hello = r#"{"type":"hello","ts":0,"user_id":"u1","api_key":"...","client_meta":{"app":"web"}}"#;
    let ClientMessage::Hello { hello, resume } = read(hello) else { panic!("no hello") };
    assert_eq!(hello.user, UserId::parse("u1").ok());
    assert_eq!(hello.credential, Some(Credential("...".to_owned())));
    assert_eq!((hello.role, hello.streams, resume.len()), (ConnectionRole::User, true, 0));

    let invoke = invoked(
        r#"{"type":"agent_invoke","ts":0,"request_id":"r1","session_id":"s1","agent_id":"agentA","message":{"role":"user","content":"hi"}}"#,
    );
    let message = Message { role: input::Role::User, content: Content::Text("hi".to_owned()) };
    assert_eq!((invoke.request_id, invoke.session), (request_id(), Some(session_id())));
    assert_eq!((invoke.agent_id, invoke.message), (AgentId::parse("agentA").ok(), message));
    assert_eq!((invoke.message_id, invoke.strategy, invoke.metadata), (None, None, None));

    let cancel = command(&format!(r#"{{"type":"cancel_run","ts":0,"run_id":"{RUN}"}}"#));
    let target = CancelTarget::Run(RunId::parse(RUN).expect("a run"));
    assert_eq!(cancel, LinkCommand::Cancel { request_id: None, target, wants_receipt: false });
}

/// Covers: MP-C4, MP-C5, MP-A6: a known but unsupported type is reported as such.
#[test]
fn types_of_later_releases_are_recognised() {
    let texts = [
        r#"{"type":"tool_result","ts":0,"run_id":"run1","tool_call_id":"tc1","ok":true,"result":{"x":1}}"#,
        r#"{"type":"approval_decision","ts":0,"run_id":"run1","approval_id":"ap1","decision":"approve"}"#,
    ];
    for text in texts {
        assert!(matches!(read(text), ClientMessage::Unsupported { request_id: None, .. }), "{text}");
    }
    for (name, done) in MESSAGE_TYPES {
        let outcome = parse(&format!(r#"{{"type":"{name}","request_id":"r1"}}"#));
        let later = ClientMessage::Unsupported { type_name: name, request_id: request_id() };
        assert_eq!(outcome == Ok(later), !done, "{name}");
        assert!(outcome.err().is_none_or(|m| m.reason != MalformedReason::UnknownType), "{name}");
    }
}

#[test]
fn session_open_close_and_unsubscribe_are_parsed() {
    let agent = |id| AgentId::parse(id).expect("a name");
    assert_eq!(
        command(r#"{"type":"session_open","session_id":"s1","agents":["a","b"],"active_agent":"b","x":1}"#),
        LinkCommand::Open {
            request_id: None,
            session: Some(session_id()),
            agents: vec![agent("a"), agent("b")],
            active: Some(agent("b")),
        }
    );
    assert_eq!(
        command(r#"{"type":"session_open","session_id":null,"conversation":{"k":1},"request_id":"r1"}"#),
        LinkCommand::Open { request_id: request_id(), session: None, agents: vec![], active: None }
    );
    assert_eq!(
        command(r#"{"type":"session_close","session_id":"s1","request_id":"r1"}"#),
        LinkCommand::Control { request_id: request_id(), session: session_id(), request: ControlRequest::Close }
    );
    assert_eq!(
        command(r#"{"type":"unsubscribe","session_id":"s1"}"#),
        LinkCommand::Unsubscribe { request_id: None, session: session_id() }
    );
}

/// A label is part of one line, so it has no control characters.
#[test]
fn session_label_is_parsed_within_its_limits() {
    let message = |label: &str| format!(r#"{{"type":"session_label","session_id":"s1","label":"{label}"}}"#);
    for label in ["blue", "", &"\u{10348}".repeat(64)] {
        let request = ControlRequest::Label { label: Private(label.to_owned()) };
        let expected = LinkCommand::Control { request_id: None, session: session_id(), request };
        assert_eq!(command(&message(label)), expected, "{label}");
    }
    for wrong in [message(&"x".repeat(65)), message(r"a\nb"), message("").replace(r#""""#, "7")] {
        assert!(parse(&wrong).is_err(), "{wrong}");
    }
}

/// Covers: BD-B1, BD-B2.
#[test]
fn bind_child_is_parsed_within_its_limits() {
    let parent = r#""parent":{"channel":"rooms","account_id":"main","conversation_id":"7"}"#;
    let bind = |more: &str| format!(r#"{{"type":"bind_child","request_id":"r1","session_id":"s1",{parent}{more}}}"#);
    let LinkCommand::BindChild(parsed) = command(&bind(r#","title":"Plan","creation_id":"c1","mirror":true"#)) else {
        panic!("a bind")
    };
    assert_eq!((parsed.parent.channel.as_str(), parsed.title.reveal(), parsed.mirror), ("rooms", "Plan", true));
    assert_eq!(parsed.creation_id.map(|id| id.to_string()).as_deref(), Some("c1"));
    let long = format!(r#","title":"{}""#, "x".repeat(4097));
    for bad in ["", r#","title":" \n""#, r#","title":7"#, &long, r#","title":"Plan","mirror":1"#] {
        assert!(parse(&bind(bad)).is_err(), "{bad}");
    }
}

/// Covers: SR-S5, SR-D1, SR-E1.
#[test]
fn send_message_is_parsed_within_its_limits() {
    let send = |more: &str| format!(r#"{{"type":"send_message","request_id":"r1","session_id":"s1"{more}}}"#);
    let LinkCommand::Send(parsed) = command(&send(r#","text":"hi","message_id":"m1""#)) else { panic!("a send") };
    assert_eq!((parsed.session.clone(), parsed.request_id.clone()), (session_id(), request_id()));
    assert_eq!((parsed.text.reveal(), parsed.message_id.is_some(), parsed.conversation), ("hi", true, None));
    let place = r#","text":"hi","conversation":{"channel":"rooms","account_id":"main","conversation_id":"7"}"#;
    let LinkCommand::Send(parsed) = command(&send(place)) else { panic!("a send") };
    assert_eq!(parsed.conversation.expect("a place").channel.as_str(), "rooms");
    let longest = "x".repeat(limits::DELIVERY_TEXT_BYTES_MAX);
    command(&send(&format!(r#","text":"{longest}""#)));
    assert_eq!(flaw(&send(&format!(r#","text":"{longest}x""#))), MalformedReason::InvalidField("text"));
    assert_eq!(flaw(&send(r#","text":" \n""#)), MalformedReason::InvalidField("text"));
    assert_eq!(flaw(&send("")), MalformedReason::MissingField("text"));
    let address =
        r#","text":"hi","conversation":{"channel":"rooms","account_id":"main","conversation_id":"channel:7"}"#;
    assert!(matches!(flaw(&send(address)), MalformedReason::InvalidField(field) if field.starts_with("conversation")));
    // The path of an HTTP request names the session; a body may repeat it.
    let body = |text: &str| delivery::parse_send_body(text, &session_id()).map(|send| send.session);
    assert_eq!(body(r#"{"text":"hi"}"#), Ok(session_id()));
    assert_eq!(body(r#"{"text":"hi","session_id":"s1"}"#), Ok(session_id()));
    assert!(body(r#"{"text":"hi","session_id":"s2"}"#).is_err());
}

#[test]
fn binding_flags_are_parsed() {
    let bind = r#"{"type":"bind","session_id":"s1","conversation":{"channel":"rooms","account_id":"main","conversation_id":"7"}"#;
    for (more, expected) in [("", None), (r#","mirror":true"#, Some(true)), (r#","mirror":false"#, Some(false))] {
        let LinkCommand::Binding { command: BindingCommand::Bind(parsed), .. } = command(&format!("{bind}{more}}}"))
        else {
            panic!("a bind")
        };
        assert_eq!(parsed.mirror, expected);
    }
    for (more, expected) in [("", false), (r#","farewell":true"#, true)] {
        let text = format!(r#"{{"type":"unbind","session_id":"s1"{more}}}"#);
        let LinkCommand::Binding { command: BindingCommand::Unbind { farewell, .. }, .. } = command(&text) else {
            panic!("an unbind")
        };
        assert_eq!(farewell, expected);
    }
}

#[test]
fn member_changes_are_parsed() {
    let request = |text: &str| {
        let LinkCommand::Control { session, request, request_id: None } = command(text) else { panic!("{text}") };
        assert_eq!(session, session_id());
        request
    };
    let agent_id = AgentId::parse("a").expect("a name");
    let body = r#""session_id":"s1","agent_id":"a""#;
    assert_eq!(
        request(&format!(r#"{{"type":"switch_agent",{body}}}"#)),
        ControlRequest::Switch { agent_id: agent_id.clone(), reason: None }
    );
    assert_eq!(
        request(&format!(r#"{{"type":"remove_agent",{body}}}"#)),
        ControlRequest::Remove { agent_id: agent_id.clone(), reason: None }
    );
    for (spec, activate) in [
        (r#""agent_id":"a""#, false),
        (r#""agent_spec":"a","active":true"#, true),
        (r#""agent_spec":{"agent_id":"a","x":1},"active":false"#, false),
    ] {
        let text = format!(r#"{{"type":"invite_agent","session_id":"s1",{spec}}}"#);
        assert_eq!(
            request(&text),
            ControlRequest::Invite { agent_id: agent_id.clone(), reason: None, activate },
            "{spec}"
        );
    }
    let with_reason = request(&format!(r#"{{"type":"remove_agent",{body},"reason":"it is late"}}"#));
    assert_eq!(with_reason, ControlRequest::Remove { agent_id, reason: Some("it is late".to_owned()) });
    let long = format!(r#"{{"type":"remove_agent",{body},"reason":"{}"}}"#, "x".repeat(1025));
    for wrong in [
        &*long,
        r#"{"type":"switch_agent","session_id":"s1","agent_spec":"a"}"#,
        r#"{"type":"invite_agent","session_id":"s1"}"#,
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

/// Covers: SR-S5, SR-K5, SR-F4.
#[test]
fn handover_decision_requires_its_id() {
    let id = "019a0000-0000-7000-8000-000000000001";
    for (word, agrees) in [("confirm", true), ("reject", false)] {
        let text =
            format!(r#"{{"type":"handover_decision","session_id":"s1","handover_id":"{id}","decision":"{word}"}}"#);
        let handover_id = id.parse().expect("a UUID");
        let request = ControlRequest::Handover { handover_id: EventId(handover_id), confirm: agrees };
        assert_eq!(command(&text), LinkCommand::Control { request_id: None, session: session_id(), request });
    }
    for wrong in [
        r#"{"type":"handover_decision","session_id":"s1","handover_id":"h1","decision":"confirm"}"#.to_owned(),
        r#"{"type":"handover_decision","session_id":"s1","decision":"confirm"}"#.to_owned(),
        format!(r#"{{"type":"handover_decision","handover_id":"{id}","decision":"confirm"}}"#),
        format!(r#"{{"type":"handover_decision","session_id":"s1","handover_id":"{id}","decision":"perhaps"}}"#),
    ] {
        assert!(parse(&wrong).is_err(), "{wrong}");
    }
}

/// Covers: LN-MP16, LN-EV3.
#[test]
fn subscription_cursor_is_parsed() {
    let body = format!(
        r#""session_id":"s1","after_seq":9,"after_epoch":9007199254740991,"runs":{{"{RUN}":{{"attempt":2,"offset":7}}}},"types":["agent.>","run.done"]"#
    );
    let cursor = TextCursor { run_id: RunId::parse(RUN).expect("a run"), attempt: 2, offset: 7 };
    let expected = SubscribeCommand {
        request_id: None,
        session: session_id(),
        after_seq: Some(Seq(9)),
        after_epoch: Some(Epoch((1 << 53) - 1)),
        runs: vec![cursor],
        types: ["agent.>", "run.done"].map(|p| Pattern::parse(p).expect("a pattern")).to_vec(),
    };
    let text = format!(r#"{{"type":"subscribe",{body}}}"#);
    assert_eq!(command(&text), LinkCommand::Subscribe(expected.clone()));
    let text = format!(r#"{{"type":"hello","resume":[{{{body}}},{{"session_id":"s1"}}]}}"#);
    let ClientMessage::Hello { resume, .. } = read(&text) else { panic!("no hello") };
    assert_eq!(resume[0], expected);
    assert_eq!((resume[1].after_seq, resume.len()), (None, 2));
}

/// Covers: SR-C1.
#[test]
fn cancel_has_two_names_and_two_targets() {
    for name in ["cancel_run", "INTERRUPT"] {
        let by_session = command(&format!(r#"{{"type":"{name}","session_id":"s1"}}"#));
        let target = CancelTarget::Session(session_id());
        assert_eq!(by_session, LinkCommand::Cancel { request_id: None, target, wants_receipt: false });
        let both = command(&format!(r#"{{"type":"{name}","session_id":"s1","run_id":"{RUN}"}}"#));
        assert!(matches!(both, LinkCommand::Cancel { target: CancelTarget::Run(_), .. }));
        assert_eq!(flaw(&format!(r#"{{"type":"{name}"}}"#)), MalformedReason::MissingField("run_id"));
    }
}

/// Covers: ST-6, ST-35, ST-37, ST-42, RX-10, LN-SR10.
#[test]
fn input_fields_are_all_parsed() {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let invoke = invoked(&format!(
        r#"{{"type":"agent_invoke","message":{{"message_id":"m1","content":[{{"type":"text","text":"@bob hi"}}]}},
            "strategy":"interrupt","metadata":{{"subtype":"MENTION","k":[1]}},"traceparent":"{trace}"}}"#
    ));
    assert_eq!(invoke.message_id, MessageId::parse("m1").ok());
    assert_eq!(invoke.agent_id, AgentId::parse("bob").ok());
    assert_eq!(invoke.message.content.plain_text(), "@bob hi");
    assert_eq!(invoke.strategy, Some(Strategy::Interrupt));
    assert_eq!(invoke.metadata.map(|m| m.0["k"][0].clone()), Some(Value::from(1)));
    assert_eq!(invoke.traceparent.as_deref(), Some(trace));
    for (name, strategy) in [
        ("steer", Strategy::Steer),
        ("enqueue", Strategy::Enqueue),
        ("rollback", Strategy::Rollback),
        ("reject", Strategy::Reject),
    ] {
        let text = format!(r#"{{"type":"agent_invoke","message":{{"content":"x"}},"strategy":"{name}"}}"#);
        assert_eq!(invoked(&text).strategy, Some(strategy));
    }
    for bad in ["", "00-x", "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a\\r\\nb"] {
        let text = format!(r#"{{"type":"agent_invoke","message":{{"content":"x"}},"traceparent":"{bad}"}}"#);
        assert_eq!(invoked(&text).traceparent, None, "{bad}");
    }
}

/// Covers: S-13, S-44, LN-SR5.
#[test]
fn invalid_field_is_named_without_its_value() {
    let say = |rest: &str| format!(r#"{{"type":"agent_invoke","request_id":"r1",{rest}}}"#);
    let on = |rest: &str| format!(r#"{{"type":"subscribe","request_id":"r1","session_id":"s1",{rest}}}"#);
    let hi = |rest: &str| format!(r#"{{"type":"hello","request_id":"r1",{rest}}}"#);
    let cases = [
        (say(r#""session_id":"canary:x","message":{"content":"x"}"#), MalformedReason::InvalidField("session_id")),
        (say(r#""session_id":7,"message":{"content":"x"}"#), MalformedReason::InvalidField("session_id")),
        (say(r#""agent_id":"canary x","message":{"content":"x"}"#), MalformedReason::InvalidField("agent_id")),
        (say(r#""message":"canary""#), MalformedReason::InvalidField("message")),
        (say(r#""message":null"#), MalformedReason::MissingField("message")),
        (say(r#""message":{"role":"user"}"#), MalformedReason::MissingField("message.content")),
        (say(r#""message":{"content":5}"#), MalformedReason::InvalidField("message.content")),
        (say(r#""message":{"content":""}"#), MalformedReason::EmptyContent),
        (say(r#""message":{"role":"system","content":"x"}"#), MalformedReason::InvalidField("message.role")),
        (
            say(r#""message":{"content":"x","message_id":"\u0007"}"#),
            MalformedReason::InvalidField("message.message_id"),
        ),
        (say(r#""message":{"content":"x"},"strategy":"canary""#), MalformedReason::InvalidField("strategy")),
        (say(r#""message":{"content":"x"},"metadata":"canary""#), MalformedReason::InvalidField("metadata")),
        (say(r#""message":{"content":"x"},"traceparent":1"#), MalformedReason::InvalidField("traceparent")),
        (on(r#""after_seq":-1"#), MalformedReason::InvalidField("after_seq")),
        (on(r#""after_seq":1.5"#), MalformedReason::InvalidField("after_seq")),
        (on(r#""after_seq":9007199254740992"#), MalformedReason::InvalidField("after_seq")),
        (on(r#""after_epoch":"1""#), MalformedReason::InvalidField("after_epoch")),
        (on(r#""runs":[]"#), MalformedReason::InvalidField("runs")),
        (on(r#""runs":{"canary":{"attempt":1,"offset":0}}"#), MalformedReason::InvalidField("runs")),
        (on(&format!(r#""runs":{{"{RUN}":{{"attempt":1}}}}"#)), MalformedReason::MissingField("runs.offset")),
        (
            on(&format!(r#""runs":{{"{RUN}":{{"attempt":4294967296,"offset":0}}}}"#)),
            MalformedReason::InvalidField("runs.attempt"),
        ),
        (on(r#""types":["a..b"]"#), MalformedReason::InvalidField("types")),
        (on(&format!(r#""types":[{}"x"]"#, r#""x","#.repeat(32))), MalformedReason::TooManyItems("types")),
        (hi(r#""role":"canary""#), MalformedReason::InvalidField("role")),
        (hi(r#""user_id":"""#), MalformedReason::InvalidField("user_id")),
        (hi(r#""user_id":"channel:rooms/main""#), MalformedReason::InvalidField("user_id")),
        (hi(r#""api_key":7"#), MalformedReason::InvalidField("api_key")),
        (hi(r#""streams":"no""#), MalformedReason::InvalidField("streams")),
        (hi(r#""resume":{}"#), MalformedReason::InvalidField("resume")),
        (hi(r#""resume":["s1"]"#), MalformedReason::InvalidField("resume")),
        (hi(&format!(r#""resume":[{}0]"#, "0,".repeat(64))), MalformedReason::TooManyItems("resume")),
        (r#"{"request_id":"r1","type":"canary"}"#.to_owned(), MalformedReason::UnknownType),
        (r#"{"request_id":"r1","type":5}"#.to_owned(), MalformedReason::InvalidField("type")),
        (r#"{"request_id":"r1"}"#.to_owned(), MalformedReason::MissingField("type")),
        (r#"{"request_id":"r1","type":"session_close"}"#.to_owned(), MalformedReason::MissingField("session_id")),
        (
            r#"{"request_id":"r1","type":"session_open","agents":["a b"]}"#.to_owned(),
            MalformedReason::InvalidField("agents"),
        ),
        (
            r#"{"request_id":"r1","type":"session_open","agents":"a"}"#.to_owned(),
            MalformedReason::InvalidField("agents"),
        ),
    ];
    for (text, expected) in cases {
        let malformed = parse(&text).expect_err(&text);
        assert_eq!(malformed, Malformed { request_id: request_id(), reason: expected }, "{text}");
        assert!(!malformed.to_string().contains("canary"), "{text}");
    }
    assert_eq!(flaw(r#"{"type":"ping","request_id":5}"#), MalformedReason::InvalidField("request_id"));
    let long = "x".repeat(257);
    assert_eq!(
        flaw(&format!(r#"{{"type":"ping","request_id":"{long}"}}"#)),
        MalformedReason::InvalidField("request_id")
    );
}

/// Covers: RX-10, S-13: input at the exact limits can be read back from the log.
#[test]
fn accepted_input_can_be_stored_and_read_back() {
    let deep = format!("{}1{}", "[".repeat(62), "]".repeat(62));
    let wide = format!("[{}0]", "0,".repeat(9_000));
    for inner in [deep, wide, r#""\u0000\ud83d\ude00""#.to_owned(), "[-0.5,1e308,18446744073709551615]".to_owned()] {
        let text =
            format!(r#"{{"type":"agent_invoke","metadata":{{"m":{inner}}},"message":{{"content":[{{"type":"x"}}]}}}}"#);
        let InvokeCommand { message, metadata, .. } = invoked(&text);
        let fact = Fact::Input(InputFact::UserMessage {
            message_id: MessageId::parse("m1").expect("a name"),
            request_id: None,
            user: UserId::parse("ann").expect("a name"),
            message,
            history_sha256: None,
            agent_id: None,
            strategy: Strategy::Enqueue,
            metadata,
            origin: None,
        });
        let id = EventId::default();
        let time = Millis(1);
        let source = Arc::from("user:ann");
        let causation_id = None;
        let traceparent = None;
        let run_id = None;
        let entry = Entry { id, time, source, correlation_id: "c".into(), causation_id, traceparent, run_id, fact };
        let key = SessionKey { tenant: TenantId::default_tenant(), session: session_id() };
        let json = entry.to_json(&key, Seq(1), Epoch(1));
        assert_eq!(Entry::from_json(&json).expect("read back").entry, entry, "{text:.90}");
    }
}

/// Covers: S-13, S-38. Well-formed messages that were cut, spliced and flipped get an answer, never a panic.
#[test]
fn random_input_never_panics_the_parser() {
    let seeds = [
        r#"{"type":"hello","user_id":"u1","api_key":"k","resume":[{"session_id":"s1","after_seq":1}]}"#,
        r#"{"type":"agent_invoke","request_id":"r1","message":{"content":[{"type":"text","text":"@é hi"}]}}"#,
        r#"{"type":"subscribe","session_id":"s1","runs":{"s1.abcdefghijklmnopqrstuvwxyz":{"attempt":1,"offset":0}}}"#,
        r#"{"type":"cancel_run","run_id":"\ud83d\ude00\u0000","metadata":{"a":[[[{}]]],"b":-1e-9}}"#,
    ];
    let mut rng = Rng::from_number(7);
    let mut good = 0;
    for _ in 0..20_000 {
        let seed = seeds[rng.below(4) as usize];
        let mut bytes = seed.as_bytes().to_vec();
        for _ in 0..rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes.truncate(at),
                1 => bytes[at] = b"\"{}[]:,\\0-"[rng.below(10) as usize],
                2 => bytes[at] = rng.below(256) as u8,
                _ => bytes.extend_from_slice(&seed.as_bytes()[at.min(seed.len())..]),
            }
            bytes.resize(bytes.len().max(1), b'{');
        }
        good += usize::from(parse(&String::from_utf8_lossy(&bytes)).is_ok());
    }
    assert!(good > 1_000, "the seeds themselves are read");
}

/// Covers: BD-I2.
#[test]
fn inbound_message_needs_an_id_and_a_whole_place() {
    let inbound = |message: &str, place: &str| {
        format!(
            r#"{{"type":"inbound","sender":{{"id":"u1"}},"message":{{{message}"content":"hi"}},"conversation":{{{place}}}}}"#
        )
    };
    let place = r#""channel":"rooms","account_id":"main","conversation_id":"7""#;
    assert!(matches!(command(&inbound(r#""message_id":"m1","#, place)), LinkCommand::Inbound(_)));
    assert_eq!(flaw(&inbound("", place)), MalformedReason::MissingField("message.message_id"));
    assert_eq!(flaw(&inbound(r#""message_id":"","#, place)), MalformedReason::InvalidField("message.message_id"));
    for (without, field) in [
        (r#""account_id":"main","conversation_id":"7""#, "conversation.channel"),
        (r#""channel":"rooms","conversation_id":"7""#, "conversation.account_id"),
        (r#""channel":"rooms","account_id":"main""#, "conversation.conversation_id"),
    ] {
        assert_eq!(flaw(&inbound(r#""message_id":"m1","#, without)), MalformedReason::MissingField(field));
    }
}

/// Covers: S-07.
#[test]
fn press_needs_a_button_and_the_id_of_the_press() {
    let press = |decision: &str| {
        format!(
            r#"{{"type":"inbound","event":"decision","sender":{{"id":"u1"}},"message":{{"message_id":"m1"}},
            "conversation":{{"channel":"rooms","account_id":"main","conversation_id":"7"}},"decision":{decision}}}"#
        )
    };
    let LinkCommand::Inbound(inbound) = command(&press(r#"{"press_id":"p1","button_id":"yes"}"#)) else {
        panic!("no event");
    };
    let InboundEvent::Decision(button) = inbound.event else { panic!("no press") };
    assert_eq!((button.button_id.as_str(), button.delivery_id), ("yes", None));
    assert_eq!(flaw(&press("null")), MalformedReason::MissingField("decision"));
    assert_eq!(flaw(&press(r#"{"button_id":"yes"}"#)), MalformedReason::MissingField("decision.press_id"));
    assert_eq!(flaw(&press(r#"{"press_id":"p1"}"#)), MalformedReason::MissingField("decision.button_id"));
    for bad in ["", "a b", "é", &"i".repeat(33)] {
        let decision = format!(r#"{{"press_id":"p1","button_id":"{bad}"}}"#);
        assert_eq!(flaw(&press(&decision)), MalformedReason::InvalidField("decision.button_id"), "{bad}");
    }
    let wrong = r#"{"press_id":"p1","button_id":"yes","delivery_id":"x"}"#;
    assert_eq!(flaw(&press(wrong)), MalformedReason::InvalidField("decision.delivery_id"));
}

/// Covers: BD-B4.
#[test]
fn show_account_needs_a_channel_and_an_account() {
    let show = |fields: &str| format!(r#"{{"type":"show_account",{fields}}}"#);
    let named = command(&show(r#""channel":"rooms","account_id":"Main""#));
    let LinkCommand::Account { command: AccountCommand::Show(account), .. } = named else { panic!("{named:?}") };
    assert_eq!((account.channel.as_str(), account.account.as_str()), ("rooms", "Main"));
    assert_eq!(flaw(&show(r#""channel":"rooms""#)), MalformedReason::MissingField("account_id"));
    assert_eq!(flaw(&show(r#""channel":"a/b","account_id":"main""#)), MalformedReason::InvalidField("channel"));
}

/// Covers: BD-B10.
#[test]
fn lookup_of_several_keeps_their_order_and_is_bounded() {
    let place = |n: usize| format!(r#"{{"channel":"rooms","account_id":"main","conversation_id":"{n}"}}"#);
    let lookup = |places: &[String]| format!(r#"{{"type":"resolve","conversations":[{}]}}"#, places.join(","));
    let most = limits::CONVERSATIONS_RESOLVED_MAX;
    let LinkCommand::Binding { command: BindingCommand::ResolveAll { conversations }, .. } =
        command(&lookup(&(0..most).rev().map(place).collect::<Vec<_>>()))
    else {
        panic!("no lookup")
    };
    let ids: Vec<String> = conversations.iter().map(|it| it.conversation_id.as_str().to_owned()).collect();
    assert_eq!(ids, (0..most).rev().map(|n| n.to_string()).collect::<Vec<_>>());
    let over = lookup(&(0..=most).map(place).collect::<Vec<_>>());
    assert_eq!(flaw(&over), MalformedReason::TooManyItems("conversations"));
    assert_eq!(flaw(&lookup(&[])), MalformedReason::MissingField("conversations"));
    assert_eq!(flaw(&lookup(&["7".to_owned()])), MalformedReason::InvalidField("conversations"));
    let nameless = lookup(&[r#"{"channel":"rooms","account_id":"main"}"#.to_owned()]);
    assert_eq!(flaw(&nameless), MalformedReason::MissingField("conversations.conversation_id"));
    let one = format!(r#"{{"type":"resolve","conversations":null,"conversation":{}}}"#, place(7));
    let LinkCommand::Binding { command: BindingCommand::Resolve { .. }, .. } = command(&one) else {
        panic!("no lookup of one")
    };
}

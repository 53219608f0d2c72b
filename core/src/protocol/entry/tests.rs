//! Tests of facts and their envelopes.
use super::*;
use crate::id::{AgentId, Epoch, EventId, Seq, SessionId, SessionKey, TenantId};
use crate::limits;
use crate::private::Private;
use crate::time::Millis;
use std::collections::BTreeSet;

/// Covers: ST-1, MP-E7, EV-C1, LN-EV1, MP-D14, LN-SR4, LN-TP20.
#[test]
fn fact_envelope_round_trips_through_json() {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
    let entry = Entry {
        id: EventId::new(Millis(1_764_000_000_123), 7),
        time: Millis(1_764_000_000_123),
        source: "agent:echo".into(),
        correlation_id: "s1.x".into(),
        causation_id: Some(EventId::new(Millis(1), 1)),
        traceparent: None,
        run_id: None,
        fact: Fact::Run(RunFact::TextDelta { attempt: 1, offset: 3, text: Private("höh".to_owned()), mark: None }),
    };
    let json = entry.to_json(&key, Seq(9), Epoch(4));
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["specversion"], "1.0");
    assert_eq!(value["type"], "agent.stream.delta");
    assert_eq!(value["time"], "2025-11-24T16:00:00.123Z");
    assert_eq!(value["data"]["text"], "höh");
    let back = Entry::from_json(&json).expect("an envelope");
    assert_eq!((back.seq, back.epoch, back.entry), (Seq(9), Epoch(4), entry));
}

/// Returns an envelope of that type, with that data and an unknown field.
fn envelope(kind: &str, rest: &str) -> String {
    let id = EventId::new(Millis(1), 1);
    format!(
        r#"{{{rest}"later":{{"a":[1]}},"id":"{id}","time":"2025-11-24T16:00:00.123Z","source":"turnway",
        "correlation_id":"c","specversion":"1.0","session_id":"s1","seq":3,"epoch":4,"type":"{kind}"}}"#
    )
}

/// Covers: ST-1, EV-C1.
#[test]
fn envelope_accepts_any_order_and_unknown_fields() {
    let data = r#""data":{"attempt":1,"agent_id":"a","more":null},"#;
    let read = Entry::from_json(&envelope(r"agent.invoke\u002estarted", data)).expect("an envelope");
    let fact = Fact::Run(RunFact::AgentStarted { agent_id: AgentId::parse("a").expect("a name"), attempt: 1 });
    assert_eq!((read.seq, read.epoch, read.entry.fact), (Seq(3), Epoch(4), fact));
}

/// Covers: ST-1, EV-C1.
#[test]
fn malformed_envelope_is_rejected() {
    let data = r#""data":{"attempt":1,"agent_id":"a"},"#;
    for (kind, rest) in [
        ("agent.invoke.started", ""),
        ("agent.invoke.started", r#""data":{"attempt":1},"#),
        ("agent.invoke.started", r#""data":"a","#),
    ] {
        assert!(Entry::from_json(&envelope(kind, rest)).is_err(), "{kind} {rest}");
    }
    let json = envelope("agent.invoke.started", data);
    assert!(Entry::from_json(&json).is_ok());
    assert!(Entry::from_json(&json.replace(r#""seq":3,"#, "")).is_err());
    assert!(Entry::from_json(&json[..json.len() - 1]).is_err());
    let listed = r#"["1.0","s1",3,4,"ID","2025-11-24T16:00:00.123Z","turnway","c",null,null,null,
        "agent.invoke.started",{"attempt":1,"agent_id":"a"}]"#;
    assert!(Entry::from_json(&listed.replace("ID", &EventId::new(Millis(1), 1).to_string())).is_err());
}

/// Keeps the content of a fact of a newer release, for its log may be read by that release again.
///
/// Covers: ST-1, EV-C1.
#[test]
fn unknown_fact_round_trips_unchanged_and_has_no_effect() {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
    for data in [r#","data":{"canary":[1e400,-0.0,{"a":null,"b":1}]}"#, ""] {
        let id = EventId::new(Millis(1), 1);
        let line = format!(
            r#"{{"specversion":"1.0","session_id":"s1","seq":3,"epoch":4,"id":"{id}","time":"2025-11-24T16:00:00.123Z","source":"turnway","correlation_id":"c","type":"session.painted"{data}}}"#
        );
        let read = Entry::from_json(&line).expect("an envelope");
        let fact = &read.entry.fact;
        assert_eq!((fact.name(), fact.is_on_request()), ("session.painted", true));
        assert_eq!((fact.is_terminal(), fact.starts_transaction(), fact.is_deferrable()), (false, false, false));
        assert!(!format!("{read:?}").contains("canary"), "its content is not for logs");
        assert_eq!(read.entry.to_json(&key, read.seq, read.epoch), line);
        let sent = serde_json::to_string(&read.entry).expect("JSON");
        assert_eq!(serde_json::from_str::<Entry>(&sent).ok(), Some(read.entry));
    }
}

/// Covers: ST-1.
#[test]
fn each_type_is_in_one_family() {
    let names: Vec<&str> = Fact::kinds().map(|kind| kind.name).collect();
    // A fact that was ever written stays readable.
    assert!(names.len() >= 37, "{names:?}");
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
}

/// Covers: G8.
#[test]
fn annotations_of_a_session_are_bounded() {
    let names: BTreeSet<_> = Fact::kinds().filter_map(|kind| kind.annotates).collect();
    assert!(names.len() <= limits::ANNOTATION_NAMES_MAX, "{names:?}");
}

/// An older log has neither of the two fields, and only operators are shown the agent's error body.
///
/// Covers: ST-1, S-06.
#[test]
fn agent_error_body_is_logged_but_hidden_from_users() {
    let old = r#""data":{"attempt":1,"code":"agent_unavailable","message":"status 503","text_bytes":0},"#;
    let old = Entry::from_json(&envelope("run.failed", old)).expect("an envelope").entry;
    let Fact::Run(RunFact::Failed { retry_after_ms: None, agent_body: None, .. }) = old.fact else { panic!("{old:?}") };
    let new = r#""data":{"attempt":1,"code":"agent_unavailable","message":"status 503","retry_after_ms":7000,
        "agent_body":"canary","text_bytes":0},"#;
    let new = std::sync::Arc::new(Entry::from_json(&envelope("run.failed", new)).expect("an envelope").entry);
    assert!(!format!("{new:?}").contains("canary"));
    let whole = serde_json::to_string(&new).expect("JSON");
    let shown = new.for_users();
    assert!(whole.contains("canary"));
    let text = serde_json::to_string(&shown).expect("JSON");
    assert!(!text.contains("canary") && text.contains("\"retry_after_ms\":7000"), "{text}");
    assert!(std::sync::Arc::ptr_eq(&shown, &shown.for_users()));
}

/// A log as `GET …/events` of the release before exact numbers returned it.
const RECORDED: &str = include_str!("recorded.jsonl");

/// Covers: ST-1.
#[test]
fn recorded_log_round_trips_unchanged() {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s").expect("a name") };
    assert_eq!(RECORDED.lines().count(), 10);
    for line in RECORDED.lines() {
        let read = Entry::from_json(line).expect("an envelope");
        assert_eq!(read.entry.to_json(&key, read.seq, read.epoch), line);
        // Another node is sent the fact without its position.
        let sent = serde_json::to_string(&read.entry).expect("JSON");
        assert_eq!(serde_json::from_str::<Entry>(&sent).ok(), Some(read.entry));
    }
}

/// Covers: ST-1.
#[test]
fn numbers_of_any_size_round_trip_in_facts() {
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s").expect("a name") };
    let numbers = "[1e400,123456789012345678901234567890,1.50,-0]";
    for line in RECORDED.lines().filter(|line| line.contains("[7,-0.0,")) {
        let at = line.find("[7,-0.0,").expect("numbers");
        let end = at + line[at..].find(']').expect("their end") + 1;
        let line = line.replace(&line[at..end], numbers);
        let read = Entry::from_json(&line).expect("an envelope");
        assert_eq!(read.entry.to_json(&key, read.seq, read.epoch), line);
        let sent = serde_json::to_string(&read.entry).expect("JSON");
        assert_eq!(serde_json::from_str::<Entry>(&sent).ok(), Some(read.entry));
    }
}

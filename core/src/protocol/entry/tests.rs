//! Facts and their envelopes.
use super::*;
use crate::id::{Epoch, EventId, Seq, SessionId, SessionKey, TenantId};

/// Covers: ST-1, MP-E7, EV-C1, LN-EV1, MP-D14, LN-SR4, LN-TP20.
#[test]
fn a_fact_keeps_its_envelope_through_json() {
    let key =
        SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
    let entry = Entry {
        id: EventId::new(Millis(1_764_000_000_123), 7),
        time: Millis(1_764_000_000_123),
        source: "agent:echo".into(),
        correlation_id: "s1.x".into(),
        causation_id: Some(EventId::new(Millis(1), 1)),
        traceparent: None,
        run_id: None,
        fact: Fact::AgentStreamDelta { attempt: 1, offset: 3, text: Private("höh".to_owned()), mark: None },
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

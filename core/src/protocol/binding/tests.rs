//! Expiry of bindings, and their ids.
use super::*;

fn binding(idle_timeout: Option<u64>, max_age: Option<u64>, expires_at: Option<u64>) -> Binding {
    Binding {
        generation: Generation(1_000),
        conversation: ConversationRef::without_parent("rooms", "a", "7").expect("a reference"),
        session: SessionId::parse("s").expect("a session"),
        target_kind: TargetKind::Session,
        bound_at: Millis(1_000),
        last_activity_at: Millis(1_500),
        expiry: ExpiryRules { idle_timeout, max_age, expires_at: expires_at.map(Millis) },
        mirror: false,
        metadata: BTreeMap::new(),
        nonce: Nonce(5),
    }
}

/// Covers: BD-L1, BD-L2, BD-L9, BD-B12, BD-B13.
#[test]
fn earliest_expiry_wins_and_names_its_reason() {
    use UnbindReason::{IdleExpired, MaxAgeExpired};
    let expiry = |idle, age, at| binding(idle, age, at).expiry().map(|(at, reason)| (at.0, reason));
    assert_eq!(expiry(None, None, None), None);
    assert_eq!(expiry(Some(100), None, None), Some((1_610, IdleExpired)));
    assert_eq!(expiry(Some(100), Some(9_000), None), Some((1_610, IdleExpired)));
    assert_eq!(expiry(Some(9_000), Some(700), None), Some((1_700, MaxAgeExpired)));
    assert_eq!(expiry(Some(9_000), Some(700), Some(1_650)), Some((1_650, MaxAgeExpired)));
    assert_eq!(expiry(None, None, Some(2_000)), Some((2_000, MaxAgeExpired)));
    assert_eq!(expiry(Some(500), Some(1_050), None), Some((2_050, MaxAgeExpired)), "a tie");
    assert_eq!(expiry(Some(u64::MAX), None, None), Some((u64::MAX, IdleExpired)));
}

#[test]
fn touch_interval_is_a_tenth_of_the_idle_timeout() {
    assert_eq!(binding(Some(1_000), None, None).touch_interval(), Duration::from_millis(100));
    assert_eq!(binding(Some(u64::MAX), None, None).touch_interval(), limits::BINDING_TOUCH_INTERVAL);
    assert_eq!(binding(None, None, None).touch_interval(), limits::BINDING_TOUCH_INTERVAL);
}

/// Covers: BD-B9.
#[test]
fn binding_id_has_one_spelling() {
    let id = binding(None, None, None).id();
    assert_eq!(id.to_string(), "1000.7");
    assert_eq!(BindingId::parse("1000.7"), Ok(id));
    let dotted = BindingId::parse("3.a.b:c").expect("an id");
    assert_eq!((dotted.generation, dotted.conversation.as_str()), (Generation(3), "a.b:c"));
    for bad in ["", "7", "x.7", "+1000.7", "01000.7", "1000.", "1000. 7", "-1.7", "99999999999999999999.7"] {
        assert_eq!(BindingId::parse(bad), Err(BadName { kind: "binding_id" }), "{bad:?}");
    }
}

#[test]
fn record_is_read_as_it_was_written() {
    let mut record = binding(Some(60_000), None, Some(9_999));
    record.metadata.insert("persona".into(), "Otter".into());
    let json = serde_json::to_string(&record).expect("a record serialises");
    assert_eq!(
        json,
        concat!(
            r#"{"generation":1000,"conversation":{"channel":"rooms","account_id":"a","conversation_id":"7"},"#,
            r#""session":"s","target_kind":"session","bound_at":1000,"last_activity_at":1500,"#,
            r#""expiry":{"idle_timeout_ms":60000,"expires_at":9999},"metadata":{"persona":"Otter"},"nonce":5}"#
        )
    );
    assert_eq!(serde_json::from_str::<Binding>(&json).expect("what was written"), record);
}

//! Tests the format of API keys, and what a stored record reveals and authenticates.
use super::*;

fn pepper() -> Pepper {
    Pepper::from_text("0123456789abcdef0123456789abcdef").expect("long enough")
}

/// Covers: S-01.
#[test]
fn generated_key_is_long_and_unique() {
    let one = ApiKey::generate().expect("chance");
    let two = ApiKey::generate().expect("chance");
    assert_ne!(one, two);
    let text = one.reveal();
    assert_eq!(text.len(), 3 + 1 + 10 + 1 + 26);
    assert_eq!(ApiKey::parse(&text), Some(one.clone()));
    assert!(text.starts_with(&format!("twk_{}_", one.id())));
    assert_eq!(letters(&[0xff; 16], 26), format!("{}4", "7".repeat(25)), "all 128 bits are in it");
    assert!(!format!("{one:?}").contains(&text[15..]), "it does not print its secret");
    for bad in [
        "",
        "twk",
        "twk__",
        &text[1..],
        &text[..text.len() - 1],
        &format!("{text}a"),
        &text.to_ascii_uppercase(),
        &text.replace("twk_", "twk-"),
        &format!(" {text}"),
        &format!("{}é", &text[..text.len() - 2]),
    ] {
        assert_eq!(ApiKey::parse(bad), None, "{bad}");
    }
}

/// Covers: S-01.
#[test]
fn key_matches_only_its_own_id_secret_and_pepper() {
    let key = ApiKey::generate().expect("chance");
    let pepper = pepper();
    let hash = key.hash(&pepper);
    assert!(key.matches(&hash, &pepper));
    let other = ApiKey::generate().expect("chance");
    let renamed = ApiKey { id: other.id.clone(), ..key.clone() };
    let guessed = ApiKey { secret: other.secret.clone(), ..key.clone() };
    for stranger in [&other, &renamed, &guessed] {
        assert!(!stranger.matches(&hash, &pepper));
    }
    let elsewhere = Pepper::from_text("another pepper of the same length").expect("long enough");
    assert!(!key.matches(&hash, &elsewhere));
}

/// Covers: S-01.
#[test]
fn stored_key_record_does_not_contain_the_secret() {
    let key = ApiKey::generate().expect("chance");
    let pepper = pepper();
    let record = ApiKeyRecord {
        id: key.id().clone(),
        hash: key.hash(&pepper),
        pepper: pepper.id().clone(),
        tenant: TenantId::default_tenant(),
        user: None,
        scopes: Scopes { act_as: true, ..Scopes::defaults() },
        serves: ServiceGrants::default(),
        label: Some("the shop".to_owned()),
        created: Millis(1000),
        expires: Some(Millis(3000)),
        revoked: None,
        seal: None,
    };
    let kept = serde_json::to_string(&record).expect("JSON");
    assert!(!kept.contains(key.secret.reveal()) && kept.contains(r#""scopes":["read","write","act_as"]"#));
    assert_eq!(serde_json::from_str::<ApiKeyRecord>(&kept).expect("the same"), record);
    assert!(!format!("{record:?}").contains(kept.split('"').nth(7).expect("the hash")));
    assert_eq!(record.user().as_str(), format!("key:{}", key.id()));
    for (at, good) in [(0, true), (2999, true), (3000, false)] {
        assert_eq!(record.is_active(Millis(at)), good, "{at}");
    }
    assert!(!ApiKeyRecord { revoked: Some(Millis(1)), ..record }.is_active(Millis(2)));
    for bad in [r#"["root"]"#, r#"["read ","write"]"#, r#"[1]"#] {
        assert!(serde_json::from_str::<Scopes>(bad).is_err(), "{bad}");
    }
}

/// Returns a sealed record of a key with every field.
fn sealed() -> ApiKeyRecord {
    let key = ApiKey::generate().expect("chance");
    let record = ApiKeyRecord {
        id: key.id().clone(),
        hash: key.hash(&pepper()),
        pepper: pepper().id().clone(),
        tenant: TenantId::parse("acme").expect("a name"),
        user: Some(UserId::parse("ann").expect("a name")),
        scopes: Scopes::defaults(),
        serves: ServiceGrants::parse(["agent:helper"]).expect("words"),
        label: Some("the shop".to_owned()),
        created: Millis(1000),
        expires: Some(Millis(3000)),
        revoked: Some(Millis(2000)),
        seal: None,
    };
    record.sealed(&pepper())
}

/// Covers: S-01.
#[test]
fn seal_covers_every_field_of_a_record() {
    let record = sealed();
    assert!(record.is_sealed(&pepper()));
    let kept = serde_json::to_string(&record).expect("JSON");
    assert!(serde_json::from_str::<ApiKeyRecord>(&kept).expect("the same").is_sealed(&pepper()));
    let other = sealed();
    let elsewhere = Pepper::from_text("another pepper of the same length").expect("long enough");
    assert!(!record.is_sealed(&elsewhere));
    let changed: Vec<(&str, ApiKeyRecord)> = vec![
        ("id", ApiKeyRecord { id: other.id.clone(), ..record.clone() }),
        ("hash", ApiKeyRecord { hash: other.hash, ..record.clone() }),
        ("pepper", ApiKeyRecord { pepper: elsewhere.id().clone(), ..record.clone() }),
        ("tenant", ApiKeyRecord { tenant: TenantId::parse("evil").expect("a name"), ..record.clone() }),
        ("user", ApiKeyRecord { user: None, ..record.clone() }),
        ("scopes", ApiKeyRecord { scopes: Scopes { operator: true, ..Scopes::defaults() }, ..record.clone() }),
        ("serves", ApiKeyRecord { serves: ServiceGrants::parse(["agent:other"]).expect("words"), ..record.clone() }),
        ("label", ApiKeyRecord { label: None, ..record.clone() }),
        ("created", ApiKeyRecord { created: Millis(1001), ..record.clone() }),
        ("expires", ApiKeyRecord { expires: None, ..record.clone() }),
        ("later end", ApiKeyRecord { expires: Some(Millis(4000)), ..record.clone() }),
        ("revoked", ApiKeyRecord { revoked: None, ..record.clone() }),
        ("seal", ApiKeyRecord { seal: other.seal, ..record.clone() }),
        ("no seal", ApiKeyRecord { seal: None, ..record.clone() }),
    ];
    for (field, changed) in changed {
        assert!(!changed.is_sealed(&pepper()), "{field}");
    }
}

/// Covers: S-01.
#[test]
fn changing_an_unsealed_record_adds_no_seal() {
    let mut record = ApiKeyRecord { revoked: None, ..sealed() };
    assert!(!record.is_sealed(&pepper()));
    record.update(&pepper(), |record| record.revoked = Some(Millis(1)));
    assert!(!record.is_sealed(&pepper()) && record.revoked.is_some());
    let mut record = record.sealed(&pepper());
    record.update(&pepper(), |record| record.revoked = Some(Millis(2)));
    assert!(record.is_sealed(&pepper()));
}

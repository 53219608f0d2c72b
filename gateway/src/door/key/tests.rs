//! Tests the format of API keys, and what a stored record reveals and authenticates.
use super::*;

fn pepper() -> Pepper {
    Pepper::of("0123456789abcdef0123456789abcdef").expect("long enough")
}

/// Covers: S-01.
#[test]
fn generated_key_is_long_and_unique() {
    let (one, two) = (ApiKey::make().expect("chance"), ApiKey::make().expect("chance"));
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
    let (key, pepper) = (ApiKey::make().expect("chance"), pepper());
    let hash = key.hash(&pepper);
    assert!(key.is(&hash, &pepper));
    let other = ApiKey::make().expect("chance");
    let renamed = ApiKey { id: other.id.clone(), ..key.clone() };
    let guessed = ApiKey { secret: other.secret.clone(), ..key.clone() };
    for stranger in [&other, &renamed, &guessed] {
        assert!(!stranger.is(&hash, &pepper));
    }
    let elsewhere = Pepper::of("another pepper of the same length").expect("long enough");
    assert!(!key.is(&hash, &elsewhere));
}

/// Covers: S-01.
#[test]
fn stored_key_record_does_not_contain_the_secret() {
    let (key, pepper) = (ApiKey::make().expect("chance"), pepper());
    let record = Record {
        id: key.id().clone(),
        hash: key.hash(&pepper),
        pepper: pepper.id().clone(),
        tenant: TenantId::default_tenant(),
        user: None,
        scopes: Scopes { act_as: true, ..Scopes::usual() },
        serves: Serves::default(),
        label: Some("the shop".to_owned()),
        created: Millis(1000),
        expires: Some(Millis(3000)),
        revoked: None,
        seal: None,
    };
    let kept = serde_json::to_string(&record).expect("JSON");
    assert!(!kept.contains(key.secret.reveal()) && kept.contains(r#""scopes":["read","write","act_as"]"#));
    assert_eq!(serde_json::from_str::<Record>(&kept).expect("the same"), record);
    assert!(!format!("{record:?}").contains(kept.split('"').nth(7).expect("the hash")));
    assert_eq!(record.user().as_str(), format!("key:{}", key.id()));
    for (at, good) in [(0, true), (2999, true), (3000, false)] {
        assert_eq!(record.is_good(Millis(at)), good, "{at}");
    }
    assert!(!Record { revoked: Some(Millis(1)), ..record }.is_good(Millis(2)));
    for bad in [r#"["root"]"#, r#"["read ","write"]"#, r#"[1]"#] {
        assert!(serde_json::from_str::<Scopes>(bad).is_err(), "{bad}");
    }
}

/// Returns a sealed record of a key with every field.
fn sealed() -> Record {
    let key = ApiKey::make().expect("chance");
    let record = Record {
        id: key.id().clone(),
        hash: key.hash(&pepper()),
        pepper: pepper().id().clone(),
        tenant: TenantId::parse("acme").expect("a name"),
        user: Some(UserId::parse("ann").expect("a name")),
        scopes: Scopes::usual(),
        serves: Serves::parse(["agent:helper"]).expect("words"),
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
    assert!(serde_json::from_str::<Record>(&kept).expect("the same").is_sealed(&pepper()));
    let other = sealed();
    let elsewhere = Pepper::of("another pepper of the same length").expect("long enough");
    assert!(!record.is_sealed(&elsewhere));
    let changed: Vec<(&str, Record)> = vec![
        ("id", Record { id: other.id.clone(), ..record.clone() }),
        ("hash", Record { hash: other.hash, ..record.clone() }),
        ("pepper", Record { pepper: elsewhere.id().clone(), ..record.clone() }),
        ("tenant", Record { tenant: TenantId::parse("evil").expect("a name"), ..record.clone() }),
        ("user", Record { user: None, ..record.clone() }),
        ("scopes", Record { scopes: Scopes { operator: true, ..Scopes::usual() }, ..record.clone() }),
        ("serves", Record { serves: Serves::parse(["agent:other"]).expect("words"), ..record.clone() }),
        ("label", Record { label: None, ..record.clone() }),
        ("created", Record { created: Millis(1001), ..record.clone() }),
        ("expires", Record { expires: None, ..record.clone() }),
        ("later end", Record { expires: Some(Millis(4000)), ..record.clone() }),
        ("revoked", Record { revoked: None, ..record.clone() }),
        ("seal", Record { seal: other.seal, ..record.clone() }),
        ("no seal", Record { seal: None, ..record.clone() }),
    ];
    for (field, changed) in changed {
        assert!(!changed.is_sealed(&pepper()), "{field}");
    }
}

/// Covers: S-01.
#[test]
fn changing_an_unsealed_record_adds_no_seal() {
    let mut record = Record { revoked: None, ..sealed() };
    assert!(!record.is_sealed(&pepper()));
    record.change(&pepper(), |record| record.revoked = Some(Millis(1)));
    assert!(!record.is_sealed(&pepper()) && record.revoked.is_some());
    let mut record = record.sealed(&pepper());
    record.change(&pepper(), |record| record.revoked = Some(Millis(2)));
    assert!(record.is_sealed(&pepper()));
}

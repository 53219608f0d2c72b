//! What somebody shows at the door, and what is kept of it. Tokens of an identity provider and its key sets belong
//! here too.
use std::sync::LazyLock;
use turnway::door::key::{ApiKey, KeyId, Record, Scopes};
use turnway::door::keyring::{Keyring, Keys};
use turnway::door::pepper::Pepper;
use turnway_core::id::TenantId;
use turnway_core::time::Millis;

/// The one key that opens anything; also what the fuzzer begins with.
const KNOWN: &str = "twk_abcdefghij_abcdefghijklmnopqrstuvwxyz";
const NOW: Millis = Millis(1_764_000_000_000);

static RING: LazyLock<Keyring> = LazyLock::new(|| {
    let pepper = Pepper::of("only for the fuzzer, and as long as a pepper has to be").expect("long enough");
    let known = ApiKey::parse(KNOWN).expect("a key");
    let record = Record {
        id: known.id().clone(),
        hash: known.hash(&pepper),
        pepper: pepper.id().clone(),
        tenant: TenantId::default_tenant(),
        user: None,
        scopes: Scopes::usual(),
        label: None,
        created: NOW,
        expires: None,
        revoked: None,
    };
    let ring = Keyring::new(pepper);
    ring.replace(Keys::from([(record.id.clone(), record)]));
    ring
});

/// An API key. It is read as it is written, and opens nothing unless it is the one that does.
pub fn api_key(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    assert!(KeyId::parse(text).is_none_or(|id| id.as_str() == text));
    let Some(key) = ApiKey::parse(text) else { return 0 };
    assert_eq!(key.reveal(), text);
    assert!(!format!("{key:?}").contains(&text[text.len() - 26..]), "a secret is shown");
    assert_eq!(RING.bearer(&key, NOW).is_some(), text == KNOWN);
    1
}

/// What the store has of a key: what is read is written and read the same.
pub fn key_record(bytes: &[u8]) -> usize {
    let Ok(record) = serde_json::from_slice::<Record>(bytes) else { return 0 };
    let json = serde_json::to_vec(&record).expect("JSON");
    assert_eq!(serde_json::from_slice::<Record>(&json).expect("what we write we read"), record);
    let _ = (record.is_good(NOW), record.user(), RING.opens(&record, NOW));
    1
}

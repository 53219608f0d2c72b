//! Fuzz targets for credentials, and for the keys that credentials are verified with.
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::sync::LazyLock;
use turnway::auth::jwks::KeySet;
use turnway::auth::jwt::{LEEWAY, key_id, verify};
use turnway::auth::key::{ApiKey, ApiKeyRecord, KeyId, Scopes};
use turnway::auth::keyring::{ApiKeyRecords, Keyring};
use turnway::auth::pepper::Pepper;
use turnway::auth::service_grants::ServiceGrants;
use turnway::config::{IssuerConfig, JwksSource, SignatureAlgorithm};
use turnway_core::id::TenantId;
use turnway_core::time::Millis;

/// The only valid API key; also part of the corpus.
const VALID_KEY: &str = "twk_abcdefghij_abcdefghijklmnopqrstuvwxyz";
const NOW: Millis = Millis(1_764_000_000_000);

static KEYRING: LazyLock<Keyring> = LazyLock::new(|| {
    let pepper = Pepper::from_text("only for the fuzzer, and as long as a pepper has to be").expect("long enough");
    let known = ApiKey::parse(VALID_KEY).expect("a key");
    let record = ApiKeyRecord {
        id: known.id().clone(),
        hash: known.hash(&pepper),
        pepper: pepper.id().clone(),
        tenant: TenantId::default_tenant(),
        user: None,
        scopes: Scopes::defaults(),
        serves: ServiceGrants::default(),
        label: None,
        created: NOW,
        expires: None,
        revoked: None,
        seal: None,
    };
    let record = record.sealed(&pepper);
    let ring = Keyring::new(pepper);
    ring.replace(ApiKeyRecords::from([(record.id.clone(), record)]));
    ring
});

/// The only valid token, signed with the only known key.
const VALID_TOKEN: &str = include_str!("../corpus/token/good");

static ISSUER: LazyLock<(IssuerConfig, KeySet)> = LazyLock::new(|| {
    let issuer = IssuerConfig {
        name: "https://id.example.com/".to_owned(),
        audience: "turnway".to_owned(),
        algorithms: SignatureAlgorithm::ALL.to_vec(),
        jwks: JwksSource::File("nowhere".into()),
    };
    (issuer, KeySet::parse(include_bytes!("../corpus/key_set/one")).expect("a set"))
});

/// Verifies a token. No other token is valid, because a valid one needs the provider's secret.
pub fn token(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    let (issuer, keys) = &*ISSUER;
    assert_eq!(verify(issuer, text, keys, NOW).is_ok(), text == VALID_TOKEN);
    usize::from(key_id(text).is_some())
}

/// A provider that signs every token.
static SIGNER: LazyLock<(Ed25519KeyPair, KeySet)> = LazyLock::new(|| {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key");
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"k","x":"{x}"}}]}}"#);
    (pair, KeySet::parse(set.as_bytes()).expect("a set"))
});

/// Verifies a signed token whose header and claims, one line each, or claims alone, are the input, so that the
/// code behind the signature check is reached.
pub fn token_claims(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    let (header, claims) = text.split_once('\n').unwrap_or((r#"{"alg":"EdDSA","kid":"k"}"#, text));
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let (pair, keys) = &*SIGNER;
    let signature = URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes()));
    match verify(&ISSUER.0, &format!("{signed}.{signature}"), keys, NOW) {
        Ok(subject) => {
            assert!(subject.ends.after(LEEWAY) > NOW, "it is over");
            1
        }
        Err(_) => 0,
    }
}

/// Parses a provider's public keys, and verifies a token with them.
pub fn key_set(bytes: &[u8]) -> usize {
    let Ok(keys) = KeySet::parse(bytes) else { return 0 };
    assert!(!keys.is_empty() && keys.len() <= 64);
    let _ = verify(&ISSUER.0, VALID_TOKEN, &keys, NOW);
    keys.len()
}

/// Parses an API key. Asserts that the key is written as it was read, and that no key but the known one is
/// accepted.
pub fn api_key(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    assert!(KeyId::parse(text).is_none_or(|id| id.as_str() == text));
    let Some(key) = ApiKey::parse(text) else { return 0 };
    assert_eq!(key.reveal(), text);
    assert!(!format!("{key:?}").contains(&text[text.len() - 26..]), "a secret is shown");
    assert_eq!(KEYRING.bearer(&key, NOW).is_ok(), text == VALID_KEY);
    1
}

/// Parses a stored key record, and asserts that the record survives a round trip.
pub fn key_record(bytes: &[u8]) -> usize {
    let Ok(record) = serde_json::from_slice::<ApiKeyRecord>(bytes) else { return 0 };
    let json = serde_json::to_vec(&record).expect("JSON");
    assert_eq!(serde_json::from_slice::<ApiKeyRecord>(&json).expect("what we write we read"), record);
    let _ = (record.is_active(NOW), record.user(), KEYRING.accepts(&record, NOW));
    1
}

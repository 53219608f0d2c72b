//! Tests which principal a credential yields, and which requests are refused.
use super::key::{ApiKeyRecord, Scopes};
use super::pepper::Pepper;
use super::service_grants::{ServiceGrants, ServiceRole};
use super::*;
use crate::config::RateSettings;
use crate::config::ServedBy;
use crate::store::registers::in_memory;
use prometheus::Registry;
use turnway_core::id::{AgentId, MessageId, RunId};
use turnway_wire::channel::hello::ConnectionRole;
use turnway_wire::channel::hello::{Credential, DialInCapabilities};
use turnway_wire::channel::service::TenantScope;

const NOW: Millis = Millis(1_000_000);

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::register(&Registry::new()).expect("each family once"))
}

fn hello(user: Option<&str>, shown: Option<&str>) -> HelloRequest {
    let user = user.map(|user| UserId::parse(user).expect("a name"));
    let credential = shown.map(|shown| Credential(shown.into()));
    let capabilities = DialInCapabilities::default();
    HelloRequest {
        user,
        credential,
        role: ConnectionRole::User,
        agent_id: None,
        capabilities,
        adapter: None,
        runner: None,
        streams: true,
    }
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
    }
    headers
}

#[test]
fn without_authentication_a_client_without_user_is_operator() {
    let auth = Authenticator::without_credentials(RateSettings::default(), None, metrics());
    let local = auth.admit(&hello(None, Some("key")), NOW).expect("let in").principal;
    assert!(local.operator && local.writes && local.user == UserId::local());
    let ann = auth.admit(&hello(Some("ann"), None), NOW).expect("let in").principal;
    assert!(!ann.operator && ann.user.as_str() == "ann");
    assert!(auth.still_admits(&AuthProof::Anonymous, NOW));
}

/// Covers: S-07.
#[test]
fn request_names_its_user_at_most_once() {
    let auth = Authenticator::without_credentials(RateSettings::default(), None, metrics());
    let admit = |names: &[&str]| {
        let pairs: Vec<_> = names.iter().map(|name| ("x-user-id", *name)).collect();
        auth.admit_request(&headers(&[&pairs[..], &[("authorization", "Basic x")]].concat()), NOW)
    };
    assert!(admit(&[]).expect("let in").principal.operator);
    let ann = admit(&["ann"]).expect("let in").principal;
    assert!(!ann.operator && ann.user.as_str() == "ann");
    assert_eq!(admit(&["änn"]).expect("let in").principal.user.as_str(), "änn");
    assert_eq!(admit(&["channels"]).expect("let in").principal.user.as_str(), "channels");
    for bad in [&[""][..], &["ann", "ann"], &["a\tb"], &[&"x".repeat(257)], &["channel:rooms/main"], &["channel:"]] {
        assert_eq!(admit(bad), Err(AuthError::UserId), "{bad:?}");
    }
}

/// Returns an authenticator with one key of this user and these scopes, its keyring, and the key.
fn keyed(user: Option<&str>, scopes: &[&str]) -> (Authenticator, Keyring, String) {
    keyed_with(user, scopes, &[])
}

/// Returns the same, with a key that has grants to serve.
fn keyed_with(user: Option<&str>, scopes: &[&str], serves: &[&str]) -> (Authenticator, Keyring, String) {
    let ring = Keyring::new(Pepper::from_text("0123456789abcdef0123456789abcdef").expect("long enough"));
    let key = ApiKey::generate().expect("chance");
    let record = ApiKeyRecord {
        id: key.id().clone(),
        hash: key.hash(ring.pepper()),
        pepper: ring.pepper().id().clone(),
        tenant: TenantId::parse("acme").expect("a name"),
        user: user.map(|user| UserId::parse(user).expect("a name")),
        scopes: Scopes::parse(scopes.iter().copied()).expect("scopes"),
        serves: ServiceGrants::parse(serves.iter().copied()).expect("words"),
        label: None,
        created: Millis(0),
        expires: Some(Millis(2_000_000)),
        revoked: None,
        seal: None,
    };
    let record = record.sealed(ring.pepper());
    ring.replace([(record.id.clone(), record)].into());
    (
        Authenticator::with_credentials(Some(ring.clone()), None, RateSettings::default(), None, metrics()),
        ring,
        key.reveal(),
    )
}

/// Covers: S-07.
#[test]
fn key_determines_its_user() {
    let (auth, _, key) = keyed(Some("ann"), &["write"]);
    let admitted = auth.admit(&hello(None, Some(&key)), NOW).expect("let in");
    let ann = &admitted.principal;
    assert!(matches!(&admitted.proof, AuthProof::Key(id) if key.contains(id.as_str())));
    assert_eq!((ann.tenant.as_str(), ann.user.as_str()), ("acme", "ann"));
    assert!(ann.writes && !ann.operator);
    assert_eq!(auth.admit(&hello(Some("ann"), Some(&key)), NOW), Ok(admitted.clone()));
    assert_eq!(auth.admit(&hello(Some("bob"), Some(&key)), NOW), Err(AuthError::OtherUser));
    let bearer = format!("Bearer {key}");
    assert_eq!(auth.admit_request(&headers(&[("authorization", &bearer)]), NOW), Ok(admitted.clone()));
    let lower = format!("bearer  {key} ");
    assert_eq!(auth.admit_request(&headers(&[("authorization", &lower)]), NOW), Ok(admitted));
    let named = headers(&[("authorization", &bearer), ("x-user-id", "bob")]);
    assert_eq!(auth.admit_request(&named, NOW), Err(AuthError::OtherUser));
}

/// A key that was made before the names were reserved.
///
/// Covers: S-07.
#[test]
fn key_of_an_account_is_refused() {
    let (auth, ring, key) = keyed(Some("channel:rooms/main"), &["write", "act_as"]);
    let id = ApiKey::parse(&key).expect("a key").id().clone();
    assert!(!ring.is_active(&id, NOW));
    for user in [None, Some("ann")] {
        assert_eq!(auth.admit(&hello(user, Some(&key)), NOW), Err(AuthError::ExpiredCredential), "{user:?}");
    }
}

#[test]
fn delegated_user_gets_no_operator_rights() {
    let (auth, _, key) = keyed(None, &["read", "act_as", "operator"]);
    let own = auth.admit(&hello(None, Some(&key)), NOW).expect("let in").principal;
    assert!(own.operator && !own.writes && own.user.as_str().starts_with("key:"));
    let ann = auth.admit(&hello(Some("ann"), Some(&key)), NOW).expect("let in").principal;
    assert!(!ann.operator && !ann.writes && ann.user.as_str() == "ann");
}

/// Covers: S-01.
#[test]
fn invalid_key_is_refused() {
    let (auth, ring, key) = keyed(Some("ann"), &["write"]);
    let (_, _, other) = keyed(Some("ann"), &["write"]);
    let mut guessed = key.clone();
    let last = guessed.pop().expect("a letter");
    guessed.push(if last == 'a' { 'b' } else { 'a' });
    assert_eq!(auth.admit(&hello(Some("ann"), None), NOW), Err(AuthError::NoCredential));
    for bad in ["", "key", &other, &guessed, "twk_aaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaa"] {
        assert_eq!(auth.admit(&hello(Some("ann"), Some(bad)), NOW), Err(AuthError::UnknownCredential), "{bad}");
        let bearer = format!("Bearer {bad}");
        let headers = headers(&[("authorization", &bearer)]);
        assert_eq!(auth.admit_request(&headers, NOW), Err(AuthError::UnknownCredential), "{bad}");
    }
    let good = format!("Bearer {key}");
    for pairs in [
        &[("authorization", good.as_str()), ("authorization", &good)][..],
        &[("authorization", &key)],
        &[("authorization", "Basic Zm9v")],
    ] {
        assert_eq!(auth.admit_request(&headers(pairs), NOW), Err(AuthError::MalformedCredential));
    }
    assert_eq!(auth.admit_request(&headers(&[]), NOW), Err(AuthError::NoCredential));
    let proof = auth.admit(&hello(None, Some(&key)), NOW).expect("let in").proof;
    assert!(auth.still_admits(&proof, NOW) && !auth.still_admits(&AuthProof::Anonymous, NOW));
    // Good until its expiry; then the key is revoked.
    assert_eq!(auth.admit(&hello(None, Some(&key)), Millis(2_000_000)), Err(AuthError::ExpiredCredential));
    assert_eq!(auth.admit(&hello(None, Some(&guessed)), Millis(2_000_000)), Err(AuthError::UnknownCredential));
    let keys = ring.keys();
    let revoked =
        keys.values().cloned().map(|record| ApiKeyRecord { revoked: Some(NOW), ..record }.sealed(ring.pepper()));
    ring.replace(revoked.map(|record| (record.id.clone(), record)).collect());
    assert_eq!(auth.admit(&hello(None, Some(&key)), NOW), Err(AuthError::ExpiredCredential));
    assert!(!auth.still_admits(&proof, NOW));
}

/// Returns for which tenants a key serves the agent `helper`, as itself or as another user.
fn reach(keyed: &(Authenticator, Keyring, String), user: Option<&str>, served_by: &str) -> Option<TenantScope> {
    let (auth, _, key) = keyed;
    let helper = AgentId::parse("helper").expect("a name");
    let served_by = ServedBy::parse(served_by).unwrap_or_default();
    let admitted = auth.admit(&hello(user, Some(key)), NOW).expect("let in");
    admitted.service_identity(ServiceRole::Agent(&helper), &served_by).map(|identity| identity.tenants)
}

/// Covers: S-07.
#[test]
fn key_serves_its_tenant_and_a_configured_user_serves_all() {
    let acme = Some(TenantScope::Tenant(TenantId::parse("acme").expect("a name")));
    let serving = keyed_with(Some("bot"), &["write"], &["agent:helper"]);
    assert_eq!(reach(&serving, None, ""), acme);
    assert_eq!(reach(&serving, Some("bot"), "bot"), acme, "another tenant's bot is named");
    assert_eq!(reach(&serving, None, "acme/bot"), Some(TenantScope::AllTenants));
    // The key's own grant needs no scope; the configuration's needs `write`.
    assert_eq!(reach(&keyed_with(Some("bot"), &["read"], &["agent:helper"]), None, ""), acme);
    assert_eq!(reach(&keyed(Some("bot"), &["read"]), None, "acme/bot"), None);
    assert_eq!(reach(&keyed_with(Some("bot"), &["write"], &["agent:other"]), None, ""), None);
    assert_eq!(reach(&keyed(Some("root"), &["write", "operator"]), None, ""), None);
}

/// Covers: S-07.
#[test]
fn delegated_user_cannot_serve() {
    let shop = keyed_with(Some("shop"), &["write", "act_as", "operator"], &["agent:helper"]);
    assert!(reach(&shop, None, "acme/bot").is_some());
    assert_eq!(reach(&shop, Some("bot"), "acme/bot"), None);
    assert_eq!(reach(&shop, Some("ann"), ""), None);
}

/// Covers: S-07.
#[test]
fn without_authentication_any_client_may_serve() {
    let auth = Authenticator::without_credentials(RateSettings::default(), None, metrics());
    let admitted = auth.admit(&hello(Some("ann"), None), NOW).expect("let in");
    let helper = AgentId::parse("helper").expect("a name");
    let identity = admitted.service_identity(ServiceRole::Agent(&helper), &ServedBy::default()).expect("it serves");
    assert_eq!((identity.tenants, identity.credential), (TenantScope::AllTenants, None));
}

/// Covers: S-01.
#[test]
fn key_record_altered_in_the_store_is_refused() {
    let (auth, ring, key) = keyed(Some("ann"), &["write"]);
    let good = ring.keys().values().next().expect("one").clone();
    let put = |record: ApiKeyRecord| {
        ring.replace([(record.id.clone(), record)].into());
        auth.admit(&hello(None, Some(&key)), NOW).map(|_| ())
    };
    let evil = TenantId::parse("evil").expect("a name");
    for changed in [
        ApiKeyRecord { tenant: evil, ..good.clone() },
        ApiKeyRecord { user: None, ..good.clone() },
        ApiKeyRecord { scopes: Scopes { operator: true, ..good.scopes }, ..good.clone() },
        ApiKeyRecord { expires: None, ..good.clone() },
        // As written by an earlier release.
        ApiKeyRecord { seal: None, ..good.clone() },
    ] {
        assert_eq!(put(changed.clone()), Err(AuthError::ExpiredCredential));
        assert!(ring.is_unsealed(&changed.id) && !ring.is_active(&changed.id, NOW));
    }
    assert_eq!(put(good), Ok(()));
}

/// Covers: S-05.
#[test]
fn only_forged_credentials_count_as_guesses() {
    let guesses =
        [AuthError::UnknownCredential, AuthError::Token(BadToken::Form), AuthError::Token(BadToken::Signature)];
    assert!(guesses.iter().all(AuthError::is_guess));
    let made = [
        AuthError::ExpiredCredential,
        AuthError::OtherUser,
        AuthError::MalformedCredential,
        AuthError::NoCredential,
        AuthError::UserId,
        AuthError::Token(BadToken::Key),
        AuthError::Token(BadToken::Claims),
        AuthError::Token(BadToken::Time),
    ];
    assert!(!made.iter().any(AuthError::is_guess));
}

/// The token of a run is no token of files with another beginning, nor the other way round.
///
/// Covers: PR-24, S-06.
#[tokio::test]
async fn tokens_of_one_secret_serve_one_purpose() {
    let runs = RunTokens::new(None, in_memory());
    let files = FileTokens::new(runs.secret().clone());
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
    let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse("m1").expect("a name"));
    let run = runs.mint(&TokenRun { tenant: key.tenant.clone(), run_id }).await.expect("a token");
    let file = files.mint(&FileScope { key, right: FileRight::Read, ends: Millis(100) }).expect("a token");
    assert!(runs.verify(run.reveal()).is_some() && files.verify(file.reveal(), Millis(1)).is_some());
    assert_eq!(files.verify(&run.reveal().replace("twrun_", "twfile_"), Millis(1)), None);
    assert_eq!(runs.verify(&file.reveal().replace("twfile_", "twrun_")), None);
}

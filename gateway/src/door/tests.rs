//! Who is let in as whom, with keys and without.
use super::key::{Record, Scopes};
use super::pepper::Pepper;
use super::*;
use crate::config::Rates;
use prometheus::Registry;
use turnway_bindings::link::{Capabilities, Credential};

const NOW: Millis = Millis(1_000_000);

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::register(&Registry::new()).expect("each family once"))
}

fn hello(user: Option<&str>, shown: Option<&str>) -> Hello {
    let user = user.map(|user| UserId::parse(user).expect("a name"));
    let credential = shown.map(|shown| Credential(shown.into()));
    let capabilities = Capabilities::default();
    Hello { user, credential, role: Role::User, agent_id: None, capabilities, runner: None, streams: true }
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
    }
    headers
}

#[test]
fn where_nobody_is_asked_who_names_none_is_the_operator() {
    let door = Door::open(Rates::default(), None, metrics());
    let local = door.admit(&hello(None, Some("key")), NOW).expect("let in").principal;
    assert!(local.operator && local.writes && local.user == UserId::local());
    let ann = door.admit(&hello(Some("ann"), None), NOW).expect("let in").principal;
    assert!(!ann.operator && ann.user.as_str() == "ann");
    let adapter = Hello { role: Role::Adapter, ..hello(None, None) };
    assert_eq!(door.admit(&adapter, NOW), Err(Denied::Role));
    assert!(door.still_admits(&Proof::Nothing, NOW));
}

/// Covers: S-07.
#[test]
fn a_request_names_its_user_once_or_not_at_all() {
    let door = Door::open(Rates::default(), None, metrics());
    let admit = |names: &[&str]| {
        let pairs: Vec<_> = names.iter().map(|name| ("x-user-id", *name)).collect();
        door.admit_request(&headers(&[&pairs[..], &[("authorization", "Basic x")]].concat()), NOW)
    };
    assert!(admit(&[]).expect("let in").principal.operator);
    let ann = admit(&["ann"]).expect("let in").principal;
    assert!(!ann.operator && ann.user.as_str() == "ann");
    assert_eq!(admit(&["änn"]).expect("let in").principal.user.as_str(), "änn");
    for bad in [&[""][..], &["ann", "ann"], &["a\tb"], &[&"x".repeat(257)]] {
        assert_eq!(admit(bad), Err(Denied::Name), "{bad:?}");
    }
}

/// A door with one key of this user and these scopes, and the key.
fn keyed(user: Option<&str>, scopes: &[&str]) -> (Door, Keyring, String) {
    let ring = Keyring::new(Pepper::of("0123456789abcdef0123456789abcdef").expect("long enough"));
    let key = ApiKey::make().expect("chance");
    let record = Record {
        id: key.id().clone(),
        hash: key.hash(ring.pepper()),
        pepper: ring.pepper().id().clone(),
        tenant: TenantId::parse("acme").expect("a name"),
        user: user.map(|user| UserId::parse(user).expect("a name")),
        scopes: Scopes::parse(scopes.iter().copied()).expect("scopes"),
        label: None,
        created: Millis(0),
        expires: Some(Millis(2_000_000)),
        revoked: None,
    };
    ring.replace([(record.id.clone(), record)].into());
    (Door::of(Some(ring.clone()), None, Rates::default(), None, metrics()), ring, key.reveal())
}

/// Covers: S-07.
#[test]
fn a_key_says_who_its_bearer_is() {
    let (door, _, key) = keyed(Some("ann"), &["write"]);
    let let_in = door.admit(&hello(None, Some(&key)), NOW).expect("let in");
    let ann = &let_in.principal;
    assert!(matches!(&let_in.proof, Proof::Key(id) if key.contains(id.as_str())));
    assert_eq!((ann.tenant.as_str(), ann.user.as_str()), ("acme", "ann"));
    assert!(ann.writes && !ann.operator);
    assert_eq!(door.admit(&hello(Some("ann"), Some(&key)), NOW), Ok(let_in.clone()));
    assert_eq!(door.admit(&hello(Some("bob"), Some(&key)), NOW), Err(Denied::Other));
    let bearer = format!("Bearer {key}");
    assert_eq!(door.admit_request(&headers(&[("authorization", &bearer)]), NOW), Ok(let_in.clone()));
    let lower = format!("bearer  {key} ");
    assert_eq!(door.admit_request(&headers(&[("authorization", &lower)]), NOW), Ok(let_in));
    let named = headers(&[("authorization", &bearer), ("x-user-id", "bob")]);
    assert_eq!(door.admit_request(&named, NOW), Err(Denied::Other));
}

#[test]
fn who_may_act_as_others_has_their_rights_and_no_more() {
    let (door, _, key) = keyed(None, &["read", "act_as", "operator"]);
    let own = door.admit(&hello(None, Some(&key)), NOW).expect("let in").principal;
    assert!(own.operator && !own.writes && own.user.as_str().starts_with("key:"));
    let ann = door.admit(&hello(Some("ann"), Some(&key)), NOW).expect("let in").principal;
    assert!(!ann.operator && !ann.writes && ann.user.as_str() == "ann");
}

/// Covers: S-01.
#[test]
fn what_is_no_good_key_opens_nothing() {
    let (door, ring, key) = keyed(Some("ann"), &["write"]);
    let (_, _, other) = keyed(Some("ann"), &["write"]);
    let mut guessed = key.clone();
    let last = guessed.pop().expect("a letter");
    guessed.push(if last == 'a' { 'b' } else { 'a' });
    assert_eq!(door.admit(&hello(Some("ann"), None), NOW), Err(Denied::Nothing));
    for bad in ["", "key", &other, &guessed, "twk_aaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaa"] {
        assert_eq!(door.admit(&hello(Some("ann"), Some(bad)), NOW), Err(Denied::Credential), "{bad}");
        let bearer = format!("Bearer {bad}");
        let headers = headers(&[("authorization", &bearer)]);
        assert_eq!(door.admit_request(&headers, NOW), Err(Denied::Credential), "{bad}");
    }
    let good = format!("Bearer {key}");
    for pairs in [
        &[("authorization", good.as_str()), ("authorization", &good)][..],
        &[("authorization", &key)],
        &[("authorization", "Basic Zm9v")],
    ] {
        assert_eq!(door.admit_request(&headers(pairs), NOW), Err(Denied::Credential));
    }
    assert_eq!(door.admit_request(&headers(&[]), NOW), Err(Denied::Nothing));
    let proof = door.admit(&hello(None, Some(&key)), NOW).expect("let in").proof;
    assert!(door.still_admits(&proof, NOW) && !door.still_admits(&Proof::Nothing, NOW));
    // In time, and not too late; then it is taken back.
    assert_eq!(door.admit(&hello(None, Some(&key)), Millis(2_000_000)), Err(Denied::Credential));
    let keys = ring.keys();
    let revoked = keys.values().cloned().map(|record| Record { revoked: Some(NOW), ..record });
    ring.replace(revoked.map(|record| (record.id.clone(), record)).collect());
    assert_eq!(door.admit(&hello(None, Some(&key)), NOW), Err(Denied::Credential));
    assert!(!door.still_admits(&proof, NOW));
}

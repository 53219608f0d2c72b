//! Tokens of an identity provider: valid, forged and expiring ones, and the provider's keys.
use crate::forgeries::{forged, with, without};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::timeout;
use turnway_core::limits;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::identity::{Key, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::provider::{AUDIENCE, Provider, Signer, claims, flags, seconds};
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

/// Seconds from the expiry of a token to the close of its connection (S-03).
const GRACE: i64 = 25;

async fn start(dir: &TempDir, flags: &[String]) -> Node {
    let flags: Vec<&str> = ["--demo"].into_iter().chain(flags.iter().map(String::as_str)).collect();
    Node::start(dir.path(), &flags).await
}

/// Sends `hello` with this token and returns the connection with its welcome.
async fn welcome(node: &Node, token: &str) -> Result<(WebSocketClient, Value), ConnectionEnd> {
    let mut wire = WebSocketClient::open(node.http).await?;
    wire.say(json!({"type": "hello", "token": token})).await?;
    let welcome = wire.next().await?;
    match welcome["type"].as_str() {
        Some("welcome") => Ok((wire, welcome)),
        _ => {
            assert_eq!(welcome["code"], "unauthorized", "{welcome}");
            Err(wire.until(|_| false).await.err().unwrap_or(ConnectionEnd::Closed(0)))
        }
    }
}

async fn is_let_in(node: &Node, token: &str) -> bool {
    match welcome(node, token).await {
        Ok(_) => true,
        Err(gone) => {
            assert_eq!(gone, ConnectionEnd::Closed(4401));
            false
        }
    }
}

/// Covers: S-02, S-06, S-07.
#[tokio::test]
async fn token_grants_access_only_to_its_own_user() {
    let signers = [Signer::rsa("r"), Signer::p256("e"), Signer::ed25519("o")];
    let provider = Provider::start(&signers.each_ref()).await;
    let dir = tempdir().expect("a directory");
    let node = start(&dir, &provider.flags()).await;
    for signer in &signers {
        let said = claims("auth0|ann");
        let (mut wire, welcome) = welcome(&node, &signer.token(&said)).await.expect("let in");
        assert_eq!(welcome["expires_ts"], json!(said["exp"].as_i64().expect("a time") * 1000));
        wire.turn("anns", "echo", signer.alg(), "hello").await.expect("a turn");
    }
    let web = |claims: &Value| Web::new(node.http, None).bearer(&signers[1].token(claims));
    let seen = web(&claims("auth0|ann")).json("/v1/sessions").await;
    assert_eq!(seen["sessions"][0]["user_id"], "auth0|ann", "{seen}");
    // Variations that providers use: several audiences, further claims, another spelling of the type.
    let said = with(claims("auth0|ann"), "aud", json!(["other", AUDIENCE]));
    assert_eq!(web(&with(said, "azp", "app")).json("/v1/sessions").await, seen);
    let head = json!({"alg": "ES256", "kid": "e", "typ": "at+JWT"});
    assert!(is_let_in(&node, &signers[1].with_head(&head, &claims("ann"))).await);
    assert!(is_let_in(&node, &signers[1].with_head(&without(head, "typ"), &claims("ann"))).await);
    // Other users see nothing of the session, in her tenant or another, with the same name or as operator.
    let other = claims("bob");
    let abroad = with(claims("auth0|ann"), "tenant", "acme");
    let boss = with(with(claims("bob"), "tenant", "acme"), "scope", "openid turnway:operator turnway:write");
    for said in [&other, &abroad, &boss] {
        assert_eq!(web(said).json("/v1/sessions").await["sessions"], json!([]), "{said}");
        assert_eq!(web(said).get("/v1/sessions/anns").await.status, 404, "{said}");
    }
    // The token's scopes are applied too.
    let boss = with(claims("boss"), "scope", "turnway:operator");
    assert_eq!(web(&boss).json("/v1/sessions").await["sessions"][0]["session_id"], "anns");
    let reader = with(claims("auth0|ann"), "scope", "turnway:read");
    let (mut wire, _) = welcome(&node, &signers[0].token(&reader)).await.expect("let in");
    let answer = wire.ask("q", invoke("anns", "echo", "hi")).await.expect("an answer");
    assert_eq!(answer["code"], "forbidden", "{answer}");
    // Another user's name is accepted only with `act_as`.
    let actor = with(claims("shop"), "scope", "turnway:write turnway:act_as");
    for (said, status) in [(&actor, 200), (&claims("bob"), 401)] {
        let web = Web::new(node.http, Some("auth0|ann")).bearer(&signers[2].token(said));
        assert_eq!(web.get("/v1/sessions/anns").await.status, status, "{said}");
    }
}

/// Covers: S-02, S-07.
#[tokio::test]
async fn forged_tokens_are_refused() {
    let rsa = Signer::rsa("r");
    let p256 = Signer::p256("e");
    let ed = Signer::ed25519("o");
    // A key for encryption must not be accepted for signatures.
    let sealing = Signer::p256("s");
    let provider = Provider::start(&[]).await;
    let keys = json!({"keys": [rsa.jwk(), p256.jwk(), ed.jwk(), with(sealing.jwk(), "use", "enc")]});
    provider.show_text("200 OK", "", &keys.to_string());
    let dir = tempdir().expect("a directory");
    let node = start(&dir, &provider.flags()).await;
    assert!(is_let_in(&node, &p256.token(&claims("ann"))).await, "a good one is");
    let mut forged = forged(&rsa, &p256);
    forged.push(("by a key that is not for signing", sealing.token(&claims("ann"))));
    assert!(forged.len() >= 20);
    for (what, token) in &forged {
        let mut seen = Vec::new();
        // A token that is too long for a hello gets another error.
        if token.len() < 3000 {
            seen.push(is_let_in(&node, token).await);
        }
        let reply = Web::new(node.http, None).bearer(token).get("/v1/sessions").await;
        assert_eq!((reply.status, reply.json()["code"].as_str()), (401, Some("unauthorized")), "{what}");
        // The error does not say which part of the token is wrong.
        assert!(reply.text.contains("the credential is not valid"), "{what}: {}", reply.text);
        assert!(!seen.contains(&true), "{what}");
    }
    assert_eq!(provider.asked(), 1, "names of keys that are made up have nothing fetched");
    assert!(is_let_in(&node, &ed.token(&claims("ann"))).await, "a good one still is");
    let log = node.log();
    for (what, token) in forged.iter().filter(|(_, token)| token.len() > 100) {
        assert!(!log.contains(&token[..60]), "{what} is in the log");
    }
}

/// Closes one connection whose token expires and keeps another with the same token that is refreshed; an HTTP
/// request cannot refresh and ends with its token.
///
/// Covers: S-03.
#[tokio::test]
async fn connection_closes_after_token_expiry_unless_refreshed() {
    let signer = Signer::ed25519("o");
    let provider = Provider::start(&[&signer]).await;
    let dir = tempdir().expect("a directory");
    let node = start(&dir, &provider.flags()).await;
    // The token has expired, by less than clocks may differ: the grace period counts from its expiry, not
    // from now.
    let exp = seconds(-4);
    let token = signer.token(&with(claims("ann"), "exp", exp));
    let (mut dying, welcome_) = welcome(&node, &token).await.expect("let in");
    assert_eq!(welcome_["expires_ts"], json!(exp * 1000));
    let accepted = dying.ask("r1", invoke("s1", "counter", "count to 2000 every 50ms")).await.expect("accepted");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    let (mut kept, _) = welcome(&node, &token).await.expect("let in");
    let next = seconds(600);
    let fresh = signer.token(&with(claims("ann"), "exp", next));
    let answer = kept.ask("f", json!({"type": "refresh", "token": fresh})).await.expect("an answer");
    assert_eq!((&answer["type"], &answer["expires_ts"]), (&json!("refreshed"), &json!(next * 1000)));
    kept.ask("s", json!({"type": "subscribe", "session_id": "s1", "after_seq": 0})).await.expect("subscribed");
    let events = [("accept", "text/event-stream")];
    let web = Web::new(node.http, None).bearer(&token);
    let mut stream = web.open("GET", "/v1/sessions/s1/events", &events, "").await;
    assert_eq!(stream.status, 200);
    let ends = async {
        let all = async { while stream.more().await {} };
        timeout(PATIENCE, all).await.expect("it ends with its token");
        seconds(0)
    };
    let dies = async {
        let mut last = 0;
        loop {
            match dying.next().await {
                Ok(message) if message["type"] == "error" => assert_eq!(message["code"], "unauthorized"),
                Ok(message) => last = message["ts"].as_i64().expect("a time"),
                Err(gone) => return (gone, last, seconds(0)),
            }
        }
    };
    let (ended, (gone, last, died)) = tokio::join!(ends, dies);
    assert_eq!(gone, ConnectionEnd::Closed(4401));
    assert!(last <= (exp + GRACE) * 1000, "the last frame came {} ms too late", last - (exp + GRACE) * 1000);
    assert!(last > (exp + GRACE - 2) * 1000 && died <= exp + GRACE + 2, "it was served to the end of its grace");
    assert!(ended <= exp + GRACE, "{ended}");
    // The run of the closed connection continues, and the refreshed connection sees its end.
    let asked = kept.ask("c", json!({"type": "cancel_run", "run_id": accepted["run_id"]})).await;
    drop(asked);
    kept.until(|message| message["type"] == "done").await.expect("an end");
}

/// Covers: S-03.
#[tokio::test]
async fn refresh_with_another_identity_or_rights_is_refused() {
    let signer = Signer::p256("e");
    let provider = Provider::start(&[&signer]).await;
    let dir = tempdir().expect("a directory");
    let mut flags = flags("keys+jwt", &provider.url());
    let pepper = pepper(dir.path());
    flags.extend(["--auth-pepper".to_owned(), pepper.to_str().expect("UTF-8").to_owned()]);
    let node = start(&dir, &flags).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let first = signer.token(&claims("ann"));
    let refresh = |token: &str| json!({"type": "refresh", "token": token});
    for (what, next) in [
        ("another user", signer.token(&claims("bob"))),
        ("another tenant", signer.token(&with(claims("ann"), "tenant", "acme"))),
        ("other rights", signer.token(&with(claims("ann"), "scope", "turnway:read"))),
        ("more rights", signer.token(&with(claims("ann"), "scope", "turnway:write turnway:operator"))),
        ("over", signer.token(&with(claims("ann"), "exp", seconds(-60)))),
        ("forged", Signer::p256("e").token(&claims("ann"))),
        ("a key", key.text.clone()),
        ("nothing", String::new()),
    ] {
        let (mut wire, _) = welcome(&node, &first).await.expect("let in");
        let told = wire.ask("f", refresh(&signer.token(&claims("ann")))).await.expect("an answer");
        assert_eq!(told["type"], "refreshed", "{told}");
        wire.say(refresh(&next)).await.expect("said");
        let told = wire.next().await.expect("an answer");
        assert_eq!(told["code"], "unauthorized", "{what}: {told}");
        assert_eq!(wire.until(|_| false).await, Err(ConnectionEnd::Closed(4401)), "{what}");
    }
    // With `act_as` the effective user stays; the bearer must be the same.
    let shop = |name: &str| signer.token(&with(claims(name), "scope", "turnway:write turnway:act_as"));
    let hello = json!({"type": "hello", "token": shop("shop"), "user_id": "ann"});
    let mut wire = WebSocketClient::open(node.http).await.expect("open").greet_with(hello).await.expect("let in");
    let told = wire.ask("f", refresh(&shop("shop"))).await.expect("an answer");
    assert_eq!(told["type"], "refreshed", "{told}");
    wire.say(refresh(&shop("other-shop"))).await.expect("said");
    assert_eq!(wire.until(|_| false).await, Err(ConnectionEnd::Closed(4401)));
    // A key does not expire with the connection, so a refresh is an error; both kinds of credentials are
    // accepted.
    let mut wire = key.hello(node.http, None).await.expect("let in");
    let told = wire.ask("f", refresh(&first)).await.expect("an answer");
    assert_eq!(told["code"], "invalid_message", "{told}");
    wire.turn("s1", "echo", "m1", "hello").await.expect("a turn");
}

/// Covers: S-02.
#[tokio::test]
async fn provider_keys_are_replaced_on_fetch() {
    let old = Signer::p256("old");
    let new = Signer::rsa("new");
    let provider = Provider::start(&[&old]).await;
    let elsewhere = Provider::start(&[&new]).await;
    let dir = tempdir().expect("a directory");
    let node = start(&dir, &provider.flags()).await;
    let (mut wire, _) = welcome(&node, &old.token(&claims("ann"))).await.expect("let in");
    provider.show(&[&new]);
    for _ in 0..20 {
        assert!(!is_let_in(&node, &new.token(&claims("ann"))).await);
    }
    assert_eq!(provider.asked(), 1, "nothing is fetched twice within 30 s because a token wants it");
    // SIGHUP fetches at once. Redirects, oversized bodies and empty key sets do not count as answers: the
    // earlier keys stay.
    let large = "x".repeat(65 * 1024);
    let away = format!("location: {}\r\n", elsewhere.url());
    for (n, (status, headers, body)) in
        [("302 Found", away.as_str(), ""), ("200 OK", "", large.as_str()), ("200 OK", "", "{\"keys\":[]}")]
            .into_iter()
            .enumerate()
    {
        provider.show_text(status, headers, body);
        fetched_again(&node, &provider).await;
        assert!(is_let_in(&node, &old.token(&claims("ann"))).await, "{n}");
        assert!(!is_let_in(&node, &new.token(&claims("ann"))).await, "{n}");
    }
    assert_eq!(elsewhere.asked(), 0);
    provider.show(&[&new]);
    fetched_again(&node, &provider).await;
    assert!(is_let_in(&node, &new.token(&claims("ann"))).await);
    assert!(!is_let_in(&node, &old.token(&claims("ann"))).await);
    // A connection stays open until its token expires.
    wire.turn("s1", "echo", "m1", "hello").await.expect("a turn");
}

/// Makes a node fetch the keys, and waits until they are in use.
async fn fetched_again(node: &Node, provider: &Provider) {
    let counted = async || {
        let text = Web::new(node.admin, None).get("/metrics").await.text;
        let lines = text.lines().filter(|line| line.starts_with("turnway_auth_jwks_fetches_total{"));
        lines.map(|line| line.rsplit_once(' ').expect("a value").1.parse::<f64>().expect("a number")).sum::<f64>()
    };
    let asked = provider.asked();
    let before = counted().await;
    node.signal("-HUP").await;
    let done = async { while counted().await <= before {} };
    tokio::time::timeout(Duration::from_secs(10), done).await.expect("it fetches on SIGHUP");
    assert_eq!(provider.asked(), asked + 1);
}

/// Covers: S-02.
#[tokio::test]
async fn node_starts_without_its_provider_and_reads_key_files() {
    let signer = Signer::ed25519("o");
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("jwks.json");
    let flags = flags("jwt", file.to_str().expect("UTF-8"));
    let provider = Provider::start(&[]).await;
    provider.show_text("503 Service Unavailable", "", "");
    let elsewhere = tempdir().expect("a directory");
    let away = start(&elsewhere, &provider.flags()).await;
    assert!(!is_let_in(&away, &signer.token(&claims("ann"))).await);
    assert!(away.log().contains("auth.jwks"), "{}", away.log());
    std::fs::write(&file, json!({"keys": [signer.jwk()]}).to_string()).expect("a file");
    let node = start(&dir, &flags).await;
    assert!(is_let_in(&node, &signer.token(&claims("ann"))).await);
}

/// Counts forged tokens in refreshes of an open connection too.
///
/// Covers: S-05, S-03.
#[tokio::test]
async fn forged_refreshes_lock_the_address() {
    let signer = Signer::p256("e");
    let provider = Provider::start(&[&signer]).await;
    let dir = tempdir().expect("a directory");
    let mut flags = provider.flags();
    flags.extend(["--per-address".to_owned(), "50".to_owned()]);
    let node = start(&dir, &flags).await;
    let good = signer.token(&claims("ann"));
    for n in 0..limits::AUTH_FAILURES_MAX {
        let (mut wire, _) = welcome(&node, &good).await.unwrap_or_else(|gone| panic!("{n}: {gone:?}"));
        let forged = Signer::p256("e").token(&claims("ann"));
        wire.say(json!({"type": "refresh", "token": forged})).await.expect("said");
        assert_eq!(wire.until(|_| false).await, Err(ConnectionEnd::Closed(4401)), "{n}");
    }
    let reply = Web::new(node.http, None).bearer(&good).get("/v1/sessions").await;
    reply.must_be(429, "rate_limited");
}

/// Limits refreshes by the connection's rate, because each one verifies a signature.
///
/// Covers: S-17, S-03.
#[tokio::test]
async fn refreshes_are_rate_limited() {
    let signer = Signer::p256("e");
    let provider = Provider::start(&[&signer]).await;
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("turnway.toml");
    std::fs::write(&file, "[rate]\nconnection = \"6/m\"\n").expect("a file");
    let mut flags = provider.flags();
    flags.extend(["--config".to_owned(), file.display().to_string()]);
    let node = start(&dir, &flags).await;
    let (mut wire, _) = welcome(&node, &signer.token(&claims("ann"))).await.expect("let in");
    let mut lines = Vec::new();
    for n in 0..7 {
        let refresh = json!({"type": "refresh", "token": signer.token(&claims("ann"))});
        lines.push(wire.ask(&format!("f{n}"), refresh).await.expect("an answer"));
    }
    let good = lines.iter().take_while(|lines| lines["type"] == "refreshed").count();
    assert!((5..7).contains(&good), "{lines:?}");
    assert_eq!(lines[good]["code"], "rate_limited", "{lines:?}");
    assert!(lines[good]["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0), "{lines:?}");
}

//! API keys: creation, access, refusal, distribution to other nodes, and revocation.
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::{Instant, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::run;
use turnway_tests::real::identity::{Key, guarded, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

/// Maximum time until a revoked key gives no access any more (S-01).
const REVOKED_WITHIN: Duration = Duration::from_secs(5);

/// The paths that need no credential: the API's documents.
const DOCUMENTS: [&str; 2] = ["/openapi.json", "/asyncapi.json"];

/// Asserts that a connection was refused.
async fn denied(wire: Result<WebSocketClient, ConnectionEnd>) {
    assert_eq!(wire.map(|_| "let in"), Err(ConnectionEnd::Closed(4401)));
}

/// Covers: S-01, S-07, MP-D1.
#[tokio::test]
async fn key_grants_access_only_to_its_own_user() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--demo"]).await;
    let ann = Key::make(&node, &["--user", "ann"]).await;
    let bob = Key::make(&node, &["--user", "bob"]).await;
    let mut wire = ann.hello(node.http, None).await.expect("let in");
    wire.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    // Over HTTP the same key is the same user.
    let seen = Web::new(node.http, None).key(&ann).json("/v1/sessions").await;
    assert_eq!((&seen["sessions"][0]["session_id"], &seen["sessions"][0]["user_id"]), (&json!("s1"), &json!("ann")));
    let reply = Web::new(node.http, Some("ann")).key(&ann).get("/v1/sessions/s1/messages").await;
    assert!(reply.status == 200 && reply.text.contains("hello"), "{}", reply.text);
    let seen = Web::new(node.http, None).key(&bob).json("/v1/sessions").await;
    assert_eq!(seen["sessions"], json!([]));
    assert_eq!(Web::new(node.http, None).key(&bob).get("/v1/sessions/s1").await.status, 404);
    // A key of one user is refused with another user's name.
    denied(bob.hello(node.http, Some("ann")).await).await;
    let reply = Web::new(node.http, Some("ann")).key(&bob).get("/v1/sessions").await;
    assert_eq!((reply.status, reply.json()["code"].as_str()), (401, Some("unauthorized")));
    // Nobody acts as the account of a platform, also with a key that may act as others.
    let server = Key::make(&node, &["--scopes", "write,act_as"]).await;
    denied(server.hello(node.http, Some("channel:rooms/main")).await).await;
    let reply = Web::new(node.http, Some("channel:rooms/main")).key(&server).get("/v1/sessions").await;
    assert_eq!((reply.status, reply.json()["code"].as_str()), (400, Some("invalid_message")), "{}", reply.text);
    assert!(server.hello(node.http, Some("ann")).await.is_ok());
    // Claims of a client about itself are ignored.
    let hello = json!({"type": "hello", "api_key": bob.text, "tenant": "default", "scopes": ["operator"],
        "operator": true, "principal": {"user": "ann", "operator": true}, "client_meta": {"user_id": "ann"}});
    let mut wire = WebSocketClient::open(node.http).await.expect("open").greet_with(hello).await.expect("let in");
    let claims = json!({"type": "subscribe", "session_id": "s1", "user_id": "ann", "scopes": ["operator"]});
    let answer = wire.ask("q", claims).await.expect("an answer");
    assert_eq!(answer["code"], "not_found", "{answer}");
    let claims = ["x-user", "x-forwarded-user", "x-tenant", "x-scopes", "x-role"].map(|name| (name, "ann"));
    let claims = [&claims[..], &[("x-scopes", "operator"), ("cookie", "user=ann")]].concat();
    let web = Web::new(node.http, None).key(&bob);
    let reply = web.ask("GET", "/v1/sessions/s1?user_id=ann&operator=true", &claims, "").await;
    assert!(reply.status == 400 || reply.status == 404, "{}: {}", reply.status, reply.text);
    assert_eq!(web.ask("GET", "/v1/sessions/s1", &claims, "").await.status, 404);
    // A key with `act_as` acts with the other user's rights; without a user name it is only the key itself.
    let shop = Key::make(&node, &["--scopes", "write,act_as"]).await;
    let mut wire = shop.hello(node.http, Some("ann")).await.expect("let in");
    let answer = wire.ask("q", json!({"type": "subscribe", "session_id": "s1"})).await.expect("an answer");
    assert_eq!(answer["type"], "subscribed", "{answer}");
    let mut wire = shop.hello(node.http, None).await.expect("let in");
    let answer = wire.ask("q", json!({"type": "subscribe", "session_id": "s1"})).await.expect("an answer");
    assert_eq!(answer["code"], "not_found", "{answer}");
    // OpenAI's clients send their key in the same header.
    let models = Web::new(node.http, None).key(&ann).json("/v1/models").await;
    assert!(models["data"].as_array().is_some_and(|models| !models.is_empty()), "{models}");
}

/// Covers: S-01, S-07.
#[tokio::test]
async fn requests_without_a_valid_key_are_unauthorized() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--demo"]).await;
    let ann = Key::make(&node, &["--user", "ann"]).await;
    let unknown = "twk_aaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    let (front, secret) = ann.text.rsplit_once('_').expect("three parts");
    let guessed = format!("{front}_{}", secret.chars().rev().collect::<String>());
    let cut = &ann.text[..ann.text.len() - 1];
    for shown in [None, Some(""), Some("ann"), Some(unknown), Some(&guessed), Some(cut), Some(&ann.id)] {
        for field in ["api_key", "token"] {
            let mut hello = json!({"type": "hello", "user_id": "ann"});
            shown.into_iter().for_each(|shown| hello[field] = shown.into());
            let wire = WebSocketClient::open(node.http).await.expect("open");
            denied(wire.greet_with(hello).await).await;
        }
        let header = format!("Bearer {}", shown.unwrap_or_default());
        let headers = [("authorization", header.as_str())];
        let headers = &headers[..usize::from(shown.is_some())];
        // Every path except those of the API documents.
        let document = Web::new(node.http, None).json("/openapi.json").await;
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for method in methods.as_object().expect("methods").keys().filter(|_| !DOCUMENTS.contains(&path.as_str())) {
                let path = path.replace("{session_id}", "s1").replace("{run_id}", &format!("s1.{}", "a".repeat(26)));
                let path = path.replace("{sha256}", &"a".repeat(64));
                let headers = [headers, &[("content-type", "application/json")]].concat();
                let body = r#"{"message": {"content": "x"}}"#;
                let reply = Web::new(node.http, Some("ann")).ask(&method.to_uppercase(), &path, &headers, body).await;
                assert_eq!(reply.status, 401, "{method} {path}: {}", reply.text);
                assert_eq!(reply.headers["www-authenticate"], "Bearer");
                assert_eq!(reply.json()["code"], "unauthorized", "{method} {path}");
            }
        }
        for path in ["/v1/models", "/v1/models/agent/echo"] {
            let reply = Web::new(node.http, None).ask("GET", path, headers, "").await;
            assert_eq!(reply.status, 401, "{path}: {}", reply.text);
        }
        let body = r#"{"model": "agent/echo", "messages": [{"role": "user", "content": "x"}]}"#;
        let headers = [headers, &[("content-type", "application/json")]].concat();
        let reply = Web::new(node.http, None).ask("POST", "/v1/chat/completions", &headers, body).await;
        assert_eq!((reply.status, &reply.json()["error"]["type"]), (401, &json!("authentication_error")));
    }
    assert!(!node.log().contains(secret), "a key's secret is in the log");
}

/// Covers: S-01.
#[tokio::test]
async fn store_contains_no_key_secrets() {
    let dir = tempdir().expect("a directory");
    let mut node = guarded(&dir, &["--demo"]).await;
    let mut keys = Vec::new();
    for n in 0..20 {
        keys.push(Key::make(&node, &["--user", &format!("u{n}"), "--label", "canary-label"]).await);
    }
    keys[0].revoke(&node).await;
    let mut wire = keys[1].hello(node.http, None).await.expect("let in");
    wire.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    assert_eq!(node.terminate().await, Some(0));
    let mut found = 0;
    for entry in walk(dir.path()) {
        let bytes = std::fs::read(&entry).expect("readable");
        let has = |needle: &str| bytes.windows(needle.len()).any(|part| part == needle.as_bytes());
        found += usize::from(has("canary-label"));
        for key in &keys {
            let (_, secret) = key.text.rsplit_once('_').expect("three parts");
            assert!(!has(secret), "{}", entry.display());
        }
    }
    assert!(found > 0, "what is kept of them was read");
    // The keys work after a restart, and none works with another pepper.
    node.restart().await;
    keys[1].hello(node.http, None).await.expect("let in");
    denied(keys[0].hello(node.http, None).await).await;
    assert_eq!(node.terminate().await, Some(0));
    std::fs::write(pepper(dir.path()), "another pepper for tests, as long as that\n").expect("a file");
    node.restart().await;
    denied(keys[1].hello(node.http, None).await).await;
    let admin = format!("http://{}", node.admin);
    let listed = run(dir.path(), &["key", "list", "--json", "--admin", &admin], &[]).await.json();
    let keys = listed["keys"].as_array().expect("keys");
    assert!(keys.len() == 20 && keys.iter().all(|key| key["good"] == false), "{listed}");
    assert!(node.log().contains("another pepper"), "{}", node.log());
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).expect("readable").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// Revokes a key at one of two nodes: its connections are closed on both, in mid-answer too, and accepted
/// turns continue for other credentials of the user.
///
/// Covers: S-01, S-08.
#[tokio::test]
async fn revoked_key_is_refused_on_all_nodes() {
    let homes = [tempdir(), tempdir()].map(|dir| dir.expect("a directory"));
    let dir = tempdir().expect("a directory");
    // Redis's append-only file is text, so that it can be searched.
    let redis = Redis::start(&dir.path().join("redis"), &["--appendonly", "yes"]);
    let pepper = pepper(dir.path());
    let flags = ["--demo", "--durability", "mem", "--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    let start = async |home: &TempDir| Node::start_on(&redis.url(), home.path(), &flags).await;
    let one = start(&homes[0]).await;
    let two = start(&homes[1]).await;
    let lost = Key::make(&one, &["--user", "ann", "--label", "canary-label"]).await;
    let kept = Key::make(&two, &["--user", "ann"]).await;
    // A key becomes known on other nodes soon; the delay is not specified, so the client retries.
    for (key, node) in [(&lost, &two), (&kept, &one)] {
        let known = timeout(PATIENCE, async { while key.hello(node.http, None).await.is_err() {} });
        known.await.expect("known everywhere");
    }

    let mut idle = lost.hello(one.http, None).await.expect("let in");
    let mut busy = lost.hello(two.http, None).await.expect("let in");
    let accepted = busy.ask("r1", invoke("s1", "counter", "count to 200 every 50ms")).await.expect("accepted");
    busy.until(|message| message["type"] == "delta").await.expect("it counts");
    let events = [("accept", "text/event-stream")];
    let mut stream = Web::new(two.http, None).key(&lost).open("GET", "/v1/sessions/s1/events", &events, "").await;
    assert_eq!(stream.status, 200);
    let mut other = kept.hello(one.http, None).await.expect("let in");

    let revoked = Instant::now();
    lost.revoke(&one).await;
    let (a, b, ()) = tokio::join!(idle.until(|_| false), busy.until(|_| false), async { while stream.more().await {} });
    let took = revoked.elapsed();
    assert_eq!((a, b), (Err(ConnectionEnd::Closed(4401)), Err(ConnectionEnd::Closed(4401))));
    assert!(took < REVOKED_WITHIN, "{took:?}");
    for node in [&one, &two] {
        denied(lost.hello(node.http, None).await).await;
        assert_eq!(Web::new(node.http, None).key(&lost).get("/v1/sessions").await.status, 401);
    }
    // The turn's owner and its permitted readers have not changed.
    let answer = other.ask("q", json!({"type": "subscribe", "session_id": "s1", "after_seq": 0})).await.expect("told");
    assert_eq!(answer["type"], "subscribed", "{answer}");
    let run = other.ask("c", json!({"type": "cancel_run", "run_id": accepted["run_id"]})).await;
    drop(run);
    let done = other.until(|message| message["type"] == "done").await.expect("an end");
    assert_eq!(done["run_id"], accepted["run_id"]);
    let mut found = 0;
    for file in walk(&dir.path().join("redis")) {
        let bytes = std::fs::read(&file).expect("readable");
        let has = |needle: &str| bytes.windows(needle.len()).any(|part| part == needle.as_bytes());
        found += usize::from(has("canary-label"));
        for key in [&lost, &kept] {
            assert!(!has(key.text.rsplit_once('_').expect("three parts").1), "{}", file.display());
        }
    }
    assert!(found > 0, "what is kept of them was read");
}

/// Covers: S-01.
#[tokio::test]
async fn expired_key_closes_its_connections() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--demo"]).await;
    let made = Instant::now();
    let short = Key::make(&node, &["--user", "ann", "--lasts", "3s"]).await;
    let mut wire = short.hello(node.http, None).await.expect("let in");
    assert_eq!(wire.until(|_| false).await, Err(ConnectionEnd::Closed(4401)));
    let lasted = made.elapsed();
    assert!(lasted >= Duration::from_secs(3) && lasted < Duration::from_secs(3) + REVOKED_WITHIN, "{lasted:?}");
    denied(short.hello(node.http, None).await).await;
}

/// Covers: S-06.
#[tokio::test]
async fn read_only_key_changes_nothing() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--demo"]).await;
    let (ann, reads) =
        (Key::make(&node, &["--user", "ann"]).await, Key::make(&node, &["--user", "ann", "--scopes", "read"]).await);
    let mut wire = ann.hello(node.http, None).await.expect("let in");
    let (_, done) = wire.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    let run = done["run_id"].as_str().expect("a run");
    let mut reader = reads.hello(node.http, None).await.expect("let in");
    // The answer does not depend on the session.
    for session in ["s1", "nobodys"] {
        for request in [
            json!({"type": "session_open", "session_id": session}),
            json!({"type": "session_close", "session_id": session}),
            invoke(session, "echo", "hi"),
            json!({"type": "cancel_run", "session_id": session}),
        ] {
            let answer = reader.ask("q", request.clone()).await.expect("an answer");
            assert_eq!(answer["code"], "forbidden", "{request}: {answer}");
        }
    }
    let answer = reader.ask("q", json!({"type": "subscribe", "session_id": "s1", "after_seq": 0})).await.expect("told");
    assert_eq!(answer["type"], "subscribed", "{answer}");
    let web = Web::new(node.http, None).key(&reads);
    assert_eq!(web.get("/v1/sessions/s1/messages").await.status, 200);
    assert_eq!(web.ask("POST", &format!("/v1/runs/{run}:cancel"), &[], "").await.status, 403);
    let mut turn = web.turn("s1", "echo", "m2", "hi", None).await;
    while turn.more().await {}
    assert_eq!(turn.status, 403);
}

#[tokio::test]
async fn key_command_creates_lists_and_revokes_keys() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &[]).await;
    let admin = [("TURNWAY_ADMIN", format!("http://{}", node.admin))];
    let env: Vec<(&str, &str)> = admin.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let key = async |args: &[&str]| run(dir.path(), &[&["key"], args].concat(), &env).await;
    let made = key(&["new", "--tenant", "acme", "--label", "the shop", "--lasts", "90d"]).await;
    assert!(made.code == Some(0) && made.out.starts_with("twk_") && made.out.lines().count() == 1, "{made:?}");
    let text = made.out.trim();
    let id = made.out.split('_').nth(1).expect("its name");
    let listed = key(&["list"]).await;
    let row = listed.out.lines().nth(1).expect("a row");
    assert!(row.starts_with(id) && row.contains("valid") && row.contains("acme") && row.ends_with("the shop"), "{row}");
    assert!(!listed.out.contains(text.rsplit('_').next().expect("its secret")));
    for (args, code) in [
        (&["new", "--scopes", "root"][..], Some(1)),
        (&["new", "--tenant", "a b"], Some(1)),
        (&["new", "--user", "channel:rooms/main"], Some(1)),
        (&["new", "--lasts", "soon"], Some(64)),
        (&["revoke", "no-such-key"], Some(64)),
        (&["revoke", "aaaaaaaaaa"], Some(1)),
        (&["list", "--admin", "http://127.0.0.1:1"], Some(69)),
    ] {
        let ended = key(args).await;
        assert_eq!(ended.code, code, "{args:?}: {ended:?}");
    }
    // The whole key may be given in place of its id, and a repeated revocation succeeds.
    for _ in 0..2 {
        assert_eq!(key(&["revoke", text]).await.code, Some(0));
    }
    let listed = key(&["list", "--json"]).await.json();
    assert_eq!(listed["keys"][0]["good"], json!(false));
    assert!(listed["keys"][0]["revoked_ts"].is_u64() && listed["keys"].as_array().map(Vec::len) == Some(1));
    let open = Node::start(tempdir().expect("a directory").path(), &[]).await;
    let none = run(dir.path(), &["key", "new", "--admin", &format!("http://{}", open.admin)], &[]).await;
    assert!(none.code == Some(1) && none.err.contains("auth.pepper"), "{none:?}");
    // A page in a browser cannot create keys.
    let admin = Web::new(node.admin, None);
    let plain = admin.ask("POST", "/v1/keys", &[("content-type", "text/plain")], "{}").await;
    assert_eq!(plain.status, 415, "{}", plain.text);
    let page = [("content-type", "application/json"), ("origin", "https://evil.example")];
    assert_eq!(admin.ask("POST", "/v1/keys", &page, "{}").await.status, 403);
    let before: Value = key(&["list", "--json"]).await.json();
    assert_eq!(before["keys"].as_array().map(Vec::len), Some(1));
}

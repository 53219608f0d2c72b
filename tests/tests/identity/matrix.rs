//! Every operation on a foreign session, of another user of the same tenant or of another tenant, including
//! that tenant's operator, is answered as for an unknown session.
use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::operations::{bare, refused_as, requests};
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::invoke;
use turnway_wire::channel::authority::ClientOperation;

/// The run of ann's session, in progress at its agent, a well-formed run id that does not exist, and the hash of a
/// file of the session.
struct Target {
    run: String,
    unknown: String,
    file: String,
}

/// A foreign credential that tries to access the session.
struct ForeignCredential {
    what: &'static str,
    key: Key,
    user: Option<&'static str>,
    /// The credential is of another tenant, in which the session's name is free.
    other_tenant: bool,
}

async fn foreign_credentials(node: &Node) -> Vec<ForeignCredential> {
    let acme = |rest: &'static str| ["--tenant", "acme", rest];
    let mallory = Key::make(node, &[&acme("--user")[..], &["mallory"]].concat()).await;
    let shop = Key::make(node, &[&acme("--scopes")[..], &["write,act_as"]].concat()).await;
    // Each has a tenant of its own, so that none finds a session that another created.
    let evil = async |tenant, rest: [&str; 2]| Key::make(node, &[&["--tenant", tenant][..], &rest].concat()).await;
    let namesake = evil("evil", ["--user", "ann"]).await;
    let operator = evil("worse", ["--scopes", "write,operator"]).await;
    let actor = evil("worst", ["--scopes", "write,act_as,operator"]).await;
    vec![
        ForeignCredential { what: "another user", key: mallory, user: None, other_tenant: false },
        ForeignCredential { what: "who acts as another user", key: shop, user: Some("mallory"), other_tenant: false },
        ForeignCredential { what: "a user of the same name", key: namesake, user: None, other_tenant: true },
        ForeignCredential { what: "another tenant's operator", key: operator, user: None, other_tenant: true },
        ForeignCredential { what: "who acts as one of that name", key: actor, user: Some("ann"), other_tenant: true },
    ]
}

/// Covers: S-06, S-56, S-55, G-21, G7.
#[tokio::test]
async fn foreign_sessions_are_answered_as_not_found() {
    let agents = Agents::start(|_| Reply::speak(|stream| async move { stream.hung_up().await })).await;
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--agent", &agents.flag("held")]).await;
    let ann = Key::make(&node, &["--tenant", "acme", "--user", "ann"]).await;
    let mut wire = ann.hello(node.http, None).await.expect("let in");
    let accepted = wire.ask("a1", invoke("anns", "held", "canary-secret")).await.expect("an answer");
    let run = accepted["run_id"].as_str().expect("a run").to_owned();
    wire.until(|message| message["name"] == "AGENT_STARTED").await.expect("it runs");
    let owner = Web::new(node.http, None).key(&ann);
    let path = owner.must_upload("anns", "text/plain", &Bytes::from_static(b"canary of a file")).await;
    let file = path.rsplit('/').next().expect("a hash").to_owned();
    let prize = Target { unknown: run.replacen("anns", "nobodys", 1), run, file };
    let facts = || async { owner.json("/v1/sessions/anns/events").await };
    let before = facts().await;
    let mut rows = 0;
    for thief in foreign_credentials(&node).await {
        rows += by_http(&node, &prize, &thief).await;
        rows += by_socket(&node, &prize, &thief).await;
    }
    assert!(rows >= 5 * 12 + 2 * 7 + 3 * 6, "{rows} rows");
    assert_eq!(facts().await["events"], before["events"], "nothing has touched ann's session");
    let files = owner.json("/v1/sessions/anns/blobs").await["blobs"].clone();
    assert!(files.as_array().expect("files").len() == 1 && files[0]["url"] == path.as_str(), "{files}");
    let answer = wire.ask("c", json!({"type": "cancel_run", "run_id": prize.run})).await;
    drop(answer);
    let done = ann.resume(node.http, None, vec![json!({"session_id": "anns", "after_seq": 0})]).await;
    let done = done.expect("let in").until(|message| message["type"] == "done").await.expect("an end");
    assert_eq!((&done["status"], &done["run_id"]), (&json!("cancelled"), &json!(prize.run)));
}

/// Sends every request of every action over WebSocket. Requests that create a session come last, because in
/// another tenant they create one with that name.
async fn by_socket(node: &Node, prize: &Target, thief: &ForeignCredential) -> usize {
    let mut actions = ClientOperation::ALL.to_vec();
    actions.sort_by_key(|action| action.creates());
    let mut rows = 0;
    for action in actions {
        let reference = if action.creates() { ClientOperation::Read } else { action };
        let unknown = requests(reference, "nobodys", &prize.unknown);
        for (n, foreign) in requests(action, "anns", &prize.run).into_iter().enumerate() {
            rows += 1;
            let mut wire = thief.key.hello(node.http, thief.user).await.expect("let in");
            if action.creates() && thief.other_tenant {
                let got = wire.ask("q", foreign.clone()).await.expect("an answer");
                assert!(!got.to_string().contains("canary"), "{}: {foreign}: {got}", thief.what);
                assert_ne!(got["run_id"], prize.run, "{}: {foreign}", thief.what);
                continue;
            }
            let got = wire.ask("q", foreign.clone()).await.expect("an answer");
            let like = if action.creates() { &unknown[0] } else { &unknown[n] };
            let want = wire.ask("q", like.clone()).await.expect("an answer");
            let allowed = refused_as(action, like);
            assert!(allowed.iter().any(|code| want["code"] == *code), "{like}: {want}");
            let got = bare(got, ["anns", &prize.run]);
            let want = bare(want, ["nobodys", &prize.unknown]);
            assert_eq!(got, want, "{}: {foreign}", thief.what);
        }
    }
    rows
}

/// Sends every operation of the API document that names a session or a run; a new kind of path parameter
/// fails the test.
async fn by_http(node: &Node, prize: &Target, thief: &ForeignCredential) -> usize {
    let web = Web::new(node.http, thief.user).key(&thief.key);
    let document = Web::new(node.http, None).json("/openapi.json").await;
    let mut rows = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            if !path.contains('{') {
                lists_nothing(&web, method, path, thief).await;
                continue;
            }
            let named = |session: &str, run: &str| {
                let path = path.replace("{session_id}", session).replace("{run_id}", run);
                let path = path.replace("{sha256}", &prize.file);
                assert!(!path.contains('{'), "no row for {method} {path}");
                path
            };
            let takes_json = operation["requestBody"]["content"]["application/json"].is_object();
            let body = match takes_json {
                true if path.ends_with("/messages") => r#"{"text": "mine?"}"#,
                true => r#"{"agent_id": "held", "message": {"content": "mine?"}}"#,
                false => "",
            };
            // Requests that create a session in another tenant are tested over WebSocket.
            if takes_json && thief.other_tenant {
                continue;
            }
            rows += 1;
            let ask = async |path: &str| {
                let headers = [("content-type", "application/json"), ("idempotency-key", "q")];
                let reply = web.ask(&method.to_uppercase(), path, &headers, body).await;
                (reply.status, reply.json())
            };
            let (status, got) = ask(&named("anns", &prize.run)).await;
            // A request that creates a session is not sent for an unknown session, because the session would
            // be created.
            let (like, want) = if takes_json {
                web_get(&web, &named("nobodys", &prize.unknown).replace("/turns", "")).await
            } else {
                ask(&named("nobodys", &prize.unknown)).await
            };
            assert_eq!((status, got), (like, want), "{}: {method} {path}", thief.what);
            assert_eq!(status, 404, "{}: {method} {path}", thief.what);
        }
    }
    rows
}

async fn web_get(web: &Web, path: &str) -> (u16, Value) {
    let reply = web.get(path).await;
    (reply.status, reply.json())
}

/// Lists whose session or conversation is named by the query or the body.
const NAMED_ELSEWHERE: [&str; 3] = ["/v1/accounts", "/v1/bindings", "/v1/deliveries"];

/// Asserts that a path without parameters reveals nothing of ann's session.
async fn lists_nothing(web: &Web, method: &str, path: &str, thief: &ForeignCredential) {
    let reply = web.ask(&method.to_uppercase(), path, &[], "").await;
    let is_named_elsewhere = NAMED_ELSEWHERE.iter().any(|lists| path.starts_with(lists));
    let is_nameless = is_named_elsewhere && [400, 403, 415].contains(&reply.status);
    assert!(reply.status == 200 || is_nameless, "{method} {path}: {}", reply.status);
    for word in ["anns", "canary"] {
        assert!(!reply.text.contains(word), "{}: {method} {path}: {}", thief.what, reply.text);
    }
    if method == "get" && NAMED_ELSEWHERE.contains(&path) {
        let found = web_get(web, &format!("{path}?session_id=anns")).await;
        assert_eq!(found, web_get(web, &format!("{path}?session_id=nobodys")).await, "{}: {path}", thief.what);
        assert_eq!(found.0, 404, "{}: {path}", thief.what);
    }
}

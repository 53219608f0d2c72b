//! The same requests over WebSocket and by `turnway bindings`, and the rights that they need.
use super::{await_recorded, bind, node_with_sessions, open, place, scope, session_of};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::run;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

/// Covers: BD-S1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_are_made_and_ended_over_websocket() {
    let dir = tempdir().expect("a directory");
    let node = node_with_sessions("memory:", &dir, &["s1"]).await;
    let mut boss = WebSocketClient::open(node.http).await.expect("a connection");
    boss = boss.greet_with(json!({"type": "hello"})).await.expect("an operator");
    let mut ask = async |id: &str, request: Value| boss.ask(id, request).await.expect("an answer");
    let bound = ask("b", json!({"type": "bind", "conversation": place("7"), "session_id": "s1"})).await;
    assert_eq!((&bound["type"], &bound["request_id"]), (&json!("bound"), &json!("b")), "{bound}");
    let binding = bound["binding"].clone();
    let found = ask("r", json!({"type": "resolve", "conversation": place("7"), "explain": true})).await;
    assert_eq!((&found["type"], &found["binding"]), (&json!("resolved"), &binding), "{found}");
    assert_eq!(found["candidates"][0]["verdict"], "bound", "{found}");
    let several = ask("m", json!({"type": "resolve", "conversations": [place("8"), place("7")]})).await;
    let expected =
        json!([{"conversation": place("8"), "binding": null}, {"conversation": place("7"), "binding": binding}]);
    assert_eq!((&several["type"], &several["resolutions"]), (&json!("resolutions"), &expected), "{several}");
    let listed = ask("l", json!({"type": "list_bindings", "session_id": "s1"})).await;
    assert_eq!((&listed["type"], &listed["bindings"]), (&json!("bindings"), &json!([binding])), "{listed}");
    let id = json!({"binding_id": binding["binding_id"], "scope": scope()});
    let with = |kind: &str, more: Value| {
        let mut request = id.clone();
        request["type"] = kind.into();
        for (name, value) in more.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        request
    };
    let touched = ask("t", with("touch", json!({}))).await;
    assert_eq!((&touched["type"], touched["bindings"].as_array().map(Vec::len)), (&json!("bindings_updated"), Some(1)));
    let changed = ask("e", with("set_binding_expiry", json!({"max_age_ms": 5_000_000}))).await;
    assert_eq!(changed["bindings"][0]["max_age_ms"], 5_000_000, "{changed}");
    let ended = ask("u", with("unbind", json!({}))).await;
    assert_eq!((&ended["type"], &ended["bindings"][0]["reason"]), (&json!("unbound"), &json!("manual")), "{ended}");
    let again = ask("t2", with("touch", json!({}))).await;
    assert_eq!(
        (&again["type"], &again["code"], &again["current"]),
        (&json!("error"), &json!("not_applied"), &Value::Null)
    );
    await_recorded(&node, "s1", &["binding.bound 7", "binding.ended 7 manual"]).await;
}

/// Covers: BD-S1, BR-33.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_are_made_and_ended_by_the_command_line() {
    let dir = tempdir().expect("a directory");
    let node = node_with_sessions("memory:", &dir, &["s1"]).await;
    let url = format!("http://{}", node.http);
    let bindings = async |args: &[&str]| {
        let out = run(dir.path(), &[&["bindings"][..], args, &["--url", &url]].concat(), &[]).await;
        (out.code, out.out + &out.err)
    };
    let (code, table) = bindings(&["bind", "rooms/main/7", "s1", "--idle", "12h", "--max-age", "7d"]).await;
    assert_eq!(code, Some(0), "{table}");
    assert!(table.contains("rooms/main/7  s1") && table.contains("idle 12h, age 7d"), "{table}");
    let (code, table) = bindings(&["ls", "s1"]).await;
    assert!(code == Some(0) && table.contains("rooms/main/7"), "{table}");
    let (code, json) = bindings(&["resolve", "rooms/main/7", "--json"]).await;
    assert!(code == Some(0) && json.contains("\"session_id\":\"s1\""), "{json}");
    let (code, table) = bindings(&["resolve", "rooms/main/8", "rooms/main/7"]).await;
    assert_eq!(code, Some(0), "{table}");
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(rows, [["rooms/main/8", "-"], ["rooms/main/7", "s1"]], "{table}");
    let (code, text) = bindings(&["resolve", "rooms/main/8", "rooms/main/7", "--parent", "9"]).await;
    assert_eq!(code, Some(64), "{text}");
    let (code, table) = bindings(&["explain", "rooms/main/8", "--parent", "7"]).await;
    assert!(code == Some(0) && table.contains("unbound: nobody has bound it"), "{table}");
    assert!(table.contains("parent: never inherited"), "{table}");
    let (code, table) = bindings(&["unbind", "rooms/main/7"]).await;
    assert!(code == Some(0) && table.contains("ended: manual"), "{table}");
    assert_eq!(session_of(&node, "7").await, Value::Null);
    let (code, text) = bindings(&["unbind", "rooms/main/7"]).await;
    assert!(code == Some(1) && text.contains("nobody has bound this conversation"), "{code:?}: {text}");
    for bad in [&["bind", "rooms/7", "s1"][..], &["unbind"], &["bind", "rooms/main/7", "s1", "--idle", "soon"]] {
        let (code, text) = bindings(bad).await;
        assert_eq!(code, Some(64), "{bad:?}: {text}");
    }
}

/// Covers: S-06, S-55, BD-B12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_operators_bind_and_tenants_do_not_share_conversations() {
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--demo"]).await;
    let boss = Key::make(&node, &["--tenant", "acme", "--scopes", "write,operator"]).await;
    let rival = Key::make(&node, &["--tenant", "other", "--scopes", "write,operator"]).await;
    let ann = Key::make(&node, &["--tenant", "acme", "--user", "ann"]).await;
    let reader = Key::make(&node, &["--tenant", "acme", "--scopes", "read,operator"]).await;
    for (key, session) in [(&ann, "s1"), (&rival, "theirs")] {
        let mut wire = key.hello(node.http, None).await.expect("let in");
        let opened = wire.ask("o", json!({"type": "session_open", "session_id": session})).await.expect("an answer");
        assert_eq!(opened["type"], "session_opened", "{opened}");
    }
    let post = async |key: &Key, path: &str, body: &Value| {
        let headers = [("content-type", "application/json")];
        let reply = Web::new(node.http, None).key(key).ask("POST", path, &headers, &body.to_string()).await;
        (reply.status, reply.json())
    };
    let body = json!({"conversation": place("7"), "session_id": "s1"});
    for key in [&ann, &reader] {
        let (status, problem) = post(key, "/v1/bindings", &body).await;
        assert_eq!((status, &problem["code"]), (403, &json!("forbidden")), "{problem}");
    }
    let (status, bound) = post(&boss, "/v1/bindings", &body).await;
    assert_eq!(status, 200, "{bound}");
    // The other tenant has a conversation of the same name, and cannot reach this one.
    let id = json!({"binding_id": bound["binding_id"], "scope": scope()});
    for path in ["/v1/bindings/unbind", "/v1/bindings/touch"] {
        let (status, problem) = post(&rival, path, &id).await;
        assert_eq!((status, &problem["current"]), (409, &Value::Null), "{problem}");
    }
    let (status, theirs) =
        post(&rival, "/v1/bindings", &json!({"conversation": place("7"), "session_id": "theirs"})).await;
    assert_eq!(status, 200, "{theirs}");
    let resolve = "/v1/bindings/resolve?channel=rooms&account_id=main&conversation_id=7";
    let session_for = async |key: &Key| {
        let reply = Web::new(node.http, None).key(key).get(resolve).await;
        (reply.status, reply.json()["binding"]["session_id"].clone())
    };
    assert_eq!(session_for(&boss).await, (200, json!("s1")));
    assert_eq!(session_for(&reader).await, (200, json!("s1")));
    assert_eq!(session_for(&rival).await, (200, json!("theirs")));
    assert_eq!(session_for(&ann).await.0, 403);
    let list = async |key: &Key| Web::new(node.http, None).key(key).get("/v1/bindings?session_id=s1").await.status;
    assert_eq!([list(&ann).await, list(&boss).await, list(&rival).await], [200, 200, 404]);
}

/// Covers: BD-S1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_are_counted_by_the_reason_of_their_end() {
    let dir = tempdir().expect("a directory");
    let node = node_with_sessions("memory:", &dir, &["s1"]).await;
    open(&node, &["s2"]).await;
    let first = bind(&node, json!({"conversation": place("7"), "session_id": "s1"})).await;
    bind(&node, json!({"conversation": place("7"), "session_id": "s2", "expected_generation": first["generation"]}))
        .await;
    await_recorded(&node, "s1", &["binding.bound 7", "binding.ended 7 rebound"]).await;
    await_recorded(&node, "s2", &["binding.bound 7"]).await;
    let lines = [
        "turnway_binding_bound_total 2",
        "turnway_binding_ended_total{reason=\"rebound\"} 1",
        "turnway_binding_ended_total{reason=\"manual\"} 0",
        "turnway_binding_work 0",
    ];
    let mut looks = interval(Duration::from_millis(100));
    let mut missing = Vec::new();
    let shown = timeout(PATIENCE, async {
        loop {
            looks.tick().await;
            let metrics = Web::new(node.admin, None).get("/metrics").await.text;
            missing = lines.into_iter().filter(|line| !metrics.lines().any(|metric| metric == *line)).collect();
            if missing.is_empty() {
                return;
            }
        }
    });
    assert!(shown.await.is_ok(), "{missing:?}");
}

//! Bindings of conversations on real nodes: made, looked up, recorded in logs, expired and ended, over every interface and
//! on both stores.
mod commands;
mod fleet;

use serde_json::{Value, json};
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::{Reply, Web};
use turnway_tests::real::wire::WebSocketClient;

/// Starts a node with open sessions of ann's.
pub(crate) async fn node_with_sessions(store: &str, dir: &TempDir, sessions: &[&str]) -> Node {
    let node = Node::start_on(store, dir.path(), &["--demo"]).await;
    open(&node, sessions).await;
    node
}

/// Opens sessions as ann.
pub(crate) async fn open(node: &Node, sessions: &[&str]) {
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    for session in sessions {
        let opened = ann.ask("o", json!({"type": "session_open", "session_id": session})).await.expect("an answer");
        assert_eq!(opened["type"], "session_opened", "{opened}");
    }
}

/// Returns a place in a channel without a platform.
pub(crate) fn place(id: &str) -> Value {
    json!({"channel": "rooms", "account_id": "main", "conversation_id": id})
}

pub(crate) fn scope() -> Value {
    json!({"channel": "rooms", "account_id": "main"})
}

/// Sends a request as an operator; the node needs no credentials.
pub(crate) async fn post(node: &Node, path: &str, body: &Value) -> Reply {
    let headers = [("content-type", "application/json")];
    Web::new(node.http, None).ask("POST", path, &headers, &body.to_string()).await
}

/// Binds a conversation, which must succeed.
pub(crate) async fn bind(node: &Node, body: Value) -> Value {
    let reply = post(node, "/v1/bindings", &body).await;
    assert_eq!(reply.status, 200, "{body}: {}", reply.text);
    reply.json()
}

/// Returns the session that a conversation is bound to, or null.
pub(crate) async fn session_of(node: &Node, id: &str) -> Value {
    let path = format!("/v1/bindings/resolve?channel=rooms&account_id=main&conversation_id={id}");
    Web::new(node.http, None).json(&path).await["binding"]["session_id"].clone()
}

/// Returns the facts about bindings in a session's log: type, conversation and reason.
pub(crate) async fn recorded(node: &Node, session: &str) -> Vec<String> {
    let path = format!("/v1/sessions/{session}/events?types=binding.*&limit=500");
    let page = Web::new(node.http, Some("ann")).json(&path).await;
    let fact = |event: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conversation = text(&event["data"]["conversation"]["conversation_id"]);
        format!("{} {conversation} {}", text(&event["type"]), text(&event["data"]["reason"])).trim_end().to_owned()
    };
    page["events"].as_array().expect("events").iter().map(fact).collect()
}

/// Waits until a session's log has these facts about bindings.
pub(crate) async fn await_recorded(node: &Node, session: &str, expected: &[&str]) {
    let mut looks = interval(Duration::from_millis(50));
    let found = timeout(4 * PATIENCE, async {
        while recorded(node, session).await != expected {
            looks.tick().await;
        }
    });
    if found.await.is_err() {
        assert_eq!(recorded(node, session).await, expected, "{session}");
    }
}

/// Touches a binding until the touch is stored, and restarts the node.
async fn touch_is_kept(node: &mut Node) {
    // A touch is stored if a tenth of the idle timeout has passed since the last one.
    let body = json!({"conversation": place("8"), "session_id": "s1", "target_kind": "acp", "idle_timeout_ms": 10_000});
    let bound = bind(node, body).await;
    assert_eq!((&bound["target_kind"], &bound["last_activity_at"]), (&json!("acp"), &bound["bound_at"]), "{bound}");
    let id = json!({"binding_id": bound["binding_id"], "scope": scope()});
    let mut touches = interval(Duration::from_millis(100));
    let touched = timeout(PATIENCE, async {
        loop {
            touches.tick().await;
            let reply = post(node, "/v1/bindings/touch", &id).await.json();
            let binding = reply["bindings"][0].clone();
            if binding["last_activity_at"] != bound["bound_at"] {
                return binding;
            }
        }
    });
    let touched = touched.await.expect("a touch is stored");
    let mut lasting = id;
    lasting["idle_timeout_ms"] = 0.into();
    let lasting = post(node, "/v1/bindings/expiry", &lasting).await.json()["bindings"][0].clone();
    assert_eq!(lasting["last_activity_at"], touched["last_activity_at"], "{lasting}");
    node.kill_and_restart().await;
    let path = "/v1/bindings/resolve?channel=rooms&account_id=main&conversation_id=8";
    assert_eq!(Web::new(node.http, None).json(path).await["binding"], lasting);
}

async fn are_kept_by(store: &str, dir: &TempDir) {
    let mut node = node_with_sessions(store, dir, &["s1", "s2"]).await;
    assert_eq!(session_of(&node, "7").await, Value::Null);
    let metadata = json!({"persona": "Ada"});
    let first = bind(&node, json!({"conversation": place("7"), "session_id": "s1", "metadata": metadata})).await;
    assert_eq!((&first["status"], &first["idle_timeout_ms"]), (&json!("active"), &json!(86_400_000)), "{first}");
    assert_eq!(first["metadata"], metadata);
    await_recorded(&node, "s1", &["binding.bound 7"]).await;
    let taken = post(&node, "/v1/bindings", &json!({"conversation": place("7"), "session_id": "s2"})).await;
    assert_eq!(taken.status, 409, "{}", taken.text);
    let problem = taken.json();
    assert_eq!((&problem["code"], &problem["current"]), (&json!("not_applied"), &first), "{problem}");
    node.kill_and_restart().await;
    assert_eq!(session_of(&node, "7").await, "s1");
    let body = json!({"conversation": place("7"), "session_id": "s2", "expected_generation": first["generation"]});
    let second = bind(&node, body).await;
    await_recorded(&node, "s1", &["binding.bound 7", "binding.ended 7 rebound"]).await;
    await_recorded(&node, "s2", &["binding.bound 7"]).await;
    // A caller that still holds the old binding changes nothing.
    let stale = json!({"binding_id": first["binding_id"], "scope": scope()});
    for path in ["/v1/bindings/unbind", "/v1/bindings/touch"] {
        let reply = post(&node, path, &stale).await;
        let current = if path.ends_with("touch") { Some(&second) } else { None };
        // The end of a binding that has ended is repeated.
        assert_eq!(reply.status, if current.is_some() { 409 } else { 200 }, "{path}: {}", reply.text);
    }
    assert_eq!(session_of(&node, "7").await, "s2");
    let unbind = json!({"binding_id": second["binding_id"], "scope": scope(), "reason": "conversation_archived"});
    let reply = post(&node, "/v1/bindings/unbind", &unbind).await.json();
    assert_eq!(reply["bindings"][0]["reason"], "conversation_archived", "{reply}");
    node.kill_and_restart().await;
    assert_eq!(session_of(&node, "7").await, Value::Null);
    await_recorded(&node, "s2", &["binding.bound 7", "binding.ended 7 conversation_archived"]).await;
    touch_is_kept(&mut node).await;
}

/// Covers: BD-S1, BD-S13, BD-B7, BD-B8, BD-L12, BD-L21.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_are_kept_and_recorded_by_the_embedded_store() {
    let dir = tempdir().expect("a directory");
    are_kept_by(&format!("embedded:{}", dir.path().join("data").display()), &dir).await;
}

/// Covers: BD-S1, BD-S13, BD-B7, BD-B8, BD-L12, BD-L21.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_are_kept_and_recorded_by_redis() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(dir.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    are_kept_by(&redis.url(), &dir).await;
}

/// Covers: BD-L2, BD-L3, BD-L9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_expire_by_themselves_and_say_why() {
    let dir = tempdir().expect("a directory");
    let node = node_with_sessions("memory:", &dir, &["s1"]).await;
    let with = |id: &str, name: &str, ms: u64| {
        let mut body = json!({"conversation": place(id), "session_id": "s1", "idle_timeout_ms": 0});
        body[name] = ms.into();
        body
    };
    bind(&node, with("idle", "idle_timeout_ms", 300)).await;
    bind(&node, with("old", "max_age_ms", 300)).await;
    bind(&node, with("kept", "max_age_ms", 0)).await;
    let ended = |id: &str| format!("binding.ended {id}");
    let mut looks = interval(Duration::from_millis(50));
    let facts = timeout(4 * PATIENCE, async {
        loop {
            let facts = recorded(&node, "s1").await;
            if facts.iter().filter(|fact| fact.starts_with(&ended(""))).count() == 2 {
                return facts;
            }
            looks.tick().await;
        }
    });
    let facts = facts.await.expect("both end");
    for expected in ["binding.ended idle idle_expired", "binding.ended old max_age_expired"] {
        assert_eq!(facts.iter().filter(|fact| *fact == expected).count(), 1, "{facts:?}");
    }
    assert_eq!(session_of(&node, "kept").await, "s1");
    let listed = Web::new(node.http, Some("ann")).json("/v1/bindings?session_id=s1").await;
    assert_eq!(listed["bindings"].as_array().map(Vec::len), Some(1), "{listed}");
}

/// Covers: BD-D7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_session_has_no_bindings() {
    let dir = tempdir().expect("a directory");
    let node = node_with_sessions("memory:", &dir, &["s1", "s2"]).await;
    for (id, session) in [("7", "s1"), ("8", "s1"), ("9", "s2")] {
        bind(&node, json!({"conversation": place(id), "session_id": session})).await;
    }
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    let closed = ann.ask("c", json!({"type": "session_close", "session_id": "s1"})).await.expect("an answer");
    assert_eq!(closed["type"], "session_closed", "{closed}");
    let mut looks = interval(Duration::from_millis(20));
    timeout(PATIENCE, async {
        while session_of(&node, "7").await != Value::Null || session_of(&node, "8").await != Value::Null {
            looks.tick().await;
        }
    })
    .await
    .expect("they end");
    assert_eq!(session_of(&node, "9").await, "s2");
    let refused = post(&node, "/v1/bindings", &json!({"conversation": place("7"), "session_id": "s1"})).await;
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("session_closed")), "{}", refused.text);
}

/// Covers: BD-B9, BD-B1, BR-34.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_about_bindings_are_refused_by_name() {
    let dir = tempdir().expect("a directory");
    let node = node_with_sessions("memory:", &dir, &["s1"]).await;
    let bound = bind(&node, json!({"conversation": place("7"), "session_id": "s1"})).await;
    let elsewhere = json!({"channel": "rooms", "account_id": "other"});
    let long = "x".repeat(3_000);
    for (path, body, status, code) in [
        ("", json!({"conversation": place("rooms:7"), "session_id": "s1"}), 400, "invalid_message"),
        ("", json!({"conversation": place(" "), "session_id": "s1"}), 400, "invalid_message"),
        ("", json!({"conversation": place("8"), "session_id": "nobodys"}), 404, "not_found"),
        ("", json!({"conversation": place("8")}), 400, "invalid_message"),
        ("", json!({"conversation": place("8"), "session_id": "s1", "metadata": {"a": long}}), 400, "invalid_message"),
        ("", json!({"conversation": place("8"), "session_id": "s1", "metadata": {"a": 1}}), 400, "invalid_message"),
        ("/unbind", json!({"scope": scope()}), 400, "invalid_message"),
        ("/unbind", json!({"binding_id": bound["binding_id"]}), 400, "invalid_message"),
        ("/unbind", json!({"binding_id": "7", "scope": scope()}), 400, "invalid_message"),
        ("/unbind", json!({"binding_id": bound["binding_id"], "scope": elsewhere}), 409, "not_applied"),
        ("/unbind", json!({"session_id": "s1", "reason": "rebound"}), 400, "invalid_message"),
        ("/expiry", json!({"session_id": "s1", "max_age_ms": -1}), 400, "invalid_message"),
        ("/touch", json!({"session_id": "s1"}), 400, "invalid_message"),
    ] {
        let reply = post(&node, &format!("/v1/bindings{path}"), &body).await;
        assert_eq!((reply.status, &reply.json()["code"]), (status, &json!(code)), "{path} {body}: {}", reply.text);
    }
    assert_eq!(session_of(&node, "7").await, "s1");
    // The same place is one place, however it is written.
    let shouted = json!({"channel": " Rooms ", "account_id": "main", "conversation_id": " 7 "});
    let again = bind(&node, json!({"conversation": shouted, "session_id": "s1"})).await;
    assert_eq!(again["conversation"], place("7"));
}

/// Looks several conversations up, before and after they are bound, with one whose time is over.
async fn looks_several_up(store: &str, dir: &TempDir) {
    let node = node_with_sessions(store, dir, &["s1", "s2"]).await;
    let look_up = async |ids: &[&str]| {
        let places: Vec<Value> = ids.iter().map(|id| place(id)).collect();
        let reply = post(&node, "/v1/bindings/resolve", &json!({ "conversations": places })).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let found = reply.json()["resolutions"].as_array().expect("a list").clone();
        let row = |(found, place): (&Value, &Value)| {
            assert_eq!(found["conversation"], *place, "in the order of the request: {found}");
            found["binding"]["session_id"].clone()
        };
        found.iter().zip(&places).map(row).collect::<Vec<Value>>()
    };
    assert_eq!(look_up(&["7", "8"]).await, [Value::Null, Value::Null]);
    bind(&node, json!({"conversation": place("7"), "session_id": "s1"})).await;
    bind(&node, json!({"conversation": place("9"), "session_id": "s2"})).await;
    assert_eq!(look_up(&["9", "8", "7", "9"]).await, [json!("s2"), Value::Null, json!("s1"), json!("s2")]);
    bind(&node, json!({"conversation": place("8"), "session_id": "s1", "max_age_ms": 1})).await;
    let mut looks = interval(Duration::from_millis(20));
    let over = timeout(PATIENCE, async {
        while look_up(&["8", "7"]).await != [Value::Null, json!("s1")] {
            looks.tick().await;
        }
    });
    over.await.expect("the time of the binding is over");
    for bad in [json!({}), json!({"conversations": []}), json!({"conversations": vec![place("7"); 65]})] {
        post(&node, "/v1/bindings/resolve", &bad).await.must_be(400, "invalid_message");
    }
}

/// Covers: BD-B10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_conversations_are_looked_up_embedded() {
    let dir = tempdir().expect("a directory");
    looks_several_up(&format!("embedded:{}", dir.path().join("data").display()), &dir).await;
}

/// Covers: BD-B10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_conversations_are_looked_up_redis() {
    let dir = tempdir().expect("a directory");
    let server = tempdir().expect("a directory");
    let redis = Redis::start(server.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    looks_several_up(&redis.url(), &dir).await;
}

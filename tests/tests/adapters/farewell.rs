//! Farewells: the last word to a conversation whose binding has ended, on one node and in a fleet.
use super::fleet::{directories, two_nodes_with};
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

const SAID: [&str; 2] = ["delivery.requested null", "delivery.sent 1"];

/// Writes a configuration with a farewell for `rooms`; returns its path.
fn configuration(dir: &Path) -> String {
    let path = dir.join("turnway.toml");
    std::fs::write(&path, "[channels.rooms]\nfarewell = \"Until next time.\"\n").expect("a file");
    path.to_str().expect("UTF-8").to_owned()
}

async fn operator(node: &Node) -> WebSocketClient {
    let client = WebSocketClient::open(node.http).await.expect("a connection");
    client.greet_with(json!({"type": "hello"})).await.expect("an operator")
}

/// Binds a conversation to a session, which is made first.
async fn bind(operator: &mut WebSocketClient, session: &str, place: Value, idle_timeout_ms: u64) {
    operator.ask("o", json!({"type": "session_open", "session_id": session})).await.expect("an answer");
    let bind = json!({
        "type": "bind", "session_id": session, "conversation": place, "idle_timeout_ms": idle_timeout_ms,
    });
    let bound = operator.ask("b", bind).await.expect("an answer");
    assert_eq!(bound["type"], "bound", "{bound}");
}

/// Covers: BD-L2.
#[tokio::test]
async fn idle_conversation_gets_one_farewell() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--config", &configuration(dir.path())]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut operator = operator(&node).await;
    bind(&mut operator, "s1", adapter.place("lobby"), 500).await;
    let part = adapter.next_part().await;
    assert_eq!((&part["kind"], &part["text"]), (&json!("farewell"), &json!("Until next time.")), "{part}");
    assert_eq!((&part["conversation"], &part["reply_to"]), (&adapter.place("lobby"), &Value::Null), "{part}");
    adapter.confirm(&part, "x1").await;
    await_recorded(&node, "s1", &SAID).await;
    // The next message begins a conversation of its own.
    let accepted = adapter.bring_message("lobby", "m1", "anybody here?").await;
    assert_ne!(accepted["session_id"], "s1", "{accepted}");
    assert_eq!(adapter.next_part().await["kind"], "final");
}

/// Covers: BD-L3.
#[tokio::test]
async fn conversation_at_its_max_age_gets_one_farewell() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--config", &configuration(dir.path())]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut operator = operator(&node).await;
    bind(&mut operator, "s1", adapter.place("lobby"), 0).await;
    let expiry = json!({"type": "set_binding_expiry", "session_id": "s1", "max_age_ms": 300});
    let updated = operator.ask("e", expiry).await.expect("an answer");
    assert_eq!(updated["bindings"][0]["max_age_ms"], 300, "{updated}");
    let part = adapter.next_part().await;
    assert_eq!((&part["kind"], &part["conversation"]), (&json!("farewell"), &adapter.place("lobby")), "{part}");
    adapter.confirm(&part, "x1").await;
    await_recorded(&node, "s1", &SAID).await;
    let explain = json!({"type": "resolve", "conversation": adapter.place("lobby"), "explain": true});
    let found = operator.ask("r", explain).await.expect("an answer");
    assert_eq!(
        (&found["binding"], &found["candidates"][0]["last_ended"]["reason"]),
        (&Value::Null, &json!("max_age_expired")),
        "{found}"
    );
}

/// Covers: BD-L2, BD-L5, BD-D7.
#[tokio::test]
async fn unbind_has_a_farewell_only_if_it_asks_for_it() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--config", &configuration(dir.path())]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut operator = operator(&node).await;
    for (session, more) in [
        ("silent", json!({})),
        ("archived", json!({"farewell": true, "reason": "conversation_archived"})),
        ("deleted", json!({"farewell": true, "reason": "conversation_deleted"})),
        ("asked", json!({"farewell": true})),
    ] {
        bind(&mut operator, session, adapter.place(session), 0).await;
        let mut unbind = json!({"type": "unbind", "session_id": session});
        unbind.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let ended = operator.ask("u", unbind).await.expect("an answer");
        assert_eq!(ended["type"], "unbound", "{ended}");
    }
    let part = adapter.next_part().await;
    assert_eq!((&part["kind"], &part["conversation"]), (&json!("farewell"), &adapter.place("asked")), "{part}");
    adapter.confirm(&part, "x1").await;
    await_recorded(&node, "asked", &SAID).await;
    for session in ["silent", "archived", "deleted"] {
        await_recorded(&node, session, &[]).await;
    }
}

/// The platform archives one conversation while its binding is about to expire, and another one expires.
///
/// Covers: BD-L2.
#[tokio::test]
async fn archived_conversation_gets_no_farewell() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--config", &configuration(dir.path())]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut operator = operator(&node).await;
    bind(&mut operator, "s1", adapter.place("archived"), 60_000).await;
    let closed = json!({
        "type": "inbound", "request_id": "c", "event": "conversation_closed", "conversation": adapter.place("archived"),
        "sender": {"id": "platform"}, "message": {"message_id": "none"},
    });
    assert_eq!(adapter.bring(closed).await["disposition"], "recorded");
    bind(&mut operator, "s2", adapter.place("idle"), 300).await;
    let part = adapter.next_part().await;
    assert_eq!(part["conversation"], adapter.place("idle"), "only the idle one gets a word: {part}");
    adapter.confirm(&part, "x1").await;
    await_recorded(&node, "s2", &SAID).await;
    await_recorded(&node, "s1", &[]).await;
}

/// Both nodes search for bindings that are due, and each of them may report an end.
///
/// Covers: BD-L2, BR-01.
#[tokio::test]
async fn fleet_says_each_farewell_once() {
    let dirs = directories();
    let config = configuration(dirs[0].path());
    let (_redis, [first, second]) = two_nodes_with(&dirs, &["--demo", "--config", &config]).await;
    let mut adapter = TestAdapter::active(&first, "main", json!({"key": 2})).await;
    let rooms: Vec<String> = (0..12).map(|number| format!("room-{number}")).collect();
    for (number, node) in [&first, &second].into_iter().enumerate() {
        let mut operator = operator(node).await;
        for room in rooms.iter().skip(number).step_by(2) {
            bind(&mut operator, room, adapter.place(room), 300).await;
        }
    }
    let mut journal: Vec<String> = Vec::new();
    while journal.len() < rooms.len() {
        let part = adapter.next_part().await;
        assert_eq!(part["kind"], "farewell", "{part}");
        journal.push(part["conversation"]["conversation_id"].as_str().expect("a room").to_owned());
        adapter.confirm(&part, &format!("x{}", journal.len())).await;
    }
    for room in &rooms {
        await_recorded(&second, room, &SAID).await;
    }
    journal.sort_unstable();
    let mut expected = rooms.clone();
    expected.sort_unstable();
    assert_eq!(journal, expected, "each conversation has one farewell");
}

//! Bindings of conversations that an adapter cannot reach: what it finds out about them keeps, ends, or does not concern them.
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::WebSocketClient;

/// Opens a session as an operator and binds the conversation `thread` to it; returns the binding.
async fn bind(operator: &mut WebSocketClient, session: &str, place: &Value) -> Value {
    operator.ask("o", json!({"type": "session_open", "session_id": session})).await.expect("an answer");
    let bind = json!({"type": "bind", "session_id": session, "conversation": place});
    let bound = operator.ask("b", bind).await.expect("an answer");
    assert_eq!(bound["type"], "bound", "{bound}");
    bound["binding"].clone()
}

/// Returns the present binding of a conversation.
async fn resolve(operator: &mut WebSocketClient, place: &Value) -> Value {
    let found = operator.ask("r", json!({"type": "resolve", "conversation": place})).await.expect("an answer");
    assert_eq!(found["type"], "resolved", "{found}");
    found["binding"].clone()
}

/// Has the adapter report that the platform does not know the conversation; returns the binding that has ended.
async fn report_unknown(adapter: &mut TestAdapter, binding: &Value) -> Value {
    let unbind = json!({
        "type": "unbind", "binding_id": binding["binding_id"], "scope": {"channel": "rooms", "account_id": "main"},
        "reason": "conversation_deleted", "farewell": true,
    });
    let answer = adapter.client.ask("u", unbind).await.expect("an answer");
    assert_eq!(answer["type"], "unbound", "{answer}");
    answer["bindings"][0].clone()
}

/// A failed send keeps the binding, an unknown conversation ends it without a word, and a report that comes after the
/// conversation was bound again changes nothing.
///
/// Covers: BD-L4, BD-L5, BD-L22.
#[tokio::test]
async fn unreachable_conversation_keeps_or_loses_its_binding() {
    let dir = tempdir().expect("a directory");
    let config = dir.path().join("turnway.toml");
    std::fs::write(&config, "[channels.rooms]\nfarewell = \"Until next time.\"\n").expect("a file");
    let config = config.to_str().expect("UTF-8");
    let node = Node::start(dir.path(), &["--demo", "--config", config]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let operator = WebSocketClient::open(node.http).await.expect("a connection");
    let mut operator = operator.greet_with(json!({"type": "hello"})).await.expect("an operator");
    let place = adapter.place("thread");
    let first = bind(&mut operator, "s1", &place).await;
    adapter.bring_message("thread", "m1", "hello").await;
    for (attempt, outcome) in [(1, "transient"), (2, "permission")] {
        let part = adapter.next_part().await;
        assert_eq!(part["attempt"], attempt, "{part}");
        adapter.report(&part, json!({"outcome": "rejected", "code": outcome})).await;
    }
    let failed = ["delivery.requested null", "delivery.attempted 1", "delivery.failed 1 permission"];
    await_recorded(&node, "s1", &failed).await;
    let kept = resolve(&mut operator, &place).await;
    assert_eq!(kept["binding_id"], first["binding_id"], "no access is not gone: {kept}");
    let ended = report_unknown(&mut adapter, &first).await;
    assert_eq!(ended["reason"], "conversation_deleted", "{ended}");
    assert_eq!(resolve(&mut operator, &place).await, Value::Null);
    let second = bind(&mut operator, "s2", &place).await;
    let again = report_unknown(&mut adapter, &first).await;
    assert_eq!(again["binding_id"], first["binding_id"], "the end that was: {again}");
    assert_eq!(resolve(&mut operator, &place).await["binding_id"], second["binding_id"]);
    // The next thing that the platform gets is an answer of the new session: nobody has said farewell.
    let accepted = adapter.bring_message("thread", "m2", "anybody here?").await;
    assert_eq!(accepted["session_id"], "s2", "{accepted}");
    let part = adapter.next_part().await;
    assert_eq!((&part["kind"], &part["reply_to"]), (&json!("final"), &json!("m2")), "{part}");
    adapter.confirm(&part, "x2").await;
    await_recorded(&node, "s2", &["delivery.requested null", "delivery.sent 1"]).await;
    await_recorded(&node, "s1", &failed).await;
}

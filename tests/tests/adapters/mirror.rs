//! Mirrors: conversations that get the answers of turns that clients began, besides those of their own messages.
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

async fn operator(node: &Node) -> WebSocketClient {
    let client = WebSocketClient::open(node.http).await.expect("a connection");
    client.greet_with(json!({"type": "hello"})).await.expect("an operator")
}

/// Runs a turn of a client's.
async fn ask_agent(client: &mut WebSocketClient, text: &str) {
    let turn = json!({"type": "agent_invoke", "session_id": "s1", "message": {"content": text}});
    client.ask(text, turn).await.expect("an answer");
    client.until(|message| message["type"] == "done").await.expect("it ends");
}

async fn bind(operator: &mut WebSocketClient, place: Value, mirror: bool) {
    let bind = json!({"type": "bind", "session_id": "s1", "conversation": place, "mirror": mirror});
    let bound = operator.ask("b", bind).await.expect("an answer");
    assert_eq!(bound["binding"]["mirror"], if mirror { json!(true) } else { Value::Null }, "{bound}");
}

/// Covers: BD-S10.
#[tokio::test]
async fn mirror_gets_answers_of_clients_and_each_answer_once() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    ann.ask("o", json!({"type": "session_open", "session_id": "s1"})).await.expect("an answer");
    let mut operator = operator(&node).await;
    bind(&mut operator, adapter.place("mirror"), true).await;
    bind(&mut operator, adapter.place("plain"), false).await;
    let listed = Web::new(node.http, None).json("/v1/bindings?session_id=s1").await;
    let mirrors: Vec<&Value> =
        listed["bindings"].as_array().expect("bindings").iter().map(|it| &it["mirror"]).collect();
    assert_eq!(mirrors, [&json!(true), &Value::Null], "{listed}");
    ask_agent(&mut ann, "from the app").await;
    let part = adapter.next_part().await;
    assert_eq!((&part["kind"], &part["conversation"]), (&json!("final"), &adapter.place("mirror")), "{part}");
    assert!(part["text"].as_str().expect("a text").contains("from the app"), "{part}");
    assert_eq!(part["reply_to"], Value::Null, "{part}");
    adapter.confirm(&part, "x1").await;
    let said = ["delivery.requested null", "delivery.sent 1"];
    await_recorded(&node, "s1", &said).await;
    // A message that was written there is answered there, once, and nowhere else.
    for place in ["mirror", "plain"] {
        let accepted = adapter.bring_message(place, &format!("m-{place}"), "from the room").await;
        assert_eq!(accepted["session_id"], "s1", "{accepted}");
        let part = adapter.next_part().await;
        assert_eq!((&part["conversation"], &part["reply_to"]), (&adapter.place(place), &json!(format!("m-{place}"))));
        adapter.confirm(&part, &format!("x-{place}")).await;
    }
    await_recorded(&node, "s1", &[said, said, said].concat()).await;
    // Without the binding there is no mirror.
    let unbind = json!({"type": "unbind", "session_id": "s1"});
    operator.ask("u", unbind).await.expect("an answer");
    let ended = |message: &Value| message["name"] == "BINDING_ENDED";
    ann.until(ended).await.expect("the log has it");
    ask_agent(&mut ann, "once more").await;
    await_recorded(&node, "s1", &[said, said, said].concat()).await;
}

/// The binding ends after the turn: an answer that waits for its adapter goes nowhere.
///
/// Covers: BR-01.
#[tokio::test]
async fn mirrored_answer_ends_with_its_binding() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut operator = operator(&node).await;
    operator.ask("o", json!({"type": "session_open", "session_id": "s1"})).await.expect("an answer");
    let place = json!({"channel": "rooms", "account_id": "main", "conversation_id": "lobby"});
    bind(&mut operator, place, true).await;
    ask_agent(&mut operator, "hello").await;
    await_recorded(&node, "s1", &["delivery.requested null"]).await;
    operator.ask("u", json!({"type": "unbind", "session_id": "s1"})).await.expect("an answer");
    await_recorded(&node, "s1", &["delivery.requested null", "delivery.failed 1 rebound"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    adapter.bring_message("other", "m1", "hello").await;
    assert_eq!(adapter.next_part().await["conversation"], adapter.place("other"), "nothing else was waiting");
}

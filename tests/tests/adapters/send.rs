//! Texts that clients send to conversations of their sessions without a turn: the router chooses the place, or the sender
//! learns the reason why there is none.
use super::fleet::{directories, two_nodes_with};
use super::{TestAdapter, await_metric, await_recorded};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

const SAID: [&str; 2] = ["delivery.requested null", "delivery.sent 1"];

async fn operator(node: &Node) -> WebSocketClient {
    let client = WebSocketClient::open(node.http).await.expect("a connection");
    client.greet_with(json!({"type": "hello"})).await.expect("an operator")
}

/// Connects ann, who opens the session `s1`.
async fn ann(node: &Node) -> WebSocketClient {
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    ann.ask("o", json!({"type": "session_open", "session_id": "s1"})).await.expect("an answer");
    ann
}

async fn bind(operator: &mut WebSocketClient, place: Value) {
    let bind = json!({"type": "bind", "session_id": "s1", "conversation": place});
    let bound = operator.ask("b", bind).await.expect("an answer");
    assert_eq!(bound["type"], "bound", "{bound}");
}

/// Returns a message to a conversation, or to the only one.
fn message(id: &str, place: Option<Value>) -> Value {
    json!({"type": "send_message", "session_id": "s1", "message_id": id, "conversation": place, "text": format!("text of {id}")})
}

fn routes(kind: &str, reason: &str, count: u32) -> String {
    format!(r#"turnway_adapter_routes_total{{kind="{kind}",reason="{reason}"}} {count}"#)
}

/// Covers: BD-S2, BD-S8, BD-S9, BR-05.
#[tokio::test]
async fn text_reaches_the_bound_conversation_once() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut ann = ann(&node).await;
    bind(&mut operator(&node).await, adapter.place("lobby")).await;
    let accepted = ann.ask("1", message("m1", None)).await.expect("an answer");
    assert_eq!((&accepted["type"], &accepted["message_id"]), (&json!("message_accepted"), &json!("m1")), "{accepted}");
    let part = adapter.next_part().await;
    assert_eq!((&part["kind"], &part["text"]), (&json!("notice"), &json!("text of m1")), "{part}");
    assert_eq!((&part["conversation"], &part["reply_to"]), (&adapter.place("lobby"), &Value::Null), "{part}");
    assert_eq!(part["delivery_id"], accepted["delivery_id"], "{part}");
    adapter.confirm(&part, "x1").await;
    await_recorded(&node, "s1", &SAID).await;
    // The answer was lost, and the client asks again; another message follows.
    let again = ann.ask("2", message("m1", None)).await.expect("an answer");
    assert_eq!(again["delivery_id"], accepted["delivery_id"], "{again}");
    let other = ann.ask("3", message("m2", Some(adapter.place("lobby")))).await.expect("an answer");
    assert_ne!(other["delivery_id"], accepted["delivery_id"], "{other}");
    let part = adapter.next_part().await;
    assert_eq!(part["text"], "text of m2", "{part}");
    adapter.confirm(&part, "x2").await;
    await_recorded(&node, "s1", &[SAID, SAID].concat()).await;
    await_metric(&node, &routes("bound", "only_binding_on_account", 2)).await;
    await_metric(&node, &routes("bound", "requester_match", 1)).await;
    // No turn began.
    let events = Web::new(node.http, None).json("/v1/sessions/s1/events?types=user.message,run.*").await;
    assert_eq!(events["events"], json!([]), "{events}");
}

/// Sends a text at one node, ends its binding, and repeats the text at both.
async fn repeat_after_unbind([first, second]: [&Node; 2]) {
    let mut adapter = TestAdapter::active(first, "main", json!({"key": 2})).await;
    let mut ann = ann(first).await;
    let mut operator = operator(first).await;
    bind(&mut operator, adapter.place("lobby")).await;
    let accepted = ann.ask("1", message("m1", None)).await.expect("an answer");
    assert_eq!(accepted["type"], "message_accepted", "{accepted}");
    let part = adapter.next_part().await;
    adapter.confirm(&part, "x1").await;
    await_recorded(first, "s1", &SAID).await;
    let unbound = operator.ask("u", json!({"type": "unbind", "session_id": "s1"})).await.expect("an answer");
    assert_eq!(unbound["type"], "unbound", "{unbound}");
    let mut elsewhere = WebSocketClient::hello(second.http, "ann", vec![]).await.expect("ann connects");
    for client in [&mut ann, &mut elsewhere] {
        for place in [None, Some(adapter.place("lobby")), Some(adapter.place("attic"))] {
            let again = client.ask("2", message("m1", place)).await.expect("an answer");
            for field in ["type", "session_id", "message_id", "delivery_id"] {
                assert_eq!(again[field], accepted[field], "{again}");
            }
        }
        let other = client.ask("3", message("m2", None)).await.expect("an answer");
        assert_eq!(other["code"], "no_destination", "a message that was never accepted: {other}");
        assert!(other["message"].as_str().expect("a text").starts_with("no_active_binding:"), "{other}");
    }
    // The operator's message of this name is another one.
    let other = operator.ask("4", message("m1", None)).await.expect("an answer");
    assert_eq!(other["code"], "no_destination", "{other}");
    let headers = [("content-type", "application/json")];
    let body = json!({"message_id": "m1", "text": "text of m1"}).to_string();
    let reply = Web::new(second.http, Some("ann")).ask("POST", "/v1/sessions/s1/messages", &headers, &body).await;
    assert_eq!((reply.status, &reply.json()["delivery_id"]), (200, &accepted["delivery_id"]), "{}", reply.text);
    await_recorded(second, "s1", &SAID).await;
    let mut bob = WebSocketClient::hello(second.http, "bob", vec![]).await.expect("bob connects");
    let foreign = bob.ask("5", message("m1", None)).await.expect("an answer");
    assert_eq!(foreign["code"], "not_found", "{foreign}");
}

/// Covers: BD-S8, BD-S9, BR-05.
#[tokio::test]
async fn repeated_text_is_accepted_after_its_binding_ended_embedded() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    repeat_after_unbind([&node, &node]).await;
}

/// Covers: BD-S8, BD-S9, BR-05.
#[tokio::test]
async fn repeated_text_is_accepted_after_its_binding_ended_redis() {
    let dirs = directories();
    let (_redis, [first, second]) = two_nodes_with(&dirs, &["--demo"]).await;
    repeat_after_unbind([&first, &second]).await;
}

/// Covers: BD-R2, BD-R3, BD-R4, BD-R8, BD-S10, BD-S11.
#[tokio::test]
async fn sender_learns_why_there_is_no_place() {
    let dir = tempdir().expect("a directory");
    // A fallback would let ann write into any conversation of the account.
    let config = dir.path().join("turnway.toml");
    std::fs::write(&config, "[channels.rooms]\nfail_closed = false\n").expect("a file");
    let node = Node::start(dir.path(), &["--demo", "--config", config.to_str().expect("UTF-8")]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut ann = ann(&node).await;
    let mut operator = operator(&node).await;
    let refused = |answer: Value, reason: &str| {
        assert_eq!((&answer["type"], &answer["code"]), (&json!("error"), &json!("no_destination")), "{answer}");
        assert!(answer["message"].as_str().expect("a text").starts_with(&format!("{reason}:")), "{answer}");
    };
    refused(ann.ask("1", message("m1", None)).await.expect("an answer"), "no_active_binding");
    bind(&mut operator, adapter.place("one")).await;
    bind(&mut operator, adapter.place("two")).await;
    refused(ann.ask("2", message("m1", None)).await.expect("an answer"), "ambiguous");
    refused(ann.ask("3", message("m1", Some(adapter.place("three")))).await.expect("an answer"), "ambiguous");
    await_recorded(&node, "s1", &[]).await;
    // The refused message may be sent once there is a place for it.
    let accepted = ann.ask("4", message("m1", Some(adapter.place("two")))).await.expect("an answer");
    assert_eq!(accepted["type"], "message_accepted", "{accepted}");
    let part = adapter.next_part().await;
    assert_eq!(part["conversation"], adapter.place("two"), "{part}");
    adapter.confirm(&part, "x1").await;
    let mut bob = WebSocketClient::hello(node.http, "bob", vec![]).await.expect("bob connects");
    let foreign = bob.ask("5", message("m2", None)).await.expect("an answer");
    assert_eq!(foreign["code"], "not_found", "{foreign}");
    await_metric(&node, &routes("refused", "no_active_binding", 1)).await;
    await_metric(&node, &routes("refused", "ambiguous", 2)).await;
    // An operator may leave the bindings of the session, where the channel permits it.
    let accepted = operator.ask("6", message("m3", Some(adapter.place("three")))).await.expect("an answer");
    assert_eq!(accepted["type"], "message_accepted", "{accepted}");
    assert_eq!(adapter.next_part().await["conversation"], adapter.place("three"));
}

/// Covers: BR-01, BR-05.
#[tokio::test]
async fn text_is_sent_from_any_node_over_http() {
    let dirs = directories();
    let (_redis, [first, second]) = two_nodes_with(&dirs, &["--demo"]).await;
    let mut adapter = TestAdapter::active(&first, "main", json!({"key": 2})).await;
    ann(&first).await;
    let post = async |node: &Node, body: Value| {
        let headers = [("content-type", "application/json")];
        let reply =
            Web::new(node.http, Some("ann")).ask("POST", "/v1/sessions/s1/messages", &headers, &body.to_string()).await;
        (reply.status, serde_json::from_str::<Value>(&reply.text).expect("JSON"))
    };
    let (status, problem) = post(&second, json!({"message_id": "m1", "text": "hello"})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("no_destination")), "{problem}");
    bind(&mut operator(&first).await, adapter.place("lobby")).await;
    let (status, accepted) = post(&second, json!({"message_id": "m1", "text": "hello"})).await;
    assert_eq!((status, &accepted["message_id"]), (200, &json!("m1")), "{accepted}");
    let (_, again) = post(&first, json!({"message_id": "m1", "text": "hello"})).await;
    assert_eq!(again, accepted);
    let part = adapter.next_part().await;
    assert_eq!((&part["text"], &part["delivery_id"]), (&json!("hello"), &accepted["delivery_id"]), "{part}");
    adapter.confirm(&part, "x1").await;
    await_recorded(&second, "s1", &SAID).await;
    for bad in [json!({"text": " "}), json!({}), json!({"text": "x", "session_id": "s2"})] {
        let (status, problem) = post(&first, bad.clone()).await;
        assert_eq!((status, &problem["code"]), (400, &json!("invalid_message")), "{bad}: {problem}");
    }
}

//! Conversations that operators have made within others and bound to a session.
use super::fleet::{directories, two_nodes_with};
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::run;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

const MADE: [&str; 2] = ["delivery.requested null", "delivery.sent 1"];

async fn operator(node: &Node) -> WebSocketClient {
    let client = WebSocketClient::open(node.http).await.expect("a connection");
    client.greet_with(json!({"type": "hello"})).await.expect("an operator")
}

async fn open(operator: &mut WebSocketClient, session: &str) {
    let opened = operator.ask("o", json!({"type": "session_open", "session_id": session})).await.expect("an answer");
    assert_eq!(opened["type"], "session_opened", "{opened}");
}

fn child(session: &str, parent: &Value, creation_id: &str) -> Value {
    json!({
        "type": "bind_child", "session_id": session, "parent": parent, "title": "Release 1.4\nand more",
        "creation_id": creation_id, "idle_timeout_ms": 0, "metadata": {"persona": "Ann"},
    })
}

fn capabilities() -> Value {
    json!({"text": 2, "key": 2, "create_conversation": 2})
}

/// Waits until the log of a session has a fact of this type; returns its data.
async fn await_fact(node: &Node, session: &str, kind: &str) -> Value {
    let web = Web::new(node.http, None);
    let path = format!("/v1/sessions/{session}/events?types={kind}");
    let mut looks = interval(Duration::from_millis(50));
    let found = timeout(PATIENCE, async {
        loop {
            looks.tick().await;
            let page = web.json(&path).await;
            if let Some(fact) = page["events"].as_array().and_then(|events| events.first()) {
                return fact["data"].clone();
            }
        }
    });
    found.await.expect("the fact")
}

/// The platform makes one conversation, which is bound as the operator has asked; what people write there goes to the
/// session, and its answers go there.
///
/// Covers: BD-B2, BD-B3, BD-S1.
#[tokio::test]
async fn child_is_made_once_and_bound_to_its_session() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", capabilities()).await;
    let mut operator = operator(&node).await;
    open(&mut operator, "s1").await;
    let parent = adapter.place("lobby");
    let requested = operator.ask("1", child("s1", &parent, "c1")).await.expect("an answer");
    assert_eq!(
        (&requested["type"], &requested["creation_id"]),
        (&json!("child_requested"), &json!("c1")),
        "{requested}"
    );
    let order = adapter.make_conversation("t1").await;
    assert_eq!((&order["name"], &order["parent"]), (&json!("Release 1.4"), &parent), "{order}");
    assert_eq!(order["delivery_id"], requested["delivery_id"], "{order}");
    let bound = await_fact(&node, "s1", "binding.bound").await;
    assert_eq!(bound["conversation"]["conversation_id"], "t1", "{bound}");
    assert_eq!(bound["conversation"]["parent_conversation_id"], "lobby", "{bound}");
    // The answer was lost, and the operator asks again, over HTTP.
    let web = Web::new(node.http, None);
    let headers = [("content-type", "application/json")];
    let mut body = child("s1", &parent, "c1");
    body["title"] = "another title".into();
    body.as_object_mut().expect("an object").remove("type");
    let again = web.ask("POST", "/v1/bindings/children", &headers, &body.to_string()).await;
    assert_eq!((again.status, &again.json()["delivery_id"]), (202, &requested["delivery_id"]), "{}", again.text);
    let listed = web.json("/v1/bindings?session_id=s1").await;
    let binding = &listed["bindings"][0];
    assert_eq!(
        (&binding["idle_timeout_ms"], &binding["metadata"]["persona"]),
        (&Value::Null, &json!("Ann")),
        "{listed}"
    );
    assert_eq!(listed["bindings"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(web.json("/v1/deliveries?session_id=s1").await["deliveries"], json!([]), "it is done");
    // The next order is an answer: no other conversation was asked for.
    let accepted = adapter.bring_message("t1", "m1", "hello").await;
    assert_eq!(accepted["session_id"], "s1", "{accepted}");
    let answer = adapter.next_part().await;
    assert_eq!(
        (&answer["kind"], &answer["conversation"]["conversation_id"]),
        (&json!("final"), &json!("t1")),
        "{answer}"
    );
    adapter.confirm(&answer, "x1").await;
    await_recorded(&node, "s1", &[MADE, MADE].concat()).await;
}

/// Covers: BD-B2, BD-B3, BR-30, S-06.
#[tokio::test]
async fn child_that_cannot_be_made_is_refused_at_once() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut operator = operator(&node).await;
    open(&mut operator, "s1").await;
    let parent = json!({"channel": "rooms", "account_id": "main", "conversation_id": "lobby"});
    let refused = operator.ask("1", child("s1", &parent, "c1")).await.expect("an answer");
    let shown = (&refused["code"], refused["retry_after_ms"].is_u64());
    assert_eq!(shown, (&json!("adapter_unavailable"), true), "nobody serves the account: {refused}");
    let mut adapter = TestAdapter::active(&node, "main", json!({"text": 2, "key": 2})).await;
    let refused = operator.ask("2", child("s1", &parent, "c1")).await.expect("an answer");
    let shown = (&refused["code"], refused["message"].as_str().expect("a text").contains("placement `child`"));
    assert_eq!(shown, (&json!("placement_unsupported"), true), "{refused}");
    adapter.redeclare(None, capabilities()).await;
    let mut refused = operator.ask("3", child("nobody", &parent, "c1")).await.expect("an answer");
    assert_eq!(refused["code"], "not_found", "{refused}");
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    refused = ann.ask("4", child("s1", &parent, "c1")).await.expect("an answer");
    assert_eq!(refused["code"], "forbidden", "{refused}");
    let mut elsewhere = parent.clone();
    elsewhere["account_id"] = "other".into();
    refused = adapter.bring(request("5", child("s1", &elsewhere, "c1"))).await;
    assert_eq!(refused["code"], "forbidden", "an adapter binds in its own account: {refused}");
    for (field, bad) in [("title", json!(" \n")), ("title", Value::Null), ("parent", Value::Null)] {
        let mut message = child("s1", &parent, "c1");
        message[field] = bad;
        refused = operator.ask("6", message).await.expect("an answer");
        assert_eq!(refused["code"], "invalid_message", "{field}: {refused}");
    }
    // The platform refuses: the log says why, and the parent still takes messages.
    let requested = operator.ask("7", child("s1", &parent, "c1")).await.expect("an answer");
    let order = adapter.next_part().await;
    let rejected = json!({
        "type": "conversation_created", "delivery_id": order["delivery_id"], "outcome": "rejected", "code": "permission",
    });
    adapter.client.say(rejected).await.expect("it is sent");
    let failed = await_fact(&node, "s1", "delivery.failed").await;
    assert_eq!(
        (&failed["reason"], &failed["delivery_id"]),
        (&json!("permission"), &requested["delivery_id"]),
        "{failed}"
    );
    adapter.bring_message("lobby", "m1", "hello").await;
    assert_eq!(adapter.next_part().await["reply_to"], "m1");
}

fn request(id: &str, mut message: Value) -> Value {
    message["request_id"] = id.into();
    message
}

/// The session's owner dies when the platform has made the conversation and nobody has recorded it: the conversation is
/// bound by the next owner, and no second one is made.
///
/// Covers: BD-B3, BD-Q7, BD-Q8.
#[tokio::test]
async fn child_is_bound_after_its_owner_died() {
    let dirs = directories();
    let (_redis, [mut owner, other]) = two_nodes_with(&dirs, &["--demo"]).await;
    let mut adapter = TestAdapter::active(&other, "main", capabilities()).await;
    let mut client = operator(&owner).await;
    open(&mut client, "s1").await;
    let requested = client.ask("1", child("s1", &adapter.place("lobby"), "c1")).await.expect("an answer");
    assert_eq!(requested["type"], "child_requested", "{requested}");
    let order = adapter.next_part().await;
    owner.kill().await;
    let created = json!({
        "type": "conversation_created", "delivery_id": order["delivery_id"], "outcome": "created",
        "conversation": adapter.place("t1"),
    });
    adapter.client.say(created).await.expect("it is sent");
    await_fact(&other, "s1", "binding.bound").await;
    await_recorded(&other, "s1", &MADE).await;
    let resolve = "/v1/bindings/resolve?channel=rooms&account_id=main&conversation_id=t1";
    let found = Web::new(other.http, None).json(resolve).await;
    assert_eq!(found["binding"]["session_id"], "s1", "{found}");
    let accepted = adapter.bring_message("t1", "m1", "hello").await;
    assert_eq!(accepted["session_id"], "s1", "{accepted}");
    assert_eq!(adapter.next_part().await["type"], "deliver", "no second conversation is asked for");
}

/// The answer was lost, and the adapter has left: the repeated request is answered like the first one.
///
/// Covers: BD-B2, BD-B3.
#[tokio::test]
async fn repeated_child_is_accepted_after_its_adapter_left() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", capabilities()).await;
    let mut operator = operator(&node).await;
    open(&mut operator, "s1").await;
    let parent = adapter.place("lobby");
    let requested = operator.ask("1", child("s1", &parent, "c1")).await.expect("an answer");
    adapter.make_conversation("t1").await;
    await_fact(&node, "s1", "binding.bound").await;
    drop(adapter);
    let mut looks = interval(Duration::from_millis(50));
    let is_away = timeout(PATIENCE, async {
        loop {
            looks.tick().await;
            let account = Web::new(node.http, None).json("/v1/accounts/show?channel=rooms&account_id=main").await;
            if account["served"] == false {
                return;
            }
        }
    });
    is_away.await.expect("the adapter has left");
    let again = operator.ask("2", child("s1", &parent, "c1")).await.expect("an answer");
    assert_eq!(
        (&again["type"], &again["delivery_id"]),
        (&json!("child_requested"), &requested["delivery_id"]),
        "{again}"
    );
    for new in [child("s1", &parent, "c2"), child("nobody", &parent, "c1")] {
        let refused = operator.ask("3", new).await.expect("an answer");
        assert_eq!(refused["code"], "adapter_unavailable", "{refused}");
    }
}

/// Covers: BD-B2.
#[tokio::test]
async fn child_is_bound_by_the_command() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", capabilities()).await;
    open(&mut operator(&node).await, "s1").await;
    let url = format!("http://{}", node.http);
    let args = ["bindings", "bind-child", "rooms/main/lobby", "s1", "Release 1.4"];
    let environment = [("TURNWAY_URL", url.as_str())];
    let (ended, ()) = tokio::join!(run(dir.path(), &args, &environment), async {
        adapter.make_conversation("t1").await;
    });
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("rooms/main/t1") && ended.out.contains("s1"), "{}", ended.out);
    // The platform refuses.
    let (ended, ()) = tokio::join!(run(dir.path(), &args, &environment), async {
        let order = adapter.next_part().await;
        let rejected = json!({
            "type": "conversation_created", "delivery_id": order["delivery_id"], "outcome": "rejected", "code": "invalid",
        });
        adapter.client.say(rejected).await.expect("it is sent");
    });
    assert_ne!(ended.code, Some(0), "{}", ended.out);
    assert!(ended.err.contains("invalid"), "{}", ended.err);
}

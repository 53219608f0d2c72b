//! Paused accounts: a part that the platform has put elsewhere stops everything that is sent for its account, on every node
//! and across restarts, until an operator resumes it.
use super::fleet::{directories, two_nodes_with};
use super::{TestAdapter, await_metric, await_recorded};
use serde_json::{Value, json};
use tempfile::tempdir;
use turnway_tests::real::command::run;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

impl TestAdapter {
    /// Waits until the adapter is told that its account is paused, or that it is not; returns the message.
    async fn await_pause(&mut self, is_paused: bool) -> Value {
        loop {
            let message = self.next().await;
            if message["type"] == "adapter_state" && message["paused"].is_object() == is_paused {
                return message;
            }
        }
    }

    /// Brings a message whose answer the platform puts elsewhere; returns the session and the delivery.
    async fn misplace(&mut self, id: &str) -> [String; 2] {
        let accepted = self.bring_message("lobby", id, "hello").await;
        let part = self.next_part().await;
        let place = self.place("elsewhere");
        self.report(&part, json!({"outcome": "sent", "external_id": "x0", "place": place})).await;
        [&accepted["session_id"], &part["delivery_id"]].map(|id| id.as_str().expect("an id").to_owned())
    }

    /// Has a message answered, which takes as long as an answer that nobody holds back; returns its session.
    async fn converse(&mut self, id: &str) -> String {
        let accepted = self.bring_message("square", id, "hello").await;
        let part = self.next_part().await;
        assert_eq!(part["reply_to"], id, "{part}");
        self.confirm(&part, id).await;
        accepted["session_id"].as_str().expect("a session").to_owned()
    }
}

/// Asks a node to pause or resume `rooms/main`, as an operator; returns whether that changed anything.
async fn change(node: &Node, word: &str) -> bool {
    let body = json!({"channel": "rooms", "account_id": "main"}).to_string();
    let headers = [("content-type", "application/json")];
    let reply = Web::new(node.http, None).ask("POST", &format!("/v1/accounts/{word}"), &headers, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()["changed"].as_bool().expect("a flag")
}

/// Returns the paused accounts, by an operator's list.
async fn paused(node: &Node) -> Vec<Value> {
    let list = Web::new(node.http, None).json("/v1/accounts/paused").await;
    assert_eq!(list["more"], false, "{list}");
    list["accounts"].as_array().expect("a list").clone()
}

/// Covers: BR-11.
#[tokio::test]
async fn misplaced_part_pauses_its_account_across_restarts() {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut other = TestAdapter::active(&node, "other", json!({"key": 2})).await;
    let [session, delivery] = adapter.misplace("m1").await;
    let state = adapter.await_pause(true).await;
    assert_eq!((&state["state"], &state["paused"]["reason"]), (&json!("active"), &json!("misplaced")), "{state}");
    assert_eq!(state["paused"]["delivery_id"], delivery.as_str(), "{state}");
    let mut facts = vec!["delivery.requested null", "delivery.failed 1 misplaced"];
    await_recorded(&node, &session, &facts).await;
    await_metric(&node, "turnway_adapter_paused_accounts 1").await;
    // Messages of people are accepted and answered, and the answer waits; another account is not disturbed.
    for id in ["m2", "m3"] {
        let accepted = adapter.bring_message("lobby", id, "still there?").await;
        assert_eq!(accepted["disposition"], "run", "{accepted}");
        facts.push("delivery.requested null");
    }
    await_recorded(&node, &session, &facts).await;
    let undisturbed = other.converse("o1").await;
    await_recorded(&node, &undisturbed, &["delivery.requested null", "delivery.sent 1"]).await;
    let [listed] = paused(&node).await.try_into().expect("one account");
    assert_eq!(listed["misplaced"]["session_id"], session.as_str(), "{listed}");
    assert_eq!(listed["misplaced"]["delivery_id"], delivery.as_str(), "{listed}");
    assert_eq!(listed["misplaced"]["place"]["conversation_id"], "elsewhere", "{listed}");

    node.kill_and_restart().await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut other = TestAdapter::active(&node, "other", json!({"key": 2})).await;
    adapter.bring_message("attic", "m4", "and here?").await;
    other.converse("o2").await;
    assert_eq!(paused(&node).await.len(), 1);
    // An adapter that connects again does not end the pause either.
    drop(adapter);
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    other.converse("o3").await;
    assert_eq!(adapter.deliveries, [Value::Null; 0], "nothing is sent");

    assert!(change(&node, "resume").await);
    let mut answered = Vec::new();
    for n in 0..3 {
        let part = adapter.next_part().await;
        answered.push(part["reply_to"].as_str().expect("a message").to_owned());
        adapter.confirm(&part, &format!("x{n}")).await;
    }
    answered.sort_unstable();
    assert_eq!(answered, ["m2", "m3", "m4"], "each once");
    facts.extend(["delivery.sent 1", "delivery.sent 1"]);
    await_recorded(&node, &session, &facts).await;
    other.converse("o4").await;
    assert_eq!(adapter.deliveries, [Value::Null; 0], "each once");
    assert!(!change(&node, "resume").await, "nothing is paused");
    assert_eq!(paused(&node).await, [Value::Null; 0]);
    await_metric(&node, "turnway_adapter_paused_accounts 0").await;
}

/// Covers: BR-11.
#[tokio::test]
async fn paused_account_sends_at_no_node_of_the_fleet() {
    let dirs = directories();
    let (_redis, [mut first, second]) = two_nodes_with(&dirs, &["--demo"]).await;
    // Without the capability `key` a part that may have been sent would be held.
    let mut active = TestAdapter::active(&first, "main", json!({"key": 0})).await;
    let mut standby = TestAdapter::connect(&second, "main", json!({"key": 0})).await;
    standby.await_state("standby").await;
    let mut other = TestAdapter::active(&second, "other", json!({"key": 0})).await;
    active.misplace("m1").await;
    active.await_pause(true).await;
    let state = standby.await_pause(true).await;
    assert_eq!(state["state"], "standby", "{state}");
    let accepted = standby.bring_message("attic", "m2", "still there?").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    await_recorded(&second, &session, &["delivery.requested null"]).await;
    other.converse("o1").await;
    // The other node takes the lease over, with the pause.
    first.kill().await;
    standby.await_state("active").await;
    other.converse("o2").await;
    assert_eq!(standby.deliveries, [Value::Null; 0], "nothing is sent");
    assert!(change(&second, "resume").await);
    standby.await_pause(false).await;
    let part = standby.next_part().await;
    assert_eq!((&part["reply_to"], &part["attempt"]), (&json!("m2"), &json!(1)), "nobody had the part: {part}");
    standby.confirm(&part, "x1").await;
    await_recorded(&second, &session, &["delivery.requested null", "delivery.sent 1"]).await;
}

/// Covers: BR-11.
#[tokio::test]
async fn operator_pauses_and_resumes_from_another_node() {
    let dirs = directories();
    let (_redis, [first, second]) = two_nodes_with(&dirs, &["--demo"]).await;
    let mut adapter = TestAdapter::active(&first, "main", json!({"key": 0})).await;
    let command = async |args: &[&str]| {
        let ended = run(dirs[0].path(), args, &[("TURNWAY_URL", &format!("http://{}", second.http))]).await;
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
        ended
    };
    let shown = command(&["adapters", "pause", "rooms/main"]).await;
    assert!(shown.out.contains("rooms/main") && shown.out.contains("operator"), "{}", shown.out);
    let state = adapter.await_pause(true).await;
    assert_eq!(state["paused"]["reason"], "operator", "{state}");
    let accepted = adapter.bring_message("lobby", "m1", "hello").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    await_recorded(&first, &session, &["delivery.requested null"]).await;
    let again = command(&["adapters", "pause", "rooms/main", "--json"]).await.json();
    assert_eq!((&again["changed"], &again["since"]), (&json!(false), &state["paused"]["since"]), "{again}");
    let listed = command(&["adapters", "paused", "--json"]).await.json();
    assert_eq!(listed["accounts"][0]["account_id"], "main", "{listed}");
    assert_eq!(adapter.deliveries, [Value::Null; 0], "nothing is sent");
    command(&["adapters", "resume", "rooms/main"]).await;
    let part = adapter.next_part().await;
    assert_eq!((&part["reply_to"], &part["attempt"]), (&json!("m1"), &json!(1)), "{part}");
    adapter.confirm(&part, "x1").await;
    await_recorded(&first, &session, &["delivery.requested null", "delivery.sent 1"]).await;
    let again = command(&["adapters", "resume", "rooms/main"]).await;
    assert!(again.err.contains("was not paused"), "{}", again.err);
}

/// Covers: BR-11, S-06.
#[tokio::test]
async fn only_operators_pause_and_resume_accounts() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2})).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    let mut operator = WebSocketClient::open(node.http).await.expect("a connection");
    operator = operator.greet_with(json!({"type": "hello"})).await.expect("an operator");
    for request in [
        json!({"type": "pause_account", "channel": "rooms", "account_id": "main"}),
        json!({"type": "resume_account", "channel": "rooms", "account_id": "main"}),
        json!({"type": "list_paused_accounts"}),
        json!({"type": "show_account", "channel": "rooms", "account_id": "main"}),
    ] {
        for client in [&mut adapter.client, &mut ann] {
            let refused = client.ask("r", request.clone()).await.expect("an answer");
            assert_eq!(refused["code"], "forbidden", "{request}: {refused}");
        }
        let answer = operator.ask("r", request.clone()).await.expect("an answer");
        let answers = ["account_paused", "account_resumed", "paused_accounts", "account"];
        assert!(answers.iter().any(|kind| answer["type"] == *kind), "{request}: {answer}");
    }
}

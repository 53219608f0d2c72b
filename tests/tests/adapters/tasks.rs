//! Tasks: an agent has another agent work in a conversation of its own. The agents, the adapter and its platform are the
//! test's.
use super::{TestAdapter, await_metric, await_recorded};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::{TempDir, tempdir};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

const FLAGS: [&str; 6] = [
    "--agent",
    "boss=dial-in:,on_owner_loss=retry",
    "--agent",
    "worker=dial-in:,on_owner_loss=retry",
    "--default-agent",
    "boss",
];

/// An agent that the test plays.
struct PlayedAgent {
    client: WebSocketClient,
}

impl PlayedAgent {
    async fn connect(node: &Node, name: &str) -> Self {
        let client = WebSocketClient::open(node.http).await.expect("a connection");
        let hello = json!({"type": "hello", "role": "agent", "agent_id": name, "capabilities": {}});
        Self { client: client.greet_with(hello).await.expect("welcome") }
    }

    /// Takes the next turn; returns its order.
    async fn take_turn(&mut self) -> Value {
        let order = self.client.until(|message| message["type"] == "invoke").await.expect("an order");
        self.say(&order, json!({"type": "input_ack"})).await;
        order
    }

    async fn say(&mut self, order: &Value, mut message: Value) {
        message["run_id"] = order["run_id"].clone();
        self.client.say(message).await.expect("it is sent");
    }

    async fn answer(&mut self, order: &Value, text: &str) {
        self.say(order, json!({"type": "delta", "text": text})).await;
        self.say(order, json!({"type": "done"})).await;
    }

    async fn give_task(&mut self, order: &Value, args: Value) {
        let action = json!({"type": "action", "action_id": "t", "tool": "agent.spawn", "args": args});
        self.say(order, action).await;
    }

    /// Returns the data of the next fact of this type.
    async fn fact(&mut self, kind: &str) -> Value {
        let is_it = |message: &Value| message["type"] == "event" && message["event"]["type"] == kind;
        self.client.until(is_it).await.expect("the fact")["event"]["data"].clone()
    }
}

impl TestAdapter {
    /// Makes the conversation that the gateway asks for next; returns the order.
    pub(crate) async fn make_conversation(&mut self, id: &str) -> Value {
        let order = self.next_part().await;
        assert_eq!(order["type"], "create_conversation", "{order}");
        let mut conversation = self.place(id);
        conversation["parent_conversation_id"] = order["parent"]["conversation_id"].clone();
        let created = json!({
            "type": "conversation_created", "delivery_id": order["delivery_id"], "outcome": "created",
            "conversation": conversation,
        });
        self.client.say(created).await.expect("it is sent");
        order
    }
}

/// Writes a configuration in which agents may give tasks in `rooms`.
fn configuration(dir: &Path) -> PathBuf {
    let path = dir.join("turnway.toml");
    std::fs::write(&path, "[channels.rooms]\nspawn_subagent_sessions = true\n").expect("a file");
    path
}

fn flags(config: &Path) -> Vec<&str> {
    [["--config", config.to_str().expect("UTF-8")].as_slice(), FLAGS.as_slice()].concat()
}

fn capabilities() -> Value {
    json!({"text": 2, "key": 2, "create_conversation": 2})
}

/// Starts a node with two agents, one of which gives tasks to the other, and an adapter that makes conversations.
async fn one_node(dir: &TempDir) -> (Node, PlayedAgent, PlayedAgent, TestAdapter) {
    let config = configuration(dir.path());
    let node = Node::start(dir.path(), &flags(&config)).await;
    let boss = PlayedAgent::connect(&node, "boss").await;
    let worker = PlayedAgent::connect(&node, "worker").await;
    let adapter = TestAdapter::active(&node, "main", capabilities()).await;
    (node, boss, worker, adapter)
}

/// The task has a conversation and a session of its own, its completion goes there and nowhere else, the agent that gave
/// it is told, and people go on there with the agent that works on it.
///
/// Covers: BD-S7, BD-S9, BD-S10, BD-C1, BD-C2, BD-D7, BD-L14, BR-02, BR-27, BR-30, BR-31, BD-B1, BD-S12.
#[tokio::test]
async fn task_is_worked_on_in_a_conversation_of_its_own() {
    let dir = tempdir().expect("a directory");
    let (node, mut boss, mut worker, mut adapter) = one_node(&dir).await;
    let accepted = adapter.bring_message("lobby", "m1", "find it").await;
    let asked = boss.take_turn().await;
    boss.give_task(&asked, json!({"agent": "worker", "message": "look in the attic", "title": "Search"})).await;
    let order = adapter.make_conversation("t1").await;
    assert_eq!((&order["name"], &order["parent"]), (&json!("Search"), &adapter.place("lobby")), "{order}");
    let task = worker.take_turn().await;
    assert_eq!(task["input_message"]["content"], "look in the attic", "{task}");
    assert_ne!(task["session_id"], asked["session_id"], "{task}");
    assert_eq!(task["context"]["origin"]["message_id"], "m1", "{task}");
    let progress = boss.fact("process.progress").await;
    assert_eq!(progress["data"]["session_id"], task["session_id"], "{progress}");
    worker.answer(&task, "it is there").await;
    let completion = adapter.next_part().await;
    assert_eq!((&completion["kind"], &completion["text"]), (&json!("task_completion"), &json!("it is there")));
    assert_eq!(completion["conversation"]["conversation_id"], "t1", "{completion}");
    assert_eq!(completion["reply_to"], Value::Null, "{completion}");
    adapter.confirm(&completion, "x1").await;
    let result = boss.fact("tool.result").await;
    assert_eq!((&result["ok"], &result["result"]["text"]), (&json!(true), &json!("it is there")), "{result}");
    assert_eq!(result["result"]["conversation"]["conversation_id"], "t1", "{result}");
    boss.answer(&asked, "found").await;
    let answer = adapter.next_part().await;
    assert_eq!((&answer["kind"], &answer["reply_to"]), (&json!("final"), &json!("m1")), "{answer}");
    assert_eq!(answer["conversation"], adapter.place("lobby"), "{answer}");
    adapter.confirm(&answer, "x2").await;
    let next = adapter.bring_message("t1", "m2", "and in the cellar?").await;
    assert_eq!(next["session_id"], task["session_id"], "{next}");
    let order = worker.take_turn().await;
    worker.answer(&order, "no").await;
    let answer = adapter.next_part().await;
    assert_eq!((&answer["conversation"], &answer["reply_to"]), (&adapter.place("t1"), &json!("m2")), "{answer}");
    adapter.confirm(&answer, "x3").await;
    let delivered = ["delivery.requested null", "delivery.sent 1"];
    let session = task["session_id"].as_str().expect("a session");
    await_recorded(&node, session, &[delivered, delivered].concat()).await;
    let parent = accepted["session_id"].as_str().expect("a session");
    await_recorded(&node, parent, &[delivered, delivered].concat()).await;
    let bound = Web::new(node.http, None).json(&format!("/v1/bindings?session_id={session}")).await;
    assert_eq!(bound["bindings"][0]["target_kind"], "subagent", "{bound}");
}

/// Covers: BD-S7, BD-B2, BD-B3, BD-D6, BR-30.
#[tokio::test]
async fn task_that_cannot_begin_has_one_visible_reason() {
    let dir = tempdir().expect("a directory");
    let config = configuration(dir.path());
    let node = Node::start(dir.path(), &flags(&config)).await;
    let mut boss = PlayedAgent::connect(&node, "boss").await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"text": 2, "key": 2})).await;
    adapter.bring_message("lobby", "m1", "find it").await;
    let order = boss.take_turn().await;
    boss.give_task(&order, json!({"agent": "worker", "message": "look"})).await;
    let result = boss.fact("tool.result").await;
    assert_eq!(result["error"]["code"], "create_failed", "the adapter makes no conversations: {result}");
    boss.answer(&order, "sorry").await;
    let answer = adapter.next_part().await;
    assert_eq!(answer["text"], "sorry", "{answer}");
    adapter.confirm(&answer, "x1").await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("ann connects");
    ann.say(json!({"type": "agent_invoke", "session_id": "s1", "message": {"content": "hi"}})).await.expect("sent");
    let order = boss.take_turn().await;
    boss.give_task(&order, json!({"agent": "worker", "message": "look"})).await;
    let result = boss.fact("tool.result").await;
    assert_eq!(result["error"]["code"], "no_conversation", "{result}");
    let sessions = Web::new(node.http, None).json("/v1/sessions").await;
    let names = sessions["sessions"].as_array().expect("sessions").iter();
    assert!(
        !names.map(|it| it["session_id"].as_str().expect("a name")).any(|it| it.starts_with("task-")),
        "{sessions}"
    );
}

/// The binding has ended while the task ran: its completion goes nowhere, and both the log and the metrics say why.
///
/// Covers: BD-R2, BD-S6, BD-S10, BD-S11.
#[tokio::test]
async fn completion_without_a_binding_is_sent_nowhere() {
    let dir = tempdir().expect("a directory");
    let (node, mut boss, mut worker, mut adapter) = one_node(&dir).await;
    adapter.bring_message("lobby", "m1", "find it").await;
    let asked = boss.take_turn().await;
    boss.give_task(&asked, json!({"agent": "worker", "message": "look"})).await;
    adapter.make_conversation("t1").await;
    let task = worker.take_turn().await;
    let closed = json!({
        "type": "inbound", "request_id": "c", "event": "conversation_closed", "conversation": adapter.place("t1"),
        "sender": {"id": "platform"}, "message": {"message_id": "none"},
    });
    assert_eq!(adapter.bring(closed).await["disposition"], "recorded");
    worker.answer(&task, "nobody reads this").await;
    let session = task["session_id"].as_str().expect("a session");
    await_recorded(&node, session, &["delivery.refused null no_active_binding"]).await;
    let result = boss.fact("tool.result").await;
    assert_eq!(result["result"]["text"], "nobody reads this", "the agent that gave the task is told: {result}");
    boss.answer(&asked, "found").await;
    let answer = adapter.next_part().await;
    assert_eq!((&answer["conversation"], &answer["text"]), (&adapter.place("lobby"), &json!("found")), "{answer}");
    let refused = r#"turnway_adapter_routes_total{kind="refused",reason="no_active_binding"} 1"#;
    await_metric(&node, refused).await;
}

/// The owner of both sessions dies while the task runs: it is not begun a second time, and its end is told once.
///
/// Covers: BR-29, BD-Q1, BD-C11.
#[tokio::test]
async fn task_outlives_the_node_that_began_it() {
    let dirs: [_; 3] = std::array::from_fn(|_| tempdir().expect("a directory"));
    let config = configuration(dirs[0].path());
    let redis = Redis::start(dirs[2].path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let mut owner = Node::start_on(&redis.url(), dirs[0].path(), &flags(&config)).await;
    let other = Node::start_on(&redis.url(), dirs[1].path(), &flags(&config)).await;
    let mut boss = PlayedAgent::connect(&other, "boss").await;
    let mut worker = PlayedAgent::connect(&other, "worker").await;
    let mut adapter = TestAdapter::active(&other, "main", capabilities()).await;
    let mut standby = TestAdapter::connect(&owner, "main", capabilities()).await;
    standby.await_state("standby").await;
    standby.bring_message("lobby", "m1", "find it").await;
    let asked = boss.take_turn().await;
    boss.give_task(&asked, json!({"agent": "worker", "message": "look"})).await;
    adapter.make_conversation("t1").await;
    let task = worker.take_turn().await;
    owner.kill().await;
    let again = worker.take_turn().await;
    assert_eq!((&again["run_id"], &again["attempt"]), (&task["run_id"], &json!(2)), "the same run: {again}");
    let asked = boss.take_turn().await;
    worker.answer(&again, "it is there").await;
    let completion = adapter.next_part().await;
    assert_eq!((&completion["kind"], &completion["text"]), (&json!("task_completion"), &json!("it is there")));
    adapter.confirm(&completion, "x1").await;
    let result = boss.fact("tool.result").await;
    assert_eq!(result["result"]["text"], "it is there", "{result}");
    boss.answer(&asked, "found").await;
    let answer = adapter.next_part().await;
    assert_eq!((&answer["kind"], &answer["text"]), (&json!("final"), &json!("found")), "{answer}");
    adapter.confirm(&answer, "x2").await;
    let session = task["session_id"].as_str().expect("a session");
    await_recorded(&other, session, &["delivery.requested null", "delivery.sent 1"]).await;
}

/// The turn that gave the task is cancelled: the task ends too, and shows nothing.
///
/// Covers: BD-D7.
#[tokio::test]
async fn task_is_cancelled_with_its_turn() {
    let dir = tempdir().expect("a directory");
    let (node, mut boss, mut worker, mut adapter) = one_node(&dir).await;
    let accepted = adapter.bring_message("lobby", "m1", "find it").await;
    let asked = boss.take_turn().await;
    boss.give_task(&asked, json!({"agent": "worker", "message": "look"})).await;
    adapter.make_conversation("t1").await;
    let task = worker.take_turn().await;
    let operator = WebSocketClient::open(node.http).await.expect("a connection");
    let mut operator = operator.greet_with(json!({"type": "hello"})).await.expect("an operator");
    operator.say(json!({"type": "cancel_run", "run_id": accepted["run_id"]})).await.expect("it is sent");
    let is_cancel = |run: &Value| {
        let run = run.clone();
        move |message: &Value| message["type"] == "cancel" && message["run_id"] == run
    };
    boss.client.until(is_cancel(&asked["run_id"])).await.expect("a cancel");
    boss.say(&asked, json!({"type": "cancel_ack"})).await;
    worker.client.until(is_cancel(&task["run_id"])).await.expect("the cancel of the task");
    worker.say(&task, json!({"type": "cancel_ack"})).await;
    let session = task["session_id"].as_str().expect("a session");
    await_recorded(&node, session, &[]).await;
}

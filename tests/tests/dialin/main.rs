//! Agents that dial in, against the real binary: orders and events, lost connections, backpressure, protocol
//! violations, authorisation, QUIC, attempts at other nodes, and subscribed facts.
mod authorization;
mod backpressure;
mod lifecycle;
mod over_quic;
mod python;
mod remote_node;
mod subscribed;
mod violations;

use serde_json::{Value, json};
use tempfile::TempDir;
use turnway_tests::real::http;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Starts a node whose agent `a` dials in, with these keys in its flag. Returns the node and its data
/// directory.
pub(crate) async fn node(keys: &str) -> (Node, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", &format!("a=dial-in:{keys}")]).await;
    (node, dir)
}

/// Returns a hello of agent `a` with these further fields.
pub(crate) fn hello(more: &Value) -> Value {
    with(json!({"type": "hello", "role": "agent", "agent_id": "a"}), more)
}

fn with(mut message: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().expect("fields") {
        message[key] = value.clone();
    }
    message
}

/// Connects agent `a` with these capabilities.
pub(crate) async fn connect_agent(node: &Node, capabilities: Value) -> WebSocketClient {
    let wire = WebSocketClient::open(node.http).await.expect("it connects");
    wire.greet_with(hello(&json!({ "capabilities": capabilities }))).await.expect("welcome")
}

/// Returns the next message, which must be this order.
pub(crate) async fn next_order(agent: &mut WebSocketClient, kind: &str) -> Value {
    let order = agent.next().await.expect("an order");
    assert_eq!(order["type"], kind, "{order}");
    order
}

/// Sends an event about the run of an order.
pub(crate) async fn send(agent: &mut WebSocketClient, order: &Value, kind: &str, more: Value) {
    let message = with(json!({"type": kind, "run_id": order["run_id"]}), &more);
    agent.say(message).await.expect("it is taken");
}

/// Connects user ann.
pub(crate) async fn connect_user(node: &Node) -> WebSocketClient {
    WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects")
}

/// Sends an input to agent `a` in this session and returns the run.
pub(crate) async fn start_turn(person: &mut WebSocketClient, session: &str, text: &str) -> String {
    let accepted = person.ask(&format!("r {session} {text}"), invoke(session, "a", text)).await.expect("taken");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    accepted["run_id"].as_str().expect("its run").to_owned()
}

/// Reads to the end of a run and returns its complete text and the end.
pub(crate) async fn run_end(person: &mut WebSocketClient, run: &str) -> (String, Value) {
    let mut text = String::new();
    let mut attempt = Value::Null;
    loop {
        let message = person.next().await.expect("it goes on");
        if message["run_id"] != run {
            continue;
        }
        if message["type"] == "delta" {
            if message["attempt"] != attempt {
                text.clear();
                attempt = message["attempt"].clone();
            }
            assert_eq!(message["offset"], text.len(), "a gap or a repeat");
            text.push_str(message["text"].as_str().expect("text"));
        }
        if message["type"] == "done" {
            return (text, message);
        }
    }
}

/// Returns the first message about a run that satisfies `fits`.
pub(crate) async fn until_message(person: &mut WebSocketClient, run: &str, fits: impl Fn(&Value) -> bool) -> Value {
    person.until(|message| message["run_id"] == run && fits(message)).await.expect("it comes")
}

/// Waits until the node counts this number of connections of agent `a`.
pub(crate) async fn until_connections(node: &Node, expected: usize) {
    let line = format!("turnway_agent_connections{{agent=\"a\"}} {expected}");
    let seen = async {
        loop {
            let (_, page) = http::get(node.admin, "/metrics").await.expect("it answers");
            if page.lines().any(|it| it == line) {
                return;
            }
        }
    };
    tokio::time::timeout(turnway_tests::real::PATIENCE, seen).await.expect("they are counted");
}

//! Agents that dial in, against the real binary: what they are told, what becomes of what they say, and of turns whose
//! connection is lost.
//!
//! - `python`: an agent in another language, as its own process; `life`: orders and words, and what ends a connection;
//!   `slow`: who says more than is taken, and who takes less than is said.
//! - `lies`: connections that do not keep to the protocol; `rights`: who may serve which agent.
//! - `roads`: the same by QUIC; `beyond`: at another node than the one that is asked;
//!   `subscribed`: what an agent is told of besides its orders.
mod beyond;
mod lies;
mod life;
mod python;
mod rights;
mod roads;
mod slow;
mod subscribed;

use serde_json::{Value, json};
use tempfile::TempDir;
use turnway_tests::real::http;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{Wire, invoke};

/// A node whose agent `a` dials in, with these further keys; and where its data lies.
pub(crate) async fn node(keys: &str) -> (Node, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", &format!("a=dial-in:{keys}")]).await;
    (node, dir)
}

/// A hello of agent `a` with these fields more.
pub(crate) fn hello(more: &Value) -> Value {
    with(json!({"type": "hello", "role": "agent", "agent_id": "a"}), more)
}

fn with(mut message: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().expect("fields") {
        message[key] = value.clone();
    }
    message
}

/// A connection of agent `a` that can do so much.
pub(crate) async fn dial(node: &Node, capabilities: Value) -> Wire {
    let wire = Wire::open(node.http).await.expect("it connects");
    wire.greet_with(hello(&json!({ "capabilities": capabilities }))).await.expect("welcome")
}

/// The next message, which must be this order.
pub(crate) async fn order(agent: &mut Wire, kind: &str) -> Value {
    let order = agent.next().await.expect("an order");
    assert_eq!(order["type"], kind, "{order}");
    order
}

/// Says something of the run of an order.
pub(crate) async fn say(agent: &mut Wire, order: &Value, kind: &str, more: Value) {
    let message = with(json!({"type": kind, "run_id": order["run_id"]}), &more);
    agent.say(message).await.expect("it is taken");
}

/// A person's connection.
pub(crate) async fn person(node: &Node) -> Wire {
    Wire::hello(node.http, "ann", vec![]).await.expect("it connects")
}

/// Asks agent `a` something in this session; the run.
pub(crate) async fn ask(person: &mut Wire, session: &str, text: &str) -> String {
    let accepted =
        person.ask(&format!("r {session} {text}"), invoke(session, "a", text)).await.expect("taken");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    accepted["run_id"].as_str().expect("its run").to_owned()
}

/// Until a run's end, with its whole text.
pub(crate) async fn end(person: &mut Wire, run: &str) -> (String, Value) {
    let (mut text, mut attempt) = (String::new(), Value::Null);
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

/// The first message about a run that fits.
pub(crate) async fn until(person: &mut Wire, run: &str, fits: impl Fn(&Value) -> bool) -> Value {
    person.until(|message| message["run_id"] == run && fits(message)).await.expect("it comes")
}

/// Waits until so many connections of agent `a` are counted.
pub(crate) async fn connected(node: &Node, expected: usize) {
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

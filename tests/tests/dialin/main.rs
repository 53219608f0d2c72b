//! Agents that dial in, against the real binary: what they are told, what becomes of what they say, and of turns whose
//! connection is lost.
//!
//! - `python`: an agent in another language, as its own process.
//! - `lies`: connections that do not keep to the protocol.
//! - `rights`: who may serve which agent.
mod lies;
mod life;
mod python;
mod rights;

use serde_json::{Value, json};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::Wire;

/// A node whose agent `a` dials in, with these further keys; and where its data lies.
pub(crate) async fn node(keys: &str, args: &[&str]) -> (Node, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = format!("a=dial-in:{keys}");
    let node = Node::start(dir.path(), &[&["--agent", &agent], args].concat()).await;
    (node, dir)
}

/// A hello of this agent.
pub(crate) fn hello(more: Value) -> Value {
    let mut hello = json!({"type": "hello", "role": "agent", "agent_id": "a"});
    for (key, value) in more.as_object().expect("fields") {
        hello[key] = value.clone();
    }
    hello
}

/// A connection of agent `a`.
pub(crate) async fn dial(node: &Node, capabilities: Value) -> Wire {
    let wire = Wire::open(node.http).await.expect("it connects");
    wire.greet_with(hello(json!({ "capabilities": capabilities }))).await.expect("welcome")
}

/// The next order of this kind, which must be the next message.
pub(crate) async fn order(agent: &mut Wire, kind: &str) -> Value {
    let order = agent.next().await.expect("an order");
    assert_eq!(order["type"], kind, "{order}");
    order
}

/// Says something of an order.
pub(crate) async fn say(agent: &mut Wire, order: &Value, kind: &str, more: Value) {
    let mut message = json!({"type": kind, "run_id": order["run_id"]});
    for (key, value) in more.as_object().expect("fields") {
        message[key] = value.clone();
    }
    agent.say(message).await.expect("it is taken");
}

/// A person's connection.
pub(crate) async fn person(node: &Node) -> Wire {
    Wire::hello(node.http, "ann", vec![]).await.expect("it connects")
}

/// What is counted, by its whole name.
pub(crate) async fn counted(node: &Node, name: &str) -> Option<f64> {
    let page = turnway_tests::real::http::get(node.admin, "/metrics").await;
    let line = page.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

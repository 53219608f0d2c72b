//! Typing signals and previews of real nodes: an answer is seen while it is written, wherever the adapter is connected.
use super::fleet::{directories, two_nodes_with};
use super::{TestAdapter, await_recorded};
use serde_json::{Value, json};
use std::sync::Arc;
use tempfile::tempdir;
use tokio::sync::Semaphore;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::node::Node;

/// A text that is long enough for a preview at once.
pub(crate) const LINE: &str =
    "A line of an answer that is as long as the first preview of an answer has to be, or longer: `x";

/// Starts an agent that writes one line for each permit, three in all.
pub(crate) async fn gated() -> (Agents, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let agents = Agents::start({
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            Reply::speak(move |stream| async move {
                for n in 1..=3 {
                    gate.acquire().await.expect("it stays").forget();
                    stream.delta(&format!("{LINE}{n}` ")).await?;
                }
                stream.done().await
            })
        }
    })
    .await;
    (agents, gate)
}

impl TestAdapter {
    /// Returns the next signal or part.
    async fn next_shown(&mut self) -> Value {
        loop {
            let message = self.next().await;
            if ["typing", "deliver", "delete_message"].iter().any(|kind| message["type"] == *kind) {
                return message;
            }
        }
    }

    async fn await_typing(&mut self, state: &str, conversation: &str) {
        let typing = self.next_shown().await;
        let expected = (json!("typing"), json!(state), self.place(conversation));
        assert_eq!((typing["type"].clone(), typing["state"].clone(), typing["conversation"].clone()), expected);
    }

    /// Returns the next preview.
    async fn next_preview(&mut self) -> Value {
        let preview = self.next_shown().await;
        assert_eq!((&preview["type"], &preview["kind"]), (&json!("deliver"), &json!("preview")), "{preview}");
        preview
    }
}

/// Follows the answer to a message that `bringer` brings, at `shower`, which may be connected to another node.
async fn answer_is_seen_while_it_is_written(
    node: &Node,
    bringer: Option<&mut TestAdapter>,
    shower: &mut TestAdapter,
    gate: &Semaphore,
) {
    let event = shower.message("lobby", "m1", "hello");
    let accepted = match bringer {
        Some(bringer) => bringer.bring(event).await,
        None => {
            shower.client.say(event).await.expect("it is sent");
            Value::Null
        }
    };
    let mut session = accepted["session_id"].as_str().map(str::to_owned);
    while session.is_none() {
        let message = shower.next().await;
        assert_ne!(message["type"], "typing", "the message is accepted before its turn begins");
        session = message["session_id"].as_str().map(str::to_owned);
    }
    shower.await_typing("on", "lobby").await;
    gate.add_permits(1);
    let first = shower.next_preview().await;
    assert_eq!((&first["text"], &first["reply_to"]), (&json!(format!("{LINE}1`")), &json!("m1")), "{first}");
    let outcome = json!({"outcome": "sent", "external_id": "p1", "place": shower.place("lobby")});
    shower.report(&first, outcome).await;
    gate.add_permits(1);
    let second = shower.next_preview().await;
    assert!(second["text"].as_str().expect("a text").starts_with(&format!("{LINE}1` {LINE}2")), "{second}");
    assert_eq!((&second["key"], &second["delivery_id"]), (&first["key"], &first["delivery_id"]), "{second}");
    gate.add_permits(1);
    shower.await_typing("off", "lobby").await;
    let part = shower.next_shown().await;
    assert_eq!((&part["type"], &part["kind"]), (&json!("deliver"), &json!("final")), "{part}");
    assert_ne!(part["key"], first["key"], "{part}");
    let session = session.expect("a session");
    await_recorded(node, &session, &["delivery.requested null"]).await;
    shower.confirm(&part, "x1").await;
    let removed = shower.next_shown().await;
    assert_eq!((&removed["type"], &removed["key"]), (&json!("delete_message"), &first["key"]), "{removed}");
    assert_eq!(removed["conversation"], shower.place("lobby"), "{removed}");
    await_recorded(node, &session, &["delivery.requested null", "delivery.sent 1"]).await;
}

/// Covers: BD-T4, BR-36.
#[tokio::test]
async fn answer_is_previewed_and_typing_is_shown() {
    let dir = tempdir().expect("a directory");
    let (agents, gate) = gated().await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"key": 2, "typing": 2, "preview": 1})).await;
    answer_is_seen_while_it_is_written(&node, None, &mut adapter, &gate).await;
}

/// The standby's node owns the session; the active adapter is connected to the other node.
///
/// Covers: BD-T4, BR-36.
#[tokio::test]
async fn signals_reach_the_adapter_at_another_node() {
    let dirs = directories();
    let (agents, gate) = gated().await;
    let (_redis, [first, second]) =
        two_nodes_with(&dirs, &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let able = json!({"key": 2, "typing": 2, "preview": 1});
    let mut active = TestAdapter::active(&first, "main", able.clone()).await;
    let mut standby = TestAdapter::connect(&second, "main", able).await;
    standby.await_state("standby").await;
    answer_is_seen_while_it_is_written(&second, Some(&mut standby), &mut active, &gate).await;
}

//! Edits, deletions and reactions of agents, on real nodes: each changes the message that it is about, and no other.
use super::fleet::{directories, two_nodes_with};
use super::signals::LINE;
use super::{TestAdapter, await_metric, await_recorded};
use serde_json::{Value, json};
use std::sync::Arc;
use tempfile::{TempDir, tempdir};
use tokio::sync::Semaphore;
use turnway_tests::real::agent::{Agents, Invocation, Reply};
use turnway_tests::real::command::run;
use turnway_tests::real::node::Node;

/// Performs the actions of a message that is a list of tools and arguments, and answers every message with its text.
pub(crate) fn act(invocation: &Invocation) -> Reply {
    let text = invocation.text.clone();
    Reply::speak(move |stream| async move {
        let calls: Vec<(String, Value)> = serde_json::from_str(&text).unwrap_or_default();
        for (n, (tool, args)) in calls.iter().enumerate() {
            let action = json!({"tool": tool, "action_id": format!("a{n}"), "args": args});
            stream.event("action", &action).await?;
        }
        stream.delta(if calls.is_empty() { &text } else { "done" }).await?;
        stream.done().await
    })
}

async fn acting_node(dir: &TempDir, capabilities: Value) -> (Agents, Node, TestAdapter) {
    let agents = Agents::start(|invocation| act(&invocation)).await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let adapter = TestAdapter::active(&node, "main", capabilities).await;
    (agents, node, adapter)
}

impl TestAdapter {
    /// Brings a message that the agent answers with one message, which gets this id. Returns the run.
    async fn have_answered(&mut self, room: &str, id: &str, external_id: &str) -> Value {
        let accepted = self.bring_message(room, id, &format!("text of {id}")).await;
        let part = self.next_part().await;
        assert_eq!((&part["kind"], &part["reply_to"]), (&json!("final"), &json!(id)), "{part}");
        self.confirm(&part, external_id).await;
        accepted
    }

    /// Brings a message on which the agent performs an action.
    async fn have_done(&mut self, room: &str, id: &str, tool: &str, args: Value) {
        self.bring_message(room, id, &json!([[tool, args]]).to_string()).await;
    }

    /// Confirms the next part, which changes a message, and then the answer after it.
    async fn finish(&mut self, change: &Value, external_id: &str) {
        let target = &change["target"];
        let target = target["external_id"].as_str().or(target["message_id"].as_str()).expect("a target").to_owned();
        self.confirm(change, &target).await;
        let answer = self.next_part().await;
        assert_eq!((&answer["kind"], &answer["text"]), (&json!("final"), &json!("done")), "{answer}");
        self.confirm(&answer, external_id).await;
    }
}

fn change(part: &Value) -> [Value; 4] {
    ["kind", "text", "target", "reaction"].map(|name| part[name].clone())
}

/// Has one message edited, one deleted and one reacted to, at an adapter that may be connected to another node.
async fn messages_are_changed(adapter: &mut TestAdapter) {
    let first = adapter.have_answered("lobby", "m1", "x1").await["run_id"].clone();
    let second = adapter.have_answered("lobby", "m2", "x2").await["run_id"].clone();
    adapter.have_done("lobby", "m3", "message.edit", json!({"run_id": first, "text": "better"})).await;
    let edit = adapter.next_part().await;
    assert_eq!(change(&edit), [json!("edit"), json!("better"), json!({"external_id": "x1"}), Value::Null], "{edit}");
    assert_eq!((&edit["conversation"], &edit["reply_to"]), (&adapter.place("lobby"), &Value::Null), "{edit}");
    // Without the capability `key`, too.
    adapter.report(&edit, json!({"outcome": "unknown"})).await;
    let again = adapter.next_part().await;
    assert_eq!((change(&again), &again["key"], &again["attempt"]), (change(&edit), &edit["key"], &json!(2)), "{again}");
    adapter.finish(&again, "x3").await;
    adapter.have_done("lobby", "m4", "message.react", json!({"emoji": "\u{1F440}"})).await;
    let reaction = adapter.next_part().await;
    let expected = json!({"emoji": "\u{1F440}", "remove": false});
    assert_eq!(change(&reaction), [json!("reaction"), json!(""), json!({"message_id": "m4"}), expected], "{reaction}");
    adapter.finish(&reaction, "x4").await;
    adapter.have_done("lobby", "m5", "message.delete", json!({"run_id": second})).await;
    let deletion = adapter.next_part().await;
    assert_eq!(
        change(&deletion),
        [json!("delete"), json!(""), json!({"external_id": "x2"}), Value::Null],
        "{deletion}"
    );
    adapter.finish(&deletion, "x5").await;
}

/// Covers: BR-08, BR-36, BD-Q7.
#[tokio::test]
async fn agent_changes_the_messages_that_it_names() {
    let dir = tempdir().expect("a directory");
    let all = json!({"edit": 2, "delete": 1, "reaction": 2});
    let (_agents, node, mut adapter) = acting_node(&dir, all).await;
    messages_are_changed(&mut adapter).await;
    // Another conversation is out of reach, also within one session.
    let elsewhere = adapter.have_answered("attic", "n1", "y1").await;
    let bind = json!({"type": "bind", "session_id": elsewhere["session_id"], "conversation": adapter.place("cellar")});
    let bound = adapter.client.ask("b", bind).await.expect("an answer");
    assert_eq!(bound["type"], "bound", "{bound}");
    let args = json!({"run_id": elsewhere["run_id"], "text": "forged"});
    adapter.have_done("cellar", "n2", "message.edit", args).await;
    let answer = adapter.next_part().await;
    assert_eq!((&answer["kind"], &answer["text"]), (&json!("final"), &json!("done")), "{answer}");
    adapter.confirm(&answer, "y2").await;
    let session = elsewhere["session_id"].as_str().expect("a session").to_owned();
    await_recorded(
        &node,
        &session,
        &["delivery.requested null", "delivery.sent 1", "delivery.requested null", "delivery.sent 1"],
    )
    .await;
}

#[tokio::test]
async fn adapter_at_another_node_changes_messages() {
    let dirs = directories();
    let agents = Agents::start(|invocation| act(&invocation)).await;
    let args = ["--agent", &agents.flag("a"), "--default-agent", "a"];
    let (_redis, [first, second]) = two_nodes_with(&dirs, &args).await;
    let all = json!({"edit": 2, "delete": 2, "reaction": 2});
    let mut active = TestAdapter::active(&first, "main", all.clone()).await;
    let mut standby = TestAdapter::connect(&second, "main", all).await;
    standby.await_state("standby").await;
    // The standby's node owns the session from its first message on.
    standby.bring_message("lobby", "m0", "hello").await;
    let part = active.next_part().await;
    active.confirm(&part, "x0").await;
    messages_are_changed(&mut active).await;
}

/// Nothing is sent in place of a change that the adapter cannot make, and the turn does not fail.
///
/// Covers: BR-36, BR-12.
#[tokio::test]
async fn undeclared_change_fails_and_sends_nothing() {
    let dir = tempdir().expect("a directory");
    let (_agents, node, mut adapter) =
        acting_node(&dir, json!({"key": 2, "edit": 2, "delete": -1, "reaction": 0})).await;
    let narrower = json!({"type": "capabilities", "conversation": adapter.place("lobby"), "capabilities": {"edit": 0}});
    let set = adapter.client.ask("c", narrower).await.expect("an answer");
    assert_eq!(set["type"], "capabilities_set", "{set}");
    let accepted = adapter.have_answered("lobby", "m1", "x1").await;
    let session = accepted["session_id"].as_str().expect("a session").to_owned();
    let run_id = &accepted["run_id"];
    let calls = [
        ("message.edit", json!({"run_id": run_id, "text": "better"})),
        ("message.react", json!({"emoji": "ok"})),
        ("message.delete", json!({"run_id": run_id})),
    ];
    for (n, (tool, args)) in calls.into_iter().enumerate() {
        adapter.have_done("lobby", &format!("m{}", n + 2), tool, args).await;
        let answer = adapter.next_part().await;
        assert_eq!((&answer["kind"], &answer["text"]), (&json!("final"), &json!("done")), "{answer}");
        adapter.confirm(&answer, &format!("x{}", n + 2)).await;
        let failures = format!("turnway_adapter_delivery_failures_total{{reason=\"not_supported\"}} {}", n + 1);
        await_metric(&node, &failures).await;
    }
    let variables = [("TURNWAY_URL", &*format!("http://{}", node.http))];
    let listed = run(dir.path(), &["deliveries", "ls", &session, "--json"], &variables).await;
    let listed: Value = serde_json::from_str(&listed.out).expect("JSON");
    let edit = &listed["deliveries"][0];
    assert_eq!((&edit["kind"], &edit["reason"]), (&json!("edit"), &json!("not_supported")), "{listed}");
    let id = edit["delivery_id"].as_str().expect("an id");
    let why = run(dir.path(), &["deliveries", "why", &session, id], &variables).await;
    assert!(why.out.contains("not_supported") && why.out.contains("edit"), "{}", why.out);
    // Once the adapter can do it, an operator has it done.
    let wider = json!({"type": "capabilities", "conversation": adapter.place("lobby"), "capabilities": {"edit": 1}});
    adapter.client.ask("c", wider).await.expect("an answer");
    let retried = run(dir.path(), &["deliveries", "retry", &session, id], &variables).await;
    assert_eq!(retried.code, Some(0), "{}", retried.err);
    let part = adapter.next_part().await;
    assert_eq!(change(&part), [json!("edit"), json!("better"), json!({"external_id": "x1"}), Value::Null], "{part}");
}

/// A node that stops after it has given the order does not know what became of it; a message would be held.
///
/// Covers: BR-15.
#[tokio::test]
async fn change_is_repeated_after_a_crash_without_a_key() {
    let dir = tempdir().expect("a directory");
    let all = json!({"edit": 2});
    let (_agents, mut node, mut adapter) = acting_node(&dir, all.clone()).await;
    let accepted = adapter.have_answered("lobby", "m1", "x1").await;
    let args = json!({"run_id": accepted["run_id"], "text": "better"});
    adapter.have_done("lobby", "m2", "message.edit", args).await;
    let edit = adapter.next_part().await;
    node.kill_and_restart().await;
    let mut adapter = TestAdapter::active(&node, "main", all).await;
    let again = adapter.next_part().await;
    assert_eq!((change(&again), &again["key"]), (change(&edit), &edit["key"]), "{again}");
    adapter.confirm(&again, "x1").await;
    await_metric(&node, "turnway_adapter_deliveries_total{kind=\"sent\"} 1").await;
}

/// Covers: BR-09.
#[tokio::test]
async fn answer_of_several_messages_is_deleted_whole() {
    let dir = tempdir().expect("a directory");
    let limit = json!({"level": 2, "max": 64});
    let (_agents, node, mut adapter) = acting_node(&dir, json!({"text": limit, "delete": 1})).await;
    let accepted = adapter.bring_message("lobby", "m1", &"word ".repeat(20)).await;
    for external_id in ["x1", "x2"] {
        let part = adapter.next_part().await;
        assert_eq!(part["parts"], 2, "{part}");
        adapter.confirm(&part, external_id).await;
    }
    adapter.have_done("lobby", "m2", "message.delete", json!({"run_id": accepted["run_id"]})).await;
    let first = adapter.next_part().await;
    assert_eq!((&first["target"], &first["parts"]), (&json!({"external_id": "x1"}), &json!(2)), "{first}");
    adapter.confirm(&first, "x1").await;
    let second = adapter.next_part().await;
    assert_eq!(second["target"], json!({"external_id": "x2"}), "{second}");
    // A message that is gone says nothing of the conversation: the answer follows.
    adapter.report(&second, json!({"outcome": "rejected", "code": "gone"})).await;
    let answer = adapter.next_part().await;
    assert_eq!((&answer["kind"], &answer["text"]), (&json!("final"), &json!("done")), "{answer}");
    adapter.confirm(&answer, "x3").await;
    await_metric(&node, "turnway_adapter_delivery_failures_total{reason=\"gone\"} 1").await;
}

/// Covers: BR-36.
#[tokio::test]
async fn preview_goes_on_while_a_reaction_waits() {
    let gate = Arc::new(Semaphore::new(0));
    let agents = Agents::start({
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            Reply::speak(move |stream| async move {
                let action = json!({"tool": "message.react", "action_id": "a", "args": {"emoji": "ok"}});
                stream.event("action", &action).await?;
                gate.acquire().await.expect("it stays").forget();
                stream.delta(&format!("{LINE}` ")).await?;
                gate.acquire().await.expect("it stays").forget();
                stream.done().await
            })
        }
    })
    .await;
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let mut adapter = TestAdapter::active(&node, "main", json!({"preview": 2, "reaction": 2})).await;
    adapter.bring_message("lobby", "m1", "hello").await;
    let reaction = adapter.next_part().await;
    assert_eq!(reaction["kind"], "reaction", "{reaction}");
    gate.add_permits(1);
    let preview = adapter.next_part().await;
    assert_eq!((&preview["kind"], &preview["reply_to"]), (&json!("preview"), &json!("m1")), "{preview}");
    adapter.confirm(&reaction, "m1").await;
    gate.add_permits(1);
    let mut answer = adapter.next_part().await;
    while answer["kind"] == "preview" {
        answer = adapter.next_part().await;
    }
    assert_eq!(answer["kind"], "final", "{answer}");
}

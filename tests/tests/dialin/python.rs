//! An agent in another language, written from the documents, in a process of its own.
use crate::{connect_user, node, run_end, start_turn, until_connections, until_message};
use serde_json::json;
use turnway_tests::real::node::Node;
use turnway_tests::real::python::{Running, script};

/// Starts a process of agent `a` and waits for its welcome.
async fn agent(node: &Node, more: &[&str]) -> Running {
    let url = format!("ws://{}/v1/connect", node.http);
    let mut agent = Running::start(script("agent_dialin.py", &[&[url.as_str(), "a"], more].concat()));
    assert_eq!(agent.line().await, "welcome");
    agent
}

/// Covers: MP-A0, MP-A1, SR-K1, SR-K2, ST-8.
#[tokio::test]
async fn python_agent_answers_steers_cancels_and_drains() {
    let (mut node, _dir) = node(",steer=true").await;
    let mut agent = agent(&node, &[]).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "héllo 語").await;
    let (text, done) = run_end(&mut ann, &run).await;
    assert_eq!((text.as_str(), &done["usage"]), ("me:héllo 語 ", &json!({"tokens": 3})));
    assert_eq!(agent.line().await, format!("invoke {run} 1"));

    let run = start_turn(&mut ann, "s1", "wait a moment").await;
    assert_eq!(agent.line().await, format!("invoke {run} 1"));
    until_message(&mut ann, &run, |message| message["type"] == "delta").await;
    let more = start_turn(&mut ann, "s1", "blue").await;
    assert_eq!(agent.line().await, "steer accepted");
    let steered = until_message(&mut ann, &more, |message| message["type"] == "done").await;
    assert_eq!(steered["stop_reason"], "steered");

    let run = start_turn(&mut ann, "s1", "wait for ever").await;
    assert_eq!(agent.line().await, format!("invoke {run} 1"));
    until_message(&mut ann, &run, |message| message["type"] == "delta").await;
    ann.say(json!({"type": "cancel_run", "run_id": run})).await.expect("said");
    let done = until_message(&mut ann, &run, |message| message["type"] == "done").await;
    assert_eq!(done["status"], "cancelled");
    assert_eq!(agent.line().await, format!("cancel {run} running"));
    assert_eq!(node.terminate().await, Some(0));
    assert_eq!(agent.line().await, "go_away drain");
    assert_eq!(agent.end().await, "closed 4503\n");
}

/// Covers: LN-SR1.
#[tokio::test]
async fn two_agent_processes_get_equal_shares() {
    let (node, _dir) = node("").await;
    let _one = agent(&node, &["--name", "one"]).await;
    let _two = agent(&node, &["--name", "two"]).await;
    until_connections(&node, 2).await;
    let mut ann = connect_user(&node).await;
    let mut runs = Vec::new();
    // The runs stay open, so that each connection has some when the next one is assigned.
    for n in 0..10 {
        let run = start_turn(&mut ann, &format!("s{n}"), "wait here").await;
        let delta = until_message(&mut ann, &run, |message| message["type"] == "delta").await;
        runs.push((run, delta["text"].as_str().expect("text").to_owned()));
    }
    for name in ["one", "two"] {
        let count = runs.iter().filter(|(_, text)| text.starts_with(name)).count();
        assert_eq!(count, 5, "{name}: {runs:?}");
    }
}

/// Covers: G3, G5, SR-I1.
#[tokio::test]
async fn dead_agent_process_is_replaced_in_mid_answer() {
    for (keys, more, expected) in [
        (",on_owner_loss=retry", None, "two:die in the middle "),
        (",on_owner_loss=resume", Some("--resume"), "one:die in the middle "),
    ] {
        let (node, _dir) = node(keys).await;
        let more = |name| ["--name", name].into_iter().chain(more).collect::<Vec<_>>();
        let mut one = agent(&node, &more("one")).await;
        let mut ann = connect_user(&node).await;
        let run = start_turn(&mut ann, "s1", "die in the middle").await;
        assert_eq!(one.line().await, format!("invoke {run} 1"));
        let _two = agent(&node, &more("two")).await;
        let (text, done) = run_end(&mut ann, &run).await;
        assert_eq!((text.as_str(), &done["status"]), (expected, &json!("completed")), "{keys}");
    }
}

/// Covers: G3, MP-B13: a node that dies takes the connection with it; its agent is there again in time.
#[tokio::test]
async fn restarted_node_retries_at_the_reconnected_agent() {
    let (mut node, _dir) = node(",on_owner_loss=retry").await;
    let mut one = agent(&node, &[]).await;
    let mut ann = connect_user(&node).await;
    let run = start_turn(&mut ann, "s1", "wait for it").await;
    assert_eq!(one.line().await, format!("invoke {run} 1"));
    node.kill_and_restart().await;
    let mut two = agent(&node, &[]).await;
    assert_eq!(two.line().await, format!("invoke {run} 2"));
}

//! Tests the facts that an HTTP agent gets because of its subscriptions.
use crate::{next, person, runner, tells};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, KEY, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::invoke;

/// One agent requests an action and ends; another agent answers meanwhile and has subscribed to tool facts.
///
/// Covers: EV-G1, EV-L3, LN-EV3.
#[tokio::test]
async fn http_agent_gets_subscribed_facts_of_other_agents() {
    let (news, mut told) = mpsc::unbounded_channel();
    let enough = Arc::new(Notify::new());
    let goes_on = Arc::clone(&enough);
    let script = move |invocation: turnway_tests::real::agent::Invocation| {
        let goes_on = Arc::clone(&goes_on);
        Reply::speak(move |stream| async move {
            if invocation.agent == "asks" {
                stream.event("action", &json!({"action_id": "a1", "tool": "t", "args": {}})).await?;
            } else {
                stream.event("subscribe", &json!({"types": ["user.*"]})).await?;
                stream.delta("I look on").await?;
                goes_on.notified().await;
            }
            stream.done().await
        })
    };
    let agents = Agents::start_with_events(script, news).await;
    let dir = tempfile::tempdir().expect("a directory");
    let looks_on = format!("{},events=tool.*", agents.flag("looks-on"));
    let flags = ["--demo", "--agent", &agents.flag("asks"), "--agent", &looks_on];
    let node = Node::start(dir.path(), &flags).await;
    let mut runner = runner(&node).await;
    let mut ann = person(&node).await;
    let members = json!({"type": "session_open", "session_id": "s1", "agents": ["asks", "looks-on"]});
    ann.ask("o", members).await.expect("an answer");
    ann.ask("1", invoke("s1", "asks", "go")).await.expect("taken");
    let execute = next(&mut runner, "execute").await;
    ann.until(|message| message["type"] == "done").await.expect("its end");
    let run = ann.ask("2", invoke("s1", "looks-on", "what is there?")).await.expect("taken")["run_id"].clone();
    ann.until(|message| message["type"] == "delta" && message["run_id"] == run).await.expect("it answers");
    tells(&mut runner, &execute, "invoked", json!({})).await;
    tells(&mut runner, &execute, "result", json!({"ok": true, "result": 7})).await;
    let mut seqs = Vec::new();
    let mut keys = BTreeSet::new();
    // The requesting agent may get its own facts while its run is open; these are skipped.
    while seqs.len() < 2 {
        let event = timeout(PATIENCE, told.recv()).await.expect("in time").expect("a request");
        if event["run_id"] != run {
            continue;
        }
        let name = ["tool.invoke", "tool.result"][seqs.len()];
        assert_eq!((&event["name"], &event["session_id"]), (&json!(name), &json!("s1")), "{event}");
        assert_eq!(event["event"]["data"]["action_id"], execute["action_id"], "{event}");
        seqs.push(event["seq"].as_u64().expect("a place"));
        keys.insert(event[KEY].as_str().expect("a key").to_owned());
    }
    assert_eq!(keys.len(), seqs.len(), "by its key an agent knows a repeat: {keys:?}");
    assert!(seqs.is_sorted() && seqs[0] > 0, "{seqs:?}");
    // The agent also gets the facts to which it subscribed during its run.
    let waits = ann.ask("3", invoke("s1", "looks-on", "and now?")).await.expect("taken")["run_id"].clone();
    let event = timeout(PATIENCE, told.recv()).await.expect("in time").expect("a request");
    assert_eq!((&event["name"], &event["run_id"]), (&json!("user.message"), &run), "{event}");
    assert_eq!(event["event"]["run_id"], waits, "{event}");
    ann.say(json!({"type": "cancel_run", "run_id": waits})).await.expect("said");
    enough.notify_one();
    let done = ann.until(|message| message["type"] == "done" && message["run_id"] == run).await;
    assert_eq!(done.expect("its end")["status"], "completed");
}

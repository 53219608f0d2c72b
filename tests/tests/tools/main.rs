//! Tests actions and tool runners with the real gateway and scripted agents and runners: an action runs, its
//! results reach all subscribers, and its outcome is known after a node or runner is killed.
mod rights;
mod subscriptions;

use serde_json::{Value, json};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

/// Starts a node with the dial-in agent `a`; returns its data directory as well.
async fn node() -> (Node, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", "a=dial-in:,on_owner_loss=retry"]).await;
    (node, dir)
}

async fn agent(node: &Node) -> WebSocketClient {
    let hello = json!({"type": "hello", "role": "agent", "agent_id": "a"});
    WebSocketClient::open(node.http).await.expect("it connects").greet_with(hello).await.expect("welcome")
}

async fn runner(node: &Node) -> WebSocketClient {
    let tools = json!(["t", {"name": "process.spawn", "description": "starts one"}]);
    let hello = json!({"type": "hello", "role": "tool_runner", "runner_id": "r1", "tools": tools});
    WebSocketClient::open(node.http).await.expect("it connects").greet_with(hello).await.expect("welcome")
}

async fn person(node: &Node) -> WebSocketClient {
    WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects")
}

/// Sends agent `a` a message; returns the `invoke` that the agent receives.
async fn asked(person: &mut WebSocketClient, agent: &mut WebSocketClient, text: &str) -> Value {
    let accepted = person.ask(text, invoke("s1", "a", text)).await.expect("taken");
    assert_eq!(accepted["type"], "turn_accepted", "{accepted}");
    next(agent, "invoke").await
}

/// Returns the next message, which must be of this type.
async fn next(wire: &mut WebSocketClient, kind: &str) -> Value {
    let message = wire.next().await.expect("a message");
    assert_eq!(message["type"], kind, "{message}");
    message
}

/// Returns the fact of the next message to an agent, which must have this name.
async fn event(agent: &mut WebSocketClient, name: &str) -> Value {
    let message = next(agent, "event").await;
    assert_eq!((&message["name"], &message["event"]["type"]), (&json!(name), &json!(name)), "{message}");
    message["event"].clone()
}

async fn act(agent: &mut WebSocketClient, invoke: &Value, name: &str, tool: &str) {
    let action =
        json!({"type": "action", "run_id": invoke["run_id"], "action_id": name, "tool": tool, "args": {"x": 1}});
    agent.say(action).await.expect("it is taken");
}

async fn tells(runner: &mut WebSocketClient, of: &Value, kind: &str, mut body: Value) {
    (body["type"], body["action_id"]) = (kind.into(), of["action_id"].clone());
    runner.say(body).await.expect("it is taken");
}

async fn done(person: &mut WebSocketClient, agent: &mut WebSocketClient, invoke: &Value) {
    agent.say(json!({"type": "done", "run_id": invoke["run_id"]})).await.expect("said");
    let run = &invoke["run_id"];
    let done = person.until(|message| message["type"] == "done" && message["run_id"] == *run).await;
    assert_eq!(done.expect("its end")["status"], "completed");
}

/// Covers: EV-E3, EV-E4, EV-E5, EV-N5, EV-N8, EV-C3, EV-G1, EV-T10, LN-EV13, RX-18.
#[tokio::test]
async fn action_runs_once_and_its_result_reaches_all_subscribers() {
    let (node, _dir) = node().await;
    let mut runner = runner(&node).await;
    let mut agent = agent(&node).await;
    let mut ann = person(&node).await;
    let invoke = asked(&mut ann, &mut agent, "go").await;
    act(&mut agent, &invoke, "a1", "t").await;
    let action = event(&mut agent, "agent.action").await;
    assert_eq!((&action["data"]["name"], &action["id"]), (&json!("a1"), &action["data"]["action_id"]));
    let execute = next(&mut runner, "execute").await;
    assert_eq!((&execute["tool"], &execute["args"]), (&json!("t"), &json!({"x": 1})));
    assert_eq!((&execute["action_id"], &execute["run_id"]), (&action["id"], &invoke["run_id"]));
    tells(&mut runner, &execute, "invoked", json!({})).await;
    event(&mut agent, "tool.invoke").await;
    // A repeated action is a duplicate; a new action behind it runs.
    act(&mut agent, &invoke, "a1", "t").await;
    act(&mut agent, &invoke, "a2", "t").await;
    event(&mut agent, "agent.action").await;
    let other = next(&mut runner, "execute").await;
    assert_ne!(other["action_id"], execute["action_id"]);
    tells(&mut runner, &execute, "result", json!({"ok": true, "result": {"n": 3}})).await;
    let result = event(&mut agent, "tool.result").await;
    assert_eq!((&result["data"]["ok"], &result["data"]["result"]), (&json!(true), &json!({"n": 3})));
    let shown = ann.until(|message| message["type"] == "tool_event" && message["name"] == "tool.result").await;
    assert_eq!(shown.expect("she is told")["data"]["name"], "a1");
    tells(&mut runner, &other, "result", json!({"ok": false, "error": {"code": "boom", "message": "m"}})).await;
    event(&mut agent, "tool.invoke").await;
    assert_eq!(event(&mut agent, "tool.result").await["data"]["error"]["code"], "boom");
    // A repeated result counts once, and a result of an unknown action is ignored.
    tells(&mut runner, &execute, "result", json!({"ok": false})).await;
    tells(&mut runner, &json!({"action_id": "0190f4a0-0000-7000-8000-000000000001"}), "result", json!({"ok": true}))
        .await;
    runner.say(json!({"type": "ping"})).await.expect("said");
    next(&mut runner, "pong").await;
    done(&mut ann, &mut agent, &invoke).await;
}

/// The same with an HTTP agent: it requests the action in its stream, and gets the facts as HTTP requests, in
/// order.
///
/// Covers: EV-E3, EV-G1, EV-L1, EV-L2, EV-L3, EV-L0.
#[tokio::test]
async fn http_agent_gets_the_facts_of_its_actions() {
    let (news, mut told) = mpsc::unbounded_channel();
    let enough = Arc::new(Notify::new());
    let goes_on = Arc::clone(&enough);
    let script = move |_| {
        let goes_on = Arc::clone(&goes_on);
        Reply::speak(move |stream| async move {
            let action = json!({"action_id": "a1", "tool": "t", "args": {"x": 1}});
            stream.event("action", &action).await?;
            goes_on.notified().await;
            stream.delta("it is done").await?;
            stream.done().await
        })
    };
    let agents = Agents::start_with_events(script, news).await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", &agents.flag("h")]).await;
    let mut runner = runner(&node).await;
    let mut ann = person(&node).await;
    let accepted = ann.ask("1", invoke("s1", "h", "go")).await.expect("taken");
    let execute = next(&mut runner, "execute").await;
    tells(&mut runner, &execute, "invoked", json!({})).await;
    tells(&mut runner, &execute, "result", json!({"ok": true, "result": 7})).await;
    for name in ["agent.action", "tool.invoke", "tool.result"] {
        let event = timeout(PATIENCE, told.recv()).await.expect("in time").expect("a request");
        assert_eq!((&event["name"], &event["run_id"]), (&json!(name), &accepted["run_id"]), "{event}");
        assert_eq!(event["event"]["data"]["action_id"], execute["action_id"]);
    }
    enough.notify_one();
    let done = ann.until(|message| message["type"] == "done").await.expect("its end");
    assert_eq!(done["status"], "completed", "{done}");
}

/// Covers: EV-E6, EV-T5, EV-T8, EV-A2, EV-C6, EV-R5.
#[tokio::test]
async fn process_survives_its_run_and_its_node() {
    let (mut node, _dir) = node().await;
    let mut runner_a = runner(&node).await;
    let mut agent_a = agent(&node).await;
    let mut ann = person(&node).await;
    let invoke = asked(&mut ann, &mut agent_a, "go").await;
    assert_eq!(invoke["context"].get("open_actions"), None);
    act(&mut agent_a, &invoke, "a1", "process.spawn").await;
    let execute = next(&mut runner_a, "execute").await;
    tells(&mut runner_a, &execute, "invoked", json!({"pid": 7})).await;
    tells(&mut runner_a, &execute, "progress", json!({"data": {"percent": 50}})).await;
    for name in ["agent.action", "tool.invoke", "process.spawned", "process.progress"] {
        event(&mut agent_a, name).await;
    }
    done(&mut ann, &mut agent_a, &invoke).await;
    node.kill_and_restart().await;
    // The new process knows the action from the log only. Its runner is queried for the state and does not run the
    // action again.
    let mut runner_b = runner(&node).await;
    let query = next(&mut runner_b, "query").await;
    assert_eq!(query["action_id"], execute["action_id"]);
    let mut agent_b = agent(&node).await;
    let mut ann = person(&node).await;
    let invoke = asked(&mut ann, &mut agent_b, "how far?").await;
    let open = &invoke["context"]["open_actions"][0];
    assert_eq!((&open["action_id"], &open["state"]), (&execute["action_id"], &json!("running")));
    assert_eq!((&open["process_id"], &open["name"]), (&execute["action_id"], &json!("a1")));
    tells(&mut runner_b, &query, "result", json!({"ok": true, "result": {"exit_code": 0}})).await;
    let over = ann.until(|message| message["name"] == "tool.result").await.expect("she is told");
    assert_eq!(over["data"]["ok"], true);
    for name in ["process.exited", "tool.result"] {
        assert_eq!(event(&mut agent_b, name).await["data"]["action_id"], execute["action_id"]);
    }
    done(&mut ann, &mut agent_b, &invoke).await;
    let invoke = asked(&mut ann, &mut agent_b, "and now?").await;
    assert_eq!(invoke["context"].get("open_actions"), Some(&json!([])));
    assert_eq!(invoke["context"]["ended_actions"][0]["result"], json!({"exit_code": 0}));
}

/// Covers: EV-E7, EV-T10: the sessions that have something done at a machine hear of it, each once, and no other.
#[tokio::test]
async fn system_event_reaches_sessions_with_actions_at_the_runner() {
    let (node, _dir) = node().await;
    let mut runner = runner(&node).await;
    let mut agent = agent(&node).await;
    let mut ann = person(&node).await;
    let invoke = asked(&mut ann, &mut agent, "go").await;
    for name in ["a1", "a2"] {
        act(&mut agent, &invoke, name, "t").await;
        let execute = next(&mut runner, "execute").await;
        tells(&mut runner, &execute, "invoked", json!({})).await;
        event(&mut agent, "agent.action").await;
        event(&mut agent, "tool.invoke").await;
    }
    let other = turnway_tests::real::wire::invoke("s2", "a", "other");
    ann.ask("other", other).await.expect("taken");
    let other = next(&mut agent, "invoke").await;
    let looks = |session: &str| json!({"type": "subscribe", "session_id": session, "types": ["system.*"]});
    for session in ["s1", "s2"] {
        let seen = ann.ask(session, looks(session)).await.expect("answered");
        assert_eq!(seen["type"], "subscribed", "{seen}");
    }
    let low = json!({"type": "system", "name": "battery.low", "data": {"percent": 4}});
    runner.say(low).await.expect("said");
    let heard = event(&mut agent, "system.event").await;
    let data = json!({"percent": 4});
    assert_eq!((&heard["data"]["name"], &heard["data"]["data"]), (&json!("battery.low"), &data));
    let shown = ann.until(|message| message["type"] == "event" && message["name"] == "system.event").await;
    let shown = shown.expect("she asked for it");
    assert_eq!((&shown["session_id"], &shown["data"]["runner_id"]), (&json!("s1"), &json!("r1")));
    // Sent once although two actions of the session run at the runner; a system event about one action goes to its
    // session only.
    let fine = json!({"name": "disk.full"});
    let about = json!({"action_id": heard["data"]["action_id"]});
    tells(&mut runner, &about, "system", fine).await;
    let heard = event(&mut agent, "system.event").await;
    assert_eq!((&heard["data"]["name"], heard["data"].get("data")), (&json!("disk.full"), None));
    let shown = ann.until(|message| message["type"] == "event" && message["name"] == "system.event").await;
    assert_eq!(shown.expect("she asked for it")["data"]["name"], "disk.full");
    done(&mut ann, &mut agent, &other).await;
}

/// Covers: EV-N5, EV-A2: killed in the middle of an action of a run that is asked again.
#[tokio::test]
async fn action_unknown_to_its_runner_is_not_repeated() {
    let (mut node, _dir) = node().await;
    let mut runner_a = runner(&node).await;
    let mut agent_a = agent(&node).await;
    let mut ann = person(&node).await;
    let invoke = asked(&mut ann, &mut agent_a, "go").await;
    act(&mut agent_a, &invoke, "a1", "t").await;
    let execute = next(&mut runner_a, "execute").await;
    node.kill_and_restart().await;
    let mut runner_b = runner(&node).await;
    let mut agent_b = agent(&node).await;
    let invoke = next(&mut agent_b, "invoke").await;
    assert_eq!((&invoke["attempt"], &invoke["context"]["open_actions"][0]["state"]), (&json!(2), &json!("requested")));
    // The second attempt requests the same action, which is still open.
    act(&mut agent_b, &invoke, "a1", "t").await;
    let query = next(&mut runner_b, "query").await;
    assert_eq!(query["action_id"], execute["action_id"]);
    let error = json!({"code": "unknown_action", "message": ""});
    tells(&mut runner_b, &query, "result", json!({"ok": false, "error": error})).await;
    let result = event(&mut agent_b, "tool.result").await;
    assert_eq!((&result["data"]["error"]["code"], &result["data"]["name"]), (&json!("UNKNOWN"), &json!("a1")));
    runner_b.say(json!({"type": "ping"})).await.expect("said");
    next(&mut runner_b, "pong").await;
}

/// Covers: EV-T7: runners that are not there, are gone, and come back.
#[tokio::test]
async fn actions_end_unless_their_lost_runner_reconnects() {
    let (node, _dir) = node().await;
    let mut agent = agent(&node).await;
    let mut ann = person(&node).await;
    let invoke = asked(&mut ann, &mut agent, "go").await;
    act(&mut agent, &invoke, "a1", "t").await;
    event(&mut agent, "agent.action").await;
    // A runner that connects in time gets the waiting action.
    let mut first = runner(&node).await;
    let execute = next(&mut first, "execute").await;
    tells(&mut first, &execute, "invoked", json!({})).await;
    event(&mut agent, "tool.invoke").await;
    drop(first);
    let mut second = runner(&node).await;
    assert_eq!(next(&mut second, "query").await["action_id"], execute["action_id"]);
    drop(second);
    let result = event(&mut agent, "tool.result").await;
    assert_eq!(result["data"]["error"]["code"], "abnormal_exit");
    act(&mut agent, &invoke, "a2", "nobody.has.it").await;
    event(&mut agent, "agent.action").await;
    assert_eq!(event(&mut agent, "tool.result").await["data"]["error"]["code"], "no_runner");
    done(&mut ann, &mut agent, &invoke).await;
}

/// Covers: S-11, S-38: what is no message of a runner.
#[tokio::test]
async fn runner_with_invalid_messages_is_disconnected() {
    let (node, _dir) = node().await;
    let mut wire = WebSocketClient::open(node.http).await.expect("it connects");
    wire.say(json!({"type": "hello", "role": "tool_runner"})).await.expect("said");
    assert_eq!(next(&mut wire, "error").await["code"], "unauthorized");
    let mut runner = runner(&node).await;
    runner.say(json!({"type": "agent_invoke"})).await.expect("said");
    assert_eq!(next(&mut runner, "error").await["code"], "invalid_message");
    for _ in 0..10 {
        runner.say(json!({"type": "result", "ok": true})).await.expect("said");
        assert_eq!(next(&mut runner, "error").await["code"], "invalid_message");
    }
    assert_eq!(runner.next().await, Err(ConnectionEnd::Closed(4400)));
}

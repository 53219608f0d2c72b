//! Handovers between agents and the users' decisions, with real nodes and agents.
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Answers with the agent's name; the input `ask NAME` requests a handover first.
async fn speak(stream: AgentStream, invocation: Invocation) -> Result<(), HungUp> {
    stream.delta(&format!("{} here", invocation.agent)).await?;
    if let Some(to) = invocation.text.strip_prefix("ask ") {
        let request = json!({"to": to, "reason": "sums", "summary": "they want 2+2"});
        stream.event("handover_request", &request).await?;
    }
    stream.done().await
}

async fn agents() -> Agents {
    Agents::start(|asked| Reply::speak(|stream| speak(stream, asked))).await
}

/// Starts a node with agents `ada`, whose handovers expire after `wait`, and `bob`.
async fn node(store: &str, dir: &Path, agents: &Agents, wait: &str) -> Node {
    let ada = agents.flag("ada") + ",handover=" + wait;
    let bob = agents.flag("bob");
    Node::start_on(store, dir, &["--agent", &ada, "--agent", &bob]).await
}

fn follow(after: u64) -> Value {
    json!({"type": "subscribe", "session_id": "s1", "after_seq": after})
}

/// Opens a session with these agents, lets `ada` request a handover, and returns the prompt.
async fn prompted(ann: &mut WebSocketClient, members: &[&str], to: &str) -> Value {
    let open = json!({"type": "session_open", "session_id": "s1", "agents": members});
    ann.ask("o", open).await.expect("an answer");
    ann.say(follow(0)).await.expect("it is said");
    ann.say(invoke("s1", "ada", &format!("ask {to}"))).await.expect("it is said");
    let prompt = ann.until(|message| message["type"] == "handover_prompt").await.expect("a prompt");
    assert_eq!((&prompt["from"], &prompt["to"]), (&"ada".into(), &to.into()), "{prompt}");
    assert_eq!((&prompt["reason"], &prompt["summary"]), (&"sums".into(), &"they want 2+2".into()));
    prompt
}

fn decision(prompt: &Value, decision: &str) -> Value {
    let id = &prompt["handover_id"];
    json!({"type": "handover_decision", "session_id": "s1", "handover_id": id, "decision": decision})
}

/// Sends a decision and returns the handover's state from the answer.
async fn decided(wire: &mut WebSocketClient, request_id: &str, mut decision: Value) -> Value {
    decision["request_id"] = request_id.into();
    wire.say(decision).await.expect("it is said");
    let answers = |message: &Value| message["type"] == "handover" && message["request_id"] == request_id;
    wire.until(answers).await.expect("an answer")["state"].clone()
}

/// Returns the names of all events up to this one, and its message.
async fn told_upto(wire: &mut WebSocketClient, name: &str) -> (Vec<String>, Value) {
    let mut lines = Vec::new();
    loop {
        let message = wire.next().await.expect("it is told");
        lines.extend(message["name"].as_str().map(str::to_owned));
        if message["name"] == name {
            return (lines, message);
        }
    }
}

/// Decides on another connection than the one of the input; the new agent gets the handover with its next
/// turn.
///
/// Covers: SR-F1, SR-F2, SR-F3, SR-F4, SR-F5, SR-F6, SR-F7, SR-T9, SR-T12, SR-P4, SR-M7, SR-S5, SR-S7, SR-K5,
/// LN-SR13, LN-SR15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_handover_switches_the_agent_with_its_context() {
    let agents = agents().await;
    let dir = TempDir::new().expect("a directory");
    let node = node("memory:", dir.path(), &agents, "10m").await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let prompt = prompted(&mut ann, &["ada", "bob"], "bob").await;
    ann.until(|message| message["type"] == "done").await.expect("the end of the turn");
    let mut other = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let there = other.ask("w", follow(0)).await.expect("an answer");
    let waits = &there["snapshot"]["pending"]["handover"];
    for field in ["handover_id", "run_id", "from", "to", "reason", "summary", "deadline_ts"] {
        assert_eq!(waits[field], prompt[field], "{field} of {waits}");
        assert!(!waits[field].is_null(), "{field} of {waits}");
    }
    assert_eq!(there["snapshot"]["active_agent"], "ada");
    assert_eq!(decided(&mut other, "d1", decision(&prompt, "confirm")).await, "confirmed");
    let (told, switched) = told_upto(&mut ann, "ACTIVE_AGENT_CHANGED").await;
    assert_eq!(told, ["HANDOVER_CONFIRMED", "ACTIVE_AGENT_CHANGED"]);
    assert_eq!((&switched["to"], &switched["trigger"]), (&"bob".into(), &"handover".into()), "{switched}");
    // A second decision is answered with the first one's result.
    assert_eq!(decided(&mut ann, "d2", decision(&prompt, "reject")).await, "confirmed");
    for message in ["m2", "m3"] {
        let say =
            json!({"type": "agent_invoke", "session_id": "s1", "request_id": message, "message": {"content": "go on"}});
        ann.say(say).await.expect("it is said");
        let done = |said: &Value| said["type"] == "done";
        ann.until(done).await.expect("the end of the turn");
    }
    let journal = agents.journal();
    let asked: Vec<&str> = journal.iter().map(|asked| asked.agent.as_str()).collect();
    assert_eq!(asked, ["ada", "bob", "bob"]);
    let told = &journal[1].context["handover"];
    assert_eq!((&told["from"], &told["summary"]), (&"ada".into(), &"they want 2+2".into()), "{told}");
    assert_eq!((&told["run_id"], &told["handover_id"]), (&prompt["run_id"], &prompt["handover_id"]));
    assert_eq!((&told["text"], told.get("truncated")), (&"ada here".into(), None), "{told}");
    assert!(journal[2].context["handover"].is_null(), "it is told once: {}", journal[2].context);
}

/// Covers: SR-F3, SR-F9, LN-SR13, LN-SR21, SR-K7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unconfirmed_handover_keeps_the_active_agent() {
    let agents = agents().await;
    let dir = TempDir::new().expect("a directory");
    let node = node("memory:", dir.path(), &agents, "400ms").await;
    for (to, why) in [("bob", "refused"), ("bob", "expired"), ("nobody", "unavailable")] {
        let mut ann = WebSocketClient::hello(node.http, why, vec![]).await.expect("it connects");
        let s1 = |mut message: Value| {
            message["session_id"] = why.into();
            message
        };
        ann.ask("o", s1(json!({"type": "session_open", "agents": ["ada", "bob"]}))).await.expect("an answer");
        ann.say(s1(follow(0))).await.expect("it is said");
        ann.say(invoke(why, "ada", &format!("ask {to}"))).await.expect("it is said");
        let prompt = ann.until(|message| message["type"] == "handover_prompt").await.expect("a prompt");
        if why == "refused" {
            let state = decided(&mut ann, "d", s1(decision(&prompt, "reject"))).await;
            assert_eq!(state, "rejected");
        } else {
            let rejected = told_upto(&mut ann, "HANDOVER_REJECTED").await.1;
            assert_eq!(rejected["reason"], why, "{rejected}");
            // The decision comes too late.
            let state = decided(&mut ann, "d", s1(decision(&prompt, "confirm"))).await;
            assert_eq!(state, "rejected");
        }
        let unknown = json!({"handover_id": "019a0000-0000-7000-8000-000000000000"});
        let error = ann.ask("u", s1(decision(&unknown, "confirm"))).await.expect("an answer");
        assert_eq!(error["code"], "not_found", "{error}");
        let look = ann.ask("w", s1(follow(0))).await.expect("an answer");
        assert_eq!(look["snapshot"]["active_agent"], "ada", "{look}");
        assert!(look["snapshot"]["pending"]["handover"].is_null(), "{look}");
    }
}

/// Kills the node between the prompt and the decision; the new agent is no member yet.
///
/// Covers: SR-T12, SR-T14, SR-F5, SR-F6, SR-E5, G3, G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handover_survives_a_node_restart() {
    let agents = agents().await;
    let dir = TempDir::new().expect("a directory");
    let store = format!("embedded:{}", dir.path().join("data").display());
    let mut node = node(&store, dir.path(), &agents, "10m").await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let prompt = prompted(&mut ann, &["ada"], "bob").await;
    ann.until(|message| message["type"] == "done").await.expect("the end of the turn");
    node.kill_and_restart().await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let there = ann.ask("w", follow(0)).await.expect("an answer");
    let waits = &there["snapshot"]["pending"]["handover"];
    assert_eq!(waits["handover_id"], prompt["handover_id"], "{there}");
    assert_eq!(waits["deadline_ts"], prompt["deadline_ts"], "a restart does not move it");
    ann.say(decision(&prompt, "confirm")).await.expect("it is said");
    let (events, _) = told_upto(&mut ann, "HANDOVER_CONFIRMED").await;
    let of_members: Vec<_> = events.iter().filter(|name| name.contains("AGENT_ADDED")).collect();
    assert_eq!(of_members, ["AGENT_ADDED"], "{events:?}");
    told_upto(&mut ann, "ACTIVE_AGENT_CHANGED").await;
    node.kill_and_restart().await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let (said, _) = ann.turn("s1", "bob", "m2", "go on").await.expect("a turn");
    assert_eq!(said, "bob here");
    let journal = agents.journal();
    let last = journal.last().expect("bob was asked");
    assert_eq!(last.context["handover"]["summary"], "they want 2+2", "{}", last.context);
    // The earlier decision is still known.
    assert_eq!(decided(&mut ann, "d2", decision(&prompt, "reject")).await, "confirmed");
}

/// Kills the owner while no client decides or sends anything: another node applies the deadline.
///
/// Covers: SR-T14, SR-K7, G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handover_deadline_survives_its_owner() {
    let agents = agents().await;
    let dir = TempDir::new().expect("a directory");
    let redis = Redis::start(&dir.path().join("redis"), &["--appendonly", "yes", "--appendfsync", "always"]);
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let directory = dir.path().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        nodes.push(node(&redis.url(), &directory, &agents, "3s").await);
    }
    let mut ann = WebSocketClient::hello(nodes[0].http, "ann", vec![]).await.expect("it connects");
    let prompt = prompted(&mut ann, &["ada", "bob"], "bob").await;
    let mut watcher = WebSocketClient::hello(nodes[1].http, "ann", vec![follow(0)]).await.expect("it connects");
    watcher.until(|message| message["type"] == "done").await.expect("the end of the turn");
    nodes[0].kill().await;
    let rejected = told_upto(&mut watcher, "HANDOVER_REJECTED").await.1;
    assert_eq!((&rejected["reason"], &rejected["handover_id"]), (&"expired".into(), &prompt["handover_id"]));
}

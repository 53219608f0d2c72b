//! Session members with real nodes and agents: invite, remove, and switch.
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Sends text, and on the input `go on` keeps the answer open until the node disconnects.
async fn speak(stream: AgentStream, invocation: Invocation) -> Result<(), HungUp> {
    stream.delta(&format!("{} here", invocation.agent)).await?;
    if invocation.text.starts_with("go on") {
        return stream.hung_up().await;
    }
    stream.done().await
}

async fn agents() -> Agents {
    Agents::start(|asked| Reply::speak(|stream| speak(stream, asked))).await
}

/// Starts a demo node with two more agents, `ada` and `bob`.
async fn node(store: &str, dir: &Path, agents: &Agents) -> Node {
    let ada = agents.flag("ada") + ",on_owner_loss=retry";
    let bob = agents.flag("bob");
    Node::start_on(store, dir, &["--demo", "--agent", &ada, "--agent", &bob]).await
}

fn open(agents: &[&str]) -> Value {
    json!({"type": "session_open", "session_id": "s1", "agents": agents})
}

fn follow(after: u64) -> Value {
    json!({"type": "subscribe", "session_id": "s1", "after_seq": after})
}

fn wish(kind: &str, agent: &str) -> Value {
    json!({"type": kind, "session_id": "s1", "agent_id": agent})
}

/// Returns the names of all messages up to the first that satisfies `fits`, and that message.
async fn told_upto(wire: &mut WebSocketClient, fits: impl Fn(&Value) -> bool) -> (Vec<String>, Value) {
    let mut lines = Vec::new();
    loop {
        let message = wire.next().await.expect("it is told");
        let name = ["name", "code", "status", "type"].iter().find_map(|field| message[field].as_str());
        lines.push(name.expect("a name").to_owned());
        assert!(lines.len() < 100, "nothing of it fits: {lines:?}");
        if fits(&message) {
            return (lines, message);
        }
    }
}

/// Requests a change and reads to the answer, which comes after the facts of the change.
async fn changed(wire: &mut WebSocketClient, request_id: &str, mut request: Value) -> Value {
    request["request_id"] = request_id.into();
    wire.say(request).await.expect("it is said");
    let answers = |message: &Value| message["type"] == "members" && message["request_id"] == request_id;
    wire.until(answers).await.expect("an answer")
}

fn named(name: &'static str) -> impl Fn(&Value) -> bool {
    move |message| message["name"] == name || message["code"] == name
}

/// Covers: SR-B6, SR-B7, SR-D1, SR-D4, SR-D9, SR-E1, SR-E5, SR-E6, SR-E7, SR-E3, SR-K3, SR-K4, SR-S11, SR-S12,
/// SR-S14, SR-T13.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_added_removed_and_restored() {
    let agents = agents().await;
    let dir = TempDir::new().expect("a directory");
    let store = format!("embedded:{}", dir.path().join("data").display());
    let mut node = node(&store, dir.path(), &agents).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let opened = ann.ask("o", open(&["echo", "ada"])).await.expect("an answer");
    assert_eq!(opened["agents"], json!(["echo", "ada"]), "{opened}");
    // Another connection of the same user receives all facts of the change.
    let mut watcher = WebSocketClient::hello(node.http, "ann", vec![follow(0)]).await.expect("it connects");
    watcher.until(|message| message["type"] == "session_opened").await.expect("the first fact");

    let members = changed(&mut ann, "i", wish("invite_agent", "bob")).await;
    assert_eq!((&members["type"], &members["agents"]), (&"members".into(), &json!(["echo", "ada", "bob"])));
    let (events, added) = told_upto(&mut watcher, named("AGENT_ADDED")).await;
    assert_eq!(events, ["ADDING_AGENT", "AGENT_ADDED"]);
    assert_eq!(
        (&added["agent_id"], &added["request_id"], &added["restored"]),
        (&"bob".into(), &"i".into(), &Value::Null)
    );
    let (said, _) = ann.turn("s1", "bob", "m1", "hello").await.expect("a turn");
    assert_eq!(said, "bob here");
    let members = changed(&mut ann, "w", wish("switch_agent", "ada")).await;
    assert_eq!(members["active_agent"], "ada", "{members}");

    let members = changed(&mut ann, "r", wish("remove_agent", "bob")).await;
    assert_eq!(members["agents"], json!(["echo", "ada"]), "{members}");
    let refused = ann.ask("m2", invoke("s1", "bob", "still there?")).await.expect("an answer");
    assert_eq!(refused["type"], "turn_accepted", "{refused}");
    let error = ann.until(|message| message["type"] == "error").await.expect("its end");
    assert_eq!(error["code"], "agent_not_in_session", "{error}");

    // The removed member's state is restored when it is invited again, also after a restart of the node.
    node.kill_and_restart().await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let mut late = WebSocketClient::hello(node.http, "ann", vec![follow(0)]).await.expect("it connects");
    let again = json!({"type": "invite_agent", "session_id": "s1", "agent_spec": {"agent_id": "bob"}, "active": true});
    let members = changed(&mut ann, "i2", again).await;
    assert_eq!((&members["agents"], &members["active_agent"]), (&json!(["echo", "ada", "bob"]), &"bob".into()));
    let back = |message: &Value| message["name"] == "AGENT_ADDED" && message["request_id"] == "i2";
    let (_, added) = told_upto(&mut late, back).await;
    assert_eq!(added["restored"], true, "{added}");
    let (said, _) = ann.turn("s1", "bob", "m3", "hello").await.expect("a turn");
    assert_eq!(said, "bob here");
}

/// Covers: SR-M8, SR-D2, SR-D3, SR-D6, SR-D7, SR-T11, SR-P4, LN-SR16, LN-SR18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_of_the_running_agent_cancels_its_run_first() {
    let agents = agents().await;
    let dir = TempDir::new().expect("a directory");
    let node = node("memory:", dir.path(), &agents).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    ann.ask("o", open(&["ada", "bob"])).await.expect("an answer");
    ann.say(follow(0)).await.expect("it is said");
    ann.say(
        json!({"type": "agent_invoke", "session_id": "s1", "request_id": "m1", "message": {"content": "go on and on"}}),
    )
    .await
    .expect("it is said");
    ann.until(|message| message["type"] == "delta").await.expect("it speaks");
    let mut removal = wish("remove_agent", "ada");
    (removal["request_id"], removal["reason"]) = ("r".into(), "too long".into());
    ann.say(removal).await.expect("it is said");
    let (told, members) = told_upto(&mut ann, |message| message["type"] == "members").await;
    let order =
        ["AGENT_REMOVING", "ACTIVE_AGENT_CHANGED", "CANCEL_SENT", "CANCELED", "cancelled", "AGENT_REMOVED", "members"];
    let told: Vec<_> = told.iter().filter(|name| *name != "AGENT_STARTED").collect();
    assert_eq!(told, order);
    assert_eq!((&members["agents"], &members["active_agent"]), (&json!(["bob"]), &"bob".into()), "{members}");
    // The remaining member is active.
    let (said, _) = ann.turn("s1", "bob", "m2", "hello").await.expect("a turn");
    assert_eq!(said, "bob here");
    let last = ann.ask("r2", wish("remove_agent", "bob")).await.expect("an answer");
    assert_eq!((&last["type"], &last["code"]), (&"error".into(), &"REMOVE_AGENT_FAILED".into()), "{last}");
}

/// Covers: SR-E8, SR-D10, SR-M6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_member_change_is_an_error_without_effect() {
    let agents = agents().await;
    let dir = TempDir::new().expect("a directory");
    let node = node("memory:", dir.path(), &agents).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    ann.ask("o", open(&["ada"])).await.expect("an answer");
    ann.say(follow(0)).await.expect("it is said");
    for (kind, agent, code) in [
        ("invite_agent", "nobody", "ADD_AGENT_FAILED"),
        ("remove_agent", "bob", "REMOVE_AGENT_FAILED"),
        ("switch_agent", "bob", "agent_not_in_session"),
    ] {
        let mut ask = wish(kind, agent);
        ask["request_id"] = kind.into();
        ann.say(ask).await.expect("it is said");
        let error = ann.until(|message| message["code"] == code).await.expect("an error");
        assert_eq!((&error["type"], &error["request_id"]), (&"error".into(), &kind.into()), "{error}");
        let members = ann.until(|message| message["type"] == "members").await.expect("an answer");
        assert_eq!((&members["agents"], &members["active_agent"]), (&json!(["ada"]), &"ada".into()), "{members}");
    }
}

/// Kills the owner while the removed agent's run is being cancelled: the change ends once and is delivered to
/// watchers.
///
/// Covers: SR-D12, SR-T11, SR-T14, G3, G9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_removal_survives_its_owner() {
    let agents = agents().await;
    let dir = TempDir::new().expect("a directory");
    let redis = Redis::start(&dir.path().join("redis"), &["--appendonly", "yes", "--appendfsync", "always"]);
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let directory = dir.path().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        nodes.push(node(&redis.url(), &directory, &agents).await);
    }
    let mut ann = WebSocketClient::hello(nodes[0].http, "ann", vec![]).await.expect("it connects");
    ann.ask("o", open(&["ada", "bob"])).await.expect("an answer");
    let mut watcher = WebSocketClient::hello(nodes[1].http, "ann", vec![follow(0)]).await.expect("it connects");
    ann.say(invoke("s1", "ada", "go on and on")).await.expect("it is said");
    watcher.until(|message| message["type"] == "delta").await.expect("it speaks");
    ann.say(wish("remove_agent", "ada")).await.expect("it is said");
    watcher.until(named("AGENT_REMOVING")).await.expect("it begins");
    nodes[0].kill().await;
    let over = |message: &Value| named("AGENT_REMOVED")(message) || named("REMOVE_AGENT_FAILED")(message);
    let (events, last) = told_upto(&mut watcher, over).await;
    assert_eq!(last["name"], "AGENT_REMOVED", "{last}");
    let ends = events.iter().filter(|name| *name == "cancelled").count();
    assert_eq!(ends, 1, "{events:?}");
    let (said, _) = watcher.turn("s1", "bob", "m2", "hello").await.expect("a turn");
    assert_eq!(said, "bob here");
}

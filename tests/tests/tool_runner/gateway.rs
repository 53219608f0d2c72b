//! Tests a real runner with a real gateway: an agent's actions run, and the session's facts report their results.
use super::list;
use serde_json::{Value, json};
use tempfile::TempDir;
use turnway_tests::real::node::Node;
use turnway_tests::real::scripted_gateway::{Runner, processes_of};
use turnway_tests::real::wire::{WebSocketClient, invoke};

struct World {
    node: Node,
    runner: Runner,
    agent: WebSocketClient,
    ann: WebSocketClient,
    dir: TempDir,
}

async fn agent(node: &Node) -> WebSocketClient {
    let hello = json!({"type": "hello", "role": "agent", "agent_id": "a"});
    WebSocketClient::open(node.http).await.expect("it connects").greet_with(hello).await.expect("welcome")
}

async fn world() -> World {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", "a=dial-in:,on_owner_loss=retry"]).await;
    let mut runner = Runner::launch(dir.path(), node.http, &list(dir.path()), &[]);
    runner.ready().await;
    let agent = agent(&node).await;
    let ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    World { node, runner, agent, ann, dir }
}

impl World {
    /// Sends the agent a message; returns the `invoke` that the agent receives.
    async fn asked(&mut self, text: &str) -> Value {
        self.ann.ask(text, invoke("s1", "a", text)).await.expect("taken");
        self.agent.until(|message| message["type"] == "invoke").await.expect("an invoke")
    }

    async fn act(&mut self, run: &Value, name: &str, tool: &str, args: Value) -> Value {
        let action = json!({"type": "action", "run_id": run["run_id"], "action_id": name, "tool": tool, "args": args});
        self.agent.say(action).await.expect("it is taken");
        self.event("agent.action", &Value::Null).await["id"].clone()
    }

    /// Returns the next fact of this type about this action.
    async fn event(&mut self, name: &str, action: &Value) -> Value {
        let fits = |message: &Value| {
            message["name"] == name && (action.is_null() || message["event"]["data"]["action_id"] == *action)
        };
        self.agent.until(fits).await.expect("a fact")["event"].clone()
    }

    async fn result(&mut self, action: &Value) -> Value {
        self.event("tool.result", action).await["data"].clone()
    }
}

/// Covers: EV-R3, EV-E4, EV-E5, EV-E6, EV-T5, EV-T11, EV-T13, EV-T14, EV-L2.
#[tokio::test]
async fn agent_starts_inspects_and_stops_processes() {
    let mut world = world().await;
    let run = world.asked("go").await;
    let echo = world.act(&run, "a1", "process.spawn", json!({"program": "echo", "args": {"text": "hi"}})).await;
    let spawned = world.event("process.spawned", &echo).await;
    assert!(spawned["data"]["pid"].as_u64().is_some_and(|pid| pid > 1), "{spawned}");
    world.event("process.exited", &echo).await;
    let result = world.result(&echo).await;
    assert_eq!((&result["ok"], &result["result"]["stdout"]), (&json!(true), &json!("hi")), "{result}");
    let sleep = world.act(&run, "a2", "process.spawn", json!({"program": "sleep"})).await;
    world.event("process.spawned", &sleep).await;
    let status = world.act(&run, "a3", "process.status", json!({"process_id": sleep})).await;
    assert_eq!(world.result(&status).await["result"]["state"], "running");
    let kill = world.act(&run, "a4", "process.kill", json!({"process_id": sleep})).await;
    assert_eq!(world.result(&kill).await["result"]["state"], "stopping");
    world.event("process.canceled", &sleep).await;
    assert_eq!(world.result(&sleep).await["error"]["code"], "killed");
    assert_eq!(processes_of(sleep.as_str().expect("a name")), 0);
    let no = world.act(&run, "a5", "process.spawn", json!({"program": "rm"})).await;
    assert_eq!(world.result(&no).await["error"]["code"], "forbidden");
}

/// Output of a process is sent to subscribers of that type while the process runs.
///
/// Covers: EV-G3, EV-L4, S-11.
#[tokio::test]
async fn process_output_is_sent_to_its_subscribers() {
    let mut world = world().await;
    let run = world.asked("go").await;
    let mut bob = WebSocketClient::hello(world.node.http, "ann", vec![]).await.expect("it connects");
    let subscribe = |types: Value| json!({"type": "subscribe", "session_id": "s1", "types": types});
    for (wire, types) in [(&mut world.ann, json!(["process.output"])), (&mut bob, json!(["process.exited"]))] {
        wire.say(subscribe(types)).await.expect("said");
        wire.until(|message| message["type"] == "subscribed").await.expect("it follows");
    }
    let echo = world.act(&run, "a1", "process.spawn", json!({"program": "echo", "args": {"text": "hi"}})).await;
    let is_over = |message: &Value| message["name"] == "process.exited" || message["name"] == "tool.result";
    let printed = world.ann.until(|message| message["name"] == "process.output" || is_over(message)).await;
    let printed = printed.expect("an event");
    let data = json!({"action_id": echo, "stream": "stdout", "offset": 0, "data": "hi", "encoding": "utf8"});
    assert_eq!((&printed["type"], &printed["data"]), (&json!("event"), &data), "{printed}");
    assert_eq!((&printed["run_id"], printed.get("seq")), (&run["run_id"], None));
    let exited = bob.until(|message| message["name"] == "process.output" || is_over(message)).await;
    assert_eq!(exited.expect("an event")["name"], "process.exited");
}

/// Covers: EV-A2, EV-N5, EV-C6: the node is killed, then the runner, each with a process under way.
#[tokio::test]
async fn process_survives_its_node_but_not_its_runner() {
    let mut world = world().await;
    let run = world.asked("go").await;
    let sleep = world.act(&run, "a1", "process.spawn", json!({"program": "sleep"})).await;
    world.event("process.spawned", &sleep).await;
    world.node.kill_and_restart().await;
    (world.agent, world.ann) =
        (agent(&world.node).await, WebSocketClient::hello(world.node.http, "ann", vec![]).await.expect("it connects"));
    let run = world.agent.until(|message| message["type"] == "invoke").await.expect("an invoke");
    assert_eq!(run["context"]["open_actions"][0]["action_id"], sleep);
    let status = world.act(&run, "a2", "process.status", json!({"process_id": sleep})).await;
    assert_eq!(world.result(&status).await["result"]["state"], "running");
    assert_eq!(processes_of(sleep.as_str().expect("a name")), 1);
    let list = list(world.dir.path());
    world.runner.kill().await;
    world.runner = Runner::launch(world.dir.path(), world.node.http, &list, &[]);
    let result = world.event("tool.result", &sleep).await;
    assert_eq!(result["data"]["error"]["code"], "abnormal_exit", "{result}");
    assert_eq!(processes_of(sleep.as_str().expect("a name")), 0);
    let tick = world.act(&run, "a3", "process.spawn", json!({"program": "tick"})).await;
    assert_eq!(world.result(&tick).await["result"]["stdout"], "x\n");
}

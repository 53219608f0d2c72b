//! Tests one long process that a user asks about, changes and stops while it runs: the agent knows only its
//! messages and facts; the runner is real, and nodes are killed in between.
use super::list;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::scripted_gateway::{Runner, processes_of};
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient};

/// Time between two connection attempts of an agent.
const AGAIN: Duration = Duration::from_millis(50);

/// An agent that is connected whenever its node is up, and that reports its process from facts alone.
struct Agent(JoinHandle<()>);

impl Agent {
    fn serve(node: SocketAddr) -> Self {
        Self(tokio::spawn(async move {
            let mut again = tokio::time::interval(AGAIN);
            loop {
                again.tick().await;
                let Ok(wire) = WebSocketClient::open(node).await else { continue };
                let hello = json!({"type": "hello", "role": "agent", "agent_id": "a"});
                if let Ok(mut wire) = wire.greet_with(hello).await {
                    // Serves until the node is gone.
                    let Err(_) = listen(&mut wire).await;
                }
            }
        }))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn listen(wire: &mut WebSocketClient) -> Result<std::convert::Infallible, ConnectionEnd> {
    loop {
        let invoke = wire.until(|message| message["type"] == "invoke").await?;
        let said = Turn { wire, run: invoke["run_id"].clone(), asked: 0 }.answer(&invoke).await?;
        let run = &invoke["run_id"];
        wire.say(json!({"type": "delta", "run_id": run, "text": said})).await?;
        wire.say(json!({"type": "done", "run_id": run})).await?;
    }
}

/// One turn of the agent.
struct Turn<'w> {
    wire: &'w mut WebSocketClient,
    run: Value,
    asked: usize,
}

impl Turn<'_> {
    /// Returns the answer to an invocation.
    async fn answer(&mut self, invoke: &Value) -> Result<String, ConnectionEnd> {
        let process = &invoke["context"]["open_actions"][0]["process_id"];
        Ok(match invoke["input_message"]["content"].as_str().expect("a text") {
            "start" => format!("started {}", self.start("1000").await?),
            "how far?" if process.is_null() => {
                let ended = invoke["context"]["ended_actions"].as_array().cloned().unwrap_or_default();
                let said = |over: &Value| over["error"]["code"].as_str().unwrap_or("done").to_owned();
                ended.last().map_or_else(|| "nothing".to_owned(), said)
            }
            "how far?" => {
                let status = self.act("process.status", json!({"process_id": process})).await?;
                let told = self.event("tool.result", &status).await?;
                format!("{} {process}", told["data"]["result"]["state"].as_str().expect("a state"))
            }
            "change it!" => {
                self.stop(process).await?;
                format!("changed {}", self.start("999").await?)
            }
            "stop!" => {
                self.stop(process).await?;
                format!("stopped {process}")
            }
            "echo" => {
                let args = json!({"program": "echo", "args": {"text": "hi"}});
                let echo = self.act("process.spawn", args).await?;
                self.event("tool.result", &echo).await?;
                "done".to_owned()
            }
            other => panic!("nobody asks that: {other}"),
        })
    }

    async fn start(&mut self, seconds: &str) -> Result<Value, ConnectionEnd> {
        let args = json!({"program": "sleep", "args": {"seconds": seconds}});
        let process = self.act("process.spawn", args).await?;
        self.event("process.spawned", &process).await?;
        Ok(process)
    }

    async fn stop(&mut self, process: &Value) -> Result<(), ConnectionEnd> {
        self.act("process.kill", json!({"process_id": process})).await?;
        self.event("process.canceled", process).await?;
        Ok(())
    }

    async fn act(&mut self, tool: &str, args: Value) -> Result<Value, ConnectionEnd> {
        self.asked += 1;
        let name = format!("a{}", self.asked);
        let action = json!({"type": "action", "run_id": self.run, "action_id": name, "tool": tool, "args": args});
        self.wire.say(action).await?;
        let asked = self.wire.until(|message| message["event"]["data"]["name"] == name).await?;
        Ok(asked["event"]["data"]["action_id"].clone())
    }

    /// Returns the next fact of this name about this action.
    async fn event(&mut self, name: &str, action: &Value) -> Result<Value, ConnectionEnd> {
        let fits = |told: &Value| told["name"] == name && told["event"]["data"]["action_id"] == *action;
        Ok(self.wire.until(fits).await?["event"].clone())
    }
}

/// Returns the types of the log's facts about this action, in order.
async fn facts(node: &Node, action: &str) -> Vec<String> {
    let path = "/v1/sessions/s1/events?limit=500";
    let body = Web::new(node.http, Some("ann")).json(path).await;
    let all = body["events"].as_array().expect("facts").iter();
    let of = all.filter(|fact| fact["data"]["action_id"] == action);
    of.map(|fact| fact["type"].as_str().expect("a type").to_owned()).collect()
}

/// Returns the last word of an answer, which names the process.
fn named(said: &str) -> String {
    said.rsplit(' ').next().expect("a word").trim_matches('"').to_owned()
}

async fn ask(ann: &mut WebSocketClient, id: &str, text: &str) -> String {
    let (said, done) = ann.turn("s1", "a", id, text).await.expect("it ends");
    assert_eq!(done["status"], "completed", "{text}: {done}");
    said
}

async fn ann(node: &Node) -> WebSocketClient {
    WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects")
}

const SPAWNED: [&str; 3] = ["agent.action", "tool.invoke", "process.spawned"];
const CANCELED: [&str; 5] = ["agent.action", "tool.invoke", "process.spawned", "process.canceled", "tool.result"];

/// Three messages while the process runs, and each answer agrees with the log. Then the node is killed, and later
/// the runner: finished, running and interrupted processes are distinguished.
///
/// Covers: EV-A1, EV-A2, EV-T6, EV-T7, EV-T8, EV-T9, EV-T10, EV-T13, EV-T14, EV-T15, EV-C6, EV-L0, EV-N9, EV-R5,
/// LN-EV14.
#[tokio::test]
async fn long_process_is_inspected_changed_and_stopped() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo", "--agent", "a=dial-in:"]).await;
    let mut runner = Runner::launch(dir.path(), node.http, &list(dir.path()), &[]);
    runner.ready().await;
    let _agent = Agent::serve(node.http);
    let mut person = ann(&node).await;
    let first = named(&ask(&mut person, "1", "start").await);
    assert_eq!(ask(&mut person, "2", "how far?").await, format!("running \"{first}\""));
    assert_eq!(facts(&node, &first).await, SPAWNED);
    let second = named(&ask(&mut person, "3", "change it!").await);
    assert_eq!((facts(&node, &first).await, facts(&node, &second).await), (words(&CANCELED), words(&SPAWNED)));
    assert_eq!((processes_of(&first), processes_of(&second)), (0, 1));
    assert_eq!(ask(&mut person, "4", "stop!").await, format!("stopped \"{second}\""));
    assert_eq!((facts(&node, &second).await, processes_of(&second)), (words(&CANCELED), 0));

    // One process is running while its node is killed; another has ended before.
    assert_eq!(ask(&mut person, "5", "echo").await, "done");
    let third = named(&ask(&mut person, "6", "start").await);
    node.kill_and_restart().await;
    person = ann(&node).await;
    assert_eq!(ask(&mut person, "7", "how far?").await, format!("running \"{third}\""));
    assert_eq!((facts(&node, &third).await, processes_of(&third)), (words(&SPAWNED), 1));
    runner.kill().await;
    let mut runner = Runner::launch(dir.path(), node.http, &list(dir.path()), &[]);
    runner.ready().await;
    person.until(|message| message["name"] == "tool.result").await.expect("its end");
    assert_eq!(ask(&mut person, "8", "how far?").await, "abnormal_exit");
    let interrupted = ["agent.action", "tool.invoke", "process.spawned", "process.exited", "tool.result"];
    assert_eq!((facts(&node, &third).await, processes_of(&third)), (words(&interrupted), 0));
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Two nodes on one Redis, with an agent at each and a runner connected to both.
struct Fleet {
    nodes: Vec<Node>,
    runner: Runner,
    _agents: Vec<Agent>,
    _redis: Redis,
    _dir: TempDir,
}

impl Fleet {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let redis = Redis::start(&dir.path().join("redis"), &["--appendonly", "yes", "--appendfsync", "always"]);
        let mut nodes = Vec::new();
        for name in ["n0", "n1"] {
            let own = dir.path().join(name);
            std::fs::create_dir_all(&own).expect("a directory");
            let flags = ["--demo", "--agent", "a=dial-in:", "--node-name", name];
            nodes.push(Node::start_on(&redis.url(), Path::new(&own), &flags).await);
        }
        let also = format!("ws://{}", nodes[1].http);
        let mut runner = Runner::launch(dir.path(), nodes[0].http, &list(dir.path()), &["--also", &also]);
        runner.ready().await;
        let agents = nodes.iter().map(|node| Agent::serve(node.http)).collect();
        Self { nodes, runner, _agents: agents, _redis: redis, _dir: dir }
    }
}

/// The same in a fleet whose owner node is killed between the messages: the next owner asks the runner for the
/// state of the process.
///
/// Covers: EV-A1, EV-A2, EV-N5, G9.
#[tokio::test]
async fn long_process_survives_its_owner_node_in_a_fleet() {
    let mut fleet = Fleet::start().await;
    let mut person = ann(&fleet.nodes[0]).await;
    let first = named(&ask(&mut person, "1", "start").await);
    fleet.nodes[0].kill().await;
    person = ann(&fleet.nodes[1]).await;
    assert_eq!(ask(&mut person, "2", "how far?").await, format!("running \"{first}\""));
    assert_eq!(facts(&fleet.nodes[1], &first).await, SPAWNED);
    fleet.nodes[0].restart().await;
    let second = named(&ask(&mut person, "3", "change it!").await);
    assert_eq!(facts(&fleet.nodes[1], &first).await, CANCELED);
    fleet.nodes[1].kill().await;
    person = ann(&fleet.nodes[0]).await;
    assert_eq!(ask(&mut person, "4", "stop!").await, format!("stopped \"{second}\""));
    assert_eq!((facts(&fleet.nodes[0], &second).await, processes_of(&second)), (words(&CANCELED), 0));
    // The runner stops although one of its nodes is gone.
    fleet.runner.terminate().await;
    assert_eq!(fleet.runner.exit().await, Some(0));
}

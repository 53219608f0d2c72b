//! Tests of nodes with plugins, run as operators run them: a different binary, and the rest of the setup unchanged.
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// Pieces of the agent's answer; the split lies inside a word that the profanity filter hides, and a gate releases
/// each piece.
const PIECES: [&str; 5] = ["what a da", "rn go", "od day ß", "語 Darn", "ed"];
/// Text of the answer behind the plugins, as clients see it.
const SHOWN: &str = "what a **** good day ß語 Darned";

/// Gates of the first and the second attempt; one permit releases one piece.
type Gates = [Semaphore; 2];

/// Sends all pieces at once if the input's last line is `all`; otherwise waits for a permit before each piece.
async fn speak(stream: AgentStream, invocation: Invocation, gates: Arc<Gates>) -> Result<(), HungUp> {
    let is_gated = invocation.text.lines().last() != Some("all");
    let gate = &gates[usize::try_from(invocation.attempt).expect("few") - 1];
    for piece in PIECES {
        if is_gated {
            tokio::select! {
                passed = gate.acquire() => passed.expect("the gate stays").forget(),
                over = stream.hung_up() => return over,
            }
        }
        stream.delta(piece).await?;
    }
    stream.done().await
}

/// Starts a node with the example's plugins and an agent; returns the agent's gates as well.
async fn plugged(dir: &Path) -> (Node, Agents, Arc<Gates>) {
    let gates = Arc::new([Semaphore::new(0), Semaphore::new(0)]);
    let held = Arc::clone(&gates);
    let agents = Agents::start(move |asked| {
        let gates = Arc::clone(&held);
        Reply::outlive(move |stream| speak(stream, asked, gates))
    })
    .await;
    let ada = agents.flag("ada") + ",on_owner_loss=resume,steer=true";
    (Node::start_plugged(dir, &["--agent", &ada]).await, agents, gates)
}

/// Reads the log of the node's third plugin: one line for each attempt whose end the plugin has seen.
fn diary(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("turns.log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn done(run: &str) -> impl Fn(&Value) -> bool {
    move |message| message["type"] == "done" && message["run_id"] == run
}

async fn begin(wire: &mut WebSocketClient, id: &str, text: &str) -> String {
    let accepted = wire.ask(id, invoke("s1", "ada", text)).await.expect("an answer");
    accepted["run_id"].as_str().unwrap_or_else(|| panic!("{accepted}")).to_owned()
}

/// Covers: TP-G1, TP-G2, TP-G3, TP-B2, TP-N4, TP-N7, TP-S2, TP-O1, LN-TP34.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turn_is_filtered_by_the_plugins_of_its_node() {
    let dir = TempDir::new().expect("a directory");
    let (node, agents, _) = plugged(dir.path()).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    for id in ["r1", "r2"] {
        let (said, done) = ann.turn("s1", "ada", id, "all").await.expect("an answer");
        assert_eq!((said.as_str(), &done["status"]), (SHOWN, &json!("completed")), "{done}");
        assert_eq!(done["text_bytes"], SHOWN.len(), "what counts is the text behind the plugins");
    }
    // A plugin prepends the time, and in the second turn also the last messages.
    let asked: Vec<String> = agents.journal().into_iter().map(|asked| asked.text).collect();
    let [first, second] = &asked[..] else { panic!("{asked:?}") };
    assert!(first.starts_with("It is 2") && first.ends_with(" UTC.\nall"), "{first}");
    assert!(second.ends_with(&format!(" UTC.\n> all\n> {SHOWN}\nall")), "{second}");
    // Commands are answered before any agent is called.
    let (said, _) = ann.turn("s1", "ada", "r3", ",status").await.expect("an answer");
    assert!(said.starts_with("session s1\nstate keys: ") && said.contains("last_messages"), "{said}");
    assert_eq!(agents.journal().len(), 2);
    assert_eq!(diary(dir.path())[..2], [format!("s1 fine {}", SHOWN.len()), format!("s1 fine {}", SHOWN.len())]);
    // Each turn is in the session's log, whether an agent or a plugin answered the turn.
    let follow = json!({"session_id": "s1", "after_seq": 0});
    let mut ben = WebSocketClient::hello(node.http, "ann", vec![follow]).await.expect("it connects");
    for _ in 0..3 {
        let ended = ben.until(|message| message["type"] == "done").await.expect("an end");
        assert_eq!(ended["status"], "completed", "{ended}");
    }
}

/// Covers: TP-S1, TP-S5, TP-E2, RX-13, SR-K2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_input_is_blocked_and_cancel_saves_state_once() {
    let dir = TempDir::new().expect("a directory");
    let (node, agents, gates) = plugged(dir.path()).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let refused = begin(&mut ann, "r1", "how to build a Bomb?").await;
    let error = ann.until(|message| message["type"] == "error").await.expect("an error");
    assert_eq!((&error["code"], &error["detail"]["agent_code"]), (&json!("blocked"), &json!("profanity")), "{error}");
    let ended = ann.until(done(&refused)).await.expect("an end");
    assert_eq!(ended["status"], "failed", "{ended}");
    assert!(agents.journal().is_empty(), "nobody was asked");
    // The next turn is cancelled in the middle of its answer.
    let run = begin(&mut ann, "r2", "slowly").await;
    gates[0].add_permits(2);
    let delta = ann.until(|message| message["type"] == "delta").await.expect("text");
    assert_eq!((&delta["text"], &delta["offset"]), (&json!("what a "), &json!(0)), "a word that may go on is held");
    let cancel = json!({"type": "cancel_run", "run_id": run});
    ann.say(cancel).await.expect("sent");
    let ended = ann.until(done(&run)).await.expect("an end");
    assert_eq!(ended["status"], "cancelled", "{ended}");
    // The session continues, and the plugin log has the cancelled turn once.
    let gone = begin(&mut ann, "r3", "all").await;
    ann.until(done(&gone)).await.expect("an end");
    let lines = diary(dir.path());
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0] == "s1 profanity 0" && lines[1].starts_with("s1 cancelled "), "{lines:?}");
    assert_eq!(lines[2], format!("s1 fine {}", SHOWN.len()));
}

/// The node is killed in the middle of an answer. The agent could resume, but the agent's byte offsets differ from
/// those of the filtered text, so the gateway starts a second attempt.
///
/// Covers: TP-M12, G5, ST-18, SR-S10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filtered_answer_survives_node_and_connection_loss() {
    let dir = TempDir::new().expect("a directory");
    let (mut node, agents, gates) = plugged(dir.path()).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let run = begin(&mut ann, "r1", "slowly").await;
    gates[0].add_permits(3);
    let mut said = String::new();
    while said != "what a **** good day " {
        let delta = ann.until(|message| message["type"] == "delta").await.expect("text");
        said.push_str(delta["text"].as_str().expect("text"));
    }
    node.kill_and_restart().await;
    let follow = |seen: &Value, attempt: u64, offset: usize| {
        let runs = json!({&run: {"attempt": attempt, "offset": offset}});
        let mut body = json!({"session_id": "s1", "after_seq": seen["seq"], "runs": runs});
        if let Some(epoch) = seen.get("epoch") {
            body["after_epoch"] = epoch.clone();
        }
        body
    };
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![follow(&json!({"seq": 0}), 1, said.len())])
        .await
        .expect("it connects");
    let begun = ann.until(|message| message["name"] == "RUN_RESTARTED").await.expect("it begins again");
    gates[1].add_permits(1);
    let second = |message: &Value| message["type"] == "delta" && message["attempt"] == 2;
    let delta = ann.until(second).await.expect("text");
    assert_eq!((&delta["offset"], &delta["text"]), (&json!(0), &json!("what a ")), "{delta}");
    // The connection is lost in the middle of the second attempt; the client resumes from its byte offset.
    drop(ann);
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![follow(&begun, 2, 7)]).await.expect("it connects");
    gates[1].add_permits(PIECES.len());
    let mut said = "what a ".to_owned();
    let ended = loop {
        let message = ann.next().await.expect("the answer goes on");
        if second(&message) {
            assert_eq!(message["offset"], said.len(), "a gap or a repeat");
            said.push_str(message["text"].as_str().expect("text"));
        } else if done(&run)(&message) {
            break message;
        }
    };
    assert_eq!((said.as_str(), &ended["status"], &ended["attempt"]), (SHOWN, &json!("completed"), &json!(2)));
    let attempts: Vec<u64> = agents.journal().into_iter().map(|asked| asked.attempt).collect();
    assert_eq!((attempts, agents.resume_requests().len()), (vec![1, 2], 0));
    // The process that ran the first attempt died before the attempt's end, so the plugin log lacks that attempt.
    assert_eq!(diary(dir.path()), [format!("s1 fine {}", SHOWN.len())]);
}

/// A node without plugins has the built-in command plugin.
///
/// Covers: TP-N1, TP-N4, ST-7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_plugins_answers_commands() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    let mut ann = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("it connects");
    let open = json!({"type": "session_open", "session_id": "s1", "agents": ["counter"]});
    ann.ask("o", open).await.expect("an answer");
    let host = ann.ask("r1", invoke("s1", "counter", "count to 10000 every 20ms")).await.expect("an answer");
    ann.until(|message| message["type"] == "delta").await.expect("it counts");
    // Other text would steer the running agent; a command is not passed to the agent.
    let asked = ann.ask("r2", invoke("s1", "counter", ",help")).await.expect("an answer");
    let acked = ann.until(|message| message["name"] == "STEER_ACK").await.expect("a receipt");
    assert_eq!((&acked["outcome"], &acked["run_id"]), (&json!("refused"), &asked["run_id"]), "{acked}");
    let cancel = json!({"type": "cancel_run", "run_id": host["run_id"]});
    ann.say(cancel).await.expect("sent");
    let run = asked["run_id"].as_str().expect("a run").to_owned();
    let help = ann.until(|message| message["type"] == "delta" && message["run_id"] == run).await.expect("help");
    assert_eq!(help["text"], ",help: list the commands\n,status: show the session and the keys of its state");
    let ended = ann.until(done(&run)).await.expect("an end");
    assert_eq!(ended["status"], "completed", "{ended}");
}

//! The examples of adapters in Python and Rust, with their platform: lines of people are answered in their rooms, once,
//! while the gateway is killed and replies of the platform are lost.
use super::edits::act;
use super::signals::{LINE, gated};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::tempdir;
use tokio::process::Command;
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::Agents;
use turnway_tests::real::node::{self, Node};
use turnway_tests::real::python::{Running, script};
use turnway_tests::real::web::Web;

/// Returns the path of a program of the example.
pub(super) fn program(name: &str) -> String {
    format!("{}/../examples/rooms/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// An example of an adapter.
#[derive(Clone, Copy)]
enum Example {
    /// `examples/rooms/adapter.py`, without an SDK.
    Python,
    /// `examples/rooms-rust`, with the SDK.
    Rust,
}

impl Example {
    /// Starts the adapter of a node and a platform, with its offset in a file of this directory.
    fn start(self, node: &Node, rooms: &str, dir: &Path) -> Running {
        let gateway = format!("ws://{}/v1/connect", node.http);
        let state = dir.join("offset");
        let args = ["--turnway", &gateway, "--rooms", rooms, "--state", state.to_str().expect("UTF-8")];
        match self {
            Self::Python => Running::start(script(&program("adapter.py"), &args)),
            Self::Rust => {
                let mut command = Command::new(node::binary().with_file_name("turnway-rooms"));
                command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
                Running::start(command)
            }
        }
    }
}

/// Starts the platform; returns its process, its URL and a client.
pub(super) async fn start_rooms() -> (Running, String, Web) {
    let mut rooms = Running::start(script(&program("rooms.py"), &["0"]));
    let url = rooms.line().await.strip_prefix("rooms: ").expect("its address").to_owned();
    let address: SocketAddr = url.strip_prefix("http://").expect("a URL").parse().expect("an address");
    (rooms, url, Web::new(address, None))
}

pub(super) async fn post(platform: &Web, path: &str, body: &Value) -> Value {
    let headers = [("content-type", "application/json")];
    let reply = platform.ask("POST", path, &headers, &body.to_string()).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    reply.json()
}

/// Waits until the bot has answered so many lines; returns its lines.
async fn await_answers(platform: &Web, count: usize) -> Vec<Value> {
    let mut looks = interval(Duration::from_millis(50));
    let found = timeout(4 * PATIENCE, async {
        loop {
            looks.tick().await;
            let journal = platform.json("/journal").await;
            let lines = journal["lines"].as_array().expect("lines").clone();
            if lines.len() >= count {
                return lines;
            }
        }
    });
    found.await.expect("answers in time")
}

async fn answers_each_line_once(example: Example) {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let (_rooms, url, platform) = start_rooms().await;
    let adapter = example.start(&node, &url, dir.path());
    let faults = json!([{"kind": "drop_reply"}, {"kind": "refuse", "status": 503}, {"kind": "drop_reply"}]);
    post(&platform, "/faults", &faults).await;
    for n in 0..4 {
        post(&platform, &format!("/rooms/room-{n}"), &json!({"sender": "ann", "text": format!("line {n}")})).await;
    }
    let lines = await_answers(&platform, 4).await;
    node.kill().await;
    post(&platform, "/rooms/room-0", &json!({"sender": "bob", "text": "while it is away"})).await;
    node.restart().await;
    let more = await_answers(&platform, 5).await;
    assert_eq!(more[..4], lines[..], "no line is said twice");
    assert!(more[4]["text"].as_str().expect("a text").contains("while it is away"), "{more:?}");
    // The adapter is killed and begins where it was.
    drop(adapter);
    post(&platform, "/rooms/room-1", &json!({"sender": "bob", "text": "and again"})).await;
    let _adapter = example.start(&node, &url, dir.path());
    let all = await_answers(&platform, 6).await;
    assert_eq!(all[..5], more[..], "no line is said twice");
    let mut rooms_of_answers: Vec<&str> = all.iter().map(|line| line["room"].as_str().expect("a room")).collect();
    rooms_of_answers.sort_unstable();
    assert_eq!(rooms_of_answers, ["room-0", "room-0", "room-1", "room-1", "room-2", "room-3"]);
}

/// Covers: BD-Q1, BD-Q7, BD-I1, BD-I4, BR-26.
#[tokio::test]
async fn example_adapter_answers_each_line_once() {
    answers_each_line_once(Example::Python).await;
}

/// Covers: BD-Q1, BD-Q7, BD-I1, BD-I4, BR-26.
#[tokio::test]
async fn rust_adapter_answers_each_line_once() {
    answers_each_line_once(Example::Rust).await;
}

/// Returns the lines of the bot in a room: the text, and whether the line is a preview.
async fn bot_lines(platform: &Web, room: &str) -> Vec<(String, bool)> {
    let found = platform.json(&format!("/rooms/{room}")).await;
    let lines = found["lines"].as_array().expect("lines").iter().filter(|line| line["bot"] == true);
    lines.map(|line| (line["text"].as_str().expect("a text").to_owned(), line["preview"] == true)).collect()
}

/// Waits until the bot has these lines in the lobby, and is typing there or not.
async fn await_lobby(platform: &Web, expected: &[(&str, bool)], typing: bool) {
    let mut looks = interval(Duration::from_millis(50));
    let found = timeout(4 * PATIENCE, async {
        loop {
            looks.tick().await;
            let lines = bot_lines(platform, "lobby").await;
            let lines: Vec<(&str, bool)> =
                lines.iter().map(|(text, is_preview)| (text.as_str(), *is_preview)).collect();
            if lines == expected && platform.json("/typing/lobby").await["typing"] == typing {
                break;
            }
        }
    });
    if found.await.is_err() {
        panic!("{expected:?}, typing {typing}, not {:?}", bot_lines(platform, "lobby").await);
    }
}

async fn shows_an_answer_while_it_is_written(example: Example) {
    let dir = tempdir().expect("a directory");
    let (agents, gate) = gated().await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let (_rooms, url, platform) = start_rooms().await;
    let _adapter = example.start(&node, &url, dir.path());
    post(&platform, "/rooms/lobby", &json!({"sender": "ann", "text": "hello"})).await;
    await_lobby(&platform, &[], true).await;
    gate.add_permits(1);
    let first = format!("{LINE}1`");
    await_lobby(&platform, &[(&first, true)], true).await;
    gate.add_permits(1);
    let second = format!("{first} {LINE}2`");
    await_lobby(&platform, &[(&second, true)], true).await;
    gate.add_permits(1);
    let whole = format!("{second} {LINE}3`");
    await_lobby(&platform, &[(&whole, false)], false).await;
}

/// Covers: BD-T4, BR-36.
#[tokio::test]
async fn example_adapter_shows_an_answer_while_it_is_written() {
    shows_an_answer_while_it_is_written(Example::Python).await;
}

/// Covers: BD-T4, BR-36.
#[tokio::test]
async fn rust_adapter_shows_an_answer_while_it_is_written() {
    shows_an_answer_while_it_is_written(Example::Rust).await;
}

/// Waits until the lobby looks like this: who wrote each line, and its text or its reactions.
async fn await_lines(platform: &Web, expected: &[(&str, &str, Value)]) {
    let mut looks = interval(Duration::from_millis(50));
    let mut seen = Value::Null;
    let found = timeout(4 * PATIENCE, async {
        loop {
            looks.tick().await;
            seen = platform.json("/rooms/lobby").await["lines"].clone();
            let lines = seen.as_array().expect("lines").iter().filter(|line| line["preview"] != true);
            let is_so = |(line, (sender, text, reactions)): (&Value, &(&str, &str, Value))| {
                let is_text = line["text"].as_str().expect("a text").starts_with(text);
                line["sender"] == *sender && is_text && line["reactions"] == *reactions
            };
            if lines.clone().count() == expected.len() && lines.zip(expected).all(is_so) {
                break;
            }
        }
    });
    if found.await.is_err() {
        panic!("{expected:?}, not {seen}");
    }
}

async fn edits_deletes_and_reacts(example: Example) {
    let dir = tempdir().expect("a directory");
    let agents = Agents::start(|invocation| act(&invocation)).await;
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--default-agent", "a"]).await;
    let (_rooms, url, platform) = start_rooms().await;
    let _adapter = example.start(&node, &url, dir.path());
    post(&platform, "/rooms/lobby", &json!({"sender": "ann", "text": "one"})).await;
    await_lines(&platform, &[("ann", "one", Value::Null), ("bot", "one", Value::Null)]).await;
    let first = agents.journal()[0].run_id.clone();
    let edit = json!([
        ["message.edit", {"run_id": first, "text": "better"}],
        ["message.react", {"emoji": "ok"}],
        ["message.react", {"emoji": "+1"}],
        ["message.react", {"emoji": "ok", "remove": true}],
    ]);
    post(&platform, "/rooms/lobby", &json!({"sender": "ann", "text": edit.to_string()})).await;
    let plain = |sender, text| (sender, text, Value::Null);
    let asked = ("ann", "[[", json!(["+1"]));
    await_lines(&platform, &[plain("ann", "one"), plain("bot", "better"), asked.clone(), plain("bot", "done")]).await;
    let delete = json!([["message.delete", {"run_id": first}]]);
    post(&platform, "/rooms/lobby", &json!({"sender": "ann", "text": delete.to_string()})).await;
    await_lines(
        &platform,
        &[plain("ann", "one"), asked, plain("bot", "done"), plain("ann", "[["), plain("bot", "done")],
    )
    .await;
}

/// Covers: BR-36.
#[tokio::test]
async fn example_adapter_edits_deletes_and_reacts() {
    edits_deletes_and_reacts(Example::Python).await;
}

/// Covers: BR-36.
#[tokio::test]
async fn rust_adapter_edits_deletes_and_reacts() {
    edits_deletes_and_reacts(Example::Rust).await;
}

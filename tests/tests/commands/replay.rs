//! `turnway replay`: a session's log for people and programs, complete, in part, and while it grows.
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::{Ended, run};
use turnway_tests::real::node::{Node, binary};
use turnway_tests::real::wire::{WebSocketClient, invoke};

struct Follower {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    seen: Vec<Value>,
}

impl Follower {
    fn start(node: &Node, session: &str) -> Self {
        let mut child = Command::new(binary())
            .args(["replay", session, "--follow", "--json", "--url", &format!("ws://{}", node.http)])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it runs");
        let out = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, out, seen: Vec::new() }
    }

    /// Reads until this number of turns has ended.
    async fn until_done(&mut self, turns: usize) {
        while self.seen.iter().filter(|line| line["type"] == "done").count() < turns {
            let line = timeout(PATIENCE, self.out.next_line()).await.expect("in time").expect("read");
            self.seen.push(serde_json::from_str(&line.expect("it stays")).expect("JSON"));
        }
    }

    /// Sends SIGINT and returns all lines, the exit code and stderr.
    async fn stop(mut self) -> (Vec<Value>, Option<i32>, String) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status().await.expect("kill runs");
        assert!(sent.success());
        let ended = timeout(PATIENCE, self.child.wait_with_output()).await.expect("in time").expect("ended");
        while let Ok(Some(line)) = self.out.next_line().await {
            self.seen.push(serde_json::from_str(&line).expect("JSON"));
        }
        (self.seen, ended.status.code(), String::from_utf8(ended.stderr).expect("UTF-8"))
    }
}

async fn replay(node: &Node, args: &[&str]) -> Ended {
    let dir = tempfile::tempdir().expect("a directory");
    run(dir.path(), &[&["replay"], args].concat(), &[("TURNWAY_URL", &format!("ws://{}", node.http))]).await
}

/// Returns a line without its leading time and ids, which differ between runs.
fn normalized(line: &str) -> String {
    let (time, rest) = line.split_once("  ").expect("a time");
    assert!(time.len() == 24 && time.ends_with('Z'), "{line}");
    rest.split_whitespace().filter(|word| !word.contains("_id=")).collect::<Vec<_>>().join(" ")
}

/// Covers: MP-B9, MP-T9, MP-D13, EV-G2, LN-TP20.
#[tokio::test]
async fn log_is_printed_as_text_and_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.turn("s1", "echo", "m1", "good morning").await.expect("a turn");
    let output = replay(&node, &["s1"]).await;
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    let lines: Vec<String> = output.out.lines().map(normalized).collect();
    let expected = [
        "1 session_opened",
        "2 message ann: good morning",
        "3 TURN_ADMITTED strategy=run",
        "4 run_started attempt=1",
        "5 AGENT_STARTED",
        "6 agent.stream.delta",
        "7 agent.invoke.done",
        "8 done echo: good morning",
    ];
    assert_eq!(lines.len(), expected.len(), "{}", output.out);
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
    assert!(!output.out.contains('\u{1b}'));

    let facts = replay(&node, &["s1", "--json"]).await.lines();
    let places: Vec<_> = facts.iter().map(|fact| fact["seq"].as_u64()).collect();
    assert_eq!(places, (1..=8).map(Some).collect::<Vec<_>>());
    assert_eq!(facts[7]["text"], "good morning");
    let part = replay(&node, &["s1", "--json", "--after", "4", "--types", "user.message,run.*"]).await.lines();
    assert_eq!(part, [facts[7].clone()]);
    let part = replay(&node, &["s1", "--json", "--types", "user.message", "--types", "run.started"]).await;
    assert_eq!(part.lines(), [facts[1].clone(), facts[3].clone()]);
    assert_eq!(replay(&node, &["s1", "--types", "a..b"]).await.code, Some(64));
}

/// Covers: MP-D13.
#[tokio::test]
async fn failed_turn_shows_its_error_code() {
    let dir = tempfile::tempdir().expect("a directory");
    // Port 1 has no listener.
    let node = Node::start(dir.path(), &["--agent", "gone=http://127.0.0.1:1"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let (_, done) = wire.turn("s1", "gone", "m1", "hello").await.expect("a turn");
    assert_eq!(done["status"], "failed");
    let facts = replay(&node, &["s1", "--json", "--types", "run.failed"]).await.lines();
    let [fact] = facts.as_slice() else { panic!("{facts:?}") };
    assert_eq!(fact["error"]["code"], "agent_unavailable", "{fact}");
    let output = replay(&node, &["s1", "--types", "run.failed"]).await;
    assert!(output.out.contains("[failed: agent_unavailable "), "{}", output.out);
}

#[tokio::test]
async fn foreign_session_is_not_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.turn("s1", "echo", "m1", "mine").await.expect("a turn");
    for args in [&["s1", "--user", "bob", "--json"][..], &["s2", "--json"]] {
        let output = replay(&node, args).await;
        assert_eq!((output.code, output.out.as_str()), (Some(1), ""), "{args:?}");
        assert_eq!(output.error()["code"], "not_found");
        let message = format!("no session {}", args[0]);
        assert_eq!(output.error()["message"], message.as_str(), "{args:?}");
    }
    assert_eq!(replay(&node, &["s1", "--user", "ann", "--json"]).await.lines().len(), 8);
}

/// Covers: G5.
#[tokio::test]
async fn follower_has_no_gap_or_repeat_across_a_crash() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let open = json!({"type": "session_open", "session_id": "s1", "agents": ["echo", "counter"]});
    wire.ask("m0", open).await.expect("opened");
    wire.turn("s1", "echo", "m1", "before").await.expect("a turn");
    let mut follower = Follower::start(&node, "s1");
    follower.until_done(1).await;
    wire.turn("s1", "echo", "m2", "while it follows").await.expect("a turn");
    follower.until_done(2).await;
    // A crash interrupts the third turn.
    wire.ask("m3", invoke("s1", "counter", "count to 12 every 50ms")).await.expect("accepted");
    wire.until(|message| message["type"] == "delta").await.expect("it counts");
    node.kill_and_restart().await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.turn("s1", "echo", "m4", "afterwards").await.expect("a turn");
    follower.until_done(4).await;
    let (seen, code, err) = follower.stop().await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "Ctrl-C is no failure");
    let log = replay(&node, &["s1", "--json"]).await.lines();
    assert_eq!(seen, log);
    let said = log.iter().filter(|fact| fact["type"] == "done").map(|fact| fact["text"].clone());
    let numbers: String = (1..=12).map(|n| format!("{n}\n")).collect();
    assert_eq!(
        said.collect::<Vec<_>>(),
        [json!("before"), json!("while it follows"), json!(numbers), json!("afterwards")]
    );
}

/// Ends `turnway replay … --follow | head -1` at the next write.
#[tokio::test]
async fn follower_exits_after_its_reader_has_closed() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.turn("s1", "echo", "m1", "one").await.expect("a turn");
    let mut follower = Follower::start(&node, "s1");
    follower.until_done(1).await;
    let Follower { child, out, .. } = follower;
    drop(out);
    wire.turn("s1", "echo", "m2", "two").await.expect("a turn");
    let ended = timeout(PATIENCE, child.wait_with_output()).await.expect("it leaves").expect("ended");
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), &b""[..]));
}

/// Prints a trimmed log from its first fact that is left, and reports the missing part.
#[tokio::test]
async fn trimmed_log_is_printed_from_its_first_fact() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--retention", "facts=10"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    for n in 0..20 {
        wire.turn("s1", "echo", &format!("m{n}"), &format!("turn {n}")).await.expect("a turn");
    }
    let output = replay(&node, &["s1", "--json"]).await;
    assert_eq!(output.code, Some(0), "{}", output.err);
    let lines = output.lines();
    assert_eq!((&lines[0]["type"], &lines[0]["reason"]), (&json!("reset"), &json!("trimmed")), "{}", lines[0]);
    let places: Vec<u64> = lines[1..].iter().map(|line| line["seq"].as_u64().expect("a place")).collect();
    let floor = lines[0]["seq"].as_u64().expect("a place");
    assert!(floor > 0 && places.len() >= 10, "{places:?}");
    assert_eq!(places, (floor + 1..=floor + places.len() as u64).collect::<Vec<_>>());
    assert_eq!(lines.last().map(|line| line["text"].clone()), Some(json!("turn 19")));
    let output = replay(&node, &["s1"]).await;
    assert!(output.code == Some(0) && output.err.contains("were trimmed"), "{output:?}");
    let after = replay(&node, &["s1", "--json", "--after", &(floor + 3).to_string()]).await.lines();
    assert_eq!(after, lines[4..]);
    let beyond = replay(&node, &["s1", "--after", "100000"]).await;
    assert!(beyond.code == Some(1) && beyond.err.contains("the log ends at fact"), "{beyond:?}");
}

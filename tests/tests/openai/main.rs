//! Tests of the OpenAI-compatible API: OpenAI's own Python client against a real node with a real HTTP agent.
//!
//! Covers: ST-41.
mod files;
mod room;

use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::agent::{AgentStream, Agents, Invocation, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::python::{Running, run, script};
use turnway_tests::real::wire::WebSocketClient;

const CLIENT: &str = "openai_client.py";

fn base(node: &Node) -> String {
    format!("http://{}/v1", node.http)
}

/// Plays the agent: the first word of the message selects the reply.
fn obey(invocation: Invocation) -> Reply {
    let usage = json!({ "usage": { "prompt_tokens": 3, "completion_tokens": 4 } });
    let (what, rest) = invocation.text.split_once(' ').unwrap_or((&invocation.text, ""));
    let rest = rest.to_owned();
    match what {
        "away" => Reply::Status(503),
        "say" => Reply::speak(async move |stream: AgentStream| {
            for letter in rest.split_inclusive(' ') {
                stream.delta(letter).await?;
            }
            stream.event("done", &usage).await
        }),
        "session" => Reply::speak(async move |stream: AgentStream| {
            stream.delta(&invocation.session_id).await?;
            stream.done().await
        }),
        "recite" => Reply::speak(async move |stream: AgentStream| {
            stream.delta(&invocation.messages.to_string()).await?;
            stream.done().await
        }),
        "think" => Reply::speak(async |stream: AgentStream| {
            stream.event("delta", &json!({ "text": "hm, ", "kind": "reasoning" })).await?;
            stream.delta("so").await?;
            stream.done().await
        }),
        "fail" | "break" => {
            let words = if what == "break" { vec!["so ", "far"] } else { Vec::new() };
            Reply::speak(async move |stream: AgentStream| {
                for word in words {
                    stream.delta(word).await?;
                }
                stream.event("error", &json!({ "code": "quota", "message": "no more today" })).await
            })
        }
        _ => Reply::speak(async |stream: AgentStream| stream.event("done", &json!({})).await),
    }
}

/// Covers: MP-G3, MP-C3, ST-19, ST-23, ST-35, S-11, S-56.
#[tokio::test]
async fn official_client_passes_all_its_checks() {
    let agents = Agents::start(obey).await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a"), "--agent", "echo=builtin:echo"]).await;
    let said = run(CLIENT, &[&base(&node)]).await;
    assert_eq!(said.lines().filter(|line| line.starts_with("holds: ")).count(), 12, "{said}");
    let asked = |text: &str| agents.journal().iter().filter(|asked| asked.text == text).count();
    // A failed call is not retried automatically: two calls each, one streamed and one not.
    assert_eq!((asked("fail"), asked("away"), asked("break")), (2, 2, 1));
    assert_eq!(asked("say once"), 2, "one call of one user asks once, however often it is made");
    assert!(!node.log().contains("no more today") && !node.log().contains("be brief"), "{}", node.log());
}

/// An agent that sends one piece of text, waits until the test releases the attempt, and reports when its request
/// is closed.
struct Slow {
    agents: Agents,
    events: mpsc::UnboundedReceiver<&'static str>,
    /// Releases the attempt that waits.
    go: Arc<Mutex<Vec<mpsc::Sender<()>>>>,
}

impl Slow {
    async fn start() -> Self {
        let (told, events) = mpsc::unbounded_channel();
        let go: Arc<Mutex<Vec<mpsc::Sender<()>>>> = Arc::default();
        let waiting = Arc::clone(&go);
        let agents = Agents::start(move |_| {
            let (told, (word, mut rest)) = (told.clone(), mpsc::channel(1));
            waiting.lock().unwrap_or_else(PoisonError::into_inner).push(word);
            Reply::speak(async move |stream: AgentStream| {
                stream.delta("begun").await?;
                // The receiver is gone once the test has ended.
                _ = told.send("begun");
                tokio::select! {
                    gone = stream.hung_up() => {
                        _ = told.send("closed");
                        return gone;
                    }
                    _ = rest.recv() => {}
                }
                stream.delta(" and done").await?;
                stream.done().await
            })
        })
        .await;
        Self { agents, events, go }
    }

    async fn event(&mut self) -> &'static str {
        let event = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        event.expect("something happens in time").expect("the agent")
    }

    async fn let_go(&self) {
        let word = self.go.lock().unwrap_or_else(PoisonError::into_inner).pop().expect("an attempt");
        word.send(()).await.expect("it waits");
    }

    fn asked(&self) -> Vec<(u64, Value)> {
        self.agents.journal().into_iter().map(|asked| (asked.attempt, asked.messages)).collect()
    }
}

/// Covers: ST-18, ST-41, ST-35: an abort stops the work of a call that nobody can come back for, and of no
/// other.
#[tokio::test]
async fn abort_cancels_only_calls_that_cannot_be_resumed() {
    let mut slow = Slow::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &slow.agents.flag("a")]).await;
    run(CLIENT, &[&base(&node), "hang_up_streamed"]).await;
    assert_eq!((slow.event().await, slow.event().await), ("begun", "closed"));
    let waiting = Running::start(script(CLIENT, &[&base(&node), "wait"]));
    assert_eq!(slow.event().await, "begun");
    drop(waiting);
    assert_eq!(slow.event().await, "closed");
    run(CLIENT, &[&base(&node), "hang_up_streamed", "x-session-id=s1", "Idempotency-Key=k1"]).await;
    assert_eq!(slow.event().await, "begun");
    slow.let_go().await;
    // The turn runs to its end, and a repeat of the same call gets the answer.
    let body = r#"{"model":"agent/a","messages":[{"role":"user","content":"begin"}]}"#;
    let headers = "x-user-id: ann\r\nx-session-id: s1\r\nidempotency-key: k1\r\n";
    let answer = post(&node, headers, body).await;
    assert!(answer.contains(r#""content":"begun and done""#), "{answer}");
    assert_eq!(slow.agents.journal().len(), 3);
}

/// Sends a request and returns the whole response.
async fn post(node: &Node, headers: &str, body: &str) -> String {
    let mut socket = send(node, headers, body).await;
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await;
    read.expect("it ends in time").expect("readable");
    answer
}

async fn send(node: &Node, headers: &str, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(node.http).await.expect("a connection");
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{headers}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        node.http,
        body.len()
    );
    socket.write_all(request.as_bytes()).await.expect("sent");
    socket
}

/// Covers: ST-41, SR-C4: whoever else follows the session may cancel; what is left is not called whole.
#[tokio::test]
async fn completion_cancelled_by_another_client_is_an_error() {
    let mut slow = Slow::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &slow.agents.flag("a")]).await;
    let body = r#"{"model":"agent/a","messages":[{"role":"user","content":"begin"}]}"#;
    let streamed = body.replace("}]}", r#"}],"stream":true}"#);
    for (session, body) in [("s1", body), ("s2", &streamed)] {
        let headers = format!("x-user-id: ann\r\nx-session-id: {session}\r\n");
        let mut call = send(&node, &headers, body).await;
        assert_eq!(slow.event().await, "begun");
        if body == streamed {
            call.readable().await.expect("the first word comes");
        }
        let mut wire = WebSocketClient::hello(node.http, "ann", Vec::new()).await.expect("welcome");
        wire.say(json!({ "type": "cancel_run", "session_id": session })).await.expect("sent");
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, call.read_to_string(&mut answer)).await.expect("in time").expect("readable");
        assert!(answer.contains(r#""code":"cancelled""#) && !answer.contains("[DONE]"), "{answer}");
        assert_eq!(answer.starts_with("HTTP/1.1 409"), body != streamed, "{answer}");
        assert_eq!(slow.event().await, "closed");
    }
}

/// Runs the examples of `docs/openai.md` as printed.
#[tokio::test]
async fn documented_examples_work_as_printed() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openai.md");
    let document = std::fs::read_to_string(path).expect("the document");
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let (_, python) = document.split_once("```python\n").expect("an example");
    let (python, rest) = python.split_once("```").expect("its end");
    let python = python.replace("127.0.0.1:8080", &node.http.to_string());
    assert_eq!(run("-c", &[&python]).await, "hello, is anybody there?");
    let (_, curl) = rest.split_once("-d '").expect("an example for curl");
    let (body, _) = curl.split_once("'\n").expect("its end");
    let answer = post(&node, "", body).await;
    assert!(answer.contains(r#""content":"hello, is anybody there?""#), "{answer}");
}

/// Covers: ST-41, G-04.
#[tokio::test]
async fn node_killed_during_a_stream_is_reported_as_an_error() {
    let mut slow = Slow::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--agent", &slow.agents.flag("a")]).await;
    let mut client = Running::start(script(CLIENT, &[&base(&node), "cut_off"]));
    assert_eq!(client.line().await, "begun");
    node.kill().await;
    client.end().await;
    assert_eq!((slow.event().await, slow.event().await), ("begun", "closed"));
}

/// Covers: MP-G3, ST-35, G2, G3: the agent is asked again with the same messages, and the client that tries
/// again by itself gets the answer.
#[tokio::test]
async fn retrying_client_gets_the_answer_after_a_node_crash() {
    let mut slow = Slow::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let flag = format!("{},on_owner_loss=retry", slow.agents.flag("a"));
    let mut node = Node::start(dir.path(), &["--agent", &flag]).await;
    let client = Running::start(script(CLIENT, &[&base(&node), "persistent", "k1"]));
    assert_eq!(slow.event().await, "begun");
    node.kill_and_restart().await;
    assert_eq!((slow.event().await, slow.event().await), ("closed", "begun"));
    // A streamed call shows only the text of the present attempt.
    let mut streamed = Running::start(script(CLIENT, &[&base(&node), "again", "k1"]));
    assert_eq!(streamed.line().await, "begun");
    slow.let_go().await;
    assert_eq!(client.end().await, "begun and done\n");
    assert_eq!(streamed.end().await, " and done\n");
    let earlier = json!([{ "role": "system", "content": "canary" }]);
    assert_eq!(slow.asked(), [(1, earlier.clone()), (2, earlier)]);
    assert_eq!(run(CLIENT, &[&base(&node), "again", "k1"]).await, "begun and done\n");
}

/// Covers: ST-41: a node that leaves lets answers end, and takes on no more.
#[tokio::test]
async fn draining_node_finishes_open_answers() {
    let mut slow = Slow::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--agent", &slow.agents.flag("a")]).await;
    let mut client = Running::start(script(CLIENT, &[&base(&node), "again", "k1"]));
    assert_eq!((slow.event().await, client.line().await), ("begun", "begun".to_owned()));
    node.signal("-TERM").await;
    slow.let_go().await;
    assert_eq!(client.end().await, " and done\n");
    assert_eq!(node.exit().await, Some(0));
}

/// Covers: ST-41: what may not be asked twice is an error object, with a status where nothing was sent.
#[tokio::test]
async fn turn_without_retry_ends_as_owner_lost_after_a_crash() {
    let mut slow = Slow::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let flag = format!("{},on_owner_loss=fail", slow.agents.flag("a"));
    let mut node = Node::start(dir.path(), &["--agent", &flag]).await;
    let client = Running::start(script(CLIENT, &[&base(&node), "again", "k1"]));
    assert_eq!(slow.event().await, "begun");
    node.kill_and_restart().await;
    drop(client);
    assert_eq!(run(CLIENT, &[&base(&node), "again", "k1"]).await, "503 owner_lost\n");
    assert_eq!(slow.asked().len(), 1);
}

/// Covers: G8, LN-MP4: a client that does not read holds up itself only.
#[tokio::test]
async fn slow_reader_does_not_delay_other_calls() {
    const PIECE: usize = 16 * 1024;
    const PIECES: usize = 200;
    let agents = Agents::start(|asked| {
        let pieces = if asked.text == "much" { PIECES } else { 1 };
        Reply::speak(async move |stream: AgentStream| {
            for _ in 0..pieces {
                stream.delta(&"x".repeat(PIECE)).await?;
            }
            stream.done().await
        })
    })
    .await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", &agents.flag("a")]).await;
    let body = |what: &str| {
        json!({ "model": "agent/a", "stream": true, "messages": [{ "role": "user", "content": what }] }).to_string()
    };
    let mut slow = send(&node, "", &body("much")).await;
    slow.readable().await.expect("its answer begins");
    let quick = post(&node, "", &body("little")).await;
    assert!(quick.contains("data: [DONE]"), "{quick:.300}");
    let mut all = String::new();
    tokio::time::timeout(PATIENCE, slow.read_to_string(&mut all)).await.expect("in time").expect("readable");
    assert!(all.contains("data: [DONE]"));
    // Text may be split anywhere between two HTTP chunks; only the agent's text contains this letter.
    assert!(all.matches('x').count() >= PIECE * PIECES, "{}", all.matches('x').count());
}

//! Bad input of a client or an agent gets its documented answer, and other clients are not affected.
//!
//! Covers: S-11, S-13, S-48, S-52, RX-15, MP-G6.
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient, invoke};

/// A node with all faulty agents, and a second client that must not notice them.
struct Fixture {
    node: Node,
    other_client: WebSocketClient,
    turns: u32,
    _agents: Agents,
    _dir: tempfile::TempDir,
}

impl Fixture {
    async fn set_up() -> Self {
        let agents = Agents::start(|asked| misbehave(&asked)).await;
        let dir = tempfile::tempdir().expect("a directory");
        let mut args = Vec::new();
        for (name, ..) in BAD_AGENTS {
            args.push("--agent".to_owned());
            args.push(agents.flag(name) + ",input_ack=2s,silence=2s");
        }
        args.extend(["--agent".to_owned(), agents.flag("good")]);
        args.extend(["--agent".to_owned(), "nowhere=http://127.0.0.1:9/".to_owned()]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let node = Node::start(dir.path(), &args).await;
        let bystander = WebSocketClient::hello(node.http, "bystander", vec![]).await.expect("it connects");
        Self { node, other_client: bystander, turns: 0, _agents: agents, _dir: dir }
    }

    async fn client(&self) -> WebSocketClient {
        WebSocketClient::hello(self.node.http, "clumsy", vec![]).await.expect("it connects")
    }

    /// Runs a turn of the second client on its original connection.
    async fn others_are_served(&mut self) {
        self.turns += 1;
        let id = format!("b{}", self.turns);
        let (text, done) = self.other_client.turn("beside", "good", &id, "hi").await.expect("served");
        assert_eq!((text.as_str(), &done["status"]), ("you said hi", &json!("completed")));
        self.node.must_run();
    }
}

// === clients ===

/// Messages after `hello`, and the error code of their answer; the connection stays open.
fn bad_messages() -> Vec<(&'static str, String, &'static str)> {
    let invoke_with = |field: &str, value: Value| {
        let mut message = invoke("s1", "good", "x");
        message[field] = value;
        message.to_string()
    };
    vec![
        ("not JSON", "hello?".to_owned(), "invalid_message"),
        ("half of JSON", r#"{"type":"ping""#.to_owned(), "invalid_message"),
        ("an array", "[1,2]".to_owned(), "invalid_message"),
        ("no type", "{}".to_owned(), "invalid_message"),
        ("a type that is no text", json!({"type": 7}).to_string(), "invalid_message"),
        ("an unknown type", json!({"type": "launch"}).to_string(), "invalid_message"),
        ("too deep", format!(r#"{{"type":"ping","x":{}1{}}}"#, "[".repeat(65), "]".repeat(65)), "invalid_message"),
        ("very deep", format!(r#"{{"type":"ping","x":{}"#, "[".repeat(60_000)), "invalid_message"),
        ("a key twice", r#"{"type":"subscribe","session_id":"a","session_id":"b"}"#.to_owned(), "invalid_message"),
        ("too many values", json!({"type": "ping", "x": vec![0; 10_001]}).to_string(), "invalid_message"),
        ("a message that is a number", invoke_with("message", json!(7)), "invalid_message"),
        ("content that is a number", invoke_with("message", json!({"role": "user", "content": 7})), "invalid_message"),
        ("a session id with a slash", invoke_with("session_id", json!("a/b")), "invalid_message"),
        ("an endless session id", invoke_with("session_id", json!("x".repeat(65))), "invalid_message"),
        ("an unknown strategy", invoke_with("strategy", json!("shout")), "invalid_message"),
        ("a cancel of nothing", json!({"type": "cancel_run"}).to_string(), "invalid_message"),
        (
            "a negative cursor",
            json!({"type": "subscribe", "session_id": "s1", "after_seq": -1}).to_string(),
            "invalid_message",
        ),
        ("an unknown session", json!({"type": "subscribe", "session_id": "nobodys"}).to_string(), "not_found"),
        (
            "an unknown run",
            json!({"type": "cancel_run", "run_id": format!("nobodys.{}", "a".repeat(26))}).to_string(),
            "not_found",
        ),
        ("an unknown agent", invoke("s1", "nobody", "x").to_string(), "not_found"),
    ]
}

/// Covers: S-13, MP-C1.
#[tokio::test]
async fn bad_message_gets_its_error_and_connection_stays_open() {
    let mut bench = Fixture::set_up().await;
    for (what, text, code) in bad_messages() {
        let mut clumsy = bench.client().await;
        clumsy.frame(Message::text(text)).await.expect("sent");
        let answer = clumsy.next().await.unwrap_or_else(|gone| panic!("{what}: {gone:?}"));
        assert_eq!((&answer["type"], &answer["code"]), (&json!("error"), &json!(code)), "{what}: {answer}");
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(!message.is_empty() && message.len() < 300, "{what}: {answer}");
        let pong = clumsy.ask("p", json!({"type": "ping"})).await;
        assert_eq!(pong.expect("still open")["type"], "pong", "{what}");
    }
    bench.others_are_served().await;
}

/// Frames that close the connection, whether they follow `hello`, and the error and close code.
fn fatal_frames() -> Vec<(&'static str, bool, Message, Option<&'static str>, u16)> {
    let text = |value: Value| Message::text(value.to_string());
    vec![
        ("no hello", false, text(json!({"type": "ping"})), Some("unauthorized"), 4401),
        ("a turn before hello", false, text(invoke("s1", "good", "x")), Some("unauthorized"), 4401),
        ("binary", true, Message::binary(vec![0u8, 1, 2]), None, 1003),
        ("10 MiB", true, Message::text("x".repeat(10 << 20)), Some("too_large"), 4413),
        (
            "just over the limit",
            true,
            Message::text(format!("{{\"x\":\"{}\"}}", "x".repeat(64 << 10))),
            Some("too_large"),
            4413,
        ),
    ]
}

/// Covers: S-11.
#[tokio::test]
async fn a_fatal_frame_closes_with_its_code() {
    let mut bench = Fixture::set_up().await;
    let before = bench.node.resident_kib();
    for (what, greeted, frame, error, code) in fatal_frames() {
        let mut clumsy = if greeted {
            bench.client().await
        } else {
            WebSocketClient::open(bench.node.http).await.expect("it connects")
        };
        // The node may close while the frame is still being sent.
        drop(clumsy.frame(frame).await);
        let mut said = None;
        let end = loop {
            match clumsy.next().await {
                Ok(message) => said = Some(message["code"].clone()),
                Err(gone) => break gone,
            }
        };
        // A sender of megabytes may find the connection reset before the close frame arrives.
        if what != "10 MiB" || matches!(end, ConnectionEnd::Closed(_)) {
            assert_eq!(end, ConnectionEnd::Closed(code), "{what}");
            if let Some(error) = error {
                assert_eq!(said, Some(json!(error)), "{what}");
            }
        }
        bench.others_are_served().await;
    }
    let grown = bench.node.resident_kib().saturating_sub(before);
    assert!(grown < 8 * 1024, "a message that is too large is not kept: {grown} KiB more");
}

/// Covers: S-13.
#[tokio::test]
async fn ten_bad_messages_close_the_connection() {
    let mut bench = Fixture::set_up().await;
    let mut clumsy = bench.client().await;
    let mut answered = 0;
    let end = loop {
        drop(clumsy.frame(Message::text("nonsense")).await);
        match clumsy.next().await {
            Ok(answer) => assert_eq!(answer["code"], "invalid_message", "{answer}"),
            Err(gone) => break gone,
        }
        answered += 1;
        assert!(answered <= 10, "the connection should have been closed by now");
    };
    assert_eq!(end, ConnectionEnd::Closed(4400));
    bench.others_are_served().await;
}

/// Covers: S-04.
#[tokio::test]
async fn connection_without_hello_times_out() {
    let mut bench = Fixture::set_up().await;
    let mut silent = WebSocketClient::open(bench.node.http).await.expect("it connects");
    let end = loop {
        match silent.next().await {
            Ok(message) => assert_eq!(message["type"], "error", "{message}"),
            Err(gone) => break gone,
        }
    };
    assert_eq!(end, ConnectionEnd::Closed(4408));
    bench.others_are_served().await;
}

// === agents ===

/// An agent's name, and the expected status and error code of its turn.
const BAD_AGENTS: [(&str, &str, &str); 12] = [
    ("says500", "failed", "agent_error"),
    ("says503", "failed", "agent_unavailable"),
    ("says404", "failed", "agent_error"),
    ("mute", "failed", "ROUTE_TIMEOUT"),
    ("stalls", "failed", "agent_timeout"),
    ("garbage", "failed", "agent_error"),
    ("bad-json", "failed", "agent_error"),
    ("hangs-up", "failed", "agent_error"),
    ("endless", "failed", "too_large"),
    ("one-line", "failed", "too_large"),
    ("own-error", "failed", "agent_error"),
    ("twice-done", "completed", ""),
];

fn misbehave(invocation: &Invocation) -> Reply {
    let agent = invocation.agent.clone();
    let text = invocation.text.clone();
    match agent.as_str() {
        "says500" => Reply::Status(500),
        "says503" => Reply::Status(503),
        "says404" => Reply::Status(404),
        "mute" => Reply::Silence,
        _ => Reply::speak(|stream| async move { speak(&agent, &text, stream).await }),
    }
}

async fn speak(agent: &str, text: &str, stream: AgentStream) -> Result<(), HungUp> {
    match agent {
        "stalls" => {
            stream.delta("and then").await?;
            stream.hung_up().await?;
        }
        "garbage" => stream.raw(vec![0xff, 0xfe, b'\n', 0, b'\n', b'\n']).await?,
        "bad-json" => stream.raw("event: delta\ndata: {\"text\": nope}\n\n").await?,
        "hangs-up" => stream.delta("half an ans").await?,
        "endless" => {
            // Up to a GiB, unless the node stops reading.
            let piece = "x".repeat(32 << 10);
            for _ in 0..(1 << 15) {
                stream.delta(&piece).await?;
            }
            stream.done().await?;
        }
        "one-line" => {
            stream.raw("event: delta\ndata: {\"text\":\"").await?;
            for _ in 0..(1 << 15) {
                stream.raw("x".repeat(32 << 10)).await?;
            }
        }
        "own-error" => {
            let error = json!({"code": "model_on_fire", "message": "please call somebody"});
            stream.event("error", &error).await?;
        }
        "twice-done" => {
            stream.delta("once").await?;
            stream.done().await?;
            stream.delta("late").await?;
            stream.event("error", &json!({"code": "late", "message": "late"})).await?;
            stream.done().await?;
        }
        _ => {
            stream.delta("you said ").await?;
            stream.delta(text).await?;
            stream.done().await?;
        }
    }
    Ok(())
}

/// Covers: RX-15, SR-A10, SR-G7, ST-12, S-48.
#[tokio::test]
async fn faulty_agent_ends_only_its_own_turn() {
    let mut bench = Fixture::set_up().await;
    for (agent, status, code) in BAD_AGENTS.into_iter().chain([("nowhere", "failed", "agent_unavailable")]) {
        let mut client = bench.client().await;
        let session = format!("with-{agent}");
        let open = json!({"type": "session_open", "session_id": session, "agents": [agent, "good"]});
        let opened = client.ask("o", open).await.expect("an answer");
        assert_eq!(opened["type"], "session_opened", "{agent}: {opened}");
        let accepted = client.ask("r", invoke(&session, agent, "go")).await.expect("an answer");
        assert_eq!(accepted["type"], "turn_accepted", "{agent}: {accepted}");
        let run = accepted["run_id"].clone();
        bench.others_are_served().await;
        let mut errors = Vec::new();
        let mut dones = Vec::new();
        while dones.is_empty() {
            let message = client.next().await.unwrap_or_else(|gone| panic!("{agent}: {gone:?}"));
            if message["run_id"] == run && message["type"] == "error" {
                errors.push(message);
            } else if message["run_id"] == run && message["type"] == "done" {
                dones.push(message);
            }
        }
        assert_eq!(dones[0]["status"], status, "{agent}: {} {errors:?}", dones[0]);
        if status == "failed" {
            assert_eq!(errors.len(), 1, "{agent}: one error before its done: {errors:?}");
            assert_eq!((&errors[0]["code"], &errors[0]["terminal"]), (&json!(code), &json!(true)), "{agent}");
        } else {
            assert!(errors.is_empty(), "{agent}: {errors:?}");
        }
        // The session stays usable and receives no more events of the run.
        let (text, done) = client.turn(&session, "good", "r2", "hi").await.expect("served");
        assert_eq!(text, "you said hi", "{agent}: {done}");
    }
    bench.others_are_served().await;
}

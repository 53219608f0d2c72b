//! A gateway for tool runners that says what a test wants said, and the runner's binary against it or against a real one.
use super::PATIENCE;
use super::node::binary;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};
use turnway_core::id::EventId;
use turnway_core::time::Millis;

/// A gateway that waits for runners.
#[derive(Debug)]
pub struct Asking(TcpListener);

/// One runner's connection, after its `hello`.
#[derive(Debug)]
pub struct Serving {
    socket: WebSocketStream<TcpStream>,
    /// What it said first.
    pub hello: Value,
    /// Whether its questions are answered.
    pub answers: bool,
}

/// A running `turnway tool-runner`. Killed when dropped.
#[derive(Debug)]
pub struct Runner(Child);

// === impl Asking ===

impl Asking {
    /// On a free port.
    pub async fn listen() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.expect("a port"))
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("its address")
    }

    /// The next connection, before it is welcomed.
    pub async fn greeted(&self) -> Serving {
        let (stream, _) =
            timeout(PATIENCE, self.0.accept()).await.expect("it comes in time").expect("a connection");
        let socket = accept_hdr_async(stream, agree).await.expect("a WebSocket");
        let mut serving = Serving { socket, hello: Value::Null, answers: true };
        serving.hello = serving.next().await.expect("hello");
        serving
    }

    /// The next connection, welcomed.
    pub async fn accept(&self) -> Serving {
        let mut serving = self.greeted().await;
        serving.say(json!({"type": "welcome", "heartbeat_ms": 25_000})).await;
        serving
    }
}

// === impl Serving ===

impl Serving {
    /// Says this.
    pub async fn say(&mut self, mut message: Value) {
        message["ts"] = now().into();
        self.socket.send(Message::text(message.to_string())).await.expect("it is taken");
    }

    /// Asks for a tool; the action's name. The session is `s1`, and there is a minute's time.
    pub async fn ask(&mut self, tool: &str, args: Value) -> String {
        let id = new_id();
        self.execute(&id, "s1", tool, args, 60_000).await;
        id
    }

    /// Asks for a program to be run; the action's name.
    pub async fn spawn(&mut self, program: &str, args: Value) -> String {
        self.ask("process.spawn", json!({"program": program, "args": args})).await
    }

    /// Asks for this.
    pub async fn execute(&mut self, id: &str, session: &str, tool: &str, args: Value, wait_ms: u64) {
        self.say(
            json!({"type": "execute", "action_id": id, "run_id": "s1.r", "session_id": session, "tool": tool,
            "args": args, "deadline_ts": now() + wait_ms}),
        )
        .await;
    }

    /// The next message that is no question, or nothing once it is gone. Questions are answered.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            let frame = timeout(PATIENCE, self.socket.next()).await.expect("it says something");
            match frame {
                Some(Ok(Message::Text(text))) => {
                    let message: Value = serde_json::from_str(&text).expect("a runner speaks JSON");
                    if message["type"] != "ping" {
                        return Some(message);
                    }
                    if self.answers {
                        self.say(json!({"type": "pong"})).await;
                    }
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    /// Reads on to the first message of this type about this action.
    pub async fn until(&mut self, kind: &str, id: &str) -> Value {
        loop {
            let message = self.next().await.expect("it goes on");
            if message["type"] == kind && message["action_id"] == id {
                return message;
            }
        }
    }

    /// What came of an action.
    pub async fn result(&mut self, id: &str) -> Value {
        self.until("result", id).await
    }

    /// Closes with this code.
    pub async fn close(mut self, code: u16) {
        self.answers = false;
        let frame = CloseFrame { code: code.into(), reason: "".into() };
        self.socket.close(Some(frame)).await.expect("closed");
        while self.next().await.is_some() {}
    }
}

// === impl Runner ===

impl Runner {
    /// Starts one that may run what a list says, with its state under `dir`, and does not wait for it.
    pub fn launch(dir: &Path, to: SocketAddr, list: &str, args: &[&str]) -> Self {
        Self::launch_with(dir, to, list, args, &[])
    }

    /// Starts one with these variables in its environment.
    pub fn launch_with(dir: &Path, to: SocketAddr, list: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::launch_by(&[], dir, to, list, args, env)
    }

    /// The same, with these words before the binary and these variables.
    pub fn launch_by(
        by: &[&str],
        dir: &Path,
        to: SocketAddr,
        list: &str,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        let allow = dir.join("allow.toml");
        std::fs::write(&allow, list).expect("a list");
        let log = std::fs::File::options().create(true).append(true).open(dir.join("runner.log"));
        let mut words = by.iter().map(PathBuf::from).chain([binary()]);
        let child = Command::new(words.next().expect("the binary at least"))
            .args(words)
            .envs(env.iter().copied())
            .args(["tool-runner", "--runner-id", "r1", "--state", "state", "--allow"])
            .arg(&allow)
            .args(["--url", &format!("ws://{to}")])
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("a log file"))
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        Self(child)
    }

    /// Waits until it says that it is ready.
    pub async fn ready(&mut self) {
        let out = self.0.stdout.as_mut().expect("piped");
        let mut line = String::new();
        let read = timeout(PATIENCE, BufReader::new(out).read_line(&mut line)).await;
        read.expect("it is ready in time").expect("a line");
        assert_eq!(line, "turnway tool-runner ready runner=r1\n");
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.0.id().expect("it runs")
    }

    /// `kill -9`; returns once it is gone.
    pub async fn kill(mut self) {
        self.0.kill().await.expect("it was running");
    }

    /// Sends `SIGTERM`.
    pub async fn terminate(&self) {
        let pid = self.0.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().await.expect("kill runs");
        assert!(sent.success(), "it was running");
    }

    /// Waits until it has left by itself; its exit code.
    pub async fn exit(mut self) -> Option<i32> {
        let left = timeout(PATIENCE, self.0.wait()).await.expect("it leaves in time");
        left.expect("its exit is known").code()
    }
}

#[expect(clippy::result_large_err, reason = "as the library asks for it")]
fn agree(_: &Request, mut answer: Response) -> Result<Response, ErrorResponse> {
    answer.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("turnway.v1"));
    Ok(answer)
}

/// The time of the gateway.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(now.as_millis()).expect("before the end of time")
}

/// A new action's name.
pub fn new_id() -> String {
    let mut chance = [0; 16];
    aws_lc_rs::rand::fill(&mut chance).expect("chance");
    EventId::new(Millis(now()), u128::from_be_bytes(chance)).to_string()
}

/// How many processes of this action there are.
pub fn processes_of(id: &str) -> usize {
    let mark = format!("TURNWAY_ACTION_ID={id}").into_bytes();
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let environments = entries.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    environments.filter(|all| all.split(|byte| *byte == 0).any(|variable| variable == mark)).count()
}

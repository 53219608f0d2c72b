//! A scripted gateway for tool runners, and the runner's binary, which connects to this gateway or to a real one.
use super::PATIENCE;
use super::documented;
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

/// A gateway that waits for tool runners.
#[derive(Debug)]
pub struct ScriptedGateway(TcpListener);

/// One runner's connection, after its `hello`.
#[derive(Debug)]
pub struct RunnerSession {
    socket: WebSocketStream<TcpStream>,
    /// The runner's `hello`.
    pub hello: Value,
    /// True if the runner's pings are answered.
    pub answers: bool,
}

/// A running `turnway tool-runner`. Killed when dropped.
#[derive(Debug)]
pub struct Runner(Child);

// === impl ScriptedGateway ===

impl ScriptedGateway {
    /// Listens on a free port.
    pub async fn listen() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.expect("a port"))
    }

    /// Returns the gateway's address.
    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("its address")
    }

    /// Accepts the next connection and reads its `hello`, without an answer.
    pub async fn accept_silently(&self) -> RunnerSession {
        let (stream, _) = timeout(PATIENCE, self.0.accept()).await.expect("it comes in time").expect("a connection");
        let socket = accept_hdr_async(stream, agree).await.expect("a WebSocket");
        let mut serving = RunnerSession { socket, hello: Value::Null, answers: true };
        serving.hello = serving.next().await.expect("hello");
        serving
    }

    /// Accepts the next connection and sends `welcome`.
    pub async fn accept(&self) -> RunnerSession {
        let mut serving = self.accept_silently().await;
        serving.say(json!({"type": "welcome", "heartbeat_ms": 25_000})).await;
        serving
    }
}

// === impl RunnerSession ===

impl RunnerSession {
    /// Sends a message.
    pub async fn say(&mut self, mut message: Value) {
        message["ts"] = now().into();
        self.socket.send(Message::text(message.to_string())).await.expect("it is taken");
    }

    /// Requests a tool in session `s1` with one minute of time; returns the action's id.
    pub async fn ask(&mut self, tool: &str, args: Value) -> String {
        let id = new_id();
        self.execute(&id, "s1", tool, args, 60_000).await;
        id
    }

    /// Requests a program to be run; returns the action's id.
    pub async fn spawn(&mut self, program: &str, args: Value) -> String {
        self.ask("process.spawn", json!({"program": program, "args": args})).await
    }

    /// Requests an action.
    pub async fn execute(&mut self, id: &str, session: &str, tool: &str, args: Value, wait_ms: u64) {
        self.say(json!({"type": "execute", "action_id": id, "run_id": "s1.r", "session_id": session, "tool": tool,
            "args": args, "deadline_ts": now() + wait_ms}))
            .await;
    }

    /// Returns the next message that is no ping, or `None` once the connection is closed. Pings are answered.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            let frame = timeout(PATIENCE, self.socket.next()).await.expect("it says something");
            match frame {
                Some(Ok(Message::Text(text))) => {
                    let message: Value = serde_json::from_str(&text).expect("a runner speaks JSON");
                    documented::assert_accepted_by_node(&message);
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

    /// Reads to the first message of this type about this action.
    pub async fn until(&mut self, kind: &str, id: &str) -> Value {
        loop {
            let message = self.next().await.expect("it goes on");
            if message["type"] == kind && message["action_id"] == id {
                return message;
            }
        }
    }

    /// Returns the result of an action.
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
    /// Starts a runner with this allow list and its state under `dir`, without waiting for it.
    pub fn launch(dir: &Path, to: SocketAddr, list: &str, args: &[&str]) -> Self {
        Self::launch_with(dir, to, list, args, &[])
    }

    /// Starts a runner with these variables in its environment.
    pub fn launch_with(dir: &Path, to: SocketAddr, list: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::launch_by(&[], dir, to, list, args, env)
    }

    /// The same, with the words of `by` before the binary.
    pub fn launch_by(by: &[&str], dir: &Path, to: SocketAddr, list: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
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

    /// Waits for the runner's ready line.
    pub async fn ready(&mut self) {
        let out = self.0.stdout.as_mut().expect("piped");
        let mut line = String::new();
        let read = timeout(PATIENCE, BufReader::new(out).read_line(&mut line)).await;
        read.expect("it is ready in time").expect("a line");
        assert_eq!(line, "turnway tool-runner ready runner=r1\n");
    }

    /// Returns the id of the runner's process.
    pub fn pid(&self) -> u32 {
        self.0.id().expect("it runs")
    }

    /// Sends `SIGKILL` and waits for the end.
    pub async fn kill(mut self) {
        self.0.kill().await.expect("it was running");
    }

    /// Sends `SIGTERM` to the runner.
    pub async fn terminate(&self) {
        let pid = self.0.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().await.expect("kill runs");
        assert!(sent.success(), "it was running");
    }

    /// Waits until the runner has exited by itself; returns the exit code.
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

/// Returns the gateway's time in milliseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(now.as_millis()).expect("before the end of time")
}

/// Creates an action id.
pub fn new_id() -> String {
    let mut chance = [0; 16];
    aws_lc_rs::rand::fill(&mut chance).expect("chance");
    EventId::new(Millis(now()), u128::from_be_bytes(chance)).to_string()
}

/// Counts the processes of an action.
pub fn processes_of(id: &str) -> usize {
    let mark = format!("TURNWAY_ACTION_ID={id}").into_bytes();
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let environments = entries.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    environments.filter(|all| all.split(|byte| *byte == 0).any(|variable| variable == mark)).count()
}

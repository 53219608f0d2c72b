//! The load generator's binary `turnway-bench`, which is built beside the node's.
use super::PATIENCE;
use super::command::Ended;
use super::node::binary;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Runs loads against one server.
#[derive(Debug)]
pub struct Bench {
    dir: PathBuf,
    url: String,
    /// Certificate that the load generator trusts, if the system does not.
    trust: Option<PathBuf>,
    pid: Option<u32>,
    patience: Duration,
}

/// A server built into the load generator. Killed when dropped.
#[derive(Debug)]
pub struct Served {
    child: Child,
    pub address: SocketAddr,
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let bench = binary().with_file_name("turnway-bench");
    assert!(bench.exists(), "no {}: build it with `cargo build --workspace --bins`", bench.display());
    let mut command = Command::new(bench);
    command.args(args).current_dir(dir).stdin(Stdio::null()).kill_on_drop(true);
    command
}

// === impl Bench ===

impl Bench {
    /// Creates a load generator that writes its files into this directory.
    pub fn new(dir: &Path, server: SocketAddr) -> Self {
        let dir = dir.to_owned();
        let url = format!("ws://{server}");
        Self { dir, url, trust: None, pid: None, patience: PATIENCE }
    }

    /// The same over QUIC, to a server with this certificate.
    pub fn by_quic(dir: &Path, server: SocketAddr, trust: &Path) -> Self {
        let url = format!("quic://{server}");
        Self { url, trust: Some(trust.to_owned()), ..Self::new(dir, server) }
    }

    /// Passes the server's process id to the loads.
    pub fn watching(self, pid: u32) -> Self {
        Self { pid: Some(pid), ..self }
    }

    /// Sets the time limit of a load.
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Runs a load that must succeed; returns its figures.
    pub async fn figures(&self, args: &[&str]) -> Value {
        let pid = self.pid.map(|pid| pid.to_string());
        let watched: Vec<&str> = pid.iter().flat_map(|pid| ["--server-pid", pid.as_str()]).collect();
        self.local(&[args, &["--url", &self.url], &watched[..]].concat()).await
    }

    /// The same without a server.
    pub async fn local(&self, args: &[&str]) -> Value {
        let file = self.dir.join("figures.json");
        let ended = self.end(&[args, &["--json", &file.display().to_string()]].concat()).await;
        assert_eq!(ended.code, Some(0), "{args:?}: {ended:?}");
        let text = std::fs::read_to_string(&file).expect("figures");
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
    }

    /// Runs a load with any result; adds the server's URL if none is given.
    pub async fn run(&self, args: &[&str]) -> Ended {
        let is_load = ["turns", "idle", "first-delta"].contains(&args[0]) && !args.contains(&"--url");
        let url: &[&str] = if is_load { &["--url", &self.url] } else { &[] };
        self.end(&[args, url].concat()).await
    }

    /// Starts a load; the handle returns its result.
    pub fn begin(&self, args: &[&str]) -> tokio::task::JoinHandle<Ended> {
        let dir = self.dir.clone();
        let url = self.url.clone();
        let trust = self.trust.clone();
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        tokio::spawn(async move {
            let args: Vec<&str> = args.iter().map(String::as_str).chain(["--url", &url]).collect();
            let bench = Self { dir, url: url.clone(), trust, pid: None, patience: PATIENCE };
            bench.end(&args).await
        })
    }

    async fn end(&self, args: &[&str]) -> Ended {
        let mut command = command(&self.dir, args);
        if let Some(trust) = &self.trust {
            command.env("SSL_CERT_FILE", trust);
        }
        let output = timeout(self.patience, command.output());
        let output = output.await.expect("it ends by itself").expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

// === impl Served ===

impl Served {
    /// Starts the server on a free port.
    pub async fn start(dir: &Path, args: &[&str]) -> Self {
        let mut child = command(dir, args).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = timeout(PATIENCE, lines.next_line()).await.expect("a line in time").expect("stdout");
        let address = ready.as_deref().and_then(|line| line.strip_prefix("ready ")?.parse().ok());
        Self { child, address: address.unwrap_or_else(|| panic!("no address: {ready:?}")) }
    }

    /// Returns the id of the server's process.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }
}

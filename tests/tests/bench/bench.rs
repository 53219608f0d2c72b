//! The load generator's binary, and what its files have to be.
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{interval, timeout};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::command::Ended;
use turnway_tests::real::node::binary;

/// Runs loads against one server.
#[derive(Debug)]
pub(crate) struct Bench {
    dir: PathBuf,
    url: String,
    pid: Option<u32>,
}

/// A server of the load generator's own. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Served {
    child: Child,
    pub(crate) address: SocketAddr,
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
    pub(crate) fn new(dir: &Path, server: SocketAddr) -> Self {
        Self { dir: dir.to_owned(), url: format!("ws://{server}"), pid: None }
    }

    /// Loads are told the server's process.
    pub(crate) fn watching(self, pid: u32) -> Self {
        Self { pid: Some(pid), ..self }
    }

    /// A load that goes well; its figures.
    pub(crate) async fn figures(&self, args: &[&str]) -> Value {
        let pid = self.pid.map(|pid| pid.to_string());
        let watched: Vec<&str> = pid.iter().flat_map(|pid| ["--server-pid", pid.as_str()]).collect();
        self.local(&[args, &["--url", &self.url], &watched[..]].concat()).await
    }

    /// The same without a server.
    pub(crate) async fn local(&self, args: &[&str]) -> Value {
        let file = self.dir.join("figures.json");
        let ended = self.end(&[args, &["--json", &file.display().to_string()]].concat()).await;
        assert_eq!(ended.code, Some(0), "{args:?}: {ended:?}");
        let text = std::fs::read_to_string(&file).expect("figures");
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
    }

    /// However it ends; the server's URL where none is given.
    pub(crate) async fn run(&self, args: &[&str]) -> Ended {
        let is_load = ["turns", "idle", "first-delta"].contains(&args[0]) && !args.contains(&"--url");
        let url: &[&str] = if is_load { &["--url", &self.url] } else { &[] };
        self.end(&[args, url].concat()).await
    }

    /// Begins at once; wait for its end.
    pub(crate) fn begin(&self, args: &[&str]) -> tokio::task::JoinHandle<Ended> {
        let (dir, url) = (self.dir.clone(), self.url.clone());
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        tokio::spawn(async move {
            let args: Vec<&str> = args.iter().map(String::as_str).chain(["--url", &url]).collect();
            let bench = Self { dir, url: url.clone(), pid: None };
            bench.end(&args).await
        })
    }

    async fn end(&self, args: &[&str]) -> Ended {
        let output = timeout(PATIENCE, command(&self.dir, args).output());
        let output = output.await.expect("it ends by itself").expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

// === impl Served ===

impl Served {
    /// Starts it on a free port.
    pub(crate) async fn start(dir: &Path, args: &[&str]) -> Self {
        let mut child = command(dir, args).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = timeout(PATIENCE, lines.next_line()).await.expect("a line in time").expect("stdout");
        let address = ready.as_deref().and_then(|line| line.strip_prefix("ready ")?.parse().ok());
        Self { child, address: address.unwrap_or_else(|| panic!("no address: {ready:?}")) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }
}

/// A sample of a node's metrics, once it is at least so much: a node tells them now and then.
pub(crate) async fn metric(admin: SocketAddr, name: &str, least: u64) -> u64 {
    let read = async {
        let mut now_and_then = interval(Duration::from_millis(50));
        loop {
            now_and_then.tick().await;
            let text = metrics(admin).await;
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            if let Some(value) = value.filter(|value| *value >= least) {
                return value;
            }
        }
    };
    timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("{name} did not reach {least}"))
}

async fn metrics(admin: SocketAddr) -> String {
    let mut stream = TcpStream::connect(admin).await.expect("the operator's listener");
    let ask = format!("GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.expect("it listens");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("it answers");
    text
}

/// Every key of an object and of the objects in it, but for those that are data: machine-made names.
pub(crate) fn keys(value: &Value) -> Vec<String> {
    let Some(object) = value.as_object() else { return Vec::new() };
    let inner = object.values().flat_map(|value| match value {
        Value::Array(all) => all.first().map(keys).unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => keys(value),
    });
    object.keys().cloned().chain(inner).collect()
}

/// Fails unless this is an SVG whose tags and quotes close, with titles and curves in it.
pub(crate) fn well_formed(svg: &str) {
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""), "{svg}");
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag ends");
        assert!(!text.contains('>') && tag.matches('"').count() % 2 == 0, "<{tag}>{text}");
        let name = tag.split_whitespace().next().expect("a name").trim_end_matches('/');
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "an end without a beginning"),
            None if !tag.ends_with('/') => open.push(name),
            None => {}
        }
    }
    assert!(open.is_empty(), "{open:?} did not end");
    for part in ["<polyline points=\"", ">percentile<", ">seconds<", ">latency<"] {
        assert!(svg.contains(part), "no {part}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

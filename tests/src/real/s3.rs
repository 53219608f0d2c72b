//! An S3-compatible server for the bytes of files: `tests/python/s3_server.py`, which checks signatures with botocore's
//! signer, and makes faults.
use super::python::{Running, script};
use super::web::Web;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The server's only access key.
const KEY_ID: &str = "TESTKEYID";
/// The secret of the only access key that the server knows.
pub const SECRET: &str = "test/secret+key";
/// The only session token that the server takes; none is needed.
pub const TOKEN: &str = "test-session-token";

/// A running server with one bucket. Killed when dropped.
#[derive(Debug)]
pub struct S3Server {
    /// `None` while the server is stopped.
    running: Option<Running>,
    address: SocketAddr,
    dir: PathBuf,
}

impl S3Server {
    /// Starts a server with its objects below a directory.
    pub async fn start(dir: &Path) -> Self {
        let (running, address) = Self::run(dir, 0).await;
        Self { running: Some(running), address, dir: dir.to_owned() }
    }

    async fn run(dir: &Path, port: u16) -> (Running, SocketAddr) {
        let objects = dir.join("objects");
        let mut running = Running::start(script("s3_server.py", &[&objects.to_string_lossy(), &port.to_string()]));
        let port = running.line().await.parse().expect("a port");
        (running, SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// Stops the server; its objects stay.
    pub fn stop(&mut self) {
        self.running = None;
    }

    /// Starts the server again, on the same port.
    pub async fn start_again(&mut self) {
        let (running, address) = Self::run(&self.dir, self.address.port()).await;
        assert_eq!(address, self.address);
        self.running = Some(running);
    }

    /// Returns the settings of a node whose files lie here, with the credentials of a file.
    pub fn settings(&self) -> String {
        let file = self.credentials_file();
        if !file.exists() {
            self.write_credentials(SECRET);
        }
        format!("{}credentials = {:?}\n", self.settings_without_credentials(), file.display())
    }

    /// Returns the same without credentials.
    pub fn settings_without_credentials(&self) -> String {
        format!("[blobs]\nurl = \"http://{}/files/fleet/a\"\nregion = \"test-region-1\"\n", self.address)
    }

    /// Writes the file of the credentials, with this secret.
    pub fn write_credentials(&self, secret: &str) {
        let text = format!("AWS_ACCESS_KEY_ID={KEY_ID}\nAWS_SECRET_ACCESS_KEY={secret}\n");
        std::fs::write(self.credentials_file(), text).expect("a file");
    }

    /// Returns environment variables with temporary credentials.
    pub fn environment() -> [(&'static str, &'static str); 3] {
        [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_SESSION_TOKEN", TOKEN)]
    }

    fn credentials_file(&self) -> PathBuf {
        self.dir.join("credentials")
    }

    async fn control(&self, path: &str, body: &Value) -> Value {
        let reply = Web::new(self.address, None).ask("POST", path, &[], &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    }

    /// Returns what the server has, and how often it was asked: `objects`, `requests`, `refused` and `begun` uploads.
    pub async fn state(&self) -> Value {
        self.control("/-/state", &Value::Null).await
    }

    /// Returns the keys of all objects.
    pub async fn objects(&self) -> Vec<String> {
        serde_json::from_value(self.state().await["objects"].take()).expect("keys")
    }

    /// Makes the next requests of an operation (`put`, `get`, `delete`, `list`) go wrong: `drop` closes the connection before
    /// an answer, `cut` in the middle of the bytes, and `hold` keeps an upload's answer back.
    pub async fn fail(&self, operation: &str, kind: &str, count: usize) {
        self.control("/-/fault", &json!({"operation": operation, "kind": kind, "count": count})).await;
    }

    /// Makes the next request of an operation be answered with this status and code.
    pub async fn refuse(&self, operation: &str, status: u16, code: &str) {
        let fault = json!({"operation": operation, "kind": "status", "status": status, "code": code});
        self.control("/-/fault", &fault).await;
    }

    /// Makes pages of lists have at most this many objects.
    pub async fn set_page(&self, objects: usize) {
        self.control("/-/page", &json!(objects)).await;
    }

    /// Sends the answers that were held back.
    pub async fn release(&self) {
        self.control("/-/release", &Value::Null).await;
    }
}

//! Nodes with key authentication, and API keys for them.
use super::command::run;
use super::node::Node;
use super::wire::{ConnectionEnd, WebSocketClient};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// An API key, as its creator received it.
#[derive(Clone, Debug)]
pub struct Key {
    /// The secret key.
    pub text: String,
    /// Public id of the key.
    pub id: String,
}

/// Writes the pepper file, the secret that keys are hashed with.
pub fn pepper(dir: &Path) -> PathBuf {
    let path = dir.join("pepper");
    std::fs::write(&path, "a pepper for tests, 32 bytes or more\n").expect("a file");
    path
}

/// Starts a node with key authentication.
pub async fn guarded(dir: &TempDir, args: &[&str]) -> Node {
    let pepper = pepper(dir.path());
    let flags = ["--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    Node::start(dir.path(), &[&flags[..], args].concat()).await
}

impl Key {
    /// Creates a key with these arguments to `turnway key new`.
    pub async fn make(node: &Node, args: &[&str]) -> Self {
        let admin = format!("http://{}", node.admin);
        let dir = std::env::temp_dir();
        let made = run(&dir, &[&["key", "new", "--json", "--admin", &admin], args].concat(), &[]).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        let text = |made: &Value, name: &str| made[name].as_str().map(str::to_owned);
        let made = made.json();
        let key = text(&made, "key");
        let id = text(&made, "key_id");
        Self { text: key.expect("the key"), id: id.expect("its name") }
    }

    /// Revokes the key through this node.
    pub async fn revoke(&self, node: &Node) {
        let admin = format!("http://{}", node.admin);
        let revoked = run(&std::env::temp_dir(), &["key", "revoke", "--admin", &admin, &self.id], &[]).await;
        assert_eq!(revoked.code, Some(0), "{revoked:?}");
    }

    /// Connects with the key, as this user or as the key's own, and reads `welcome`.
    pub async fn hello(&self, to: SocketAddr, user: Option<&str>) -> Result<WebSocketClient, ConnectionEnd> {
        self.resume(to, user, vec![]).await
    }

    /// The same, with these `subscribe` bodies to resume.
    pub async fn resume(
        &self,
        to: SocketAddr,
        user: Option<&str>,
        resume: Vec<Value>,
    ) -> Result<WebSocketClient, ConnectionEnd> {
        let mut hello = json!({"type": "hello", "api_key": self.text, "resume": resume});
        if let Some(user) = user {
            hello["user_id"] = user.into();
        }
        WebSocketClient::open(to).await?.greet_with(hello).await
    }
}

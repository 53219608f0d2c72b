//! Tests a client that uses `ws` for Node.js, the library on which most JavaScript clients are built.
//!
//! Covers: G-22, MP-A0.
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;
use tokio::time::timeout;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::Node;

/// Returns the directory of `NODE_PATH`, else the one where `./test` unpacks Debian's package.
fn library() -> PathBuf {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/node-ws/usr/share/nodejs");
    let library = std::env::var_os("NODE_PATH").map_or(unpacked, PathBuf::from);
    assert!(library.join("ws").exists(), "no ws in {}: `./test` brings it", library.display());
    library
}

/// Covers: G-22, MP-A0.
#[tokio::test]
async fn ws_client_completes_a_turn_and_closes_cleanly() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    let url = format!("ws://{}/v1/connect", node.http);
    let mut client = Command::new("node");
    client
        .args(["client_ws.js", &url, "echo", "héllo 語"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("javascript"))
        .env("NODE_PATH", library())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(PATIENCE, client.output()).await.expect("it ends").expect("node runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{wrong}");
    assert_eq!(said, "héllo 語");
}

//! Files and crashes: what was answered is there, and what was not is nothing.
use super::{await_that, files_below, made, open_session};
use tempfile::tempdir;
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;

/// Covers: PR-24.
#[tokio::test]
async fn answered_upload_survives_a_killed_node() {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    let bytes = random_bytes(1, 5 * 1024 * 1024);
    let path = ann.must_upload("s1", "image/png", &bytes).await;
    node.kill_and_restart().await;
    let ann = Web::new(node.http, Some("ann"));
    let file = ann.download(&path).await;
    assert!(file.status == 200 && file.bytes == bytes, "{}", file.status);
}

/// Covers: PR-24.
#[tokio::test]
async fn upload_broken_off_by_a_killed_node_is_no_blob() {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    let bytes = random_bytes(1, 2 * 1024 * 1024);
    let upload = ann.begin_upload("s1", Some(bytes.len())).await;
    upload.send(bytes.slice(..1024 * 1024)).await;
    await_that("a file begins", async || !files_below(&dir.path().join("data/blobs")).is_empty()).await;
    node.kill_and_restart().await;
    assert!(upload.finish().await.is_none(), "nobody answers");
    let ann = Web::new(node.http, Some("ann"));
    assert_eq!(ann.json("/v1/sessions/s1/blobs").await["blobs"], serde_json::json!([]));
    let path = ann.must_upload("s1", "image/png", &bytes).await;
    assert!(ann.download(&path).await.bytes == bytes);
}

/// Covers: PR-24.
#[tokio::test]
async fn upload_at_a_killed_node_is_repeated_at_another() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(&made(dir.path().join("redis")), &[]);
    let args = ["--demo", "--durability", "mem"];
    let mut first = Node::start_on(&redis.url(), &made(dir.path().join("a")), &args).await;
    let second = Node::start_on(&redis.url(), &made(dir.path().join("b")), &args).await;
    let ann = Web::new(first.http, Some("ann"));
    open_session(&ann, "s1").await;
    let bytes = random_bytes(1, 2 * 1024 * 1024);
    let upload = ann.begin_upload("s1", Some(bytes.len())).await;
    upload.send(bytes.slice(..1024 * 1024)).await;
    await_that("a part is stored", async || !redis.command::<Vec<String>>(&["KEYS", "ix:*:blob:*"]).is_empty()).await;
    first.kill().await;
    let ann = Web::new(second.http, Some("ann"));
    let path = ann.must_upload("s1", "image/png", &bytes).await;
    assert!(ann.download(&path).await.bytes == bytes);
    let listed = ann.json("/v1/sessions/s1/blobs").await;
    assert_eq!(listed["blobs"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed["bytes"], 2 * bytes.len(), "the room of the lost upload is kept for a while");
}

//! The room of files: limits of size and type, quotas, and closed sessions.
use super::{MIB, await_that, files_below, made, open_session};
use bytes::Bytes;
use serde_json::json;
use tempfile::{TempDir, tempdir};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

/// Starts a node with these settings on a store.
async fn node_with(dir: &TempDir, store: &str, settings: &str) -> Node {
    let file = dir.path().join("turnway.toml");
    std::fs::write(&file, format!("demo = true\n{settings}")).expect("a file");
    let args = ["--config", &*file.to_string_lossy(), "--durability", "mem"];
    Node::start_on(store, dir.path(), &args).await
}

/// Covers: PR-24.
#[tokio::test]
async fn file_over_the_limit_or_of_another_type_is_refused() {
    let dir = tempdir().expect("a directory");
    let store = format!("embedded:{}", dir.path().join("data").display());
    let node = node_with(&dir, &store, "[blobs]\nmax = \"1MiB\"\ntypes = \"image/*|text/plain\"\n").await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    ann.must_upload("s1", "image/png", &random_bytes(1, MIB)).await;
    ann.upload("s1", "image/png", &random_bytes(2, MIB + 1)).await.must_be(413, "too_large");
    // Without a length the node learns of it in the middle.
    let upload = ann.begin_upload("s1", None).await;
    upload.send(random_bytes(3, MIB)).await;
    upload.send(random_bytes(4, 1)).await;
    upload.finish().await.expect("an answer").must_be(413, "too_large");
    for wrong in ["text/html", "application/octet-stream"] {
        ann.upload("s1", wrong, &Bytes::from_static(b"<p>")).await.must_be(415, "invalid_message");
    }
    for wrong in ["", "png", "image/*"] {
        ann.upload("s1", wrong, &Bytes::from_static(b"png")).await.must_be(400, "invalid_message");
    }
    let listed = ann.json("/v1/sessions/s1/blobs").await;
    assert_eq!((listed["blobs"].as_array().map(Vec::len), &listed["bytes"]), (Some(1), &json!(MIB)), "{listed}");
    assert_eq!(files_below(&dir.path().join("data/blobs")).len(), 1);
}

/// Fills a user's quota with files, and frees it again.
async fn check_quota(dir: &TempDir, store: &str) {
    let node = node_with(dir, store, "[quota]\nuser = \"3MiB\"\n").await;
    let ann = Web::new(node.http, Some("ann"));
    let bob = Web::new(node.http, Some("bob"));
    open_session(&ann, "s1").await;
    open_session(&ann, "s2").await;
    open_session(&bob, "b1").await;
    let kept = ann.must_upload("s1", "image/png", &random_bytes(1, 2 * MIB)).await;
    // The room of an upload under way counts, also in another session of the user.
    let upload = ann.begin_upload("s2", Some(MIB / 2)).await;
    upload.send(random_bytes(2, 10)).await;
    await_that("the room is kept", async || ann.json("/v1/sessions/s2/blobs").await["bytes"] == MIB / 2).await;
    let refused = ann.upload("s1", "image/png", &random_bytes(3, MIB / 2)).await;
    refused.must_be(429, "quota_exceeded");
    assert!(refused.json()["retry_after_ms"].is_u64(), "{}", refused.text);
    bob.must_upload("b1", "image/png", &random_bytes(4, MIB)).await;
    // A client that goes away gives its room back.
    upload.break_off();
    await_that("the room is back", async || ann.json("/v1/sessions/s2/blobs").await["bytes"] == 0).await;
    ann.must_upload("s1", "image/png", &random_bytes(3, MIB / 2)).await;
    ann.upload("s1", "image/png", &random_bytes(5, MIB)).await.must_be(429, "quota_exceeded");
    assert_eq!(ann.ask("DELETE", &kept, &[], "").await.status, 204);
    ann.must_upload("s1", "image/png", &random_bytes(5, MIB)).await;
    let listed = ann.json("/v1/sessions/s1/blobs").await;
    assert_eq!((listed["blobs"].as_array().map(Vec::len), &listed["bytes"]), (Some(2), &json!(MIB / 2 + MIB)));
}

/// Covers: PR-24, S-48.
#[tokio::test]
async fn files_count_in_the_quota_of_their_user_embedded() {
    let dir = tempdir().expect("a directory");
    let store = format!("embedded:{}", dir.path().join("data").display());
    check_quota(&dir, &store).await;
    assert_eq!(files_below(&dir.path().join("data/blobs")).len(), 3, "nothing half there");
}

/// Covers: PR-24, S-48.
#[tokio::test]
async fn files_count_in_the_quota_of_their_user_in_redis() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(&made(dir.path().join("redis")), &[]);
    check_quota(&dir, &redis.url()).await;
    let bodies = redis.command::<Vec<String>>(&["KEYS", "ix:*:blob:*"]);
    let ends = bodies.iter().filter(|body| redis.command::<i64>(&["PEXPIRETIME", body]) != 253_402_300_799_000);
    assert_eq!(bodies.len() - ends.count(), 3, "what is half there ends by itself");
}

/// Covers: PR-24, S-48.
#[tokio::test]
async fn closed_session_takes_no_files_and_keeps_its_own() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    let path = ann.must_upload("s1", "image/png", &random_bytes(1, 100)).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", Vec::new()).await.expect("let in");
    wire.ask("c", json!({"type": "session_close", "session_id": "s1"})).await.expect("an answer");
    ann.upload("s1", "image/png", &random_bytes(2, 100)).await.must_be(409, "session_closed");
    assert_eq!(ann.download(&path).await.bytes, random_bytes(1, 100));
    assert_eq!(ann.ask("DELETE", &path, &[], "").await.status, 204);
}

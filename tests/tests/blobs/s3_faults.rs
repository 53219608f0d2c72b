//! Faults of an S3-compatible store with the bytes of files: refusals, lost connections, a server that is away, and nodes
//! that are killed during an upload.
use super::s3::{node_on, node_with};
use super::{await_that, made, open_session};
use serde_json::json;
use tempfile::tempdir;
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::s3::{S3Server, SECRET};
use turnway_tests::real::web::{Reply, Web};

const MIB: usize = 1024 * 1024;

/// Asserts that the bytes cannot be reached, and that the answer says when to try again.
fn assert_unavailable(reply: &Reply) {
    reply.must_be(503, "store_unavailable");
    assert!(reply.json()["retry_after_ms"].is_u64(), "{}", reply.text);
}

async fn assert_no_files(ann: &Web) {
    await_that("the room is back", async || ann.json("/v1/sessions/s1/blobs").await["bytes"] == 0).await;
    assert_eq!(ann.json("/v1/sessions/s1/blobs").await["blobs"], json!([]));
}

/// Covers: PR-24.
#[tokio::test]
async fn wrong_secret_is_not_logged_and_stores_nothing() {
    let dir = tempdir().expect("a directory");
    let server = S3Server::start(&made(dir.path().join("s3"))).await;
    server.write_credentials("an/entirely/wrong+secret");
    let node = node_with(&server, dir.path()).await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    for count in [10, 3 * MIB] {
        assert_unavailable(&ann.upload("s1", "image/png", &random_bytes(1, count)).await);
    }
    assert_no_files(&ann).await;
    let state = server.state().await;
    assert_eq!((&state["objects"], &state["refused"]), (&json!([]), &json!({"SignatureDoesNotMatch": 2})), "{state}");
    // The file is read again for each request.
    server.write_credentials(SECRET);
    let path = ann.must_upload("s1", "image/png", &random_bytes(2, 1000)).await;
    assert_eq!(ann.download(&path).await.bytes, random_bytes(2, 1000));
    let log = node.log();
    assert!(log.contains("status 403, SignatureDoesNotMatch"), "{log}");
    for hidden in ["wrong+secret", SECRET, "AWS4-HMAC", "Signature="] {
        assert!(!log.contains(hidden), "{hidden} in {log}");
    }
}

/// Covers: PR-24.
#[tokio::test]
async fn absent_s3_server_stops_files_and_no_turns() {
    let dir = tempdir().expect("a directory");
    let mut server = S3Server::start(&made(dir.path().join("s3"))).await;
    let node = node_with(&server, dir.path()).await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    let path = ann.must_upload("s1", "image/png", &random_bytes(1, 1000)).await;
    server.stop();
    for count in [0, 10, 3 * MIB] {
        assert_unavailable(&ann.upload("s1", "image/png", &random_bytes(2, count)).await);
    }
    assert_unavailable(&ann.get(&path).await);
    open_session(&ann, "s2").await;
    server.start_again().await;
    assert_eq!(ann.download(&path).await.bytes, random_bytes(1, 1000));
    ann.must_upload("s1", "image/png", &random_bytes(2, 10)).await;
}

/// Covers: PR-24.
#[tokio::test]
async fn request_without_an_answer_is_repeated_once() {
    let dir = tempdir().expect("a directory");
    let server = S3Server::start(&made(dir.path().join("s3"))).await;
    let node = node_with(&server, dir.path()).await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    let path = ann.must_upload("s1", "image/png", &random_bytes(1, 1000)).await;
    server.fail("get", "drop", 1).await;
    assert_eq!(ann.download(&path).await.bytes, random_bytes(1, 1000));
    assert_eq!(server.state().await["requests"]["get"], 2);
    server.fail("get", "drop", 2).await;
    assert_unavailable(&ann.get(&path).await);
    server.refuse("get", 503, "SlowDown").await;
    assert_unavailable(&ann.get(&path).await);
    assert_eq!(server.state().await["requests"]["get"], 5, "an answer is no reason to repeat");
    // The bytes of an upload have passed, and cannot be sent again.
    for kind in ["drop", "cut"] {
        server.fail("put", kind, 1).await;
        assert_unavailable(&ann.upload("s1", "image/png", &random_bytes(2, MIB)).await);
    }
    server.refuse("put", 507, "InsufficientStorage").await;
    let full = ann.upload("s1", "image/png", &random_bytes(2, MIB)).await;
    assert_unavailable(&full);
    assert!(full.text.contains("no room"), "{}", full.text);
    server.fail("delete", "drop", 1).await;
    assert_eq!(ann.ask("DELETE", &path, &[], "").await.status, 204);
    assert_eq!(server.objects().await, Vec::<String>::new());
    assert_no_files(&ann).await;
}

/// Covers: PR-24.
#[tokio::test]
async fn download_cut_by_s3_ends_with_an_error() {
    let dir = tempdir().expect("a directory");
    let server = S3Server::start(&made(dir.path().join("s3"))).await;
    let node = node_with(&server, dir.path()).await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    let bytes = random_bytes(1, 2 * MIB);
    let path = ann.must_upload("s1", "image/png", &bytes).await;
    server.fail("get", "cut", 1).await;
    assert!(ann.try_download(&path).await.is_none(), "a part is no file");
    assert!(ann.download(&path).await.bytes == bytes);
}

/// Covers: PR-24.
#[tokio::test]
async fn lost_object_is_reported_as_damage() {
    let dir = tempdir().expect("a directory");
    let server = S3Server::start(&made(dir.path().join("s3"))).await;
    let node = node_with(&server, dir.path()).await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    let path = ann.must_upload("s1", "image/png", &random_bytes(1, 1000)).await;
    server.refuse("get", 404, "NoSuchKey").await;
    ann.get(&path).await.must_be(500, "store_damaged");
    server.refuse("get", 404, "NoSuchBucket").await;
    assert_unavailable(&ann.get(&path).await);
}

/// Covers: PR-24.
#[tokio::test]
async fn object_of_a_killed_node_is_swept_by_another() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(&made(dir.path().join("redis")), &[]);
    let server = S3Server::start(&made(dir.path().join("s3"))).await;
    let mut first: Node = node_on(&redis.url(), &made(dir.path().join("a")), &server.settings()).await;
    let second = node_on(&redis.url(), &made(dir.path().join("b")), &server.settings()).await;
    let ann = Web::new(first.http, Some("ann"));
    open_session(&ann, "s1").await;
    // One upload is in its middle, and one is stored without the node knowing of it.
    let half = ann.begin_upload("s1", Some(2 * MIB)).await;
    half.send(random_bytes(1, MIB)).await;
    await_that("an upload begins", async || server.state().await["begun"] == 1).await;
    server.fail("put", "hold", 1).await;
    let whole = ann.begin_upload("s1", Some(MIB)).await;
    whole.send(random_bytes(2, MIB)).await;
    await_that("an object is stored", async || server.objects().await.len() == 1).await;
    first.kill().await;
    assert!(half.finish().await.is_none() && whole.finish().await.is_none(), "nobody answers");
    let ann = Web::new(second.http, Some("ann"));
    assert_eq!(ann.json("/v1/sessions/s1/blobs").await["blobs"], json!([]));
    let path = ann.must_upload("s1", "image/png", &random_bytes(2, MIB)).await;
    assert!(ann.download(&path).await.bytes == random_bytes(2, MIB));
    assert_eq!(server.objects().await.len(), 2, "of the upload in its middle nothing is there");
    server.release().await;
    assert_eq!(ann.ask("DELETE", "/v1/sessions/s1", &[], "").await.status, 204);
    await_that("the objects are swept", async || server.objects().await.is_empty()).await;
}

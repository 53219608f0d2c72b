//! Files on each store: whole round trips, repetition, deletion.
use super::{await_that, files_below, made, open_session};
use bytes::Bytes;
use serde_json::json;
use tempfile::tempdir;
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::web::Web;

/// SHA-256 of `abc` (FIPS 180-4, appendix B.1).
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// Uploads files by one node, and reads, lists and deletes them by another; three stay.
pub(super) async fn check_round_trip(writer: &Web, reader: &Web) {
    open_session(writer, "s1").await;
    let reply = writer.upload("s1", "text/plain; charset=utf-8", &Bytes::from_static(b"abc")).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let blob = reply.json();
    let path = format!("/v1/sessions/s1/blobs/{ABC}");
    assert_eq!((&blob["sha256"], &blob["bytes"], &blob["url"]), (&json!(ABC), &json!(3), &json!(path)));
    assert_eq!(blob["media_type"], "text/plain; charset=utf-8");
    let file = reader.download(&path).await;
    assert_eq!((file.status, &*file.bytes), (200, &b"abc"[..]));
    assert_eq!(file.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(file.headers["content-length"], "3");
    // A page that a user uploads must not become a page of the gateway.
    assert_eq!(file.headers["content-security-policy"], "default-src 'none'; sandbox");
    assert_eq!(file.headers["x-content-type-options"], "nosniff");
    assert_eq!(file.headers["content-disposition"], "attachment");
    // More parts than one, and no whole number of them; and none at all.
    for count in [5 * 1024 * 1024 + 7, 256 * 1024, 0] {
        let bytes = random_bytes(count as u64, count);
        let path = writer.must_upload("s1", "image/png", &bytes).await;
        let file = reader.download(&path).await;
        assert!(file.status == 200 && file.bytes == bytes, "{count} bytes: {} of {}", file.status, file.bytes.len());
    }
    // The same bytes again are the same blob, whatever they are called.
    let again = writer.upload("s1", "image/gif", &Bytes::from_static(b"abc")).await.json();
    assert_eq!(again, blob);
    let listed = reader.json("/v1/sessions/s1/blobs").await;
    assert_eq!((listed["blobs"].as_array().map(Vec::len), &listed["bytes"]), (Some(4), &json!(5_505_034)), "{listed}");
    assert!(listed["blobs"].as_array().is_some_and(|blobs| blobs.contains(&blob)), "{listed}");
    assert_eq!(reader.ask("DELETE", &path, &[], "").await.status, 204);
    writer.get(&path).await.must_be(404, "not_found");
    reader.ask("DELETE", &path, &[], "").await.must_be(404, "not_found");
    assert_eq!(writer.json("/v1/sessions/s1/blobs").await["blobs"].as_array().map(Vec::len), Some(3));
}

/// Covers: PR-24.
#[tokio::test]
async fn file_is_read_as_it_was_uploaded_embedded() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    check_round_trip(&ann, &ann).await;
    assert_eq!(files_below(&dir.path().join("data/blobs")).len(), 3, "files of deleted and repeated blobs are gone");
}

/// Covers: PR-24.
#[tokio::test]
async fn file_is_read_as_it_was_uploaded_in_memory() {
    let dir = tempdir().expect("a directory");
    let node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    let ann = Web::new(node.http, Some("ann"));
    check_round_trip(&ann, &ann).await;
}

/// Covers: PR-24.
#[tokio::test]
async fn file_is_read_at_another_node_of_the_fleet() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(&made(dir.path().join("redis")), &[]);
    let args = ["--demo", "--durability", "mem"];
    let first = Node::start_on(&redis.url(), &made(dir.path().join("a")), &args).await;
    let second = Node::start_on(&redis.url(), &made(dir.path().join("b")), &args).await;
    check_round_trip(&Web::new(first.http, Some("ann")), &Web::new(second.http, Some("ann"))).await;
    let kept = redis.command::<Vec<String>>(&["KEYS", "ix:*:blob:*"]);
    assert_eq!(kept.len(), 3, "bytes of deleted and repeated blobs are gone: {kept:?}");
    for body in &kept {
        let ends: i64 = redis.command(&["PEXPIRETIME", body]);
        assert_eq!(ends, 253_402_300_799_000, "the bytes of a blob do not end by themselves");
    }
}

/// Covers: PR-24, S-06.
#[tokio::test]
async fn files_are_deleted_with_their_session() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(&made(dir.path().join("redis")), &[]);
    let embedded = Node::start(&made(dir.path().join("e")), &["--demo"]).await;
    let shared = Node::start_on(&redis.url(), &made(dir.path().join("r")), &["--demo", "--durability", "mem"]).await;
    for node in [&embedded, &shared] {
        let ann = Web::new(node.http, Some("ann"));
        open_session(&ann, "s1").await;
        let path = ann.must_upload("s1", "image/png", &random_bytes(1, 300_000)).await;
        assert_eq!(ann.ask("DELETE", "/v1/sessions/s1", &[], "").await.status, 204);
        ann.get(&path).await.must_be(404, "not_found");
        ann.upload("s1", "image/png", &random_bytes(2, 10)).await.must_be(404, "not_found");
    }
    let files = dir.path().join("e/data/blobs");
    await_that("the file is deleted", async || files_below(&files).is_empty()).await;
    assert_eq!(redis.command::<Vec<String>>(&["KEYS", "ix:*blob*"]), Vec::<String>::new());
}

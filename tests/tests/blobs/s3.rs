//! Files whose bytes lie in an S3-compatible store, on a server that checks each signature.
use super::transfers::check_round_trip;
use super::{await_that, made, open_session};
use futures_util::future::join_all;
use serde_json::json;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::tempdir;
use tokio::time::{Duration, interval};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::{Node, binary};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::s3::S3Server;
use turnway_tests::real::web::Web;
use turnway_tests::real::{amount, figure};

const MIB: usize = 1024 * 1024;
/// Growth of the resident memory that many uploads at a time may cause, whatever their size.
const GROWTH_KIB_MAX: u64 = 64 * 1024;

/// Starts a node with these settings on a store.
pub(super) async fn node_on(store: &str, dir: &Path, settings: &str) -> Node {
    let file = dir.join("turnway.toml");
    std::fs::write(&file, format!("demo = true\n{settings}")).expect("a file");
    Node::start_on(store, dir, &["--config", &*file.to_string_lossy(), "--durability", "mem"]).await
}

/// Starts a node with an embedded store, whose files lie on a server.
pub(super) async fn node_with(server: &S3Server, dir: &Path) -> Node {
    let store = format!("embedded:{}", dir.join("data").display());
    node_on(&store, dir, &server.settings()).await
}

/// Covers: PR-24.
#[tokio::test]
async fn file_in_s3_is_read_at_another_node() {
    let dir = tempdir().expect("a directory");
    let redis = Redis::start(&made(dir.path().join("redis")), &[]);
    let server = S3Server::start(&made(dir.path().join("s3"))).await;
    let first = node_on(&redis.url(), &made(dir.path().join("a")), &server.settings()).await;
    let second = node_on(&redis.url(), &made(dir.path().join("b")), &server.settings()).await;
    let writer = Web::new(first.http, Some("ann"));
    let reader = Web::new(second.http, Some("ann"));
    check_round_trip(&writer, &reader).await;
    let objects = server.objects().await;
    assert_eq!(objects.len(), 3, "bytes of deleted and repeated blobs are gone: {objects:?}");
    assert!(objects.iter().all(|key| key.starts_with("fleet/a/ZGVmYXVsdA/czE/")), "{objects:?}");
    assert_eq!(redis.command::<Vec<String>>(&["KEYS", "ix:*:blob:*"]), Vec::<String>::new());
    // Every character that a session's id may have.
    let letters: String = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['_', '-']).collect();
    for session in [&*letters, "-", "S1"] {
        open_session(&writer, session).await;
        let bytes = random_bytes(session.len() as u64, 1000);
        let path = writer.must_upload(session, "image/png", &bytes).await;
        assert!(reader.download(&path).await.bytes == bytes, "{session}");
    }
    assert_eq!(server.state().await["refused"], json!({}), "each request is signed as botocore does");
    let metrics = Web::new(first.admin, None).get("/metrics").await.text;
    let uploads = "turnway_blob_store_requests_total{op=\"put\",outcome=\"done\"} 8";
    assert!(metrics.contains(uploads), "{metrics}");
}

/// Covers: PR-24, S-06.
#[tokio::test]
async fn objects_are_deleted_with_their_session() {
    let dir = tempdir().expect("a directory");
    let server = S3Server::start(&made(dir.path().join("s3"))).await;
    server.set_page(2).await;
    let node = node_with(&server, dir.path()).await;
    let ann = Web::new(node.http, Some("ann"));
    // The name of one session is the beginning of the other's.
    for session in ["s1", "s1-"] {
        open_session(&ann, session).await;
    }
    for number in 0..5 {
        ann.must_upload("s1", "image/png", &random_bytes(number, 1000)).await;
    }
    let kept = ann.must_upload("s1-", "image/png", &random_bytes(7, 1000)).await;
    assert_eq!(server.objects().await.len(), 6);
    assert_eq!(ann.ask("DELETE", "/v1/sessions/s1", &[], "").await.status, 204);
    await_that("the objects are deleted", async || server.objects().await.len() == 1).await;
    assert_eq!(ann.download(&kept).await.bytes, random_bytes(7, 1000));
}

/// Covers: PR-24.
#[tokio::test]
async fn upload_without_a_length_is_refused_before_its_bytes() {
    let dir = tempdir().expect("a directory");
    let server = S3Server::start(&made(dir.path().join("s3"))).await;
    let node = node_with(&server, dir.path()).await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    let upload = ann.begin_upload("s1", None).await;
    upload.send(random_bytes(1, 1000)).await;
    upload.finish().await.expect("an answer").must_be(411, "invalid_message");
    assert_eq!(ann.json("/v1/sessions/s1/blobs").await["bytes"], 0, "no room is kept");
    assert_eq!(server.state().await["requests"]["put"], json!(null));
}

/// Covers: PR-24.
#[tokio::test]
async fn credentials_are_taken_from_the_environment() {
    let dir = tempdir().expect("a directory");
    let server = S3Server::start(&made(dir.path().join("s3"))).await;
    let variables: String = S3Server::environment().iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
    let program = dir.path().join("with-credentials");
    let text = format!("#!/bin/sh\nexport {variables}\nexec '{}' \"$@\"\n", binary().display());
    std::fs::write(&program, text).expect("a script");
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("it can be run");
    let file = dir.path().join("turnway.toml");
    std::fs::write(&file, format!("demo = true\n{}", server.settings_without_credentials())).expect("a file");
    let config = file.to_string_lossy();
    let node = Node::start_program_on(program, "memory:", dir.path(), &["--config", &*config]).await;
    let ann = Web::new(node.http, Some("ann"));
    open_session(&ann, "s1").await;
    let path = ann.must_upload("s1", "image/png", &random_bytes(1, 1000)).await;
    assert_eq!(ann.download(&path).await.bytes, random_bytes(1, 1000));
    let state = server.state().await;
    assert_eq!((&state["refused"], state["objects"].as_array().map(Vec::len)), (&json!({}), Some(1)), "{state}");
}

/// Covers: PR-24, S-48.
#[tokio::test]
async fn uploads_at_a_time_use_bounded_memory() {
    let dir = tempdir().expect("a directory");
    let server = S3Server::start(&made(dir.path().join("s3"))).await;
    let node = node_with(&server, dir.path()).await;
    let count = amount("S3_UPLOADS", 20);
    let users: Vec<Web> = (0..count).map(|number| Web::new(node.http, Some(&format!("user-{number}")))).collect();
    for (number, user) in users.iter().enumerate() {
        open_session(user, &format!("s{number}")).await;
    }
    let bytes = random_bytes(1, 16 * MIB);
    users[0].must_upload("s0", "image/png", &bytes.slice(..MIB)).await;
    let before = node.resident_kib();
    let names: Vec<String> = (0..count).map(|number| format!("s{number}")).collect();
    let uploads = join_all(users.iter().zip(&names).map(|(user, name)| user.must_upload(name, "image/png", &bytes)));
    tokio::pin!(uploads);
    let mut looks = interval(Duration::from_millis(20));
    let mut peak = before;
    let paths = loop {
        tokio::select! {
            paths = &mut uploads => break paths,
            _ = looks.tick() => peak = peak.max(node.resident_kib()),
        }
    };
    let grown = peak.saturating_sub(before);
    figure("growth during the uploads, KiB", grown);
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB for {count} uploads");
    assert!(users[0].download(&paths[0]).await.bytes == bytes);
}

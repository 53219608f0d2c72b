//! Tests for resource leaks: a real node that has carried every kind of load, successful and failed, holds the same
//! resources as before once it is idle.
mod gauges;
mod load;

use gauges::{Held, must_be_complete};
use load::Scene;
use std::path::Path;
use turnway_tests::real::node::Node;
use turnway_tests::real::quic::QuicConnection;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::tls::{Pair, Trust};
use turnway_tests::real::wire::WebSocketClient;

/// Repetitions of the load: leaks add up.
const ROUNDS: usize = 3;

/// Covers: G8, S-39.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_node_with_embedded_store_holds_no_resources() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = format!("embedded:{}", dir.path().join("data").display());
    holds_nothing_when_quiet(&store, dir.path()).await;
}

/// Covers: G8, S-39.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_node_with_redis_holds_no_resources() {
    let dir = tempfile::tempdir().expect("a directory");
    let redis = Redis::start(&dir.path().join("redis"), &["--appendonly", "yes", "--appendfsync", "always"]);
    holds_nothing_when_quiet(&redis.url(), dir.path()).await;
}

async fn holds_nothing_when_quiet(store: &str, dir: &Path) {
    let scene = Scene::start(store, dir).await;
    let before = Held::when_quiet(&scene.node, None).await;
    must_be_complete(&before);
    for round in 0..ROUNDS {
        scene.play(round).await;
        Held::when_quiet(&scene.node, Some(&before)).await;
    }
}

/// The same with clients over TLS and QUIC, which disconnect in different ways.
///
/// Covers: G8, S-39.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_node_with_tls_and_quic_holds_no_resources() {
    let dir = tempfile::tempdir().expect("a directory");
    let pair = Pair::make(dir.path(), "pair").await;
    let flags = [&["--demo", "--quic", "127.0.0.1:0"][..], &pair.flags()].concat();
    let node = Node::start(dir.path(), &flags).await;
    let quic = node.quic.expect("it speaks QUIC");
    let trust = Trust::of([&pair]);
    let before = Held::when_quiet(&node, None).await;
    for round in 0..ROUNDS {
        for n in 0..8 {
            let user = format!("u{n}");
            let session = format!("s{round}-{n}");
            let mut line = QuicConnection::hello(quic, &trust, &user, vec![]).await.expect("welcome");
            line.turn(&session, "echo", "m1", "by QUIC").await.expect("a turn");
            // Half of the connections are closed with an application code, the others by the QUIC library.
            if n % 2 == 0 {
                line.connection.close(1000u32.into(), b"");
            }
            let wire = WebSocketClient::open_tls(node.http, &trust).await.expect("TLS");
            let mut wire = wire.greet(&user, vec![]).await.expect("welcome");
            wire.turn(&session, "echo", "m2", "by TLS").await.expect("a turn");
        }
        Held::when_quiet(&node, Some(&before)).await;
    }
}

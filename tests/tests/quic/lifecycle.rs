//! Tests the life cycle of QUIC connections: admission, closing by the node, and certificate replacement.
use super::{node, sample};
use quinn::{IdleTimeout, TransportConfig, VarInt};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::tempdir;
use tokio::sync::Semaphore;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::command::run;
use turnway_tests::real::identity::{Key, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::quic::{QuicConnection, config, endpoint, take};
use turnway_tests::real::size;
use turnway_tests::real::tls::{Pair, Trust};
use turnway_tests::real::wire::{ConnectionEnd, invoke};

/// Covers: S-01.
#[tokio::test]
async fn revoked_key_closes_its_connection() {
    let dir = tempdir().expect("a directory");
    let pepper = pepper(dir.path());
    let auth = ["--demo", "--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    let (node, quic, trust) = node(&dir, &auth).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let hello = |key: &str| json!({"type": "hello", "api_key": key});
    let line = QuicConnection::open(quic, &trust).await.expect("it connects");
    let mut line = line.greet_with(hello(&key.text)).await.expect("welcome");
    line.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    let stranger = QuicConnection::open(quic, &trust).await.expect("it connects").greet_with(hello("tw_no")).await;
    assert_eq!(stranger.err(), Some(ConnectionEnd::Closed(4401)));
    key.revoke(&node).await;
    assert_eq!(line.gone().await, ConnectionEnd::Closed(4401));
}

/// Opens a connection that the node closes at once. The close may arrive before the end of the handshake is seen.
async fn refused(to: SocketAddr, trust: &Trust) -> ConnectionEnd {
    match QuicConnection::open(to, trust).await {
        Ok(connection) => connection.gone().await,
        Err(end) => end,
    }
}

/// Covers: S-16.
#[tokio::test]
async fn per_address_limit_counts_all_transports() {
    let dir = tempdir().expect("a directory");
    let pepper = pepper(dir.path());
    let auth = ["--demo", "--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    let (node, quic, trust) = node(&dir, &[&auth[..], &["--per-address", "3"]].concat()).await;
    let _two = [trust.open(node.http).await.expect("room"), trust.open(node.http).await.expect("room")];
    let third = QuicConnection::open(quic, &trust).await.expect("room");
    assert_eq!(refused(quic, &trust).await, ConnectionEnd::Closed(4429));
    let greeted = third.greet_with(json!({"type": "hello", "api_key": "tw_no"})).await;
    assert_eq!(greeted.err(), Some(ConnectionEnd::Closed(4401)));
}

/// Covers: S-05.
#[tokio::test]
async fn bad_credentials_lock_out_the_address() {
    let dir = tempdir().expect("a directory");
    let pepper = pepper(dir.path());
    let auth = ["--demo", "--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    let (_node, quic, trust) = node(&dir, &[&auth[..], &["--per-address", "50"]].concat()).await;
    for _ in 0..10 {
        let guess = QuicConnection::open(quic, &trust).await.expect("room");
        let greeted = guess.greet_with(json!({"type": "hello", "api_key": "tw_no"})).await;
        assert_eq!(greeted.err(), Some(ConnectionEnd::Closed(4401)));
    }
    assert_eq!(refused(quic, &trust).await, ConnectionEnd::Closed(4429));
}

/// Covers: S-25.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_reload_keeps_open_connections() {
    let count = size("QUIC_SWAP_CONNECTIONS", 200);
    let dir = tempdir().expect("a directory");
    let pair = Pair::make(dir.path(), "one").await;
    let first = Pair::make(dir.path(), "copy").await;
    let second = Pair::make(dir.path(), "two").await;
    pair.put_into(&first);
    let args = [&["--demo", "--quic", "127.0.0.1:0"][..], &pair.flags()].concat();
    let mut node = Node::start(dir.path(), &args).await;
    let quic = node.quic.expect("it speaks QUIC");
    let old = Trust::of([&first]);
    let new = Trust::of([&second]);
    let mut lines = Vec::new();
    for n in 0..count {
        lines.push(QuicConnection::hello(quic, &old, &format!("u{n}"), vec![]).await.expect("welcome"));
    }
    second.put_into(&pair);
    node.signal("-HUP").await;
    let begun = tokio::time::Instant::now();
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let mut newcomer = loop {
        match QuicConnection::hello(quic, &new, "new", vec![]).await {
            Ok(line) => break line,
            Err(gone) => assert!(begun.elapsed() < Duration::from_secs(10), "{gone:?}"),
        }
        pace.tick().await;
    };
    newcomer.turn("new", "echo", "m", "new").await.expect("a turn");
    assert!(QuicConnection::hello(quic, &old, "old", vec![]).await.is_err(), "the old one is not shown any more");
    for (n, line) in lines.iter_mut().enumerate() {
        line.turn(&format!("s{n}"), "echo", "m", "still here").await.expect("a turn");
    }
    node.must_run();
}

#[tokio::test]
async fn draining_node_sends_go_away_and_finishes_turns() {
    let dir = tempdir().expect("a directory");
    let gate = Arc::new(Semaphore::new(0));
    let agents = Agents::start({
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            Reply::speak(move |stream| async move {
                stream.delta("first ").await?;
                gate.acquire().await.expect("it stays").forget();
                stream.delta("last").await?;
                stream.done().await
            })
        }
    })
    .await;
    let (mut node, quic, trust) = node(&dir, &["--agent", &agents.flag("a")]).await;
    let mut line = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    line.ask("m1", invoke("s1", "a", "hello")).await.expect("accepted");
    let mut lane = line.accept_text_stream().await.expect("a stream");
    let mut text = String::new();
    take(&mut text, &lane.next().await.expect("text").expect("text"));
    node.signal("-TERM").await;
    line.until(|message| message["type"] == "go_away").await.expect("told");
    let late = QuicConnection::open(quic, &trust).await;
    assert!(matches!(&late, Err(ConnectionEnd::Broken(why)) if why.contains("refused")), "{late:?}");
    gate.add_permits(1);
    lane.rest(&mut text).await.expect("all of it");
    line.until(|message| message["type"] == "done").await.expect("turns end");
    assert_eq!((text.as_str(), line.gone().await), ("first last", ConnectionEnd::Closed(4503)));
    assert_eq!(node.exit().await, Some(0));
}

/// Covers: S-18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_burst_requires_address_validation() {
    let dir = tempdir().expect("a directory");
    let (mut node, quic, trust) = node(&dir, &["--demo"]).await;
    let lines = (0..120).map(|n| QuicConnection::hello(quic, &trust, if n % 2 == 0 { "ann" } else { "bob" }, vec![]));
    let lines = futures_util::future::join_all(lines).await;
    assert!(lines.iter().all(Result::is_ok), "everybody gets in");
    let doubted = sample(&node, "turnway_link_handshakes_total{outcome=\"doubted\"} ").await;
    assert!(doubted >= 20.0, "{doubted}");
    node.must_run();
}

/// The node's keep-alive holds a silent connection open; the client's idle timeout is 28.5 s.
///
/// Covers: S-15.
#[tokio::test]
async fn silent_connection_is_kept_alive() {
    let dir = tempdir().expect("a directory");
    let (_node, quic, trust) = node(&dir, &["--demo"]).await;
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(28_500))));
    let end = endpoint();
    let line =
        QuicConnection::open_from(&end, quic, config(&trust, b"turnway/1", transport)).await.expect("it connects");
    let mut line = line.greet_with(json!({"type": "hello", "user_id": "ann"})).await.expect("welcome");
    let ended = tokio::time::timeout(Duration::from_secs(40), line.connection.closed()).await;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(line.ask("p", json!({"type": "ping"})).await.expect("answered")["type"], "pong");
}

/// A node without a configured certificate creates one, keeps the certificate across restarts, and logs its path.
#[tokio::test]
async fn node_without_a_certificate_creates_and_keeps_one() {
    let dir = tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo", "--quic", "127.0.0.1:0"]).await;
    let quic = node.quic.expect("it speaks QUIC");
    let made = dir.path().join("data/quic");
    let pair = Pair { cert: made.join("cert.pem"), key: made.join("key.pem") };
    assert!(node.log().contains("data/quic/cert.pem"), "{}", node.log());
    let trust = Trust::of([&pair]);
    let mut line = QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    line.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    let shown = pair.shown();
    node.kill_and_restart().await;
    assert_eq!((node.quic, pair.shown()), (Some(quic), shown), "the same as before");
    QuicConnection::hello(quic, &trust, "ann", vec![]).await.expect("welcome");
    let second = ["serve", "--store", "memory:", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--quic"];
    let taken = run(dir.path(), &[&second[..], &[&quic.to_string()]].concat(), &[]).await;
    assert_eq!(taken.code, Some(69), "{taken:?}");
    let said = format!("cannot listen on {quic} (QUIC)");
    assert!(taken.err.contains(&said) && taken.err.contains("--quic off"), "{taken:?}");
}

/// Failed handshakes do not use up the node's connection capacity.
///
/// Covers: S-16.
#[tokio::test]
async fn failed_handshakes_release_their_connection_slots() {
    let dir = tempdir().expect("a directory");
    let (_node, quic, trust) = node(&dir, &["--demo", "--quic-connections", "3"]).await;
    let stranger = Trust::of([&Pair::make(dir.path(), "stranger").await]);
    for _ in 0..6 {
        assert!(QuicConnection::open(quic, &stranger).await.is_err(), "it does not believe the node");
    }
    let begun = tokio::time::Instant::now();
    while QuicConnection::hello(quic, &trust, "ann", vec![]).await.is_err() {
        assert!(begun.elapsed() < turnway_tests::real::PATIENCE, "the node is full of broken handshakes");
    }
}

/// QUIC connections have a limit of their own, and each user has a share of this limit.
///
/// Covers: S-17.
#[tokio::test]
async fn quic_connections_of_one_user_are_limited_to_a_share() {
    let dir = tempdir().expect("a directory");
    let pepper = pepper(dir.path());
    let auth = ["--demo", "--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    let (node, quic, trust) = node(&dir, &[&auth[..], &["--quic-connections", "4"]].concat()).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let hello = async || {
        let line = QuicConnection::open(quic, &trust).await.expect("room");
        line.greet_with(json!({"type": "hello", "api_key": key.text})).await
    };
    let inside = [hello().await.expect("welcome"), hello().await.expect("welcome")];
    assert_eq!(hello().await.err(), Some(ConnectionEnd::Closed(4429)), "nine sixteenths of four");
    drop(inside);
}

//! Tests TLS with real nodes and clients: interoperability, certificate reload, and the memory of idle connections.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, timeout};
use turnway_client::{Client, Options};
use turnway_tests::real::command::run;
use turnway_tests::real::node::Node;
use turnway_tests::real::tls::{Pair, Trust};
use turnway_tests::real::wire::{ConnectionEnd, WebSocketClient};
use turnway_tests::real::{PATIENCE, amount, figure, http, python};

/// Starts a node with a certificate of its own.
async fn node(dir: &TempDir) -> (Node, Pair) {
    let pair = Pair::make(dir.path(), "pair").await;
    let node = Node::start(dir.path(), &[&["--demo"][..], &pair.flags()].concat()).await;
    (node, pair)
}

/// Returns the value of one metric sample.
async fn sample(node: &Node, name: &str) -> f64 {
    let (_, text) = http::get(node.admin, "/metrics").await.expect("it answers");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
    line.trim().parse().expect("a number")
}

/// Waits until a sample has at least this value.
async fn until(node: &Node, name: &str, value: f64) {
    let begun = Instant::now();
    let mut pace = interval(Duration::from_millis(50));
    while sample(node, name).await < value {
        assert!(begun.elapsed() < PATIENCE, "{name} is still less than {value}");
        pace.tick().await;
    }
}

/// Covers: S-25.
#[tokio::test]
async fn other_tls_clients_can_connect() {
    let dir = tempdir().expect("a directory");
    let (mut node, pair) = node(&dir).await;
    let port = node.http.port().to_string();
    let env = [("SSL_CERT_FILE", pair.ca())];
    python::run_with("client_tls.py", &[&port], &env).await;
    let url = format!("wss://localhost:{port}/v1/connect");
    let answer = python::run_with("client_plain.py", &[&url, "echo", "héllo 語"], &env).await;
    assert_eq!(answer, "héllo 語");
    let count =
        async |outcome: &str| sample(&node, &format!("turnway_tls_handshakes_total{{outcome=\"{outcome}\"}} ")).await;
    for (outcome, least) in [("done", 5.0), ("failed", 2.0), ("plain", 1.0)] {
        assert!(count(outcome).await >= least, "{outcome}");
    }
    // Each client finished its handshake or broke it off at once: nothing was left to a timeout.
    assert_eq!(count("late").await, 0.0, "late");
    node.must_run();
}

/// The `turnway` commands over TLS, and their errors with an untrusted certificate.
#[tokio::test]
async fn commands_work_over_tls() {
    let dir = tempdir().expect("a directory");
    let (node, pair) = node(&dir).await;
    let ws = format!("wss://{}", node.http);
    let https = format!("https://{}", node.http);
    let trusting = [("SSL_CERT_FILE", pair.ca())];
    let mut wire = Trust::of([&pair]).hello(node.http, "ann").await.expect("welcome");
    wire.turn("s1", "echo", "m1", "hello").await.expect("a turn");
    let listed = run(dir.path(), &["sessions", "--json", "--url", &https], &trusting).await;
    assert!(listed.code == Some(0) && listed.out.contains("\"s1\""), "{listed:?}");
    let output = run(dir.path(), &["replay", "s1", "--url", &ws], &trusting).await;
    assert!(output.code == Some(0) && output.out.contains("hello"), "{output:?}");
    for args in [["sessions", "--url", &https, "--json"], ["agents", "--url", &ws, "--json"]] {
        let stranger = run(dir.path(), &args, &[]).await;
        assert_eq!(stranger.code, Some(69), "{stranger:?}");
        assert!(stranger.err.contains("UnknownIssuer"), "{stranger:?}");
    }
    // A client without TLS gets an explanation.
    let plain = Client::connect(Options::new(format!("ws://{}", node.http))).await;
    let why = plain.err().map(|why| why.to_string()).unwrap_or_default();
    assert!(why.contains("HTTP 400") && why.contains("This port requires TLS"), "{why}");
}

#[tokio::test]
async fn invalid_certificate_pair_is_reported_at_startup() {
    let dir = tempdir().expect("a directory");
    let one = Pair::make(dir.path(), "one").await;
    let other = Pair::make(dir.path(), "other").await;
    let mixed = Pair { cert: one.cert.clone(), key: other.key };
    let gone = Pair { cert: dir.path().join("nobody"), key: one.key.clone() };
    let checked = run(dir.path(), &[&["check-config"][..], &one.flags()].concat(), &[]).await;
    assert_eq!((checked.code, checked.out.as_str()), (Some(0), "ok\n"), "{checked:?}");
    for (flags, said) in [
        (&one.flags()[..2], "flag --tls-cert: tls.cert: needs tls.key as well"),
        (&mixed.flags(), "other/key.pem: the key does not belong to the certificate"),
        (&gone.flags(), "flag --tls-cert: tls.cert: "),
    ] {
        for command in ["serve", "check-config"] {
            let ended = run(dir.path(), &[&[command, "--store", "memory:"], flags].concat(), &[]).await;
            assert_eq!((ended.code, ended.out.as_str()), (Some(64), ""), "{ended:?}");
            assert!(ended.err.contains(said), "{said} is not in {}", ended.err);
        }
    }
    let again = run(dir.path(), &["dev-cert", "one", "--json"], &[]).await;
    assert!(again.code == Some(1) && again.error()["message"].to_string().contains("exists"), "{again:?}");
    let made = run(dir.path(), &["dev-cert", "two", "--json", "--days", "13"], &[]).await.json();
    let shown = CertificateDer::from_pem_file(dir.path().join("two/cert.pem")).expect("a certificate");
    let hash = STANDARD.encode(Sha256::digest(&shown));
    assert_eq!(made, json!({"cert": "two/cert.pem", "key": "two/key.pem", "days": 13, "sha256": hash}));
    let too_long = run(dir.path(), &["dev-cert", "three", "--days", "366"], &[]).await;
    assert_eq!(too_long.code, Some(64), "{too_long:?}");
}

/// The certificate is replaced while a thousand connections are open, first by signal and then by a change of the
/// files: open connections continue, and new ones get the new certificate.
///
/// Covers: S-25.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_reload_keeps_open_connections() {
    let count = amount("TLS_CONNECTIONS", 1000);
    let dir = tempdir().expect("a directory");
    let (mut node, pair) = node(&dir).await;
    let second = Pair::make(dir.path(), "two").await;
    let third = Pair::make(dir.path(), "three").await;
    let first = Pair::make(dir.path(), "copy").await;
    pair.put_into(&first);
    let trust = Trust::of([&first, &second, &third]);
    let mut wires = Vec::new();
    for n in 0..count {
        let wire = trust.hello(node.http, &format!("u{n}")).await.expect("welcome");
        assert_eq!(wire.certificate().as_deref(), Some(&*first.shown()));
        wires.push(wire);
    }
    let end = sample(&node, "turnway_tls_certificate_end_seconds ").await;
    assert!(end > 1.7e9, "{end}");

    second.put_into(&pair);
    node.signal("-HUP").await;
    until(&node, "turnway_tls_reloads_total ", 1.0).await;
    let newcomer = trust.hello(node.http, "new").await.expect("welcome");
    assert_eq!(newcomer.certificate().as_deref(), Some(&*second.shown()));

    // Without a signal, the periodic check of the files finds the change.
    let replaced = Instant::now();
    third.put_into(&pair);
    until(&node, "turnway_tls_reloads_total ", 2.0).await;
    assert!(replaced.elapsed() < Duration::from_secs(15), "{:?}", replaced.elapsed());
    let newcomer = trust.hello(node.http, "newer").await.expect("welcome");
    assert_eq!(newcomer.certificate().as_deref(), Some(&*third.shown()));
    let stranger = Trust::of([&first]).hello(node.http, "old").await.map(|_| ());
    assert!(
        matches!(&stranger, Err(ConnectionEnd::Broken(why)) if why.contains("invalid peer certificate")),
        "{stranger:?}"
    );

    for (n, wire) in wires.iter_mut().enumerate() {
        let (said, _) = wire.turn(&format!("s{n}"), "echo", "m1", "still here").await.expect("a turn");
        assert_eq!(said, "still here");
    }
    let open = sample(&node, "turnway_link_connections{transport=\"websocket\"} ").await;
    assert!(open >= count as f64, "{open} of {count} are left");
    assert_eq!(sample(&node, "turnway_tls_reload_failures_total ").await, 0.0);
    node.must_run();
}

/// Covers: S-25.
#[tokio::test]
async fn invalid_new_certificate_is_reported_and_not_used() {
    let dir = tempdir().expect("a directory");
    let (node, pair) = node(&dir).await;
    let trust = Trust::of([&pair]);
    let mut wire = trust.hello(node.http, "ann").await.expect("welcome");
    let shown = pair.shown();
    let good = Pair::make(dir.path(), "good").await;
    let other = Pair::make(dir.path(), "other").await;
    pair.put_into(&good);
    let mut failures = 0.0;
    let broken: [&dyn Fn(); 3] = [
        &|| std::fs::write(&pair.cert, "no certificate at all").expect("written"),
        &|| assert!(std::fs::copy(&other.cert, &pair.cert).is_ok()),
        &|| std::fs::remove_file(&pair.key).expect("removed"),
    ];
    for spoil in broken {
        spoil();
        node.signal("-HUP").await;
        failures += 1.0;
        until(&node, "turnway_tls_reload_failures_total ", failures).await;
        assert_eq!(sample(&node, "turnway_tls_certificate_stale ").await, 1.0);
        let newcomer = trust.hello(node.http, "new").await.expect("welcome");
        assert_eq!(newcomer.certificate().as_deref(), Some(&*shown));
    }
    assert!(node.log().contains("new certificate rejected"), "{}", node.log());
    wire.turn("s1", "echo", "m1", "still here").await.expect("a turn");
    good.put_into(&pair);
    node.signal("-HUP").await;
    until(&node, "turnway_tls_reloads_total ", 1.0).await;
    assert_eq!(sample(&node, "turnway_tls_certificate_stale ").await, 0.0);
}

/// Covers: S-15.
#[tokio::test]
async fn slow_handshake_times_out() {
    let dir = tempdir().expect("a directory");
    let (node, pair) = node(&dir).await;
    let began = Instant::now();
    let mut silent = Vec::new();
    // One connection sends nothing; the other sends an incomplete record, one byte per second.
    for first in [&[][..], &[22, 3, 1, 2, 0, 1]] {
        let mut stream = TcpStream::connect(node.http).await.expect("a listener");
        stream.write_all(first).await.expect("written");
        silent.push(stream);
    }
    let mut pace = interval(Duration::from_secs(1));
    let [mut nothing, mut slow] = <[TcpStream; 2]>::try_from(silent).expect("two");
    let drip = async {
        loop {
            pace.tick().await;
            if slow.write_all(&[0]).await.is_err() {
                return;
            }
        }
    };
    let mut rest = Vec::new();
    let gone = async { tokio::join!(nothing.read_to_end(&mut rest), drip) };
    let _ = timeout(PATIENCE, gone).await.expect("both are let go");
    let waited = began.elapsed();
    assert!((9..20).contains(&waited.as_secs()), "{waited:?}");
    until(&node, "turnway_tls_handshakes_total{outcome=\"late\"} ", 2.0).await;
    // A client that completes the handshake in time is admitted, and must still send a hello in time.
    Trust::of([&pair]).hello(node.http, "ann").await.expect("welcome");
    let mut mute = WebSocketClient::open_tls(node.http, &Trust::of([&pair])).await.expect("open");
    let gone = mute.until(|_| false).await;
    assert_eq!(gone, Err(ConnectionEnd::Closed(4408)));
}

/// Size limits of messages are the same over TLS.
#[tokio::test]
async fn message_size_limit_applies_over_tls() {
    let dir = tempdir().expect("a directory");
    let (node, pair) = node(&dir).await;
    let mut wire = Trust::of([&pair]).hello(node.http, "ann").await.expect("welcome");
    let text = "läßt sich ".repeat(4000);
    let (said, _) = wire.turn("s1", "echo", "m1", &text).await.expect("a turn");
    assert!(said == text, "{} of {} bytes", said.len(), text.len());
    wire.say(json!({"type": "ping", "padding": "x".repeat(70_000)})).await.expect("said");
    assert_eq!(wire.until(|_| false).await, Err(ConnectionEnd::Closed(4413)));
}

/// An idle TLS connection, with all its state, takes at most 18 KiB of the node's resident memory.
///
/// Covers: G-15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_tls_connection_stays_within_its_memory_limit() {
    const BYTES_MAX: u64 = 18 * 1024;
    let count = amount("TLS_IDLE", 1000);
    let dir = tempdir().expect("a directory");
    let (node, pair) = node(&dir).await;
    let trust = Trust::of([&pair]);
    let mut warm = trust.hello(node.http, "warm").await.expect("welcome");
    for n in 0..50 {
        warm.turn("warm", "echo", &format!("m{n}"), "hello").await.expect("a turn");
    }
    let before = node.resident_kib();
    let mut wires = Vec::new();
    for n in 0..count {
        let mut wire = trust.hello(node.http, &format!("u{n}")).await.expect("welcome");
        wire.turn(&format!("s{n}"), "echo", "m1", "hello").await.expect("a turn");
        wires.push(wire);
    }
    let begun = Instant::now();
    let mut pace = interval(Duration::from_millis(500));
    let each = loop {
        pace.tick().await;
        let each = node.resident_kib().saturating_sub(before) * 1024 / wires.len() as u64;
        // Sessions are unloaded and buffers are freed after some idle time.
        if each <= BYTES_MAX || begun.elapsed() > 2 * PATIENCE {
            break each;
        }
    };
    figure("bytes of an idle connection in TLS", each);
    assert!(each <= BYTES_MAX, "{each} bytes");
}

/// Covers: S-19, S-20, S-26.
#[test]
fn tls_and_quic_libraries_have_no_known_vulnerabilities() {
    let lock = include_str!("../../Cargo.lock");
    let number = |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().unwrap_or(0)).collect() };
    let version = |name: &str| {
        let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
        Some(number(rest.split('"').next()?))
    };
    for (name, least) in [
        ("rustls", "0.23.46"),
        ("rustls-webpki", "0.103.13"),
        ("aws-lc-rs", "1.19.0"),
        ("bytes", "1.11.1"),
        // Fixes for stream gaps, transport parameters and retry; earlier versions already bound connection ids and
        // paths.
        ("quinn-proto", "0.11.19"),
        ("h2", "0.4.16"),
        ("tracing-subscriber", "0.3.20"),
        // Used on other systems only; deny.toml keeps it from being linked on Linux.
        ("ring", "0.17.12"),
    ] {
        let found = version(name).unwrap_or_else(|| panic!("{name} is not in the lock file"));
        assert!(found >= number(least), "{name} {found:?} is older than {least}");
    }
    assert_eq!(lock.matches("name = \"rustls\"\n").count(), 1, "one TLS");
}

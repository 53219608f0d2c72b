//! Tests address validation: bytes sent to an unvalidated address, and the tokens that are accepted.
use super::told;
use serde_json::Value;
use std::collections::BTreeMap;
use tempfile::tempdir;
use turnway_tests::real::figure;
use turnway_tests::real::node::Node;
use turnway_tests::real::python::run;
use turnway_tests::real::tls::Pair;

/// Copies of the certificate in the chain: more than three datagrams hold.
const CHAIN: usize = 16;

/// A spoofed source address gets at most three times the bytes that came from it: without a token, and with a
/// forged, expired, foreign or used token. A token of any node with the same certificate is accepted, of this day
/// or the day before.
///
/// Covers: S-18, S-23.
#[tokio::test]
async fn unvalidated_address_gets_at_most_three_times_its_bytes() {
    let dir = tempdir().expect("a directory");
    let pair = Pair::make(dir.path(), "pair").await;
    let cert = std::fs::read_to_string(&pair.cert).expect("a certificate");
    std::fs::write(dir.path().join("chain.pem"), cert.repeat(CHAIN)).expect("written");
    let chain = Pair { cert: dir.path().join("chain.pem"), key: pair.key.clone() };
    let mut nodes = Vec::new();
    for name in ["one", "other"] {
        let own = dir.path().join(name);
        std::fs::create_dir(&own).expect("a directory");
        let args = [&["--demo", "--quic", "127.0.0.1:0"][..], &chain.flags()].concat();
        nodes.push(Node::start(&own, &args).await);
    }
    let ports: Vec<String> = nodes.iter().map(|node| node.quic.expect("it speaks QUIC").port().to_string()).collect();
    let key = pair.key.to_str().expect("UTF-8");
    // Most nodes have a single certificate; datagrams then have any size.
    let short = dir.path().join("short");
    std::fs::create_dir(&short).expect("a directory");
    let args = [&["--demo", "--quic", "127.0.0.1:0"][..], &pair.flags()].concat();
    let short = Node::start(&short, &args).await;
    let short_port = short.quic.expect("it speaks QUIC").port().to_string();
    let said = run("quic_proofs.py", &[&ports[0], &ports[1], &short_port, pair.ca(), key]).await;
    let counted: BTreeMap<String, (u64, u64)> = said
        .lines()
        .map(told)
        .map(|line: Value| {
            let number = |name: &str| line[name].as_u64().expect("a number");
            (line["shown"].as_str().expect("a name").to_owned(), (number("sent"), number("back")))
        })
        .collect();
    for (name, believed) in [
        ("nothing", false),
        ("nothing, to one with a short chain", false),
        ("what it gave", true),
        ("what its fellow gave", true),
        ("chance", false),
        ("what it gave, bent", false),
        ("another certificate's", false),
        ("today's", true),
        ("yesterday's key", true),
        ("the key of the day before", false),
        ("over", false),
        ("another address's", false),
        ("what it gave, again", false),
    ] {
        let (sent, back) = counted[name];
        figure(&format!("QUIC: sent to who shows {name}"), format!("{back} bytes for {sent}"));
        assert_eq!(back > 3 * sent, believed, "{name}: {back} bytes for {sent}");
    }
    nodes.push(short);
    for node in &mut nodes {
        node.must_run();
    }
}

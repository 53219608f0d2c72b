//! `benches/figures.py` makes the figures of many connections in small: each of its parts has to run before anybody
//! makes them in full.
use turnway_tests::real::node::binary;
use turnway_tests::real::python;

/// What it prints for this figure.
async fn figure(name: &str) -> String {
    let scratch = tempfile::tempdir().expect("a directory");
    let (here, binaries) = (scratch.path().display().to_string(), binary());
    let binaries = binaries.parent().expect("a directory").display().to_string();
    let args = [name, "--quick", "--binaries", &binaries, "--scratch", &here];
    let told = python::run("../../benches/figures.py", &args).await;
    let page = include_str!("../../docs/benchmarks.md");
    for marker in [format!("<!-- figures: {name} -->"), format!("<!-- end of {name} -->")] {
        assert!(page.contains(&marker), "docs/benchmarks.md has no {marker}");
    }
    told
}

#[tokio::test]
async fn connections_by_quic_are_counted_weighed_and_spoken_to() {
    let told = figure("quic").await;
    assert!(told.contains("**200** of 200 connections by QUIC") && told.contains("200 answer"), "{told}");
    assert!(told.contains("SSL_CERT_FILE=DIR/data/quic/cert.pem"), "the command can be repeated: {told}");
}

#[tokio::test]
async fn a_fleet_has_as_many_as_were_to_be_there() {
    let told = figure("many").await;
    assert!(told.contains("**200** WebSockets at the same time over 4 nodes"), "{told}");
    assert!(told.contains("200 answered in the end: met"), "{told}");
}

#[tokio::test]
async fn a_node_at_rest_stands_beside_a_bare_server() {
    let told = figure("idle-cpu").await;
    for road in ["| WebSocket | 1 |", "| QUIC | 1 |", "echo-server --beat 25s", "--bare"] {
        assert!(told.contains(road), "{road}: {told}");
    }
}

//! `benches/figures.py` runs each of its parts at a small scale, before the full figures are made.
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::process::Command;
use tokio::time::interval;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::node::binary;
use turnway_tests::real::python;

/// Runs the script for one figure and returns its output.
async fn figure(name: &str) -> String {
    figure_with(name, &[]).await
}

/// Runs the script for one figure with more arguments and returns its output.
async fn figure_with(name: &str, more: &[&str]) -> String {
    let scratch = tempfile::tempdir().expect("a directory");
    let here = scratch.path().display().to_string();
    let binaries = binary();
    let binaries = binaries.parent().expect("a directory").display().to_string();
    let args = [name, "--quick", "--binaries", &binaries, "--scratch", &here];
    let told = python::run("../../benches/figures.py", &[&args[..], more].concat()).await;
    let page = include_str!("../../docs/benchmarks.md");
    for marker in [format!("<!-- figures: {name} -->"), format!("<!-- end of {name} -->")] {
        assert!(page.contains(&marker), "docs/benchmarks.md has no {marker}");
    }
    told
}

#[tokio::test]
async fn quic_connections_are_counted_measured_and_answered() {
    let told = figure("quic").await;
    assert!(told.contains("**200** of 200 connections by QUIC") && told.contains("200 answer"), "{told}");
    assert!(told.contains("SSL_CERT_FILE=DIR/data/quic/cert.pem"), "the command can be repeated: {told}");
}

#[tokio::test]
async fn fleet_holds_all_requested_connections() {
    let told = figure("many").await;
    assert!(told.contains("**200** WebSockets at the same time over 4 nodes"), "{told}");
    assert!(told.contains("200 answered in the end: met"), "{told}");
}

#[tokio::test]
async fn idle_node_is_compared_with_a_bare_server() {
    let told = figure("idle-cpu").await;
    for road in ["| WebSocket | 1 |", "| QUIC | 1 |", "echo-server --beat 25s", "--bare"] {
        assert!(told.contains(road), "{road}: {told}");
    }
}

#[tokio::test]
async fn comparison_table_states_its_conditions() {
    let told = figure_with("compare", &["--compare", "--peers turnway --rows latency,drop"]).await;
    for part in ["| one node: publish to receive at 1,000/s (p50 µs / p99 µs) | **", "| **0** |", "nothing pinned"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(told.contains("](compare/compare-latency.svg)") && told.contains("turnway-bench compare"), "{told}");
}

#[tokio::test]
async fn comparison_of_a_build_with_itself_has_every_figure() {
    let before = binary();
    let before = before.parent().expect("a directory").display().to_string();
    let told = figure_with("builds", &["--before", &before, "--before-name", "the build of yesterday"]).await;
    for part in [
        "1 interleaved pairs of this build with the build of yesterday",
        "| server CPU a turn, memory store | ",
        "| CPU of Redis a turn | ",
        "| bytes of an idle connection | ",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// Returns the command lines of `serve` processes with an argument under this path.
fn servers_under(under: &Path) -> Vec<String> {
    let under = under.display().to_string();
    let pids = std::fs::read_dir("/proc").expect("/proc").flatten();
    let said = pids.filter_map(|pid| std::fs::read_to_string(pid.path().join("cmdline")).ok());
    said.filter(|said| said.contains(&under) && said.contains("\0serve\0")).collect()
}

/// Checks that SIGTERM to the script also stops all servers that the script or its children started.
#[tokio::test]
async fn sigterm_stops_all_started_servers() {
    for words in [&["durable"][..], &["compare", "--compare", "--peers turnway --rows max"]] {
        let scratch = tempfile::tempdir().expect("a directory");
        let here = scratch.path().display().to_string();
        let binaries = binary().parent().expect("a directory").display().to_string();
        let given = ["--quick", "--binaries", &binaries, "--scratch", &here];
        let mut command = python::script("../../benches/figures.py", &[words, &given].concat());
        // `turnway-bench` creates its directories here.
        command.env("TMPDIR", scratch.path());
        let mut script = command.spawn().expect("Python starts");
        let begun = Instant::now();
        let mut looks = interval(Duration::from_millis(20));
        while servers_under(scratch.path()).is_empty() {
            assert!(begun.elapsed() < PATIENCE, "no server");
            looks.tick().await;
        }
        let pid = script.id().expect("it runs").to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().await.expect("kill").success());
        let ended = tokio::time::timeout(PATIENCE, script.wait()).await.expect("in time").expect("its end");
        assert_eq!(ended.code(), Some(128 + 15), "{words:?}");
        assert_eq!(servers_under(scratch.path()), Vec::<String>::new(), "{words:?}");
    }
}

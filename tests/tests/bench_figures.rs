//! `benches/figures.py` runs each of its parts at a small scale, before the full figures are made.
use std::path::Path;
use std::process::Stdio;
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
    let figures = figure("quic").await;
    assert!(figures.contains("**200** of 200 connections by QUIC") && figures.contains("200 answer"), "{figures}");
    assert!(figures.contains("SSL_CERT_FILE=DIR/data/quic/cert.pem"), "the command can be repeated: {figures}");
}

#[tokio::test]
async fn fleet_holds_all_requested_connections() {
    let figures = figure("many").await;
    assert!(figures.contains("**250** WebSockets at the same time over 5 nodes"), "{figures}");
    assert!(figures.contains("250 answered in the end: met"), "{figures}");
}

#[tokio::test]
async fn idle_node_is_compared_with_a_bare_server() {
    let figures = figure("idle-cpu").await;
    for road in ["| WebSocket | 1 |", "| QUIC | 1 |", "echo-server --beat 25s", "--bare"] {
        assert!(figures.contains(road), "{road}: {figures}");
    }
}

#[tokio::test]
async fn comparison_table_states_its_conditions() {
    let figures = figure_with("compare", &["--compare", "--peers turnway --rows latency,drop"]).await;
    for part in ["| one node: publish to receive at 1,000/s (p50 µs / p99 µs) | **", "| **0** |", "nothing pinned"] {
        assert!(figures.contains(part), "{part}: {figures}");
    }
    assert!(
        figures.contains("](compare/compare-latency.svg)") && figures.contains("turnway-bench compare"),
        "{figures}"
    );
}

#[tokio::test]
async fn calls_of_models_are_measured_without_the_other_gateways() {
    let nothing = tempfile::tempdir().expect("a directory");
    let peers = nothing.path().display().to_string();
    let figures = figure_with("model-calls", &["--peers", &peers]).await;
    for part in [
        "Turnway adds **",
        "LiteLLM was not installed",
        "Portkey was not installed",
        "|  | direct | Turnway |",
        "(50) |",
        "| calls without a complete answer | 0 | 0 |",
        "](model-calls/model-calls.svg)",
        "turnway-bench models --model paced --stream",
    ] {
        assert!(figures.contains(part), "{part}: {figures}");
    }
}

#[tokio::test]
async fn comparison_of_a_build_with_itself_has_every_figure() {
    let before = binary();
    let before = before.parent().expect("a directory").display().to_string();
    let figures = figure_with("builds", &["--before", &before, "--before-name", "the build of yesterday"]).await;
    for part in [
        "1 interleaved pairs of this build with the build of yesterday",
        "| server CPU a turn, memory store | ",
        "| CPU of Redis a turn | ",
        "| bytes of an idle connection | ",
    ] {
        assert!(figures.contains(part), "{part}: {figures}");
    }
}

/// Runs `check` for one figure at its smallest size; returns its exit code and its report.
async fn check(scratch: &Path, more: &[&str]) -> (Option<i32>, String) {
    let page = scratch.join("benchmarks.md").display().to_string();
    let here = scratch.display().to_string();
    let binaries = binary().parent().expect("a directory").display().to_string();
    let args = ["check", "--quick", "--only", "echo", "--page", &page, "--binaries", &binaries, "--scratch", &here];
    let mut command = python::script("../../benches/figures.py", &[&args[..], more].concat());
    let ended = tokio::time::timeout(4 * PATIENCE, command.stderr(Stdio::piped()).output()).await;
    let ended = ended.expect("it ends in time").expect("Python starts");
    let told = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (ended.status.code(), told)
}

#[tokio::test]
async fn check_logic_passes_its_unit_tests() {
    python::run("../../benches/check_tests.py", &[]).await;
}

#[tokio::test]
async fn check_with_bad_arguments_exits_with_64() {
    let scratch = tempfile::tempdir().expect("a directory");
    for bad in [&["--rounds", "2"][..], &["--against", "no-such-commit"], &["--before", "/nowhere"], &["--faster"]] {
        let (code, told) = check(scratch.path(), bad).await;
        assert_eq!(code, Some(64), "{bad:?}: {told}");
    }
}

#[tokio::test]
async fn check_compares_this_build_with_ratios_of_the_page() {
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("benchmarks.md");
    std::fs::write(&path, "<!-- figures: check -->\n<!-- end of check -->\n").expect("a page");
    let (code, told) = check(scratch.path(), &[]).await;
    assert_eq!(code, Some(2), "the page has no ratio yet: {told}");
    let (_, told) = check(scratch.path(), &["--write"]).await;
    let page = std::fs::read_to_string(&path).expect("the page");
    let row =
        page.lines().find(|line| line.starts_with("| echo |")).unwrap_or_else(|| panic!("no row: {page}\n{told}"));
    let cells: Vec<&str> = row.split(" | ").collect();
    assert_eq!(cells.len(), 8, "{row}");
    assert!(cells[2].parse::<f64>().is_ok_and(|ratio| ratio > 0.0), "{row}");
    // Without a repository the age of the page's commit is unknown, which is code 2.
    let fine = if page.contains("| no commit |") { Some(2) } else { Some(0) };
    // Ratios far from those of any build: noise of a busy machine cannot change the verdict.
    for (ratio, verdict, expected) in [("0.01", "| worse |", Some(1)), ("1000", "| better |", fine)] {
        let range = format!("{ratio} to {ratio}");
        let changed = [&cells[..2], &[ratio, &range], &cells[4..]].concat().join(" | ");
        std::fs::write(&path, page.replace(row, &changed)).expect("a page");
        let (code, told) = check(scratch.path(), &[]).await;
        assert!(told.contains(verdict), "{told}");
        assert_eq!(code, expected, "{told}");
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

//! `turnway-bench` against real nodes: each mode for a short time, its output files, and its errors.
#[path = "bench/bench.rs"]
mod bench;

use bench::{assert_well_formed_svg, keys, metric};
use serde_json::Value;
use std::path::Path;
use turnway_tests::real::bench::{Bench, Served};
use turnway_tests::real::node::Node;

async fn node(dir: &Path, more: &[&str]) -> Node {
    Node::start(dir, &[&["--demo"], more].concat()).await
}

/// Keys that docs/benchmarks.md promises for every mode.
const KEYS: [&str; 15] = [
    "command",
    "connections",
    "counts",
    "date",
    "duration_s",
    "errors",
    "generator",
    "latency_us",
    "loop",
    "machine",
    "mode",
    "rate",
    "throughput",
    "timeline",
    "version",
];

#[tokio::test]
async fn turn_counts_match_the_node_metrics() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(dir.path(), &[]).await;
    let bench = Bench::new(dir.path(), node.http).watching(node.pid());
    let plot = dir.path().join("plot.svg");
    let hdr = dir.path().join("out.hgrm");
    let plot_arg = plot.display().to_string();
    let hdr_arg = hdr.display().to_string();
    let args = ["turns", "--connections", "8", "--duration", "2s", "--plot", &plot_arg, "--hdr", &hdr_arg];
    let figures = bench.figures(&args).await;
    for key in KEYS {
        assert!(figures.get(key).is_some(), "no {key} in {figures}");
    }
    assert_eq!((&figures["mode"], &figures["loop"], &figures["ok"]), (&"turns".into(), &"closed".into(), &true.into()));
    let counts = &figures["counts"];
    let completed = counts["completed"].as_u64().expect("a count");
    assert!(completed > 8, "{figures}");
    assert_eq!((&counts["gaps"], &counts["mismatches"], &counts["unanswered"]), (&0.into(), &0.into(), &0.into()));
    let warm_up = figures["turns"]["warm_up_turns"].as_u64().expect("a count");
    assert_eq!(warm_up, 8);
    let ended = metric(node.admin, "turnway_turn_accepted_total", completed + warm_up).await;
    assert_eq!(ended, completed + warm_up);
    for measure in ["accepted", "first_delta", "done"] {
        let latency = &figures["latency_us"][measure];
        assert_eq!(latency["count"], completed);
        let at = |key: &str| latency[key].as_f64().unwrap_or_else(|| panic!("{measure}.{key}"));
        assert!(at("min") <= at("p50") && at("p50") <= at("p99") && at("p99_99") <= at("max"), "{latency}");
    }
    assert!(figures["server"]["rss_peak_bytes"].as_u64() > Some(1_000_000), "{figures}");
    assert_well_formed_svg(&std::fs::read_to_string(&plot).expect("a plot"));
    for file in [hdr, dir.path().join("out-accepted.hgrm")] {
        let text = std::fs::read_to_string(&file).expect("percentiles");
        assert!(text.contains(&format!("Total count    = {completed:12}")), "{text}");
    }
    node.must_run();
}

#[tokio::test]
async fn open_loop_sends_at_the_scheduled_rate() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path(), &[]).await;
    let bench = Bench::new(dir.path(), node.http);
    let figures = bench.figures(&["turns", "--connections", "4", "--rate", "50", "--duration", "2s"]).await;
    assert_eq!((&figures["loop"], &figures["rate"]), (&"open".into(), &50.0.into()));
    assert_eq!((&figures["counts"]["asked"], &figures["counts"]["completed"]), (&100.into(), &100.into()));
    assert_eq!(figures["latency_us"]["late"]["count"], 100);
    assert!(figures["server"].is_null(), "nobody was watched");
}

#[tokio::test]
async fn streams_arrive_byte_for_byte() {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = Served::start(dir.path(), &["agent", "--stamps"]).await;
    let named = format!("bench=http://{}", agent.address);
    let node = node(dir.path(), &["--agent", &named]).await;
    let bench = Bench::new(dir.path(), node.http);
    let args = ["--connections", "4", "--duration", "1s", "--tokens", "50", "--pace", "2ms"];
    let figures = bench.figures(&[&["stream", "--agent", "bench", "--stamped"], &args[..]].concat()).await;
    let answers = figures["counts"]["completed"].as_u64().expect("a count");
    // Each token of every answer is measured; 16 digits and a blank are 17 bytes.
    assert_eq!(figures["latency_us"]["relay"]["count"], 50 * answers, "{figures}");
    assert_eq!(figures["counts"]["text_bytes"], 50 * 17 * answers);
    let figures = bench.figures(&[&["stream", "--agent", "echo"], &args[..]].concat()).await;
    assert_eq!((&figures["ok"], &figures["throughput"]["unit"]), (&true.into(), &"deltas".into()));
}

#[tokio::test]
async fn idle_connection_memory_is_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path(), &[]).await;
    let bench = Bench::new(dir.path(), node.http).watching(node.pid());
    let figures = bench.figures(&["idle", "--connections", "40", "--big", "4", "--duration", "1s"]).await;
    let idle = &figures["idle"];
    assert_eq!((&idle["held"], &idle["big"], &figures["loop"]), (&40.into(), &4.into(), &Value::Null));
    for key in ["rss_before_bytes", "rss_idle_bytes", "rss_closed_bytes", "bytes_per_connection"] {
        assert!(idle[key].as_f64().is_some_and(|bytes| bytes >= 0.0), "{key}: {idle}");
    }
    assert!(idle["closed_share_of_peak"].as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)), "{idle}");
}

/// Covers: G-12, G5.
#[tokio::test]
async fn reconnecting_clients_have_no_gaps() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path(), &[]).await;
    let bench = Bench::new(dir.path(), node.http);
    let args = ["reconnect", "--connections", "20", "--rounds", "2", "--tokens", "30", "--pace", "5ms"];
    let figures = bench.figures(&args).await;
    let reconnect = &figures["reconnect"];
    assert_eq!((&reconnect["gaps"], &reconnect["verified"], &reconnect["rounds"]), (&0.into(), &20.into(), &2.into()));
    assert_eq!((&figures["counts"]["resumed"], &figures["counts"]["completed"]), (&40.into(), &40.into()));
    assert_eq!(figures["latency_us"]["resumed"]["count"], 40);
}

/// Covers: LN-MP3.
#[tokio::test]
async fn fanout_delivers_every_byte_to_every_listener() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path(), &[]).await;
    let bench = Bench::new(dir.path(), node.http);
    let args = ["fanout", "--connections", "10", "--duration", "1s", "--tokens", "20", "--pace", "5ms"];
    let figures = bench.figures(&args).await;
    let fanout = &figures["fanout"];
    assert!(fanout["turns"].as_u64() > Some(0) && fanout["deliveries"].as_u64() > Some(10), "{figures}");
    // Ten listeners and the sender each receive every byte.
    let text = figures["counts"]["text_bytes"].as_u64().expect("bytes");
    assert_eq!(fanout["delivered_bytes"].as_u64().map(|bytes| bytes / 10 * 11), Some(text));
    assert!(figures["latency_us"]["last_listener"]["count"].as_u64() > Some(0));
}

#[tokio::test]
async fn baseline_echo_and_commit_are_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let echo = Served::start(dir.path(), &["echo-server"]).await;
    let bench = Bench::new(dir.path(), echo.address).watching(echo.pid());
    for mode in [&["echo"][..], &["turns", "--bare"]] {
        let figures = bench.figures(&[mode, &["--connections", "4", "--duration", "500ms"]].concat()).await;
        assert_eq!((&figures["mode"], &figures["ok"]), (&"echo".into(), &true.into()));
        assert!(figures["server"]["cpu_us_each"].as_f64().is_some(), "{figures}");
    }
    let here = dir.path().display().to_string();
    let figures = bench.local(&["commit", "--dir", &here, "--duration", "500ms"]).await;
    assert_eq!(figures["latency_us"]["commit"]["count"], figures["counts"]["completed"]);
    let left = std::fs::read_dir(dir.path()).expect("a directory").flatten();
    assert!(left.into_iter().all(|file| !file.file_name().to_string_lossy().starts_with("turnway-bench-")));
}

#[tokio::test]
async fn first_delta_is_compared_with_a_direct_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = Served::start(dir.path(), &["agent"]).await;
    let direct = format!("http://{}", agent.address);
    let node = node(dir.path(), &["--agent", &format!("bench={direct}")]).await;
    let bench = Bench::new(dir.path(), node.http);
    let args = ["first-delta", "--agent", "bench", "--direct", &direct, "--rate", "40", "--duration", "1s"];
    let figures = bench.figures(&[&args[..], &["--connections", "4"]].concat()).await;
    let count = |measure: &str| figures["latency_us"][measure]["count"].as_u64();
    assert_eq!((count("first_delta"), count("direct")), (Some(20), Some(20)));
    assert!(figures["first_delta"]["added_us"]["p50"].as_f64().is_some_and(|added| added > 0.0), "{figures}");
}

/// Returns the counts that a load of calls ends with.
fn ends_of_calls(figures: &Value) -> [u64; 4] {
    ["asked", "completed", "mismatches", "unanswered"].map(|key| figures["counts"][key].as_u64().expect("a count"))
}

#[tokio::test]
async fn model_calls_are_counted_and_complete() {
    let dir = tempfile::tempdir().expect("a directory");
    let upstream = Served::start(dir.path(), &["model-upstream", "--chunks", "5", "--pause", "1ms"]).await;
    let node = node(dir.path(), &["--model", &format!("gpt=http://{}/v1", upstream.address)]).await;
    let bench = Bench::new(dir.path(), node.http);
    let through = format!("http://{}/v1", node.http);
    let direct = format!("http://{}/v1", upstream.address);
    for url in [&through, &direct] {
        let args = ["models", "--url", url, "--chunks", "5", "--connections", "4"];
        let figures = bench.local(&[&args[..], &["--stream", "--calls", "40"]].concat()).await;
        assert_eq!((&figures["loop"], &figures["throughput"]["count"]), (&"closed".into(), &40.into()));
        assert_eq!(ends_of_calls(&figures), [40, 40, 0, 0], "{figures}");
        let latency = &figures["latency_us"];
        assert_eq!((&latency["first_byte"]["count"], &latency["whole_call"]["count"]), (&40.into(), &40.into()));
        // Four pauses lie between the first piece and the last.
        assert!(latency["whole_call"]["min"].as_f64() >= Some(4000.0), "{latency}");
        let figures = bench.local(&[&args[..], &["--rate", "50", "--duration", "1s"]].concat()).await;
        assert_eq!((&figures["loop"], ends_of_calls(&figures)), (&"open".into(), [50, 50, 0, 0]), "{figures}");
        assert_eq!(figures["models"]["warm_up_calls"], 4);
    }
    // Two loads with a first call on each of four connections.
    let complete = metric(node.admin, "turnway_model_calls_total{outcome=\"complete\"}", 98).await;
    assert_eq!(complete, 98);
}

#[tokio::test]
async fn open_model_streams_are_held_and_weighed() {
    let dir = tempfile::tempdir().expect("a directory");
    let upstream = Served::start(dir.path(), &["model-upstream", "--pause", "1m"]).await;
    let node = node(dir.path(), &["--model", &format!("gpt=http://{}/v1", upstream.address)]).await;
    let bench = Bench::new(dir.path(), node.http);
    let url = format!("http://{}/v1", node.http);
    let pid = node.pid().to_string();
    let args = ["models", "--url", &url, "--stream", "--hold", "--connections", "20", "--duration", "300ms"];
    let figures = bench.local(&[&args[..], &["--server-pid", &pid]].concat()).await;
    assert_eq!((&figures["models"]["held"], &figures["ok"]), (&20.into(), &true.into()), "{figures}");
    assert!(figures["models"]["rss_held_bytes"].as_u64() > Some(1_000_000), "{figures}");
}

#[tokio::test]
async fn incomplete_model_answer_fails_the_load() {
    let dir = tempfile::tempdir().expect("a directory");
    let upstream = Served::start(dir.path(), &["model-upstream", "--chunks", "3"]).await;
    let bench = Bench::new(dir.path(), upstream.address);
    let url = format!("http://{}/v1", upstream.address);
    // Eight pieces are expected by default.
    for (args, why) in [(&["--stream"][..], "too few events"), (&[], "another text")] {
        let ended = bench.run(&[&["models", "--url", &url, "--connections", "2"][..], args].concat()).await;
        assert_eq!(ended.code, Some(1), "{args:?}: {ended:?}");
        assert!(ended.err.contains(why), "{args:?}: {ended:?}");
    }
}

#[tokio::test]
async fn takeover_of_a_session_with_history_is_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(dir.path(), &[]).await;
    let bench = Bench::new(dir.path(), node.http);
    let figures = bench.figures(&["history", "--connections", "2", "--facts", "600", "--duration", "20s"]).await;
    assert!(figures["history"]["facts_least"].as_u64() >= Some(600), "{figures}");
    node.kill_and_restart().await;
    let figures = bench.figures(&["take-up", "--connections", "2"]).await;
    let count = |measure: &str| figures["latency_us"][measure]["count"].as_u64();
    assert_eq!((count("admitted_long"), count("admitted_short")), (Some(2), Some(2)));
}

#[tokio::test]
async fn load_ends_when_the_node_dies() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(dir.path(), &[]).await;
    let bench = Bench::new(dir.path(), node.http);
    let args = ["stream", "--connections", "4", "--duration", "2s", "--grace", "1s", "--pace", "100ms"];
    let load = bench.begin(&args);
    // One accepted turn for each of the connections.
    metric(node.admin, "turnway_turn_accepted_total", 4).await;
    node.kill().await;
    let ended = load.await.expect("a load");
    assert!(matches!(ended.code, Some(1 | 69)), "{ended:?}");
}

#[tokio::test]
async fn errors_have_their_exit_codes_and_messages() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(dir.path(), &[]).await;
    let bench = Bench::new(dir.path(), node.http);
    let nowhere = "ws://127.0.0.1:1";
    for (args, code, why) in [
        (&["turns", "--url", nowhere][..], 69, "refused"),
        (&["turns", "--url", "ws://192.0.2.1:80"], 64, "--i-own-this-target"),
        (&["turns", "--url", "ftp://127.0.0.1"], 64, "ws://"),
        (&["turns", "--duration", "2h"], 64, "at most 1h"),
        (&["turns", "--rate", "0"], 64, "0.01"),
        (&["turns", "--connections", "100001"], 64, "100000"),
        (&["turns", "--server-pid", "4294967295"], 64, "no process"),
        (&["turns", "--size", "65536"], 64, "65536"),
        (&["turns", "--agent", "nobody"], 1, "not_found"),
        (&["idle"], 64, "--server-pid"),
        (&["idle", "--rate", "5"], 64, "no --rate"),
        (&["first-delta", "--agent", "echo", "--direct", "http://127.0.0.1:1"], 64, "--rate"),
        (&["models"], 64, "http://"),
        (&["models", "--hold"], 64, "--stream"),
        (&["models", "--url", "http://127.0.0.1:1", "--header", "x"], 64, "no colon"),
        (&["models", "--url", "http://127.0.0.1:1", "--calls", "1"], 64, "--calls"),
        (&["models", "--url", "http://127.0.0.1:1"], 69, "refused"),
        (&["nothing"], 64, "nothing"),
    ] {
        let ended = bench.run(args).await;
        assert_eq!(ended.code, Some(code), "{args:?}: {ended:?}");
        assert!(ended.err.contains(why), "{args:?}: {}", ended.err);
    }
    let help = bench.run(&["--help"]).await;
    assert!(help.code == Some(0) && help.out.contains("reconnect"), "{help:?}");
}

#[tokio::test]
async fn benchmarks_page_names_every_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let here = dir.path().display().to_string();
    let told = Bench::new(dir.path(), ([127, 0, 0, 1], 1).into());
    let told = told.local(&["commit", "--dir", &here, "--duration", "300ms"]).await;
    let page = include_str!("../../docs/benchmarks.md");
    for key in keys(&told) {
        let is_named = page.contains(&format!("`{key}`")) || page.contains(&format!(".{key}`"));
        assert!(is_named, "docs/benchmarks.md does not name `{key}`");
    }
}

//! The metrics document, the registry and a running node agree.
use crate::scrape::Scrape;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tokio::time::{Instant, timeout_at};
use turnway_tests::real::http::get;
use turnway_tests::real::load::Load;
use turnway_tests::real::node::Node;
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{PATIENCE, figure};

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md")
}

#[test]
fn metrics_document_matches_the_registry() {
    let anew = turnway::metrics::document().expect("each family once");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path(), &anew).expect("docs/metrics.md can be written");
    }
    let document = std::fs::read_to_string(path()).unwrap_or_default();
    assert!(anew == document, "docs/metrics.md is stale: `./test bless` writes it");
}

/// A row of the document.
struct Row {
    kind: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

fn documented() -> BTreeMap<String, Row> {
    let document = std::fs::read_to_string(path()).expect("docs/metrics.md");
    let rows = document.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.split(" | ").collect();
        let [name, kind, _, labels, ..] = cells[..] else { panic!("not a row: {line}") };
        let labels = labels.trim_matches('|').trim().split("; ").filter_map(|label| {
            let (name, values) = label.split_once(": ")?;
            let values = values.split(' ').map(|value| value.trim_matches('`').to_owned());
            Some((name.trim_matches('`').to_owned(), values.collect()))
        });
        Some((name.trim_end_matches('`').to_owned(), Row { kind: kind.to_owned(), labels: labels.collect() }))
    });
    rows.collect()
}

/// Checks that names contain an area and a unit, and that labels are known and bounded.
#[test]
fn metric_names_and_labels_follow_the_rules() {
    let mut series = 0;
    for (name, row) in documented() {
        let ours = name.starts_with("turnway_");
        assert!(ours || name.starts_with("process_"), "{name}");
        let parts = name.split('_').count();
        assert!(!ours || parts >= 3, "{name} names no area, or nothing in it");
        assert_eq!(name.ends_with("_total"), row.kind == "counter", "{name} is a {}", row.kind);
        let bound: usize = row.labels.values().map(BTreeSet::len).product();
        assert!(bound <= 576 && row.labels.len() <= 3, "{name} has {bound} children");
        for label in row.labels.keys() {
            let known = [
                "agent",
                "cause",
                "code",
                "direction",
                "kind",
                "method",
                "op",
                "order",
                "outcome",
                "phase",
                "reason",
                "resource",
                "route",
                "source",
                "status",
                "strategy",
                "transport",
                "upstream",
                "version",
                "whose",
            ];
            assert!(known.contains(&label.as_str()), "{name} has a label {label}");
        }
        series += bound * if row.kind == "histogram" { 20 } else { 1 };
    }
    assert!(series < 2_750, "{series} series of one node are too many");
}

/// Compares a node's families, after some activity, with the documented ones, and label values with their
/// documented values.
///
/// Covers: S-39.
#[tokio::test]
async fn node_exports_exactly_the_documented_metrics() {
    let dir = tempfile::tempdir().expect("a directory");
    let node =
        Node::start(dir.path(), &["--demo", "--agent", "far=dial-in:", "--model", "far=http://127.0.0.1:9/v1"]).await;
    let load = Load::start(node.http, 3);
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    let counting = invoke("s1", "counter", "count to 1000 every 50ms");
    let run = wire.ask("r1", counting).await.expect("accepted")["run_id"].clone();
    wire.until(|message| message["type"] == "delta").await.expect("it counts");
    wire.say(json!({"type": "cancel_run", "run_id": run})).await.expect("said");
    wire.until(|message| message["type"] == "done").await.expect("it ends");
    wire.ask("r2", invoke("s1", "nobody", "hi")).await.expect("refused");
    wire.say(json!({"type": "subscribe", "session_id": "s1", "after_seq": 1})).await.expect("said");
    wire.until(|message| message["type"] == "subscribed").await.expect("it is behind");
    drop(wire);
    for (path, status) in [("/", 200), ("/nothing", 404)] {
        assert_eq!(get(node.http, path).await.map(|(status, _)| status), Some(status));
    }
    let shown = [
        "turnway_turn_ended_total{outcome=\"cancelled\",strategy=\"enqueue\"}",
        "turnway_turn_end_seconds_count{outcome=\"cancelled\"}",
        "turnway_request_refused_total{code=\"not_found\"}",
        "turnway_delivery_resumes_total{outcome=\"behind\"}",
        "turnway_agent_first_token_seconds_count",
        "turnway_http_requests_total{method=\"GET\",route=\"/\",status=\"2xx\"}",
        "turnway_http_answer_seconds_count{route=\"other\"}",
        "turnway_link_closes_total{code=\"1006\",transport=\"websocket\"}",
    ];
    // The node's state is sampled a few times a second.
    let deadline = Instant::now() + PATIENCE;
    let scrape = loop {
        let scrape = timeout_at(deadline, Scrape::of(node.admin)).await.expect("it is counted in time");
        if shown.iter().all(|series| scrape.value(series) >= 1.0) {
            break scrape;
        }
    };
    let turns = load.stop().await;
    figure("series", scrape.samples.len());
    figure("bytes of a scrape", scrape.text.len());
    assert!(turns > 0 && scrape.value("turnway_node_ready") == 1.0);
    let mut documented = documented();
    // Messages between nodes are counted by kind once one is sent, and this node is alone.
    documented.remove("turnway_bus_words_total").expect("it is documented");
    let names = |families: &BTreeMap<String, String>| families.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&scrape.families), documented.keys().cloned().collect::<Vec<_>>());
    for (name, row) in &documented {
        assert_eq!(scrape.families[name], row.kind, "{name}");
    }
    for ((family, label), values) in &scrape.labels {
        let known = &documented[family].labels[label];
        // Values named by the operator appear as a placeholder in the document.
        if known.iter().all(|value| value.starts_with('<')) {
            // The demo has a model of its own.
            let named = values.iter().filter(|value| *value != "demo");
            assert!(named.eq(["far"]), "{family}: {label} is {values:?}");
            continue;
        }
        assert!(values.is_subset(known), "{family}: {label} is {values:?}, not {known:?}");
    }
}

/// Exports what a drain still waits for.
///
/// Covers: S-46.
#[tokio::test]
async fn metrics_show_the_progress_of_a_drain() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let mut wire = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("welcome");
    wire.ask("r1", invoke("s1", "counter", "count to 20 every 100ms")).await.expect("accepted");
    wire.until(|message| message["type"] == "delta").await.expect("it counts");
    node.signal("-TERM").await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let scrape = timeout_at(deadline, Scrape::of(node.admin)).await.expect("it shows in time");
        let draining = scrape.value("turnway_node_phase{phase=\"draining\"}") == 1.0;
        if draining && scrape.value("turnway_node_drain_sessions") == 1.0 {
            assert_eq!(scrape.value("turnway_node_ready"), 0.0);
            assert_eq!(scrape.value("turnway_node_phase{phase=\"serving\"}"), 0.0);
            break;
        }
    }
    wire.until(|message| message["type"] == "done").await.expect("its turn ends");
    assert_eq!(node.exit().await, Some(0));
}

//! Nodes with models, and the values of their metrics.
use crate::caller::Caller;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::time::interval;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::http::get;
use turnway_tests::real::node::{Node, binary};
use turnway_tests::real::upstream::ScriptedUpstream;

/// Time within which an upstream must see that its call is over.
pub(crate) const CLOSED_WITHIN: Duration = Duration::from_secs(1);

/// Returns `ID=URL` and further settings, each after a comma, for `--model`.
pub(crate) fn flag(id: &str, upstream: &ScriptedUpstream, settings: &str) -> String {
    let comma = if settings.is_empty() { "" } else { "," };
    format!("{id}={}{comma}{settings}", upstream.url())
}

/// Returns `--model` before each of these.
pub(crate) fn model_args(models: &[String]) -> Vec<&str> {
    models.iter().flat_map(|model| ["--model", model.as_str()]).collect()
}

/// Starts a node that lets everybody in, with these models.
pub(crate) async fn open_node(dir: &TempDir, models: &[String]) -> Node {
    Node::start(dir.path(), &model_args(models)).await
}

/// Starts a node with one upstream, as the model `gpt` with these settings; returns a caller as well.
pub(crate) async fn with_gpt(dir: &TempDir, upstream: &ScriptedUpstream, settings: &str) -> (Node, Caller) {
    let node = open_node(dir, &[flag("gpt", upstream, settings)]).await;
    let caller = Caller::new(&node);
    (node, caller)
}

/// Writes a program that starts the node's binary with these environment variables.
pub(crate) fn with_environment(dir: &Path, variables: &[(&str, &str)]) -> PathBuf {
    let script = dir.join("with-environment");
    let exports: String = variables.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let text = format!("#!/bin/sh\n{exports}exec '{}' \"$@\"\n", binary().display());
    std::fs::write(&script, text).expect("a script");
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("it can be run");
    script
}

/// Starts a node with these environment variables.
pub(crate) async fn node_with_environment(dir: &TempDir, variables: &[(&str, &str)], args: &[&str]) -> Node {
    let program = with_environment(dir.path(), variables);
    let store = format!("embedded:{}", dir.path().join("data").display());
    Node::start_program_on(program, &store, dir.path(), args).await
}

/// Returns the sum of a metric's series whose labels contain this text.
pub(crate) async fn metric(node: &Node, name: &str, label: &str) -> f64 {
    let (_, text) = get(node.admin, "/metrics").await.expect("metrics");
    let series = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    let own = series.filter(|(series, _)| series.split('{').next() == Some(name) && series.contains(label));
    let values: Vec<f64> = own.map(|(_, value)| value.parse().expect("a number")).collect();
    assert!(!values.is_empty(), "no {name} with {label}");
    values.iter().sum()
}

/// Waits until a metric has a value. Metrics may be counted after the last byte of an answer.
pub(crate) async fn until_metric(node: &Node, name: &str, label: &str, value: f64) {
    let begun = Instant::now();
    let mut looks = interval(Duration::from_millis(20));
    loop {
        looks.tick().await;
        let now = metric(node, name, label).await;
        // Counts of calls are whole numbers.
        if (now - value).abs() < 0.5 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{name} {label}: {now} and not {value}");
    }
}

/// Waits until no call is open.
pub(crate) async fn until_quiet(node: &Node) {
    until_metric(node, "turnway_model_open_calls", "", 0.0).await;
}

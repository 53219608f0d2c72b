//! Whole turns that are requested at one node and run at another.
use crate::TwoNodes;
use turnway_tests::real::{figure, size};

/// Returns the number of Redis function calls and their total time in microseconds.
fn calls(stats: &str) -> (f64, f64) {
    let of = |line: &str, name: &str| {
        let (_, rest) = line.split_once(name)?;
        rest.split(',').next()?.parse::<f64>().ok()
    };
    let lines = stats.lines().filter(|line| line.starts_with("cmdstat_fcall"));
    lines.fold((0.0, 0.0), |(calls, micros), line| {
        (calls + of(line, "calls=").unwrap_or_default(), micros + of(line, "usec=").unwrap_or_default())
    })
}

async fn turns(level: &str, settings: &[&str]) {
    let pair = TwoNodes::start(level, settings).await;
    let connections = size("FLEET_PACE_CONNECTIONS", 32);
    let seconds = size("FLEET_PACE_SECONDS", 1);
    let connections = connections.to_string();
    let duration = format!("{seconds}s");
    for round in 1..=size("FLEET_PACE_ROUNDS", 1) {
        let began = pair.begin_at();
        let args = ["--connections", &connections, "--duration", &duration, "--begin-at", &began];
        let before = pair.spent();
        let _: redis::Value = pair.redis.command(&["CONFIG", "RESETSTAT"]);
        let figures = pair.bench().figures(&[&["turns"], &args[..]].concat()).await;
        let after = pair.spent();
        let stats = pair.redis.command::<String>(&["INFO", "commandstats"]);
        let rate = figures["throughput"]["per_second"].as_f64().expect("a rate");
        let all = figures["counts"]["completed"].as_f64().expect("a count");
        let name = format!("{level}, round {round}: turns a second across nodes, {connections} connections");
        figure(&name, format!("{rate:.0}"));
        let latency = &figures["latency_us"]["first_delta"];
        figure(
            &format!("{level}, round {round}: their first text, p50 / p99 µs"),
            format!("{} / {}", latency["p50"], latency["p99"]),
        );
        let client = figures["generator"]["cpu_s"].as_f64().expect("seconds");
        figure(&format!("{level}, round {round}: processor time of a turn, µs"), after.each(before, client, all));
        let (calls, micros) = calls(&stats);
        let each = format!("{:.2} of {:.1} µs", calls / all, micros / calls);
        figure(&format!("{level}, round {round}: functions of a turn"), each);
        assert!(figures["counts"]["completed"].as_u64() > Some(32), "{figures}");
        let bells = pair.counted_out("turnway_bus_words_total").await;
        assert!(bells > all, "they were run at the other node: {bells} words to the edge for {all} turns");
    }
}

/// Covers: G-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_across_nodes_with_mem_durability_are_measured() {
    turns("mem", &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_across_nodes_with_os_durability_are_measured() {
    turns("os", &["--appendonly", "yes", "--appendfsync", "everysec"]).await;
}

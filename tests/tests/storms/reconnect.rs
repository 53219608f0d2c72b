//! Tests that all clients reconnect at once after all connections break.
use crate::{bystanders, pin, times};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use turnway_tests::real::bench::Bench;
use turnway_tests::real::node::Node;
use turnway_tests::real::{amount, figure, quantile};

/// Time until the last client has resumed (G-12).
const RESUMED_WITHIN: Duration = Duration::from_secs(20);
/// 99th percentile of the other clients' turns, in the worst window; a window is as long as a storm with its
/// beginning and end (G-12).
const BYSTANDERS_WITHIN: Duration = Duration::from_millis(250);
/// The same in medians of their turns, for a machine that is slower than that of docs/benchmarks.md, where a median is
/// 1.7 ms.
const BYSTANDERS_MEDIANS_MAX: u32 = 150;
const WINDOW: Duration = Duration::from_secs(3);

/// Number of times that all connections break.
const ROUNDS: usize = 2;
/// Time limit of the whole test: connections are opened, dropped twice, and their sessions read again.
const STORM: Duration = Duration::from_secs(240);

/// Covers: G-12, G-11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mass_reconnect_does_not_delay_other_clients() {
    let count = amount("STORM_CLIENTS", 1000);
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_on("memory:", dir.path(), &["--demo"]).await;
    pin(node.pid(), 0).await;
    pin(std::process::id(), 1).await;
    let calm = watch::Sender::new(false);
    let others = tokio::spawn(bystanders(node.http, 50, Duration::from_millis(500), calm.subscribe()));
    let bench = Bench::new(dir.path(), node.http).watching(node.pid()).patient(STORM);
    let connections = count.to_string();
    let rounds = ROUNDS.to_string();
    let since = Instant::now();
    // A tenth of the clients is in the middle of an answer, which is slow enough to last through the whole test.
    let args = ["reconnect", "--connections", &connections, "--sources", "4", "--rounds", &rounds, "--open", "10"];
    let figures = bench.figures(&[&args[..], &["--tokens", "60", "--pace", "250ms"]].concat()).await;
    calm.send_replace(true);
    let took = others.await.expect("they are done");

    let resumed: Vec<f64> = figures["reconnect"]["all_resumed_ms"]
        .as_array()
        .expect("rounds")
        .iter()
        .map(|ms| ms.as_f64().expect("a time"))
        .collect();
    let worst = (0..=since.elapsed().as_secs())
        .map(|second| since + Duration::from_secs(second))
        .filter_map(|from| {
            let within = |at: &&(Instant, Duration)| (from..from + WINDOW).contains(&at.0);
            let window: Vec<_> = took.iter().filter(within).copied().collect();
            (!window.is_empty()).then(|| quantile(&mut times(&window), 0.99))
        })
        .max()
        .expect("some seconds");
    figure(&format!("{count} clients dropped at once, until the last has resumed, ms"), format!("{resumed:.0?}"));
    figure("gaps; sessions read again and the same", {
        format!("{}; {}", figures["reconnect"]["gaps"], figures["reconnect"]["verified"])
    });
    figure("turns of 50 others meanwhile", took.len());
    figure("their p50 and p99, and p99 of the worst 3 s", {
        format!("{:?} {:?} {worst:?}", quantile(&mut times(&took), 0.5), quantile(&mut times(&took), 0.99))
    });
    assert_eq!(
        (&figures["reconnect"]["gaps"], &figures["reconnect"]["verified"]),
        (&0.into(), &count.into()),
        "{figures}"
    );
    assert_eq!(resumed.len(), ROUNDS, "{figures}");
    let most = resumed.iter().copied().fold(0.0, f64::max);
    assert!(Duration::from_secs_f64(most / 1e3) <= RESUMED_WITHIN, "{resumed:?}");
    let median = quantile(&mut times(&took), 0.5);
    assert!(worst <= BYSTANDERS_WITHIN.max(BYSTANDERS_MEDIANS_MAX * median), "{worst:?}, median {median:?}");
}

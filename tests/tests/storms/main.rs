//! Load tests with many clients at once: all reconnect at the same time (`reconnect`), or all stop reading
//! (`stalled`). The node runs on the first core and the load on the second. `./test long storms` runs the full
//! size.
mod reconnect;
mod stalled;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use turnway_tests::real::wire::WebSocketClient;

/// Pins a process with all its threads to one core, if the machine has that core.
async fn pin(pid: u32, core: usize) {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > core) {
        let core = core.to_string();
        let pid = pid.to_string();
        let mut pin = Command::new("taskset");
        pin.args(["-a", "-c", "-p", &core, &pid]).stdout(Stdio::null());
        assert!(pin.status().await.expect("taskset runs").success(), "{pid} cannot be pinned");
    }
}

/// Clients outside the storm: each runs short turns at a steady pace, at least one. Returns the due time and the
/// duration of each turn.
async fn bystanders(
    to: SocketAddr,
    count: usize,
    pace: Duration,
    until: watch::Receiver<bool>,
) -> Vec<(Instant, Duration)> {
    let mut clients = JoinSet::new();
    for n in 0..count {
        let mut until = until.clone();
        clients.spawn(async move {
            let user = format!("bystander-{n}");
            let mut wire = WebSocketClient::hello(to, &user, vec![]).await.expect("welcome");
            // Spread evenly over the time between two turns of one client.
            let first = tokio::time::Instant::now() + pace.mul_f64(n as f64 / count as f64);
            let mut due = tokio::time::interval_at(first, pace);
            due.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut took = Vec::new();
            for turn in 0.. {
                let since = tokio::select! {
                    since = due.tick() => since.into_std(),
                    _ = until.wait_for(|over| *over) => break,
                };
                let (said, done) = wire.turn(&user, "echo", &format!("m{turn}"), "a word").await.expect("no error");
                assert_eq!((said.as_str(), &done["status"]), ("a word", &"completed".into()), "{done}");
                took.push((since, since.elapsed()));
            }
            assert!(!took.is_empty(), "{user} had no turn in the time of the storm");
            took
        });
    }
    let mut all = Vec::new();
    while let Some(took) = clients.join_next().await {
        all.extend(took.unwrap_or_else(|why| panic!("a bystander: {why}")));
    }
    all.sort_unstable();
    all
}

/// Returns the durations.
fn times(of: &[(Instant, Duration)]) -> Vec<Duration> {
    of.iter().map(|(_, took)| *took).collect()
}

/// Polls until the condition holds.
async fn until(mut is_so: impl FnMut() -> bool) {
    let mut again = interval(Duration::from_millis(50));
    while !is_so() {
        again.tick().await;
    }
}

//! Compares what a node holds, by its own gauges and by `/proc`, before some load and once the node is idle again.
use std::collections::BTreeMap;
use std::fmt::Write;
use tokio::time::{Instant, timeout_at};
use turnway_tests::real::PATIENCE;
use turnway_tests::real::http::get;
use turnway_tests::real::node::Node;

/// Value that a gauge must have when the node is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleRule {
    /// Zero: the gauge counts held or waiting items.
    Zero,
    /// The same value as before the load: the gauge describes the node.
    Same,
    /// Any value, for this reason.
    Exempt(&'static str),
}

use IdleRule::{Exempt, Same, Zero};

/// Every gauge of a node. A gauge that is missing here fails the test: add it with the value that it must have.
const LAWS: &[(&str, IdleRule)] = &[
    ("process_max_fds", Same),
    // Compared with `/proc` as well: files that a node keeps open are opened at its start.
    ("process_open_fds", Exempt("counts the connection that asks and the one before; open files are compared by kind")),
    ("process_resident_memory_bytes", Exempt("the allocator keeps pages; other tests bound memory")),
    ("process_start_time_seconds", Same),
    ("process_threads", Exempt("threads of blocking calls stay for some seconds, and their number is bounded")),
    ("process_virtual_memory_bytes", Exempt("address space is reserved and costs nothing")),
    ("turnway_agent_connections", Zero),
    ("turnway_agent_remote_attempts", Zero),
    ("turnway_adapter_links", Zero),
    ("turnway_adapter_open", Zero),
    ("turnway_adapter_paused_accounts", Zero),
    ("turnway_binding_work", Zero),
    ("turnway_task_open", Zero),
    ("turnway_auth_jwks_keys", Same),
    ("turnway_auth_keys", Same),
    ("turnway_build_info", Same),
    ("turnway_clock_skew_seconds", Exempt("a measurement of two clocks")),
    ("turnway_driver_queue_inputs", Zero),
    ("turnway_inbox_deepest_turns", Zero),
    ("turnway_inbox_waiting_turns", Zero),
    ("turnway_link_capacity", Same),
    ("turnway_link_connections", Zero),
    ("turnway_link_held", Zero),
    ("turnway_model_open_calls", Zero),
    ("turnway_model_upstream_up", Same),
    ("turnway_node_drain_sessions", Zero),
    ("turnway_node_phase", Same),
    ("turnway_node_ready", Same),
    ("turnway_node_unready", Zero),
    ("turnway_share_capacity", Same),
    ("turnway_share_held", Zero),
    ("turnway_share_waiting_turns", Zero),
    ("turnway_store_attested", Same),
    ("turnway_store_capacity_bytes", Exempt("of a disk that others write to, too")),
    ("turnway_store_damaged_sessions", Zero),
    ("turnway_store_quota_bytes", Exempt("a part of what is free")),
    ("turnway_store_used_bytes", Exempt("what was said stays")),
    ("turnway_store_waiting_ops", Zero),
    ("turnway_switchboard_asks", Zero),
    ("turnway_switchboard_feeds", Zero),
    ("turnway_switchboard_links", Zero),
    ("turnway_switchboard_seats", Zero),
    ("turnway_switchboard_timers", Same),
    ("turnway_tls_certificate_end_seconds", Same),
    ("turnway_tls_certificate_stale", Zero),
    ("turnway_turn_oldest_open_seconds", Zero),
    ("turnway_turn_open", Zero),
];

/// Resources that a node held at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// Gauge samples, by series.
    gauges: BTreeMap<String, f64>,
    /// Open files by kind: a path, or a kind without its number, such as `socket`.
    files: BTreeMap<String, usize>,
}

impl Held {
    /// Waits until a node is idle: every gauge that must be zero is zero, and the others have their values of
    /// `before`. Returns the held resources.
    pub(crate) async fn when_quiet(node: &Node, before: Option<&Self>) -> Self {
        let deadline = Instant::now() + PATIENCE;
        let mut broken = vec!["no answer".to_owned()];
        loop {
            match timeout_at(deadline, Self::of(node)).await {
                Err(_) => panic!("not quiet after {PATIENCE:?}:\n  {}", broken.join("\n  ")),
                Ok(held) => {
                    broken = held.broken(before);
                    if broken.is_empty() {
                        return held;
                    }
                    assert!(Instant::now() < deadline, "not quiet after {PATIENCE:?}:\n  {}", broken.join("\n  "));
                }
            }
        }
    }

    async fn of(node: &Node) -> Self {
        let (status, page) = get(node.admin, "/metrics").await.expect("the node listens");
        assert_eq!(status, 200, "{page}");
        Self { gauges: gauges(&page), files: files(node.pid()) }
    }

    /// Returns one line for each value that is not allowed.
    fn broken(&self, before: Option<&Self>) -> Vec<String> {
        let mut broken = Vec::new();
        for (series, now) in &self.gauges {
            let family = series.split('{').next().unwrap_or_default();
            let law = LAWS.iter().find(|(name, _)| *name == family).map(|(_, law)| law);
            match law.unwrap_or_else(|| panic!("{family} is a new gauge: say in LAWS what it is when all is quiet")) {
                Zero if *now != 0.0 => broken.push(format!("{series} is {now}, not 0")),
                Same => {
                    let was = before.and_then(|before| before.gauges.get(series));
                    if was.is_some_and(|was| was != now) {
                        broken.push(format!("{series} is {now}, not {was:?}"));
                    }
                }
                Zero | Exempt(_) => {}
            }
        }
        // Fewer are no leak: the connection that asked may have been counted before.
        let has_more = |before: &Self| {
            self.files.iter().any(|(kind, count)| *count > before.files.get(kind).copied().unwrap_or_default())
        };
        if let Some(before) = before.filter(|before| has_more(before)) {
            broken.push(format!("open files: {}", difference(&before.files, &self.files)));
        }
        broken
    }
}

/// Returns the samples of the gauges on a page of metrics.
fn gauges(page: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut is_gauge = false;
    for line in page.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            is_gauge = family.ends_with(" gauge");
        } else if is_gauge && !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').expect("a sample");
            samples.insert(series.to_owned(), value.parse().expect("a number"));
        }
    }
    samples
}

/// Counts a process's open files by kind.
fn files(pid: u32) -> BTreeMap<String, usize> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a Linux process").flatten() {
        // A file that was closed since the listing is skipped.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy();
        let kind = if target.starts_with('/') { &*target } else { target.split(':').next().unwrap_or_default() };
        *files.entry(kind.to_owned()).or_default() += 1;
    }
    files
}

fn difference(before: &BTreeMap<String, usize>, now: &BTreeMap<String, usize>) -> String {
    let mut text = String::new();
    let all: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    for file in all {
        let [was, is] = [before, now].map(|files| files.get(file).copied().unwrap_or(0));
        if was != is {
            let _ = write!(text, "{file} {is}, not {was}; ");
        }
    }
    text
}

/// Asserts that the node still shows every gauge that `LAWS` lists.
pub(crate) fn must_be_complete(held: &Held) {
    let shown = |name: &str| held.gauges.keys().any(|series| series.split('{').next() == Some(name));
    let gone: Vec<&str> = LAWS.iter().map(|(name, _)| *name).filter(|name| !shown(name)).collect();
    assert!(gone.is_empty(), "LAWS names gauges that a node does not show: {gone:?}");
}

#[test]
fn gauge_values_are_checked_against_their_idle_rules() {
    let of = |page: &str| Held { gauges: gauges(page), files: BTreeMap::from([("socket".to_owned(), 3)]) };
    let page = |seats: u64, timers: u64| {
        format!(
            "# TYPE turnway_switchboard_seats gauge\nturnway_switchboard_seats {seats}\n# TYPE x counter\nx 7\n# TYPE turnway_switchboard_timers gauge\nturnway_switchboard_timers {timers}\n"
        )
    };
    let before = of(&page(0, 4));
    assert_eq!(of(&page(0, 4)).broken(Some(&before)), Vec::<String>::new());
    assert_eq!(of(&page(1, 4)).broken(Some(&before)), ["turnway_switchboard_seats is 1, not 0"]);
    assert_eq!(of(&page(0, 5)).broken(Some(&before)), ["turnway_switchboard_timers is 5, not Some(4.0)"]);
    assert_eq!(of(&page(0, 5)).broken(None), Vec::<String>::new());
    let leaking = Held { files: BTreeMap::from([("socket".to_owned(), 4)]), ..before.clone() };
    assert_eq!(leaking.broken(Some(&before)), ["open files: socket 4, not 3; "]);
}

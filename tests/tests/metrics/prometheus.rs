//! A real Prometheus that scrapes a real node under load and answers queries.
use crate::scrape::Scrape;
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::{Instant, interval, timeout};
use turnway_tests::real::http::get;
use turnway_tests::real::load::Load;
use turnway_tests::real::node::Node;
use turnway_tests::real::{PATIENCE, figure};

/// Maximum duration of a scrape of a busy node. Prometheus itself gives up after its interval, here 1 s.
const SCRAPE_SECONDS_MAX: f64 = 0.5;

/// Interval of polling.
const PACE: Duration = Duration::from_millis(50);

/// Returns a program of Debian's package, from `PROMETHEUS_BIN` or from where `./test` unpacked it.
fn program(name: &str) -> Command {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/prometheus/usr/bin");
    let program = std::env::var_os("PROMETHEUS_BIN").map_or(unpacked, PathBuf::from).join(name);
    assert!(program.exists(), "no {}: `./test` brings it", program.display());
    Command::new(program)
}

pub(crate) fn promtool() -> Command {
    program("promtool")
}

/// Runs a command to its end with this input, and returns its success and its output.
pub(crate) async fn run(command: &mut Command, input: &str) -> (bool, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).await.expect("it reads");
    drop(stdin);
    let output = timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").expect("its output");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said.into_owned())
}

struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes this node every second and loads the project's alerts.
    async fn start(dir: &Path, node: SocketAddr) -> Self {
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus/rules.yml");
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n\
             - job_name: turnway\n  static_configs: [{{targets: ['{node}']}}]\n",
            rules.display()
        );
        std::fs::write(dir.join("prometheus.yml"), config).expect("a file");
        // Prometheus does not report its port, so the test chooses one, which another process may take first.
        for _ in 0..5 {
            let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
            let address = free.expect("a free port");
            let log = std::fs::File::create(dir.join("prometheus.log")).expect("a log file");
            let child = program("prometheus")
                .arg("--config.file=prometheus.yml")
                .arg("--storage.tsdb.path=tsdb")
                .arg(format!("--web.listen-address={address}"))
                .current_dir(dir)
                .stdout(Stdio::null())
                .stderr(log)
                .kill_on_drop(true)
                .spawn();
            let mut this = Self { child: child.expect("Prometheus starts"), address };
            if timeout(PATIENCE, this.ready()).await.expect("it is ready in time") {
                return this;
            }
        }
        panic!(
            "Prometheus does not start: {}",
            std::fs::read_to_string(dir.join("prometheus.log")).unwrap_or_default()
        );
    }

    /// Waits until Prometheus serves. Returns false if it has exited.
    async fn ready(&mut self) -> bool {
        let mut pace = interval(PACE);
        loop {
            pace.tick().await;
            if get(self.address, "/-/ready").await.is_some_and(|(status, _)| status == 200) {
                return true;
            }
            if self.child.try_wait().expect("its state is known").is_some() {
                return false;
            }
        }
    }

    async fn api(&self, path: &str) -> Value {
        let (status, body) = get(self.address, &format!("/api/v1/{path}")).await.expect("it listens");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        assert!(status == 200 && answer["status"] == "success", "{path}: {body}");
        answer["data"].clone()
    }

    /// Returns the value of an expression with at most one result.
    async fn ask(&self, expression: &str) -> Option<f64> {
        let query: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let data = self.api(&format!("query?query={query}")).await;
        let found = data["result"].as_array().expect("a vector");
        assert!(found.len() <= 1, "{expression}: {data}");
        found.first()?["value"][1].as_str().expect("a number").parse().ok()
    }

    /// Repeats a query until the value satisfies `fits`.
    async fn until(&self, expression: &str, fits: impl Fn(f64) -> bool) -> f64 {
        let deadline = Instant::now() + PATIENCE;
        let mut pace = interval(PACE);
        loop {
            pace.tick().await;
            let answer = self.ask(expression).await;
            if let Some(value) = answer.filter(|value| fits(*value)) {
                return value;
            }
            assert!(Instant::now() < deadline, "{expression} is {answer:?}");
        }
    }
}

/// Covers: MP-M6, S-39.
#[tokio::test]
async fn prometheus_scrapes_a_busy_node_and_answers_queries() {
    let dir = tempfile::tempdir().expect("a directory");
    let home = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let prometheus = Prometheus::start(home.path(), node.admin).await;
    let load = Load::start(node.http, 4);
    prometheus.until("up{job='turnway'}", |up| up == 1.0).await;
    prometheus.until("sum_over_time(up{job='turnway'}[1m])", |scrapes| scrapes >= 6.0).await;

    let since = "[5s]";
    for counter in [
        "turnway_turn_ended_total{outcome='completed',strategy='enqueue'}",
        "turnway_turn_accepted_total",
        "turnway_store_commits_total",
        "turnway_link_bytes_total{direction='out'}",
        "turnway_agent_calls_total{outcome='done'}",
        "turnway_log_facts_total",
        "process_cpu_seconds_total",
    ] {
        let rate = prometheus.until(&format!("rate({counter}{since})"), |rate| rate > 0.0).await;
        figure(&format!("per second, {counter}"), format!("{rate:.1}"));
    }
    for histogram in [
        "turnway_turn_accept_seconds",
        "turnway_turn_first_delta_seconds",
        "turnway_turn_end_seconds",
        "turnway_log_append_seconds",
        "turnway_store_commit_seconds",
        "turnway_store_batch_ops",
        "turnway_agent_first_token_seconds",
        "turnway_driver_round_seconds",
    ] {
        let expression = format!("histogram_quantile(0.9, sum by (le) (rate({histogram}_bucket{since})))");
        let value = prometheus.until(&expression, f64::is_finite).await;
        assert!(value > 0.0, "{expression} is {value}");
        figure(&format!("p90, {histogram}"), value);
    }
    healthy(&prometheus).await;
    let turns = load.stop().await;
    let counted = "sum(turnway_turn_ended_total)";
    #[expect(clippy::cast_precision_loss, reason = "a few thousand turns")]
    let all = turns as f64;
    assert_eq!(prometheus.until(counted, |ended| ended >= all).await, all, "every turn was counted once");
    node_is_clean(&node).await;
}

/// Asserts that no scrape failed or was slow, that every rule was evaluated, and that no alert fired.
async fn healthy(prometheus: &Prometheus) {
    let failed = prometheus.ask("count_over_time((up{job='turnway'} == 0)[1m:1s])").await;
    assert_eq!(failed, None, "scrapes failed");
    let targets = prometheus.api("targets").await;
    let target = &targets["activeTargets"][0];
    assert!(target["health"] == "up" && target["lastError"] == "", "{target}");
    let took = prometheus.ask("max_over_time(scrape_duration_seconds{job='turnway'}[1m])").await;
    let took = took.expect("it was scraped");
    figure("longest scrape, seconds", took);
    assert!(took < SCRAPE_SECONDS_MAX, "a scrape took {took} s");
    let samples = prometheus.ask("scrape_samples_scraped{job='turnway'}").await;
    figure("samples of a scrape", samples.expect("it was scraped"));
    let rules = prometheus.api("rules").await;
    for rule in rules["groups"][0]["rules"].as_array().expect("the alerts") {
        // The disk is the machine's: others write to it, too. An alert about it is pending for minutes before it fires.
        let is_of_the_disk = rule["name"] == "TurnwaySlowCommits" && rule["state"] == "pending";
        assert!(rule["health"] == "ok" && (rule["state"] == "inactive" || is_of_the_disk), "{rule}");
    }
}

/// Checks names, types and help texts with promtool.
async fn node_is_clean(node: &Node) {
    let text = Scrape::of(node.admin).await.text;
    let (good, said) = run(promtool().args(["check", "metrics"]), &text).await;
    assert!(good && said.trim().is_empty(), "{said}");
    let spoiled = text.replace("turnway_turn_accepted_total", "turnway_turn_accepted");
    let (good, said) = run(promtool().args(["check", "metrics"]), &spoiled).await;
    assert!(!good && said.contains("_total"), "promtool complains of what is wrong: {said}");
}

/// Checks that a scrape of an idle node is quick.
#[tokio::test]
async fn scrape_of_an_idle_node_is_quick() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(dir.path(), &[]).await;
    let mut took = Vec::new();
    for _ in 0..50 {
        let began = Instant::now();
        Scrape::of(node.admin).await;
        took.push(began.elapsed());
    }
    let median = turnway_tests::real::quantile(&mut took, 0.5);
    figure("median scrape of an idle node, µs", median.as_micros());
    assert!(median < Duration::from_millis(100), "{median:?}");
}

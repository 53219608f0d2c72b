//! Three real nodes on one real Redis: one accepts an input, another runs it, and a third delivers it.
//!
//! Covers: G1, G2, G3, G5, G6, G9.
mod delivery;
mod fleet_script;
mod haproxy;
mod leaving;
mod nodes;
mod outages;
mod owners;
mod redis_outage;
mod resumable;
mod rolling;
mod takeover;
mod view;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::time::{interval, timeout};
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Invocation, Reply};
use turnway_tests::real::http;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;
use turnway_tests::real::wire::WebSocketClient;
use turnway_tests::real::{PATIENCE, figure, quantile};
use view::View;

/// Number of pieces of one answer.
const PIECES: usize = 40;
/// Interval of the pieces where the text begins with `paced`; otherwise each piece needs a permit.
const PACE: Duration = Duration::from_millis(40);
/// Names of three agents: retried on owner loss, failed on owner loss, and resumed on owner loss.
const STEADY: &str = "steady";
const ONCE: &str = "once";
const LASTING: &str = "lasting";
/// Redis settings under which a killed server loses no acknowledged write.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Nodes, their store, and an agent that sends a piece for each permit. The first node owns the sessions that
/// are opened there.
struct Fleet {
    redis: Redis,
    agents: Agents,
    /// Permits for pieces; once closed, all pieces are sent at once.
    pace: Arc<Semaphore>,
    nodes: Vec<Node>,
    dir: TempDir,
}

/// Returns the answer to a message, equal for all attempts.
fn answer(text: &str) -> String {
    (0..PIECES).map(|n| piece(text, n)).collect()
}

fn piece(text: &str, n: usize) -> String {
    format!("{text}·{n} ß語𝄞 ")
}

/// Returns the interval that a text names, as in `paced …` or `paced:MS …`.
fn own_pace(text: &str) -> Option<Duration> {
    let named = text.strip_prefix("paced")?.strip_prefix(':').and_then(|rest| rest.split(' ').next());
    Some(named.map_or(PACE, |ms| Duration::from_millis(ms.parse().expect("milliseconds"))))
}

/// Prints the median of durations, and the value at rank `most`; returns both.
fn figure_quantiles(name: &str, of: &mut [Duration], most: f64) -> (Duration, Duration) {
    let half = quantile(of, 0.5);
    let most = quantile(of, most);
    figure(name, format!("{half:?} / {most:?}"));
    (half, most)
}

async fn speak(stream: AgentStream, pace: Arc<Semaphore>, invocation: Invocation) -> Result<(), HungUp> {
    let mut own = own_pace(&invocation.text).map(interval);
    for n in 0..PIECES {
        if let Some(own) = &mut own {
            own.tick().await;
            stream.delta(&piece(&invocation.text, n)).await?;
            continue;
        }
        tokio::select! {
            permit = pace.acquire() => permit.into_iter().for_each(|permit| permit.forget()),
            hung_up = stream.hung_up() => return hung_up,
        }
        stream.delta(&piece(&invocation.text, n)).await?;
    }
    stream.done().await
}

impl Fleet {
    async fn start(nodes: usize) -> Self {
        let pace = Arc::new(Semaphore::new(0));
        let held = Arc::clone(&pace);
        let agents = Agents::start(move |asked| {
            let pace = Arc::clone(&held);
            if asked.agent == LASTING {
                Reply::outlive(|stream| speak(stream, pace, asked))
            } else {
                Reply::speak(|stream| speak(stream, pace, asked))
            }
        });
        let agents = agents.await;
        let dir = tempfile::tempdir().expect("a directory");
        let redis = Redis::start(&dir.path().join("redis"), &DURABLE);
        let mut fleet = Self { redis, agents, pace, nodes: Vec::new(), dir };
        for _ in 0..nodes {
            fleet.join().await;
        }
        fleet
    }

    /// Starts one more node and returns its index.
    async fn join(&mut self) -> usize {
        let index = self.nodes.len();
        let dir = self.dir.path().join(format!("node-{index}"));
        std::fs::create_dir_all(&dir).expect("a directory");
        let steady = self.agents.flag(STEADY) + ",on_owner_loss=retry";
        let once = self.agents.flag(ONCE) + ",on_owner_loss=fail";
        let lasting = self.agents.flag(LASTING) + ",on_owner_loss=resume";
        let url = self.redis.url();
        let name = format!("n{index}");
        let flags = ["--demo", "--agent", &steady, "--agent", &once, "--agent", &lasting, "--node-name", &name];
        let node = Node::start_on(&url, Path::new(&dir), &flags).await;
        self.nodes.push(node);
        index
    }

    /// Returns the id of a session's owner node, as recorded in Redis.
    fn owner(&self, session: &str) -> String {
        let own = format!("own:{{default/{session}}}");
        self.redis.command::<Option<String>>(&["HGET", &own, "n"]).unwrap_or_default()
    }

    /// Returns the sum of a node's metric over all lines with this prefix.
    async fn counted(&self, node: usize, metric: &str) -> f64 {
        let (_, text) = http::get(self.nodes[node].admin, "/metrics").await.expect("its operator is served");
        let lines = text.lines().filter(|line| line.starts_with(metric));
        lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number")).sum()
    }

    /// Waits until a node's metric exceeds this value.
    async fn until_counted(&self, node: usize, metric: &str, more_than: f64) {
        let grown = async {
            while self.counted(node, metric).await <= more_than {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, grown).await.unwrap_or_else(|_| panic!("{metric} stays at {more_than}"));
    }

    /// Waits until the agent has been invoked for that attempt.
    async fn until_asked(&self, run: &str, attempt: u64) {
        let asked = async {
            while !self.agents.journal().iter().any(|asked| asked.run_id == run && asked.attempt == attempt) {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, asked).await.unwrap_or_else(|_| panic!("{run}: nobody was asked"));
    }

    /// Starts a turn of an agent at node `owner`, then opens its session at node `edge`. Returns the view of either node,
    /// and the run.
    async fn ask_and_watch(
        &self,
        session: &str,
        (agent, text): (&str, &str),
        owner: usize,
        edge: usize,
    ) -> (View, View, String) {
        let mut asker = View::open(self.nodes[owner].http, "ann", session).await;
        let run = asker.start_turn_of(agent, "r1", text).await;
        let watcher = View::open(self.nodes[edge].http, "ann", session).await;
        (asker, watcher, run)
    }

    /// Starts a node in place of the last one, which was killed.
    async fn replace_last_node(&mut self) {
        self.nodes.pop();
        self.pace.forget_permits(usize::MAX);
        self.join().await;
    }

    /// Asserts that a node that was suspended notices that it lost its lease, and that a new turn there reaches its own
    /// client and that of another node.
    async fn assert_woken_node_serves(&self, node: usize, agent: &str, sleeper: &mut View, watcher: &mut View) {
        self.until_counted(node, "turnway_ownership_leases_lost_total", 0.0).await;
        let next = sleeper.start_turn_of(agent, "r2", "second").await;
        for view in [&mut *sleeper, &mut *watcher] {
            assert_eq!(view.until_done(&next).await["status"], "completed");
        }
        // The views fail on a second end of a run, so there was one.
        assert_eq!(sleeper.facts(), watcher.facts());
    }

    /// Returns the number of successful resume requests for a run.
    fn resumed(&self, run: &str) -> usize {
        let again = self.agents.resume_requests();
        again.iter().filter(|again| again.run_id == run && again.status == 200).count()
    }

    /// Runs turns on every node until all nodes can detect another node's death: a node must have been in
    /// contact with the store for 3.5 s.
    async fn settle(&self) {
        let began = Instant::now();
        for n in 0.. {
            for (index, node) in self.nodes.iter().enumerate() {
                let mut wire = WebSocketClient::hello(node.http, "warm", vec![]).await.expect("it connects");
                let session = format!("warm-{index}-{n}");
                wire.turn(&session, "echo", "1", "one word after another").await.expect("it ends");
            }
            if began.elapsed() > Duration::from_secs(4) {
                return;
            }
        }
    }
}

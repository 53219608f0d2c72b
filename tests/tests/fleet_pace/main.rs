//! Cost of a session that is run by another node than its client's, compared with bare Redis round trips in
//! the same run. `./test long fleet-pace` runs the full size.
mod first;
mod relay;
mod turns;

use std::path::Path;
use tempfile::TempDir;
use turnway_tests::real::bench::{Bench, Served};
use turnway_tests::real::http;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;

/// Two nodes on one Redis. Clients connect to `edge`; sessions are opened at `owner`, which therefore owns
/// them.
struct TwoNodes {
    redis: Redis,
    edge: Node,
    owner: Node,
    agent: Served,
    dir: TempDir,
}

/// CPU time of each process of a pair, in seconds.
#[derive(Clone, Copy)]
struct Spent {
    edge: f64,
    owner: f64,
    redis: f64,
    agent: f64,
}

impl TwoNodes {
    /// Starts a pair with a store of this durability and an agent with `on_owner_loss=retry`, whose first
    /// text need not be recorded before delivery.
    async fn start(level: &str, settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let redis = Redis::start(&dir.path().join("redis"), settings);
        let agent = Served::start(dir.path(), &["agent", "--stamps"]).await;
        let flag = format!("lean=http://{},on_owner_loss=retry", agent.address);
        let url = redis.url();
        let flags = ["--demo", "--durability", level, "--agent", &flag, "--node-name"];
        let node = async |name: &str| {
            let home = dir.path().join(name);
            std::fs::create_dir_all(&home).expect("a directory");
            Node::start_on(&url, &home, &[&flags[..], &[name]].concat()).await
        };
        let edge = node("edge").await;
        let owner = node("owner").await;
        Self { redis, edge, owner, agent, dir }
    }

    /// Returns a load generator whose clients connect to the edge node.
    fn bench(&self) -> Bench {
        Bench::new(self.dir.path(), self.edge.http)
    }

    /// Returns the URL of the node at which sessions are opened.
    fn begin_at(&self) -> String {
        format!("ws://{}", self.owner.http)
    }

    /// Returns whether the owner node owns a session, as recorded in Redis.
    fn is_owned(&self, session: &str) -> bool {
        let own = format!("own:{{default/{session}}}");
        self.redis.command::<Option<String>>(&["HGET", &own, "n"]).as_deref() == Some(&self.owner.id)
    }

    /// Returns the CPU time used so far.
    fn spent(&self) -> Spent {
        let of = |pid| cpu_seconds(pid);
        Spent {
            edge: of(self.edge.pid()),
            owner: of(self.owner.pid()),
            redis: of(self.redis.pid()),
            agent: of(self.agent.pid()),
        }
    }

    /// Returns the owner's count of messages sent to the edge node.
    async fn counted_out(&self, metric: &str) -> f64 {
        let (_, text) = http::get(self.owner.admin, "/metrics").await.expect("its operator is served");
        let lines = text.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix("{direction=\"out\""));
        lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number")).sum()
    }
}

impl Spent {
    /// Returns the CPU time since `before`, in microseconds for each of `count`, together with the clients'
    /// time.
    fn each(self, before: Self, client_s: f64, count: f64) -> String {
        let of = |spent: f64, before: f64| (spent - before) * 1e6 / count;
        let edge = of(self.edge, before.edge);
        let owner = of(self.owner, before.owner);
        let redis = of(self.redis, before.redis);
        let agent = of(self.agent, before.agent);
        let client = client_s * 1e6 / count;
        let all = edge + owner + redis + agent + client;
        format!("{all:.1} (edge {edge:.1}, owner {owner:.1}, Redis {redis:.1}, agent {agent:.1}, clients {client:.1})")
    }
}

/// Returns a process's user and system time in seconds; clock ticks are 10 ms.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let stat = stat.expect("a Linux process");
    // The process name in parentheses may contain anything; the fields after it start with the third, the
    // state.
    let fields = stat.rsplit(')').next().expect("a name").split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<f64>().expect("a number") / 100.0).sum()
}

/// Returns the median.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

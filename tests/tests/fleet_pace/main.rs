//! What it costs that a session is run by another node than its client's, beside the bare trips to Redis that
//! it is made of, measured in the same run. `./test long fleet-pace` at full size.
mod first;
mod relay;
mod turns;

use std::path::Path;
use tempfile::TempDir;
use turnway_tests::real::bench::{Bench, Served};
use turnway_tests::real::http;
use turnway_tests::real::node::Node;
use turnway_tests::real::redis::Redis;

/// Two nodes on one Redis. Clients are at the edge; sessions are begun at the owner and so are its.
struct Pair {
    redis: Redis,
    edge: Node,
    owner: Node,
    agent: Served,
    dir: TempDir,
}

/// Processor time of each process of a pair.
#[derive(Clone, Copy)]
struct Spent {
    edge: f64,
    owner: f64,
    redis: f64,
    agent: f64,
}

impl Pair {
    /// With a store of this level, and an agent that may be asked twice: its first words need not be recorded
    /// before they are shown.
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
        let (edge, owner) = (node("edge").await, node("owner").await);
        Self { redis, edge, owner, agent, dir }
    }

    /// Clients at the edge.
    fn bench(&self) -> Bench {
        Bench::new(self.dir.path(), self.edge.http)
    }

    /// Where sessions are to be begun.
    fn begin_at(&self) -> String {
        format!("ws://{}", self.owner.http)
    }

    /// Whether a session is the owner's, as the store has it.
    fn is_owned(&self, session: &str) -> bool {
        let own = format!("own:{{default/{session}}}");
        self.redis.command::<Option<String>>(&["HGET", &own, "n"]).as_deref() == Some(&self.owner.id)
    }

    /// Processor time so far.
    fn spent(&self) -> Spent {
        let of = |pid| cpu_seconds(pid);
        Spent {
            edge: of(self.edge.pid()),
            owner: of(self.owner.pid()),
            redis: of(self.redis.pid()),
            agent: of(self.agent.pid()),
        }
    }

    /// What the owner has counted of what it said to the edge.
    async fn said(&self, metric: &str) -> f64 {
        let (_, text) = http::get(self.owner.admin, "/metrics").await.expect("its operator is served");
        let lines =
            text.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix("{direction=\"out\""));
        lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number")).sum()
    }
}

impl Spent {
    /// Since then, for each of so many, in microseconds; with what the clients took.
    fn each(self, before: Self, client_s: f64, count: f64) -> String {
        let of = |spent: f64, before: f64| (spent - before) * 1e6 / count;
        let (edge, owner) = (of(self.edge, before.edge), of(self.owner, before.owner));
        let (redis, agent) = (of(self.redis, before.redis), of(self.agent, before.agent));
        let client = client_s * 1e6 / count;
        let all = edge + owner + redis + agent + client;
        format!(
            "{all:.1} (edge {edge:.1}, owner {owner:.1}, Redis {redis:.1}, agent {agent:.1}, clients {client:.1})"
        )
    }
}

/// User and system time of a process: clock ticks of 10 ms.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let stat = stat.expect("a Linux process");
    // After the name, which is in parentheses and may hold anything: state is the third field of all.
    let fields = stat.rsplit(')').next().expect("a name").split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<f64>().expect("a number") / 100.0).sum()
}

/// The one in the middle.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

//! The fleet under test and the faults injected into it.
use crate::takeovers::{Build, Takeovers};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;
use turnway_core::limits;
use turnway_core::rng::Rng;
use turnway_tests::real::node::{Node, binary, earlier_binary};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::{PATIENCE, amount};

/// Number of nodes in a fleet.
pub(crate) const NODES: usize = 3;
/// A fleet of the build under test only.
pub(crate) const ONE_BUILD: [Build; NODES] = [Build::Present; NODES];
/// Redis settings under which a killed server loses no acknowledged write.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
/// Turns that end before the first fault.
const TURNS_BEFORE: u64 = 100;
/// Duration after which a suspended node has lost its lease and other nodes have noticed that.
const ASLEEP: Duration = limits::LEASE.saturating_add(Duration::from_millis(1500));

/// State shared by the clients and the fault injector.
pub(crate) struct Shared {
    /// Addresses of the nodes that are believed to serve; a suspended node is among them.
    up: Mutex<Vec<SocketAddr>>,
    /// Number of messages that all clients have read.
    heard: AtomicU64,
    /// Number of turns whose end their client has seen.
    ended: AtomicU64,
    more: Notify,
    over: AtomicBool,
    pub(crate) patience: Duration,
}

/// Times from each fault to the next end of a turn.
#[derive(Default)]
pub(crate) struct Gaps {
    pub(crate) kills: Vec<Duration>,
    pub(crate) stops: Vec<Duration>,
    pub(crate) redis: Vec<Duration>,
}

/// Numbers of faults, and the seed of their order.
pub(crate) struct Faults {
    pub(crate) seed: u64,
    /// `kill -9` of a node.
    pub(crate) kills: usize,
    /// Suspensions of a node for longer than its lease.
    pub(crate) stops: usize,
    /// `kill -9` of Redis.
    pub(crate) redis: usize,
    /// Time that a client waits for the end of a turn before it gives up.
    pub(crate) patience: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
    Redis,
}

pub(crate) struct Fleet {
    pub(crate) redis: Redis,
    pub(crate) nodes: Vec<Node>,
    builds: [Build; NODES],
    /// Nodes that are killed next, so that each is killed equally often.
    victims: Vec<usize>,
    pub(crate) takeovers: Takeovers,
}

// === impl Gaps ===

impl Gaps {
    /// Adds the times of further faults.
    pub(crate) fn append(&mut self, mut more: Self) {
        self.kills.append(&mut more.kills);
        self.stops.append(&mut more.stops);
        self.redis.append(&mut more.redis);
    }
}

// === impl Faults ===

impl Faults {
    /// Fails the test unless all faults happened, and turns ended before the first one, after each kill, and after the
    /// last fault.
    pub(crate) fn must_have_happened(&self, gaps: &Gaps, turns: usize) {
        let happened = [gaps.kills.len(), gaps.stops.len(), gaps.redis.len()];
        assert_eq!(happened, [self.kills, self.stops, self.redis], "kills, suspensions and kills of Redis");
        let ends = gaps.kills.len() + gaps.redis.len() + amount("FLEET_CHAOS_TURNS", 100);
        let least = usize::try_from(TURNS_BEFORE).expect("small") + ends;
        assert!(turns >= least, "{turns} turns, at least {least} have ended");
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(up: Vec<SocketAddr>, patience: Duration) -> Self {
        let heard = AtomicU64::new(0);
        let ended = AtomicU64::new(0);
        let up = Mutex::new(up);
        let over = AtomicBool::new(false);
        Self { up, heard, ended, more: Notify::new(), over, patience }
    }

    /// Returns any serving node.
    pub(crate) fn any(&self, rng: &mut Rng) -> Option<SocketAddr> {
        let up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        up.get(usize::try_from(rng.below(up.len().max(1) as u64)).expect("small")).copied()
    }

    pub(crate) fn heard(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        self.more.notify_waiters();
    }

    pub(crate) fn ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.more.notify_waiters();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Ends the test: the load is sufficient, or a client has given up.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.more.notify_waiters();
    }

    fn show(&self, up: Vec<SocketAddr>) {
        *self.up.lock().unwrap_or_else(PoisonError::into_inner) = up;
    }

    /// Waits until a count has grown by `more`, or the test is over: after a client has given up no further
    /// result is expected.
    async fn until(&self, count: &AtomicU64, more: u64) {
        let goal = count.load(Ordering::Relaxed) + more;
        let reached = async {
            loop {
                let next = self.more.notified();
                if self.is_over() || count.load(Ordering::Relaxed) >= goal {
                    return;
                }
                next.await;
            }
        };
        timeout(2 * PATIENCE, reached).await.expect("the clients hear nothing any more");
    }

    async fn until_heard(&self, more: u64) {
        self.until(&self.heard, more).await;
    }

    async fn until_ended(&self, more: u64) {
        self.until(&self.ended, more).await;
    }
}

// === impl Fleet ===

impl Fleet {
    /// Starts nodes of these builds with these agents over a Redis, into which these functions are loaded first, if
    /// given.
    pub(crate) async fn start(dir: &Path, agents: &[String], builds: [Build; NODES], functions: Option<&str>) -> Self {
        let redis = Redis::start(&dir.join("redis"), &DURABLE);
        let mut fleet = Self { redis, nodes: Vec::new(), builds, victims: Vec::new(), takeovers: Takeovers::default() };
        if let Some(functions) = functions {
            fleet.redis.command::<String>(&["FUNCTION", "LOAD", functions]);
        }
        let url = fleet.redis.url();
        for (n, build) in builds.into_iter().enumerate() {
            let dir = dir.join(format!("node-{n}"));
            let name = format!("n{n}");
            std::fs::create_dir_all(&dir).expect("a directory");
            let mut flags: Vec<&str> = agents.iter().flat_map(|flag| ["--agent", flag]).collect();
            flags.extend(["--node-name", &name]);
            let node = Node::start_program_on(program(build), &url, &dir, &flags).await;
            fleet.takeovers.node_started(&node.id, build);
            fleet.nodes.push(node);
        }
        fleet
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.http).collect()
    }

    /// Injects all faults in a random order, each under load.
    pub(crate) async fn inject_faults(&mut self, stage: &Shared, rng: &mut Rng, blows: &Faults) -> Gaps {
        let Faults { kills, stops, redis, .. } = *blows;
        let mut blows = vec![Fault::Kill; kills];
        blows.extend(vec![Fault::Stop; stops]);
        blows.extend(vec![Fault::Redis; redis]);
        let mut gaps = Gaps::default();
        stage.until_ended(TURNS_BEFORE).await;
        while !blows.is_empty() && !stage.is_over() {
            let at = usize::try_from(rng.below(blows.len() as u64)).expect("small");
            match blows.swap_remove(at) {
                Fault::Kill => gaps.kills.push(self.kill(stage, rng, None).await),
                Fault::Stop => {
                    // Another node may be killed while one is suspended.
                    let too = (rng.below(2) == 0)
                        .then(|| blows.iter().position(|blow| matches!(blow, Fault::Kill)))
                        .flatten();
                    let kill = too.map(|at| blows.swap_remove(at)).is_some();
                    self.stop(stage, rng, kill, &mut gaps).await;
                }
                Fault::Redis => {
                    self.redis.kill();
                    self.redis.restart();
                    let back = Instant::now();
                    stage.until_ended(1).await;
                    gaps.redis.push(back.elapsed());
                }
            }
            stage.until_heard(500 + rng.below(2_000)).await;
            self.takeovers.update(&self.redis);
        }
        stage.until_ended(amount("FLEET_CHAOS_TURNS", 100) as u64).await;
        gaps
    }

    /// Returns the next node to kill, another one than a suspended node.
    fn victim(&mut self, rng: &mut Rng, suspended: Option<usize>) -> usize {
        if self.victims.iter().all(|n| Some(*n) == suspended) {
            self.victims.extend(0..NODES);
        }
        let possible: Vec<usize> = (0..self.victims.len()).filter(|&at| Some(self.victims[at]) != suspended).collect();
        let at = usize::try_from(rng.below(possible.len() as u64)).expect("small");
        self.victims.swap_remove(possible[at])
    }

    /// Kills a node and restarts it, as the same build, after a while.
    async fn kill(&mut self, stage: &Shared, rng: &mut Rng, suspended: Option<usize>) -> Duration {
        let victim = self.victim(rng, suspended);
        let gone = self.nodes[victim].http;
        self.nodes[victim].kill().await;
        let dead = Instant::now();
        stage.show(self.addresses().into_iter().filter(|at| *at != gone).collect());
        self.takeovers.node_killed(&self.redis, &self.nodes[victim].id);
        stage.until_ended(1).await;
        let gap = dead.elapsed();
        stage.until_heard(rng.below(1_000)).await;
        self.nodes[victim].restart().await;
        self.takeovers.node_started(&self.nodes[victim].id, self.builds[victim]);
        stage.show(self.addresses());
        gap
    }

    /// Suspends a node for longer than a lease.
    async fn stop(&mut self, stage: &Shared, rng: &mut Rng, kill: bool, gaps: &mut Gaps) {
        let sleeper = usize::try_from(rng.below(NODES as u64)).expect("small");
        self.nodes[sleeper].signal("-STOP").await;
        let asleep = Instant::now();
        if kill {
            gaps.kills.push(self.kill(stage, rng, Some(sleeper)).await);
        }
        while asleep.elapsed() < ASLEEP && !stage.is_over() {
            stage.until_heard(1).await;
        }
        gaps.stops.push(asleep.elapsed());
        self.nodes[sleeper].signal("-CONT").await;
    }

    /// Terminates all nodes and expects orderly exits.
    pub(crate) async fn leave(&mut self) {
        for node in &mut self.nodes {
            assert_eq!(node.terminate().await, Some(0), "it leaves when told");
        }
    }
}

/// Returns the node's program of a build.
fn program(build: Build) -> PathBuf {
    match build {
        Build::Earlier => earlier_binary(),
        Build::Present => binary(),
    }
}

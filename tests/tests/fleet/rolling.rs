//! A rolling restart under load: nodes leave one after the other.
use crate::view::View;
use crate::{Fleet, LASTING, ONCE, PIECES, STEADY, answer, figure_quantiles};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use turnway_core::limits;
use turnway_tests::real::wire::{ConnectionEnd, invoke};
use turnway_tests::real::{PATIENCE, figure, size};

/// Maximum time for a node to leave.
const LEAVES_WITHIN: Duration = Duration::from_secs(20);

/// The kind of turns that one client runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Workload {
    agent: &'static str,
    /// Duration of one answer.
    takes: Duration,
    /// The turn takes longer than a draining node waits and cannot be resumed: it may restart or fail, as its
    /// agent has declared.
    is_long: bool,
}

/// Numbers of turns by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcomes {
    whole: usize,
    again: usize,
    failed: usize,
}

/// State shared by the clients and the restarter of the nodes.
struct Shared {
    /// Addresses of the nodes that are not about to leave.
    up: watch::Sender<Vec<SocketAddr>>,
    ended: AtomicU64,
    moves: AtomicU64,
    over: AtomicBool,
}

impl Shared {
    /// Waits until this many more turns have ended.
    async fn until_ended(&self, more: u64) {
        let goal = self.ended.load(Ordering::Relaxed) + more;
        let reached = async {
            while self.ended.load(Ordering::Relaxed) < goal {
                tokio::task::yield_now().await;
            }
        };
        timeout(2 * PATIENCE, reached).await.expect("turns go on ending");
    }
}

/// One client, which moves when its node asks for that or is gone.
struct Client {
    stage: Arc<Shared>,
    view: View,
    n: usize,
    habit: Workload,
}

impl Client {
    async fn move_on(&mut self) {
        let mut patience = interval(Duration::from_millis(50));
        for round in self.n.. {
            patience.tick().await;
            let at = {
                let up = self.stage.up.borrow();
                up[round % up.len()]
            };
            if self.view.move_to(at).await.is_ok() {
                self.stage.moves.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Runs a turn to its end, across any number of nodes.
    async fn turn(&mut self, session: &str, id: &str, text: &str) -> String {
        let mut ask = invoke(session, self.habit.agent, text);
        ask["request_id"] = id.into();
        loop {
            if self.view.run(id).is_none() && self.view.wire.say(ask.clone()).await.is_err() {
                self.move_on().await;
                continue;
            }
            match self.follow(id).await {
                Ok(run) => return run,
                Err(_) => self.move_on().await,
            }
        }
    }

    /// Reads until a turn has ended, or the node asks its clients to leave.
    async fn follow(&mut self, id: &str) -> Result<String, ConnectionEnd> {
        loop {
            if let Some(run) = self.view.run(id).filter(|run| self.view.end(run).is_some()) {
                return Ok(run);
            }
            let message = self.view.next().await?;
            if message["type"] == "go_away" {
                return Err(ConnectionEnd::Broken("it was told to go".to_owned()));
            }
            assert!(message["type"] != "error" || self.habit.is_long, "{message}");
        }
    }

    /// Counts the outcome of a turn and checks it. A view fails on gaps or repeats of text or facts, and when
    /// a run ends twice.
    fn ended(&self, run: &str, text: &str, count: &mut Outcomes) {
        let done = self.view.end(run).expect("it has ended");
        let completed = done["status"] == "completed";
        let first = done["attempt"] == 1;
        assert!(!completed || self.view.answer(run) == answer(text), "{run}: another text");
        match (completed, first) {
            (true, true) => count.whole += 1,
            (true, false) => count.again += 1,
            (false, _) => count.failed += 1,
        }
        let as_declared = match (self.habit.is_long, self.habit.agent) {
            (false, _) => completed && first,
            (true, ONCE) => first,
            (true, _) => completed,
        };
        assert!(as_declared, "{done}");
    }
}

async fn run_client(stage: Arc<Shared>, n: usize, habit: Workload) -> (Workload, Outcomes) {
    let at = {
        let up = stage.up.borrow();
        up[n % up.len()]
    };
    let session = format!("rolling-{n}");
    let view = View::open(at, "ann", &session).await;
    let mut client = Client { stage, view, n, habit };
    let mut count = Outcomes::default();
    let pace = habit.takes.as_millis() as usize / PIECES;
    for turn in 0.. {
        if client.stage.over.load(Ordering::Relaxed) {
            break;
        }
        let text = format!("paced:{pace} {session} {turn}");
        let run = client.turn(&session, &format!("{session}-m{turn}"), &text).await;
        client.ended(&run, &text, &mut count);
        client.stage.ended.fetch_add(1, Ordering::Relaxed);
    }
    (habit, count)
}

/// Returns short turns of three lengths, long resumable ones, and long ones that cannot be resumed.
fn habits() -> Vec<Workload> {
    let ms = |name: &str, default: usize| Duration::from_millis(size(name, default) as u64);
    let short = |n: usize| {
        let takes = ms("FLEET_ROLLING_SHORT_MS", 1600) * (n as u32 % 3 + 1) / 3;
        Workload { agent: STEADY, takes, is_long: false }
    };
    let lasting = Workload { agent: LASTING, takes: ms("FLEET_ROLLING_LASTING_MS", 12_000), is_long: false };
    let long = |n: usize| {
        let agent = if n.is_multiple_of(2) { STEADY } else { ONCE };
        Workload { agent, takes: limits::DRAIN_TIMEOUT + Duration::from_secs(6), is_long: true }
    };
    let short = (0..size("FLEET_ROLLING_CLIENTS", 12)).map(short);
    let lasting = (0..size("FLEET_ROLLING_LASTING", 6)).map(|_| lasting);
    short.chain(lasting).chain((0..size("FLEET_ROLLING_LONG", 0)).map(long)).collect()
}

/// Covers: G-14, G2, G3, G5, G6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_fails_no_turn_and_repeats_no_byte() {
    let mut fleet = Fleet::start(3).await;
    let all = |fleet: &Fleet| fleet.nodes.iter().map(|node| node.http).collect::<Vec<_>>();
    let ended = AtomicU64::new(0);
    let moves = AtomicU64::new(0);
    let stage = Shared { up: watch::channel(all(&fleet)).0, ended, moves, over: AtomicBool::new(false) };
    let stage = Arc::new(stage);
    let mut clients = JoinSet::new();
    for (n, habit) in habits().into_iter().enumerate() {
        clients.spawn(run_client(Arc::clone(&stage), n, habit));
    }
    let mut leaving = Vec::new();
    for _ in 0..size("FLEET_ROLLS", 1) {
        for index in 0..fleet.nodes.len() {
            stage.until_ended(12).await;
            let gone = fleet.nodes[index].http;
            stage.up.send_replace(all(&fleet).into_iter().filter(|at| *at != gone).collect());
            let told = Instant::now();
            assert_eq!(fleet.nodes[index].terminate().await, Some(0), "it leaves when told");
            leaving.push(told.elapsed());
            fleet.nodes[index].restart().await;
            stage.up.send_replace(all(&fleet));
        }
    }
    stage.until_ended(12).await;
    stage.over.store(true, Ordering::Relaxed);
    let mut short = Outcomes::default();
    let mut lasting = Outcomes::default();
    let mut long = Outcomes::default();
    while let Some(ended) = clients.join_next().await {
        let (habit, count) = ended.unwrap_or_else(|why| panic!("a client: {why}"));
        let sum = match habit {
            Workload { is_long: true, .. } => &mut long,
            Workload { agent: LASTING, .. } => &mut lasting,
            Workload { .. } => &mut short,
        };
        (sum.whole, sum.again) = (sum.whole + count.whole, sum.again + count.again);
        sum.failed += count.failed;
    }
    let journal = fleet.agents.journal();
    let asked = journal.iter().filter(|asked| asked.agent == LASTING).count();
    assert_eq!(asked, lasting.whole, "each was asked of the agent once");
    let handed = fleet.agents.resume_requests().iter().filter(|again| again.status == 200).count();
    assert!(handed > 0, "none was handed over");
    if long == Outcomes::default() {
        assert_eq!(journal.len(), short.whole + lasting.whole, "each was asked of the agent once");
    }
    figure("turns through a rolling restart / clients that moved", {
        format!("{} / {}", short.whole, stage.moves.load(Ordering::Relaxed))
    });
    figure("of agents that outlive a node: turns / times they went on elsewhere", {
        format!("{} / {handed}", lasting.whole)
    });
    if long != Outcomes::default() {
        figure("longer than a node waits, and not to be gone on with: whole / begun again / failed", {
            format!("{} / {} / {}", long.whole, long.again, long.failed)
        });
    }
    let (_, most) = figure_quantiles("SIGTERM until a node has left, p50 / max", &mut leaving, 1.0);
    assert!(most <= LEAVES_WITHIN, "{most:?} to leave");
}

//! Nodes that leave when told, one after the other, under load.
use crate::view::View;
use crate::{Fleet, answer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use turnway_tests::real::wire::{Gone, invoke};
use turnway_tests::real::{PATIENCE, figure, quantile, size};

/// What a leaving node may take.
const LEAVES_WITHIN: Duration = Duration::from_secs(20);

/// What the clients share with the one who deploys.
struct Stage {
    /// Where nodes serve that are not about to leave.
    up: watch::Sender<Vec<SocketAddr>>,
    ended: AtomicU64,
    moves: AtomicU64,
    over: AtomicBool,
}

impl Stage {
    /// Until so many turns more have ended.
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

/// One client, which goes elsewhere when its node says so, or is gone.
struct Client {
    stage: Arc<Stage>,
    view: View,
    n: usize,
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

    /// Until a turn has ended, through however many nodes.
    async fn turn(&mut self, session: &str, id: &str, text: &str) -> String {
        let mut ask = invoke(session, "steady", text);
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

    /// Until a turn has ended, or this node does not want to be asked any more.
    async fn follow(&mut self, id: &str) -> Result<String, Gone> {
        loop {
            if let Some(run) = self.view.run(id).filter(|run| self.view.end(run).is_some()) {
                return Ok(run);
            }
            let message = self.view.next().await?;
            if message["type"] == "go_away" {
                return Err(Gone::Broken("it was told to go".to_owned()));
            }
            assert!(message["type"] != "error", "{message}");
        }
    }
}

async fn live(stage: Arc<Stage>, n: usize) -> usize {
    let at = {
        let up = stage.up.borrow();
        up[n % up.len()]
    };
    let session = format!("rolling-{n}");
    let view = View::open(at, "ann", &session).await;
    let (mut client, mut turns) = (Client { stage, view, n }, 0);
    while !client.stage.over.load(Ordering::Relaxed) {
        let text = format!("paced {session} {turns}");
        let run = client.turn(&session, &format!("{session}-m{turns}"), &text).await;
        let done = client.view.end(&run).expect("it has ended");
        // A view fails where text has gaps or comes again, where facts do, and where a run ends twice.
        assert_eq!((&done["status"], &done["attempt"]), (&"completed".into(), &1.into()), "{done}");
        assert!(client.view.answer(&run) == answer(&text), "{run}: another text");
        client.stage.ended.fetch_add(1, Ordering::Relaxed);
        turns += 1;
    }
    turns
}

/// Covers: G-14, G2, G3, G5, G6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_turn_and_repeats_no_byte() {
    let mut fleet = Fleet::start(3).await;
    let all = |fleet: &Fleet| fleet.nodes.iter().map(|node| node.http).collect::<Vec<_>>();
    let (ended, moves) = (AtomicU64::new(0), AtomicU64::new(0));
    let stage = Stage { up: watch::channel(all(&fleet)).0, ended, moves, over: AtomicBool::new(false) };
    let (stage, mut clients) = (Arc::new(stage), JoinSet::new());
    for n in 0..size("FLEET_ROLLING_CLIENTS", 12) {
        clients.spawn(live(Arc::clone(&stage), n));
    }
    let mut leaving = Vec::new();
    for _ in 0..size("FLEET_ROLLS", 1) {
        for place in 0..fleet.nodes.len() {
            stage.until_ended(12).await;
            let gone = fleet.nodes[place].http;
            stage.up.send_replace(all(&fleet).into_iter().filter(|at| *at != gone).collect());
            let told = Instant::now();
            assert_eq!(fleet.nodes[place].terminate().await, Some(0), "it leaves when told");
            leaving.push(told.elapsed());
            fleet.nodes[place].restart().await;
            stage.up.send_replace(all(&fleet));
        }
    }
    stage.until_ended(12).await;
    stage.over.store(true, Ordering::Relaxed);
    let mut turns = 0;
    while let Some(ended) = clients.join_next().await {
        turns += ended.unwrap_or_else(|why| panic!("a client: {why}"));
    }
    assert_eq!(fleet.agents.journal().len(), turns, "each was asked of the agent once");
    let (half, most) = (quantile(&mut leaving, 0.5), quantile(&mut leaving, 1.0));
    figure("turns through a rolling restart / clients that moved", {
        format!("{turns} / {}", stage.moves.load(Ordering::Relaxed))
    });
    figure("SIGTERM until a node has left, p50 / max", format!("{half:?} / {most:?}"));
    assert!(most <= LEAVES_WITHIN, "{most:?} to leave");
}

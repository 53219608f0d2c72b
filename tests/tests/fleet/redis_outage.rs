//! A Redis outage: no node leaves or hangs, and no session of a live owner is taken over.
use crate::view::View;
use crate::{Fleet, PIECES, answer};
use futures_util::future::join_all;
use std::time::{Duration, Instant};
use tokio::time::{interval, timeout};
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{PATIENCE, figure, http, size};

/// Maximum time to an answer, including a refusal.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Maximum time until all works again after Redis is back.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// Number of clients at each node that send an input at the moment Redis is killed.
const CAUGHT: usize = 8;

/// Sends an input as Redis is killed, expects an acceptance or a refusal, and returns the time to the answer.
async fn caught(wire: &mut WebSocketClient, session: &str) -> Duration {
    let since = Instant::now();
    let answer = wire.ask("caught", invoke(session, "echo", "hello")).await.expect("an answer");
    let refused = answer["code"] == "store_unavailable" && answer["retry_after_ms"].is_u64();
    assert!(refused || answer["type"] == "turn_accepted", "{answer}");
    since.elapsed()
}

/// Sends an input, expects a refusal, and returns the time to the answer.
async fn refused(wire: &mut WebSocketClient, session: &str, n: usize) -> Duration {
    let since = Instant::now();
    let answer = wire.ask(&format!("x{n}"), invoke(session, "echo", "hello")).await.expect("an answer");
    assert_eq!((&answer["type"], &answer["code"]), (&"error".into(), &"store_unavailable".into()), "{answer}");
    assert!(answer["retry_after_ms"].is_u64(), "{answer}");
    since.elapsed()
}

impl Fleet {
    async fn health(&self, node: usize, page: &str) -> u16 {
        http::get(self.nodes[node].admin, page).await.expect("its operator is served").0
    }

    /// Kills Redis while clients send inputs at every node, and returns the slowest answer's time.
    async fn kill_redis_during_inputs(&mut self) -> Duration {
        let mut wires = Vec::new();
        for (n, node) in self.nodes.iter().enumerate() {
            for m in 0..CAUGHT {
                let wire = WebSocketClient::hello(node.http, "eve", vec![]).await.expect("it connects");
                wires.push((wire, format!("caught-{n}-{m}")));
            }
        }
        let asks = join_all(wires.iter_mut().map(|(wire, session)| caught(wire, session)));
        let (waited, ()) = tokio::join!(asks, async { self.redis.kill() });
        let most = waited.into_iter().max().unwrap_or_default();
        assert!(most < AT_ONCE, "{most:?} until who asked as Redis died was answered");
        most
    }

    /// Sends inputs at this node until a turn has ended.
    async fn until_serves(&self, wire: &mut WebSocketClient, node: usize) {
        let mut again = interval(Duration::from_millis(50));
        for n in 0.. {
            again.tick().await;
            let session = format!("back-{node}");
            let id = format!("b{n}");
            let answer = wire.ask(&id, invoke(&session, "echo", "hello")).await.expect("an answer");
            if answer["type"] == "turn_accepted" {
                let run = answer["run_id"].clone();
                wire.until(|m| m["type"] == "done" && m["run_id"] == run).await.expect("its end");
                return;
            }
        }
    }
}

/// Covers: G-03, G2, G3, LN-EV6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_outage_refuses_inputs_and_keeps_running_turns() {
    let mut fleet = Fleet::start(3).await;
    fleet.settle().await;
    let mut owner = View::open(fleet.nodes[1].http, "ann", "s1").await;
    let run = owner.start_turn("r1", "first").await;
    let mut watcher = View::open(fleet.nodes[0].http, "ann", "s1").await;
    fleet.pace.add_permits(3);
    for view in [&mut owner, &mut watcher] {
        view.until_text(&run, 1, crate::piece("first", 0).len()).await;
    }
    let mut wires = Vec::new();
    for node in &fleet.nodes {
        wires.push(WebSocketClient::hello(node.http, "bob", vec![]).await.expect("it connects"));
    }

    let caught = fleet.kill_redis_during_inputs().await;
    let gone = Instant::now();
    let mut slowest = Duration::ZERO;
    let mut probes = 0;
    let away = Duration::from_secs(size("FLEET_AWAY_SECONDS", 6) as u64);
    let mut tick = interval(away / 30);
    while gone.elapsed() < away {
        tick.tick().await;
        probes += 1;
        for (n, wire) in wires.iter_mut().enumerate() {
            slowest = slowest.max(refused(wire, &format!("away-{n}"), probes).await);
            assert_eq!(fleet.health(n, "/livez").await, 200);
            assert_eq!(fleet.health(n, "/readyz").await, 503);
        }
        // Reading lets the client answer pings.
        drop(timeout(Duration::from_millis(1), watcher.next()).await);
        // A running turn is still delivered by its owner.
        if probes % 3 == 0 {
            let had = owner.text_of(&run, 1).len();
            fleet.pace.add_permits(1);
            owner.until_text(&run, 1, had + 1).await;
        }
    }
    assert!(slowest < AT_ONCE, "{slowest:?} until a turn was refused");
    for node in &mut fleet.nodes {
        node.must_run();
    }

    fleet.redis.restart();
    let back = Instant::now();
    for (n, wire) in wires.iter_mut().enumerate() {
        timeout(PATIENCE, fleet.until_serves(wire, n)).await.expect("it serves again");
    }
    let serves = back.elapsed();
    fleet.pace.add_permits(2 * PIECES);
    for view in [&mut owner, &mut watcher] {
        let done = view.until_done(&run).await;
        assert_eq!((&done["status"], &done["attempt"]), (&"completed".into(), &1.into()), "{done}");
        assert_eq!(view.answer(&run), answer("first"));
    }
    let ended = back.elapsed();
    let most = BACK_WITHIN;
    assert_eq!(owner.facts(), watcher.facts());
    assert!(serves < most && ended < most, "{serves:?} and {ended:?} until everything worked again");
    let mut taken_over = 0.0;
    for n in 0..fleet.nodes.len() {
        taken_over += fleet.counted(n, "turnway_ownership_takeovers_total").await;
    }
    assert_eq!(taken_over, 0.0, "nobody was dead");
    figure("Redis dies / slowest answer to who asked in that moment", format!("{caught:?}"));
    figure("Redis away for / slowest refusal meanwhile", format!("{away:?} / {slowest:?}"));
    figure("Redis back until every node serves / until the open turn has ended", format!("{serves:?} / {ended:?}"));
}

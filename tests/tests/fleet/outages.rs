//! Redis restarts and cut subscriptions.
use crate::view::View;
use crate::{Fleet, PIECES, answer, figure_quantiles};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use turnway_tests::real::wire::{WebSocketClient, invoke};
use turnway_tests::real::{PATIENCE, figure, size};

/// Clients of each node.
const CLIENTS: usize = 4;

/// Covers: G5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_subscription_recovers_in_mid_answer() {
    let fleet = Fleet::start(3).await;
    let mut owner = View::open(fleet.nodes[1].http, "ann", "s1").await;
    let run = owner.start_turn("r1", "first").await;
    let mut watcher = View::open(fleet.nodes[0].http, "ann", "s1").await;
    fleet.pace.add_permits(3);
    watcher.until_text(&run, 1, 1).await;
    let cut: u64 = fleet.redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(cut, 3);
    // Text sent while no node receives it.
    fleet.pace.add_permits(PIECES);
    for view in [&mut owner, &mut watcher] {
        assert_eq!(view.until_done(&run).await["status"], "completed");
        assert_eq!(view.answer(&run), answer("first"));
    }
    assert_eq!(owner.facts(), watcher.facts());
    fleet.until_counted(0, "turnway_bus_gaps_total{cause=\"broken\"}", 0.0).await;
    assert_eq!(fleet.agents.journal().len(), 1, "nobody took its owner for dead");
}

/// State shared by the clients and the killer of Redis.
#[derive(Default)]
struct Shared {
    /// Number of turns whose end any client has seen.
    ended: AtomicU64,
    more: Notify,
    over: AtomicBool,
}

impl Shared {
    async fn until_ended(&self, more: u64) {
        let goal = self.ended.load(Ordering::Relaxed) + more;
        let reached = async {
            loop {
                let next = self.more.notified();
                if self.ended.load(Ordering::Relaxed) >= goal {
                    return;
                }
                next.await;
            }
        };
        timeout(2 * PATIENCE, reached).await.expect("turns go on ending");
    }
}

/// Runs one client, which resends each input until it is accepted and follows the turn to its end. Returns
/// the status of each run.
async fn run_client(at: SocketAddr, user: String, session: String, stage: Arc<Shared>) -> BTreeMap<String, String> {
    let mut told = BTreeMap::new();
    let mut patience = interval(Duration::from_millis(100));
    let mut wire = WebSocketClient::hello(at, &user, vec![]).await.expect("it connects");
    for n in 0.. {
        if stage.over.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("{session}-m{n}");
        let mut run = None;
        let mut in_doubt = false;
        let mut ask = invoke(&session, "echo", "one word after another");
        ask["request_id"] = id.as_str().into();
        wire.say(ask.clone()).await.expect("it is said");
        // A client that is refused in doubt resends the input, and may see the end of the first run before
        // the second answer.
        let mut ends: BTreeMap<String, String> = BTreeMap::new();
        let status = loop {
            let message = wire.next().await.expect("no node closes a connection for its store's sake");
            if message["request_id"] == *id && message["type"] == "error" {
                assert_eq!(message["code"], "store_unavailable", "{message}");
                assert!(message["retry_after_ms"].is_u64(), "{message}");
                in_doubt |= message["message"].to_string().contains("may have been accepted");
                // The message keeps its id, so that it may be resent any number of times.
                patience.tick().await;
                wire.say(ask.clone()).await.expect("it is said");
            }
            if message["request_id"] == *id && message["type"] == "turn_accepted" {
                run = message["run_id"].as_str().map(str::to_owned);
                assert!(in_doubt || ends.is_empty(), "{id}: refused, and done all the same");
            }
            if message["type"] == "done" {
                let [run, status] = ["run_id", "status"].map(|name| message[name].as_str().expect("text").to_owned());
                let earlier = told.contains_key(&run) || ends.insert(run.clone(), status).is_some();
                assert!(!earlier, "{id}: {run} ended twice");
            }
            if let Some(status) = run.as_ref().and_then(|run| ends.remove(run)) {
                break status;
            }
        };
        assert!(ends.is_empty(), "{id}: ends of nothing that it said: {ends:?}");
        assert!(told.insert(run.expect("accepted"), status).is_none(), "{id}: it ended twice");
        stage.ended.fetch_add(1, Ordering::Relaxed);
        stage.more.notify_waiters();
    }
    told
}

/// Covers: G-03, G-04, G2, G3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_redis_loses_no_turn() {
    let mut fleet = Fleet::start(3).await;
    let stage = Arc::new(Shared::default());
    let mut clients = JoinSet::new();
    for n in 0..fleet.nodes.len() * CLIENTS {
        let at = fleet.nodes[n % fleet.nodes.len()].http;
        let user = format!("user-{n}");
        let session = format!("s-{n}");
        let told = run_client(at, user.clone(), session.clone(), Arc::clone(&stage));
        clients.spawn(async move { (user, session, told.await) });
    }
    let mut outages = Vec::new();
    for _ in 0..size("FLEET_REDIS_KILLS", 2) {
        stage.until_ended(50).await;
        fleet.redis.kill();
        fleet.redis.restart();
        let back = Instant::now();
        stage.until_ended(1).await;
        outages.push(back.elapsed());
        assert!(back.elapsed() < Duration::from_secs(10), "{:?} until a turn ended again", back.elapsed());
    }
    stage.until_ended(50).await;
    stage.over.store(true, Ordering::Relaxed);
    // Waits for all clients, so that each node serves again before its sessions are read.
    let ended = clients.join_all().await;
    let mut turns = 0;
    for (user, session, told) in ended {
        let mut view = View::open(fleet.nodes[0].http, &user, &session).await;
        for (run, status) in &told {
            // A view fails when a run ends twice, when facts have gaps, and when epochs go back.
            assert_eq!(view.until_done(run).await["status"], *status, "{run} ended otherwise than told");
        }
        turns += told.len();
    }
    figure("turns through the deaths of Redis", turns);
    figure_quantiles("from Redis serving again to the first turn's end, p50 / max", &mut outages, 1.0);
}

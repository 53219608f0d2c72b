//! Tests QUIC behind nginx, with the configuration that the project ships: two nodes on one Redis.
use super::lanes::{PIECES, piece, whole};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};
use tokio::sync::Semaphore;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::nginx::Nginx;
use turnway_tests::real::node::Node;
use turnway_tests::real::quic::{QuicConnection, socket, take};
use turnway_tests::real::redis::Redis;
use turnway_tests::real::tls::{Pair, Trust};
use turnway_tests::real::wire::invoke;
use turnway_tests::real::{PATIENCE, figure};

/// Longest time until a client that has moved receives more of its answer.
const WITHIN: Duration = Duration::from_secs(2);

/// Connections allowed from one address.
const PER_ADDRESS: usize = 3;

/// Two nodes with one certificate, nginx in front of them, and an agent that sends one piece for each permit.
struct Front {
    nodes: Vec<Node>,
    nginx: Nginx,
    trust: Trust,
    pace: Arc<Semaphore>,
    _redis: Redis,
    _agents: Agents,
    _dir: TempDir,
}

impl Front {
    async fn start() -> Self {
        let dir = tempdir().expect("a directory");
        let redis = Redis::start(dir.path(), &[]);
        let pace = Arc::new(Semaphore::new(0));
        let agents = Agents::start({
            let pace = Arc::clone(&pace);
            move |_| {
                let pace = Arc::clone(&pace);
                Reply::speak(move |stream| async move {
                    for n in 0..PIECES {
                        pace.acquire().await.expect("it stays").forget();
                        stream.delta(&piece(n)).await?;
                    }
                    stream.done().await
                })
            }
        })
        .await;
        let pair = Pair::make(dir.path(), "pair").await;
        let url = redis.url();
        let agent = agents.flag("a") + ",on_owner_loss=retry";
        let most = PER_ADDRESS.to_string();
        let common = ["--quic", "127.0.0.1:0", "--durability", "mem", "--agent", &agent];
        let counted = ["--per-address", &most, "--proxies", "127.0.0.0/8"];
        let mut nodes = Vec::new();
        for name in ["n1", "n2"] {
            let own = dir.path().join(name);
            std::fs::create_dir(&own).expect("a directory");
            nodes.push(Node::start_on(&url, &own, &[&common[..], &counted, &pair.flags()].concat()).await);
        }
        let ports: Vec<_> = nodes.iter().map(|node| node.quic.expect("it speaks QUIC")).collect();
        let nginx = Nginx::start(dir.path(), &ports).await;
        let trust = Trust::of([&pair]);
        Self { nodes, nginx, trust, pace, _redis: redis, _agents: agents, _dir: dir }
    }

    /// Returns the index of the only node that has QUIC connections.
    async fn taken(&self) -> usize {
        let mut with = Vec::new();
        for (n, node) in self.nodes.iter().enumerate() {
            if super::sample(node, "turnway_link_connections{transport=\"quic\"} ").await > 0.0 {
                with.push(n);
            }
        }
        let [one] = with[..] else { panic!("on one node: {with:?}") };
        one
    }
}

/// All clients share nginx's address, which is configured as a proxy; more connections than the limit of one
/// address are accepted.
///
/// Covers: S-16, S-49.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_address_is_exempt_from_the_per_address_limit() {
    let front = Front::start().await;
    let mut lines = Vec::new();
    for n in 0..3 * PER_ADDRESS {
        let line = QuicConnection::hello(front.nginx.at, &front.trust, &format!("u{n}"), vec![]).await;
        lines.push(line.expect("room"));
    }
}

/// A client whose port changes on the way stays with its node, and the connection continues.
///
/// Covers: S-24.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_keeps_a_client_on_its_node_after_a_port_change() {
    let front = Front::start().await;
    let mut line = QuicConnection::hello(front.nginx.at, &front.trust, "ann", vec![]).await.expect("welcome");
    line.ask("m1", invoke("s1", "a", "go")).await.expect("accepted");
    front.pace.add_permits(1);
    let mut lane = line.accept_text_stream().await.expect("a stream");
    let mut text = String::new();
    take(&mut text, &lane.next().await.expect("text").expect("text"));
    let mut slowest = Duration::ZERO;
    for _ in 0..3 {
        line.endpoint.rebind(socket()).expect("another port");
        let moved = Instant::now();
        let goal = text.len() + 1;
        front.pace.add_permits(PIECES / 4);
        while text.len() < goal {
            take(&mut text, &lane.next().await.expect("text").expect("text"));
        }
        slowest = slowest.max(moved.elapsed());
    }
    front.pace.add_permits(PIECES);
    lane.rest(&mut text).await.expect("all of it");
    assert!(text == whole(), "{} bytes", text.len());
    line.until(|message| message["type"] == "done").await.expect("it is done");
    figure("QUIC behind nginx: another port / more of the answer after at most", format!("{slowest:?}"));
    assert!(slowest < WITHIN, "{slowest:?}");
}

/// A client whose node is killed reaches the other node through nginx and gets the whole text of its turn.
///
/// Covers: S-24, G5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_client_of_a_dead_node_resumes_on_the_other_node() {
    let mut front = Front::start().await;
    let mut line = QuicConnection::hello(front.nginx.at, &front.trust, "ann", vec![]).await.expect("welcome");
    let accepted = line.ask("m1", invoke("s1", "a", "go")).await.expect("accepted");
    let run = accepted["run_id"].as_str().expect("a run").to_owned();
    front.pace.add_permits(1);
    let mut lane = line.accept_text_stream().await.expect("a stream");
    let mut said = String::new();
    take(&mut said, &lane.next().await.expect("text").expect("text"));
    let taken = front.taken().await;
    front.nodes[taken].kill().await;
    let died = Instant::now();
    let resume = vec![json!({"session_id": "s1", "after_seq": 0})];
    let back = async {
        loop {
            if let Ok(back) = QuicConnection::hello(front.nginx.at, &front.trust, "ann", resume.clone()).await {
                return back;
            }
        }
    };
    let mut back = tokio::time::timeout(PATIENCE, back).await.expect("somebody answers");
    let welcome = died.elapsed();
    front.pace.add_permits(4 * PIECES);
    let done = back.until(|message| message["type"] == "done" && message["run_id"] == run.as_str()).await;
    let done = done.expect("it is done");
    figure("QUIC behind nginx: its node is killed / welcome at the other after", format!("{welcome:?}"));
    assert_eq!(done["status"], "completed", "{done}");
    let mut text = String::new();
    loop {
        let mut lane = back.accept_text_stream().await.expect("a stream");
        if lane.head["run_id"] == run.as_str() && lane.head["attempt"] == done["attempt"] {
            lane.rest(&mut text).await.expect("all of it");
            break;
        }
    }
    assert!(text == whole(), "{} bytes", text.len());
}

//! A slow and lossy network that works: 600 ms round trip, and one packet of twenty lost each way.
use crate::timed_agents::{piece, whole};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::tempdir;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, interval, interval_at, timeout};
use turnway_client::{Client, Event, Options, UserInput};
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::node::Node;
use turnway_tests::real::tls::Pair;
use turnway_tests::real::{PATIENCE, figure};

/// Delay of one direction.
const DELAY: Duration = Duration::from_millis(300);
/// Percentage of packets that are lost.
const LOST: u64 = 5;
/// Maximum number of packets in flight; further ones are dropped.
const PACKETS_MAX: usize = 1024;
const DATAGRAM_BYTES_MAX: usize = 2048;
/// Pieces of an answer, their interval, and a pause in the middle without output.
const PIECES: usize = 100;
const PACE: Duration = Duration::from_millis(100);
const REST: Duration = Duration::from_secs(6);
/// One connection suffices usually; the client opens another where this one loses several packets in a row.
const CONNECTIONS_MAX: usize = 3;

/// A proxy that forwards datagrams to a node late or not at all, until dropped.
struct Network {
    at: SocketAddr,
    lost: Arc<AtomicU64>,
    passing: JoinHandle<()>,
}

impl Drop for Network {
    fn drop(&mut self) {
        self.passing.abort();
    }
}

/// One direction of the proxy.
struct OneWay {
    packets: mpsc::Sender<(Instant, Vec<u8>)>,
    chance: u64,
    lost: Arc<AtomicU64>,
}

impl OneWay {
    fn to(out: Arc<UdpSocket>, to: SocketAddr, seed: u64, lost: &Arc<AtomicU64>, tasks: &mut JoinSet<()>) -> Self {
        let (packets, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(PACKETS_MAX);
        tasks.spawn(async move {
            while let Some((at, bytes)) = due.recv().await {
                interval_at(at, DELAY).tick().await;
                let _gone = out.send_to(&bytes, to).await;
            }
        });
        Self { packets, chance: seed, lost: Arc::clone(lost) }
    }

    fn pass(&mut self, bytes: &[u8]) {
        // Xorshift, so that runs with the same packets lose the same ones.
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        let is_lost = self.chance % 100 < LOST;
        if is_lost || self.packets.try_send((Instant::now() + DELAY, bytes.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Network {
    async fn before(node: SocketAddr) -> Self {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a port"));
        let at = front.local_addr().expect("bound");
        let lost = Arc::<AtomicU64>::default();
        let passing = tokio::spawn(pass(front, node, Arc::clone(&lost)));
        Self { at, lost, passing }
    }
}

async fn pass(front: Arc<UdpSocket>, node: SocketAddr, lost: Arc<AtomicU64>) {
    let mut there = HashMap::<SocketAddr, OneWay>::new();
    let mut tasks = JoinSet::new();
    let mut seed = 88_172_645_463_325_252;
    let mut bytes = [0; DATAGRAM_BYTES_MAX];
    loop {
        let Ok((count, from)) = front.recv_from(&mut bytes).await else { return };
        let one_way = match there.entry(from) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                seed += 2;
                let own = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a port"));
                let mut back = OneWay::to(Arc::clone(&front), from, seed + 1, &lost, &mut tasks);
                let out = OneWay::to(Arc::clone(&own), node, seed, &lost, &mut tasks);
                tasks.spawn(async move {
                    let mut bytes = [0; DATAGRAM_BYTES_MAX];
                    while let Ok(count) = own.recv(&mut bytes).await {
                        back.pass(&bytes[..count]);
                    }
                });
                new.insert(out)
            }
        };
        one_way.pass(&bytes[..count]);
    }
}

/// Does not give up a connection that is only slow, though another one may be tried.
///
/// Covers: S-24.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_lossy_network_completes_on_few_connections() {
    let dir = tempdir().expect("a directory");
    let agents = Agents::start(|asked| {
        Reply::speak(move |stream| async move {
            let mut pace = interval(PACE);
            for n in 0..PIECES {
                pace.tick().await;
                if n == PIECES / 2 {
                    interval_at(Instant::now() + REST, REST).tick().await;
                }
                stream.delta(&piece(&asked.session_id, n)).await?;
            }
            stream.done().await
        })
    })
    .await;
    let pair = Pair::make(dir.path(), "pair").await;
    let agent = agents.flag("a");
    let flags = [&["--quic", "127.0.0.1:0", "--agent", &agent][..], &pair.flags()].concat();
    let node = Node::start(dir.path(), &flags).await;
    let network = Network::before(node.quic.expect("it speaks QUIC")).await;
    let ca = std::fs::read(&pair.cert).expect("a certificate");
    let options = Options::new(format!("quic://{}", network.at)).user("ann").ca(ca);
    let mut client = timeout(PATIENCE, Client::connect(options)).await.expect("in time").expect("it connects");
    client.session("s1").invoke(UserInput::text("go")).await.expect("said");
    let mut said = String::new();
    let mut connections = 0;
    let done = loop {
        let event = timeout(PATIENCE, client.next_event()).await.expect("in time").expect("it goes on");
        if let Event::Text { text, .. } = event {
            said.push_str(&text);
        } else if let Event::Connected { .. } = event {
            connections += 1;
        } else if let Event::Done(done) = event {
            break done;
        }
    };
    let whole = whole("s1", PIECES);
    assert!(done.complete && done.text == whole && said == whole, "{} of {} bytes", said.len(), whole.len());
    let lost = network.lost.load(Ordering::Relaxed);
    figure("600 ms and 5 % lost each way: connections one answer took, packets lost", format!("{connections}, {lost}"));
    assert!(lost > 0, "nothing was lost");
    assert!(connections > 0, "the answer came by no connection");
    assert!(connections <= CONNECTIONS_MAX, "{connections}");
    client.close().await;
}

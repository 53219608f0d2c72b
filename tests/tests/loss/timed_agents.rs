//! Agents that send a delta every few milliseconds, and the times at which they sent them.
use crate::network::Network;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::identity::{Key, pepper};
use turnway_tests::real::node::Node;
use turnway_tests::real::tls::Pair;

/// Bytes of one delta: fixed, so that a byte's position identifies its delta.
pub(crate) const PIECE_BYTES: usize = 64;

/// Returns the n-th delta of a session's answer.
pub(crate) fn piece(session: &str, n: usize) -> String {
    let mut text = format!("{n:06} {session} 語𝄞ß ");
    while text.len() < PIECE_BYTES - 1 {
        text.push((b'a' + u8::try_from((n + text.len()) % 26).expect("small")) as char);
    }
    text + "\n"
}

pub(crate) fn whole(session: &str, count: usize) -> String {
    (0..count).map(|n| piece(session, n)).collect()
}

/// Time at which each delta was given to the node.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    begun: Instant,
    said: Arc<Mutex<HashMap<String, Arc<Vec<AtomicU64>>>>>,
}

/// Starts an agent `a` that sends `count` deltas at this pace, and returns its journal.
pub(crate) async fn agents(count: usize, pace: Duration) -> (Agents, Journal) {
    let journal = Journal { begun: Instant::now(), said: Arc::default() };
    let agents = Agents::start({
        let journal = journal.clone();
        move |asked| {
            let journal = journal.clone();
            let session = asked.session_id;
            assert_eq!(asked.attempt, 1, "{session}");
            let said = journal.open(&session, count);
            Reply::speak(move |stream| async move {
                let mut pace = interval(pace);
                pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
                for (n, at) in said.iter().enumerate() {
                    pace.tick().await;
                    at.store(journal.now(), Ordering::Relaxed);
                    stream.delta(&piece(&session, n)).await?;
                }
                stream.done().await
            })
        }
    })
    .await;
    (agents, journal)
}

impl Journal {
    /// Returns the nanoseconds since the start; never 0.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).expect("not for so long").max(1)
    }

    fn open(&self, session: &str, count: usize) -> Arc<Vec<AtomicU64>> {
        let said = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
        let mut all = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(all.insert(session.to_owned(), Arc::clone(&said)).is_none(), "{session} twice");
        said
    }

    /// Returns the times of one session's deltas.
    pub(crate) fn of(&self, session: &str) -> Arc<Vec<AtomicU64>> {
        let all = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.get(session).unwrap_or_else(|| panic!("{session} never spoke")))
    }

    /// Returns the ages of the deltas that are complete in the first `bytes` bytes, from number `seen` on.
    pub(crate) fn ages(&self, session: &str, seen: usize, bytes: usize) -> Vec<Duration> {
        let said = self.of(session);
        let now = self.now();
        let age = |n: usize| Duration::from_nanos(now - said[n].load(Ordering::Relaxed));
        (seen..bytes / PIECE_BYTES).map(age).collect()
    }
}

/// Starts a node behind the router.
pub(crate) async fn node(store: &str, dir: &Path, pair: &Pair, agent: &str) -> Node {
    let pepper = pepper(dir);
    let auth = ["--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8")];
    let hosts = ["--hosts", "localhost", "--durability", "mem", "--quic", "0.0.0.0:0", "--agent", agent];
    Node::start_public_on(store, dir, &[&auth[..], &hosts, &pair.flags()].concat()).await
}

pub(crate) async fn key(node: &Node) -> String {
    Key::make(node, &["--user", "ann"]).await.text
}

/// Returns router rules that route to this node.
pub(crate) fn rules_for(node: &Node, memory: u16, lost: u32) -> crate::network::Rules {
    let quic = Network::node(node.quic.expect("it speaks QUIC"));
    crate::network::Rules { lost, quic, http: Network::node(node.http), memory }
}

//! Clients that keep a node busy.
use super::wire::WebSocketClient;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::task::JoinSet;

/// Clients that run turns until they are stopped.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    clients: JoinSet<()>,
}

impl Load {
    /// Starts clients, each with a session of its own and one turn after the other.
    pub fn start(node: SocketAddr, clients: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let turns = Arc::new(AtomicU64::new(0));
        let mut load = Self { stop, turns, clients: JoinSet::new() };
        for n in 0..clients {
            load.clients.spawn(client(node, n, Arc::clone(&load.stop), Arc::clone(&load.turns)));
        }
        load
    }

    /// Stops the clients; returns the number of turns.
    pub async fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client.expect("no client saw anything wrong");
        }
        self.turns.load(Ordering::Relaxed)
    }
}

async fn client(node: SocketAddr, n: usize, stop: Arc<AtomicBool>, turns: Arc<AtomicU64>) {
    let mut wire = WebSocketClient::hello(node, &format!("user-{n}"), Vec::new()).await.expect("welcome");
    let session = format!("session-{n}");
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let said = format!("word after word in turn {turn}");
        let (text, _) = wire.turn(&session, "echo", &format!("m{turn}"), &said).await.expect("a turn");
        assert_eq!(text, said);
        turns.fetch_add(1, Ordering::Relaxed);
    }
}

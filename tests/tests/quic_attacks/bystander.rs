//! A well-behaved client that has turns at a node while a test attacks the node.
use std::mem;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval};
use turnway_tests::real::quantile;
use turnway_tests::real::quic::QuicConnection;
use turnway_tests::real::tls::Trust;
use turnway_tests::real::wire::WebSocketClient;

/// Time between two turns.
const PACE: Duration = Duration::from_millis(10);

/// A client that has turns over QUIC and WebSocket, alternately, until it is dropped.
pub(crate) struct Bystander {
    took: Arc<Mutex<Vec<Duration>>>,
    task: JoinHandle<()>,
}

impl Bystander {
    /// Connects over both transports and starts the turns.
    pub(crate) async fn start(http: SocketAddr, quic: SocketAddr, trust: &Trust) -> Self {
        let line = QuicConnection::hello(quic, trust, "by", vec![]).await.expect("welcome");
        let wire = trust.hello(http, "by").await.expect("welcome");
        let took = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn(turns(line, wire, Arc::clone(&took)));
        Self { took, task }
    }

    /// Returns the number of turns since the last call, and their 99th percentile.
    pub(crate) fn lap(&self) -> (usize, Duration) {
        assert!(!self.task.is_finished(), "it goes on");
        let mut took = mem::take(&mut *self.took.lock().expect("sound"));
        (took.len(), quantile(&mut took, 0.99))
    }
}

async fn turns(mut line: QuicConnection, mut wire: WebSocketClient, took: Arc<Mutex<Vec<Duration>>>) {
    let mut pace = interval(PACE);
    for n in 0.. {
        pace.tick().await;
        let id = format!("m{n}");
        let begun = Instant::now();
        let (text, _) = if n % 2 == 0 {
            line.turn("by-quic", "echo", &id, "still here").await.expect("a turn by QUIC")
        } else {
            wire.turn("by-ws", "echo", &id, "still here").await.expect("a turn by WebSocket")
        };
        assert_eq!(text, "still here");
        took.lock().expect("sound").push(begun.elapsed());
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.task.abort();
    }
}

//! A TCP proxy to a server that delays the server's answers.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Chunks of answers in flight.
const PIECES: usize = 64 * 1024;

/// A proxy without a delay until [`Slow::delay`] is called.
#[derive(Debug)]
pub struct Slow {
    /// Loopback port of the proxy.
    pub port: u16,
    millis: Arc<AtomicU64>,
}

impl Slow {
    /// Starts a proxy to this port of this machine.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let millis = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&millis);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let (mut from_client, to_client) = client.into_split();
                let (from_server, mut to_server) = server.into_split();
                tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
                tokio::spawn(carry(from_server, to_client, Arc::clone(&told)));
            }
        });
        Self { port: own, millis }
    }

    /// Sets the delay of every further answer.
    pub fn delay(&self, by: Duration) {
        self.millis.store(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, millis: Arc<AtomicU64>) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    tokio::spawn(async move {
        while let Some((due, piece)) = pieces.recv().await {
            let _ = timeout_at(due, std::future::pending::<()>()).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    });
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let due = Instant::now() + Duration::from_millis(millis.load(Ordering::SeqCst));
        if sender.send((due, bytes[..count].to_vec())).await.is_err() {
            return;
        }
    }
}

//! A TCP proxy to a server that can drop the next request or the next answer.
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Message that is lost next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    Nothing,
    /// The next request never arrives.
    Question,
    /// The next request arrives, and its answer is lost.
    Answer,
}

/// A TCP proxy that loses a message on demand.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    loss: Arc<AtomicU8>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let loss = Arc::new(AtomicU8::new(0));
        let lost = Arc::clone(&loss);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // The server is down: the client sees its connection close.
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(carry(from_client, to_server, Loss::Question, Arc::clone(&lost)));
                tokio::spawn(carry(from_server, to_client, Loss::Answer, Arc::clone(&lost)));
            }
        });
        Self { port: own, loss }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Loses one message of this kind, and closes the connection that would have carried it.
    pub(crate) fn lose(&self, loss: Loss) {
        self.loss.store(loss as u8, Ordering::SeqCst);
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, kind: Loss, lost: Arc<AtomicU8>) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let cut = lost.compare_exchange(kind as u8, Loss::Nothing as u8, Ordering::SeqCst, Ordering::SeqCst);
        if cut.is_ok() || to.write_all(&bytes[..count]).await.is_err() {
            break;
        }
    }
    // Both halves are dropped, so that each side sees the other close.
    let _ = to.shutdown().await;
}

//! A TCP connection whose client can be watched for a hang-up while another task reads and writes the connection. Used
//! by `listen::maybe_tls` and `http`.
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Polling interval for the end of the stream while unread requests hide it.
const UNREAD_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// An interim response without content, which every client must accept.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Pauses before each interim response: a reset that the first one causes has arrived when the second one is written.
const PROBE_PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(250), Duration::from_secs(1)];

/// A TCP connection.
#[derive(Debug)]
pub struct WatchedSocket {
    read: OwnedReadHalf,
    write: Arc<OwnedWriteHalf>,
}

/// A watcher of a connection's client that does not disturb the connection.
#[derive(Clone, Debug)]
pub struct ClientWatch {
    socket: Weak<OwnedWriteHalf>,
    /// True if an interim response may be written to the client.
    may_probe: bool,
}

// === impl WatchedSocket ===

impl WatchedSocket {
    /// Takes over a connection.
    pub fn new(stream: TcpStream) -> Self {
        let (read, write) = stream.into_split();
        Self { read, write: Arc::new(write) }
    }

    /// Returns a watcher of the connection's client.
    pub fn watch(&self) -> ClientWatch {
        ClientWatch { socket: Arc::downgrade(&self.write), may_probe: true }
    }

    fn stream(&self) -> &TcpStream {
        self.write.as_ref().as_ref()
    }

    /// Writes when the socket has space.
    fn poll_write_with(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream().poll_write_ready(cx))?;
            match write(self.stream()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncRead for WatchedSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().read).poll_read(cx, buf)
    }
}

impl AsyncWrite for WatchedSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match rustix::net::shutdown(self.stream(), rustix::net::Shutdown::Write) {
            // The client has closed the connection already.
            Err(rustix::io::Errno::NOTCONN) | Ok(()) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

// === impl ClientWatch ===

impl ClientWatch {
    /// Returns a watcher of the same client that writes nothing.
    pub fn passive(&self) -> Self {
        Self { socket: Weak::clone(&self.socket), may_probe: false }
    }

    /// Waits until the client has hung up; for use while no byte of its response is written yet. A client that has
    /// closed its sending half accepts an interim response; a client that is gone answers with a reset (RFC 9110 §15.2:
    /// every client accepts interim responses). If none may be written, the end of the client's stream counts as a
    /// hang-up.
    pub async fn wait_hung_up(&self) {
        self.wait_read_closed().await;
        if !self.may_probe {
            return;
        }
        for wait in PROBE_PAUSES {
            tokio::time::sleep(wait).await;
            let Some(socket) = self.socket.upgrade() else { return };
            match socket.try_write(INTERIM) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => {}
            }
        }
        std::future::pending().await
    }

    /// Waits until the client sends no more, after any number of bytes: the client has hung up, has closed its sending
    /// half, or the connection is lost. Only the answer to written bytes tells which.
    pub async fn wait_read_closed(&self) {
        while let Some(socket) = self.socket.upgrade() {
            match socket.ready(Interest::READABLE).await {
                Ok(ready) if ready.is_read_closed() => return,
                Ok(_) => {}
                Err(_) => return,
            }
            drop(socket);
            tokio::time::sleep(UNREAD_POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    async fn pair() -> (WatchedSocket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (WatchedSocket::new(accepted.expect("accepted").0), peer.expect("connected"))
    }

    #[tokio::test]
    async fn bytes_and_eof_pass_in_both_directions() {
        let (mut socket, mut peer) = pair().await;
        peer.write_all(b"question").await.expect("written");
        let mut read = [0; 8];
        socket.read_exact(&mut read).await.expect("read");
        socket.write_all(b"answer").await.expect("written");
        socket.shutdown().await.expect("shut");
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).await.expect("read");
        assert_eq!((&read, answer.as_slice()), (b"question", b"answer".as_slice()));
    }

    /// Covers: S-10.
    #[tokio::test]
    async fn half_closed_client_counts_as_connected() {
        let (socket, mut peer) = pair().await;
        let watch = socket.watch();
        peer.shutdown().await.expect("shut");
        let mut bytes = [0; INTERIM.len()];
        tokio::select! {
            () = watch.wait_hung_up() => panic!("it is there"),
            read = async {
                peer.read_exact(&mut bytes).await?;
                peer.read_exact(&mut bytes).await
            } => { read.expect("it is asked"); }
        }
        drop(peer);
        watch.wait_hung_up().await;
        assert_eq!(bytes, INTERIM);
    }

    #[tokio::test]
    async fn peer_close_is_seen_behind_unread_bytes() {
        let (mut socket, mut peer) = pair().await;
        let watch = socket.watch();
        assert!(timeout(Duration::from_millis(20), watch.wait_read_closed()).await.is_err(), "nothing has ended");
        peer.write_all(b"more than anybody reads").await.expect("written");
        assert!(timeout(Duration::from_millis(20), watch.wait_read_closed()).await.is_err(), "nothing has ended");
        peer.shutdown().await.expect("shut");
        watch.wait_read_closed().await;
        socket.write_all(b"still an answer").await.expect("written");
        drop(socket);
        watch.wait_read_closed().await;
    }
}

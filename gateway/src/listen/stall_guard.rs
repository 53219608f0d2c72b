//! Ends a connection whose peer reads nothing for too long; without that limit its connection slot would be lost for
//! ever. Wraps the stream below HTTP; the listener creates it.
use super::maybe_tls::MaybeTlsStream;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Sleep;
use turnway_core::planted::{Planted, planted};

/// A stream below HTTP with a timeout for stalled writes.
#[derive(Debug)]
pub(super) struct StallGuard {
    socket: TokioIo<MaybeTlsStream>,
    /// The longest time for which a peer may read nothing while bytes wait for it.
    limit: Duration,
    /// Set while a write is stalled.
    timer: Option<Pin<Box<Sleep>>>,
}

// === impl StallGuard ===

impl StallGuard {
    pub(super) fn new(socket: MaybeTlsStream, limit: Duration) -> Self {
        Self { socket: TokioIo::new(socket), limit, timer: None }
    }

    /// Returns the wrapped stream.
    pub(super) fn into_inner(self) -> MaybeTlsStream {
        self.socket.into_inner()
    }

    /// Returns the result of a write, or an error if writes have been stalled for too long.
    fn check_stall<T>(&mut self, cx: &mut Context<'_>, tried: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if tried.is_ready() {
            self.timer = None;
            return tried;
        }
        let limit = if planted(Planted::StalledSocketKept) { self.limit * 100 } else { self.limit };
        let alarm = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        alarm.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Read for StallGuard {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_read(cx, buf)
    }
}

impl Write for StallGuard {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let tried = Pin::new(&mut this.socket).poll_write(cx, buf);
        this.check_stall(cx, tried)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let tried = Pin::new(&mut this.socket).poll_write_vectored(cx, bufs);
        this.check_stall(cx, tried)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let tried = Pin::new(&mut this.socket).poll_flush(cx);
        this.check_stall(cx, tried)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::WatchedSocket;
    use std::future::poll_fn;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    async fn pair(limit: Duration) -> (StallGuard, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let accepted = MaybeTlsStream::Plain(WatchedSocket::new(accepted.expect("accepted").0));
        (StallGuard::new(accepted, limit), peer.expect("connected"))
    }

    async fn write(to: &mut StallGuard, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| Pin::new(&mut *to).poll_write(cx, bytes)).await
    }

    /// Covers: S-15.
    #[tokio::test]
    async fn peer_that_reads_nothing_times_out() {
        let (mut socket, _peer) = pair(Duration::from_millis(50)).await;
        let block = vec![0; 1024 * 1024];
        let given_up = async {
            loop {
                if let Err(error) = write(&mut socket, &block).await {
                    return error.kind();
                }
            }
        };
        let given_up = tokio::time::timeout(Duration::from_secs(3), given_up).await;
        assert_eq!(given_up.ok(), Some(io::ErrorKind::TimedOut), "in its own time");
    }

    #[tokio::test]
    async fn peer_that_reads_slowly_does_not_time_out() {
        let (mut socket, mut peer) = pair(Duration::from_secs(60)).await;
        let mut block = vec![0; 64 * 1024];
        let mut sent = 0;
        let mut taken = 0;
        while sent < 16 * 1024 * 1024 {
            tokio::select! {
                written = write(&mut socket, &[7; 64 * 1024]) => sent += written.expect("written"),
                read = peer.read(&mut block) => taken += read.expect("read"),
            }
        }
        assert!(taken > 0 && socket.timer.is_none());
    }
}

//! A client's UDP socket that gives one datagram at a time. quinn forgets the reason of a close if it reads the close and
//! a stateless reset at once, as a client does whose process stood still for longer than the node's closing period.
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

/// Polls after which every task was run that a datagram woke: tokio runs the test itself after at most 61 other tasks.
const RESTS: u32 = 64;

/// A socket of a client.
#[derive(Debug)]
pub(super) struct OneAtATime {
    socket: Arc<dyn AsyncUdpSocket>,
    received: Mutex<Received>,
}

/// Datagrams that were received together.
#[derive(Debug, Default)]
struct Received {
    waiting: VecDeque<(RecvMeta, Vec<u8>)>,
    /// Polls that are still put off, so that the tasks which the last datagram woke run first.
    rests: u32,
}

impl OneAtATime {
    pub(super) fn new(socket: Arc<dyn AsyncUdpSocket>) -> Self {
        Self { socket, received: Mutex::default() }
    }
}

impl AsyncUdpSocket for OneAtATime {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        into: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        if received.rests > 0 {
            received.rests -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if received.waiting.is_empty() {
            let count = ready!(self.socket.poll_recv(cx, into, metas))?;
            for (meta, bytes) in metas.iter().zip(into.iter()).take(count) {
                for datagram in bytes[..meta.len].chunks(meta.stride.max(1)) {
                    let meta = RecvMeta { len: datagram.len(), stride: datagram.len(), ..*meta };
                    received.waiting.push_back((meta, datagram.to_vec()));
                }
            }
        }
        let Some((meta, datagram)) = received.waiting.pop_front() else { return Poll::Ready(Ok(0)) };
        into[0][..datagram.len()].copy_from_slice(&datagram);
        metas[0] = meta;
        received.rests = RESTS;
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

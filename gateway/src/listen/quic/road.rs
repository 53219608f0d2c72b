//! What a link's streams run over: a connection of our own protocol, or a session of WebTransport on one of HTTP/3.
//! Streams are QUIC's in both. The roads differ in how the control stream is found, in what each other one begins
//! with, and in how an end is told.
use super::fence::{Handles, Kept};
use crate::listen::end::End;
use crate::metrics::Transport;
use futures_util::FutureExt;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use std::future::Future;
use std::task::{Context, Poll};

/// The control stream, to the client and from it.
pub(super) type Control = (Kept<SendStream>, Kept<RecvStream>);

/// One client's road.
pub(super) trait Road: Send + 'static {
    /// What it is, for metrics.
    const TRANSPORT: Transport;

    /// What carries it.
    fn connection(&self) -> &Connection;

    /// What every stream begins with that we open.
    fn prelude(&self) -> &[u8];

    /// Waits for the stream that the client opens. Safe to drop and to ask again, until it has come.
    fn accept(&mut self) -> impl Future<Output = Result<Control, End>> + Send;

    /// Whether the client does what it must not. Asked with every message.
    fn check(&self) -> Result<(), End>;

    /// Looks after what else runs beside the streams. Ready when that has ended, and the road with it.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<End>;

    /// The close code that says what a client's code of `CONNECTION_CLOSE` does.
    fn code(of_connection: u64) -> u16;

    /// Tells the client the end, waits a little until it has heard it where that can be told, and hangs up.
    fn hang_up(self, end: &End) -> impl Future<Output = ()> + Send;
}

/// A connection of our own protocol.
pub(super) struct Bare(Handles);

// === impl Bare ===

impl Bare {
    pub(super) fn new(connection: Handles) -> Self {
        Self(connection)
    }
}

impl Road for Bare {
    const TRANSPORT: Transport = Transport::Quic;

    fn connection(&self) -> &Connection {
        &self.0
    }

    fn prelude(&self) -> &[u8] {
        b""
    }

    async fn accept(&mut self) -> Result<Control, End> {
        let (to, from) = self.0.accept_bi().await.map_err(|error| End::of_quic(&error, Self::code))?;
        Ok((Kept::new(to), Kept::new(from)))
    }

    /// Where HTTP/3 is spoken too the transport lets more streams by than the protocol does.
    fn check(&self) -> Result<(), End> {
        match self.0.accept_uni().now_or_never() {
            None => Ok(()),
            Some(Ok(_)) => Err(End::Close(4400, "a stream beside the control stream".into())),
            Some(Err(error)) => Err(End::of_quic(&error, Self::code)),
        }
    }

    /// There is nothing else.
    fn poll_end(&mut self, _: &mut Context<'_>) -> Poll<End> {
        Poll::Pending
    }

    fn code(of_connection: u64) -> u16 {
        u16::try_from(of_connection).unwrap_or(u16::MAX)
    }

    async fn hang_up(self, end: &End) {
        let (code, reason) = match end {
            End::Close(code, reason) => (*code, &**reason),
            End::Closed(_) => (1000, ""),
            End::Lost => (1001, ""),
        };
        self.0.close(VarInt::from_u32(code.into()), reason.as_bytes());
    }
}

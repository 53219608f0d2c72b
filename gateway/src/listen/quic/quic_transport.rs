//! The trait of the transport below a link's streams, and its form for native connections; `h3/session.rs` has the form for
//! WebTransport. The forms differ in how the control stream is found, how other streams begin, and how the close reason is
//! sent.
use super::panic_isolation::{CatchDropPanic, ConnectionHandles};
use crate::listen::close_reason::LinkCloseReason;
use crate::metrics::Transport;
use futures_util::FutureExt;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use std::future::Future;
use std::task::{Context, Poll};
use turnway_wire::channel::close_code;

/// The control stream, to the client and from it.
pub(super) type ControlStream = (CatchDropPanic<SendStream>, CatchDropPanic<RecvStream>);

/// A transport of one client's streams.
pub(super) trait QuicTransport: Send + 'static {
    /// The transport's label in metrics.
    const TRANSPORT: Transport;

    /// Returns the QUIC connection.
    fn connection(&self) -> &Connection;

    /// Returns the bytes with which each stream that we open begins.
    fn prelude(&self) -> &[u8];

    /// Waits for the control stream, which the client opens. Cancel-safe until it has returned.
    fn accept(&mut self) -> impl Future<Output = Result<ControlStream, LinkCloseReason>> + Send;

    /// Returns an error if the client violated the protocol. Called for each message.
    fn check(&self) -> Result<(), LinkCloseReason>;

    /// Drives the streams beside the link's. Ready when the transport has ended.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<LinkCloseReason>;

    /// Returns the close code for the client's error code of `CONNECTION_CLOSE`.
    fn code(of_connection: u64) -> u16;

    /// Sends the close reason, waits briefly for the client to receive it where the transport can tell, and closes the
    /// connection.
    fn hang_up(self, end: &LinkCloseReason) -> impl Future<Output = ()> + Send;
}

/// A native connection of our protocol.
pub(super) struct NativeQuic(ConnectionHandles);

// === impl NativeQuic ===

impl NativeQuic {
    pub(super) fn new(connection: ConnectionHandles) -> Self {
        Self(connection)
    }
}

impl QuicTransport for NativeQuic {
    const TRANSPORT: Transport = Transport::Quic;

    fn connection(&self) -> &Connection {
        &self.0
    }

    fn prelude(&self) -> &[u8] {
        b""
    }

    async fn accept(&mut self) -> Result<ControlStream, LinkCloseReason> {
        let (to, from) =
            self.0.accept_bi().await.map_err(|error| LinkCloseReason::from_quic_error(&error, Self::code))?;
        Ok((CatchDropPanic::new(to), CatchDropPanic::new(from)))
    }

    /// Refuses unidirectional streams: where HTTP/3 is served too, the transport parameters allow more than our
    /// protocol.
    fn check(&self) -> Result<(), LinkCloseReason> {
        match self.0.accept_uni().now_or_never() {
            None => Ok(()),
            Some(Ok(_)) => Err(LinkCloseReason::ByServer(
                close_code::MALFORMED,
                "unexpected stream beside the control stream".into(),
            )),
            Some(Err(error)) => Err(LinkCloseReason::from_quic_error(&error, Self::code)),
        }
    }

    /// Stays pending: no other streams exist.
    fn poll_end(&mut self, _: &mut Context<'_>) -> Poll<LinkCloseReason> {
        Poll::Pending
    }

    fn code(of_connection: u64) -> u16 {
        u16::try_from(of_connection).unwrap_or(u16::MAX)
    }

    async fn hang_up(self, end: &LinkCloseReason) {
        let (code, reason) = match end {
            LinkCloseReason::ByServer(code, reason) => (*code, &**reason),
            LinkCloseReason::ByClient(_) => (close_code::NORMAL, ""),
            LinkCloseReason::Lost => (close_code::IDLE, ""),
        };
        self.0.close(VarInt::from_u32(code.into()), reason.as_bytes());
    }
}

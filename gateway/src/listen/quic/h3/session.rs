//! Implements the QUIC transport over a WebTransport session.
use super::error::{self, H3Error};
use super::frames::{self, SessionClose};
use super::{CLOSE_TIMEOUT, ConnectStreams, H3Connection};
use crate::listen::close_reason::LinkCloseReason;
use crate::listen::quic::panic_isolation::CatchDropPanic;
use crate::listen::quic::quic_transport::{ControlStream, QuicTransport};
use crate::metrics::Transport;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Fuse, FusedFuture};
use quinn::{Connection, SendStream, VarInt};
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;
use turnway_wire::channel::close_code;
use web_transport_proto::{Capsule, Frame, StreamUni, VarInt as Number};

/// Longest wait for a client that has received the close to end its side. Not every client does (aioquic 1.3 leaves
/// that to its application), and a draining node must close all connections within its time limit.
const CLOSE_ACK_TIMEOUT: Duration = Duration::from_millis(500);

/// A WebTransport session, the only one of its connection.
pub(in crate::listen::quic) struct WebTransportSession {
    /// The request's stream, on which the session is closed.
    request: CatchDropPanic<SendStream>,
    prelude: Vec<u8>,
    /// Present until the client has opened the control stream.
    control_stream: Option<BoxFuture<'static, Result<ControlStream, LinkCloseReason>>>,
    /// The way in which the client closes the session.
    client_close: Fuse<BoxFuture<'static, Result<SessionClose, H3Error>>>,
    /// Last field, so that it is dropped after its streams.
    http: H3Connection,
}

// === impl WebTransportSession ===

impl WebTransportSession {
    /// Creates the session of an accepted request.
    pub(super) fn new(http: H3Connection, ConnectStreams { to: request, from, .. }: ConnectStreams) -> Self {
        let id = VarInt::from(request.id()).into_inner();
        let mut prelude = Vec::new();
        StreamUni::WEBTRANSPORT.encode(&mut prelude);
        put_varint(id, &mut prelude);
        let control_stream = Some(accept_control(Connection::clone(&http.connection), id).boxed());
        let client_close = frames::read_capsules(from).boxed().fuse();
        Self { request, prelude, control_stream, client_close, http }
    }

    /// Sends close code and reason, and waits until the client ends its side of the request, as
    /// draft-ietf-webtrans-http3, section 6, says. An acknowledgement of the bytes is not enough: if the connection is
    /// closed at once, Chromium reports "Connection lost" instead of the reason.
    async fn send_close(&mut self, code: u16, reason: &str) {
        let mut capsule = Vec::new();
        let mut text = Vec::new();
        Capsule::CloseWebTransportSession { code: code.into(), reason: reason.to_owned() }.encode(&mut capsule);
        Frame::DATA.encode(&mut text);
        put_varint(capsule.len() as u64, &mut text);
        text.extend_from_slice(&capsule);
        if self.request.write_all(&text).await.is_ok() && self.request.finish().is_ok() {
            _ = self.request.stopped().await;
            if !self.client_close.is_terminated() {
                let _ = tokio::time::timeout(CLOSE_ACK_TIMEOUT, &mut self.client_close).await;
            }
        }
    }
}

impl QuicTransport for WebTransportSession {
    const TRANSPORT: Transport = Transport::WebTransport;

    fn connection(&self) -> &Connection {
        &self.http.connection
    }

    fn prelude(&self) -> &[u8] {
        &self.prelude
    }

    async fn accept(&mut self) -> Result<ControlStream, LinkCloseReason> {
        let control = poll_fn(|cx| {
            if let Poll::Ready(end) = self.poll_end(cx) {
                return Poll::Ready(Err(end));
            }
            self.control_stream.as_mut().map_or(Poll::Pending, |arriving| arriving.poll_unpin(cx))
        });
        let control = control.await;
        self.control_stream = None;
        control
    }

    /// Returns `Ok`: the future of the HTTP/3 streams checks them all.
    fn check(&self) -> Result<(), LinkCloseReason> {
        Ok(())
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<LinkCloseReason> {
        if let Poll::Ready(fault) = self.http.uni_streams.poll_unpin(cx) {
            return Poll::Ready(fault.into());
        }
        self.client_close.poll_unpin(cx).map(|left| match left {
            // No code was given: a page that left regularly.
            Ok(SessionClose::Code(0)) => LinkCloseReason::ByClient(close_code::NORMAL),
            Ok(SessionClose::Code(code)) => LinkCloseReason::ByClient(u16::try_from(code).unwrap_or(u16::MAX)),
            Ok(SessionClose::Lost) => LinkCloseReason::Lost,
            Err(fault) => close_with(&self.http.connection, fault),
        })
    }

    fn code(of_connection: u64) -> u16 {
        if of_connection == u64::from(error::NO_ERROR) { close_code::NORMAL } else { 1006 }
    }

    async fn hang_up(mut self, end: &LinkCloseReason) {
        if let LinkCloseReason::ByServer(code, reason) = end {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.send_close(*code, reason)).await;
        }
        self.http.close(error::NO_ERROR, "");
    }
}

fn put_varint(number: u64, into: &mut Vec<u8>) {
    // A stream id or the length of a short text always fits a variable-length integer.
    if let Ok(number) = Number::from_u64(number) {
        number.encode(into);
    }
}

/// Waits for the control stream.
async fn accept_control(connection: Connection, session: u64) -> Result<ControlStream, LinkCloseReason> {
    let (to, from) = connection
        .accept_bi()
        .await
        .map_err(|error| LinkCloseReason::from_quic_error(&error, WebTransportSession::code))?;
    let to = CatchDropPanic::new(to);
    let mut from = CatchDropPanic::new(from);
    let kind = frames::read_varint(&mut from).await.ok().flatten();
    if kind != Some(Frame::WEBTRANSPORT.0.into_inner()) {
        let why = "only one request per connection is allowed";
        return Err(close_with(&connection, H3Error { code: error::FRAME_UNEXPECTED, why }));
    }
    match frames::read_varint(&mut from).await {
        Ok(Some(of)) if of == session => Ok((to, from)),
        Ok(_) | Err(_) => Err(close_with(&connection, H3Error { code: error::ID_ERROR, why: "no such session" })),
    }
}

/// Closes the connection with an HTTP/3 error.
fn close_with(connection: &Connection, fault: H3Error) -> LinkCloseReason {
    fault.close(connection);
    fault.into()
}

//! Implements the QUIC transport over a WebTransport session.
use super::fault::{self, Fault};
use super::frames::{self, Leave};
use super::{Asked, FAREWELL, Http};
use crate::listen::end::End;
use crate::listen::quic::fence::Kept;
use crate::listen::quic::road::{Control, Road};
use crate::metrics::Transport;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Fuse, FusedFuture};
use quinn::{Connection, SendStream, VarInt};
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;
use web_transport_proto::{Capsule, Frame, StreamUni, VarInt as Number};

/// Longest wait for a client that has received the close to end its side. Not every client does (aioquic 1.3 leaves
/// that to its application), and a draining node must close all connections within its time limit.
const UNDERSTANDING: Duration = Duration::from_millis(500);

/// A WebTransport session, the only one of its connection.
pub(in crate::listen::quic) struct Session {
    /// The request's stream, on which the session is closed.
    request: Kept<SendStream>,
    prelude: Vec<u8>,
    /// Present until the client has opened the control stream.
    arriving: Option<BoxFuture<'static, Result<Control, End>>>,
    /// The way in which the client closes the session.
    left: Fuse<BoxFuture<'static, Result<Leave, Fault>>>,
    /// Last field, so that it is dropped after its streams.
    http: Http,
}

// === impl Session ===

impl Session {
    /// Creates the session of an accepted request.
    pub(super) fn new(http: Http, Asked { to: request, from, .. }: Asked) -> Self {
        let id = VarInt::from(request.id()).into_inner();
        let mut prelude = Vec::new();
        StreamUni::WEBTRANSPORT.encode(&mut prelude);
        put(id, &mut prelude);
        let arriving = Some(arrive(Connection::clone(&http.connection), id).boxed());
        let left = frames::capsules(from).boxed().fuse();
        Self { request, prelude, arriving, left, http }
    }

    /// Sends close code and reason, and waits until the client ends its side of the request, as
    /// draft-ietf-webtrans-http3, section 6, says. An acknowledgement of the bytes is not enough: if the connection is
    /// closed at once, Chromium reports "Connection lost" instead of the reason.
    async fn tell(&mut self, code: u16, reason: &str) {
        let (mut capsule, mut text) = (Vec::new(), Vec::new());
        Capsule::CloseWebTransportSession { code: code.into(), reason: reason.to_owned() }
            .encode(&mut capsule);
        Frame::DATA.encode(&mut text);
        put(capsule.len() as u64, &mut text);
        text.extend_from_slice(&capsule);
        if self.request.write_all(&text).await.is_ok() && self.request.finish().is_ok() {
            _ = self.request.stopped().await;
            if !self.left.is_terminated() {
                let _ = tokio::time::timeout(UNDERSTANDING, &mut self.left).await;
            }
        }
    }
}

impl Road for Session {
    const TRANSPORT: Transport = Transport::WebTransport;

    fn connection(&self) -> &Connection {
        &self.http.connection
    }

    fn prelude(&self) -> &[u8] {
        &self.prelude
    }

    async fn accept(&mut self) -> Result<Control, End> {
        let control = poll_fn(|cx| {
            if let Poll::Ready(end) = self.poll_end(cx) {
                return Poll::Ready(Err(end));
            }
            self.arriving.as_mut().map_or(Poll::Pending, |arriving| arriving.poll_unpin(cx))
        });
        let control = control.await;
        self.arriving = None;
        control
    }

    /// Returns `Ok`: the future of the HTTP/3 streams checks them all.
    fn check(&self) -> Result<(), End> {
        Ok(())
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if let Poll::Ready(fault) = self.http.beside.poll_unpin(cx) {
            return Poll::Ready(fault.into());
        }
        self.left.poll_unpin(cx).map(|left| match left {
            // No code was given: a page that left regularly.
            Ok(Leave::Code(0)) => End::Closed(1000),
            Ok(Leave::Code(code)) => End::Closed(u16::try_from(code).unwrap_or(u16::MAX)),
            Ok(Leave::Lost) => End::Lost,
            Err(fault) => ended(&self.http.connection, fault),
        })
    }

    fn code(of_connection: u64) -> u16 {
        if of_connection == u64::from(fault::NO_ERROR) { 1000 } else { 1006 }
    }

    async fn hang_up(mut self, end: &End) {
        if let End::Close(code, reason) = end {
            let _ = tokio::time::timeout(FAREWELL, self.tell(*code, reason)).await;
        }
        self.http.end(fault::NO_ERROR, "");
    }
}

fn put(number: u64, into: &mut Vec<u8>) {
    // A stream id or the length of a short text always fits a variable-length integer.
    if let Ok(number) = Number::from_u64(number) {
        number.encode(into);
    }
}

/// Waits for the control stream.
async fn arrive(connection: Connection, session: u64) -> Result<Control, End> {
    let (to, from) = connection.accept_bi().await.map_err(|error| End::of_quic(&error, Session::code))?;
    let (to, mut from) = (Kept::new(to), Kept::new(from));
    let kind = frames::number(&mut from).await.ok().flatten();
    if kind != Some(Frame::WEBTRANSPORT.0.into_inner()) {
        return Err(ended(
            &connection,
            Fault { code: fault::FRAME_UNEXPECTED, why: "only one request per connection is allowed" },
        ));
    }
    match frames::number(&mut from).await {
        Ok(Some(of)) if of == session => Ok((to, from)),
        Ok(_) | Err(_) => Err(ended(&connection, Fault { code: fault::ID_ERROR, why: "no such session" })),
    }
}

/// Closes the connection with an HTTP/3 error.
fn ended(connection: &Connection, fault: Fault) -> End {
    fault.end(connection);
    fault.into()
}

//! Implements the part of HTTP/3 (RFC 9114) that browsers need for WebTransport (draft-ietf-webtrans-http3): one
//! `CONNECT` request per connection, and the session that it becomes. `web-transport-proto` encodes fields, settings
//! and capsules; the limits on memory and time of unauthenticated clients are enforced here.
pub mod error;
pub mod frames;
mod session;
mod uni_streams;

use super::link::QuicLinkTransport;
use super::panic_isolation::{CatchDropPanic, ConnectionHandles};
use super::tls_session::NegotiatedAlpn;
use super::{ConnectionPermitInner, QuicListenerContext};
use crate::listen::{IncomingRequest, connection_task, upgrade};
use crate::metrics::{DenialReason, HandshakeOutcome};
use error::{H3Error, H3Refusal};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use session::WebTransportSession;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use turnway_core::limits;
use turnway_wire::channel::PROTOCOL;
use uni_streams::H3UniStreams;
use web_transport_proto::{ConnectRequest, ConnectResponse, Settings};

/// ALPN name of HTTP/3.
pub(super) const ALPN: &[u8] = b"h3";
/// `H3_EXCESSIVE_LOAD`: sent to a client above a limit.
pub(super) const EXCESSIVE_LOAD: u32 = error::EXCESSIVE_LOAD;
/// Close reason for an address that is locked out.
pub(super) const LOCKED_REASON: &str = "too many invalid credentials from this address";

/// Maximum WebTransport sessions of one connection.
const SESSIONS_MAX: u32 = 1;
/// Bidirectional streams of a client: the request, and its session's control stream.
const CLIENT_BIDI_STREAMS: u32 = 2;
/// Unidirectional streams of a client: HTTP/3's own three (RFC 9114 §6.2), and one that is refused.
const CLIENT_UNI_STREAMS: u32 = 4;
/// Maximum header fields of a request (S-10); [`frames::FIELDS_BYTES_MAX`] limits their size.
const HEADERS_MAX: usize = 64;
/// Longest wait for the client to acknowledge the close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns true if the client negotiated HTTP/3.
pub(super) fn is_negotiated(connection: &Connection) -> bool {
    let data = connection.handshake_data().and_then(|data| data.downcast::<NegotiatedAlpn>().ok());
    data.is_some_and(|spoken| spoken.0 == ALPN)
}

/// An HTTP/3 connection. It must be closed before it is dropped.
struct H3Connection {
    /// Our control stream, once it is open.
    control_stream: Option<CatchDropPanic<SendStream>>,
    uni_streams: H3UniStreams,
    /// Last field, so that it is dropped after its streams.
    connection: ConnectionHandles,
}

/// A `CONNECT` request with its streams.
struct ConnectStreams {
    request: ConnectRequest,
    to: CatchDropPanic<SendStream>,
    from: CatchDropPanic<RecvStream>,
}

/// The reason why a connection gets no session.
enum SessionRejection {
    /// The request is answered with this status.
    Status(StatusCode, CatchDropPanic<SendStream>),
    /// A protocol error that ends the connection.
    Fault(H3Error),
    /// The client has left.
    Gone,
}

// === impl QuicListenerContext ===

impl QuicListenerContext {
    /// Serves a connection that negotiated HTTP/3, until its session begins or it is refused.
    pub(super) async fn serve_h3(self: Arc<Self>, connection: ConnectionHandles, permit: ConnectionPermitInner) {
        let (mut http, settled) = H3Connection::start(connection);
        let mut is_page = false;
        let judge = |request: &ConnectRequest| {
            is_page = request.headers.contains_key(header::ORIGIN);
            self.check_request(request, &permit, is_page)
        };
        let received = tokio::select! {
            received = timeout(limits::HELLO_TIMEOUT, http.accept_session(settled, judge)) => received,
            () = self.life.wait_for_phase(self.until) => return http.close(error::NO_ERROR, "draining"),
        };
        let links = &self.link_context.metrics.links;
        match received {
            Ok(Ok(session)) => {
                let arrival = IncomingRequest { permit: Arc::new(permit), is_page };
                let wire = Box::new(QuicLinkTransport::new(WebTransportSession::new(http, session)));
                // A new task, so that the memory of the handshake is released.
                let context = Arc::clone(&self.link_context);
                self.tasks.spawn(async move { connection_task::serve(wire, &context, arrival).await });
            }
            Ok(Err(SessionRejection::Status(status, to))) => {
                if !matches!(status, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) {
                    links.count_handshake(HandshakeOutcome::Malformed);
                }
                // Waits until the client has the answer; its other bytes are not read.
                let _ = timeout(CLOSE_TIMEOUT, send_final_response(status, to)).await;
                http.close(error::NO_ERROR, "only WebTransport sessions are served here");
            }
            Ok(Err(SessionRejection::Fault(fault))) => {
                links.count_handshake(HandshakeOutcome::Malformed);
                http.close(fault.code, fault.why);
            }
            Ok(Err(SessionRejection::Gone)) => links.count_handshake(HandshakeOutcome::Abandoned),
            Err(_) => {
                links.count_handshake(HandshakeOutcome::Refused);
                http.close(error::NO_ERROR, "no CONNECT request in time");
            }
        }
    }

    /// Decides whether a request may become a session, by the same rules as for a WebSocket upgrade. Returns the status
    /// of the refusal.
    fn check_request(
        &self,
        request: &ConnectRequest,
        permit: &ConnectionPermitInner,
        is_page: bool,
    ) -> Result<(), StatusCode> {
        if request.headers.len() > HEADERS_MAX {
            return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        let (uri, headers) = target_and_headers(request).ok_or(StatusCode::BAD_REQUEST)?;
        if self.rules.check(&uri, &headers).is_err() {
            self.link_context.metrics.links.count_handshake(HandshakeOutcome::Unwelcome);
            return Err(StatusCode::FORBIDDEN);
        }
        if permit.address_permit.lockout_remaining(is_page).is_some() {
            self.link_context.metrics.auth.count_denied(DenialReason::Locked);
            return Err(StatusCode::TOO_MANY_REQUESTS);
        }
        if request.url.path() == upgrade::PATH { Ok(()) } else { Err(StatusCode::NOT_FOUND) }
    }
}

/// Returns the request's target and headers as an HTTP/1.1 request would have them.
fn target_and_headers(request: &ConnectRequest) -> Option<(Uri, HeaderMap)> {
    let mut headers = request.headers.clone();
    if !headers.contains_key(header::HOST) {
        headers.insert(header::HOST, HeaderValue::from_str(request.url.authority()).ok()?);
    }
    Some((request.url.as_str().parse().ok()?, headers))
}

// === impl H3Connection ===

impl H3Connection {
    /// Starts HTTP/3 on a connection. Also returns a receiver that completes when the client's settings have arrived.
    fn start(connection: ConnectionHandles) -> (Self, oneshot::Receiver<()>) {
        // Until the end of the handshake it was not known which protocol the connection would use.
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(CLIENT_BIDI_STREAMS));
        connection.set_max_concurrent_uni_streams(VarInt::from_u32(CLIENT_UNI_STREAMS));
        let (uni_streams, settled) = H3UniStreams::start(Connection::clone(&connection));
        (Self { control_stream: None, uni_streams, connection }, settled)
    }

    /// Exchanges settings, reads the one request, and accepts it as a session.
    async fn accept_session(
        &mut self,
        settled: oneshot::Receiver<()>,
        judge: impl FnOnce(&ConnectRequest) -> Result<(), StatusCode>,
    ) -> Result<ConnectStreams, SessionRejection> {
        self.control_stream = Some(send_settings(&self.connection).await.map_err(|_| SessionRejection::Gone)?);
        let streams = async {
            let streams = read_connect(&self.connection).await?;
            // The request may overtake the settings, which say what the client supports.
            _ = settled.await;
            Ok(streams)
        };
        let mut streams = tokio::select! {
            streams = streams => streams?,
            fault = &mut self.uni_streams => return Err(SessionRejection::Fault(fault)),
        };
        if let Err(status) = judge(&streams.request) {
            return Err(SessionRejection::Status(status, streams.to));
        }
        // The only subprotocol. A client that offers none is served the same.
        let is_offered = streams.request.protocols.iter().any(|offered| offered == PROTOCOL);
        let ok = if is_offered { ConnectResponse::OK.with_protocol(PROTOCOL) } else { ConnectResponse::OK };
        send_response(ok, &mut streams.to).await?;
        Ok(streams)
    }

    fn close(self, code: u32, why: &'static str) {
        H3Error { code, why }.close(&self.connection);
    }
}

/// Opens our control stream and sends our settings. The stream stays open as long as the connection.
async fn send_settings(connection: &Connection) -> Result<CatchDropPanic<SendStream>, quinn::WriteError> {
    let mut settings = Settings::default();
    settings.enable_webtransport(SESSIONS_MAX);
    let mut text = Vec::new();
    settings.encode(&mut text);
    let mut ours = CatchDropPanic::new(connection.open_uni().await?);
    ours.write_all(&text).await?;
    Ok(ours)
}

/// Waits for the first bidirectional stream, which must carry the request.
async fn read_connect(connection: &Connection) -> Result<ConnectStreams, SessionRejection> {
    let (to, from) = connection.accept_bi().await.map_err(|_| SessionRejection::Gone)?;
    let to = CatchDropPanic::new(to);
    let mut from = CatchDropPanic::new(from);
    match frames::read_request(&mut from).await {
        Ok(request) => Ok(ConnectStreams { request, to, from }),
        Err(H3Refusal::Status(status)) => {
            // The client may still be sending a body.
            let _ = from.stop(VarInt::from_u32(error::NO_ERROR));
            Err(SessionRejection::Status(status, to))
        }
        Err(H3Refusal::Protocol(fault)) => Err(SessionRejection::Fault(fault)),
        Err(H3Refusal::Gone) => Err(SessionRejection::Gone),
    }
}

async fn send_response(response: ConnectResponse, to: &mut SendStream) -> Result<(), SessionRejection> {
    let mut text = Vec::new();
    // A response with so few fields is never too large.
    response.encode(&mut text).map_err(|_| SessionRejection::Gone)?;
    to.write_all(&text).await.map_err(|_| SessionRejection::Gone)
}

/// Answers a request that does not become a session, and waits until the client has acknowledged the answer.
async fn send_final_response(status: StatusCode, mut to: CatchDropPanic<SendStream>) {
    if send_response(ConnectResponse::new(status), &mut to).await.is_ok() && to.finish().is_ok() {
        _ = to.stopped().await;
    }
}

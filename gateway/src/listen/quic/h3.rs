//! Implements the part of HTTP/3 (RFC 9114) that browsers need for WebTransport (draft-ietf-webtrans-http3): one
//! `CONNECT` request per connection, and the session that it becomes. `web-transport-proto` encodes fields, settings
//! and capsules; the limits on memory and time of unauthenticated clients are enforced here.
mod beside;
pub mod fault;
pub mod frames;
mod session;

use super::fence::{Handles, Kept};
use super::greeting::Spoken;
use super::wire::Quic;
use super::{Place, QuicHouse};
use crate::listen::{Arrival, upgrade, visit};
use crate::metrics::{Denial, Handshake};
use beside::Beside;
use fault::{Fault, Refusal};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use session::Session;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use turnway_core::limits;
use web_transport_proto::{ConnectRequest, ConnectResponse, Settings};

/// ALPN name of HTTP/3.
pub(super) const ALPN: &[u8] = b"h3";
/// `H3_EXCESSIVE_LOAD`: sent to a client above a limit.
pub(super) const EXCESSIVE_LOAD: u32 = fault::EXCESSIVE_LOAD;
/// Close reason for an address that is locked out.
pub(super) const LOCKED: &str = "too many invalid credentials from this address";

/// Maximum WebTransport sessions of one connection.
const SESSIONS_MAX: u32 = 1;
/// Bidirectional streams of a client: the request, and its session's control stream.
const STREAMS_OF_CLIENTS: u32 = 2;
/// Unidirectional streams of a client: HTTP/3's own three (RFC 9114 §6.2), and one that is refused.
const LANES_OF_CLIENTS: u32 = 4;
/// Maximum header fields of a request (S-10); [`frames::FIELDS_BYTES_MAX`] limits their size.
const HEADERS_MAX: usize = 64;
/// Longest wait for the client to acknowledge the close.
const FAREWELL: Duration = Duration::from_secs(2);
/// The only subprotocol. A client that offers none is served the same.
const PROTOCOL: &str = "turnway.v1";

/// Returns true if the client negotiated HTTP/3.
pub(super) fn is_spoken(connection: &Connection) -> bool {
    let data = connection.handshake_data().and_then(|data| data.downcast::<Spoken>().ok());
    data.is_some_and(|spoken| spoken.0 == ALPN)
}

/// An HTTP/3 connection. It must be closed before it is dropped.
struct Http {
    /// Our control stream, once it is open.
    ours: Option<Kept<SendStream>>,
    beside: Beside,
    /// Last field, so that it is dropped after its streams.
    connection: Handles,
}

/// A `CONNECT` request with its streams.
struct Asked {
    request: ConnectRequest,
    to: Kept<SendStream>,
    from: Kept<RecvStream>,
}

/// The reason why a connection gets no session.
enum NoSession {
    /// The request is answered with this status.
    Status(StatusCode, Kept<SendStream>),
    /// A protocol error that ends the connection.
    Fault(Fault),
    /// The client has left.
    Gone,
}

// === impl QuicHouse ===

impl QuicHouse {
    /// Serves a connection that negotiated HTTP/3, until its session begins or it is refused.
    pub(super) async fn browser(self: Arc<Self>, connection: Handles, place: Place) {
        let (mut http, settled) = Http::begin(connection);
        let mut is_page = false;
        let judge = |request: &ConnectRequest| {
            is_page = request.headers.contains_key(header::ORIGIN);
            self.judge(request, &place, is_page)
        };
        let received = tokio::select! {
            received = timeout(limits::HELLO_TIMEOUT, http.receive(settled, judge)) => received,
            () = self.life.reached(self.until) => return http.end(fault::NO_ERROR, "draining"),
        };
        let links = &self.reception.metrics.links;
        match received {
            Ok(Ok(asked)) => {
                let arrival = Arrival { room: Arc::new(place), is_page };
                let wire = Box::new(Quic::new(Session::new(http, asked)));
                // A new task, so that the memory of the handshake is released.
                let reception = Arc::clone(&self.reception);
                self.tasks.spawn(async move { visit::serve(wire, &reception, arrival).await });
            }
            Ok(Err(NoSession::Status(status, to))) => {
                if !matches!(status, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) {
                    links.began(Handshake::Malformed);
                }
                // Waits until the client has the answer; its other bytes are not read.
                let _ = timeout(FAREWELL, answer(status, to)).await;
                http.end(fault::NO_ERROR, "only WebTransport sessions are served here");
            }
            Ok(Err(NoSession::Fault(fault))) => {
                links.began(Handshake::Malformed);
                http.end(fault.code, fault.why);
            }
            Ok(Err(NoSession::Gone)) => links.began(Handshake::Abandoned),
            Err(_) => {
                links.began(Handshake::Refused);
                http.end(fault::NO_ERROR, "no CONNECT request in time");
            }
        }
    }

    /// Decides whether a request may become a session, by the same rules as for a WebSocket upgrade. Returns the status
    /// of the refusal.
    fn judge(&self, request: &ConnectRequest, place: &Place, is_page: bool) -> Result<(), StatusCode> {
        if request.headers.len() > HEADERS_MAX {
            return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        let (uri, headers) = named(request).ok_or(StatusCode::BAD_REQUEST)?;
        if self.rules.check(&uri, &headers).is_err() {
            self.reception.metrics.links.began(Handshake::Unwelcome);
            return Err(StatusCode::FORBIDDEN);
        }
        if place.guest.locked(is_page).is_some() {
            self.reception.metrics.auth.denied(Denial::Locked);
            return Err(StatusCode::TOO_MANY_REQUESTS);
        }
        if request.url.path() == upgrade::PATH { Ok(()) } else { Err(StatusCode::NOT_FOUND) }
    }
}

/// Returns the request's target and headers as an HTTP/1.1 request would have them.
fn named(request: &ConnectRequest) -> Option<(Uri, HeaderMap)> {
    let mut headers = request.headers.clone();
    if !headers.contains_key(header::HOST) {
        headers.insert(header::HOST, HeaderValue::from_str(request.url.authority()).ok()?);
    }
    Some((request.url.as_str().parse().ok()?, headers))
}

// === impl Http ===

impl Http {
    /// Starts HTTP/3 on a connection. Also returns a receiver that completes when the client's settings have arrived.
    fn begin(connection: Handles) -> (Self, oneshot::Receiver<()>) {
        // Until the end of the handshake it was not known which protocol the connection would use.
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(STREAMS_OF_CLIENTS));
        connection.set_max_concurrent_uni_streams(VarInt::from_u32(LANES_OF_CLIENTS));
        let (beside, settled) = Beside::begin(Connection::clone(&connection));
        (Self { ours: None, beside, connection }, settled)
    }

    /// Exchanges settings, reads the one request, and accepts it as a session.
    async fn receive(
        &mut self,
        settled: oneshot::Receiver<()>,
        judge: impl FnOnce(&ConnectRequest) -> Result<(), StatusCode>,
    ) -> Result<Asked, NoSession> {
        self.ours = Some(settings(&self.connection).await.map_err(|_| NoSession::Gone)?);
        let asked = async {
            let asked = ask(&self.connection).await?;
            // The request may overtake the settings, which say what the client supports.
            _ = settled.await;
            Ok(asked)
        };
        let mut asked = tokio::select! {
            asked = asked => asked?,
            fault = &mut self.beside => return Err(NoSession::Fault(fault)),
        };
        if let Err(status) = judge(&asked.request) {
            return Err(NoSession::Status(status, asked.to));
        }
        let is_offered = asked.request.protocols.iter().any(|offered| offered == PROTOCOL);
        let ok = if is_offered { ConnectResponse::OK.with_protocol(PROTOCOL) } else { ConnectResponse::OK };
        say(ok, &mut asked.to).await?;
        Ok(asked)
    }

    fn end(self, code: u32, why: &'static str) {
        Fault { code, why }.end(&self.connection);
    }
}

/// Opens our control stream and sends our settings. The stream stays open as long as the connection.
async fn settings(connection: &Connection) -> Result<Kept<SendStream>, quinn::WriteError> {
    let mut settings = Settings::default();
    settings.enable_webtransport(SESSIONS_MAX);
    let mut text = Vec::new();
    settings.encode(&mut text);
    let mut ours = Kept::new(connection.open_uni().await?);
    ours.write_all(&text).await?;
    Ok(ours)
}

/// Waits for the first bidirectional stream, which must carry the request.
async fn ask(connection: &Connection) -> Result<Asked, NoSession> {
    let (to, from) = connection.accept_bi().await.map_err(|_| NoSession::Gone)?;
    let (to, mut from) = (Kept::new(to), Kept::new(from));
    match frames::request(&mut from).await {
        Ok(request) => Ok(Asked { request, to, from }),
        Err(Refusal::Status(status)) => {
            // The client may still be sending a body.
            let _ = from.stop(VarInt::from_u32(fault::NO_ERROR));
            Err(NoSession::Status(status, to))
        }
        Err(Refusal::Fault(fault)) => Err(NoSession::Fault(fault)),
        Err(Refusal::Gone) => Err(NoSession::Gone),
    }
}

async fn say(response: ConnectResponse, to: &mut SendStream) -> Result<(), NoSession> {
    let mut text = Vec::new();
    // A response with so few fields is never too large.
    response.encode(&mut text).map_err(|_| NoSession::Gone)?;
    to.write_all(&text).await.map_err(|_| NoSession::Gone)
}

/// Answers a request that does not become a session, and waits until the client has acknowledged the answer.
async fn answer(status: StatusCode, mut to: Kept<SendStream>) {
    if say(ConnectResponse::new(status), &mut to).await.is_ok() && to.finish().is_ok() {
        _ = to.stopped().await;
    }
}

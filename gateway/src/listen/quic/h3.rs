//! HTTP/3 (RFC 9114) as far as browsers need it for WebTransport (draft-ietf-webtrans-http3): one request, a
//! `CONNECT`, and the session that it becomes. How fields, settings and capsules are written is
//! `web-transport-proto`'s; what a stranger may make us keep, and for how long, is decided here.
//!
//! - [`frames`]: frames and capsules, read one at a time. [`fault`]: what is no HTTP/3, and what it is called.
//! - `beside`: the streams that are HTTP/3's own. `session`: a session as a [`super::road::Road`].
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

/// HTTP/3, as TLS names it.
pub(super) const ALPN: &[u8] = b"h3";
/// `H3_EXCESSIVE_LOAD`: what is said to whoever is one too many.
pub(super) const EXCESSIVE_LOAD: u32 = fault::EXCESSIVE_LOAD;
/// What is said to an address that is not heard for a while.
pub(super) const LOCKED: &str = "too many credentials that are not good came from this address";

/// Sessions of one connection.
const SESSIONS_MAX: u32 = 1;
/// The request, and the control stream of its session.
const STREAMS_OF_CLIENTS: u32 = 2;
/// HTTP/3's own three (RFC 9114 §6.2), and one that is refused.
const LANES_OF_CLIENTS: u32 = 4;
/// Header fields of a request (S-10); their size is bounded by [`frames::FIELDS_BYTES_MAX`].
const HEADERS_MAX: usize = 64;
/// Until the client has said that it has our last words.
const FAREWELL: Duration = Duration::from_secs(2);
/// The one subprotocol; a client that offers none is served the same.
const PROTOCOL: &str = "turnway.v1";

/// Whether a client has chosen HTTP/3.
pub(super) fn is_spoken(connection: &Connection) -> bool {
    let data = connection.handshake_data().and_then(|data| data.downcast::<Spoken>().ok());
    data.is_some_and(|spoken| spoken.0 == ALPN)
}

/// HTTP/3 on a connection, and all that it needs to live. Whoever drops it ends the connection first.
struct Http {
    /// Our control stream, once it is there.
    ours: Option<Kept<SendStream>>,
    beside: Beside,
    /// Behind its streams.
    connection: Handles,
}

/// A request, and its streams.
struct Asked {
    request: ConnectRequest,
    to: Kept<SendStream>,
    from: Kept<RecvStream>,
}

/// Why no session comes of a connection.
enum NoSession {
    /// What is said with a status.
    Status(StatusCode, Kept<SendStream>),
    /// What ends the connection.
    Fault(Fault),
    /// The client has left.
    Gone,
}

// === impl QuicHouse ===

impl QuicHouse {
    /// Receives a browser, or whoever speaks as one; until its session begins, or until it has to go.
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
                // What a handshake needed is not kept.
                let reception = Arc::clone(&self.reception);
                self.tasks.spawn(async move { visit::serve(wire, &reception, arrival).await });
            }
            Ok(Err(NoSession::Status(status, to))) => {
                if !matches!(status, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) {
                    links.began(Handshake::Malformed);
                }
                // It has to hear it; what else it sends is not read.
                let _ = timeout(FAREWELL, answer(status, to)).await;
                http.end(fault::NO_ERROR, "nothing but sessions of WebTransport is served here");
            }
            Ok(Err(NoSession::Fault(fault))) => {
                links.began(Handshake::Malformed);
                http.end(fault.code, fault.why);
            }
            Ok(Err(NoSession::Gone)) => links.began(Handshake::Abandoned),
            Err(_) => {
                links.began(Handshake::Refused);
                http.end(fault::NO_ERROR, "no CONNECT in time");
            }
        }
    }

    /// Whether a request may become a session; else with which status it does not. The same rules as for a request
    /// that becomes a WebSocket.
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

/// What a request says of whom it is for, and of whom it is from: as one of HTTP/1.1 would.
fn named(request: &ConnectRequest) -> Option<(Uri, HeaderMap)> {
    let mut headers = request.headers.clone();
    if !headers.contains_key(header::HOST) {
        headers.insert(header::HOST, HeaderValue::from_str(request.url.authority()).ok()?);
    }
    Some((request.url.as_str().parse().ok()?, headers))
}

// === impl Http ===

impl Http {
    /// Begins; and what tells when a client's settings have come.
    fn begin(connection: Handles) -> (Self, oneshot::Receiver<()>) {
        // Before the handshake nobody knew what would be spoken.
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(STREAMS_OF_CLIENTS));
        connection.set_max_concurrent_uni_streams(VarInt::from_u32(LANES_OF_CLIENTS));
        let (beside, settled) = Beside::begin(Connection::clone(&connection));
        (Self { ours: None, beside, connection }, settled)
    }

    /// Shakes hands as HTTP/3 does, reads the one request, and lets it become a session.
    async fn receive(
        &mut self,
        settled: oneshot::Receiver<()>,
        judge: impl FnOnce(&ConnectRequest) -> Result<(), StatusCode>,
    ) -> Result<Asked, NoSession> {
        self.ours = Some(settings(&self.connection).await.map_err(|_| NoSession::Gone)?);
        let asked = async {
            let asked = ask(&self.connection).await?;
            // What a client is able to do it says first, and its request may overtake that.
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

/// Opens our own control stream, and says what we are able to do. It stays open as long as the connection.
async fn settings(connection: &Connection) -> Result<Kept<SendStream>, quinn::WriteError> {
    let mut settings = Settings::default();
    settings.enable_webtransport(SESSIONS_MAX);
    let mut text = Vec::new();
    settings.encode(&mut text);
    let mut ours = Kept::new(connection.open_uni().await?);
    ours.write_all(&text).await?;
    Ok(ours)
}

/// Waits for the first stream, which has to be the request.
async fn ask(connection: &Connection) -> Result<Asked, NoSession> {
    let (to, from) = connection.accept_bi().await.map_err(|_| NoSession::Gone)?;
    let (to, mut from) = (Kept::new(to), Kept::new(from));
    match frames::request(&mut from).await {
        Ok(request) => Ok(Asked { request, to, from }),
        Err(Refusal::Status(status)) => {
            // A body may follow.
            let _ = from.stop(VarInt::from_u32(fault::NO_ERROR));
            Err(NoSession::Status(status, to))
        }
        Err(Refusal::Fault(fault)) => Err(NoSession::Fault(fault)),
        Err(Refusal::Gone) => Err(NoSession::Gone),
    }
}

async fn say(response: ConnectResponse, to: &mut SendStream) -> Result<(), NoSession> {
    let mut text = Vec::new();
    // So few fields cannot be too many.
    response.encode(&mut text).map_err(|_| NoSession::Gone)?;
    to.write_all(&text).await.map_err(|_| NoSession::Gone)
}

/// Answers a request that does not become a session, and waits until the client has it.
async fn answer(status: StatusCode, mut to: Kept<SendStream>) {
    if say(ConnectResponse::new(status), &mut to).await.is_ok() && to.finish().is_ok() {
        _ = to.stopped().await;
    }
}

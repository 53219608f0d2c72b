//! The TCP listener: accepts connections, serves HTTP/1.1 within tight limits, and upgrades requests to WebSockets. A
//! link's task is in `connection_task`, its transports in `websocket` and [`quic`]; limits for an address are in
//! [`address_limiter`] and `lockout`, names behind proxies in [`proxy_protocol`], framing checks in [`frame_guard`].
//! Started by `app::run`.
pub mod address_limiter;
mod address_prefix;
mod buffer_pressure;
pub mod churn_limiter;
mod close_reason;
mod connection_task;
mod cors;
pub mod frame_guard;
mod link_transport;
mod lockout;
pub mod maybe_tls;
pub mod proxy_protocol;
pub mod quic;
mod stall_guard;
mod tls_accept;
pub mod upgrade;
mod websocket;

use crate::auth::host_policy::HostPolicy;
use crate::config::Networks;
use crate::metrics::{DenialReason, HandshakeOutcome, Metrics};
use crate::phase::{Lifecycle, NodePhase};
use crate::response::{self, Body};
use crate::socket::WatchedSocket;
use crate::tls::TlsConfigWatch;
use address_limiter::{AddressLimiter, AddressPermit};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, Ready, ready};
use http::{Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use maybe_tls::MaybeTlsStream;
use stall_guard::StallGuard;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use upgrade::LinkContext;

/// Maximum bytes of a request's line and headers together (S-10).
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Maximum headers of one request (S-10).
const HEADERS_MAX: usize = 64;
/// Time from the first byte of a connection, or from the last response, to the end of the next header (S-10).
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the next accept if the process is out of files or memory: an immediate try would only burn a core.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Length of the accept queue. After a restart all clients reconnect at once, and a client that finds the queue full
/// tries again only a whole second later. The system may allow fewer.
const BACKLOG: i32 = 4096;
/// Response to a connection beyond the limit, for which no task is started.
const FULL_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";

/// Response to a connection from an address that has too many.
const CROWDED_RESPONSE: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n";

/// A handler of requests that stay HTTP.
pub type PageHandler = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// A bound socket that does not accept yet: ports are bound before anything else is started.
#[derive(Debug)]
pub struct Listener {
    socket: std::net::TcpListener,
    address: SocketAddr,
}

/// The configuration and shared state of a listener.
pub struct ListenerContext {
    pub pages: PageHandler,
    /// Allowed host names and origins.
    pub rules: HostPolicy,
    /// Proxies that are trusted to name the client's address (S-49).
    pub proxies: Networks,
    /// Limits connections by address.
    pub address_limiter: AddressLimiter,
    /// Serves WebSockets; `None` on listeners for operators.
    pub link_context: Option<Arc<LinkContext>>,
    /// The TLS certificate; `None` serves plain TCP.
    pub tls: Option<TlsConfigWatch>,
    /// The phase at which the listener stops accepting and asks connections to close.
    pub stop_phase: NodePhase,
    pub life: Lifecycle,
    pub metrics: Arc<Metrics>,
    /// Maximum connections at a time.
    pub connections_max: usize,
    /// Runs the task of every connection.
    pub tasks: TaskTracker,
}

/// A connection's permit, returned when its last clone is dropped.
type ConnectionPermit = Arc<ConnectionPermitInner>;

/// A request over a connection that holds a permit.
struct IncomingRequest {
    permit: ConnectionPermit,
    /// True if a web page sent the request, as browsers say by themselves (`Origin`).
    is_page: bool,
}

/// A permit among [`ListenerContext::connections_max`], and among the connections from one address.
struct ConnectionPermitInner {
    _permit: OwnedSemaphorePermit,
    address_permit: AddressPermit,
}

// === impl IncomingRequest ===

impl IncomingRequest {
    /// Records that the request showed a wrong credential.
    fn record_failed_login(&self) {
        self.permit.address_permit.record_failure(self.is_page);
    }
}

// === impl Listener ===

impl Listener {
    /// Binds the port.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = std::net::TcpListener::bind(address)?;
        // The standard library listens with a queue of 128; a second `listen` changes that.
        rustix::net::listen(&socket, BACKLOG)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Returns the bound address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until the process reaches the listener's last phase. May be called again after a panic: the socket stays
    /// open meanwhile.
    pub async fn serve(&self, context: Arc<ListenerContext>) -> io::Result<()> {
        let socket = TcpListener::from_std(self.socket.try_clone()?)?;
        let rooms = Arc::new(Semaphore::new(context.connections_max));
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = context.life.wait_for_phase(context.stop_phase) => return Ok(()),
            };
            match (accepted, Arc::clone(&rooms).try_acquire_owned()) {
                (Ok((stream, peer)), Ok(permit)) => {
                    context.tasks.spawn(connection(stream, peer.ip(), Arc::clone(&context), permit));
                }
                (Ok((stream, _)), Err(_)) => context.refuse(&stream, HandshakeOutcome::Full, FULL_RESPONSE),
                (Err(error), _) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}

/// Serves one connection, as long as it speaks HTTP.
async fn connection(mut stream: TcpStream, peer: IpAddr, context: Arc<ListenerContext>, permit: OwnedSemaphorePermit) {
    // Without TCP_NODELAY small messages wait for each other's acknowledgements; a failure only costs time.
    let _ = stream.set_nodelay(true);
    let Some(caller) = context.client_address(&mut stream, peer).await else { return };
    let Some(address_permit) = context.address_limiter.try_acquire(caller) else {
        if planted(Planted::CrowdedPlaceLost) {
            permit.forget();
        }
        return context.refuse(&stream, HandshakeOutcome::Crowded, CROWDED_RESPONSE);
    };
    let connection_permit = Arc::new(ConnectionPermitInner { _permit: permit, address_permit });
    let Some(pipe) = context.handshake(stream).await else { return };
    let watch = pipe.watch();
    let is_first = AtomicBool::new(true);
    let service = service_fn(|mut request: Request<Incoming>| {
        // Behind an earlier response, which may not be sent yet, no interim response can be written.
        let may_ask = is_first.swap(false, Ordering::Relaxed) && request.version() == Version::HTTP_11;
        request.extensions_mut().insert(if may_ask { watch.clone() } else { watch.passive() });
        let answer = context.answer(request, &connection_permit);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_header_size(HEADER_BYTES_MAX)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        // A client may close its sending half after the request; it still reads (RFC 9112 §9.6).
        .half_close(true)
        .serve_connection(StallGuard::new(pipe, limits::STALL_TIMEOUT), service)
        .with_upgrades();
    let mut http = std::pin::pin!(http);
    let ended = tokio::select! {
        ended = http.as_mut() => ended,
        () = context.life.wait_for_phase(context.stop_phase) => {
            http.as_mut().graceful_shutdown();
            http.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

// === impl ListenerContext ===

impl ListenerContext {
    /// Sends a refusal. A fresh socket has space for these few bytes; otherwise closing says enough. Over TLS nothing
    /// can be sent before a handshake, for which there is no capacity.
    fn refuse(&self, stream: &TcpStream, why: HandshakeOutcome, body: &[u8]) {
        self.metrics.links.count_handshake(why);
        if self.tls.is_none() {
            let _ = stream.try_write(body);
        }
    }

    /// Returns the client's address, as named by a trusted proxy if there is one; `None` if that proxy does not name
    /// it.
    async fn client_address(&self, stream: &mut TcpStream, peer: IpAddr) -> Option<IpAddr> {
        if !self.proxies.contains(peer) {
            return Some(peer);
        }
        // Boxed, so that its memory is freed when it is done.
        let header = Box::pin(timeout(HEADER_TIMEOUT, proxy_protocol::read_client_address(stream)));
        tokio::select! {
            read = header => match read {
                Ok(Ok(caller)) => Some(caller.unwrap_or(peer)),
                Ok(Err(_)) | Err(_) => {
                    self.metrics.links.count_handshake(HandshakeOutcome::Unnamed);
                    None
                }
            },
            () = self.life.wait_for_phase(self.stop_phase) => None,
        }
    }

    /// Returns the transport for HTTP, after the TLS handshake if the listener has TLS; `None` if the handshake fails.
    async fn handshake(&self, stream: TcpStream) -> Option<MaybeTlsStream> {
        let Some(tls) = &self.tls else { return Some(MaybeTlsStream::Plain(WatchedSocket::new(stream))) };
        // Boxed, so that its memory is freed when it is done.
        let turnstile = self.link_context.as_ref().map(|link_context| &link_context.churn_limiter);
        let greeted = Box::pin(tls_accept::accept_tls(stream, tls, turnstile));
        tokio::select! {
            (pipe, how) = greeted => {
                self.metrics.tls.count_handshake(how);
                pipe
            }
            () = self.life.wait_for_phase(self.stop_phase) => None,
        }
    }

    fn answer(
        &self,
        mut request: Request<Incoming>,
        permit: &ConnectionPermit,
    ) -> Either<Ready<Response<Body>>, BoxFuture<'static, Response<Body>>> {
        if let Err(unwelcome) = self.rules.check(request.uri(), request.headers()) {
            self.metrics.links.count_handshake(HandshakeOutcome::Unwelcome);
            let refused = response::problem(StatusCode::FORBIDDEN, Code::Forbidden, unwelcome.message());
            return Either::Left(ready(refused));
        }
        let arrival =
            IncomingRequest { permit: Arc::clone(permit), is_page: request.headers().contains_key(header::ORIGIN) };
        if let Some(wait) = arrival.permit.address_permit.lockout_remaining(arrival.is_page) {
            self.metrics.auth.count_denied(DenialReason::Locked);
            let why = "too many invalid credentials from this address";
            let refusal = Refusal::new(Code::RateLimited, why).retry_after(wait);
            return Either::Left(ready(response::refused(StatusCode::TOO_MANY_REQUESTS, &refusal)));
        }
        match &self.link_context {
            Some(link_context) if request.uri().path() == upgrade::PATH => {
                Either::Left(ready(link_context.upgrade(&mut request, arrival)))
            }
            Some(_) => self.page_with_cors(request, arrival),
            // Operators' pages are not shared with scripts of any origin.
            None => Either::Right(self.page(request, arrival)),
        }
    }

    /// Serves a page, readable for scripts from allowed origins.
    fn page_with_cors(
        &self,
        request: Request<Incoming>,
        arrival: IncomingRequest,
    ) -> Either<Ready<Response<Body>>, BoxFuture<'static, Response<Body>>> {
        let Some(origin) = request.headers().get(header::ORIGIN).cloned() else {
            return Either::Right(self.page(request, arrival));
        };
        if let Some(answer) = cors::preflight(&request) {
            return Either::Left(ready(answer));
        }
        let page = self.page(request, arrival);
        let shared = page.map(move |mut page| {
            cors::share(&mut page, &origin);
            page
        });
        Either::Right(shared.boxed())
    }

    /// Serves a page, and records a failed login if the request showed a wrong credential.
    fn page(&self, request: Request<Incoming>, arrival: IncomingRequest) -> BoxFuture<'static, Response<Body>> {
        let is_shown = request.headers().contains_key(header::AUTHORIZATION);
        let page = (self.pages)(request);
        if !is_shown || !arrival.permit.address_permit.counts_failures(arrival.is_page) {
            return page;
        }
        let page = page.inspect(move |page| {
            if page.extensions().get::<response::UnknownCredential>().is_some() && !planted(Planted::HttpGuessUncounted)
            {
                arrival.record_failed_login();
            }
        });
        page.boxed()
    }
}

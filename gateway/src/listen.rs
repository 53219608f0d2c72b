//! Sockets that accept: HTTP/1.1 with tight limits, and WebSockets out of it.
//!
//! - [`Listener`]: a bound socket and its accept loop.
//! - [`seam`]: where frames begin and end, below the WebSocket codec.
//! - `pipe`: a connection of TCP, with TLS over it or without; `greet`: how TLS begins.
//! - [`caller`]: who is behind a proxy; [`crowd`]: how many there are from one address (`home`); `lockout`: which
//!   of them are not heard for a while.
//! - `patience`: a socket that gives up on a peer that takes nothing.
//! - `cors`: which pages may read answers.
//! - [`upgrade`]: from an HTTP request to a WebSocket.
//! - `visit`: one link from its first byte to its last; `wire`: what it asks of what carries it.
//! - `websocket`: a WebSocket as that; `wear`: when its buffers are exchanged.
//! - [`quic`]: a bound UDP socket, its accept loop, and a QUIC connection as what carries a link.
pub mod caller;
mod cors;
pub mod crowd;
mod end;
mod greet;
mod home;
mod lockout;
mod patience;
pub mod pipe;
pub mod quic;
pub mod seam;
pub mod turnstile;
pub mod upgrade;
mod visit;
mod wear;
mod websocket;
mod wire;

use crate::answer::{self, Body};
use crate::config::Networks;
use crate::door::browser::Rules;
use crate::metrics::{Denial, Handshake, Metrics};
use crate::phase::{Life, Phase};
use crate::socket::Socket;
use crate::tls::Shown;
use crowd::{Crowd, Guest};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, Ready, ready};
use http::{Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use patience::Patience;
use pipe::Pipe;
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
use upgrade::Reception;

/// A request's line and headers together (S-10).
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Headers of one request (S-10).
const HEADERS_MAX: usize = 64;
/// From the first byte of a connection, or the last answer, to the end of the next header (S-10).
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Before the next try where the process is out of files or memory: at once would only burn a core.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Connections that wait to be accepted. After a restart everybody comes back at once, and whoever finds the
/// queue full tries again a whole second later. The system may allow fewer.
const WAITING_MAX: i32 = 4096;
/// What is said to a connection there is no room for; there is no task for it that could say more.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";

/// What is said to a connection whose address has too many.
const CROWDED: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n";

/// Answers requests that stay HTTP.
pub type Pages = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// A bound socket that does not accept yet: ports are taken before anything else is begun.
#[derive(Debug)]
pub struct Listener {
    socket: std::net::TcpListener,
    address: SocketAddr,
}

/// What stands behind a listener.
pub struct House {
    /// HTTP.
    pub pages: Pages,
    /// By which names it is called, and by which pages.
    pub rules: Rules,
    /// Who says for whom it connects, and is believed (S-49).
    pub proxies: Networks,
    /// Those who are connected, by address.
    pub crowd: Crowd,
    /// WebSocket, if this listener has any.
    pub reception: Option<Arc<Reception>>,
    /// How connections are greeted in TLS; none: they are not.
    pub tls: Option<Shown>,
    /// Accepting ends, and connections are asked to, when the process reaches this phase.
    pub until: Phase,
    /// The process's phase.
    pub life: Life,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Connections at a time.
    pub connections_max: usize,
    /// Every connection runs as one of these.
    pub tasks: TaskTracker,
}

/// One connection's place; given back when its last clone is gone.
type Room = Arc<Place>;

/// Somebody who asks for something, over a connection that has its place.
struct Arrival {
    room: Room,
    /// A web page asks, as browsers say by themselves (`Origin`).
    is_page: bool,
}

/// A place among [`House::connections_max`], and among those from one address.
struct Place {
    _permit: OwnedSemaphorePermit,
    guest: Guest,
}

// === impl Arrival ===

impl Arrival {
    /// What it showed is not good.
    fn failed(&self) {
        self.room.guest.failed(self.is_page);
    }
}

// === impl Listener ===

impl Listener {
    /// Takes a port.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = std::net::TcpListener::bind(address)?;
        // The standard library asks for 128; asking again changes it.
        rustix::net::listen(&socket, WAITING_MAX)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Its address, with its real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until the process reaches the house's last phase.
    /// May be called again if it panicked: the socket stays open meanwhile.
    pub async fn serve(&self, house: Arc<House>) -> io::Result<()> {
        let socket = TcpListener::from_std(self.socket.try_clone()?)?;
        let rooms = Arc::new(Semaphore::new(house.connections_max));
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = house.life.reached(house.until) => return Ok(()),
            };
            match (accepted, Arc::clone(&rooms).try_acquire_owned()) {
                (Ok((stream, peer)), Ok(permit)) => {
                    house.tasks.spawn(connection(stream, peer.ip(), Arc::clone(&house), permit));
                }
                (Ok((stream, _)), Err(_)) => house.turn_away(&stream, Handshake::Full, FULL),
                (Err(error), _) => {
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}

/// One connection, as long as it speaks HTTP.
async fn connection(mut stream: TcpStream, peer: IpAddr, house: Arc<House>, permit: OwnedSemaphorePermit) {
    // Without it small messages wait for each other's acknowledgements; a socket that cannot is slower.
    let _ = stream.set_nodelay(true);
    let Some(caller) = house.caller(&mut stream, peer).await else { return };
    let Some(guest) = house.crowd.enter(caller) else {
        if planted(Planted::CrowdedPlaceLost) {
            permit.forget();
        }
        return house.turn_away(&stream, Handshake::Crowded, CROWDED);
    };
    let room = Arc::new(Place { _permit: permit, guest });
    let Some(pipe) = house.greet(stream).await else { return };
    let (watch, is_first) = (pipe.watch(), AtomicBool::new(true));
    let service = service_fn(|mut request: Request<Incoming>| {
        // Behind an earlier answer, which may not have left yet, nothing can be written beside it.
        let may_ask = is_first.swap(false, Ordering::Relaxed) && request.version() == Version::HTTP_11;
        request.extensions_mut().insert(if may_ask { watch.clone() } else { watch.silent() });
        let answer = house.answer(request, &room);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_header_size(HEADER_BYTES_MAX)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        // A client that has asked may close its half; it still reads (RFC 9112 §9.6).
        .half_close(true)
        .serve_connection(Patience::new(pipe, limits::STALL_TIMEOUT), service)
        .with_upgrades();
    let mut http = std::pin::pin!(http);
    let ended = tokio::select! {
        ended = http.as_mut() => ended,
        () = house.life.reached(house.until) => {
            http.as_mut().graceful_shutdown();
            http.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}

// === impl House ===

impl House {
    /// Says no. A fresh socket has room for so little; if it has not, closing says enough. In TLS nothing can be
    /// said before a handshake, for which there is no room.
    fn turn_away(&self, stream: &TcpStream, why: Handshake, words: &[u8]) {
        self.metrics.links.began(why);
        if self.tls.is_none() {
            let _ = stream.try_write(words);
        }
    }

    /// Where a connection comes from, with the word of proxies that are believed; none, if such a one does not
    /// say it.
    async fn caller(&self, stream: &mut TcpStream, peer: IpAddr) -> Option<IpAddr> {
        if !self.proxies.have(peer) {
            return Some(peer);
        }
        // On the heap, and gone when it is over.
        let asked = Box::pin(timeout(HEADER_TIMEOUT, caller::caller(stream)));
        tokio::select! {
            said = asked => match said {
                Ok(Ok(caller)) => Some(caller.unwrap_or(peer)),
                Ok(Err(_)) | Err(_) => {
                    self.metrics.links.began(Handshake::Unnamed);
                    None
                }
            },
            () = self.life.reached(self.until) => None,
        }
    }

    /// What HTTP is spoken over; none, if it does not come so far.
    async fn greet(&self, stream: TcpStream) -> Option<Pipe> {
        let Some(tls) = &self.tls else { return Some(Pipe::Plain(Socket::new(stream))) };
        // On the heap, and gone when it is over.
        let turnstile = self.reception.as_ref().map(|reception| &reception.turnstile);
        let greeted = Box::pin(greet::greet(stream, tls, turnstile));
        tokio::select! {
            (pipe, how) = greeted => {
                self.metrics.tls.greeted(how);
                pipe
            }
            () = self.life.reached(self.until) => None,
        }
    }

    fn answer(
        &self,
        mut request: Request<Incoming>,
        room: &Room,
    ) -> Either<Ready<Response<Body>>, BoxFuture<'static, Response<Body>>> {
        if let Err(unwelcome) = self.rules.check(request.uri(), request.headers()) {
            self.metrics.links.began(Handshake::Unwelcome);
            let refused = answer::problem(StatusCode::FORBIDDEN, Code::Forbidden, unwelcome.why());
            return Either::Left(ready(refused));
        }
        let arrival =
            Arrival { room: Arc::clone(room), is_page: request.headers().contains_key(header::ORIGIN) };
        if let Some(wait) = arrival.room.guest.locked(arrival.is_page) {
            self.metrics.auth.denied(Denial::Locked);
            let why = "too many credentials that are not good came from this address";
            let refusal = Refusal::new(Code::RateLimited, why).retry_after(wait);
            return Either::Left(ready(answer::refused(StatusCode::TOO_MANY_REQUESTS, &refusal)));
        }
        match &self.reception {
            Some(reception) if request.uri().path() == upgrade::PATH => {
                Either::Left(ready(reception.receive(&mut request, arrival)))
            }
            Some(_) => self.shared_page(request, arrival),
            // Operators' pages are for nobody's scripts.
            None => Either::Right(self.page(request, arrival)),
        }
    }

    /// A page, for scripts of pages from listed origins too.
    fn shared_page(
        &self,
        request: Request<Incoming>,
        arrival: Arrival,
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

    /// A page, and whether what the request showed for it was good.
    fn page(&self, request: Request<Incoming>, arrival: Arrival) -> BoxFuture<'static, Response<Body>> {
        let is_shown = request.headers().contains_key(header::AUTHORIZATION);
        let page = (self.pages)(request);
        if !is_shown || !arrival.room.guest.is_watched(arrival.is_page) {
            return page;
        }
        let page = page.inspect(move |page| {
            if page.extensions().get::<answer::Guess>().is_some() && !planted(Planted::HttpGuessUncounted) {
                arrival.failed();
            }
        });
        page.boxed()
    }
}

//! Accepts QUIC connections on a UDP socket and serves each as a link, natively or as a WebTransport session over
//! HTTP/3 ([`h3`]). Called by `app`. `panic_isolation` contains panics inside quinn; [`frames`] frames messages, and
//! `attempt_streams` carries text.
mod fence;
pub mod frames;
mod greeting;
pub mod h3;
pub mod ids;
mod lanes;
mod pace;
mod ration;
mod road;
mod terms;
pub mod tokens;
mod wire;

use super::crowd::{Crowd, Guest};
use super::upgrade::Reception;
use super::{Arrival, Place, visit};
use crate::config::Networks;
use crate::door::browser::Rules;
use crate::metrics::{Denial, Greeting, Handshake};
use crate::phase::{Life, Phase};
use crate::tls::Shown;
use fence::{Fenced, Handles, Held};
use pace::{HalfOpen, Pace};
use quinn::{Connection, Incoming, VarInt, ZeroRttAccepted};
use road::Bare;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use terms::Terms;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use turnway_core::planted::{Planted, planted};
use wire::Quic;

/// Longest time from a client's first datagram to the end of the handshake (S-15).
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The system default holds some 150 datagrams, so that most would be lost when all clients reconnect at once. The
/// system may allow less than this.
const RECEIVE_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// A bound UDP socket that does not accept yet.
#[derive(Debug)]
pub struct QuicListener {
    socket: UdpSocket,
    address: SocketAddr,
}

/// The dependencies of a QUIC listener.
pub struct QuicHouse {
    /// Dependencies of each link.
    pub reception: Arc<Reception>,
    /// Host names and page origins that are accepted from browsers.
    pub rules: Rules,
    /// True if HTTP/3 and WebTransport are served.
    pub webtransport: bool,
    /// Proxies that forward datagrams of many clients and cannot name them (S-49): QUIC has no PROXY protocol.
    pub proxies: Networks,
    /// Limits the connections of one address; shared with the other listeners.
    pub crowd: Crowd,
    /// The certificate in use.
    pub shown: Shown,
    /// The listener stops accepting when the process reaches this phase.
    pub until: Phase,
    /// The process's phase.
    pub life: Life,
    /// Maximum concurrent connections.
    pub connections_max: usize,
    /// Tracks the task of each connection.
    pub tasks: TaskTracker,
}

// === impl QuicListener ===

impl QuicListener {
    /// Binds the socket.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        // A smaller buffer works too, with more loss.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Returns the bound address, with the assigned port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until the process reaches the listener's last phase, then serves the open connections to their end.
    pub async fn serve(self, house: Arc<QuicHouse>) -> io::Result<()> {
        let mut shown = house.shown.clone();
        let reception = &house.reception;
        let mut terms = Terms::new(&shown, &reception.clock, house.also()).map_err(io::Error::other)?;
        let config = ids::endpoint(reception.node);
        let rooms = Arc::new(Semaphore::new(house.connections_max));
        loop {
            let fenced = Fenced::new(config.clone(), terms.first(), self.socket.try_clone()?)?;
            let attend = async |fenced: &mut Fenced| {
                house.attend(fenced, &mut shown, &mut terms, &rooms).await;
            };
            match fenced.hold(attend).await {
                Held::Over => return Ok(()),
                Held::Broken => {
                    tracing::error!("QUIC endpoint failed: its clients have to reconnect");
                    reception.metrics.links.broke();
                    tokio::time::sleep(fence::PAUSE).await;
                }
            }
        }
    }
}

// === impl QuicHouse ===

impl QuicHouse {
    /// Returns the protocol offered beside our own, if any.
    fn also(&self) -> Option<&'static [u8]> {
        self.webtransport.then_some(h3::ALPN)
    }

    /// Accepts connections until the last phase, then waits for the open ones to end.
    async fn attend(
        self: &Arc<Self>,
        fenced: &mut Fenced,
        shown: &mut Shown,
        terms: &mut Terms,
        rooms: &Arc<Semaphore>,
    ) {
        let mut pace = Pace::default();
        loop {
            tokio::select! {
                incoming = fenced.endpoint().accept() => match incoming {
                    Some(incoming) => {
                        if incoming.remote_address_validated() {
                            fenced.books().believed(incoming.remote_address(), incoming.orig_dst_cid());
                        }
                        self.meet(fenced, incoming, &mut pace, terms, rooms);
                    }
                    // The task that drives the endpoint reports the reason.
                    None => return std::future::pending().await,
                },
                () = shown.changed() => match Terms::new(shown, &self.reception.clock, self.also()) {
                    Ok(fresh) => {
                        *terms = fresh.after(terms);
                        fenced.endpoint().set_server_config(Some(terms.first()));
                    }
                    Err(error) => tracing::error!(%error, "QUIC keeps the previous certificate: the new one cannot be used"),
                },
                () = self.life.reached(self.until) => break,
            }
        }
        let endpoint = fenced.endpoint();
        // New clients are refused, so that they connect to another node.
        while let Some(incoming) = tokio::select! {
            incoming = endpoint.accept() => incoming,
            () = self.life.reached(Phase::Leaving) => None,
        } {
            incoming.refuse();
        }
        endpoint.set_server_config(None);
        // Close frames may still be in flight.
        endpoint.wait_idle().await;
    }

    /// Decides about a client that has sent one datagram.
    fn meet(
        self: &Arc<Self>,
        fenced: &mut Fenced,
        incoming: Incoming,
        pace: &mut Pace,
        terms: &mut Terms,
        rooms: &Arc<Semaphore>,
    ) {
        let links = &self.reception.metrics.links;
        let (address, now) = (incoming.remote_address().ip(), self.reception.clock.mono());
        // A client with a valid token counts too: a second prefix is as easy to obtain as the first.
        let is_crowded = pace.is_crowded(address, now);
        if is_crowded && !incoming.remote_address_validated() && incoming.may_retry() {
            links.began(Handshake::Doubted);
            _ = incoming.retry();
            return;
        }
        let Ok(permit) = Arc::clone(rooms).try_acquire_owned() else {
            links.began(Handshake::Full);
            return incoming.refuse();
        };
        let half_open = pace.open();
        match fenced.accept(incoming, terms.next()) {
            Ok((connection, greeted)) => {
                _ = self.tasks.spawn(Arc::clone(self).connection(connection, greeted, permit, half_open));
            }
            Err(error) => tracing::debug!(%error, "invalid first QUIC datagram"),
        }
    }

    /// Serves one connection from its handshake to its end.
    async fn connection(
        self: Arc<Self>,
        connection: Handles,
        greeted: ZeroRttAccepted,
        permit: OwnedSemaphorePermit,
        half_open: HalfOpen,
    ) {
        if !self.greet(&connection, greeted, half_open).await {
            if planted(Planted::QuicPlaceLost) {
                permit.forget();
            }
            return;
        }
        let is_h3 = h3::is_spoken(&connection);
        let Some(guest) = self.enter(connection.remote_address().ip()) else {
            self.reception.metrics.links.began(Handshake::Crowded);
            let code = if is_h3 { h3::EXCESSIVE_LOAD } else { 4429 };
            return turn_away(&connection, code, "too many connections from this address");
        };
        if is_h3 {
            return Box::pin(self.browser(connection, Place { _permit: permit, guest })).await;
        }
        if guest.locked(false).is_some() && !planted(Planted::QuicLockoutUnchecked) {
            self.reception.metrics.auth.denied(Denial::Locked);
            return turn_away(&connection, 4429, h3::LOCKED);
        }
        let arrival = Arrival { room: Arc::new(Place { _permit: permit, guest }), is_page: false };
        // A new task, so that the memory of the handshake is released.
        let reception = Arc::clone(&self.reception);
        self.tasks.spawn(async move {
            visit::serve(Box::new(Quic::new(Bare::new(connection))), &reception, arrival).await;
        });
    }

    /// Counts a connection from this address, or returns `None` if the address has too many. Connections through a
    /// proxy are not counted as one address's.
    fn enter(&self, from: IpAddr) -> Option<Guest> {
        if self.proxies.have(from) { Some(self.crowd.enter_for_many(from)) } else { self.crowd.enter(from) }
    }

    /// Waits for the end of the handshake; returns true if the connection is established.
    async fn greet(&self, connection: &Connection, greeted: ZeroRttAccepted, _half_open: HalfOpen) -> bool {
        let over = tokio::select! {
            over = timeout(HANDSHAKE_TIMEOUT, greeted) => over,
            () = self.life.reached(self.until) => return false,
        };
        let how = match (over, connection.close_reason()) {
            (Err(_), _) => Greeting::Late,
            (Ok(_), None) => Greeting::Done,
            (Ok(_), Some(error)) => {
                tracing::debug!(%error, "a QUIC handshake failed");
                Greeting::Failed
            }
        };
        self.reception.metrics.tls.greeted(how);
        how == Greeting::Done
    }
}

/// Closes a connection with a code that tells the client to wait.
fn turn_away(connection: &Connection, code: u32, why: &str) {
    connection.close(VarInt::from_u32(code), why.as_bytes());
}

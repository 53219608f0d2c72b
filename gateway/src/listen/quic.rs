//! A UDP socket that accepts QUIC, and each connection of it as what carries a link.
//!
//! - [`QuicListener`]: a bound socket and its accept loop.
//! - `terms`: what a connection is granted: windows, streams, times.
//! - `pace`: who has to prove first that its address is its own; `ration`: what is sent there before.
//! - `greeting`: TLS of a connection.
//! - `fence`: what becomes of a panic inside quinn.
//! - `ids`: names of connections that say whose they are; `tokens`: proofs of addresses.
//! - `road`: what streams run over, ours or WebTransport's; `wire`: a road as a [`super::wire::Wire`]; `lanes`: text
//!   on streams of its own.
//! - [`h3`]: from a connection of HTTP/3 to a session of WebTransport.
//! - [`frames`]: length and JSON.
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

/// From a client's first datagram to the end of the handshake (S-15).
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The system's own size holds some 150 datagrams: when everybody comes back at once most of them would be lost.
/// It may allow less.
const RECEIVE_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// A bound socket that does not accept yet.
#[derive(Debug)]
pub struct QuicListener {
    socket: UdpSocket,
    address: SocketAddr,
}

/// What stands behind it.
pub struct QuicHouse {
    /// Where links are received.
    pub reception: Arc<Reception>,
    /// By which names it is called, and by which pages; of browsers.
    pub rules: Rules,
    /// Whether browsers are received: HTTP/3, and WebTransport over it.
    pub webtransport: bool,
    /// Who passes on datagrams of many, and cannot say whose (S-49): there is no PROXY protocol in QUIC.
    pub proxies: Networks,
    /// Those who are connected, by address; the same as of other listeners.
    pub crowd: Crowd,
    /// Which certificate is shown.
    pub shown: Shown,
    /// Accepting ends when the process reaches this phase.
    pub until: Phase,
    /// The process's phase.
    pub life: Life,
    /// Connections at a time.
    pub connections_max: usize,
    /// Every connection runs as one of these.
    pub tasks: TaskTracker,
}

// === impl QuicListener ===

impl QuicListener {
    /// Takes a port.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        // Less will do, at another price.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Its address, with its real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts until the process reaches the house's last phase, and serves those who are there to their end.
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
                    tracing::error!("QUIC has broken: who was connected by it has to come again");
                    reception.metrics.links.broke();
                    tokio::time::sleep(fence::PAUSE).await;
                }
            }
        }
    }
}

// === impl QuicHouse ===

impl QuicHouse {
    /// What is spoken beside our own protocol.
    fn also(&self) -> Option<&'static [u8]> {
        self.webtransport.then_some(h3::ALPN)
    }

    /// Lets people in until the last phase, and waits for those who are there.
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
                    // Whoever drives it tells why.
                    None => return std::future::pending().await,
                },
                () = shown.changed() => match Terms::new(shown, &self.reception.clock, self.also()) {
                    Ok(fresh) => {
                        *terms = fresh.after(terms);
                        fenced.endpoint().set_server_config(Some(terms.first()));
                    }
                    Err(error) => tracing::error!(%error, "QUIC goes on with the certificate from before"),
                },
                () = self.life.reached(self.until) => break,
            }
        }
        let endpoint = fenced.endpoint();
        // Whoever comes now is told to come to another node.
        while let Some(incoming) = tokio::select! {
            incoming = endpoint.accept() => incoming,
            () = self.life.reached(Phase::Leaving) => None,
        } {
            incoming.refuse();
        }
        endpoint.set_server_config(None);
        // The last words are still on their way.
        endpoint.wait_idle().await;
    }

    /// Decides about somebody of whom there is one datagram.
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
        // Whoever has shown a token is counted as well: a second prefix is as easily had as a first.
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
            Err(error) => tracing::debug!(%error, "a first datagram is none"),
        }
    }

    /// One connection from its handshake to its end.
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
        // What a handshake needed is not kept.
        let reception = Arc::clone(&self.reception);
        self.tasks.spawn(async move {
            visit::serve(Box::new(Quic::new(Bare::new(connection))), &reception, arrival).await;
        });
    }

    /// Lets one in from this address, unless too many are. What a proxy's many do is not counted as one's.
    fn enter(&self, from: IpAddr) -> Option<Guest> {
        if self.proxies.have(from) { Some(self.crowd.enter_for_many(from)) } else { self.crowd.enter(from) }
    }

    /// Waits until the handshake is over; whether there is a connection then.
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

/// Says no; what waits for it is a client that is asked to wait.
fn turn_away(connection: &Connection, code: u32, why: &str) {
    connection.close(VarInt::from_u32(code), why.as_bytes());
}

//! Accepts QUIC connections on a UDP socket and serves each as a link, natively or as a WebTransport session over
//! HTTP/3 ([`h3`]). Called by `app`. `panic_isolation` contains panics inside quinn; [`frames`] frames messages, and
//! `attempt_streams` carries text.
pub mod address_tokens;
mod address_validation;
mod anti_amplification;
mod attempt_streams;
pub mod connection_ids;
pub mod frames;
pub mod h3;
mod link;
mod panic_isolation;
mod quic_transport;
mod server_configs;
mod tls_session;

use super::address_limiter::{AddressLimiter, AddressPermit};
use super::upgrade::LinkContext;
use super::{ConnectionPermitInner, IncomingRequest, connection_task};
use crate::auth::host_policy::HostPolicy;
use crate::config::Networks;
use crate::metrics::{DenialReason, HandshakeOutcome, TlsHandshakeOutcome};
use crate::phase::{Lifecycle, NodePhase};
use crate::tls::TlsConfigWatch;
use address_validation::{AddressValidation, HalfOpen};
use link::QuicLinkTransport;
use panic_isolation::{ConnectionHandles, EndpointOutcome, IsolatedEndpoint};
use quic_transport::NativeQuic;
use quinn::{Connection, Incoming, VarInt, ZeroRttAccepted};
use server_configs::QuicServerConfigs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use turnway_core::planted::{Planted, planted};
use turnway_wire::channel::close_code;

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
pub struct QuicListenerContext {
    /// Dependencies of each link.
    pub link_context: Arc<LinkContext>,
    /// Host names and page origins that are accepted from browsers.
    pub rules: HostPolicy,
    /// True if HTTP/3 and WebTransport are served.
    pub webtransport: bool,
    /// Proxies that forward datagrams of many clients and cannot name them (S-49): QUIC has no PROXY protocol.
    pub proxies: Networks,
    /// Limits the connections of one address; shared with the other listeners.
    pub address_limiter: AddressLimiter,
    /// The certificate in use.
    pub tls: TlsConfigWatch,
    /// The listener stops accepting when the process reaches this phase.
    pub until: NodePhase,
    /// The process's phase.
    pub life: Lifecycle,
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
    pub async fn serve(self, context: Arc<QuicListenerContext>) -> io::Result<()> {
        let mut shown = context.tls.clone();
        let link_context = &context.link_context;
        let mut terms =
            QuicServerConfigs::new(&shown, &link_context.clock, context.extra_alpn()).map_err(io::Error::other)?;
        let config = connection_ids::endpoint_config(link_context.node);
        let connection_permits = Arc::new(Semaphore::new(context.connections_max));
        loop {
            let fenced = IsolatedEndpoint::new(config.clone(), terms.endpoint_config(), self.socket.try_clone()?)?;
            let attend = async |fenced: &mut IsolatedEndpoint| {
                context.accept_loop(fenced, &mut shown, &mut terms, &connection_permits).await;
            };
            match fenced.run(attend).await {
                EndpointOutcome::Finished => return Ok(()),
                EndpointOutcome::Broken => {
                    tracing::error!("QUIC endpoint failed: its clients have to reconnect");
                    link_context.metrics.links.count_quic_restart();
                    tokio::time::sleep(panic_isolation::RESTART_DELAY).await;
                }
            }
        }
    }
}

// === impl QuicListenerContext ===

impl QuicListenerContext {
    /// Returns the protocol offered beside our own, if any.
    fn extra_alpn(&self) -> Option<&'static [u8]> {
        self.webtransport.then_some(h3::ALPN)
    }

    /// Accepts connections until the last phase, then waits for the open ones to end.
    async fn accept_loop(
        self: &Arc<Self>,
        fenced: &mut IsolatedEndpoint,
        shown: &mut TlsConfigWatch,
        terms: &mut QuicServerConfigs,
        connection_permits: &Arc<Semaphore>,
    ) {
        let mut pace = AddressValidation::default();
        loop {
            tokio::select! {
                incoming = fenced.endpoint().accept() => match incoming {
                    Some(incoming) => {
                        if incoming.remote_address_validated() {
                            fenced.amplification().mark_validated(incoming.remote_address(), incoming.orig_dst_cid());
                        }
                        self.handle_incoming(fenced, incoming, &mut pace, terms, connection_permits);
                    }
                    // The task that drives the endpoint reports the reason.
                    None => return std::future::pending().await,
                },
                () = shown.changed() => match QuicServerConfigs::new(shown, &self.link_context.clock, self.extra_alpn()) {
                    Ok(fresh) => {
                        *terms = fresh.with_previous_secret(terms);
                        fenced.endpoint().set_server_config(Some(terms.endpoint_config()));
                    }
                    Err(error) => {
                        tracing::error!(%error, "QUIC keeps the previous certificate: the new one cannot be used");
                    }
                },
                () = self.life.wait_for_phase(self.until) => break,
            }
        }
        let endpoint = fenced.endpoint();
        // New clients are refused, so that they connect to another node.
        while let Some(incoming) = tokio::select! {
            incoming = endpoint.accept() => incoming,
            () = self.life.wait_for_phase(NodePhase::Stopping) => None,
        } {
            incoming.refuse();
        }
        endpoint.set_server_config(None);
        // Close frames may still be in flight.
        endpoint.wait_idle().await;
    }

    /// Decides about a client that has sent one datagram.
    fn handle_incoming(
        self: &Arc<Self>,
        fenced: &mut IsolatedEndpoint,
        incoming: Incoming,
        pace: &mut AddressValidation,
        terms: &mut QuicServerConfigs,
        connection_permits: &Arc<Semaphore>,
    ) {
        let links = &self.link_context.metrics.links;
        let address = incoming.remote_address().ip();
        let now = self.link_context.clock.mono();
        // A client with a valid token counts too: a second prefix is as easy to obtain as the first.
        let is_crowded = pace.record_connection(address, now);
        if is_crowded && !incoming.remote_address_validated() && incoming.may_retry() {
            links.count_handshake(HandshakeOutcome::Doubted);
            _ = incoming.retry();
            return;
        }
        let Ok(permit) = Arc::clone(connection_permits).try_acquire_owned() else {
            links.count_handshake(HandshakeOutcome::Full);
            return incoming.refuse();
        };
        let half_open = pace.start_handshake();
        match fenced.accept(incoming, terms.connection_config()) {
            Ok((connection, greeted)) => {
                _ = self.tasks.spawn(Arc::clone(self).serve_connection(connection, greeted, permit, half_open));
            }
            Err(error) => tracing::debug!(%error, "invalid first QUIC datagram"),
        }
    }

    /// Serves one connection from its handshake to its end.
    async fn serve_connection(
        self: Arc<Self>,
        connection: ConnectionHandles,
        greeted: ZeroRttAccepted,
        permit: OwnedSemaphorePermit,
        half_open: HalfOpen,
    ) {
        if !self.await_handshake(&connection, greeted, half_open).await {
            if planted(Planted::QuicPlaceLost) {
                permit.forget();
            }
            return;
        }
        let is_h3 = h3::is_negotiated(&connection);
        let Some(address_permit) = self.acquire_address(connection.remote_address().ip()) else {
            self.link_context.metrics.links.count_handshake(HandshakeOutcome::Crowded);
            let code = if is_h3 { h3::EXCESSIVE_LOAD } else { close_code::RATE_LIMITED.into() };
            return refuse(&connection, code, "too many connections from this address");
        };
        if is_h3 {
            return Box::pin(self.serve_h3(connection, ConnectionPermitInner { _permit: permit, address_permit }))
                .await;
        }
        if address_permit.lockout_remaining(false).is_some() && !planted(Planted::QuicLockoutUnchecked) {
            self.link_context.metrics.auth.count_denied(DenialReason::Locked);
            return refuse(&connection, close_code::RATE_LIMITED.into(), h3::LOCKED_REASON);
        }
        let arrival = IncomingRequest {
            permit: Arc::new(ConnectionPermitInner { _permit: permit, address_permit }),
            is_page: false,
        };
        // A new task, so that the memory of the handshake is released.
        let link_context = Arc::clone(&self.link_context);
        self.tasks.spawn(async move {
            connection_task::serve(
                Box::new(QuicLinkTransport::new(NativeQuic::new(connection))),
                &link_context,
                arrival,
            )
            .await;
        });
    }

    /// Counts a connection from this address, or returns `None` if the address has too many. Connections through a
    /// proxy are not counted as one address's.
    fn acquire_address(&self, from: IpAddr) -> Option<AddressPermit> {
        if self.proxies.contains(from) {
            Some(self.address_limiter.acquire_uncounted(from))
        } else {
            self.address_limiter.try_acquire(from)
        }
    }

    /// Waits for the end of the handshake; returns true if the connection is established.
    async fn await_handshake(&self, connection: &Connection, greeted: ZeroRttAccepted, _half_open: HalfOpen) -> bool {
        let over = tokio::select! {
            over = timeout(HANDSHAKE_TIMEOUT, greeted) => over,
            () = self.life.wait_for_phase(self.until) => return false,
        };
        let how = match (over, connection.close_reason()) {
            (Err(_), _) => TlsHandshakeOutcome::Late,
            (Ok(_), None) => TlsHandshakeOutcome::Done,
            (Ok(_), Some(error)) => {
                tracing::debug!(%error, "a QUIC handshake failed");
                TlsHandshakeOutcome::Failed
            }
        };
        self.link_context.metrics.tls.count_handshake(how);
        how == TlsHandshakeOutcome::Done
    }
}

/// Closes a connection with a code that tells the client to wait.
fn refuse(connection: &Connection, code: u32, why: &str) {
    connection.close(VarInt::from_u32(code), why.as_bytes());
}

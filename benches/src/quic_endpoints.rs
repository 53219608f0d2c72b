//! UDP sockets for QUIC. One socket carries any number of connections, so there is one for each source address:
//! a generator with fifty thousand connections must save on files and wake-ups.
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connecting, Endpoint, EndpointConfig, IdleTimeout, TransportConfig, VarInt};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// ALPN protocol of a node.
const ALPN: &[u8] = b"turnway/1";
/// Receive buffer of a socket. The system's default holds some 150 datagrams, and thousands of connections are
/// answered at once. The system may grant less.
pub const RECEIVE_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// The node's own value: two of its heartbeats missed.
const IDLE_TIMEOUT: Duration = turnway_core::limits::IDLE_TIMEOUT;
/// Streams that a node may have open: a session uses one at a time, and the previous one may not have ended
/// yet.
const STREAMS_MAX: u32 = 8;
/// Receive window of one stream.
const STREAM_BYTES: u32 = 64 * 1024;
/// Receive window of a connection, for several streams: one stream alone must not use it up.
const CONNECTION_BYTES: u32 = 16 * STREAM_BYTES;

/// All QUIC sockets of a run, created on first use.
#[derive(Debug, Default)]
pub struct QuicEndpoints {
    endpoints: RefCell<BTreeMap<Option<SocketAddr>, Endpoint>>,
    config: OnceCell<ClientConfig>,
}

// === impl QuicEndpoints ===

impl QuicEndpoints {
    /// Starts a connection to `to` with this server name, from this address, or from any if `None`.
    pub fn connect(&self, to: SocketAddr, name: &str, from: Option<SocketAddr>) -> Result<Connecting, String> {
        let config = match self.config.get() {
            Some(config) => config.clone(),
            None => {
                let config = config()?;
                self.config.get_or_init(|| config).clone()
            }
        };
        let mut ends = self.endpoints.borrow_mut();
        let end = match ends.get(&from) {
            Some(end) => end,
            None => {
                let end = endpoint(to, from).map_err(|error| error.to_string())?;
                ends.entry(from).or_insert(end)
            }
        };
        end.connect_with(config, to, name).map_err(|error| error.to_string())
    }
}

fn endpoint(to: SocketAddr, from: Option<SocketAddr>) -> std::io::Result<Endpoint> {
    let any = match to {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(from.unwrap_or(any))?;
    // A smaller buffer works too, but may lose datagrams.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
    Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(quinn::TokioRuntime))
}

/// Returns a client configuration with small buffers, for many connections. A client sends no heartbeats; a
/// node does, and the client acknowledges them.
fn config() -> Result<ClientConfig, String> {
    let mut tls = (*turnway_client::trust()).clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = QuicClientConfig::try_from(tls).map_err(|error| error.to_string())?;
    let mut transport = TransportConfig::default();
    let idle = u32::try_from(IDLE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(STREAM_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_BYTES))
        .enable_segmentation_offload(false)
        .datagram_receive_buffer_size(None);
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

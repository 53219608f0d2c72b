//! Sockets of UDP for QUIC. One of them carries any number of connections, so there is one for each address that
//! connections come from: what a generator of fifty thousand must not spend is files and wake-ups.
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connecting, Endpoint, EndpointConfig, IdleTimeout, TransportConfig, VarInt};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// What both ends of QUIC say they speak.
const ALPN: &[u8] = b"turnway/1";
/// The system's own holds some 150 datagrams, and thousands of connections are answered at once. It may allow less.
pub const RECEIVE_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// As nodes have it: two of their beats unheard.
const IDLE_TIMEOUT: Duration = turnway_core::limits::IDLE_TIMEOUT;
/// Streams that a node may have open: a session speaks in one at a time, and the one before may not have ended.
const STREAMS: u32 = 8;
/// Unread in one of them, and in all.
const STREAM_BYTES: u32 = 64 * 1024;
/// As much in one as a connection has room for is as good as no window, so there is room for some.
const CONNECTION_BYTES: u32 = 16 * STREAM_BYTES;

/// Every socket of a run, made when it is first needed.
#[derive(Debug, Default)]
pub struct Udp {
    ends: RefCell<BTreeMap<Option<SocketAddr>, Endpoint>>,
    config: OnceCell<ClientConfig>,
}

// === impl Udp ===

impl Udp {
    /// Begins a connection to the server of this name, from this address; none: the system's choice.
    pub fn connect(
        &self,
        to: SocketAddr,
        name: &str,
        from: Option<SocketAddr>,
    ) -> Result<Connecting, String> {
        let config = match self.config.get() {
            Some(config) => config.clone(),
            None => {
                let config = config()?;
                self.config.get_or_init(|| config).clone()
            }
        };
        let mut ends = self.ends.borrow_mut();
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
    // Less will do, at another price.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
    Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(quinn::TokioRuntime))
}

/// Small, for there may be many. A client sends no beats: a node does, and its are answered.
fn config() -> Result<ClientConfig, String> {
    let mut tls = (*turnway_client::trust()).clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = QuicClientConfig::try_from(tls).map_err(|error| error.to_string())?;
    let mut transport = TransportConfig::default();
    let idle = u32::try_from(IDLE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_BYTES))
        .enable_segmentation_offload(false)
        .datagram_receive_buffer_size(None);
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

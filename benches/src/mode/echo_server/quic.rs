//! An echo server for QUIC: bytes of a connection's control stream are sent back on it.
use super::spread;
use crate::error::BenchError;
use crate::mode::print_ready;
use crate::quic_endpoints::RECEIVE_BUFFER_BYTES;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connecting, Endpoint, EndpointConfig, IdleTimeout, ReadError, ServerConfig, TransportConfig, VarInt};
use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use turnway::tls::{TlsConfigWatch, development};
use turnway_core::limits;
use turnway_core::time::Millis;

/// Number of different heartbeat intervals, as in a node.
const INTERVALS: u32 = 16;
/// Size of one read.
const READ_BYTES: usize = 1024;

/// A socket, and the configurations that its connections get in turn: they differ in their heartbeat intervals.
type BoundEndpoint = (Endpoint, Vec<Arc<ServerConfig>>);

/// Serves without end.
pub(super) async fn serve(listen: SocketAddr, dir: &Path, beat: Option<Duration>) -> Result<(), BenchError> {
    let unavailable = |error: Box<dyn Error>| BenchError::Unavailable(format!("{listen}: {error}"));
    let (endpoint, configs) = bind(listen, dir, beat).map_err(unavailable)?;
    print_ready(endpoint.local_addr().map_err(|error| unavailable(error.into()))?);
    for config in configs.iter().cycle() {
        let Some(incoming) = endpoint.accept().await else { break };
        let connecting = incoming.accept_with(Arc::clone(config));
        tokio::task::spawn_local(async move {
            // A client may leave at any time, which is no error.
            if let Ok(connecting) = connecting {
                let _ = echo(connecting).await;
            }
        });
    }
    Ok(())
}

fn bind(listen: SocketAddr, dir: &Path, beat: Option<Duration>) -> Result<BoundEndpoint, Box<dyn Error>> {
    let now = SystemTime::UNIX_EPOCH.elapsed()?.as_millis();
    let pair = development::load_or_generate(dir, Millis(u64::try_from(now)?))?;
    let (tls, _) = TlsConfigWatch::fixed(&pair)?.quic_config();
    let crypto = Arc::new(QuicServerConfig::try_from(tls)?);
    let mut configs = Vec::new();
    for n in 0..if beat.is_some() { INTERVALS } else { 1 } {
        let mut config = ServerConfig::with_crypto(Arc::clone(&crypto) as _);
        config.transport_config(Arc::new(transport(beat.map(|beat| spread(beat, n)))?));
        configs.push(Arc::new(config));
    }
    let socket = UdpSocket::bind(listen)?;
    // A smaller buffer works too, but may lose datagrams.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = Endpoint::new(EndpointConfig::default(), Some((*configs[0]).clone()), socket, runtime)?;
    Ok((endpoint, configs))
}

fn transport(beat: Option<Duration>) -> Result<TransportConfig, Box<dyn Error>> {
    let mut transport = TransportConfig::default();
    let idle = IdleTimeout::from(VarInt::from_u32(u32::try_from(limits::IDLE_TIMEOUT.as_millis())?));
    transport
        // Without heartbeats nothing shows that the client is there.
        .max_idle_timeout(beat.map(|_| idle))
        .keep_alive_interval(beat)
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .enable_segmentation_offload(false)
        .datagram_receive_buffer_size(None);
    Ok(transport)
}

/// Echoes bytes as they come; the length prefixes are part of them.
async fn echo(connecting: Connecting) -> Result<(), Box<dyn Error>> {
    let connection = connecting.await?;
    let (mut to, mut from) = connection.accept_bi().await?;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match from.read(&mut buffer).await {
            Ok(Some(count)) => to.write_all(&buffer[..count]).await?,
            Ok(None) => {
                to.finish()?;
                connection.closed().await;
                return Ok(());
            }
            Err(ReadError::ConnectionLost(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

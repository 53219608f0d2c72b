//! A bare echo server of QUIC: what comes on a connection's control stream goes back on it.
use super::spread;
use crate::mode::announce;
use crate::trouble::Trouble;
use crate::udp::RECEIVE_BUFFER_BYTES;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    Connecting, Endpoint, EndpointConfig, IdleTimeout, ReadError, ServerConfig, TransportConfig, VarInt,
};
use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use turnway::tls::{Shown, development};
use turnway_core::limits;
use turnway_core::time::Millis;

/// So many beats, as a node has them.
const BEATS: u32 = 16;
/// What is read at a time.
const READ_BYTES: usize = 1024;

/// A socket, and what its connections are granted, one after the other: they differ in their beats.
type Bound = (Endpoint, Vec<Arc<ServerConfig>>);

/// Serves for ever.
pub(super) async fn serve(listen: SocketAddr, dir: &Path, beat: Option<Duration>) -> Result<(), Trouble> {
    let unavailable = |error: Box<dyn Error>| Trouble::Unavailable(format!("{listen}: {error}"));
    let (endpoint, configs) = bind(listen, dir, beat).map_err(unavailable)?;
    announce(endpoint.local_addr().map_err(|error| unavailable(error.into()))?);
    for config in configs.iter().cycle() {
        let Some(incoming) = endpoint.accept().await else { break };
        let connecting = incoming.accept_with(Arc::clone(config));
        tokio::task::spawn_local(async move {
            // A client that leaves as it likes is no error of ours.
            if let Ok(connecting) = connecting {
                let _ = echo(connecting).await;
            }
        });
    }
    Ok(())
}

fn bind(listen: SocketAddr, dir: &Path, beat: Option<Duration>) -> Result<Bound, Box<dyn Error>> {
    let now = SystemTime::UNIX_EPOCH.elapsed()?.as_millis();
    let pair = development::kept(dir, Millis(u64::try_from(now)?))?;
    let (tls, _) = Shown::always(&pair)?.quic();
    let crypto = Arc::new(QuicServerConfig::try_from(tls)?);
    let mut configs = Vec::new();
    for n in 0..if beat.is_some() { BEATS } else { 1 } {
        let mut config = ServerConfig::with_crypto(Arc::clone(&crypto) as _);
        config.transport_config(Arc::new(transport(beat.map(|beat| spread(beat, n)))?));
        configs.push(Arc::new(config));
    }
    let socket = UdpSocket::bind(listen)?;
    // Less will do, at another price.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = Endpoint::new(EndpointConfig::default(), Some((*configs[0]).clone()), socket, runtime)?;
    Ok((endpoint, configs))
}

fn transport(beat: Option<Duration>) -> Result<TransportConfig, Box<dyn Error>> {
    let mut transport = TransportConfig::default();
    let idle = IdleTimeout::from(VarInt::from_u32(u32::try_from(limits::IDLE_TIMEOUT.as_millis())?));
    transport
        // Without beats nothing tells it that anybody is there.
        .max_idle_timeout(beat.map(|_| idle))
        .keep_alive_interval(beat)
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .enable_segmentation_offload(false)
        .datagram_receive_buffer_size(None);
    Ok(transport)
}

/// Frames go back as they come: their lengths are part of what is read.
async fn echo(connecting: Connecting) -> Result<(), Box<dyn Error>> {
    let connection = connecting.await?;
    let (mut to, mut from) = connection.accept_bi().await?;
    let mut room = vec![0; READ_BYTES];
    loop {
        match from.read(&mut room).await {
            Ok(Some(count)) => to.write_all(&room[..count]).await?,
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

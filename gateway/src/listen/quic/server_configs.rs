//! Builds the server configuration of QUIC connections: windows, stream limits, timeouts. quinn's defaults suit few
//! fast connections; these suit many idle ones, each of which must stay small whatever its client does (S-18, S-19).
use super::address_tokens::{self, AddressTokenKeys, NodeTimeSource, UsedAddressTokens};
use super::tls_session::QuicTlsConfig;
use crate::clock::Clock;
use crate::tls::TlsConfigWatch;
use quinn::crypto::rustls::NoInitialCipherSuite;
use quinn::{IdleTimeout, ServerConfig, TransportConfig, ValidationTokenConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::limits;

/// Maximum first datagrams that wait for a decision.
const INCOMING_MAX: usize = 4096;
/// Maximum bytes kept of a client that waits for a decision; they may include its `hello`.
const INCOMING_BYTES_MAX: u64 = 64 * 1024;
/// Maximum bytes kept of all clients that wait for a decision.
const INCOMING_BYTES_TOTAL: u64 = 16 * 1024 * 1024;
/// Maximum bytes that a client may have in flight: one message and the beginning of the next.
const RECEIVE_BYTES_MAX: u32 = 2 * limits::MESSAGE_BYTES_MAX as u32;
/// Maximum unacknowledged bytes in flight to a client.
const SEND_BYTES_MAX: u64 = 256 * 1024;
/// Bidirectional streams of a client: the control stream only.
const CLIENT_BIDI_STREAMS: u32 = 1;
/// Unidirectional streams granted to clients where HTTP/3 is served (RFC 9114 §6.2). Granted before the protocol is
/// negotiated: Chromium closes the connection if the server grants them later.
const H3_UNI_STREAMS: u32 = 3;
/// WebTransport requires that datagrams are accepted (RFC 9297 §2.1.1). None is read here, so only the last one is
/// kept.
const DATAGRAM_BYTES_MAX: usize = 1200;
/// Number of keep-alive intervals, 25 s ± 10 %, so that a node's connections do not send at the same time.
const KEEP_ALIVE_VARIANTS: u32 = 16;

/// The configurations of new connections, for as long as the certificate stays the same.
pub(super) struct QuicServerConfigs {
    configs: Vec<Arc<ServerConfig>>,
    /// Index of the configuration for the next connection.
    next_index: usize,
    secrets: Vec<[u8; 32]>,
    clock: Clock,
}

// === impl QuicServerConfigs ===

impl QuicServerConfigs {
    /// Creates the configurations for the certificate in use. `also` is a further ALPN name to offer.
    pub(super) fn new(
        shown: &TlsConfigWatch,
        clock: &Clock,
        also: Option<&'static [u8]>,
    ) -> Result<Self, NoInitialCipherSuite> {
        let (mut tls, secret) = shown.quic_config();
        if let Some(also) = also {
            Arc::make_mut(&mut tls).alpn_protocols.push(also.to_vec());
        }
        let greeting = Arc::new(QuicTlsConfig::new(tls)?);
        let keys = Arc::new(AddressTokenKeys::new(&[secret], clock.clone()));
        let mut proof = ValidationTokenConfig::default();
        proof.lifetime(address_tokens::PERIOD).log(Arc::new(UsedAddressTokens::new(clock.clone())));
        let config = |n| {
            let mut config = ServerConfig::new(Arc::clone(&greeting) as _, Arc::clone(&keys) as _);
            config
                .transport_config(Arc::new(transport_config(keep_alive_interval(n), also.is_some())))
                .max_incoming(INCOMING_MAX)
                .incoming_buffer_size(INCOMING_BYTES_MAX)
                .incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
            config.validation_token_config(proof.clone()).time_source(Arc::new(NodeTimeSource(clock.clone())));
            Arc::new(config)
        };
        let configs = (0..KEEP_ALIVE_VARIANTS).map(config).collect();
        Ok(Self { configs, next_index: 0, secrets: vec![secret], clock: clock.clone() })
    }

    /// Adds the token secret of the configuration before, so that its address tokens stay valid.
    pub(super) fn with_previous_secret(mut self, before: &Self) -> Self {
        self.secrets.extend(before.secrets.first().filter(|before| !self.secrets.contains(before)));
        let keys = Arc::new(AddressTokenKeys::new(&self.secrets, self.clock.clone()));
        for config in &mut self.configs {
            Arc::make_mut(config).token_key(Arc::clone(&keys) as _);
        }
        self
    }

    /// Returns the configuration of the endpoint, which reads only its own part.
    pub(super) fn endpoint_config(&self) -> ServerConfig {
        (*self.configs[0]).clone()
    }

    /// Returns the configuration of the next connection.
    pub(super) fn connection_config(&mut self) -> Arc<ServerConfig> {
        self.next_index = (self.next_index + 1) % self.configs.len();
        Arc::clone(&self.configs[self.next_index])
    }
}

fn keep_alive_interval(n: u32) -> Duration {
    limits::HEARTBEAT * (900 + 200 * n / (KEEP_ALIVE_VARIANTS - 1)) / 1000
}

fn transport_config(beat: Duration, is_also_http: bool) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let idle = u32::try_from(limits::IDLE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .keep_alive_interval(Some(beat))
        .max_concurrent_bidi_streams(VarInt::from_u32(CLIENT_BIDI_STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(if is_also_http { H3_UNI_STREAMS } else { 0 }))
        .stream_receive_window(VarInt::from_u32(RECEIVE_BYTES_MAX))
        .receive_window(VarInt::from_u32(RECEIVE_BYTES_MAX))
        .send_window(SEND_BYTES_MAX)
        // With offload each connection would keep room for ten datagrams, 14 KB, for ever, to save a busy one some
        // system calls.
        .enable_segmentation_offload(false)
        .datagram_receive_buffer_size(is_also_http.then_some(DATAGRAM_BYTES_MAX));
    transport
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_jitter_is_at_most_ten_percent() {
        assert_eq!(keep_alive_interval(0), limits::HEARTBEAT * 9 / 10);
        assert_eq!(keep_alive_interval(KEEP_ALIVE_VARIANTS - 1), limits::HEARTBEAT * 11 / 10);
        assert!((1..KEEP_ALIVE_VARIANTS).all(|n| keep_alive_interval(n) > keep_alive_interval(n - 1)));
    }
}

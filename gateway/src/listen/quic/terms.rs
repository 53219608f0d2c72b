//! What a connection is granted. quinn's own defaults are made for few and fast connections; ours are many and
//! mostly idle, and each must stay small whatever its client does (S-18, S-19).
use super::greeting::Greeting;
use super::tokens::{self, NodeTime, TokenKeys, UsedTokens};
use crate::clock::Clock;
use crate::tls::Shown;
use quinn::crypto::rustls::NoInitialCipherSuite;
use quinn::{IdleTimeout, ServerConfig, TransportConfig, ValidationTokenConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::limits;

/// First datagrams that wait for a decision.
const INCOMING_MAX: usize = 4096;
/// What is kept of what follows a first datagram meanwhile: a hello may be among it.
const INCOMING_BYTES_MAX: u64 = 64 * 1024;
/// The same of all of them.
const INCOMING_BYTES_TOTAL: u64 = 16 * 1024 * 1024;
/// What a client may have under way: one message, and the next one's beginning.
const RECEIVE_BYTES_MAX: u32 = 2 * limits::MESSAGE_BYTES_MAX as u32;
/// What we may have under way to it before it has said that it came.
const SEND_BYTES_MAX: u64 = 256 * 1024;
/// The control stream, and no other: what else a client has to say it says there.
const STREAMS_OF_CLIENTS: u32 = 1;
/// Where HTTP/3 is spoken too its clients must be granted so many (RFC 9114 §6.2) before anybody knows which of the two
/// it will be; Chromium hangs up on a server that grants them later.
const LANES_OF_HTTP: u32 = 3;
/// WebTransport has to say that it takes datagrams (RFC 9297 §2.1.1), and nobody here reads them: one is kept, and
/// the next takes its place.
const DATAGRAM_BYTES_MAX: usize = 1200;
/// So many beats, so that not all connections of a node beat together: 25 s with a tenth more or less.
const BEATS: u32 = 16;

/// What new connections are granted, as long as the certificate stays the same.
pub(super) struct Terms {
    configs: Vec<Arc<ServerConfig>>,
    /// Whose turn it is.
    turn: usize,
    secrets: Vec<[u8; 32]>,
    clock: Clock,
}

// === impl Terms ===

impl Terms {
    /// Of the certificate that is shown now.
    /// `also`: what may be spoken beside our own protocol.
    pub(super) fn new(
        shown: &Shown,
        clock: &Clock,
        also: Option<&'static [u8]>,
    ) -> Result<Self, NoInitialCipherSuite> {
        let (mut tls, secret) = shown.quic();
        if let Some(also) = also {
            Arc::make_mut(&mut tls).alpn_protocols.push(also.to_vec());
        }
        let greeting = Arc::new(Greeting::new(tls)?);
        let keys = Arc::new(TokenKeys::new(&[secret], clock.clone()));
        let mut proof = ValidationTokenConfig::default();
        proof.lifetime(tokens::PERIOD).log(Arc::new(UsedTokens::new(clock.clone())));
        let config = |n| {
            let mut config = ServerConfig::new(Arc::clone(&greeting) as _, Arc::clone(&keys) as _);
            config
                .transport_config(Arc::new(transport(beat(n), also.is_some())))
                .max_incoming(INCOMING_MAX)
                .incoming_buffer_size(INCOMING_BYTES_MAX)
                .incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
            config.validation_token_config(proof.clone()).time_source(Arc::new(NodeTime(clock.clone())));
            Arc::new(config)
        };
        let configs = (0..BEATS).map(config).collect();
        Ok(Self { configs, turn: 0, secrets: vec![secret], clock: clock.clone() })
    }

    /// With the proofs of addresses that were given out before.
    pub(super) fn after(mut self, before: &Self) -> Self {
        self.secrets.extend(before.secrets.first().filter(|before| !self.secrets.contains(before)));
        let keys = Arc::new(TokenKeys::new(&self.secrets, self.clock.clone()));
        for config in &mut self.configs {
            Arc::make_mut(config).token_key(Arc::clone(&keys) as _);
        }
        self
    }

    /// For the endpoint, which looks at what concerns it.
    pub(super) fn first(&self) -> ServerConfig {
        (*self.configs[0]).clone()
    }

    /// For one connection.
    pub(super) fn next(&mut self) -> Arc<ServerConfig> {
        self.turn = (self.turn + 1) % self.configs.len();
        Arc::clone(&self.configs[self.turn])
    }
}

fn beat(n: u32) -> Duration {
    limits::HEARTBEAT * (900 + 200 * n / (BEATS - 1)) / 1000
}

fn transport(beat: Duration, is_also_http: bool) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let idle = u32::try_from(limits::IDLE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .keep_alive_interval(Some(beat))
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_OF_CLIENTS))
        .max_concurrent_uni_streams(VarInt::from_u32(if is_also_http { LANES_OF_HTTP } else { 0 }))
        .stream_receive_window(VarInt::from_u32(RECEIVE_BYTES_MAX))
        .receive_window(VarInt::from_u32(RECEIVE_BYTES_MAX))
        .send_window(SEND_BYTES_MAX)
        // Each connection would keep room for ten datagrams for ever, 14 KB, to save a busy one some calls.
        .enable_segmentation_offload(false)
        .datagram_receive_buffer_size(is_also_http.then_some(DATAGRAM_BYTES_MAX));
    transport
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_differ_by_a_tenth_at_most() {
        assert_eq!(beat(0), limits::HEARTBEAT * 9 / 10);
        assert_eq!(beat(BEATS - 1), limits::HEARTBEAT * 11 / 10);
        assert!((1..BEATS).all(|n| beat(n) > beat(n - 1)));
    }
}

//! Runs the TLS session of a QUIC connection and drops it once the handshake is over, keeping only the secrets of the
//! next keys. A rustls session costs 5 KiB and more, and QUIC needs nothing more of it: no tickets, no client
//! certificates, and QUIC updates keys itself (RFC 9001 §6).
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicServerConfig};
use quinn::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session, UnsupportedVersion,
};
use quinn::{ConnectionId, Side, TransportErrorCode};
use quinn_proto::TransportError;
use quinn_proto::transport_parameters::TransportParameters;
use rustls::ServerConfig;
use rustls::quic::{DirectionalKeys, KeyChange, PacketKeySet, Secrets, ServerConnection, Version};
use std::any::Any;
use std::io::Cursor;
use std::sync::Arc;

/// Draft versions that differ from version 1 only in the salt of the initial keys.
const DRAFTS: std::ops::RangeInclusive<u32> = 0xff00_001d..=0xff00_0020;
/// TLS alert for a message that must not occur here (RFC 8446 §6).
const UNEXPECTED_MESSAGE: u8 = 10;

/// The TLS configuration of new connections, for as long as the certificate stays the same.
pub(super) struct QuicTlsConfig {
    tls: Arc<ServerConfig>,
    /// The parts that all connections share, such as the initial keys.
    shared: Arc<QuicServerConfig>,
}

/// The TLS session of one connection.
struct QuicTlsSession {
    config: Arc<QuicTlsConfig>,
    version: u32,
    /// `None` once the handshake is over.
    tls: Option<Box<ServerConnection>>,
    /// Secrets of the next 1-RTT keys, once there are keys.
    secrets: Option<Secrets>,
    /// Index of the negotiated protocol in the offered list, kept after the handshake.
    alpn_index: Option<u8>,
}

/// The negotiated application protocol (ALPN, RFC 7301), as a connection's handshake data.
pub(super) struct NegotiatedAlpn(pub(super) Vec<u8>);

// === impl QuicTlsConfig ===

impl QuicTlsConfig {
    pub(super) fn new(tls: Arc<ServerConfig>) -> Result<Self, NoInitialCipherSuite> {
        let first = Arc::new(QuicServerConfig::try_from(Arc::clone(&tls))?);
        Ok(Self { tls, shared: first })
    }
}

impl crypto::ServerConfig for QuicTlsConfig {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.shared.initial_keys(version, id)
    }

    fn retry_tag(&self, version: u32, first_id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.shared.retry_tag(version, first_id, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, ours: &TransportParameters) -> Box<dyn Session> {
        Box::new(QuicTlsSession::new(self, version, ours))
    }
}

// === impl QuicTlsSession ===

impl QuicTlsSession {
    fn new(config: Arc<QuicTlsConfig>, version: u32, ours: &TransportParameters) -> Self {
        let mut parameters = Vec::new();
        ours.write(&mut parameters);
        let speaks = if DRAFTS.contains(&version) { Version::V1Draft } else { Version::V1 };
        let tls = ServerConnection::new(Arc::clone(&config.tls), speaks, parameters);
        let tls = tls.expect("it speaks TLS 1.3, or there were no first keys");
        Self { config, version, tls: Some(Box::new(tls)), secrets: None, alpn_index: None }
    }
}

impl Session for QuicTlsSession {
    fn initial_keys(&self, id: &ConnectionId, _: Side) -> Keys {
        let keys = crypto::ServerConfig::initial_keys(&*self.config, self.version, id);
        keys.unwrap_or_else(|UnsupportedVersion| unreachable!("a session begins with a version there is"))
    }

    /// Returns a [`NegotiatedAlpn`] once a protocol is negotiated.
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let under_way = self.tls.as_ref().and_then(|tls| tls.alpn_protocol());
        let known = || self.config.tls.alpn_protocols.get(usize::from(self.alpn_index?)).map(Vec::as_slice);
        under_way.or_else(known).map(|spoken| Box::new(NegotiatedAlpn(spoken.to_vec())) as Box<dyn Any>)
    }

    /// Returns `None`: clients show no certificates.
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    /// Returns `None`: 0-RTT data is not accepted (S-21).
    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let Some(tls) = &mut self.tls else {
            return Err(transport_error(TransportErrorCode::crypto(UNEXPECTED_MESSAGE), "the handshake is over"));
        };
        match tls.read_hs(bytes) {
            Ok(()) => Ok(false),
            Err(error) => {
                let alert = tls.alert().map(|alert| TransportErrorCode::crypto(alert.into()));
                Err(transport_error(alert.unwrap_or(TransportErrorCode::PROTOCOL_VIOLATION), &error.to_string()))
            }
        }
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let theirs = self.tls.as_ref().and_then(|tls| tls.quic_transport_parameters());
        let Some(mut theirs) = theirs.map(Cursor::new) else { return Ok(None) };
        Ok(Some(TransportParameters::read(Side::Server, &mut theirs)?))
    }

    fn write_handshake(&mut self, into: &mut Vec<u8>) -> Option<Keys> {
        let tls = self.tls.as_mut()?;
        match tls.write_hs(into) {
            Some(KeyChange::Handshake { keys }) => Some(key_pairs(keys.local, keys.remote)),
            Some(KeyChange::OneRtt { keys, next }) => {
                self.secrets = Some(next);
                Some(key_pairs(keys.local, keys.remote))
            }
            None => {
                if !tls.is_handshaking() {
                    let spoken = &self.config.tls.alpn_protocols;
                    let index = spoken.iter().position(|spoken| Some(&**spoken) == tls.alpn_protocol());
                    self.alpn_index = index.and_then(|index| u8::try_from(index).ok());
                    self.tls = None;
                }
                None
            }
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let PacketKeySet { local, remote } = self.secrets.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(local), remote: Box::new(remote) })
    }

    /// Returns false: only clients receive a Retry.
    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false
    }

    /// Fails: nothing exports keying material, and its source was dropped.
    fn export_keying_material(&self, _: &mut [u8], _: &[u8], _: &[u8]) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

fn key_pairs(local: DirectionalKeys, remote: DirectionalKeys) -> Keys {
    Keys {
        header: KeyPair { local: Box::new(local.header), remote: Box::new(remote.header) },
        packet: KeyPair { local: Box::new(local.packet), remote: Box::new(remote.packet) },
    }
}

fn transport_error(code: TransportErrorCode, reason: &str) -> TransportError {
    TransportError { code, frame: None, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::tls::{TlsConfigWatch, development};
    use bytes::BytesMut;
    use quinn::crypto::ClientConfig as _;
    use quinn::crypto::rustls::QuicClientConfig;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use rustls::{ClientConfig, RootCertStore};
    use std::path::Path;

    /// Returns the default transport parameters.
    fn parameters() -> TransportParameters {
        TransportParameters::read(Side::Server, &mut &[][..]).expect("nothing is well-formed")
    }

    fn client(dir: &Path) -> Box<dyn Session> {
        let mut roots = RootCertStore::empty();
        let cert = CertificateDer::from_pem_file(dir.join("cert.pem")).expect("a certificate");
        roots.add(cert).expect("it can be believed");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.expect("TLS 1.3").with_root_certificates(roots);
        let mut tls = tls.with_no_client_auth();
        tls.alpn_protocols = vec![b"turnway/1".to_vec()];
        let config = Arc::new(QuicClientConfig::try_from(tls).expect("TLS 1.3"));
        config.start_session(1, "localhost", &parameters()).expect("a good name")
    }

    /// Passes all handshake messages to the other side. Fails if one is not accepted.
    fn say(from: &mut dyn Session, to: &mut dyn Session) -> Result<(), TransportError> {
        loop {
            let mut bytes = Vec::new();
            let keys = from.write_handshake(&mut bytes);
            if bytes.is_empty() && keys.is_none() {
                return Ok(());
            }
            to.read_handshake(&bytes)?;
        }
    }

    /// Covers: G-15.
    #[test]
    fn tls_state_after_the_handshake_is_reduced_to_key_secrets() {
        let dir = std::env::temp_dir().join(format!("turnway-greeting-{}", std::process::id()));
        let pair = development::load_or_generate(&dir, Clock::start().now().store).expect("a certificate");
        let greeting = QuicTlsConfig::new(TlsConfigWatch::fixed(&pair).expect("it can be shown").quic_config().0);
        let greeting = Arc::new(greeting.expect("TLS 1.3"));
        let mut server = QuicTlsSession::new(greeting, 1, &parameters());
        let mut client = client(&dir);
        std::fs::remove_dir_all(&dir).expect("removed");
        say(&mut *client, &mut server).expect("hello");
        assert!(matches!(server.transport_parameters(), Ok(Some(_))) && server.tls.is_some());
        say(&mut server, &mut *client).expect("hello, a certificate, and an end");
        assert!(server.is_handshaking() && server.tls.is_some());
        say(&mut *client, &mut server).expect("an end");
        assert!(server.write_handshake(&mut Vec::new()).is_none());
        assert!(!server.is_handshaking() && server.tls.is_none());
        let spoken = server.handshake_data().and_then(|data| data.downcast::<NegotiatedAlpn>().ok());
        assert_eq!(spoken.map(|spoken| spoken.0), Some(b"turnway/1".to_vec()));
        for packet in 0..3 {
            let ours = server.next_1rtt_keys().expect("keys").local;
            let theirs = client.next_1rtt_keys().expect("keys").remote;
            let mut bytes = [b"head", &b"a word"[..], &[0; 16]].concat();
            ours.encrypt(packet, &mut bytes, 4);
            let mut plaintext = BytesMut::from(&bytes[4..]);
            theirs.decrypt(packet, b"head", &mut plaintext).expect("they are the same keys");
            assert_eq!(&plaintext[..], b"a word");
        }
        // A client that attempts a TLS key update, which QUIC forbids.
        let refused = server.read_handshake(&[24, 0, 0, 1, 0]).expect_err("refused");
        assert_eq!(refused.code, TransportErrorCode::crypto(UNEXPECTED_MESSAGE));
    }
}

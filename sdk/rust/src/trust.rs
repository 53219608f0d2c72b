//! Whose certificates are believed: those that the system believes.
use crate::error::ClientError;
use crate::options::Options;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::sync::{Arc, OnceLock};

/// How a gateway is spoken to in TLS. What is believed is what the system believes, or what the file believes
/// that `SSL_CERT_FILE` names: the certificate of `turnway dev-cert` for example. It is read once.
pub fn trust() -> Arc<ClientConfig> {
    static TRUST: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    Arc::clone(TRUST.get_or_init(|| Arc::new(read())))
}

/// Whom one client believes.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    /// Whom the system believes.
    System,
    /// Whom it was told to.
    Given(Arc<ClientConfig>),
}

impl Trust {
    /// What these options say.
    pub(crate) fn of(options: &Options) -> Result<Self, ClientError> {
        let Some(pem) = &options.ca else { return Ok(Self::System) };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|_| ClientError::BadCa)?;
            roots.add(certificate).map_err(|_| ClientError::BadCa)?;
        }
        if roots.is_empty() { Err(ClientError::BadCa) } else { Ok(Self::Given(Arc::new(config(roots)))) }
    }

    /// For TLS over TCP.
    pub(crate) fn tls(&self) -> Arc<ClientConfig> {
        match self {
            Self::System => trust(),
            Self::Given(config) => Arc::clone(config),
        }
    }

    /// For QUIC, which has TLS of its own.
    pub(crate) fn quic(&self) -> ClientConfig {
        let mut config = (*self.tls()).clone();
        config.alpn_protocols = vec![b"turnway/1".to_vec()];
        config
    }
}

fn read() -> ClientConfig {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "certificates of the system cannot be read");
    }
    // Where nobody is believed, each connection fails, and says why.
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    config(roots)
}

fn config(roots: RootCertStore) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    // The provider has both of these versions.
    let builder = builder.with_safe_default_protocol_versions().expect("TLS 1.2 and 1.3");
    builder.with_root_certificates(roots).with_no_client_auth()
}

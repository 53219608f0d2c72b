//! The certificates that a client trusts: the system's, or those in its options.
use crate::error::ClientError;
use crate::options::Options;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::sync::{Arc, OnceLock};

/// Returns the default TLS configuration. It trusts the system's certificates, or those in the file that
/// `SSL_CERT_FILE` names, such as the certificate of `turnway dev-cert`. Read once.
pub fn trust() -> Arc<ClientConfig> {
    static TRUST: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    Arc::clone(TRUST.get_or_init(|| Arc::new(read())))
}

/// The certificates that a client trusts.
#[derive(Clone, Debug)]
pub(crate) enum TrustedRoots {
    /// The system's certificates.
    System,
    /// The certificates of the options.
    Custom(Arc<ClientConfig>),
}

impl TrustedRoots {
    /// Reads the certificates of the options.
    pub(crate) fn from_options(options: &Options) -> Result<Self, ClientError> {
        let Some(pem) = &options.ca else { return Ok(Self::System) };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|_| ClientError::BadCa)?;
            roots.add(certificate).map_err(|_| ClientError::BadCa)?;
        }
        if roots.is_empty() { Err(ClientError::BadCa) } else { Ok(Self::Custom(Arc::new(config(roots)))) }
    }

    /// Returns the configuration for TLS over TCP.
    pub(crate) fn tls_config(&self) -> Arc<ClientConfig> {
        match self {
            Self::System => trust(),
            Self::Custom(config) => Arc::clone(config),
        }
    }

    /// Returns the configuration for QUIC, with QUIC's protocol name.
    pub(crate) fn quic_config(&self) -> ClientConfig {
        let mut config = (*self.tls_config()).clone();
        config.alpn_protocols = vec![b"turnway/1".to_vec()];
        config
    }
}

fn read() -> ClientConfig {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a certificate of the system cannot be read");
    }
    // Without any trusted certificate each connection fails with a reason.
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

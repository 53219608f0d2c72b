//! Whose certificates are believed: those that the system believes.
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, RootCertStore};
use std::sync::{Arc, OnceLock};

/// How a gateway is spoken to in TLS. What is believed is what the system believes, or what the file believes
/// that `SSL_CERT_FILE` names: the certificate of `turnway dev-cert` for example. It is read once.
pub fn trust() -> Arc<ClientConfig> {
    static TRUST: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    Arc::clone(TRUST.get_or_init(|| Arc::new(read())))
}

fn read() -> ClientConfig {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "certificates of the system cannot be read");
    }
    // Where nobody is believed, each connection fails, and says why.
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    // The provider has both of these versions.
    let builder = builder.with_safe_default_protocol_versions().expect("TLS 1.2 and 1.3");
    builder.with_root_certificates(roots).with_no_client_auth()
}

//! TLS for requests of the node to others, checked against the system's certificates. Used by the clients of agents, of
//! identity providers and of the place of files.
use hyper_rustls::ConfigBuilderExt;
use std::sync::Arc;

/// A reason why the system's certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SystemTrustError(String);

/// Builds a client's configuration. Without `is_https` no certificate is loaded and none is trusted: for connectors that must
/// have a configuration, and only make connections without TLS.
pub fn client_config(is_https: bool) -> Result<rustls::ClientConfig, SystemTrustError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SystemTrustError(error.to_string()))?;
    let config = if is_https {
        config.with_native_roots().map_err(|error| SystemTrustError(error.to_string()))?
    } else {
        config.with_root_certificates(rustls::RootCertStore::empty())
    };
    Ok(config.with_no_client_auth())
}

//! Certificates for tests, made by `turnway dev-cert`, and clients that trust them.
use super::PATIENCE;
use super::command::run;
use super::wire::{ConnectionEnd, WebSocketClient};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub struct Pair {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Certificates that a client trusts.
#[derive(Clone, Debug)]
pub struct Trust(pub(super) Arc<ClientConfig>);

// === impl Pair ===

impl Pair {
    /// Makes a certificate under `dir`.
    pub async fn make(dir: &Path, name: &str) -> Self {
        let made = run(dir, &["dev-cert", name], &[]).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        Self { cert: dir.join(name).join("cert.pem"), key: dir.join(name).join("key.pem") }
    }

    /// Returns the flags of a node with this certificate.
    pub fn flags(&self) -> [&str; 4] {
        ["--tls-cert", text(&self.cert), "--tls-key", text(&self.key)]
    }

    /// Returns the path of the certificate, for an environment variable.
    pub fn ca(&self) -> &str {
        text(&self.cert)
    }

    /// Copies this pair over the files of another, as a renewal in place does.
    pub fn put_into(&self, other: &Self) {
        std::fs::copy(&self.cert, &other.cert).expect("copied");
        std::fs::copy(&self.key, &other.key).expect("copied");
    }

    /// Reads the certificate.
    pub fn shown(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.cert).expect("a certificate")
    }
}

// === impl Trust ===

impl Trust {
    /// Trusts exactly these certificates.
    pub fn of<'a>(pairs: impl IntoIterator<Item = &'a Pair>) -> Self {
        let mut roots = RootCertStore::empty();
        for pair in pairs {
            roots.add(pair.shown()).expect("a certificate");
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("the provider has them");
        Self(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
    }

    /// Connects without sending a message.
    pub async fn open(&self, to: SocketAddr) -> Result<WebSocketClient, ConnectionEnd> {
        tokio::time::timeout(PATIENCE, WebSocketClient::open_tls(to, self)).await.expect("it answers")
    }

    /// Connects, and sends `hello` as this user.
    pub async fn hello(&self, to: SocketAddr, user: &str) -> Result<WebSocketClient, ConnectionEnd> {
        self.open(to).await?.greet(user, vec![]).await
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

//! TLS for clients: loads the certificate ([`certificate`], `validity`), replaces it without disturbing connections
//! ([`reloader`]), and makes self-signed ones for tests ([`development`]). Used by `listen` and `app`.
pub mod certificate;
pub mod development;
pub mod reloader;
mod validity;

pub use certificate::{CertificatePair, CertificatePairError};
pub use reloader::{CertificateReloader, TlsConfigWatch};

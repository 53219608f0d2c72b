//! The QUIC listener, and its certificate if none is configured. Called by `app::build`.
use super::{BuildError, NodeParts};
use crate::config::{Config, StoreConfig};
use crate::listen::ListenerContext;
use crate::listen::quic::{QuicListener, QuicListenerContext};
use crate::tls::{TlsConfigWatch, development};
use std::net::SocketAddr;
use std::sync::Arc;

/// A listener with its context.
pub(in crate::app) type QuicService = (QuicListener, Arc<QuicListenerContext>);

/// Subdirectory of an embedded store's directory, for the self-made certificate.
const DIR: &str = "quic";

/// Binds a UDP port.
pub(super) fn listen(address: SocketAddr) -> Result<QuicListener, BuildError> {
    QuicListener::bind(address).map_err(|error| BuildError::ListenQuic { address, error })
}

impl NodeParts {
    /// Builds the QUIC listener's context, with the links and the address limits of the HTTP listener.
    pub(super) fn quic(
        &self,
        config: &Config,
        listener: QuicListener,
        public: &ListenerContext,
    ) -> Result<Option<QuicService>, BuildError> {
        let Some(link_context) = public.link_context.clone() else { return Ok(None) };
        let shown = public.tls.clone().map_or_else(|| self.self_signed(config), Ok)?;
        let context = QuicListenerContext {
            link_context,
            rules: public.rules.clone(),
            webtransport: config.webtransport,
            proxies: public.proxies.clone(),
            address_limiter: public.address_limiter.clone(),
            tls: shown,
            until: public.stop_phase,
            life: self.life.clone(),
            connections_max: config.quic_connections,
            tasks: self.tasks.clone(),
        };
        Ok(Some((listener, Arc::new(context))))
    }

    /// Creates a self-made certificate.
    fn self_signed(&self, config: &Config) -> Result<TlsConfigWatch, BuildError> {
        let now = self.clock.now().store;
        let pair = match &config.store {
            StoreConfig::Embedded { dir, .. } => {
                let dir = dir.join(DIR);
                let pair = development::load_or_generate(&dir, now)?;
                let cert = dir.join("cert.pem");
                let what = "QUIC uses a self-signed certificate; set tls.cert to use another";
                tracing::info!(cert = %cert.display(), "{what}");
                pair
            }
            StoreConfig::Memory | StoreConfig::Redis { .. } => {
                let what = "QUIC uses a self-signed certificate for this process only; set tls.cert to use another";
                tracing::info!("{what}");
                development::ephemeral(now)?
            }
        };
        self.metrics.tls.set_certificate_end(pair.expires());
        Ok(TlsConfigWatch::fixed(&pair)?)
    }
}

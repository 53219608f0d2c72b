//! The QUIC listener, and its certificate if none is configured. Called by `app::build`.
use super::{BuildError, Shared};
use crate::config::{Config, StoreConfig};
use crate::listen::House;
use crate::listen::quic::{QuicHouse, QuicListener};
use crate::tls::{Shown, development};
use std::net::SocketAddr;
use std::sync::Arc;

/// A listener with its context.
pub(in crate::app) type Served = (QuicListener, Arc<QuicHouse>);

/// Subdirectory of an embedded store's directory, for the self-made certificate.
const DIR: &str = "quic";

/// Binds a UDP port.
pub(super) fn listen(address: SocketAddr) -> Result<QuicListener, BuildError> {
    QuicListener::bind(address).map_err(|error| BuildError::ListenQuic { address, error })
}

impl Shared {
    /// Builds the QUIC listener's context, with the links and the address limits of the HTTP listener.
    pub(super) fn quic(
        &self,
        config: &Config,
        listener: QuicListener,
        house: &House,
    ) -> Result<Option<Served>, BuildError> {
        let Some(reception) = house.reception.clone() else { return Ok(None) };
        let shown = house.tls.clone().map_or_else(|| self.own(config), Ok)?;
        let house = QuicHouse {
            reception,
            rules: house.rules.clone(),
            webtransport: config.webtransport,
            proxies: house.proxies.clone(),
            crowd: house.crowd.clone(),
            shown,
            until: house.until,
            life: self.life.clone(),
            connections_max: config.quic_connections,
            tasks: self.tasks.clone(),
        };
        Ok(Some((listener, Arc::new(house))))
    }

    /// Creates a self-made certificate.
    fn own(&self, config: &Config) -> Result<Shown, BuildError> {
        let now = self.clock.now().store;
        let pair = match &config.store {
            StoreConfig::Embedded { dir, .. } => {
                let dir = dir.join(DIR);
                let pair = development::kept(&dir, now)?;
                let cert = dir.join("cert.pem");
                tracing::info!(cert = %cert.display(), "QUIC uses a self-signed certificate; set tls.cert to use another");
                pair
            }
            StoreConfig::Memory | StoreConfig::Redis { .. } => {
                tracing::info!("QUIC uses a self-signed certificate for this process only; set tls.cert to use another");
                development::passing(now)?
            }
        };
        self.metrics.tls.shows(pair.end());
        Ok(Shown::always(&pair)?)
    }
}

//! The listener for QUIC, and what certificate it shows where none is named.
use super::{BuildError, Shared};
use crate::config::{Config, StoreConfig};
use crate::listen::House;
use crate::listen::quic::{QuicHouse, QuicListener};
use crate::tls::{Shown, development};
use std::net::SocketAddr;
use std::sync::Arc;

/// A listener, and what stands behind it.
pub(in crate::app) type Served = (QuicListener, Arc<QuicHouse>);

/// Of an embedded store's directory: there the certificate is that it makes itself.
const DIR: &str = "quic";

/// Takes a port of UDP.
pub(super) fn listen(address: SocketAddr) -> Result<QuicListener, BuildError> {
    QuicListener::bind(address).map_err(|error| BuildError::ListenQuic { address, error })
}

impl Shared {
    /// The same links and the same crowd as behind the listener for HTTP.
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

    /// A certificate of its own.
    fn own(&self, config: &Config) -> Result<Shown, BuildError> {
        let now = self.clock.now().store;
        let pair = match &config.store {
            StoreConfig::Embedded { dir, .. } => {
                let dir = dir.join(DIR);
                let pair = development::kept(&dir, now)?;
                let cert = dir.join("cert.pem");
                tracing::info!(cert = %cert.display(), "QUIC shows a certificate of its own; tls.cert names another");
                pair
            }
            StoreConfig::Memory | StoreConfig::Redis { .. } => {
                tracing::info!("QUIC shows a certificate that ends with the process; tls.cert names another");
                development::passing(now)?
            }
        };
        self.metrics.tls.shows(pair.end());
        Ok(Shown::always(&pair)?)
    }
}

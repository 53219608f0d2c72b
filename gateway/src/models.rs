//! Calls of language models at the upstreams that the operator configured: chooses an upstream, sends the call, and reads a
//! copy of the answer beside its relay. Knows neither callers nor their rights; called by `http::models`.
pub mod answer;
pub mod api_key;
mod attempt;
pub mod bound;
mod breaker;
pub mod budget;
mod candidates;
mod decoder;
pub mod demo;
pub mod headers;
pub mod journal;
pub mod open_call;
mod price;
mod request;
mod upstream;

pub use request::ModelCall;

use crate::clock::Clock;
use crate::config::{ModelSpec, RecordCalls};
use crate::metrics::Metrics;
use crate::outbound::client::{Connectors, ResendCounter};
use crate::system_trust::SystemTrustError;
use api_key::BadApiKey;
use budget::keeper::BudgetKeeper;
use journal::CallJournal;
use std::collections::BTreeSet;
use std::sync::Arc;
use turnway_core::limits;
use upstream::Upstream;

/// The upstreams of models of a node. Clones share them.
#[derive(Clone, Debug)]
pub struct Models {
    upstreams: Arc<[Arc<Upstream>]>,
    journal: CallJournal,
    budgets: BudgetKeeper,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// A reason why the upstreams cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum ModelsSetupError {
    /// An upstream is behind TLS, and this machine has no root certificates.
    #[error("models over https need root certificates: {0}")]
    Roots(#[from] SystemTrustError),
    /// A key was readable when the configuration was checked, and is not any more.
    #[error("models.{id}: {error}")]
    Key { id: String, error: BadApiKey },
    /// A path cannot be appended to the URL.
    #[error("models.{id}.url: {why}")]
    Url { id: String, why: &'static str },
}

// === impl Models ===

impl Models {
    /// Builds the upstreams. `env` looks up variables that hold keys.
    pub fn new(
        specs: &[ModelSpec],
        (record, budgets): (RecordCalls, BudgetKeeper),
        env: impl Fn(&str) -> Option<String>,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ModelsSetupError> {
        let is_https = specs.iter().any(|spec| spec.url.is_https());
        let connectors = Connectors::new(is_https, limits::MODEL_CONNECT_TIMEOUT_MAX, clock.clone())?;
        let resends: ResendCounter = {
            let metrics = Arc::clone(&metrics);
            Arc::new(move || metrics.models.count_resend())
        };
        let upstreams = specs.iter().map(|spec| {
            let upstream = Upstream::new(spec, &connectors, &env, Arc::clone(&resends), &metrics)?;
            Ok(Arc::new(upstream))
        });
        let upstreams = upstreams.collect::<Result<_, ModelsSetupError>>()?;
        Ok(Self { upstreams, journal: CallJournal::new(record, Arc::clone(&metrics)), budgets, clock, metrics })
    }

    /// Returns the journal of the calls of runs.
    pub fn journal(&self) -> &CallJournal {
        &self.journal
    }

    /// Returns the names by which callers may ask for models, sorted.
    pub fn names(&self) -> BTreeSet<&str> {
        self.upstreams.iter().map(|upstream| upstream.spec.name.as_str()).collect()
    }

    /// Returns whether no model is configured.
    pub fn is_empty(&self) -> bool {
        self.upstreams.is_empty()
    }

    /// Returns whether a model has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.upstreams.iter().any(|upstream| upstream.spec.name == name)
    }
}

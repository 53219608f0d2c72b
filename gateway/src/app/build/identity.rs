//! Builds the authentication of a node, and the credentials that it accepts. Called by `app::build`.
use super::{BuildError, Shared};
use crate::cli::plan::Plan;
use crate::config::{AuthMode, StoreConfig};
use crate::door::Door;
use crate::door::keyring::Keyring;
use crate::door::pepper::Pepper;
use crate::door::tokens::Tokens;
use crate::keys::Keys;
use crate::keys::call_names::CallNames;
use crate::keys::provider::Provider;
use crate::keys::shelf::Shelf;
use crate::rates::Teller;
use crate::store::redis::tally;
use crate::store::registers::Registers;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The authenticator of a node, with its API keys if it can have any.
pub(super) struct Identity {
    pub(super) door: Door,
    pub(super) keys: Option<Arc<Keys>>,
    pub(super) call_names: CallNames,
    pub(super) upkeep: Upkeep,
}

/// The credentials that must be refreshed while the node runs.
pub(in crate::app) struct Upkeep {
    /// Present if there is a pepper.
    pub(in crate::app) keys: Option<Arc<Keys>>,
    /// Present if tokens of an identity provider are accepted.
    pub(in crate::app) provider: Option<Provider>,
    /// True if the store's password is read from a file.
    pub(in crate::app) logs_in: bool,
}

// === impl Shared ===

impl Shared {
    /// Builds the authentication. Keys can be created as soon as there is a pepper; they are required only if the plan
    /// says so.
    pub(super) fn identity(
        &self,
        plan: &Plan,
        registers: Registers,
        runtime: &Handle,
    ) -> Result<Identity, BuildError> {
        let (auth, rates, metrics) = (&plan.config.auth, plan.config.rates, || Arc::clone(&self.metrics));
        let pepper = auth.pepper.as_ref().map(|(path, _)| Pepper::read(path)).transpose()?;
        let call_names = CallNames::new(pepper.as_ref(), registers.clone());
        let ring = pepper.map(Keyring::new);
        let tokens = auth.issuer.clone().map(Tokens::of);
        let teller = self.teller(plan, runtime);
        let door = match auth.mode {
            AuthMode::None => Door::open(rates, teller, metrics()),
            AuthMode::Keys | AuthMode::Jwt | AuthMode::KeysAndJwt => {
                let keys = ring.clone().filter(|_| auth.mode.takes_keys());
                Door::of(keys, tokens.clone(), rates, teller, metrics())
            }
        };
        let provider =
            tokens.map(|tokens| Provider::new(tokens, self.clock.clone(), metrics())).transpose()?;
        let (links, clock) = (Arc::clone(&self.links), self.clock.clone());
        let keys = ring.map(|ring| Arc::new(Keys::new(Shelf::new(registers), ring, links, clock, metrics())));
        let logs_in =
            matches!(&plan.config.store, StoreConfig::Redis { url, .. } if url.login.password_file.is_some());
        let upkeep = Upkeep { keys: keys.clone(), provider, logs_in };
        Ok(Identity { door, keys, call_names, upkeep })
    }

    /// Returns the sender of rates that all nodes share; `None` if no rate or no store is shared.
    fn teller(&self, plan: &Plan, runtime: &Handle) -> Option<Teller> {
        let rates = plan.config.rates;
        let StoreConfig::Redis { url, .. } = &plan.config.store else { return None };
        let is_shared = rates.key.is_some() || rates.tenant.is_some();
        is_shared.then(|| tally::open(url.clone(), self.clock.clone(), Arc::clone(&self.metrics), runtime))
    }
}

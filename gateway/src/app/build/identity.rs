//! Builds the authentication of a node, and the credentials that it accepts. Called by `app::build`.
use super::{BuildError, NodeParts};
use crate::auth::Authenticator;
use crate::auth::keyring::Keyring;
use crate::auth::pepper::Pepper;
use crate::auth::token_verifier::TokenVerifier;
use crate::cli::plan::NodePlan;
use crate::config::{AuthMode, StoreConfig};
use crate::keys::ApiKeys;
use crate::keys::call_names::CallNames;
use crate::keys::key_store::KeyStore;
use crate::keys::provider::ProviderKeysFetcher;
use crate::rates::UsageSender;
use crate::run_token::{self, RunTokens};
use crate::store::redis::rate_reporter;
use crate::store::registers::Registers;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The authenticator of a node, with its API keys if it can have any.
pub(super) struct Authentication {
    pub(super) auth: Authenticator,
    pub(super) keys: Option<Arc<ApiKeys>>,
    pub(super) call_names: CallNames,
    pub(super) run_tokens: RunTokens,
    pub(super) refresh: CredentialRefresh,
}

/// The credentials that must be refreshed while the node runs.
pub(in crate::app) struct CredentialRefresh {
    /// Present if there is a pepper.
    pub(in crate::app) keys: Option<Arc<ApiKeys>>,
    /// Present if tokens of an identity provider are accepted.
    pub(in crate::app) provider: Option<ProviderKeysFetcher>,
    /// True if the store's password is read from a file.
    pub(in crate::app) has_password_file: bool,
}

// === impl NodeParts ===

impl NodeParts {
    /// Builds the authentication. Keys can be created as soon as there is a pepper; they are required only if the plan
    /// says so.
    pub(super) fn identity(
        &self,
        plan: &NodePlan,
        registers: Registers,
        runtime: &Handle,
    ) -> Result<Authentication, BuildError> {
        let settings = &plan.config.auth;
        let rates = plan.config.rates;
        let metrics = || Arc::clone(&self.metrics);
        let pepper = settings.pepper.as_ref().map(|(path, _)| Pepper::read(path)).transpose()?;
        let call_names = CallNames::new(pepper.as_ref(), registers.clone());
        let run_key = pepper.as_ref().map(|pepper| pepper.key_for(run_token::PURPOSE));
        let run_tokens = RunTokens::new(run_key, registers.clone());
        let ring = pepper.map(Keyring::new);
        let tokens = settings.issuer.clone().map(TokenVerifier::new);
        let usage_sender = self.usage_sender(plan, runtime);
        let auth = match settings.mode {
            AuthMode::None => Authenticator::without_credentials(rates, usage_sender, metrics()),
            AuthMode::Keys | AuthMode::Jwt | AuthMode::KeysAndJwt => {
                let keys = ring.clone().filter(|_| settings.mode.takes_keys());
                Authenticator::with_credentials(keys, tokens.clone(), rates, usage_sender, metrics())
            }
        };
        let auth = auth.with_run_tokens(run_tokens.clone());
        let provider =
            tokens.map(|tokens| ProviderKeysFetcher::new(tokens, self.clock.clone(), metrics())).transpose()?;
        let links = Arc::clone(&self.links);
        let clock = self.clock.clone();
        let keys = ring.map(|ring| Arc::new(ApiKeys::new(KeyStore::new(registers), ring, links, clock, metrics())));
        let has_password_file =
            matches!(&plan.config.store, StoreConfig::Redis { url, .. } if url.login.password_file.is_some());
        let refresh = CredentialRefresh { keys: keys.clone(), provider, has_password_file };
        Ok(Authentication { auth, keys, call_names, run_tokens, refresh })
    }

    /// Returns the sender of rates that all nodes share; `None` if no rate or no store is shared.
    fn usage_sender(&self, plan: &NodePlan, runtime: &Handle) -> Option<UsageSender> {
        let rates = plan.config.rates;
        let StoreConfig::Redis { url, .. } = &plan.config.store else { return None };
        let is_shared = rates.key.is_some() || rates.tenant.is_some();
        is_shared.then(|| rate_reporter::open(url.clone(), self.clock.clone(), Arc::clone(&self.metrics), runtime))
    }
}

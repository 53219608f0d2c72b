//! Who may come in: the door, and the keys that open it.
use super::{BuildError, Shared};
use crate::cli::plan::Plan;
use crate::config::AuthMode;
use crate::door::Door;
use crate::door::keyring::Keyring;
use crate::door::pepper::Pepper;
use crate::keys::Keys;
use crate::keys::shelf::Shelf;
use crate::store::registers::Registers;
use std::sync::Arc;

/// The door of a node, and its keys where it can have any.
pub(super) struct Identity {
    pub(super) door: Door,
    pub(super) keys: Option<Arc<Keys>>,
}

// === impl Shared ===

impl Shared {
    /// Keys can be made as soon as there is a pepper; they are asked for where the plan says so.
    pub(super) fn identity(&self, plan: &Plan, registers: Registers) -> Result<Identity, BuildError> {
        let metrics = || Arc::clone(&self.metrics);
        let rates = plan.config.rates;
        let Some((pepper, _)) = &plan.config.auth.pepper else {
            return Ok(Identity { door: Door::open(rates, metrics()), keys: None });
        };
        let ring = Keyring::new(Pepper::read(pepper)?);
        let door = match plan.config.auth.mode {
            AuthMode::None => Door::open(rates, metrics()),
            AuthMode::Keys => Door::of(ring.clone(), rates, metrics()),
        };
        let (links, clock) = (Arc::clone(&self.links), self.clock.clone());
        let keys = Keys::new(Shelf::new(registers), ring, links, clock, metrics());
        Ok(Identity { door, keys: Some(Arc::new(keys)) })
    }
}

//! Every key there is, in memory: who comes is looked up here and nowhere else, so nobody's coming in costs the
//! store anything, and it works while the store is away.
use super::key::{ApiKey, KeyId, Record, Scopes};
use super::pepper::Pepper;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use turnway_core::id::{TenantId, UserId};
use turnway_core::time::Millis;

/// The keys a node knows. Clones share them.
#[derive(Clone, Debug)]
pub struct Keyring {
    pepper: Pepper,
    keys: Arc<RwLock<Arc<Keys>>>,
}

/// Keys by their names.
pub type Keys = BTreeMap<KeyId, Record>;

/// Whose a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    /// The tenant.
    pub tenant: TenantId,
    /// The user.
    pub user: UserId,
    /// What it may do.
    pub scopes: Scopes,
}

// === impl Keyring ===

impl Keyring {
    /// One without keys.
    pub fn new(pepper: Pepper) -> Self {
        Self { pepper, keys: Arc::default() }
    }

    /// What its keys are hashed with.
    pub fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    /// All of them.
    pub fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// These are all of them from now on. What was once taken back stays so, whatever a store that has forgotten
    /// its last writes says: the names of such keys are answered.
    pub fn replace(&self, mut keys: Keys) -> Vec<KeyId> {
        let mut all = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let mut undone = Vec::new();
        for (id, old) in all.iter().filter(|(_, old)| old.revoked.is_some()) {
            if let Some(new) = keys.get_mut(id).filter(|new| new.revoked.is_none()) {
                new.revoked = old.revoked;
                undone.push(id.clone());
            }
        }
        *all = Arc::new(keys);
        undone
    }

    /// Whose this key is, if it is one and opens anything now.
    pub fn bearer(&self, key: &ApiKey, now: Millis) -> Option<Bearer> {
        let keys = self.keys();
        let record = keys.get(key.id())?;
        if !key.is(&record.hash, &self.pepper) || !self.opens(record, now) {
            return None;
        }
        Some(Bearer { tenant: record.tenant.clone(), user: record.user(), scopes: record.scopes })
    }

    /// Whether a key of this name opens anything now.
    pub fn is_good(&self, id: &KeyId, now: Millis) -> bool {
        self.keys().get(id).is_some_and(|record| self.opens(record, now))
    }

    /// Whether a key opens anything here at this time: one that was hashed with another pepper cannot.
    pub fn opens(&self, record: &Record, now: Millis) -> bool {
        record.pepper == *self.pepper.id() && record.is_good(now)
    }
}

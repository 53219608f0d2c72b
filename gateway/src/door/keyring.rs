//! Every key there is, in memory: who comes is looked up here and nowhere else, so nobody's coming in costs the
//! store anything, and it works while the store is away.
use super::key::{ApiKey, KeyId, Record, Scopes};
use super::pepper::Pepper;
use super::serves::Serves;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use turnway_core::id::{TenantId, UserId};
use turnway_core::time::Millis;

/// The keys a node knows. Clones share them.
#[derive(Clone, Debug)]
pub struct Keyring {
    pepper: Pepper,
    known: Arc<RwLock<Arc<Known>>>,
}

/// The keys of one reading of the store.
#[derive(Debug, Default)]
struct Known {
    keys: Arc<Keys>,
    /// Those whose fields this node cannot vouch for: they open nothing. Found out once for each reading.
    unsealed: BTreeSet<KeyId>,
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
    /// What it may serve.
    pub serves: Serves,
}

/// A key that opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadKey {
    /// Nobody has made it: its name is unknown, or its secret is wrong.
    Unknown,
    /// It was made, and was taken back, has ended, or belongs to another pepper.
    Ended,
}

// === impl Keyring ===

impl Keyring {
    /// One without keys.
    pub fn new(pepper: Pepper) -> Self {
        Self { pepper, known: Arc::default() }
    }

    /// What its keys are hashed with.
    pub fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    /// All of them.
    pub fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.known().keys)
    }

    /// These are all of them from now on. What was once taken back stays so, whatever a store that has forgotten
    /// its last writes says: the names of such keys are answered.
    pub fn replace(&self, mut keys: Keys) -> Vec<KeyId> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let is_ours = |record: &Record| record.pepper == *self.pepper.id();
        let unsealed = keys.values().filter(|record| is_ours(record) && !record.is_sealed(&self.pepper));
        let unsealed = unsealed.map(|record| record.id.clone()).collect();
        let mut undone = Vec::new();
        for (id, old) in known.keys.iter().filter(|(_, old)| old.revoked.is_some()) {
            if let Some(new) = keys.get_mut(id).filter(|new| new.revoked.is_none()) {
                new.revoked = old.revoked;
                undone.push(id.clone());
            }
        }
        *known = Arc::new(Known { keys: Arc::new(keys), unsealed });
        undone
    }

    /// Returns whose this key is, if it is one and opens anything now. The secret is compared first: whoever does not
    /// know it learns nothing of the key.
    pub fn bearer(&self, key: &ApiKey, now: Millis) -> Result<Bearer, BadKey> {
        let known = self.known();
        let record = known.keys.get(key.id()).ok_or(BadKey::Unknown)?;
        // A key of another pepper cannot be compared, so it cannot be guessed either.
        if record.pepper != *self.pepper.id() {
            return Err(BadKey::Ended);
        }
        if !key.is(&record.hash, &self.pepper) {
            return Err(BadKey::Unknown);
        }
        if !self.opens(record, now) {
            return Err(BadKey::Ended);
        }
        let (tenant, serves) = (record.tenant.clone(), record.serves.clone());
        Ok(Bearer { tenant, user: record.user(), scopes: record.scopes, serves })
    }

    /// Whether a key of this name opens anything now.
    pub fn is_good(&self, id: &KeyId, now: Millis) -> bool {
        self.known().keys.get(id).is_some_and(|record| self.opens(record, now))
    }

    /// Whether a key opens anything here at this time: one that was hashed with another pepper cannot, nor one whose
    /// fields are not those that were sealed.
    pub fn opens(&self, record: &Record, now: Millis) -> bool {
        record.pepper == *self.pepper.id() && record.is_good(now) && !self.is_unsealed(&record.id)
    }

    /// Returns whether this node cannot vouch for what the store says of a key.
    pub fn is_unsealed(&self, id: &KeyId) -> bool {
        self.known().unsealed.contains(id)
    }

    /// Returns the number of keys that this node cannot vouch for.
    pub fn unsealed(&self) -> usize {
        self.known().unsealed.len()
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }
}

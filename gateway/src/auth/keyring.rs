//! Holds all API keys in memory. Authentication reads nothing but this copy, so that it costs the store nothing and
//! works while the store is unavailable.
use super::key::{ApiKey, ApiKeyRecord, KeyId, Scopes};
use super::pepper::Pepper;
use super::service_grants::ServiceGrants;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use turnway_core::id::{TenantId, UserId};
use turnway_core::time::Millis;

/// The API keys that a node knows. Clones share the same keys.
#[derive(Clone, Debug)]
pub struct Keyring {
    pepper: Pepper,
    snapshot: Arc<RwLock<Arc<KeyringSnapshot>>>,
}

/// The keys of one reading of the store.
#[derive(Debug, Default)]
struct KeyringSnapshot {
    keys: Arc<ApiKeyRecords>,
    /// Keys without a valid seal, which are refused. Computed once for each reading.
    unsealed: BTreeSet<KeyId>,
}

/// Records of API keys by id.
pub type ApiKeyRecords = BTreeMap<KeyId, ApiKeyRecord>;

/// The user behind a credential, with the credential's rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    pub tenant: TenantId,
    pub user: UserId,
    /// Rights of the credential.
    pub scopes: Scopes,
    /// Agents, tools and adapters that the credential may serve.
    pub serves: ServiceGrants,
}

/// The reason why a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiKeyRejection {
    /// The key was never issued: its id is unknown or its secret is wrong.
    Unknown,
    /// The key was issued, and is revoked, expired, not sealed, of another pepper, or of a user whose name is reserved.
    Ended,
}

// === impl Keyring ===

impl Keyring {
    /// Creates a keyring without keys.
    pub fn new(pepper: Pepper) -> Self {
        Self { pepper, snapshot: Arc::default() }
    }

    /// Returns the pepper that keys are hashed with.
    pub fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    /// Returns all keys.
    pub fn keys(&self) -> Arc<ApiKeyRecords> {
        Arc::clone(&self.snapshot().keys)
    }

    /// Replaces all keys. A revoked key stays revoked, even if a store that has lost its last writes says otherwise;
    /// returns the ids of such keys.
    pub fn replace(&self, mut keys: ApiKeyRecords) -> Vec<KeyId> {
        let mut known = self.snapshot.write().unwrap_or_else(PoisonError::into_inner);
        let is_ours = |record: &ApiKeyRecord| record.pepper == *self.pepper.id();
        let unsealed = keys.values().filter(|record| is_ours(record) && !record.is_sealed(&self.pepper));
        let unsealed = unsealed.map(|record| record.id.clone()).collect();
        let mut undone = Vec::new();
        for (id, old) in known.keys.iter().filter(|(_, old)| old.revoked.is_some()) {
            if let Some(new) = keys.get_mut(id).filter(|new| new.revoked.is_none()) {
                new.revoked = old.revoked;
                undone.push(id.clone());
            }
        }
        *known = Arc::new(KeyringSnapshot { keys: Arc::new(keys), unsealed });
        undone
    }

    /// Returns the bearer of a key that is good now. The secret is compared first, so that a client without it learns
    /// nothing about the key.
    pub fn bearer(&self, key: &ApiKey, now: Millis) -> Result<Bearer, ApiKeyRejection> {
        let known = self.snapshot();
        let record = known.keys.get(key.id()).ok_or(ApiKeyRejection::Unknown)?;
        // A key of another pepper cannot be compared, so it cannot be guessed either.
        if record.pepper != *self.pepper.id() {
            return Err(ApiKeyRejection::Ended);
        }
        if !key.matches(&record.hash, &self.pepper) {
            return Err(ApiKeyRejection::Unknown);
        }
        if !self.accepts(record, now) {
            return Err(ApiKeyRejection::Ended);
        }
        let tenant = record.tenant.clone();
        let serves = record.serves.clone();
        Ok(Bearer { tenant, user: record.user(), scopes: record.scopes, serves })
    }

    /// Returns true if the key with this id is good now.
    pub fn is_active(&self, id: &KeyId, now: Millis) -> bool {
        self.snapshot().keys.get(id).is_some_and(|record| self.accepts(record, now))
    }

    /// Returns true if a key is good here now: not revoked or expired, hashed with this pepper, and with a valid seal.
    pub fn accepts(&self, record: &ApiKeyRecord, now: Millis) -> bool {
        // Only an adapter acts as an account; a key of an earlier release may have the name of one.
        let is_account = record.user.as_ref().is_some_and(UserId::is_account);
        record.pepper == *self.pepper.id() && record.is_active(now) && !self.is_unsealed(&record.id) && !is_account
    }

    /// Returns true if the record of a key has no valid seal.
    pub fn is_unsealed(&self, id: &KeyId) -> bool {
        self.snapshot().unsealed.contains(id)
    }

    /// Returns the number of keys without a valid seal.
    pub fn unsealed_count(&self) -> usize {
        self.snapshot().unsealed.len()
    }

    fn snapshot(&self) -> Arc<KeyringSnapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }
}

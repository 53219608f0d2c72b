//! The API keys of a gateway: kept in its store ([`key_store`]), known to every node within seconds (S-01).
//! [`call_names`] names sessions, [`provider`] fetches an identity provider's public keys. Used by `auth`, `admin` and
//! `app`.
pub mod call_names;
pub mod key_store;
pub mod provider;

use crate::auth::key::{ApiKey, ApiKeyRecord, KeyId, Scopes};
use crate::auth::keyring::Keyring;
use crate::auth::service_grants::ServiceGrants;
use crate::clock::Clock;
use crate::links::LinkRegistry;
use crate::metrics::Metrics;
use crate::store::registers::RegisterValue;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use key_store::{KeyStore, KeyStoreError};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use turnway_core::id::{TenantId, UserId};
use turnway_core::planted::{Planted, planted};
use turnway_core::time::{Millis, Mono};

/// Pause between two reads of the key generation. A revoked key must open nothing 5 s after the revocation (S-01), on
/// any node, however slow the store is: the generation is read at this interval whether or not the last read was
/// answered, and all keys are then read in one request, so a revoked key is refused after this pause and two answers of
/// at most 2 s each.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum unanswered reads: as many as fit into the time that the store has for an answer.
const CHECKS_MAX: usize = 5;
/// Pause between two reads of all keys even if the generation has not changed: a node that changed a key may have died
/// before it changed the generation.
pub const READ_INTERVAL: Duration = Duration::from_secs(60);

/// The keys of a gateway: reads, creates, revokes and migrates them.
pub struct ApiKeys {
    store: KeyStore,
    keyring: Keyring,
    links: Arc<LinkRegistry>,
    clock: Clock,
    metrics: Arc<Metrics>,
    last_read: Mutex<KeysRead>,
    /// Serialises reads: of two reads at a time, the slower one could replace newer keys by older ones.
    read_lock: tokio::sync::Mutex<()>,
}

/// The last read of all keys.
#[derive(Clone, Debug, Default)]
struct KeysRead {
    generation: Option<RegisterValue>,
    at: Mono,
}

/// The properties of a new key.
#[derive(Clone, Debug)]
pub struct KeySpec {
    pub tenant: TenantId,
    pub user: Option<UserId>,
    pub scopes: Scopes,
    pub serves: ServiceGrants,
    /// A name for people.
    pub label: Option<String>,
    /// Lifetime of the key; `None` lasts until the key is revoked.
    pub lifetime: Option<Duration>,
}

/// A reason why a key was not created, revoked or migrated.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is no key with this id.
    #[error("there is no key with this id")]
    Unknown,
    /// The key's seal does not match its content.
    #[error("the key was changed in the store, or was created with another pepper; create a new key")]
    Changed,
    /// The store did not accept the change.
    #[error(transparent)]
    Store(#[from] KeyStoreError),
    /// The system gave no randomness for a new key.
    #[error("the system provides no randomness: {0}")]
    Randomness(getrandom::Error),
}

// === impl ApiKeys ===

impl ApiKeys {
    /// Creates the keys of this store. Reads nothing yet.
    pub fn new(
        store: KeyStore,
        keyring: Keyring,
        links: Arc<LinkRegistry>,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            store,
            keyring,
            links,
            clock,
            metrics,
            last_read: Mutex::default(),
            read_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Reads all keys.
    pub async fn read(&self) -> Result<(), KeyStoreError> {
        // Read first, so that a change during the read causes another read.
        let generation = self.store.generation().await?;
        let _alone = self.read_lock.lock().await;
        self.read_since(generation).await
    }

    /// Reads all keys and records this generation for them. The caller must hold the `read_lock`.
    async fn read_since(&self, generation: RegisterValue) -> Result<(), KeyStoreError> {
        let keys = self.store.all().await?;
        let is_first = self.last_read().generation.is_none();
        let others = keys.values().filter(|key| key.pepper != *self.keyring.pepper().id()).count();
        if is_first && others > 0 {
            let what = "keys were created with another pepper (auth.pepper) and are not valid here";
            tracing::error!(keys = others, "{what}");
        }
        let before = self.keyring.unsealed_count();
        let undone = self.keyring.replace(keys);
        let unsealed = self.keyring.unsealed_count();
        if unsealed > before {
            tracing::error!(
                keys = unsealed,
                "keys are not sealed with this node's pepper: created by an earlier release, or changed in the store; \
                 they are not valid (`turnway key list`, then `turnway key migrate` or new keys)"
            );
        }
        *self.last_read() = KeysRead { generation: Some(generation), at: self.clock.mono() };
        self.close_revoked_links();
        if !undone.is_empty() {
            let keys = undone.len();
            tracing::error!(keys, "the store has lost revocations of keys; revoking them again");
        }
        for id in undone {
            let now = self.clock.now().store;
            self.revoke_record(&id, now).await?;
        }
        Ok(())
    }

    /// Keeps the keys up to date. Never returns.
    pub async fn run(self: Arc<Self>) {
        let mut looks = interval(CHECK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut was_well = true;
        let mut under_way = FuturesUnordered::new();
        loop {
            let looked = tokio::select! {
                _ = looks.tick(), if under_way.len() < CHECKS_MAX => {
                    under_way.push(self.refresh());
                    continue;
                }
                Some(looked) = under_way.next() => looked,
            };
            // Logged once for each outage.
            match &looked {
                Err(error) if was_well => {
                    tracing::error!(%error, "keys cannot be read; the known keys stay in use");
                }
                Ok(()) if !was_well => tracing::info!("keys can be read again"),
                Ok(()) | Err(_) => {}
            }
            was_well = looked.is_ok();
            // Also if no key has changed, because keys expire.
            if !planted(Planted::EndedKeyStays) {
                self.close_revoked_links();
            }
        }
    }

    async fn refresh(&self) -> Result<(), KeyStoreError> {
        let generation = self.store.generation().await?;
        let _alone = self.read_lock.lock().await;
        // Another read may have finished while this one waited for the lock.
        let KeysRead { generation: known, at } = self.last_read().clone();
        let is_old = self.clock.mono() - at >= READ_INTERVAL;
        if is_old || known.as_ref() != Some(&generation) {
            self.read_since(generation).await?;
        }
        Ok(())
    }

    /// Closes every link whose key is no longer valid.
    fn close_revoked_links(&self) {
        let keys = self.keyring.keys();
        let now = self.clock.now().store;
        let good: BTreeSet<&str> =
            keys.values().filter(|key| self.keyring.accepts(key, now)).map(|key| key.id.as_str()).collect();
        self.metrics.auth.set_keys(good.len());
        let cut = self.links.close_revoked(|name| !good.contains(name));
        if cut > 0 {
            tracing::info!(links = cut, "closed links whose keys are no longer valid");
            self.metrics.auth.count_closed_links(cut);
        }
    }

    /// Creates a key. The key is not valid before this returns, and is valid on all nodes soon after.
    pub async fn create(&self, spec: KeySpec) -> Result<(ApiKey, ApiKeyRecord), KeyError> {
        let key = ApiKey::generate().inspect_err(log_missing_randomness).map_err(KeyError::Randomness)?;
        let now = self.clock.now().store;
        let KeySpec { tenant, user, scopes, serves, label, lifetime: lasts } = spec;
        let id = key.id().clone();
        let hash = key.hash(self.keyring.pepper());
        let expires = lasts.map(|lasts| now.after(lasts));
        let pepper = self.keyring.pepper().id().clone();
        let created = now;
        let revoked = None;
        let seal = None;
        let record =
            ApiKeyRecord { id, hash, pepper, tenant, user, scopes, serves, label, created, expires, revoked, seal };
        let record = record.sealed(self.keyring.pepper());
        self.store.insert(record.clone()).await?;
        self.read().await?;
        Ok((key, record))
    }

    /// Revokes a key. Repeating it has no further effect.
    pub async fn revoke(&self, id: &KeyId) -> Result<ApiKeyRecord, KeyError> {
        let now = self.clock.now().store;
        let record = self.revoke_record(id, now).await?.ok_or(KeyError::Unknown)?;
        self.read().await?;
        Ok(record)
    }

    async fn revoke_record(&self, id: &KeyId, now: Millis) -> Result<Option<ApiKeyRecord>, KeyStoreError> {
        let pepper = self.keyring.pepper();
        let revoke = |record: &mut ApiKeyRecord| record.revoked = record.revoked.or(Some(now));
        self.store.change(id, |record| record.update(pepper, revoke)).await
    }

    /// Seals keys of an earlier release as they are now; the operator has checked the rights they grant. A key with a
    /// seal that does not match was changed in the store, and is refused.
    pub async fn migrate(&self, ids: &[KeyId]) -> Result<Vec<ApiKeyRecord>, KeyError> {
        let pepper = self.keyring.pepper();
        let mut sealed = Vec::new();
        for id in ids {
            let seal = |record: &mut ApiKeyRecord| {
                if record.seal.is_none() && record.pepper == *pepper.id() {
                    *record = record.clone().sealed(pepper);
                }
            };
            let record = self.store.change(id, seal).await?.ok_or(KeyError::Unknown)?;
            if !record.is_sealed(pepper) {
                return Err(KeyError::Changed);
            }
            sealed.push(record);
        }
        self.read().await?;
        Ok(sealed)
    }

    /// Returns whether a key was sealed with this node's pepper.
    pub fn is_sealed(&self, record: &ApiKeyRecord) -> bool {
        record.is_sealed(self.keyring.pepper())
    }

    /// Returns all keys, newest first, each with whether it is valid now.
    pub async fn list(&self) -> Result<Vec<(ApiKeyRecord, bool)>, KeyStoreError> {
        self.read().await?;
        let keys = self.keyring.keys();
        let now = self.clock.now().store;
        let mut list: Vec<_> = keys.values().map(|key| (key.clone(), self.keyring.accepts(key, now))).collect();
        list.sort_by(|(a, _), (b, _)| b.created.cmp(&a.created).then_with(|| a.id.cmp(&b.id)));
        Ok(list)
    }

    fn last_read(&self) -> std::sync::MutexGuard<'_, KeysRead> {
        self.last_read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs that the system gives no randomness. Only an operator can repair it, so the request's own answer is not enough.
fn log_missing_randomness(error: &getrandom::Error) {
    tracing::error!(%error, "the system provides no randomness: keys and secrets cannot be created or changed");
}

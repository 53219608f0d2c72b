//! The API keys of a gateway: kept in its store ([`shelf`]), known to every node within seconds (S-01). [`call_names`]
//! holds the secret for session names, [`provider`] fetches an identity provider's public keys. Used by `auth`, `admin`
//! and `app`.
pub mod call_names;
pub mod provider;
pub mod shelf;

use crate::clock::Clock;
use crate::door::key::{ApiKey, KeyId, Record, Scopes};
use crate::door::keyring::Keyring;
use crate::door::serves::Serves;
use crate::links::Links;
use crate::metrics::Metrics;
use crate::store::registers::Value;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use shelf::{Shelf, Unkept};
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
pub const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Maximum unanswered reads: as many as fit into the time that the store has for an answer.
const LOOKS_MAX: usize = 5;
/// Pause between two reads of all keys even if the generation has not changed: a node that changed a key may have died
/// before it changed the generation.
pub const READ_EVERY: Duration = Duration::from_secs(60);

/// The keys of a gateway: reads, creates, revokes and migrates them.
pub struct Keys {
    shelf: Shelf,
    ring: Keyring,
    links: Arc<Links>,
    clock: Clock,
    metrics: Arc<Metrics>,
    read: Mutex<Reading>,
    /// Serialises reads: of two concurrent reads, the slower one could replace newer keys by older ones.
    reader: tokio::sync::Mutex<()>,
}

/// The last read of all keys.
#[derive(Clone, Debug, Default)]
struct Reading {
    generation: Option<Value>,
    at: Mono,
}

/// The properties of a new key.
#[derive(Clone, Debug)]
pub struct Wish {
    pub tenant: TenantId,
    pub user: Option<UserId>,
    pub scopes: Scopes,
    pub serves: Serves,
    /// A name for people.
    pub label: Option<String>,
    /// Lifetime of the key; `None` lasts until the key is revoked.
    pub lasts: Option<Duration>,
}

/// A reason why a key was not created, revoked or migrated.
#[derive(Debug, thiserror::Error)]
pub enum NoKey {
    /// There is no key with this id.
    #[error("there is no key with this id")]
    Unknown,
    /// The key's seal does not match its content.
    #[error("the key was changed in the store, or was created with another pepper; create a new key")]
    Changed,
    /// The store did not accept the change.
    #[error(transparent)]
    Unkept(#[from] Unkept),
    /// The system gave no randomness.
    #[error("the system provides no randomness: {0}")]
    Chance(getrandom::Error),
}

// === impl Keys ===

impl Keys {
    /// Creates the keys of this store. Reads nothing yet.
    pub fn new(shelf: Shelf, ring: Keyring, links: Arc<Links>, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self {
            shelf,
            ring,
            links,
            clock,
            metrics,
            read: Mutex::default(),
            reader: tokio::sync::Mutex::default(),
        }
    }

    /// Reads all keys.
    pub async fn read(&self) -> Result<(), Unkept> {
        // Read first, so that a change during the read causes another read.
        let generation = self.shelf.generation().await?;
        let _alone = self.reader.lock().await;
        self.read_since(generation).await
    }

    /// Reads all keys and records this generation for them. The caller must hold the `read_lock`.
    async fn read_since(&self, generation: Value) -> Result<(), Unkept> {
        let keys = self.shelf.all().await?;
        let is_first = self.reading().generation.is_none();
        let others = keys.values().filter(|key| key.pepper != *self.ring.pepper().id()).count();
        if is_first && others > 0 {
            tracing::error!(keys = others, "keys were created with another pepper (auth.pepper) and are not valid here");
        }
        let before = self.ring.unsealed();
        let undone = self.ring.replace(keys);
        let unsealed = self.ring.unsealed();
        if unsealed > before {
            tracing::error!(
                keys = unsealed,
                "keys are not sealed with this node's pepper: created by an earlier release, or changed in the store; they \
                 are not valid (`turnway key list`, then `turnway key migrate` or new keys)"
            );
        }
        *self.reading() = Reading { generation: Some(generation), at: self.clock.mono() };
        self.enforce();
        if !undone.is_empty() {
            let keys = undone.len();
            tracing::error!(
                keys,
                "the store has lost revocations of keys; revoking them again"
            );
        }
        for id in undone {
            let now = self.clock.now().store;
            self.take_back(&id, now).await?;
        }
        Ok(())
    }

    /// Keeps the keys up to date. Never returns.
    pub async fn keep(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut was_well, mut under_way) = (true, FuturesUnordered::new());
        loop {
            let looked = tokio::select! {
                _ = looks.tick(), if under_way.len() < LOOKS_MAX => {
                    under_way.push(self.look());
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
                self.enforce();
            }
        }
    }

    async fn look(&self) -> Result<(), Unkept> {
        let generation = self.shelf.generation().await?;
        let _alone = self.reader.lock().await;
        // Another read may have finished while this one waited for the lock.
        let Reading { generation: known, at } = self.reading().clone();
        let is_old = self.clock.mono() - at >= READ_EVERY;
        if is_old || known.as_ref() != Some(&generation) {
            self.read_since(generation).await?;
        }
        Ok(())
    }

    /// Closes every link whose key is no longer valid.
    fn enforce(&self) {
        let (keys, now) = (self.ring.keys(), self.clock.now().store);
        let good: BTreeSet<&str> =
            keys.values().filter(|key| self.ring.opens(key, now)).map(|key| key.id.as_str()).collect();
        self.metrics.auth.keys(good.len());
        let cut = self.links.revoke(|name| !good.contains(name));
        if cut > 0 {
            tracing::info!(links = cut, "closed links whose keys are no longer valid");
            self.metrics.auth.cut(cut);
        }
    }

    /// Creates a key. The key is not valid before this returns, and is valid on all nodes soon after.
    pub async fn make(&self, wish: Wish) -> Result<(ApiKey, Record), NoKey> {
        let key = ApiKey::make().map_err(NoKey::Chance)?;
        let now = self.clock.now().store;
        let Wish { tenant, user, scopes, serves, label, lasts } = wish;
        let (id, hash) = (key.id().clone(), key.hash(self.ring.pepper()));
        let expires = lasts.map(|lasts| now.after(lasts));
        let pepper = self.ring.pepper().id().clone();
        let (created, revoked, seal) = (now, None, None);
        let record =
            Record { id, hash, pepper, tenant, user, scopes, serves, label, created, expires, revoked, seal };
        let record = record.sealed(self.ring.pepper());
        self.shelf.put(record.clone()).await?;
        self.read().await?;
        Ok((key, record))
    }

    /// Revokes a key. Repeating it has no further effect.
    pub async fn revoke(&self, id: &KeyId) -> Result<Record, NoKey> {
        let now = self.clock.now().store;
        let record = self.take_back(id, now).await?.ok_or(NoKey::Unknown)?;
        self.read().await?;
        Ok(record)
    }

    async fn take_back(&self, id: &KeyId, now: Millis) -> Result<Option<Record>, Unkept> {
        let pepper = self.ring.pepper();
        let revoke = |record: &mut Record| record.revoked = record.revoked.or(Some(now));
        self.shelf.change(id, |record| record.change(pepper, revoke)).await
    }

    /// Seals keys of an earlier release as they are now; the operator has checked the rights they grant. A key with a
    /// seal that does not match was changed in the store, and is refused.
    pub async fn migrate(&self, ids: &[KeyId]) -> Result<Vec<Record>, NoKey> {
        let (pepper, mut sealed) = (self.ring.pepper(), Vec::new());
        for id in ids {
            let seal = |record: &mut Record| {
                if record.seal.is_none() && record.pepper == *pepper.id() {
                    *record = record.clone().sealed(pepper);
                }
            };
            let record = self.shelf.change(id, seal).await?.ok_or(NoKey::Unknown)?;
            if !record.is_sealed(pepper) {
                return Err(NoKey::Changed);
            }
            sealed.push(record);
        }
        self.read().await?;
        Ok(sealed)
    }

    /// Returns whether a key was sealed with this node's pepper.
    pub fn is_sealed(&self, record: &Record) -> bool {
        record.is_sealed(self.ring.pepper())
    }

    /// Returns all keys, newest first, each with whether it is valid now.
    pub async fn list(&self) -> Result<Vec<(Record, bool)>, Unkept> {
        self.read().await?;
        let (keys, now) = (self.ring.keys(), self.clock.now().store);
        let mut list: Vec<_> = keys.values().map(|key| (key.clone(), self.ring.opens(key, now))).collect();
        list.sort_by(|(a, _), (b, _)| b.created.cmp(&a.created).then_with(|| a.id.cmp(&b.id)));
        Ok(list)
    }

    fn reading(&self) -> std::sync::MutexGuard<'_, Reading> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The API keys of a gateway: kept in its store, known to every node within seconds (S-01).
//!
//! - [`shelf`]: how they lie in the store.
//! - [`call_names`]: the secret by which the sessions of named calls are named.
//! - [`provider`]: the public keys that tokens of an identity provider are held against.
//!
//! A node asks for a number every [`LOOK_EVERY`], and for all keys when that has changed; and for all of them every
//! [`READ_EVERY`], should whoever changed one have died before it changed the number. It asks again whether or not the
//! last question is answered, and for all keys in one go: so a key that is taken back opens nothing after
//! [`LOOK_EVERY`] and two answers, of 2 s each at the most.
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

/// Between two looks at whether a key has changed. A key that is taken back opens nothing 5 s later (S-01), on
/// any node, however slow the store is just then.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Looks that are not answered: as many as there are in the time that a store has for an answer.
const LOOKS_MAX: usize = 5;
/// Between two readings of all keys, whether or not they are said to have changed.
pub const READ_EVERY: Duration = Duration::from_secs(60);

/// Knows all keys, and makes and takes back.
pub struct Keys {
    shelf: Shelf,
    ring: Keyring,
    links: Arc<Links>,
    clock: Clock,
    metrics: Arc<Metrics>,
    read: Mutex<Reading>,
    /// Who reads: two at a time could end with what the slower one had read first.
    reader: tokio::sync::Mutex<()>,
}

/// What was read last.
#[derive(Clone, Debug, Default)]
struct Reading {
    generation: Option<Value>,
    at: Mono,
}

/// What a new key is to be.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Whose.
    pub tenant: TenantId,
    /// Of which user.
    pub user: Option<UserId>,
    /// What its bearer may do.
    pub scopes: Scopes,
    /// What its bearer may serve.
    pub serves: Serves,
    /// For people.
    pub label: Option<String>,
    /// How long it is good; none: until it is taken back.
    pub lasts: Option<Duration>,
}

/// Why a key is not made, or not taken back.
#[derive(Debug, thiserror::Error)]
pub enum NoKey {
    /// There is none of this name.
    #[error("there is no key of this name")]
    Unknown,
    /// It has a seal that does not fit.
    #[error("the key was changed in the store, or was made with another pepper: make it new")]
    Changed,
    /// The store did not keep it.
    #[error(transparent)]
    Unkept(#[from] Unkept),
    /// The system has no randomness to give.
    #[error("no randomness: {0}")]
    Chance(getrandom::Error),
}

// === impl Keys ===

impl Keys {
    /// Those of this store. Nothing is read yet.
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

    /// Reads all of them.
    pub async fn read(&self) -> Result<(), Unkept> {
        // First: what changes meanwhile is read again.
        let generation = self.shelf.generation().await?;
        let _alone = self.reader.lock().await;
        self.read_since(generation).await
    }

    /// All of them, once the number was this. The caller alone reads.
    async fn read_since(&self, generation: Value) -> Result<(), Unkept> {
        let keys = self.shelf.all().await?;
        let is_first = self.reading().generation.is_none();
        let others = keys.values().filter(|key| key.pepper != *self.ring.pepper().id()).count();
        if is_first && others > 0 {
            tracing::error!(keys = others, "made with another pepper (auth.pepper): they open nothing here");
        }
        let before = self.ring.unsealed();
        let undone = self.ring.replace(keys);
        let unsealed = self.ring.unsealed();
        if unsealed > before {
            tracing::error!(
                keys = unsealed,
                "not sealed with this node's pepper: made by an earlier release, or changed in the store; they open \
                 nothing (`turnway key list`, then `turnway key migrate` or new keys)"
            );
        }
        *self.reading() = Reading { generation: Some(generation), at: self.clock.mono() };
        self.enforce();
        if !undone.is_empty() {
            let keys = undone.len();
            tracing::error!(
                keys,
                "the store has forgotten that keys were taken back; they are taken back again"
            );
        }
        for id in undone {
            let now = self.clock.now().store;
            self.take_back(&id, now).await?;
        }
        Ok(())
    }

    /// Keeps what is known up to date for as long as the process runs.
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
            // Once, and not each second.
            match &looked {
                Err(error) if was_well => {
                    tracing::error!(%error, "keys cannot be read; those that are known stay in use");
                }
                Ok(()) if !was_well => tracing::info!("keys are read again"),
                Ok(()) | Err(_) => {}
            }
            was_well = looked.is_ok();
            // Also where nothing has changed: keys end by themselves.
            if !planted(Planted::EndedKeyStays) {
                self.enforce();
            }
        }
    }

    async fn look(&self) -> Result<(), Unkept> {
        let generation = self.shelf.generation().await?;
        let _alone = self.reader.lock().await;
        // The look before may have read what this one would.
        let Reading { generation: known, at } = self.reading().clone();
        let is_old = self.clock.mono() - at >= READ_EVERY;
        if is_old || known.as_ref() != Some(&generation) {
            self.read_since(generation).await?;
        }
        Ok(())
    }

    /// Closes every link whose key opens nothing any more.
    fn enforce(&self) {
        let (keys, now) = (self.ring.keys(), self.clock.now().store);
        let good: BTreeSet<&str> =
            keys.values().filter(|key| self.ring.opens(key, now)).map(|key| key.id.as_str()).collect();
        self.metrics.auth.keys(good.len());
        let cut = self.links.revoke(|name| !good.contains(name));
        if cut > 0 {
            tracing::info!(links = cut, "closed: their keys open nothing any more");
            self.metrics.auth.cut(cut);
        }
    }

    /// Makes a key. It opens nothing before this has answered, and something everywhere soon after.
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

    /// Takes one back. To say it twice does no harm.
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

    /// Seals keys of an earlier release as they are now. An operator has looked at what they grant. One that has a seal
    /// that does not fit was changed in the store, and is refused.
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

    /// Returns whether a key is one that this node can vouch for.
    pub fn is_sealed(&self, record: &Record) -> bool {
        record.is_sealed(self.ring.pepper())
    }

    /// All of them, the last made first, and whether each is good now.
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

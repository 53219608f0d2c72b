//! Opens the store. Called by `app::build`.
use super::{BuildError, Shared};
use crate::config::{Config, Durability, StoreConfig};
use crate::phase::Reason;
use crate::store::embedded::{self, Embedded, Fault};
use crate::store::memory::Memory;
use crate::store::redis::{self, OpenError, Redis};
use crate::store::{Answers, Filled, Store};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Timeout of the first request for the store's time, after the store was opened.
const TIME_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two requests for the time.
const AGAIN: Duration = Duration::from_millis(200);

/// The durability that an acknowledgement promises (`turn_accepted.durability`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    pub(super) level: &'static str,
    /// The level was not verified, and only the operator vouches for it (`store.attest`).
    pub(super) is_attested: bool,
}

/// A store that is ready for use.
pub(super) struct Opened {
    pub(super) store: Arc<dyn Store>,
    /// Set for an embedded store, which can be copied and must be closed.
    pub(super) embedded: Option<Arc<Embedded>>,
    pub(super) promise: Promise,
}

impl Opened {
    fn of(store: Arc<dyn Store>, config: &StoreConfig) -> Self {
        let promise = Promise { level: config.promise(), is_attested: false };
        Self { store, embedded: None, promise }
    }
}

impl Shared {
    /// Opens the configured store.
    pub(super) fn store(
        &self,
        config: &Config,
        fatal: &Arc<Notify>,
        answers: Answers,
        runtime: &Handle,
    ) -> Result<Opened, BuildError> {
        let (metrics, quotas) = (Arc::clone(&self.metrics), config.holding.quotas);
        let filled: Filled = Arc::new(move |bytes, most| metrics.store.filled(quotas, bytes, most));
        let clock = self.clock.clone();
        let clock: embedded::Clock = Arc::new(move || clock.now());
        match &config.store {
            StoreConfig::Memory => {
                let store = Memory::new(clock, quotas, filled, answers);
                Ok(Opened::of(Arc::new(store), &config.store))
            }
            StoreConfig::Embedded { dir, durability, cache_bytes, reserve_bytes } => {
                let mut options = self.embedded_options(clock, fatal);
                options.durability = match durability {
                    Durability::Mem => embedded::Durability::Os,
                    // Data that is not synced may still be in the process and be lost with it: only a synced file keeps
                    // the promise of `os`.
                    Durability::Os | Durability::Fsync | Durability::FsyncReplica => {
                        embedded::Durability::Fsync
                    }
                };
                options.cache_bytes = usize::try_from(*cache_bytes).unwrap_or(usize::MAX);
                options.reserve_bytes = *reserve_bytes;
                options.quotas = quotas;
                options.filled = filled;
                let store = Arc::new(Embedded::open(dir, options, answers)?);
                let opened = Opened::of(Arc::<Embedded>::clone(&store), &config.store);
                Ok(Opened { embedded: Some(store), ..opened })
            }
            StoreConfig::Redis { url, durability, deployer, attest, wait } => {
                let options = redis::Options {
                    durability: *durability,
                    deployer: deployer.clone(),
                    attest: *attest,
                    wait: *wait,
                    quotas,
                    filled: Some(filled),
                    life: self.life.clone(),
                    clock: None,
                };
                let store = runtime.block_on(Redis::open(url.clone(), options, answers));
                let store = store
                    .and_then(|store| runtime.block_on(self.first_time(&store)).map(|()| store))
                    .map_err(|error| BuildError::Redis { url: url.to_string(), error: Box::new(error) })?;
                let promise = Promise { level: store.level().word(), is_attested: store.is_attested() };
                self.metrics.store.promise(promise.is_attested);
                Ok(Opened { promise, store: Arc::new(store), embedded: None })
            }
        }
    }

    /// Builds the options of an embedded store that reports its condition to this node.
    fn embedded_options(&self, clock: embedded::Clock, fatal: &Arc<Notify>) -> embedded::Options {
        let (fatal, life) = (Arc::clone(fatal), self.life.clone());
        let failed = move |fault| match fault {
            // Leaving would lose the data that the process still holds, and a supervisor would start with an empty
            // file.
            Fault::Gone { .. } => life.store_gone(),
            Fault::Disk(_) | Fault::Damaged { .. } | Fault::Structure(_) | Fault::Panicked | Fault::Dead => {
                fatal.notify_one()
            }
        };
        let mut options = embedded::Options::new(clock, Arc::new(failed));
        let life = self.life.clone();
        options.closed_off = Arc::new(move |sessions| life.store_damaged(sessions));
        let life = self.life.clone();
        options.short_of_room = Arc::new(move |is_short| life.report(Reason::DiskReserve, is_short));
        let metrics = Arc::clone(&self.metrics);
        options.committed = Arc::new(move |commit| metrics.store.committed(commit.ops, commit.took));
        options
    }

    /// Takes the store's time before any timestamp is recorded, kept or compared: a node of a fleet has no other time.
    async fn first_time(&self, store: &Redis) -> Result<(), OpenError> {
        let until = self.clock.mono() + TIME_WITHIN;
        loop {
            let sent = self.clock.mono();
            match store.time().await {
                Ok(time) => {
                    self.clock.told(time, sent, self.clock.mono());
                    return Ok(());
                }
                Err(error) if self.clock.mono() >= until => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "the store has not given its time yet");
                    sleep(AGAIN).await;
                }
            }
        }
    }
}

//! Opening the store.
use super::{BuildError, Shared};
use crate::config::{Durability, StoreConfig};
use crate::store::embedded::{self, Copier, Embedded};
use crate::store::memory::Memory;
use crate::store::redis::{self, Redis};
use crate::store::{Answers, Store};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Notify;

impl Shared {
    /// The one that is configured; of an embedded one also what copies it.
    pub(super) fn store(
        &self,
        config: &StoreConfig,
        fatal: &Arc<Notify>,
        answers: Answers,
        runtime: &Handle,
    ) -> Result<(Arc<dyn Store>, Option<Copier>), BuildError> {
        let clock = self.clock.clone();
        let clock: embedded::Clock = Arc::new(move || clock.now());
        match config {
            StoreConfig::Memory => Ok((Arc::new(Memory::new(clock, answers)), None)),
            StoreConfig::Embedded { dir, durability, cache_bytes, reserve_bytes } => {
                let fatal = Arc::clone(fatal);
                let mut options = embedded::Options::new(clock, Arc::new(move |_| fatal.notify_one()));
                options.durability = match durability {
                    Durability::Mem => embedded::Durability::Os,
                    // What is not synced yet may still be in the process, and would die with it: only a
                    // synced file keeps the promise of `os`.
                    Durability::Os | Durability::Fsync | Durability::FsyncReplica => {
                        embedded::Durability::Fsync
                    }
                };
                options.cache_bytes = usize::try_from(*cache_bytes).unwrap_or(usize::MAX);
                options.reserve_bytes = *reserve_bytes;
                let metrics = Arc::clone(&self.metrics);
                options.committed = Arc::new(move |commit| metrics.store.committed(commit.ops, commit.took));
                let store = Embedded::open(dir, options, answers)?;
                let copier = store.copier();
                Ok((Arc::new(store), Some(copier)))
            }
            StoreConfig::Redis { url, durability, deployer } => {
                let options =
                    redis::Options { durability: *durability, deployer: deployer.clone(), clock: None };
                let store = runtime.block_on(Redis::open(url.clone(), options, answers));
                let store = store
                    .map_err(|error| BuildError::Redis { url: url.to_string(), error: Box::new(error) })?;
                Ok((Arc::new(store), None))
            }
        }
    }
}

//! Opens the store. Called by `app::build`.
use super::{BuildError, NodeParts};
use crate::blobs::s3::S3Credentials;
use crate::blobs::{BodyStore, FileBodies, MemoryBodies, RedisBodies, S3Bodies};
use crate::config::{Config, Durability, StoreConfig};
use crate::phase::UnreadyReason;
use crate::redis::{RedisConnection, RedisConnectionOptions};
use crate::store::embedded::{self, EmbeddedStore, StoreFault};
use crate::store::memory::MemoryStore;
use crate::store::redis::{self, RedisOpenError, RedisStore};
use crate::store::{AnswerSink, Store, UsageCallback};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Timeout of the first request for the store's time, after the store was opened.
const STORE_TIME_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two requests for the time.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Timeout of a command with a part of a file.
const PART_TIMEOUT: Duration = Duration::from_secs(10);

/// The durability that an acknowledgement promises (`turn_accepted.durability`).
#[derive(Clone, Copy, Debug)]
pub(super) struct DurabilityPromise {
    pub(super) level: &'static str,
    /// The level was not verified, and only the operator vouches for it (`store.attest`).
    pub(super) is_attested: bool,
}

/// A store that is ready for use.
pub(super) struct OpenedStore {
    pub(super) store: Arc<dyn Store>,
    /// Set for an embedded store, which can be copied and must be closed.
    pub(super) embedded: Option<Arc<EmbeddedStore>>,
    pub(super) promise: DurabilityPromise,
}

impl OpenedStore {
    fn of(store: Arc<dyn Store>, config: &StoreConfig) -> Self {
        let promise = DurabilityPromise { level: config.durability(), is_attested: false };
        Self { store, embedded: None, promise }
    }
}

impl NodeParts {
    /// Opens the configured store.
    pub(super) fn store(
        &self,
        config: &Config,
        fatal: &Arc<Notify>,
        answers: AnswerSink,
        runtime: &Handle,
    ) -> Result<OpenedStore, BuildError> {
        let metrics = Arc::clone(&self.metrics);
        let quotas = config.holding.quotas;
        let filled: UsageCallback = Arc::new(move |bytes, most| metrics.store.set_usage(quotas, bytes, most));
        let clock = self.clock.clone();
        let clock: embedded::ClockFn = Arc::new(move || clock.now());
        match &config.store {
            StoreConfig::Memory => {
                let store = MemoryStore::new(clock, quotas, filled, answers);
                Ok(OpenedStore::of(Arc::new(store), &config.store))
            }
            StoreConfig::Embedded { dir, durability, cache_bytes, reserve_bytes } => {
                let mut options = self.embedded_options(clock, fatal);
                options.durability = match durability {
                    Durability::Mem => embedded::CommitDurability::Os,
                    // Data that is not synced may still be in the process and be lost with it: only a synced file keeps
                    // the promise of `os`.
                    Durability::Os | Durability::Fsync | Durability::FsyncReplica => embedded::CommitDurability::Fsync,
                };
                options.cache_bytes = usize::try_from(*cache_bytes).unwrap_or(usize::MAX);
                options.reserve_bytes = *reserve_bytes;
                options.quotas = quotas;
                options.on_usage = filled;
                let store = Arc::new(EmbeddedStore::open(dir, options, answers)?);
                let opened = OpenedStore::of(Arc::<EmbeddedStore>::clone(&store), &config.store);
                Ok(OpenedStore { embedded: Some(store), ..opened })
            }
            StoreConfig::Redis { url, durability, deployer, attest, wait } => {
                let options = redis::RedisStoreOptions {
                    durability: *durability,
                    deployer: deployer.clone(),
                    attest: *attest,
                    wait: *wait,
                    quotas,
                    on_usage: Some(filled),
                    lifecycle: self.life.clone(),
                    clock: None,
                };
                let store = runtime.block_on(RedisStore::open(url.clone(), options, answers));
                let store = store
                    .and_then(|store| runtime.block_on(self.first_time(&store)).map(|()| store))
                    .map_err(|error| BuildError::Redis { url: url.to_string(), error: Box::new(error) })?;
                let promise = DurabilityPromise { level: store.level().as_str(), is_attested: store.is_attested() };
                self.metrics.store.set_attested(promise.is_attested);
                Ok(OpenedStore { promise, store: Arc::new(store), embedded: None })
            }
        }
    }

    /// Returns the place of the bytes of files: the one of `blobs.url`, or else where the store keeps everything else.
    pub(super) fn bodies(&self, config: &Config, runtime: &Handle) -> Result<BodyStore, BuildError> {
        match &config.blobs.place {
            Some(place) => {
                let credentials = runtime.block_on(S3Credentials::open(place.credentials.as_deref()))?;
                let clock = self.clock.clone();
                let metrics = Arc::clone(&self.metrics);
                Ok(BodyStore::S3(S3Bodies::new(place.clone(), credentials, clock, metrics)?))
            }
            None => Ok(self.bodies_of_store(&config.store, runtime)),
        }
    }

    fn bodies_of_store(&self, config: &StoreConfig, runtime: &Handle) -> BodyStore {
        match config {
            StoreConfig::Memory => BodyStore::Memory(MemoryBodies::default()),
            StoreConfig::Embedded { dir, durability, .. } => {
                BodyStore::Files(FileBodies::new(dir.join("blobs"), *durability != Durability::Mem))
            }
            StoreConfig::Redis { url, .. } => {
                let options = RedisConnectionOptions {
                    name: "blobs",
                    command_timeout: PART_TIMEOUT,
                    channels: Vec::new(),
                    push_handler: None,
                };
                let connection = RedisConnection::open(url.clone(), options, runtime);
                BodyStore::Redis(RedisBodies::new(connection, self.clock.clone()))
            }
        }
    }

    /// Builds the options of an embedded store that reports its condition to this node.
    fn embedded_options(&self, clock: embedded::ClockFn, fatal: &Arc<Notify>) -> embedded::EmbeddedOptions {
        let fatal = Arc::clone(fatal);
        let life = self.life.clone();
        let failed = move |fault| match fault {
            // Leaving would lose the data that the process still holds, and a supervisor would start with an empty
            // file.
            StoreFault::FileLost { .. } => life.report_store_gone(),
            StoreFault::Disk(_)
            | StoreFault::Damaged { .. }
            | StoreFault::Structure(_)
            | StoreFault::Panicked
            | StoreFault::AlreadyFailed => fatal.notify_one(),
        };
        let mut options = embedded::EmbeddedOptions::new(clock, Arc::new(failed));
        let life = self.life.clone();
        options.on_quarantine = Arc::new(move |sessions| life.set_damaged_sessions(sessions));
        let life = self.life.clone();
        options.on_low_space = Arc::new(move |is_short| life.report(UnreadyReason::DiskReserve, is_short));
        let metrics = Arc::clone(&self.metrics);
        options.on_commit = Arc::new(move |commit| metrics.store.record_commit(commit.ops, commit.took));
        options
    }

    /// Takes the store's time before any timestamp is recorded, kept or compared: a node of a fleet has no other time.
    async fn first_time(&self, store: &RedisStore) -> Result<(), RedisOpenError> {
        let until = self.clock.mono() + STORE_TIME_TIMEOUT;
        loop {
            let sent = self.clock.mono();
            match store.time().await {
                Ok(time) => {
                    self.clock.observe_store_time(time, sent, self.clock.mono());
                    return Ok(());
                }
                Err(error) if self.clock.mono() >= until => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "the store has not given its time yet");
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }
}

//! The durable store of a single machine: a redb database behind one group-commit writer thread. A batch is committed
//! with one fsync and answered only afterwards; after the first disk failure the store stops, because the kernel may
//! have dropped the pages whose write failed, so a repeated fsync proves nothing. Opened by `app::build` and the CLI.
mod batch;
mod check;
mod conversations;
mod copy;
mod datafile;
mod directory;
mod engine;
mod fault;
mod head;
mod head_cache;
mod index;
mod leases;
mod meter;
mod offline_check;
mod opening;
mod overlay;
mod pages;
mod quarantine;
mod queue;
mod record;
mod report;
mod row_cache;
mod salvage;
mod session_record_reader;
mod session_transaction;
mod store_clock;
mod sweep_index;
mod tables;

pub use copy::{Copier, copy, repair, rescue};
pub use engine::Engine;
pub use fault::{EmbeddedOpenError, StoreFault};
pub use offline_check::check;
pub use report::CheckReport;
pub(super) use store_clock::StoreClock;

use crate::store::{AnswerSink, Store, UsageCallback};
use directory::DataDirectory;
use leases::Leases;
use queue::{OpQueue, TakeResult};
use redb::StorageBackend;
use row_cache::RowCache;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use turnway_core::limits;
use turnway_core::store::quota::Quotas;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::Now;

/// A function that returns the current time: leases use its `mono` part, records its `store` part.
pub type ClockFn = Arc<dyn Fn() -> Now + Send + Sync>;

/// The guarantee that a reply gives about its write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitDurability {
    /// The write is on the disk.
    #[default]
    Fsync,
    /// The write reaches the disk within 100 ms; a process that dies earlier loses the write.
    Os,
}

/// Settings and callbacks of an embedded store.
#[derive(Clone)]
pub struct EmbeddedOptions {
    /// The guarantee that a reply gives.
    pub durability: CommitDurability,
    /// Commits in two phases, each with its own fsync. Commits are slower, but opening after a crash reads only the
    /// file header, whatever the file's size.
    pub two_phase: bool,
    /// Page cache of the database, in bytes.
    pub cache_bytes: usize,
    /// Free disk space, in bytes, below which new inputs are refused.
    pub reserve_bytes: u64,
    /// Quotas on the bytes stored for tenants and users.
    pub quotas: Quotas,
    /// Called at start and after each commit with the bytes stored and, if known, the capacity.
    pub on_usage: UsageCallback,
    /// Called with `true` when inputs start to be refused for lack of disk space, with `false` when they are accepted
    /// again.
    pub on_low_space: Arc<dyn Fn(bool) + Send + Sync>,
    /// The clock. If its `store` time goes back, the store's own time stands still.
    pub clock: ClockFn,
    /// Called once, when the store can no longer guarantee anything: the process has to end.
    pub on_fatal: Arc<dyn Fn(StoreFault) + Send + Sync>,
    /// Called by the writer thread after each commit, for metrics.
    pub on_commit: Arc<dyn Fn(Commit) + Send + Sync>,
    /// Called with the number of quarantined sessions whenever a damaged session is quarantined.
    pub on_quarantine: Arc<dyn Fn(usize) + Send + Sync>,
}

/// A report about one successful commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Ops in the batch, including ops that only read; 0 for a commit that only flushed.
    pub ops: usize,
    /// Duration of the commit alone, without the work before it.
    pub took: Duration,
}

impl EmbeddedOptions {
    /// Default page cache in bytes. The system caches the file as well: no difference was measured between 2 MiB and
    /// 64 MiB.
    pub const CACHE_BYTES: usize = 2 * 1024 * 1024;

    /// Creates options with fsync, one-phase commits, a 2 MiB cache, no quotas, and callbacks that do nothing.
    pub fn new(clock: ClockFn, on_fatal: Arc<dyn Fn(StoreFault) + Send + Sync>) -> Self {
        Self {
            durability: CommitDurability::Fsync,
            two_phase: false,
            cache_bytes: Self::CACHE_BYTES,
            reserve_bytes: limits::STORE_RESERVE_BYTES,
            quotas: Quotas::OFF,
            on_usage: Arc::new(|_, _| {}),
            on_low_space: Arc::new(|_| {}),
            clock,
            on_fatal,
            on_commit: Arc::new(|_| {}),
            on_quarantine: Arc::new(|_| {}),
        }
    }
}

/// The store of a gateway that runs on one machine. Dropping the store first completes the ops submitted before.
pub struct EmbeddedStore {
    queue: Arc<OpQueue>,
    leases: Arc<Leases>,
    rows: Arc<RowCache>,
    clock: Arc<StoreClock>,
    /// Answers ops that the writer does not get.
    answers: AnswerSink,
    copier: Copier,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedStore {
    /// Opens the store in a directory and creates both if missing. Only one process may have the directory open.
    pub fn open(dir: &Path, options: EmbeddedOptions, answers: AnswerSink) -> Result<Self, EmbeddedOpenError> {
        let directory = DataDirectory::open_or_create(dir)?;
        Self::start(Engine::open(directory, &options)?, options, answers)
    }

    /// Opens the store on a storage backend that the caller provides.
    pub fn with_backend(
        backend: impl StorageBackend,
        options: EmbeddedOptions,
        answers: AnswerSink,
    ) -> Result<Self, EmbeddedOpenError> {
        Self::start(Engine::with_backend(backend, &options)?, options, answers)
    }

    fn start(engine: Engine, options: EmbeddedOptions, answers: AnswerSink) -> Result<Self, EmbeddedOpenError> {
        let queue = Arc::new(OpQueue::new(limits::STORE_QUEUE_MAX));
        let leases = engine.leases();
        let rows = Arc::<RowCache>::default();
        let wall = engine.clock();
        let copier = engine.copier(&options);
        let writer = {
            let queue = Arc::clone(&queue);
            let rows = Arc::clone(&rows);
            let answers = Arc::clone(&answers);
            let answer = move |op, result| {
                rows.finish(&op, &result);
                answers(op, result);
            };
            let write = move || run_writer(engine, &queue, answer, &options);
            std::thread::Builder::new().name("store".to_owned()).spawn(write)?
        };
        Ok(Self { queue, leases, rows, clock: wall, answers, copier, writer: Mutex::new(Some(writer)) })
    }

    /// Completes the ops submitted before, closes the file and waits for the writer thread. Ops submitted later are
    /// refused, and a caller that still holds the store keeps no file open.
    pub fn close(&self) {
        self.queue.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("the store's writer thread panicked");
        }
    }

    /// Returns a handle that copies the store while the store is in use.
    pub fn copier(&self) -> Copier {
        self.copier.clone()
    }
}

impl Store for EmbeddedStore {
    fn submit(&self, op: Op) {
        if !self.queue.is_open() {
            (self.answers)(op, Err(StoreError::Unavailable));
            return;
        }
        // Leases live in memory and never wait for the disk: a slow commit must not cost a healthy node its lease.
        let reply = self.leases.handle(self.clock.now(), &op).or_else(|| self.rows.begin(&op));
        match reply {
            Some(reply) => (self.answers)(op, Ok(reply)),
            None => {
                if let Some(op) = self.queue.push(op) {
                    let refused = Err(StoreError::Unavailable);
                    self.rows.finish(&op, &refused);
                    (self.answers)(op, refused);
                }
            }
        }
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs the writer thread: commits the queued ops at once, while the next batch accumulates.
fn run_writer(
    mut engine: Engine,
    queue: &OpQueue,
    mut answer: impl FnMut(Op, Result<Reply, StoreError>),
    options: &EmbeddedOptions,
) {
    let fault = loop {
        let done = match queue.take(limits::STORE_BATCH_MAX, engine.next_wakeup()) {
            TakeResult::Ops(ops) => engine.perform(ops, &mut answer),
            TakeResult::Idle => engine.flush(),
            TakeResult::Closed => match engine.close() {
                Ok(()) => return,
                Err(fault) => break fault,
            },
        };
        if let Err(fault) = done.and_then(|()| engine.check_file()) {
            break fault;
        }
    };
    queue.close();
    // The writer never read these ops, so they did not happen.
    while let TakeResult::Ops(ops) = queue.take(limits::STORE_BATCH_MAX, None) {
        ops.into_iter().for_each(|op| answer(op, Err(StoreError::Unavailable)));
    }
    tracing::error!(%fault, "the store failed");
    (options.on_fatal)(fault);
}

//! The durable store of a single machine: a redb database behind one group-commit writer thread. A batch is committed
//! with one fsync and answered only afterwards; after the first disk failure the store stops, because the kernel may
//! have dropped the pages whose write failed, so a repeated fsync proves nothing. Opened by `app::build` and the CLI.
mod batch;
mod check;
mod copy;
mod datafile;
mod directory;
mod engine;
mod fault;
mod fence;
mod head;
mod heads;
mod index;
mod leases;
mod look;
mod meter;
mod opening;
mod pages;
mod queue;
mod reading;
mod record;
mod report;
mod salvage;
mod shadow;
mod standing;
mod step;
mod tables;
mod wall;

pub use copy::{Copier, copy, repair, rescue};
pub use engine::Engine;
pub use fault::{Fault, OpenError};
pub use look::check;
pub use report::Report;
pub(super) use wall::Wall;

use crate::store::{Answers, Filled, Store};
use directory::Directory;
use leases::Leases;
use queue::{Queue, Taken};
use redb::StorageBackend;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use turnway_core::limits;
use turnway_core::store::quota::Quotas;
use turnway_core::store::{Op, StoreError};
use turnway_core::time::Now;

/// A function that returns the current time: leases use its `mono` part, records its `store` part.
pub type Clock = Arc<dyn Fn() -> Now + Send + Sync>;

/// The guarantee that a reply gives about its write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The write is on the disk.
    #[default]
    Fsync,
    /// The write reaches the disk within 100 ms; a process that dies earlier loses the write.
    Os,
}

/// Settings and callbacks of an embedded store.
#[derive(Clone)]
pub struct Options {
    /// The guarantee that a reply gives.
    pub durability: Durability,
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
    pub filled: Filled,
    /// Called with `true` when inputs start to be refused for lack of disk space, with `false` when they are accepted
    /// again.
    pub short_of_room: Arc<dyn Fn(bool) + Send + Sync>,
    /// The clock. If its `store` time goes back, the store's own time stands still.
    pub clock: Clock,
    /// Called once, when the store can no longer guarantee anything: the process has to end.
    pub fatal: Arc<dyn Fn(Fault) + Send + Sync>,
    /// Called by the writer thread after each commit, for metrics.
    pub committed: Arc<dyn Fn(Commit) + Send + Sync>,
    /// Called with the number of quarantined sessions whenever a damaged session is quarantined.
    pub closed_off: Arc<dyn Fn(usize) + Send + Sync>,
}

/// A report about one successful commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Ops in the batch, including ops that only read; 0 for a commit that only flushed.
    pub ops: usize,
    /// Duration of the commit alone, without the work before it.
    pub took: Duration,
}

impl Options {
    /// Default page cache in bytes. The system caches the file as well: no difference was measured between 2 MiB and
    /// 64 MiB.
    pub const CACHE_BYTES: usize = 2 * 1024 * 1024;

    /// Creates options with fsync, one-phase commits, a 2 MiB cache, no quotas, and callbacks that do nothing.
    pub fn new(clock: Clock, fatal: Arc<dyn Fn(Fault) + Send + Sync>) -> Self {
        Self {
            durability: Durability::Fsync,
            two_phase: false,
            cache_bytes: Self::CACHE_BYTES,
            reserve_bytes: limits::STORE_RESERVE_BYTES,
            quotas: Quotas::OFF,
            filled: Arc::new(|_, _| {}),
            short_of_room: Arc::new(|_| {}),
            clock,
            fatal,
            committed: Arc::new(|_| {}),
            closed_off: Arc::new(|_| {}),
        }
    }
}

/// The store of a gateway that runs on one machine. Dropping the store first completes the ops submitted before.
pub struct Embedded {
    queue: Arc<Queue>,
    leases: Arc<Leases>,
    wall: Arc<Wall>,
    answers: Answers,
    copier: Copier,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Embedded {
    /// Opens the store in a directory and creates both if missing. Only one process may have the directory open.
    pub fn open(dir: &Path, options: Options, answers: Answers) -> Result<Self, OpenError> {
        let directory = Directory::prepare(dir)?;
        Self::start(Engine::open(directory, &options)?, options, answers)
    }

    /// Opens the store on a storage backend that the caller provides.
    pub fn with_backend(
        backend: impl StorageBackend,
        options: Options,
        answers: Answers,
    ) -> Result<Self, OpenError> {
        Self::start(Engine::with_backend(backend, &options)?, options, answers)
    }

    fn start(engine: Engine, options: Options, answers: Answers) -> Result<Self, OpenError> {
        let queue = Arc::new(Queue::new(limits::STORE_QUEUE_MAX));
        let (leases, wall, copier) = (engine.leases(), engine.wall(), engine.copier(&options));
        let writer = {
            let (queue, answers) = (Arc::clone(&queue), Arc::clone(&answers));
            let write = move || write(engine, &queue, &answers, &options);
            std::thread::Builder::new().name("store".to_owned()).spawn(write)?
        };
        Ok(Self { queue, leases, wall, answers, copier, writer: Mutex::new(Some(writer)) })
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

impl Store for Embedded {
    fn submit(&self, op: Op) {
        // Leases live in memory and never wait for the disk: a slow commit must not cost a healthy node its lease.
        let reply = self.queue.is_open().then(|| self.leases.serve(self.wall.now(), &op)).flatten();
        match reply {
            Some(reply) => (self.answers)(op, Ok(reply)),
            None => {
                if let Some(op) = self.queue.push(op) {
                    (self.answers)(op, Err(StoreError::Unavailable));
                }
            }
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs the writer thread: commits the queued ops at once, while the next batch accumulates.
fn write(mut engine: Engine, queue: &Queue, answers: &Answers, options: &Options) {
    let mut answer = |op, result| answers(op, result);
    let fault = loop {
        let done = match queue.take(limits::STORE_BATCH_MAX, engine.flush_within()) {
            Taken::Ops(ops) => engine.perform(ops, &mut answer),
            Taken::Idle => engine.flush(),
            Taken::Closed => match engine.close() {
                Ok(()) => return,
                Err(fault) => break fault,
            },
        };
        if let Err(fault) = done.and_then(|()| engine.look()) {
            break fault;
        }
    };
    queue.close();
    // The writer never read these ops, so they did not happen.
    while let Taken::Ops(ops) = queue.take(limits::STORE_BATCH_MAX, None) {
        ops.into_iter().for_each(|op| answer(op, Err(StoreError::Unavailable)));
    }
    tracing::error!(%fault, "the store failed");
    (options.fatal)(fault);
}

//! The durable store on one machine: redb behind one group-commit writer thread.
//!
//! - [`Embedded`]: the store: a bounded queue and the thread that empties it.
//! - [`Engine`]: what the thread does with a batch, for tests and tools that want no thread.
//! - [`check`] and [`copy`]: what an operator does with a data directory; [`Copier`]: the same of one in use.
//!
//! What is answered as done is on the disk: a batch is committed with one fsync, and only then is any
//! of it answered. A disk that fails once is never trusted again: the kernel may have dropped the
//! very pages whose write failed, so an fsync that is asked a second time proves nothing.
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

/// Tells the time: the leases' by `mono`, the store's by `store`.
pub type Clock = Arc<dyn Fn() -> Now + Send + Sync>;

/// What an answer promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is on the disk.
    #[default]
    Fsync,
    /// It will be on the disk within 100 ms: a process that dies sooner takes it along.
    Os,
}

/// How an embedded store behaves.
#[derive(Clone)]
pub struct Options {
    /// What an answer promises.
    pub durability: Durability,
    /// Commit in two phases, each with its fsync: slower, but opening after a crash reads no more
    /// than the header, however large the file is.
    pub two_phase: bool,
    /// Memory for pages of the file.
    pub cache_bytes: usize,
    /// Inputs are refused while the disk has less room than this.
    pub reserve_bytes: u64,
    /// How many bytes tenants and users may keep.
    pub quotas: Quotas,
    /// Called at the start and after each commit.
    pub filled: Filled,
    /// Called when inputs begin to be refused for lack of room, and when they are taken again.
    pub short_of_room: Arc<dyn Fn(bool) + Send + Sync>,
    /// The time. Where its `store` goes back, the store's own clock stands still.
    pub clock: Clock,
    /// Called once, when nothing more can be promised: the process is to end.
    pub fatal: Arc<dyn Fn(Fault) + Send + Sync>,
    /// Called by the writer after each commit: for metrics.
    pub committed: Arc<dyn Fn(Commit) + Send + Sync>,
    /// Called when sessions are closed off because they are damaged: how many are.
    pub closed_off: Arc<dyn Fn(usize) + Send + Sync>,
}

/// One commit that went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Ops in its batch, those that only read included; none where only a flush was due.
    pub ops: usize,
    /// The commit alone, without what was done before it.
    pub took: Duration,
}

impl Options {
    /// Memory for pages of the file, unless told otherwise. The system caches the file as well: between
    /// 2 MiB and 64 MiB no difference was measured.
    pub const CACHE_BYTES: usize = 2 * 1024 * 1024;

    /// fsync, one phase, 2 MiB of cache, and nobody who counts commits.
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

/// The store of a gateway that runs on one machine. Dropping it finishes what was asked before.
pub struct Embedded {
    queue: Arc<Queue>,
    leases: Arc<Leases>,
    wall: Arc<Wall>,
    answers: Answers,
    copier: Copier,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Embedded {
    /// Opens the store in a directory, or makes it there. Only one process may have it open.
    pub fn open(dir: &Path, options: Options, answers: Answers) -> Result<Self, OpenError> {
        let directory = Directory::prepare(dir)?;
        Self::start(Engine::open(directory, &options)?, options, answers)
    }

    /// Opens the store on a disk of the caller's own making.
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

    /// Finishes what was asked before, closes the file, and waits for both; whatever is asked later is refused. Whoever
    /// still holds the store then keeps nothing open.
    pub fn close(&self) {
        self.queue.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }

    /// Who copies it while it is in use.
    pub fn copier(&self) -> Copier {
        self.copier.clone()
    }
}

impl Store for Embedded {
    fn submit(&self, op: Op) {
        // Leases live in memory and never wait for the disk: a commit that takes long must not cost
        // a healthy node its life.
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

/// The writer: commits at once what is queued; the next batch gathers meanwhile.
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
    // These were never looked at, so they did not happen.
    while let Taken::Ops(ops) = queue.take(limits::STORE_BATCH_MAX, None) {
        ops.into_iter().for_each(|op| answer(op, Err(StoreError::Unavailable)));
    }
    tracing::error!(%fault, "the store failed");
    (options.fatal)(fault);
}

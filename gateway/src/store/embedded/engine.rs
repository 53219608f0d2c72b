//! The engine of the embedded store: performs batches of ops in transactions and answers them. Called by the writer
//! thread, and directly by tests and tools that need no thread.
use crate::store::Filled;
use crate::store::embedded::batch::{Basis, Batch};
use crate::store::embedded::check;
use crate::store::embedded::copy::{Copier, Copies};
use crate::store::embedded::datafile::Watched;
use crate::store::embedded::directory::{Directory, Room};
use crate::store::embedded::fault::{Fault, OpenError};
use crate::store::embedded::fence::Fence;
use crate::store::embedded::head::Head;
use crate::store::embedded::heads::Heads;
use crate::store::embedded::index;
use crate::store::embedded::leases::Leases;
use crate::store::embedded::meter::{self, Meter};
use crate::store::embedded::opening;
use crate::store::embedded::record::{Eye, Pen, Spot};
use crate::store::embedded::standing::Standing;
use crate::store::embedded::tables::{self, HEADS, META, Tables, WORK};
use crate::store::embedded::wall::Wall;
use crate::store::embedded::{Commit, Durability, Options, Report};
use redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, WriteTransaction};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_core::time::Mono;

/// Version of the format that this release writes.
pub(super) const FORMAT: u64 = 1;
/// Meta entry set once the index of sessions exists; the first releases kept none.
pub(super) const INDEXED: &str = "indexed";
/// Meta entry set once stored bytes are counted; earlier releases did not count them.
const METERED: &str = "metered";
/// Interval between two commits that reach the disk, at [`Durability::Os`].
const FLUSH: Duration = Duration::from_millis(100);
/// Interval between two checks that the file is in place: short enough to report a removed file within a second.
const LOOK: Duration = Duration::from_millis(400);
/// Time for running copies to notice that they are cancelled.
const CLOSE: Duration = Duration::from_secs(2);

/// The embedded store without its thread: one caller, and all replies are given before `perform` returns.
pub struct Engine {
    /// Shared with copies in progress.
    database: Arc<Database>,
    heads: Heads,
    standing: Standing,
    leases: Arc<Leases>,
    wall: Arc<Wall>,
    fence: Fence,
    room: Room,
    meter: Meter,
    /// The monitored data file, if there is one; `looked` is the time of its last check.
    watched: Option<Arc<Watched>>,
    looked: Mono,
    copies: Arc<Copies>,
    durability: Durability,
    two_phase: bool,
    /// Time of the last commit that reached the disk; `soft` tells whether a later one has not.
    flushed: Mono,
    soft: bool,
    dead: bool,
    committed: Arc<dyn Fn(Commit) + Send + Sync>,
    filled: Filled,
    /// Holds the directory's lock until the database is closed.
    _directory: Option<Directory>,
}

/// A batch and its progress, kept outside the code that may fail.
struct Work {
    /// Number of ops in the batch, answered or not.
    count: usize,
    left: VecDeque<Op>,
    late: Vec<(Op, Reply)>,
    /// True once a fault can no longer be attributed to a single op.
    is_writing: bool,
}

type Answer<'a> = &'a mut dyn FnMut(Op, Result<Reply, StoreError>);

impl Engine {
    /// Opens the database of a directory and creates it if missing. Damaged sessions are quarantined first.
    pub(super) fn open(directory: Directory, options: &Options) -> Result<Self, OpenError> {
        if !directory.exists() {
            // The file is created under another name and then renamed, so that a crash leaves no half-written file.
            let fresh = directory.fresh()?;
            let database = builder(options).create(&fresh).map_err(Fault::from)?;
            Self::start(database, None, None, options)?.close()?;
            directory.adopt(&fresh)?;
        }
        let (database, watched) = opening::open(&directory, options)?;
        Self::start(database, Some(directory), Some(watched), options)
    }

    /// Opens the database on a storage backend that the caller provides.
    pub fn with_backend(backend: impl StorageBackend, options: &Options) -> Result<Self, OpenError> {
        let database = builder(options).create_with_backend(backend).map_err(Fault::from)?;
        Self::start(database, None, None, options)
    }

    fn start(
        database: Database,
        directory: Option<Directory>,
        watched: Option<Arc<Watched>>,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let wall = Arc::new(Wall::new(Arc::clone(&options.clock)));
        let era = ready(&database, wall.now().store.0, options.two_phase)?;
        let mut fence = Fence::new(Arc::clone(&options.closed_off));
        fence.take_over(&check::closed(&database.begin_read().map_err(Fault::from)?)?);
        let standing = standing(&database, &mut fence)?;
        let mut room =
            Room::of(directory.as_ref(), options.reserve_bytes, Arc::clone(&options.short_of_room));
        let mut meter = Meter::open(&database, options.quotas)?;
        room.is_full(wall.now().mono);
        meter.free = room.spare();
        meter.tell(&options.filled);
        Ok(Self {
            database: Arc::new(database),
            heads: Heads::default(),
            standing,
            meter,
            leases: Arc::new(Leases::new(era)),
            fence,
            room,
            watched,
            looked: wall.now().mono,
            copies: Arc::default(),
            flushed: wall.now().mono,
            wall,
            durability: options.durability,
            two_phase: options.two_phase,
            soft: false,
            dead: false,
            committed: Arc::clone(&options.committed),
            filled: Arc::clone(&options.filled),
            _directory: directory,
        })
    }

    pub(super) fn leases(&self) -> Arc<Leases> {
        Arc::clone(&self.leases)
    }
    pub(super) fn copier(&self, options: &Options) -> Copier {
        Copier::new(&self.database, options.clone(), Arc::clone(&self.copies))
    }
    pub(super) fn wall(&self) -> Arc<Wall> {
        Arc::clone(&self.wall)
    }

    /// Performs a batch in one transaction and answers every op. After an error the engine has failed: the unanswered
    /// ops get `Unknown`, and later ops get `Unavailable`.
    pub fn perform(
        &mut self,
        ops: Vec<Op>,
        answer: &mut dyn FnMut(Op, Result<Reply, StoreError>),
    ) -> Result<(), Fault> {
        if self.dead {
            ops.into_iter().for_each(|op| answer(op, Err(StoreError::Unavailable)));
            return Err(Fault::Dead);
        }
        let mut work = Work { count: ops.len(), left: ops.into(), late: Vec::new(), is_writing: false };
        let done = self.run(&mut work, answer).map_err(|fault| self.explain(fault));
        self.dead = done.is_err();
        for (op, reply) in work.late {
            answer(op, if self.dead { Err(StoreError::Unknown) } else { Ok(reply) });
        }
        work.left.into_iter().for_each(|op| answer(op, Err(StoreError::Unknown)));
        done
    }

    /// Performs the remaining ops, and repeats without a damaged session: a transaction that met damage is discarded.
    fn run(&mut self, work: &mut Work, answer: Answer<'_>) -> Result<(), Fault> {
        loop {
            let tried = catch_unwind(AssertUnwindSafe(|| self.attempt(work, answer)));
            let Err(fault) = tried.unwrap_or(Err(Fault::Panicked)) else { return Ok(()) };
            if work.is_writing || !fault.is_damage() {
                return Err(fault);
            }
            self.take_back(work, answer, fault)?;
        }
    }

    /// Discards a transaction that met damage and quarantines the session in which the damage was found. Each call
    /// leaves one op or one session less to try.
    fn take_back(&mut self, work: &mut Work, answer: Answer<'_>, fault: Fault) -> Result<(), Fault> {
        let Some(op) = work.left.pop_front() else { return Err(fault) };
        match op.key() {
            Some(key) if !self.fence.is_closed(key) => {
                self.fence.close(key, &fault)?;
                work.left.push_front(op);
            }
            Some(_) | None => {
                tracing::error!(op = op.name(), %fault, "the store cannot read the requested data");
                answer(op, Err(StoreError::Unavailable));
            }
        }
        for (op, _) in work.late.drain(..).rev() {
            work.left.push_front(op);
        }
        self.heads.forget();
        let (database, fence) = (&self.database, &mut self.fence);
        let read = catch_unwind(AssertUnwindSafe(|| standing(database, fence)));
        self.standing = read.unwrap_or(Err(Fault::Panicked))?;
        Ok(())
    }

    fn attempt(&mut self, work: &mut Work, answer: Answer<'_>) -> Result<(), Fault> {
        let mono = self.wall.now().mono;
        let soft = self.durability == Durability::Os && mono - self.flushed < FLUSH;
        let txn = begin(&self.database, self.two_phase, soft)?;
        let (heads, standing, fence) = (&mut self.heads, &mut self.standing, &mut self.fence);
        let (tables, meter) = (Tables::open(&txn)?, &mut self.meter);
        let mut batch = Batch::new(heads, standing, &self.leases, fence, tables, meter);
        while let Some(op) = work.left.front() {
            let now = self.wall.now();
            let full = self.room.is_full(now.mono);
            batch.meter.free = self.room.spare();
            let (reply, basis) = batch.perform(now, full, op)?;
            let Some(op) = work.left.pop_front() else { break };
            match basis {
                Basis::Durable => answer(op, Ok(reply)),
                Basis::Batch => work.late.push((op, reply)),
            }
        }
        work.is_writing = true;
        let dirty = batch.dirty;
        batch.heads.write(&mut batch.tables)?;
        batch.meter.write(&mut batch.tables)?;
        drop(batch);
        if !dirty {
            return Ok(txn.abort()?);
        }
        self.commit(txn, work.count)?;
        self.soft = soft;
        if !soft {
            self.flushed = mono;
        }
        Ok(())
    }

    /// Replaces a fault by the loss of the data file, if the file is lost.
    fn explain(&self, fault: Fault) -> Fault {
        self.gone().unwrap_or(fault)
    }

    fn gone(&self) -> Option<Fault> {
        let watched = self.watched.as_ref()?;
        let what = watched.missing()?;
        Some(Fault::Gone { path: watched.path().to_owned(), what })
    }

    /// Checks that the file is still where the next start looks for it, at most every 400 ms.
    pub(super) fn look(&mut self) -> Result<(), Fault> {
        let now = self.wall.now().mono;
        if self.dead || now - self.looked < LOOK {
            return Ok(());
        }
        self.looked = now;
        match self.gone() {
            None => Ok(()),
            Some(fault) => {
                self.dead = true;
                Err(fault)
            }
        }
    }

    fn commit(&self, txn: WriteTransaction, ops: usize) -> Result<(), Fault> {
        let began = self.wall.now().mono;
        txn.commit()?;
        (self.committed)(Commit { ops, took: self.wall.now().mono - began });
        self.meter.tell(&self.filled);
        Ok(())
    }

    /// Returns the time after which [`Self::flush`] or [`Self::look`] is due if no op arrives.
    pub(super) fn flush_within(&self) -> Option<Duration> {
        if self.soft { Some(FLUSH) } else { self.watched.as_ref().map(|_| LOOK) }
    }

    /// Flushes to disk the commits that are only in memory.
    pub fn flush(&mut self) -> Result<(), Fault> {
        if self.dead || !self.soft {
            return Ok(());
        }
        self.dead = true;
        let flushed = begin(&self.database, self.two_phase, false).and_then(|txn| self.commit(txn, 0));
        flushed.map_err(|fault| self.explain(fault))?;
        (self.dead, self.soft, self.flushed) = (false, false, self.wall.now().mono);
        Ok(())
    }

    /// Reads every record and reports what does not fit together.
    pub fn check(&self) -> Report {
        check::examine(&self.database)
    }

    /// Closes the database cleanly; without it the next opening has to read the whole file. Cancels copies in
    /// progress.
    pub fn close(mut self) -> Result<(), Fault> {
        if self.dead {
            return Ok(());
        }
        self.flush()?;
        self.copies.end(CLOSE);
        match Arc::into_inner(self.database) {
            Some(database) => Ok(database.close()?),
            None => {
                tracing::warn!("a copy of the store did not stop in time; the next start reads the whole store file");
                Ok(())
            }
        }
    }
}

pub(super) fn builder(options: &Options) -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(options.cache_bytes);
    builder
}

fn begin(database: &Database, two_phase: bool, soft: bool) -> Result<WriteTransaction, Fault> {
    let mut txn = database.begin_write()?;
    if soft {
        txn.set_durability(redb::Durability::None)?;
    } else if two_phase {
        txn.set_two_phase_commit(true);
        txn.set_quick_repair(true);
    }
    Ok(txn)
}

/// Creates missing tables and derived data, so that the database is as this release writes it. Returns the era.
pub(super) fn ready(database: &Database, era: u64, two_phase: bool) -> Result<u64, OpenError> {
    if meta(database, "format")?.is_none() {
        let txn = begin(database, two_phase, false)?;
        for table in tables::ALL {
            drop(txn.open_table(table).map_err(Fault::from)?);
        }
        write_meta(&txn, "format", FORMAT)?;
        write_meta(&txn, "era", era)?;
        write_meta(&txn, INDEXED, 1)?;
        write_meta(&txn, METERED, 1)?;
        txn.commit().map_err(Fault::from)?;
    }
    let found = meta(database, "format")?.unwrap_or_default();
    if found != FORMAT {
        return Err(OpenError::Format { found, known: FORMAT });
    }
    if meta(database, INDEXED)?.is_none() {
        tracing::info!("building the index of sessions (once after the upgrade)");
        let txn = begin(database, two_phase, false)?;
        index::build(&txn)?;
        write_meta(&txn, INDEXED, 1)?;
        txn.commit().map_err(Fault::from)?;
    }
    if meta(database, METERED)?.is_none() {
        tracing::info!("counting the stored bytes of users (once after the upgrade)");
        let txn = begin(database, two_phase, false)?;
        meter::build(&txn)?;
        write_meta(&txn, METERED, 1)?;
        txn.commit().map_err(Fault::from)?;
    }
    Ok(meta(database, "era")?.unwrap_or_default())
}

/// Loads the index of owned and waiting sessions. Sessions whose head is damaged are quarantined.
fn standing(database: &Database, fence: &mut Fence) -> Result<Standing, Fault> {
    let txn = database.begin_read()?;
    let (work, heads) = (txn.open_table(WORK)?, txn.open_table(HEADS)?);
    let mut standing = Standing::default();
    for item in work.iter()? {
        let (prefix, _) = item?;
        let spot = Spot { table: "work", key: prefix.value() };
        let Some((key, _)) = tables::split(spot.key) else {
            tracing::error!(fault = %spot.damaged("not a session key"), "a damaged index entry was skipped");
            continue;
        };
        if fence.is_closed(&key) {
            continue;
        }
        let head = heads.get(spot.key)?;
        let head = match &head {
            Some(head) => Head::unseal(Spot { table: "heads", key: spot.key }, head.value()),
            None => Err(spot.damaged("the session head is missing")),
        };
        match head {
            Ok(head) => standing.turn(&key, None, head.standing()),
            Err(fault) => fence.close(&key, &fault)?,
        }
    }
    Ok(standing)
}

pub(super) fn meta(database: &Database, name: &str) -> Result<Option<u64>, Fault> {
    let txn = database.begin_read()?;
    let table = match txn.open_table(META) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let spot = Spot { table: "meta", key: name.as_bytes() };
    let Some(value) = table.get(spot.key)? else { return Ok(None) };
    let number = Eye(spot.unseal(value.value())?).u64();
    number.map(Some).ok_or_else(|| spot.damaged("form"))
}

pub(super) fn write_meta(txn: &WriteTransaction, name: &str, number: u64) -> Result<(), Fault> {
    let key = name.as_bytes();
    txn.open_table(META)?.insert(key, &*Pen::new(8).u64(number).seal(key))?;
    Ok(())
}

//! What the writer does: batches in, answers out.
use crate::store::embedded::batch::{Basis, Batch};
use crate::store::embedded::check;
use crate::store::embedded::copy::Copier;
use crate::store::embedded::directory::{Directory, Room};
use crate::store::embedded::fault::{Fault, OpenError};
use crate::store::embedded::head::Head;
use crate::store::embedded::heads::Heads;
use crate::store::embedded::index;
use crate::store::embedded::leases::Leases;
use crate::store::embedded::meter::{self, Meter};
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

/// What this release writes.
const FORMAT: u64 = 1;
/// The first releases kept no index of sessions.
const INDEXED: &str = "indexed";
/// Releases before this one did not count stored bytes.
const METERED: &str = "metered";
/// At [`Durability::Os`]: between two commits that reach the disk.
const FLUSH: Duration = Duration::from_millis(100);

/// The embedded store without its thread: one caller, and answers before `perform` returns.
pub struct Engine {
    /// Of the engine; a copy that is being made holds it, too.
    database: Arc<Database>,
    heads: Heads,
    standing: Standing,
    leases: Arc<Leases>,
    wall: Arc<Wall>,
    room: Room,
    meter: Meter,
    durability: Durability,
    two_phase: bool,
    /// The last commit that reached the disk, if a later one has not.
    flushed: Mono,
    soft: bool,
    dead: bool,
    committed: Arc<dyn Fn(Commit) + Send + Sync>,
    /// Holds the directory's lock until the database is closed.
    _directory: Option<Directory>,
}

/// A batch and what has become of it, kept outside of what may fail.
struct Work {
    /// Ops in all.
    count: usize,
    left: VecDeque<Op>,
    late: Vec<(Op, Reply)>,
}

type Answer<'a> = &'a mut dyn FnMut(Op, Result<Reply, StoreError>);

impl Engine {
    /// Opens the database of a directory, or makes it there.
    pub(super) fn open(directory: Directory, options: &Options) -> Result<Self, OpenError> {
        if !directory.exists() {
            // Made beside and then moved: a crash in between must not leave half a file behind.
            let fresh = directory.fresh()?;
            let database = builder(options).create(&fresh).map_err(Fault::from)?;
            Self::start(database, None, options)?.close()?;
            directory.adopt(&fresh)?;
        }
        let database = builder(options).open(directory.file()).map_err(Fault::from)?;
        Self::start(database, Some(directory), options)
    }

    /// Opens the database on a disk of the caller's own making.
    pub fn with_backend(backend: impl StorageBackend, options: &Options) -> Result<Self, OpenError> {
        let database = builder(options).create_with_backend(backend).map_err(Fault::from)?;
        Self::start(database, None, options)
    }

    fn start(database: Database, directory: Option<Directory>, options: &Options) -> Result<Self, OpenError> {
        let wall = Arc::new(Wall::new(Arc::clone(&options.clock)));
        let era = ready(&database, wall.now().store.0, options.two_phase)?;
        let standing = standing(&database)?;
        let meter = Meter::open(&database, options.quotas)?;
        Ok(Self {
            database: Arc::new(database),
            heads: Heads::default(),
            standing,
            meter,
            leases: Arc::new(Leases::new(era)),
            room: Room::of(directory.as_ref(), options.reserve_bytes, Arc::clone(&options.short_of_room)),
            flushed: wall.now().mono,
            wall,
            durability: options.durability,
            two_phase: options.two_phase,
            soft: false,
            dead: false,
            committed: Arc::clone(&options.committed),
            _directory: directory,
        })
    }

    pub(super) fn leases(&self) -> Arc<Leases> {
        Arc::clone(&self.leases)
    }
    pub(super) fn copier(&self, options: &Options) -> Copier {
        Copier::new(&self.database, options.clone())
    }
    pub(super) fn wall(&self) -> Arc<Wall> {
        Arc::clone(&self.wall)
    }

    /// Performs a batch in one transaction, and answers all of it. After an error the engine is dead:
    /// what was not answered yet is `Unknown`, and whatever comes is `Unavailable`.
    pub fn perform(
        &mut self,
        ops: Vec<Op>,
        answer: &mut dyn FnMut(Op, Result<Reply, StoreError>),
    ) -> Result<(), Fault> {
        if self.dead {
            ops.into_iter().for_each(|op| answer(op, Err(StoreError::Unavailable)));
            return Err(Fault::Dead);
        }
        let mut work = Work { count: ops.len(), left: ops.into(), late: Vec::new() };
        let done = catch_unwind(AssertUnwindSafe(|| self.run(&mut work, answer)));
        let done = done.unwrap_or(Err(Fault::Panicked));
        self.dead = done.is_err();
        for (op, reply) in work.late {
            answer(op, if self.dead { Err(StoreError::Unknown) } else { Ok(reply) });
        }
        work.left.into_iter().for_each(|op| answer(op, Err(StoreError::Unknown)));
        done
    }

    fn run(&mut self, work: &mut Work, answer: Answer<'_>) -> Result<(), Fault> {
        let mono = self.wall.now().mono;
        let soft = self.durability == Durability::Os && mono - self.flushed < FLUSH;
        let txn = begin(&self.database, self.two_phase, soft)?;
        let mut batch = Batch::new(
            &mut self.heads,
            &mut self.standing,
            &self.leases,
            Tables::open(&txn)?,
            &mut self.meter,
        );
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

    fn commit(&self, txn: WriteTransaction, ops: usize) -> Result<(), Fault> {
        let began = self.wall.now().mono;
        txn.commit()?;
        (self.committed)(Commit { ops, took: self.wall.now().mono - began });
        Ok(())
    }

    /// When [`Self::flush`] is due at the latest, if nothing else is asked.
    pub(super) fn flush_within(&self) -> Option<Duration> {
        self.soft.then_some(FLUSH)
    }

    /// Brings to the disk what was committed to memory only.
    pub fn flush(&mut self) -> Result<(), Fault> {
        if self.dead || !self.soft {
            return Ok(());
        }
        self.dead = true;
        self.commit(begin(&self.database, self.two_phase, false)?, 0)?;
        (self.dead, self.soft, self.flushed) = (false, false, self.wall.now().mono);
        Ok(())
    }

    /// Reads everything and tells what does not fit together.
    pub fn check(&self) -> Report {
        check::examine(&self.database)
    }

    /// Closes the database in an orderly way; without it the next to open has to look at all of it.
    pub fn close(mut self) -> Result<(), Fault> {
        if self.dead {
            return Ok(());
        }
        self.flush()?;
        match Arc::into_inner(self.database) {
            Some(database) => Ok(database.close()?),
            // A copy is being made; its end closes the database, or the process's end does.
            None => Ok(()),
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

/// Makes what is not there yet, so that the database is as this release writes it; its era.
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
        tracing::info!("making the index of sessions, once");
        let txn = begin(database, two_phase, false)?;
        index::build(&txn)?;
        write_meta(&txn, INDEXED, 1)?;
        txn.commit().map_err(Fault::from)?;
    }
    if meta(database, METERED)?.is_none() {
        tracing::info!("counting the stored bytes of users, once");
        let txn = begin(database, two_phase, false)?;
        meter::build(&txn)?;
        write_meta(&txn, METERED, 1)?;
        txn.commit().map_err(Fault::from)?;
    }
    Ok(meta(database, "era")?.unwrap_or_default())
}

/// Who holds what.
fn standing(database: &Database) -> Result<Standing, Fault> {
    let txn = database.begin_read()?;
    let (work, heads) = (txn.open_table(WORK)?, txn.open_table(HEADS)?);
    let mut standing = Standing::default();
    for item in work.iter()? {
        let (prefix, _) = item?;
        let spot = Spot { table: "work", key: prefix.value() };
        let head = heads.get(spot.key)?.ok_or_else(|| spot.damaged("no such session"))?;
        let head = Head::unseal(Spot { table: "heads", key: spot.key }, head.value())?;
        let (key, _) = tables::split(spot.key).ok_or_else(|| spot.damaged("not a session"))?;
        standing.turn(&key, None, head.standing());
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

//! The engine of the embedded store: performs batches of ops in transactions and answers them. Called by the writer
//! thread, and directly by tests and tools that need no thread.
use crate::store::UsageCallback;
use crate::store::embedded::batch::{BatchTransaction, ReplyTiming};
use crate::store::embedded::check;
use crate::store::embedded::conversations::{self, CommittedRows};
use crate::store::embedded::copy::{ActiveCopies, Copier};
use crate::store::embedded::datafile::DataFileMonitor;
use crate::store::embedded::directory::{DataDirectory, DiskSpace};
use crate::store::embedded::fault::{EmbeddedOpenError, StoreFault};
use crate::store::embedded::head::SessionHead;
use crate::store::embedded::head_cache::HeadCache;
use crate::store::embedded::index;
use crate::store::embedded::leases::Leases;
use crate::store::embedded::meter::{self, UsageMeter};
use crate::store::embedded::opening;
use crate::store::embedded::quarantine::Quarantine;
use crate::store::embedded::record::{RecordLocation, RecordReader, RecordWriter};
use crate::store::embedded::store_clock::StoreClock;
use crate::store::embedded::sweep_index::SweepIndex;
use crate::store::embedded::tables::{self, HEADS, META, Tables, WORK};
use crate::store::embedded::{CheckReport, Commit, CommitDurability, EmbeddedOptions};
use redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, WriteTransaction};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::protocol::conversation::ConversationKey;
use turnway_core::store::binding::BindingAction;
use turnway_core::store::quota::Usage;
use turnway_core::store::{ConversationOp, Op, Reply, StoreError};
use turnway_core::time::Mono;

/// Version of the format that this release writes.
pub(super) const FORMAT: u64 = 1;
/// Meta entry set once the index of sessions exists; the first releases kept none.
pub(super) const INDEXED: &str = "indexed";
/// Meta entry set once stored bytes are counted; earlier releases did not count them.
pub(super) const METERED: &str = "metered";
/// Meta entry set once the tables of conversations exist; earlier releases had none.
pub(super) const CONVERSABLE: &str = "conversations";
/// Interval between two commits that reach the disk, at [`CommitDurability::Os`].
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two checks that the file is in place: short enough to report a removed file within a second.
const FILE_CHECK_INTERVAL: Duration = Duration::from_millis(400);
/// Time for running copies to notice that they are cancelled.
const COPY_CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// The embedded store without its thread: one caller, and all replies are given before `perform` returns.
pub struct Engine {
    /// Shared with copies in progress.
    database: Arc<Database>,
    heads: HeadCache,
    sweep_index: SweepIndex,
    leases: Arc<Leases>,
    clock: Arc<StoreClock>,
    quarantine: Quarantine,
    disk_space: DiskSpace,
    meter: UsageMeter,
    /// The monitored data file, if there is one; `checked_at` is the time of its last check.
    monitor: Option<Arc<DataFileMonitor>>,
    checked_at: Mono,
    copies: Arc<ActiveCopies>,
    durability: CommitDurability,
    two_phase: bool,
    /// Time of the last commit that reached the disk; `has_unflushed` tells whether a later one has not.
    flushed_at: Mono,
    has_unflushed: bool,
    has_failed: bool,
    on_commit: Arc<dyn Fn(Commit) + Send + Sync>,
    on_usage: UsageCallback,
    /// Holds the directory's lock until the database is closed.
    _directory: Option<DataDirectory>,
}

/// A batch and its progress, kept outside the code that may fail.
struct PendingBatch {
    /// Number of ops in the batch, answered or not.
    count: usize,
    remaining: VecDeque<Op>,
    after_commit: Vec<(Op, Reply)>,
    /// True once a fault can no longer be attributed to a single op.
    is_writing: bool,
}

type AnswerFn<'a> = &'a mut dyn FnMut(Op, Result<Reply, StoreError>);

impl Engine {
    /// Opens the database of a directory and creates it if missing. Damaged sessions are quarantined first.
    pub(super) fn open(directory: DataDirectory, options: &EmbeddedOptions) -> Result<Self, EmbeddedOpenError> {
        if !directory.has_database() {
            // The file is created under another name and then renamed, so that a crash leaves no half-written file.
            let fresh = directory.create_fresh_file()?;
            let database = builder(options).create(&fresh).map_err(StoreFault::from)?;
            Self::start(database, None, None, options)?.close()?;
            directory.install(&fresh)?;
        }
        let (database, watched) = opening::open(&directory, options)?;
        Self::start(database, Some(directory), Some(watched), options)
    }

    /// Opens the database on a storage backend that the caller provides.
    pub fn with_backend(backend: impl StorageBackend, options: &EmbeddedOptions) -> Result<Self, EmbeddedOpenError> {
        let database = builder(options).create_with_backend(backend).map_err(StoreFault::from)?;
        Self::start(database, None, None, options)
    }

    fn start(
        database: Database,
        directory: Option<DataDirectory>,
        watched: Option<Arc<DataFileMonitor>>,
        options: &EmbeddedOptions,
    ) -> Result<Self, EmbeddedOpenError> {
        let wall = Arc::new(StoreClock::new(Arc::clone(&options.clock)));
        let era = initialise(&database, wall.now().store.0, options.two_phase)?;
        let mut quarantine = Quarantine::new(Arc::clone(&options.on_quarantine));
        quarantine.restore(&check::quarantined_sessions(&database.begin_read().map_err(StoreFault::from)?)?);
        let sweep_index = load_sweep_index(&database, &mut quarantine)?;
        let mut disk_space =
            DiskSpace::of(directory.as_ref(), options.reserve_bytes, Arc::clone(&options.on_low_space));
        let mut meter = UsageMeter::new(load_usage(&database, options.two_phase)?, options.quotas);
        disk_space.is_low(wall.now().mono);
        meter.free = disk_space.spare();
        meter.report(&options.on_usage);
        Ok(Self {
            database: Arc::new(database),
            heads: HeadCache::default(),
            sweep_index,
            meter,
            leases: Arc::new(Leases::new(era)),
            quarantine,
            disk_space,
            monitor: watched,
            checked_at: wall.now().mono,
            copies: Arc::default(),
            flushed_at: wall.now().mono,
            clock: wall,
            durability: options.durability,
            two_phase: options.two_phase,
            has_unflushed: false,
            has_failed: false,
            on_commit: Arc::clone(&options.on_commit),
            on_usage: Arc::clone(&options.on_usage),
            _directory: directory,
        })
    }

    pub(super) fn leases(&self) -> Arc<Leases> {
        Arc::clone(&self.leases)
    }
    pub(super) fn copier(&self, options: &EmbeddedOptions) -> Copier {
        Copier::new(&self.database, options.clone(), Arc::clone(&self.copies))
    }
    pub(super) fn clock(&self) -> Arc<StoreClock> {
        Arc::clone(&self.clock)
    }

    /// Performs a batch in one transaction and answers every op. After an error the engine has failed: the unanswered
    /// ops get `Unknown`, and later ops get `Unavailable`.
    pub fn perform(
        &mut self,
        ops: Vec<Op>,
        answer: &mut dyn FnMut(Op, Result<Reply, StoreError>),
    ) -> Result<(), StoreFault> {
        if self.has_failed {
            ops.into_iter().for_each(|op| answer(op, Err(StoreError::Unavailable)));
            return Err(StoreFault::AlreadyFailed);
        }
        let mut work =
            PendingBatch { count: ops.len(), remaining: ops.into(), after_commit: Vec::new(), is_writing: false };
        let done = self.run(&mut work, answer).map_err(|fault| self.with_file_loss(fault));
        self.has_failed = done.is_err();
        for (op, reply) in work.after_commit {
            answer(op, if self.has_failed { Err(StoreError::Unknown) } else { Ok(reply) });
        }
        work.remaining.into_iter().for_each(|op| answer(op, Err(StoreError::Unknown)));
        done
    }

    /// Performs the remaining ops, and repeats without a damaged session: a transaction that met damage is discarded.
    fn run(&mut self, work: &mut PendingBatch, answer: AnswerFn<'_>) -> Result<(), StoreFault> {
        loop {
            let tried = catch_unwind(AssertUnwindSafe(|| self.attempt(work, answer)));
            let Err(fault) = tried.unwrap_or(Err(StoreFault::Panicked)) else { return Ok(()) };
            if work.is_writing || !fault.is_damage() {
                return Err(fault);
            }
            self.roll_back(work, answer, fault)?;
        }
    }

    /// Discards a transaction that met damage, with all that is derived from it in memory, and quarantines the session
    /// in which the damage was found. Each call leaves one op or one session less to try.
    fn roll_back(
        &mut self,
        work: &mut PendingBatch,
        answer: AnswerFn<'_>,
        fault: StoreFault,
    ) -> Result<(), StoreFault> {
        let Some(op) = work.remaining.pop_front() else { return Err(fault) };
        match op.key() {
            Some(key) if !self.quarantine.is_quarantined(key) => {
                self.quarantine.quarantine(key, &fault)?;
                work.remaining.push_front(op);
            }
            Some(_) | None => {
                tracing::error!(op = op.name(), %fault, "the store cannot read the requested data");
                answer(op, Err(StoreError::Unavailable));
            }
        }
        for (op, _) in work.after_commit.drain(..).rev() {
            work.remaining.push_front(op);
        }
        self.heads.clear();
        let database = &self.database;
        let quarantine = &mut self.quarantine;
        let two_phase = self.two_phase;
        let read = catch_unwind(AssertUnwindSafe(|| -> Result<_, StoreFault> {
            let sweep_index = load_sweep_index(database, quarantine)?;
            Ok((sweep_index, load_usage(database, two_phase)?))
        }));
        (self.sweep_index, self.meter.usage) = read.unwrap_or(Err(StoreFault::Panicked))?;
        Ok(())
    }

    /// Answers the look-ups at the head of a batch from the last commit. A look-up takes less time than it takes to
    /// begin and to abort a write transaction with all tables. The ops stay in order, because nothing precedes these.
    fn answer_look_ups(&self, work: &mut PendingBatch, answer: AnswerFn<'_>) {
        if work.remaining.front().and_then(looked_up_key).is_none() {
            return;
        }
        // The write transaction meets a fault again, and reports it.
        let Ok(rows) = CommittedRows::open(&self.database) else { return };
        while let Some(key) = work.remaining.front().and_then(looked_up_key) {
            let Ok(reply) = rows.resolve(self.clock.now().store, key) else { return };
            if let Some(op) = work.remaining.pop_front() {
                answer(op, Ok(Reply::Conversation(reply)));
            }
        }
    }

    fn attempt(&mut self, work: &mut PendingBatch, answer: AnswerFn<'_>) -> Result<(), StoreFault> {
        self.answer_look_ups(work, answer);
        if work.remaining.is_empty() {
            return Ok(());
        }
        let mono = self.clock.now().mono;
        let soft = self.durability == CommitDurability::Os && mono - self.flushed_at < FLUSH_INTERVAL;
        let txn = begin(&self.database, self.two_phase, soft)?;
        let heads = &mut self.heads;
        let sweep_index = &mut self.sweep_index;
        let quarantine = &mut self.quarantine;
        let tables = Tables::open(&txn)?;
        let meter = &mut self.meter;
        let mut batch = BatchTransaction::new(heads, sweep_index, &self.leases, quarantine, &txn, tables, meter);
        while let Some(op) = work.remaining.front() {
            let now = self.clock.now();
            let full = self.disk_space.is_low(now.mono);
            batch.meter.free = self.disk_space.spare();
            let (reply, basis) = batch.perform(now, full, op)?;
            let Some(op) = work.remaining.pop_front() else { break };
            match basis {
                ReplyTiming::Immediate => answer(op, Ok(reply)),
                ReplyTiming::AfterCommit => work.after_commit.push((op, reply)),
            }
        }
        work.is_writing = true;
        let dirty = batch.dirty;
        batch.heads.flush(&mut batch.tables)?;
        batch.meter.write(&mut batch.tables)?;
        drop(batch);
        if !dirty {
            return Ok(txn.abort()?);
        }
        self.commit(txn, work.count)?;
        self.has_unflushed = soft;
        if !soft {
            self.flushed_at = mono;
        }
        Ok(())
    }

    /// Replaces a fault by the loss of the data file, if the file is lost.
    fn with_file_loss(&self, fault: StoreFault) -> StoreFault {
        self.file_loss().unwrap_or(fault)
    }

    fn file_loss(&self) -> Option<StoreFault> {
        let watched = self.monitor.as_ref()?;
        let what = watched.loss()?;
        Some(StoreFault::FileLost { path: watched.path().to_owned(), what })
    }

    /// Checks that the file is still where the next start looks for it, at most every 400 ms.
    pub(super) fn check_file(&mut self) -> Result<(), StoreFault> {
        let now = self.clock.now().mono;
        if self.has_failed || now - self.checked_at < FILE_CHECK_INTERVAL {
            return Ok(());
        }
        self.checked_at = now;
        match self.file_loss() {
            None => Ok(()),
            Some(fault) => {
                self.has_failed = true;
                Err(fault)
            }
        }
    }

    fn commit(&self, txn: WriteTransaction, ops: usize) -> Result<(), StoreFault> {
        let began = self.clock.now().mono;
        txn.commit()?;
        (self.on_commit)(Commit { ops, took: self.clock.now().mono - began });
        self.meter.report(&self.on_usage);
        Ok(())
    }

    /// Returns the time after which [`Self::flush`] or [`Self::check_file`] is due if no op arrives.
    pub(super) fn next_wakeup(&self) -> Option<Duration> {
        if self.has_unflushed { Some(FLUSH_INTERVAL) } else { self.monitor.as_ref().map(|_| FILE_CHECK_INTERVAL) }
    }

    /// Flushes to disk the commits that are only in memory.
    pub fn flush(&mut self) -> Result<(), StoreFault> {
        if self.has_failed || !self.has_unflushed {
            return Ok(());
        }
        self.has_failed = true;
        let flushed = begin(&self.database, self.two_phase, false).and_then(|txn| self.commit(txn, 0));
        flushed.map_err(|fault| self.with_file_loss(fault))?;
        (self.has_failed, self.has_unflushed, self.flushed_at) = (false, false, self.clock.now().mono);
        Ok(())
    }

    /// Reads every record and reports what does not fit together.
    pub fn check(&self) -> CheckReport {
        check::check_records(&self.database)
    }

    /// Closes the database cleanly; without it the next opening has to read the whole file. Cancels copies in
    /// progress.
    pub fn close(mut self) -> Result<(), StoreFault> {
        if self.has_failed {
            return Ok(());
        }
        self.flush()?;
        self.copies.cancel(COPY_CANCEL_TIMEOUT);
        match Arc::into_inner(self.database) {
            Some(database) => Ok(database.close()?),
            None => {
                tracing::warn!("a copy of the store did not stop in time; the next start reads the whole store file");
                Ok(())
            }
        }
    }
}

/// Returns the conversation that an op only looks up.
fn looked_up_key(op: &Op) -> Option<&ConversationKey> {
    let Op::Conversation { op: ConversationOp::Change { key, action: BindingAction::Resolve }, .. } = op else {
        return None;
    };
    Some(key)
}

pub(super) fn builder(options: &EmbeddedOptions) -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(options.cache_bytes);
    builder
}

fn begin(database: &Database, two_phase: bool, soft: bool) -> Result<WriteTransaction, StoreFault> {
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
pub(super) fn initialise(database: &Database, era: u64, two_phase: bool) -> Result<u64, EmbeddedOpenError> {
    if read_meta(database, "format")?.is_none() {
        let txn = begin(database, two_phase, false)?;
        for table in tables::ALL {
            drop(txn.open_table(table).map_err(StoreFault::from)?);
        }
        write_meta(&txn, "format", FORMAT)?;
        write_meta(&txn, "era", era)?;
        write_meta(&txn, INDEXED, 1)?;
        write_meta(&txn, METERED, 1)?;
        write_meta(&txn, CONVERSABLE, 1)?;
        txn.commit().map_err(StoreFault::from)?;
    }
    let found = read_meta(database, "format")?.unwrap_or_default();
    if found != FORMAT {
        return Err(EmbeddedOpenError::Format { found, known: FORMAT });
    }
    if read_meta(database, INDEXED)?.is_none() {
        tracing::info!("building the index of sessions (once after the upgrade)");
        let txn = begin(database, two_phase, false)?;
        let skipped = index::build(&txn)?;
        write_meta(&txn, INDEXED, 1)?;
        txn.commit().map_err(StoreFault::from)?;
        log_skipped(&skipped);
    }
    if read_meta(database, METERED)?.is_none() {
        tracing::info!("counting the stored bytes of users (once after the upgrade)");
        count_usage(database, two_phase)?;
    }
    if read_meta(database, CONVERSABLE)?.is_none() {
        let txn = begin(database, two_phase, false)?;
        conversations::rebuild(&txn)?;
        write_meta(&txn, CONVERSABLE, 1)?;
        txn.commit().map_err(StoreFault::from)?;
    }
    Ok(read_meta(database, "era")?.unwrap_or_default())
}

/// Loads the stored bytes of users. If a stored count is damaged, the bytes of all users are counted again: a count
/// that restarted at 0 would give its user a new quota.
fn load_usage(database: &Database, two_phase: bool) -> Result<Usage, StoreFault> {
    match meter::read_usage(database) {
        Err(fault @ StoreFault::Damaged { .. }) => {
            tracing::error!(%fault, "a byte count is damaged; the stored bytes of all users are counted again");
            count_usage(database, two_phase)?;
            meter::read_usage(database)
        }
        read => read,
    }
}

/// Counts the stored bytes of all users and stores the counts.
fn count_usage(database: &Database, two_phase: bool) -> Result<(), StoreFault> {
    let txn = begin(database, two_phase, false)?;
    let skipped = meter::build(&txn)?;
    write_meta(&txn, METERED, 1)?;
    txn.commit()?;
    log_skipped(&skipped);
    Ok(())
}

/// Logs the damaged records that are missing in derived data. Their sessions are quarantined when they are used.
fn log_skipped(skipped: &CheckReport) {
    for complaint in &skipped.complaints {
        tracing::warn!(complaint, "a damaged record was skipped");
    }
}

/// Loads the index of owned and waiting sessions. Sessions whose head is damaged are quarantined.
fn load_sweep_index(database: &Database, quarantine: &mut Quarantine) -> Result<SweepIndex, StoreFault> {
    let txn = database.begin_read()?;
    let work = txn.open_table(WORK)?;
    let heads = txn.open_table(HEADS)?;
    let mut sweep_index = SweepIndex::default();
    for item in work.iter()? {
        let (prefix, _) = item?;
        let spot = RecordLocation { table: "work", key: prefix.value() };
        let Some((key, _)) = tables::split_session_key(spot.key) else {
            tracing::error!(fault = %spot.damaged("not a session key"), "a damaged index entry was skipped");
            continue;
        };
        if quarantine.is_quarantined(&key) {
            continue;
        }
        let head = heads.get(spot.key)?;
        let head = match &head {
            Some(head) => SessionHead::unseal(RecordLocation { table: "heads", key: spot.key }, head.value()),
            None => Err(spot.damaged("the session head is missing")),
        };
        match head {
            Ok(head) => sweep_index.update(&key, None, head.sweep_state()),
            Err(fault) => quarantine.quarantine(&key, &fault)?,
        }
    }
    Ok(sweep_index)
}

pub(super) fn read_meta(database: &Database, name: &str) -> Result<Option<u64>, StoreFault> {
    let txn = database.begin_read()?;
    let table = match txn.open_table(META) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let spot = RecordLocation { table: "meta", key: name.as_bytes() };
    let Some(value) = table.get(spot.key)? else { return Ok(None) };
    let number = RecordReader(spot.unseal(value.value())?).u64();
    number.map(Some).ok_or_else(|| spot.damaged("invalid encoding"))
}

pub(super) fn write_meta(txn: &WriteTransaction, name: &str, number: u64) -> Result<(), StoreFault> {
    let key = name.as_bytes();
    txn.open_table(META)?.insert(key, &*RecordWriter::new(8).u64(number).seal(key))?;
    Ok(())
}

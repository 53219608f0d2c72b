//! One history of the embedded store: operations, a power cut, and a check of the remaining data, repeatedly on the
//! same disk.
use crate::power_cuts::disk::Disk;
use crate::script::{START_TIME, Script, binding_reads, blob_reads, fence_probes, lists};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use turnway::store::embedded::{ClockFn, EmbeddedOpenError, EmbeddedOptions, Engine, StoreFault};
use turnway_core::id::{Epoch, Holder, InboxPosition, Nonce, Seq};
use turnway_core::protocol::conversation::ConversationKey;
use turnway_core::store::{ConversationOp, ModelStore, Op, Reply, StoreError};
use turnway_core::time::Now;

/// The rows of all conversations together.
const CONVERSATIONS: &str = "conversations";
/// Maximum number of batches between two cuts.
const BATCHES: u64 = 40;
/// Maximum number of cuts within one recovery.
const RECOVERIES: u64 = 4;

type Answer = (Op, Result<Reply, StoreError>);

/// Counters of the histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of histories.
    pub histories: u64,
    /// Operations whose answer was received.
    pub acknowledged: u64,
    /// Cuts while operations were performed.
    pub cuts: u64,
    /// Cuts while a store was opened.
    pub cuts_in_recovery: u64,
    /// Unacknowledged batches that persist.
    pub kept: u64,
    /// Unacknowledged batches that are lost.
    pub lost: u64,
}

/// A violated guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// A store that survives cuts, and its expected content.
struct History {
    script: Script,
    disk: Disk,
    clock: Arc<Mutex<Now>>,
    two_phase: bool,
    lies: u64,
    /// True once the new database has got its final name.
    born: bool,
    /// Model of all acknowledged operations, and of those found to persist.
    certain: ModelStore,
    /// The batch in flight at the cut.
    flight: Vec<Op>,
    /// Accepted messages and control entries.
    taken: BTreeMap<String, Op>,
    tally: Tally,
}

/// Runs one history on a disk on which this percentage of syncs has no effect.
pub fn run(seed: u64, lies: u64, tally: &mut Tally) -> Result<(), Violation> {
    let mut history = History::new(seed, lies);
    let generations = 3 + history.script.rng().below(3);
    let done = (0..generations).try_for_each(|_| history.generation());
    let mine = history.tally;
    tally.histories += 1;
    tally.acknowledged += mine.acknowledged;
    tally.cuts += mine.cuts;
    tally.cuts_in_recovery += mine.cuts_in_recovery;
    tally.kept += mine.kept;
    tally.lost += mine.lost;
    done
}

impl History {
    fn new(seed: u64, lies: u64) -> Self {
        let mut script = Script::new(seed, false);
        let two_phase = script.rng().chance(20);
        Self {
            script,
            disk: Disk::new(lies),
            clock: Arc::new(Mutex::new(START_TIME)),
            two_phase,
            lies,
            born: false,
            certain: ModelStore::new(false),
            flight: Vec::new(),
            taken: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    fn generation(&mut self) -> Result<(), Violation> {
        let mut engine = self.recover()?;
        self.compare(&engine)?;
        let cut = [8, 60, 400][self.script.rng().below(3) as usize];
        match self.script.rng().chance(40) {
            true => self.disk.cut_after_syncs(self.script.rng().below(20)),
            false => self.disk.cut_after(self.script.rng().below(cut)),
        }
        for _ in 0..BATCHES {
            if !self.batch(&mut engine)? {
                break;
            }
        }
        // Most histories end with operations in flight; the others are cut while closing, or just after.
        drop(engine.close());
        self.tally.cuts += 1;
        self.disk = self.disk.revive(self.script.rng());
        Ok(())
    }

    fn violated<T>(&self, what: impl Into<String>) -> Result<T, Violation> {
        Err(Violation(what.into()))
    }

    fn options(&self) -> EmbeddedOptions {
        let clock = Arc::clone(&self.clock);
        let clock: ClockFn = Arc::new(move || *clock.lock().expect("a clock"));
        let mut options = EmbeddedOptions::new(clock, Arc::new(|_| {}));
        options.two_phase = self.two_phase;
        // A small cache, so that pages are written before the commit and read again.
        options.cache_bytes = 256 * 1024;
        options
    }

    // === opening ===

    fn recover(&mut self) -> Result<Engine, Violation> {
        while !self.born {
            // A new database is created under another name and renamed when it is closed: until then it may have
            // any content, and is discarded.
            self.disk.cut_after(self.script.rng().below(60));
            self.born = self.open()?.is_ok_and(|engine| engine.close().is_ok());
            let cut = self.disk.revive(self.script.rng());
            self.disk = if self.born { cut } else { Disk::new(self.lies) };
        }
        for _ in 0..RECOVERIES {
            if self.script.rng().chance(50) {
                break;
            }
            self.disk.cut_after(self.script.rng().below(40));
            match self.open()? {
                Ok(engine) => drop(engine.close()),
                Err(error) if !self.disk.is_dead() => return self.violated(format!("cannot open: {error}")),
                Err(_) => self.tally.cuts_in_recovery += 1,
            }
            self.disk = self.disk.revive(self.script.rng());
        }
        match self.open()? {
            Ok(engine) => Ok(engine),
            Err(error) => self.violated(format!("cannot open: {error}")),
        }
    }

    fn open(&self) -> Result<Result<Engine, EmbeddedOpenError>, Violation> {
        self.open_on(self.disk.clone())
    }

    fn open_on(&self, disk: Disk) -> Result<Result<Engine, EmbeddedOpenError>, Violation> {
        let options = self.options();
        match catch_unwind(AssertUnwindSafe(|| Engine::with_backend(disk, &options))) {
            Ok(opened) => Ok(opened),
            Err(_) => self.violated("opening panicked"),
        }
    }

    // === operations ===

    /// Performs one batch; returns false when the power is cut.
    fn batch(&mut self, engine: &mut Engine) -> Result<bool, Violation> {
        let now = self.pass();
        let ops: Vec<_> = (0..1 + self.script.rng().below(6)).map(|_| self.script.next(now)).collect();
        let mut model = self.certain.clone();
        let expected: Vec<_> = ops.iter().map(|op| (op.clone(), Ok(model.apply(now, op)))).collect();
        let mut answers = Vec::new();
        let performed = engine.perform(ops.clone(), &mut |op, result| answers.push((op, result)));
        match performed {
            Ok(()) => {
                self.certain = model;
                self.tally.acknowledged += answers.len() as u64;
                self.matched(expected, &answers)?;
                Ok(true)
            }
            Err(StoreFault::Panicked) => self.violated("performing panicked"),
            Err(fault) if !self.disk.is_dead() => self.violated(format!("failed with power: {fault}")),
            Err(_) => {
                // Answers before the cut must not depend on this batch.
                answers.retain(|(_, result)| *result != Err(StoreError::Unknown));
                self.tally.acknowledged += answers.len() as u64;
                self.early(now, &ops, &answers)?;
                self.matched(expected, &answers)?;
                self.flight = ops;
                Ok(false)
            }
        }
    }

    /// Checks that an uncommitted batch has answered no operation that changes data or depends on a change.
    fn early(&self, now: Now, ops: &[Op], answers: &[Answer]) -> Result<(), Violation> {
        let mut model = self.certain.clone();
        let mut touched = BTreeSet::new();
        let mut free = Vec::new();
        for op in ops {
            // A row depends on itself alone, a read of several on each of them, a list on every row.
            let place = changed_place(op);
            let about = if let Op::Get { name } | Op::Put { name, .. } = op {
                name.clone()
            } else if let Some(key) = place {
                format!("conversation {key}")
            } else if let Op::Conversation { .. } = op {
                CONVERSATIONS.to_owned()
            } else {
                op.key().map(ToString::to_string).unwrap_or_default()
            };
            let look = |model: &mut ModelStore| {
                let value = model.apply(now, &Op::Get { name: about.clone() });
                let slot = op.key().and_then(|key| model.session(key)).cloned().unwrap_or_default();
                let is_all = about == CONVERSATIONS;
                let rows: Vec<_> = model.conversations().filter(|(key, _)| is_all || place == Some(*key)).collect();
                format!("{value:?} {slot:?} {rows:?}")
            };
            let before = look(&mut model);
            let reply = model.apply(now, op);
            if look(&mut model) != before {
                touched.insert(about.clone());
                touched.extend(place.map(|_| CONVERSATIONS.to_owned()));
            }
            let rests_on_batch = if let Op::Conversation { op: ConversationOp::Read { keys }, .. } = op {
                keys.iter().any(|key| touched.contains(&format!("conversation {key}")))
            } else {
                touched.contains(&about)
            };
            if !rests_on_batch && (!about.is_empty() || touched.is_empty()) {
                free.push((op.clone(), Ok(reply)));
            }
        }
        for answer in answers {
            match free.iter().position(|other| other == answer) {
                Some(at) => drop(free.swap_remove(at)),
                None => return self.violated(format!("answered before it was certain: {answer:?}")),
            }
        }
        Ok(())
    }

    /// Lets some time pass; the next cut and recovery have the same time for model and store.
    fn pass(&mut self) -> Now {
        let wait = Duration::from_millis(self.script.rng().below(20));
        let mut now = self.clock.lock().expect("a clock");
        now.mono = now.mono + wait;
        now.store = now.store.after(wait);
        *now
    }

    fn matched(&mut self, mut expected: Vec<Answer>, answers: &[Answer]) -> Result<(), Violation> {
        for answer in answers {
            let Some(at) = expected.iter().position(|other| other == answer) else {
                return self.violated(format!("answered {answer:?}, expected one of {expected:?}"));
            };
            let (op, result) = expected.swap_remove(at);
            if let Ok(reply) = &result {
                self.script.learn(&op, reply);
                self.note(op, reply);
            }
        }
        Ok(())
    }

    fn note(&mut self, op: Op, reply: &Reply) {
        if !matches!(reply, Reply::Accepted(_)) {
            return;
        }
        #[expect(clippy::wildcard_enum_match_arm, reason = "only these two are accepted")]
        let name = match &op {
            Op::Accept { key, input, .. } => format!("{key} {}", input.run_id),
            Op::Control { key, control, .. } => format!("{key} {}", control.id),
            _ => return,
        };
        self.taken.insert(name, op);
    }

    // === remaining data ===

    /// Checks that the batch in flight at the cut persists as a whole or not at all, and that every acknowledged
    /// one does.
    fn compare(&mut self, engine: &Engine) -> Result<(), Violation> {
        let report = engine.check();
        if report.damages > 0 {
            return self.violated(format!("after the cut: {report:?}"));
        }
        let now = *self.clock.lock().expect("a clock");
        let flight = std::mem::take(&mut self.flight);
        let Some(difference) = self.differs(&self.certain.clone())? else {
            self.tally.lost += u64::from(!flight.is_empty());
            return Ok(());
        };
        let mut with = self.certain.clone();
        flight.iter().for_each(|op| drop(with.apply(now, op)));
        if flight.is_empty() || self.differs(&with)?.is_some() {
            return self.violated(difference);
        }
        self.tally.kept += 1;
        self.certain = with;
        Ok(())
    }

    /// Compares all data of a copy of the store with a model; returns the first difference.
    fn differs(&mut self, model: &ModelStore) -> Result<Option<String>, Violation> {
        let mut ops = vec![Op::Sweep { limit: 100 }];
        ops.extend(lists(self.script.keys()));
        ops.extend(binding_reads(self.script.keys()));
        ops.extend(blob_reads(self.script.keys()));
        ops.extend((0..3).map(|n| Op::Get { name: format!("conv/{n}") }));
        for key in self.script.keys().to_vec() {
            let slot = model.session(&key).cloned().unwrap_or_default();
            let token = slot.token;
            let expect = slot.ownership();
            let nonce = Nonce(u128::MAX);
            ops.push(Op::ReadView { key: key.clone() });
            ops.push(Op::Read { key: key.clone(), after: Seq(0), limit: u32::MAX });
            ops.push(Op::Inbox { key: key.clone(), token, after: InboxPosition(0), control_after: InboxPosition(0) });
            // The token must match exactly; then the subscriber nodes are compared.
            ops.push(Op::Release { key: key.clone(), token, tail: Seq(u64::MAX), drain: true });
            ops.push(Op::Claim { key, holder: Holder::default(), nonce, expect, floor: Epoch(0) });
        }
        // Every accepted entry must be known, and whether it has ended.
        ops.extend(self.taken.values().cloned());
        ops.extend(fence_probes(self.script.keys()));
        let disk = self.disk.copy();
        let mut engine = match self.open_on(disk)? {
            Ok(engine) => engine,
            Err(error) => return self.violated(format!("cannot open a copy: {error}")),
        };
        let now = *self.clock.lock().expect("a clock");
        let mut model = model.clone();
        let mut expected: Vec<_> = ops.iter().map(|op| (op.clone(), Ok(model.apply(now, op)))).collect();
        let mut difference = None;
        let asked = engine.perform(ops, &mut |op, result| {
            let answer = (op, result);
            match expected.iter().position(|other| *other == answer) {
                Some(at) => drop(expected.swap_remove(at)),
                None => difference = Some(format!("found {answer:?}, expected one of {expected:?}")),
            }
        });
        match asked {
            Ok(()) => Ok(difference),
            Err(fault) => self.violated(format!("reading: {fault}")),
        }
    }
}

/// Returns the conversation whose row an op reads or changes.
fn changed_place(op: &Op) -> Option<&ConversationKey> {
    if let Op::Conversation { op: ConversationOp::Change { key, .. }, .. } = op { Some(key) } else { None }
}

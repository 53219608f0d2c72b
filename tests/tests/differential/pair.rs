//! A store and its model, given the same operations.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use turnway::store::Store;
use turnway::store::embedded;
use turnway_core::id::{InboxPosition, Seq, SessionKey};
use turnway_core::store::binding::{BindingOutcome, ConversationState};
use turnway_core::store::blob::{BlobOutcome, BlobReply};
use turnway_core::store::quota::{ByteMeasure, Quota, Quotas};
use turnway_core::store::{
    Acceptance, ConversationReply, ModelStore, Op, Reply, RunLocation, StoreError, StoreRefusal,
};
use turnway_core::time::{Millis, Now};
use turnway_simulator::script::{Emphasis, START_TIME, Script, binding_reads, blob_reads, lists};

const OPS: usize = 200;
/// Longer than any lease that a script takes.
const LEASES_OVER: Duration = Duration::from_secs(6);

/// Number and weight of inputs that fill an inbox down to less than a kilobyte; each group has more inputs
/// than fit.
const BRIM: [(usize, usize); 3] = [(11, 100 * 1024), (4, 7 * 1024), (4, 1024)];

type Answer = (Op, Result<Reply, StoreError>);

/// A store and the receiver of its answers.
pub(crate) type Opened = (Box<dyn Store>, Receiver<Answer>);

/// Differences between the stores beyond the model's promises.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// The store performs operations in the order of submission, so several may be submitted at once.
    pub(crate) in_order: bool,
    /// Leases use a clock of their own, so the store's clock may stand still or go back meanwhile.
    pub(crate) two_clocks: bool,
    /// The store is closed and reopened during the sequence.
    pub(crate) restarts: bool,
    /// Bytes that the store counts, and their limits.
    pub(crate) quotas: (ByteMeasure, Quotas),
}

/// Returns the quotas of a sequence: room for a few inputs in every second one, otherwise none.
pub(crate) fn quotas(seed: u64) -> Quotas {
    let small = Quotas { tenant: Quota::Bytes(12_000), user: Quota::Bytes(8_000) };
    if seed % 2 == 1 { small } else { Quotas::OFF }
}

/// A store under test and its model.
pub(crate) struct Pair {
    script: Script,
    model: ModelStore,
    store: Option<Box<dyn Store>>,
    open: Box<dyn Fn() -> Opened>,
    answers: Receiver<Answer>,
    /// Clock that the store reads; the model gets the same time.
    clock: Arc<Mutex<Now>>,
    now: Now,
    /// First era that the store reported; it is compared as era 0 of the model, which has none.
    era: Option<u64>,
    ways: Traits,
    /// Number of replies of each kind.
    pub(crate) given: BTreeMap<&'static str, u64>,
    /// Number of sessions deleted because of their age.
    pub(crate) forgotten: u64,
}

impl Pair {
    pub(crate) fn new(seed: u64, ways: Traits, open: impl Fn(embedded::ClockFn) -> Opened + 'static) -> Self {
        let clock = Arc::new(Mutex::new(START_TIME));
        let reads = Arc::clone(&clock);
        let open = Box::new(move || {
            let reads = Arc::clone(&reads);
            open(Arc::new(move || *reads.lock().expect("a clock")))
        });
        let (store, answers) = open();
        let (measure, quotas) = ways.quotas;
        let script = if seed % 12 == 5 { Script::bulky(seed, true) } else { Script::new(seed, true) };
        let model = ModelStore::metered(measure, quotas, None);
        let store = Some(store);
        let now = START_TIME;
        let given = BTreeMap::new();
        Self { script, model, store, open, answers, clock, now, era: None, ways, given, forgotten: 0 }
    }

    fn pass(&mut self, wait: Duration, back: u64) {
        self.now.mono = self.now.mono + wait;
        let system = self.now.store.after(wait).0 - back;
        self.now.store.0 = system;
        *self.clock.lock().expect("a clock") = self.now;
    }

    fn ask(&mut self, group: Vec<Op>) {
        if self.ways.in_order {
            return self.ask_at_once(group);
        }
        group.into_iter().for_each(|op| self.ask_at_once(vec![op]));
    }

    /// Submits a group at once, so that the store may batch it, and compares the answers with the model's.
    fn ask_at_once(&mut self, group: Vec<Op>) {
        let mut expected = Vec::new();
        for op in &group {
            let reply = self.model.apply(self.now, op);
            self.script.learn(op, &reply);
            *self.given.entry(kind(&reply)).or_default() += 1;
            expected.push((op.clone(), Ok(reply)));
        }
        let store = self.store.as_ref().expect("an open store");
        let count = group.len();
        group.into_iter().for_each(|op| store.submit(op));
        for _ in 0..count {
            let mut answer = self.answers.recv().expect("an answer to each op");
            if let Ok(Reply::Renewed { era, .. }) = &mut answer.1
                && *era == *self.era.get_or_insert(*era)
            {
                *era = 0;
            }
            // The model rings no node, and no node exists that the store could ring.
            if let Ok(Reply::Accepted(accepted)) = &mut answer.1 {
                assert!(accepted.offer_receivers.is_none_or(|heard| heard == 0), "{accepted:?}");
                accepted.offer_receivers = None;
            }
            match expected.iter().position(|other| *other == answer) {
                Some(at) => drop(expected.swap_remove(at)),
                None => panic!("answered {answer:#?}\nexpected one of {expected:#?}"),
            }
        }
    }

    /// Closes and reopens the store. Leases do not outlive a process, so the model's leases expire too.
    fn restart(&mut self) {
        drop(self.store.take());
        self.pass(LEASES_OVER, 0);
        let (store, answers) = (self.open)();
        (self.store, self.answers) = (Some(store), answers);
    }

    pub(crate) fn run(&mut self) {
        let mut group = Vec::new();
        for _ in 0..OPS {
            let op = self.script.next(self.now);
            // Leases are answered outside the queue, so these operations are submitted alone.
            let alone = matches!(op, Op::Renew { .. } | Op::Retire { .. } | Op::Lease { .. });
            if alone || self.script.rng().chance(30) {
                self.ask(std::mem::take(&mut group));
                let wait = self.script.rng().below(40);
                let back = self.script.rng().below(200);
                let wait = if wait == 0 { 4000 } else { wait };
                let back = if back < 20 && self.ways.two_clocks { back } else { 0 };
                self.pass(Duration::from_millis(wait), back);
                if self.ways.restarts && self.script.rng().chance(4) {
                    self.restart();
                }
            }
            group.push(op);
            if alone {
                self.ask(std::mem::take(&mut group));
            }
        }
        self.ask(group);
        if self.script.mood() == Emphasis::Bulky {
            self.fill();
        }
        if self.ways.restarts {
            self.restart();
        }
        self.age();
        self.look();
    }

    /// Empties and fills each inbox twice: as many bytes fit as in the model, and not one input more.
    fn fill(&mut self) {
        for n in 0..self.script.keys().len() {
            for _ in 0..2 {
                let key = self.script.keys()[n].clone();
                self.ask(vec![Op::ReadView { key }]);
                let claim = self.script.claim_of(n);
                self.ask(vec![claim]);
                let end = self.script.end_of_all(n);
                self.ask(vec![end]);
                for (inputs, weight) in BRIM {
                    let inputs = (0..inputs).map(|_| self.script.input_of(n, weight)).collect();
                    self.ask(inputs);
                }
            }
        }
    }

    /// Deletes sessions at rest, and checks that others are refused.
    fn age(&mut self) {
        self.pass(Duration::from_millis(500), 0);
        let before = Millis(self.now.store.0 - self.script.rng().below(4_000));
        let limit = 1 + u32::try_from(self.script.rng().below(4)).expect("small");
        let mut expected = BTreeSet::new();
        let mut from = None;
        loop {
            let idle = Op::ScanIdle { from: from.take(), before, limit };
            let Reply::Idle { sessions, next } = self.model.apply(self.now, &idle) else { panic!("no walk") };
            expected.extend(sessions);
            from = next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!(self.walk(before, limit), expected);
        for key in self.script.keys().to_vec() {
            for _ in 0..2 {
                let op = Op::DeleteIdle { key: key.clone(), before };
                self.forgotten += u64::from(self.model.clone().apply(self.now, &op) == Reply::Done);
                self.ask(vec![op]);
            }
        }
    }

    /// Walks through the store's sessions, in pages of any size.
    fn walk(&self, before: Millis, limit: u32) -> BTreeSet<SessionKey> {
        let store = self.store.as_ref().expect("an open store");
        let mut found = BTreeSet::new();
        let mut from = None;
        for _ in 0..1000 {
            store.submit(Op::ScanIdle { from: from.take(), before, limit });
            let (_, answer) = self.answers.recv().expect("an answer");
            let Ok(Reply::Idle { sessions, next }) = answer else { panic!("{answer:?}") };
            assert!(sessions.len() <= limit as usize);
            for session in sessions {
                assert!(found.insert(session), "each session once");
            }
            from = next;
            if from.is_none() {
                return found;
            }
        }
        panic!("the walk has no end");
    }

    /// Compares everything that can be read.
    fn look(&mut self) {
        let mut group = vec![Op::Sweep { limit: 100 }];
        group.extend(lists(self.script.keys()));
        group.extend(binding_reads(self.script.keys()));
        group.extend(blob_reads(self.script.keys()));
        for key in self.script.keys().to_vec() {
            group.push(Op::ReadView { key: key.clone() });
            group.push(Op::Read { key: key.clone(), after: Seq(0), limit: u32::MAX });
            let after = InboxPosition(0);
            let control_after = InboxPosition(0);
            group.push(Op::Inbox { key, token: Default::default(), after, control_after });
        }
        self.ask(group);
    }
}

/// Returns the kind of a reply: sequences in which a kind never occurs prove nothing about it.
fn kind(reply: &Reply) -> &'static str {
    match reply {
        Reply::Renewed { .. } => "renewed",
        Reply::LeaseLost => "lost",
        Reply::Done => "done",
        Reply::Leased { left: None } => "leased: no",
        Reply::Leased { left: Some(_) } => "leased",
        Reply::Accepted(Acceptance { duplicate: false, .. }) => "accepted",
        Reply::Accepted(Acceptance { ended: false, .. }) => "accepted: again",
        Reply::Accepted(Acceptance { .. }) => "accepted: ended",
        Reply::Refused(StoreRefusal::NotFound) => "refused: not found",
        Reply::Refused(StoreRefusal::Conflict) => "refused: conflict",
        Reply::Refused(StoreRefusal::Closed) => "refused: closed",
        Reply::Refused(StoreRefusal::Busy) => "refused: busy",
        Reply::Refused(StoreRefusal::TooMany) => "refused: too many",
        Reply::Refused(StoreRefusal::Quota) => "refused: quota",
        Reply::Refused(StoreRefusal::Full) => "refused: full",
        Reply::Refused(StoreRefusal::ReadOnly) => "refused: read only",
        Reply::Refused(StoreRefusal::Forbidden) => "refused: forbidden",
        Reply::Refused(StoreRefusal::Damaged) => "refused: damaged",
        Reply::Claimed(_) => "claimed",
        Reply::OwnershipConflict { .. } => "held",
        Reply::Appended { listeners: None, .. } => "appended",
        Reply::Appended { listeners: Some(_), .. } => "appended, and listeners",
        Reply::Fenced => "fenced",
        Reply::OutOfOrder => "order",
        Reply::InputMissing { .. } => "gone",
        Reply::Released => "released",
        Reply::NotReleased => "pending",
        Reply::Transferred { .. } => "transferred",
        Reply::Listening { .. } => "listening",
        Reply::View(view) if view.floor > Seq(0) => "view, trimmed",
        Reply::View(view) if view.snapshot.is_some() => "view, kept",
        Reply::View(_) => "view",
        Reply::Facts(heard) if heard.facts.is_empty() => "heard: nothing",
        Reply::Facts(_) => "heard",
        Reply::Inbox(_) => "waiting",
        Reply::ControlFound { ended: false } => "control found",
        Reply::ControlFound { ended: true } => "control found: ended",
        Reply::Found(RunLocation { ended: None, .. }) => "found",
        Reply::Found(_) => "found: ended",
        Reply::Sessions { sessions, .. } if sessions.is_empty() => "sessions: none",
        Reply::Sessions { more: false, .. } => "sessions",
        Reply::Sessions { more: true, .. } => "sessions, and more",
        Reply::Idle { .. } => "idle",
        Reply::Unowned { sessions } if sessions.is_empty() => "work: none",
        Reply::Unowned { .. } => "work",
        Reply::Conversation(ConversationReply::Row { outcome: BindingOutcome::NotApplied, .. }) => "row: not applied",
        Reply::Conversation(ConversationReply::Row { outcome: BindingOutcome::TooManyReports, .. }) => "row: reports",
        Reply::Conversation(ConversationReply::Row { row: None, .. }) => "row: none",
        Reply::Conversation(ConversationReply::Row { row: Some(row), .. }) => match row.state {
            ConversationState::Free => "row: free",
            ConversationState::Bound(_) => "row: bound",
            ConversationState::Moving { .. } => "row: moving",
            ConversationState::Arriving { .. } => "row: arriving",
            ConversationState::Moved { .. } => "row: moved",
        },
        Reply::Conversation(ConversationReply::Bindings(bindings)) if bindings.is_empty() => "bindings: none",
        Reply::Conversation(ConversationReply::Bindings(_)) => "bindings",
        Reply::Conversation(ConversationReply::Rows(rows)) if rows.iter().all(Option::is_none) => "rows: none",
        Reply::Conversation(ConversationReply::Rows(_)) => "rows",
        Reply::Conversation(ConversationReply::Due(due)) if due.is_empty() => "due: none",
        Reply::Conversation(ConversationReply::Due(_)) => "due",
        Reply::Blobs(blobs) => kind_of_blobs(blobs),
        Reply::Value { version: 0, .. } => "value: none",
        Reply::Value { .. } => "value",
    }
}

fn kind_of_blobs(reply: &BlobReply) -> &'static str {
    match reply.outcome {
        BlobOutcome::Missing => "blobs: missing",
        BlobOutcome::SessionFull => "blobs: session full",
        BlobOutcome::Applied if !reply.dropped.is_empty() => "blobs: bytes dropped",
        BlobOutcome::Applied if reply.table.blobs.is_empty() => "blobs: none",
        BlobOutcome::Applied => "blobs",
    }
}

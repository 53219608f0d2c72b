//! The embedded store answers exactly as its model does, whatever it is asked and however its ops
//! are batched, over restarts.
//!
//! `DIFFERENTIAL_SEQUENCES` scales it, `DIFFERENTIAL_SEED` begins elsewhere.
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use turnway::store::Store;
use turnway::store::embedded::{self, Durability, Embedded, Engine, Options};
use turnway::store::memory::Memory;
use turnway_core::id::{Place, Seq};
use turnway_core::store::{Accepted, Found, Op, Refused, Reply, Shelf, StoreError};
use turnway_core::time::Now;
use turnway_tests::script::{DAWN, Script, lists};
use turnway_tests::torn::Disk;

const OPS: usize = 200;
/// Longer than any lease a script takes.
const LEASES_OVER: Duration = Duration::from_secs(6);

type Answer = (Op, Result<Reply, StoreError>);

/// A store, and where its answers come out.
type Opened = (Box<dyn Store>, Receiver<Answer>);

/// A store under test, and the model of it.
struct Pair {
    script: Script,
    shelf: Shelf,
    store: Option<Box<dyn Store>>,
    open: Box<dyn Fn() -> Opened>,
    answers: Receiver<Answer>,
    /// The clock the store reads. The model's never goes back, as the store promises for itself.
    clock: Arc<Mutex<Now>>,
    now: Now,
    /// How often each kind of reply was given.
    given: BTreeMap<&'static str, u64>,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

impl Pair {
    fn new(
        seed: u64,
        open: impl Fn(embedded::Clock) -> (Box<dyn Store>, Receiver<Answer>) + 'static,
    ) -> Self {
        let clock = Arc::new(Mutex::new(DAWN));
        let reads = Arc::clone(&clock);
        let open = Box::new(move || {
            let reads = Arc::clone(&reads);
            open(Arc::new(move || *reads.lock().expect("a clock")))
        });
        let (store, answers) = open();
        let (script, shelf) = (Script::new(seed, true), Shelf::new(false));
        Self { script, shelf, store: Some(store), open, answers, clock, now: DAWN, given: BTreeMap::new() }
    }

    fn pass(&mut self, wait: Duration, back: u64) {
        self.now.mono = self.now.mono + wait;
        let system = self.now.store.after(wait).0 - back;
        self.now.store.0 = self.now.store.0.max(system);
        let system = Now { mono: self.now.mono, store: turnway_core::time::Millis(system) };
        *self.clock.lock().expect("a clock") = system;
    }

    /// Asks all of a group at once, so that the store may batch it, and compares.
    fn ask(&mut self, group: Vec<Op>) {
        let mut expected = Vec::new();
        for op in &group {
            let reply = self.shelf.apply(self.now, op);
            self.script.learn(op, &reply);
            *self.given.entry(kind(&reply)).or_default() += 1;
            expected.push((op.clone(), Ok(reply)));
        }
        let store = self.store.as_ref().expect("an open store");
        let count = group.len();
        group.into_iter().for_each(|op| store.submit(op));
        for _ in 0..count {
            let mut answer = self.answers.recv().expect("an answer to each op");
            // The model knows no era; a data directory has one for ever, its birth.
            if let Ok(Reply::Renewed { era, .. }) = &mut answer.1
                && *era == DAWN.store.0
            {
                *era = 0;
            }
            match expected.iter().position(|other| *other == answer) {
                Some(at) => drop(expected.swap_remove(at)),
                None => panic!("answered {answer:#?}\nexpected one of {expected:#?}"),
            }
        }
    }

    /// Closes the store and opens it again. No lease outlives a process, so none may in the model.
    fn restart(&mut self) {
        drop(self.store.take());
        self.pass(LEASES_OVER, 0);
        let (store, answers) = (self.open)();
        (self.store, self.answers) = (Some(store), answers);
    }

    fn run(&mut self, restarts: bool) {
        let mut group = Vec::new();
        for _ in 0..OPS {
            let op = self.script.next(self.now);
            // Leases are answered past the queue, so these are asked alone.
            let alone = matches!(op, Op::Renew { .. } | Op::Retire { .. } | Op::Lease { .. });
            if alone || self.script.rng().chance(30) {
                self.ask(std::mem::take(&mut group));
                let (wait, back) = (self.script.rng().below(40), self.script.rng().below(200));
                let wait = if wait == 0 { 4000 } else { wait };
                self.pass(Duration::from_millis(wait), if back < 20 { back } else { 0 });
                if restarts && self.script.rng().chance(4) {
                    self.restart();
                }
            }
            group.push(op);
            if alone {
                self.ask(std::mem::take(&mut group));
            }
        }
        self.ask(group);
        if restarts {
            self.restart();
        }
        self.look();
    }

    /// Everything that can be seen.
    fn look(&mut self) {
        let mut group = vec![Op::Sweep { limit: 100 }];
        group.extend(lists(self.script.keys()));
        for key in self.script.keys().to_vec() {
            group.push(Op::Open { key: key.clone(), reader: None });
            group.push(Op::Read { key: key.clone(), after: Seq(0), limit: u32::MAX });
            let (after, control_after) = (Place(0), Place(0));
            group.push(Op::Inbox { key, token: Default::default(), after, control_after });
        }
        self.ask(group);
    }
}

fn options(clock: embedded::Clock, seed: u64) -> Options {
    let mut options = Options::new(clock, Arc::new(|fault| panic!("{fault}")));
    options.two_phase = seed.is_multiple_of(8);
    options.durability = if seed % 8 == 1 { Durability::Os } else { Durability::Fsync };
    options
}

/// Mostly on a disk in memory, because a real one takes its time; every tenth time in a directory.
fn compare(seed: u64) -> BTreeMap<&'static str, u64> {
    let (dir, disk) = (tempfile::tempdir().expect("a directory"), Disk::new(0));
    let path = seed.is_multiple_of(10).then(|| dir.path().to_owned());
    let backend = disk.clone();
    let mut pair = Pair::new(seed, move |clock| {
        let (sender, receiver) = channel();
        let sink = Arc::new(move |op, result| sender.send((op, result)).expect("somebody listens"));
        let options = options(clock, seed);
        let store = match &path {
            Some(path) => Embedded::open(path, options, sink),
            None => Embedded::with_backend(backend.clone(), options, sink),
        };
        (Box::new(store.expect("a store")), receiver)
    });
    pair.run(true);
    let given = std::mem::take(&mut pair.given);
    drop(pair);
    let options = options(Arc::new(|| DAWN), seed);
    let report = match seed.is_multiple_of(10) {
        true => embedded::check(dir.path(), &options).expect("checked"),
        false => Engine::with_backend(disk, &options).expect("opened").check(),
    };
    assert_eq!(report.damages, 0, "{report:#?}");
    given
}

/// Every kind of reply there is: sequences that never meet one of them prove nothing about it.
fn kind(reply: &Reply) -> &'static str {
    match reply {
        Reply::Renewed { .. } => "renewed",
        Reply::Lost => "lost",
        Reply::Done => "done",
        Reply::Leased { left: None } => "leased: no",
        Reply::Leased { left: Some(_) } => "leased",
        Reply::Accepted(Accepted { duplicate: false, .. }) => "accepted",
        Reply::Accepted(Accepted { ended: false, .. }) => "accepted: again",
        Reply::Accepted(Accepted { .. }) => "accepted: ended",
        Reply::Refused(Refused::NotFound) => "refused: not found",
        Reply::Refused(Refused::Conflict) => "refused: conflict",
        Reply::Refused(Refused::Closed) => "refused: closed",
        Reply::Refused(Refused::Busy) => "refused: busy",
        Reply::Refused(Refused::TooMany) => "refused: too many",
        Reply::Refused(Refused::Full) => "refused: full",
        Reply::Claimed(_) => "claimed",
        Reply::Held { .. } => "held",
        Reply::Appended { listeners: None, .. } => "appended",
        Reply::Appended { listeners: Some(_), .. } => "appended, and listeners",
        Reply::Fenced => "fenced",
        Reply::Order => "order",
        Reply::Gone { .. } => "gone",
        Reply::Released => "released",
        Reply::Pending => "pending",
        Reply::Transferred { .. } => "transferred",
        Reply::Listening { .. } => "listening",
        Reply::View(view) if view.floor > Seq(0) => "view, trimmed",
        Reply::View(view) if view.snapshot.is_some() => "view, kept",
        Reply::View(_) => "view",
        Reply::Heard(heard) if heard.facts.is_empty() => "heard: nothing",
        Reply::Heard(_) => "heard",
        Reply::Waiting(_) => "waiting",
        Reply::Found(Found { ended: None, .. }) => "found",
        Reply::Found(_) => "found: ended",
        Reply::Sessions { sessions, .. } if sessions.is_empty() => "sessions: none",
        Reply::Sessions { more: false, .. } => "sessions",
        Reply::Sessions { more: true, .. } => "sessions, and more",
        Reply::Work { sessions } if sessions.is_empty() => "work: none",
        Reply::Work { .. } => "work",
        Reply::Value { version: 0, .. } => "value: none",
        Reply::Value { .. } => "value",
    }
}

/// Kinds of replies that the model gives; `refused: full` is not among them.
const KINDS: usize = 39;

#[test]
fn the_embedded_store_answers_like_its_model() {
    let (first, sequences) = (number("DIFFERENTIAL_SEED", 1), number("DIFFERENTIAL_SEQUENCES", 300));
    let mut given = BTreeMap::new();
    for seed in first..first + sequences {
        let Ok(some) = std::panic::catch_unwind(|| compare(seed)) else {
            panic!("DIFFERENTIAL_SEED={seed} DIFFERENTIAL_SEQUENCES=1");
        };
        some.into_iter().for_each(|(kind, count)| *given.entry(kind).or_default() += count);
    }
    let ops: u64 = given.values().sum();
    eprintln!("{sequences} sequences from seed {first}, {ops} ops: equal\n{given:#?}");
    assert!(sequences < 100 || given.len() == KINDS, "{} kinds of replies", given.len());
}

#[test]
fn the_store_in_memory_answers_like_its_model() {
    for seed in 1..20 {
        let mut pair = Pair::new(seed, |clock| {
            let (sender, receiver) = channel();
            let sink = move |op, result| sender.send((op, result)).expect("somebody listens");
            (Box::new(Memory::new(clock, Arc::new(sink))), receiver)
        });
        pair.run(false);
    }
}

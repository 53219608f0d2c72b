//! Tests a damaged or missing data file of the embedded store: which sessions are blocked, and that all others
//! work. `DAMAGE_PLACES` sets the number of damaged places, `DAMAGE_NUMBER` the seed.
use redb::{Database, ReadableTable, TableDefinition};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use turnway::store::embedded::{
    EmbeddedOpenError, EmbeddedOptions, EmbeddedStore, StoreFault, check, copy, repair, rescue,
};
use turnway::store::{Store, UsageCallback};
use turnway_core::id::{Principal, Seq, SessionId, SessionKey, TenantId, UserId};
use turnway_core::protocol::input::{BodyHash, Input};
use turnway_core::rng::Rng;
use turnway_core::store::{Op, Reply, StoreError, StoreRefusal};
use turnway_simulator::script::{START_TIME, Script};
use turnway_tests::real::size;

const FILE: &str = "turnway.redb";
/// Enough sessions for more than one page of session heads.
const SESSIONS: usize = 60;
/// Longest time to open a store of a few hundred pages, in an unoptimised build.
const START: Duration = Duration::from_secs(60);

type Answer = (Op, Result<Reply, StoreError>);

struct Rig {
    store: EmbeddedStore,
    answers: Receiver<Answer>,
    faults: Receiver<StoreFault>,
}

impl Rig {
    fn at(dir: &Path) -> Self {
        Self::try_at(dir).expect("a store")
    }

    fn try_at(dir: &Path) -> Result<Self, EmbeddedOpenError> {
        let (fault, faults) = channel();
        let (answer, answers) = channel();
        let options = EmbeddedOptions::new(Arc::new(now), Arc::new(move |found| drop(fault.send(found))));
        let sink = Arc::new(move |op, result| drop(answer.send((op, result))));
        Ok(Self { store: EmbeddedStore::open(dir, options, sink)?, answers, faults })
    }

    fn ask(&self, op: Op) -> Result<Reply, StoreError> {
        self.store.submit(op);
        self.answers.recv().expect("an answer").1
    }

    /// Returns the view of each session, in the order of their numbers.
    fn all(&self) -> Vec<Result<Reply, StoreError>> {
        (0..SESSIONS).map(|n| self.ask(Op::ReadView { key: key(n) })).collect()
    }
}

/// The store checks its file by this clock.
fn now() -> turnway_core::time::Now {
    use std::sync::OnceLock;
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let mono = turnway_core::time::Mono(BEGAN.get_or_init(Instant::now).elapsed());
    turnway_core::time::Now { mono, ..START_TIME }
}

fn options() -> EmbeddedOptions {
    EmbeddedOptions::new(Arc::new(now), Arc::new(|fault| panic!("{fault}")))
}

fn key(n: usize) -> SessionKey {
    let session = SessionId::parse(&format!("s{n:03}")).expect("a name");
    SessionKey { tenant: TenantId::default_tenant(), session }
}

fn principal() -> Principal {
    Principal { tenant: TenantId::default_tenant(), user: UserId::local(), operator: false, writes: true }
}

/// Returns random inputs with their hashes, the same ones in each call.
fn inputs() -> impl Iterator<Item = (Arc<Input>, BodyHash)> {
    let mut script = Script::new(1, false);
    std::iter::repeat_with(move || script.next(START_TIME)).filter_map(|op| {
        let Op::Accept { input, hash, .. } = op else { return None };
        Some((input, hash))
    })
}

/// Lets each of these users create one session, which has a waiting input.
fn accept_inputs(rig: &Rig, users: &[UserId]) {
    for ((n, user), (input, hash)) in users.iter().enumerate().zip(inputs()) {
        let principal = Principal { user: user.clone(), ..principal() };
        let accepted = rig.ask(Op::Accept { key: key(n), principal, input, hash, route: None });
        assert!(matches!(accepted, Ok(Reply::Accepted(_))), "{accepted:?}");
    }
}

/// Fills a store with sessions that have waiting inputs, and with some values.
fn fill(dir: &Path) {
    let rig = Rig::at(dir);
    accept_inputs(&rig, &vec![UserId::local(); SESSIONS]);
    for n in 0..20 {
        let put = Op::Put { name: format!("n{n:02}"), expect: 0, value: Some(vec![n; 300]) };
        assert!(matches!(rig.ask(put), Ok(Reply::Value { version: 1, .. })));
    }
}

fn is_closed_off(answer: &Result<Reply, StoreError>) -> bool {
    *answer == Ok(Reply::Refused(StoreRefusal::Damaged))
}

/// Sets the flag of a file whose process died without closing it.
fn unclose(bytes: &mut [u8]) {
    bytes[9] |= 2;
}

/// Creates a directory with this file in it.
fn with(bytes: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join(FILE), bytes).expect("written");
    dir
}

/// Opens a store and returns the bytes that the store counts for all users.
fn stored_bytes(dir: &Path) -> u64 {
    let counted = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&counted);
    let on_usage: UsageCallback = Arc::new(move |bytes, _| seen.store(bytes, Ordering::SeqCst));
    let opened = EmbeddedStore::open(dir, EmbeddedOptions { on_usage, ..options() }, Arc::new(|_, _| {}));
    drop(opened.expect("a store"));
    counted.load(Ordering::SeqCst)
}

/// Changes one byte of the records that are chosen by their keys, while the pages of the file stay intact. Returns the
/// records as they were.
fn damage_records(dir: &Path, table: &str, is_chosen: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let definition: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new(table);
    let database = Database::open(dir.join(FILE)).expect("a database");
    let txn = database.begin_write().expect("a transaction");
    let mut chosen = Vec::new();
    {
        let mut table = txn.open_table(definition).expect("a table");
        for item in table.iter().expect("read") {
            let (key, value) = item.expect("read");
            if is_chosen(key.value()) {
                chosen.push((key.value().to_vec(), value.value().to_vec()));
            }
        }
        for (key, value) in &chosen {
            let mut damaged = value.clone();
            damaged[12] ^= 1;
            table.insert(&**key, &*damaged).expect("written");
        }
    }
    txn.commit().expect("committed");
    chosen.into_iter().map(|(_, value)| value).collect()
}

/// Changes one byte of every place of the file at which these bytes are, so that the page does not fit its checksum.
fn damage_bytes(dir: &Path, record: &[u8]) {
    let mut bytes = std::fs::read(dir.join(FILE)).expect("read");
    let found = bytes.windows(record.len()).enumerate().filter(|(_, window)| *window == record);
    let places: Vec<usize> = found.map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the record is in the file");
    for at in places {
        bytes[at + 12] ^= 1;
    }
    std::fs::write(dir.join(FILE), bytes).expect("written");
}

/// Returns whether a value is the byte count of a user.
fn is_byte_count(name: &[u8]) -> bool {
    name.starts_with(b"usage\0")
}

/// Flips bits and changes bytes at random places, in closed and in unclosed stores.
#[test]
fn damaged_byte_blocks_at_most_one_session() {
    let dir = tempfile::tempdir().expect("a directory");
    fill(dir.path());
    let whole = std::fs::read(dir.path().join(FILE)).expect("read");
    let before = Rig::at(dir.path()).all();
    assert!(before.iter().all(|answer| matches!(answer, Ok(Reply::View(_)))));
    let mut rng = Rng::from_number(size("DAMAGE_NUMBER", 1) as u64);
    let used = whole.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    let pages: Vec<usize> = used.map(|(n, _)| n).collect();
    let mut harmless = 0;
    let mut closed = 0;
    let header = (0..320).step_by(11);
    let anywhere = std::iter::repeat_with(|| {
        let page = pages[rng.below(pages.len() as u64) as usize];
        page * 4096 + rng.below(4096) as usize
    });
    let places: Vec<usize> = header.chain(anywhere.take(size("DAMAGE_PLACES", 60))).collect();
    for (n, at) in places.into_iter().enumerate() {
        let mut bytes = whole.clone();
        let was_killed = n % 2 == 1;
        if was_killed {
            unclose(&mut bytes);
        }
        bytes[at] ^= if n % 3 == 0 { 0xa5 } else { 1 << (n % 8) };
        let damaged = with(&bytes);
        let began = Instant::now();
        let rig = match Rig::try_at(damaged.path()) {
            Ok(rig) => rig,
            Err(error) => panic!("byte {at}, killed {was_killed}: {error}"),
        };
        let answers = rig.all();
        assert!(began.elapsed() < START, "byte {at}: {:?}", began.elapsed());
        let differs: Vec<usize> = (0..SESSIONS).filter(|n| answers[*n] != before[*n]).collect();
        assert!(differs.len() <= 1, "byte {at}, killed {was_killed}: {differs:?}");
        assert!(differs.iter().all(|n| is_closed_off(&answers[*n])), "byte {at}: {answers:?}");
        closed += differs.len();
        harmless += usize::from(differs.is_empty());
        assert!(rig.faults.try_recv().is_err(), "byte {at}: the store failed");
    }
    assert!(closed > 0 && harmless > 0, "{closed} quarantined, {harmless} harmless");
}

/// Requests for the damaged session are refused, requests for other sessions in the same batch are not.
#[test]
fn damaged_session_is_blocked_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    fill(dir.path());
    let mut bytes = std::fs::read(dir.path().join(FILE)).expect("read");
    let run = b"\"run_id\":\"";
    let offset = bytes
        .windows(run.len())
        .enumerate()
        .filter(|(_, window)| window == run)
        .map(|(at, _)| at)
        .next()
        .expect("an input");
    bytes[offset + run.len()] ^= 1;
    let damaged = with(&bytes);
    let report = check(damaged.path(), &options()).expect("checked");
    assert!(report.damages > 0, "{report:?}");
    for restart in 0..2 {
        let rig = Rig::at(damaged.path());
        let closed: Vec<usize> =
            rig.all().iter().enumerate().filter(|(_, answer)| is_closed_off(answer)).map(|(n, _)| n).collect();
        let [session] = closed[..] else { panic!("restart {restart}: {closed:?}") };
        let find = Op::ListSessions {
            tenant: TenantId::default_tenant(),
            user: None,
            before: None,
            limit: 100,
            link: turnway_core::id::LinkId::default(),
        };
        let Ok(Reply::Sessions { sessions, more: false }) = rig.ask(find) else { panic!("no list") };
        assert_eq!(sessions.len(), SESSIONS - 1, "the list goes on without it");
        let Ok(Reply::Unowned { sessions }) = rig.ask(Op::Sweep { limit: 1000 }) else { panic!("no sweep") };
        assert_eq!(sessions.len(), SESSIONS - 1, "nobody takes it over");
        let read = Op::Read { key: key(session), after: Seq(0), limit: 9 };
        assert!(is_closed_off(&rig.ask(read)));
    }
    let report = check(damaged.path(), &options()).expect("checked");
    assert!(report.damages == 1 && report.complaints[0].contains("quarantined"), "{report:?}");
    // A copy leaves the damaged session out and reports this; a repaired store has no damage.
    let to = tempfile::tempdir().expect("a directory");
    let copied = copy(damaged.path(), to.path(), &options()).expect("copied");
    assert_eq!((copied.left_out, copied.damages, copied.sessions), (1, 0, SESSIONS as u64 - 1));
    let saved = tempfile::tempdir().expect("a directory");
    let rescued = rescue(damaged.path(), saved.path(), &options()).expect("saved");
    assert_eq!((rescued.left_out, rescued.sessions), (1, SESSIONS as u64 - 1));
    let repaired = repair(damaged.path(), &options()).expect("repaired");
    assert_eq!((repaired.left_out, repaired.sessions), (1, SESSIONS as u64 - 1));
    for dir in [damaged.path(), to.path(), saved.path()] {
        let report = check(dir, &options()).expect("checked");
        assert!(report.damages == 0 && report.sessions == SESSIONS as u64 - 1, "{report:?}");
        assert_eq!(Rig::at(dir).all().iter().filter(|answer| is_closed_off(answer)).count(), 0);
    }
}

/// Leaves out one of two sessions of a user, and the only session of another user. What is left out must not count for
/// their quotas.
#[test]
fn copy_counts_no_bytes_of_sessions_it_leaves_out() {
    let ann = UserId::parse("ann").expect("a name");
    let bob = UserId::parse("bob").expect("a name");
    let small = tempfile::tempdir().expect("a directory");
    accept_inputs(&Rig::at(small.path()), std::slice::from_ref(&ann));
    let expected = stored_bytes(small.path());
    let dir = tempfile::tempdir().expect("a directory");
    accept_inputs(&Rig::at(dir.path()), &[ann.clone(), ann, bob]);
    assert!(expected > 0 && stored_bytes(dir.path()) > expected);
    let is_of = |key: &[u8], session: &[u8]| key.windows(session.len()).any(|part| part == session);
    let damaged = damage_records(dir.path(), "lanes", |key| is_of(key, b"\0s001\0") || is_of(key, b"\0s002\0"));
    assert_eq!(damaged.len(), 2);
    let live = tempfile::tempdir().expect("a directory");
    let copied = Rig::at(dir.path()).store.copier().copy(live.path()).expect("copied in use");
    let offline = tempfile::tempdir().expect("a directory");
    let offline_copied = copy(dir.path(), offline.path(), &options()).expect("copied");
    let saved = tempfile::tempdir().expect("a directory");
    let rescued = rescue(dir.path(), saved.path(), &options()).expect("saved");
    let repaired = repair(dir.path(), &options()).expect("repaired");
    let made = [(&live, copied), (&offline, offline_copied), (&saved, rescued), (&dir, repaired)];
    for (n, (dir, report)) in made.into_iter().enumerate() {
        assert_eq!((report.left_out, report.sessions, report.damages), (2, 1, 0), "copy {n}: {report:?}");
        assert_eq!(stored_bytes(dir.path()), expected, "copy {n}");
    }
}

/// A byte count that restarted at 0 would give its user a new quota, and one that cannot be read must not keep the
/// store closed.
#[test]
fn damaged_byte_count_of_a_user_is_counted_again() {
    let whole = tempfile::tempdir().expect("a directory");
    fill(whole.path());
    let expected = stored_bytes(whole.path());
    assert!(expected > 0);
    for is_page_damaged in [false, true] {
        let dir = with(&std::fs::read(whole.path().join(FILE)).expect("read"));
        let counts = damage_records(dir.path(), "values", is_byte_count);
        let [count] = &counts[..] else { panic!("one user: {counts:?}") };
        if is_page_damaged {
            std::fs::copy(whole.path().join(FILE), dir.path().join(FILE)).expect("copied");
            damage_bytes(dir.path(), count);
        }
        let report = check(dir.path(), &options()).expect("checked");
        assert!(report.damages > 0, "page {is_page_damaged}: {report:?}");
        let to = tempfile::tempdir().expect("a directory");
        let copied = copy(dir.path(), to.path(), &options()).expect("copied");
        assert_eq!((copied.left_out, copied.sessions), (0, SESSIONS as u64), "page {is_page_damaged}: {copied:?}");
        for dir in [to.path(), dir.path()] {
            assert_eq!(stored_bytes(dir), expected, "page {is_page_damaged}");
            let report = check(dir, &options()).expect("checked");
            assert_eq!(report.damages, 0, "page {is_page_damaged}: {report:?}");
        }
    }
}

/// Closing the store marks its file as closed even while the store handle exists; a copy under way is aborted.
#[test]
fn closed_store_needs_no_repair() {
    let dir = tempfile::tempdir().expect("a directory");
    fill(dir.path());
    let rig = Rig::at(dir.path());
    let copier = rig.store.copier();
    assert!(matches!(rig.ask(Op::Sweep { limit: 1 }), Ok(Reply::Unowned { .. })));
    rig.store.close();
    assert_eq!(rig.ask(Op::ReadView { key: key(0) }), Err(StoreError::Unavailable));
    let report = check(dir.path(), &options()).expect("checked while the store is still held");
    assert!(!report.unclosed && report.damages == 0, "{report:?}");
    assert!(copier.copy(&dir.path().join("late")).is_err());
}

/// Covers: G-19.
#[test]
fn missing_data_file_is_noticed_and_writes_fail() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 5] = [
        ("removed", |dir| std::fs::remove_file(dir.join(FILE)).expect("removed")),
        ("renamed", |dir| std::fs::rename(dir, dir.with_extension("away")).expect("renamed")),
        ("replaced", |dir| {
            std::fs::copy(dir.join(FILE), dir.join("other")).expect("copied");
            std::fs::rename(dir.join("other"), dir.join(FILE)).expect("renamed");
        }),
        ("truncated", |dir| {
            let file = std::fs::File::options().write(true).open(dir.join(FILE)).expect("opened");
            file.set_len(4096).expect("truncated");
        }),
        ("overwritten", |dir| {
            let file = std::fs::File::options().write(true).open(dir.join(FILE)).expect("opened");
            file.write_all_at(&[0; 512], 0).expect("written");
        }),
    ];
    for (name, harm) in harms {
        // Once on an idle store, and once with a write before the next periodic check.
        for is_idle in [true, false] {
            let parent = tempfile::tempdir().expect("a directory");
            let dir = parent.path().join("data");
            fill(&dir);
            let rig = Rig::at(&dir);
            harm(&dir);
            let put = || Op::Put { name: "late".to_owned(), expect: 0, value: Some(vec![1]) };
            if !is_idle {
                assert!(rig.ask(put()).is_err(), "{name}: acknowledged");
            }
            let fault = rig.faults.recv_timeout(Duration::from_secs(1));
            assert!(matches!(fault, Ok(StoreFault::FileLost { .. })), "{name}, idle {is_idle}: {fault:?}");
            assert_eq!(rig.ask(put()), Err(StoreError::Unavailable), "{name}");
        }
    }
}

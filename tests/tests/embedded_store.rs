//! The embedded store under faults, and its disk syncs when an operation writes nothing.
#[path = "embedded_store/conversations.rs"]
mod conversations;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use turnway::store::embedded::{
    EmbeddedOpenError, EmbeddedOptions, EmbeddedStore, Engine, StoreFault, check, copy, rescue,
};
use turnway::store::{Store, UsageCallback};
use turnway_core::id::{
    Cursor, Epoch, EventId, Holder, LinkId, ListenersVersion, MessageId, Nonce, OwnershipSnapshot, Principal, RunId,
    Seq, SessionId, SessionKey, TenantId, UserId,
};
use turnway_core::protocol::entry::{Entry, Fact, SessionFact};
use turnway_core::protocol::input::{Content, Input, Message, Role, Strategy};
use turnway_core::store::quota::{Quota, Quotas};
use turnway_core::store::{Acceptance, Append, ModelStore, Op, Reply, SnapshotWrite, StoreError, StoreRefusal};
use turnway_core::time::Mono;
use turnway_simulator::power_cuts::Disk;
use turnway_simulator::script::{START_TIME, Script, lists};

type Answer = (Op, Result<Reply, StoreError>);

/// A store with its answers and faults.
struct StoreFixture {
    store: EmbeddedStore,
    answers: Receiver<Answer>,
    faults: Receiver<StoreFault>,
}

impl StoreFixture {
    fn open(
        open: impl FnOnce(EmbeddedOptions, turnway::store::AnswerSink) -> Result<EmbeddedStore, EmbeddedOpenError>,
    ) -> Self {
        let (fault, faults) = channel();
        let (answer, answers) = channel();
        let options = EmbeddedOptions::new(Arc::new(|| START_TIME), Arc::new(move |found| drop(fault.send(found))));
        let sink = Arc::new(move |op, result| drop(answer.send((op, result))));
        Self { store: open(options, sink).expect("a store"), answers, faults }
    }
    fn at(dir: &Path) -> Self {
        Self::open(|options, answers| EmbeddedStore::open(dir, options, answers))
    }
    fn on(disk: &Disk) -> Self {
        Self::open(|options, answers| EmbeddedStore::with_backend(disk.clone(), options, answers))
    }
    fn ask(&self, op: Op) -> Result<Reply, StoreError> {
        self.store.submit(op);
        self.answers.recv().expect("an answer").1
    }
}

fn options() -> EmbeddedOptions {
    EmbeddedOptions::new(Arc::new(|| START_TIME), Arc::new(|fault| panic!("{fault}")))
}

fn key() -> SessionKey {
    session("s")
}

fn session(name: &str) -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse(name).expect("a name") }
}

fn claim() -> Op {
    claim_of(key())
}

fn claim_of(key: SessionKey) -> Op {
    let holder = Holder::default();
    let expect = OwnershipSnapshot::default();
    Op::Claim { key, holder, nonce: Nonce(1), expect, floor: Epoch(0) }
}

fn read() -> Op {
    Op::Read { key: key(), after: Seq(0), limit: 9 }
}

fn put(expect: u64) -> Op {
    Op::Put { name: "name".to_owned(), expect, value: Some(vec![7]) }
}

fn renew(fresh: bool) -> Op {
    let ttl = Duration::from_secs(3);
    Op::Renew { holder: Holder::default(), ttl, fresh, sent: Mono(Duration::ZERO) }
}

#[test]
fn store_stays_unavailable_after_a_disk_fault() {
    let disk = Disk::new(0);
    let rig = StoreFixture::on(&disk);
    assert!(matches!(rig.ask(claim()), Ok(Reply::Claimed(_))));
    disk.cut_after_syncs(0);
    assert_eq!(rig.ask(put(0)), Err(StoreError::Unknown), "it may have happened");
    assert!(matches!(rig.faults.recv(), Ok(StoreFault::Disk(_))));
    for op in [put(0), read(), renew(true)] {
        assert_eq!(rig.ask(op), Err(StoreError::Unavailable));
    }
    drop(rig.store);
    assert!(rig.faults.recv().is_err(), "it dies once");
}

#[test]
fn operation_without_a_write_needs_no_sync() {
    let disk = Disk::new(0);
    let rig = StoreFixture::on(&disk);
    assert!(matches!(rig.ask(claim()), Ok(Reply::Claimed(_))));
    let syncs = disk.syncs();
    let get = Op::Get { name: "name".to_owned() };
    let quiet = [
        read(),
        Op::ReadView { key: key() },
        Op::Sweep { limit: 9 },
        get,
        // A repeated claim, another node's claim, and a value with another version than expected.
        claim(),
        Op::Claim {
            key: key(),
            holder: Holder::default(),
            nonce: Nonce(2),
            expect: OwnershipSnapshot::default(),
            floor: Epoch(0),
        },
        put(5),
        renew(true),
        renew(false),
    ];
    for op in quiet {
        rig.ask(op).expect("a reply");
    }
    assert_eq!(disk.syncs(), syncs);
    assert!(matches!(rig.ask(put(0)), Ok(Reply::Value { version: 1, .. })));
    assert!(disk.syncs() > syncs);
}

#[test]
fn full_disk_refuses_only_inputs() {
    let dir = tempfile::tempdir().expect("a directory");
    let full = || {
        StoreFixture::open(|mut options, answers| {
            options.reserve_bytes = u64::MAX;
            EmbeddedStore::open(dir.path(), options, answers)
        })
    };
    let mut script = Script::new(1, false);
    let accept = std::iter::from_fn(|| Some(script.next(START_TIME))).find(|op| matches!(op, Op::Accept { .. }));
    let accept = accept.expect("an accept");
    assert_eq!(full().ask(accept.clone()), Ok(Reply::Refused(StoreRefusal::Full)));
    assert!(matches!(StoreFixture::at(dir.path()).ask(accept.clone()), Ok(Reply::Accepted(_))));
    let rig = full();
    assert!(matches!(rig.ask(accept), Ok(Reply::Accepted(Acceptance { duplicate: true, .. }))));
    assert!(matches!(rig.ask(claim()), Ok(Reply::Claimed(_))));
}

/// Lets a message id expire though its input still waits, because the owner ended the run without naming the
/// input's position. The model allows this, so the store must too.
#[test]
fn message_id_may_expire_while_its_input_waits() {
    let rig = StoreFixture::on(&Disk::new(0));
    let mut model = ModelStore::new(false);
    let mut same = |op: Op| {
        let expected = model.apply(START_TIME, &op);
        assert_eq!(rig.ask(op), Ok(expected.clone()));
        expected
    };
    let Reply::Claimed(claimed) = same(claim()) else { panic!("not claimed") };
    let mut script = Script::new(1, false);
    let mut inputs = std::iter::from_fn(|| Some(script.next(START_TIME))).filter_map(|op| {
        let Op::Accept { input, hash, .. } = op else { return None };
        Some((input, hash))
    });
    let principal = Principal { tenant: key().tenant, user: UserId::local(), operator: false, writes: true };
    let mut accept = || {
        let (input, hash) = inputs.next().expect("an input");
        Op::Accept { key: key(), principal: principal.clone(), input, hash, route: None }
    };
    let first = accept();
    let second = accept();
    let Reply::Accepted(accepted) = same(first.clone()) else { panic!("not accepted") };
    same(second.clone());
    let Op::Accept { input, .. } = &second else { panic!("not an accept") };
    let token = claimed.token;
    let tail = Cursor { seq: Seq(1), epoch: claimed.token.epoch };
    let notice = Fact::Session(SessionFact::Notice { name: "n".to_owned(), request_id: None });
    let entry = Entry {
        id: EventId::default(),
        time: START_TIME.store,
        source: "turnway".into(),
        correlation_id: "x".into(),
        causation_id: None,
        traceparent: None,
        run_id: None,
        fact: notice,
    };
    same(Op::Append(Box::new(Append {
        key: key(),
        token,
        after: Seq(0),
        facts: vec![Arc::new(entry)],
        ends: vec![(accepted.position, input.run_id.clone())],
        answers: Vec::new(),
        closed: None,
        annotations: Vec::new(),
        known_listeners: ListenersVersion(0),
    })));
    same(Op::WriteSnapshot(Box::new(SnapshotWrite { key: key(), token, at: tail, state: Arc::new([1]) })));
    same(Op::Trim { key: key(), token, upto: Seq(1) });
    same(Op::Expire { key: key(), before_ms: u64::MAX });
    for op in [first, second, Op::ReadView { key: key() }, claim()] {
        same(op);
    }
}

#[test]
fn data_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = StoreFixture::at(dir.path());
    let second = EmbeddedStore::open(dir.path(), options(), Arc::new(|_, _| {}));
    assert!(matches!(second, Err(EmbeddedOpenError::InUse { .. })));
    drop(rig);
    assert!(EmbeddedStore::open(dir.path(), options(), Arc::new(|_, _| {})).is_ok());
}

#[test]
fn partial_database_is_created_again() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("turnway.redb.new"), [0; 5000]).expect("written");
    assert!(matches!(StoreFixture::at(dir.path()).ask(claim()), Ok(Reply::Claimed(_))));
}

/// Covers: LN-TP25.
#[test]
fn damaged_record_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    assert!(matches!(StoreFixture::at(dir.path()).ask(claim()), Ok(Reply::Claimed(_))));
    let heads: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("heads");
    let database = Database::open(dir.path().join("turnway.redb")).expect("a database");
    let txn = database.begin_read().expect("a transaction");
    let (prefix, mut head) = {
        let table = txn.open_table(heads).expect("a table");
        let (key, value) = table.first().expect("read").expect("a head");
        (key.value().to_vec(), value.value().to_vec())
    };
    head[9] ^= 1;
    let txn = database.begin_write().expect("a transaction");
    txn.open_table(heads).expect("a table").insert(&*prefix, &*head).expect("written");
    txn.commit().expect("committed");
    drop(database);
    {
        let rig = StoreFixture::at(dir.path());
        assert_eq!(rig.ask(read()), Ok(Reply::Refused(StoreRefusal::Damaged)), "found at the start");
    }
    // Missing in the index of the sweep, the session's damage is found by its first reader.
    let database = Database::open(dir.path().join("turnway.redb")).expect("a database");
    let work: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("work");
    let txn = database.begin_write().expect("a transaction");
    txn.open_table(work).expect("a table").remove(&*prefix).expect("removed");
    txn.commit().expect("committed");
    drop(database);
    let report = check(dir.path(), &options()).expect("checked");
    assert_eq!((report.damages, report.sessions), (1, 1), "{report:?}");
    let rig = StoreFixture::at(dir.path());
    assert_eq!(rig.ask(read()), Ok(Reply::Refused(StoreRefusal::Damaged)));
    assert!(matches!(rig.ask(put(0)), Ok(Reply::Value { version: 1, .. })), "the rest goes on");
    drop(rig.store);
    assert!(rig.faults.recv().is_err(), "nothing failed");
}

#[test]
fn backup_is_complete_and_has_a_new_era() {
    let dir = tempfile::tempdir().expect("a directory");
    let to = tempfile::tempdir().expect("a directory");
    {
        let rig = StoreFixture::at(dir.path());
        assert!(matches!(rig.ask(claim()), Ok(Reply::Claimed(_))));
        assert!(matches!(rig.ask(put(0)), Ok(Reply::Value { version: 1, .. })));
    }
    let later = || turnway_core::time::Now { store: turnway_core::time::Millis(START_TIME.store.0 + 9), ..START_TIME };
    let then = EmbeddedOptions::new(Arc::new(later), Arc::new(|fault| panic!("{fault}")));
    copy(dir.path(), to.path(), &then).expect("copied");
    let again = copy(dir.path(), to.path(), &then);
    assert!(matches!(again, Err(EmbeddedOpenError::NotEmpty { .. })), "nothing is overwritten: {again:?}");
    let report = check(to.path(), &options()).expect("checked");
    assert_eq!((report.damages, report.sessions, report.values), (0, 1, 1));
    for (dir, era) in [(&dir, START_TIME.store.0), (&to, START_TIME.store.0 + 9)] {
        let rig = StoreFixture::at(dir.path());
        assert!(matches!(rig.ask(claim()), Ok(Reply::Claimed(_))), "a repeat: it is there");
        assert_eq!(rig.ask(renew(true)), Ok(Reply::Renewed { era, clock: START_TIME.store }));
    }
}

/// Lists all sessions of a store that was written before the index of sessions existed.
#[test]
fn older_store_gets_its_session_index_on_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut script = Script::new(3, false);
    {
        let rig = StoreFixture::at(dir.path());
        for _ in 0..200 {
            let op = script.next(START_TIME);
            if let Ok(reply) = rig.ask(op.clone()) {
                script.learn(&op, &reply);
            }
        }
    }
    let ask = || lists(script.keys()).into_iter().map(|op| StoreFixture::at(dir.path()).ask(op)).collect::<Vec<_>>();
    let before = ask();
    let listed = |answer: &Result<Reply, StoreError>| match answer {
        Ok(Reply::Sessions { sessions, more: false }) => sessions.len(),
        other => panic!("{other:?}"),
    };
    assert!(before.iter().map(listed).sum::<usize>() >= 2 * script.keys().len(), "{before:#?}");
    let table = |name| TableDefinition::<'_, &[u8], &[u8]>::new(name);
    let database = Database::open(dir.path().join("turnway.redb")).expect("a database");
    let txn = database.begin_write().expect("a transaction");
    assert!(txn.delete_table(table("sessions")).expect("deleted"));
    txn.open_table(table("meta")).expect("a table").remove(&b"indexed"[..]).expect("removed");
    txn.commit().expect("committed");
    drop(database);
    let to = tempfile::tempdir().expect("a directory");
    copy(dir.path(), to.path(), &options()).expect("copied");
    assert_eq!(check(to.path(), &options()).expect("checked").damages, 0);
    assert_eq!(ask(), before);
    // One index entry without a session, and one session without its entry.
    let database = Database::open(dir.path().join("turnway.redb")).expect("a database");
    let txn = database.begin_write().expect("a transaction");
    {
        let mut sessions = txn.open_table(table("sessions")).expect("a table");
        let line = sessions.pop_first().expect("read").expect("a line").0.value().to_vec();
        sessions.insert(&*[&line[..], b"x"].concat(), &[][..]).expect("written");
    }
    txn.commit().expect("committed");
    drop(database);
    let report = check(dir.path(), &options()).expect("checked");
    assert_eq!(report.damages, 2, "{report:#?}");
}

/// Makes a store look like one of a release that had no index of sessions and no byte counts of users, and damages the
/// head of a session.
fn make_older(dir: &Path, damaged: Option<&SessionKey>) {
    let table = |name| TableDefinition::<'_, &[u8], &[u8]>::new(name);
    let database = Database::open(dir.join("turnway.redb")).expect("a database");
    let txn = database.begin_write().expect("a transaction");
    assert!(txn.delete_table(table("sessions")).expect("deleted"));
    assert!(txn.delete_table(table("values")).expect("deleted"));
    for mark in ["indexed", "metered"] {
        let mut meta = txn.open_table(table("meta")).expect("a table");
        assert!(meta.remove(mark.as_bytes()).expect("removed").is_some());
    }
    if let Some(key) = damaged {
        let prefix = [key.tenant.as_str(), "\0", key.session.as_str(), "\0"].concat();
        let mut heads = txn.open_table(table("heads")).expect("a table");
        let mut head = heads.get(prefix.as_bytes()).expect("read").expect("a head").value().to_vec();
        head[9] ^= 1;
        heads.insert(prefix.as_bytes(), &*head).expect("written");
    }
    txn.commit().expect("committed");
}

/// Returns options of a store that reports the bytes of its users, and the last report.
fn options_with_usage() -> (EmbeddedOptions, Arc<AtomicU64>) {
    let counted = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&counted);
    let on_usage: UsageCallback = Arc::new(move |bytes, _| seen.store(bytes, Ordering::SeqCst));
    (EmbeddedOptions { on_usage, ..options() }, counted)
}

/// Opens a store and returns the bytes that the store counts for all users.
fn stored_bytes(dir: &Path) -> u64 {
    let (options, counted) = options_with_usage();
    drop(EmbeddedStore::open(dir, options, Arc::new(|_, _| {})).expect("a store"));
    counted.load(Ordering::SeqCst)
}

/// Opens a store without index and byte counts in which one session is damaged: both are made of the intact session.
#[test]
fn older_store_with_a_damaged_session_opens_without_it() {
    let small = tempfile::tempdir().expect("a directory");
    assert!(matches!(StoreFixture::at(small.path()).ask(said("m1")), Ok(Reply::Accepted(_))));
    let dir = tempfile::tempdir().expect("a directory");
    let other = session("other");
    {
        let rig = StoreFixture::at(dir.path());
        for op in [said("m1"), said_in(&other, "m1")] {
            assert!(matches!(rig.ask(op), Ok(Reply::Accepted(_))));
        }
    }
    make_older(dir.path(), Some(&other));
    assert!(check(dir.path(), &options()).expect("checked").damages > 0);
    let rig = StoreFixture::at(dir.path());
    let tenant = key().tenant;
    let list = Op::ListSessions { tenant, user: None, before: None, limit: 9, link: LinkId::default() };
    let Ok(Reply::Sessions { sessions, more: false }) = rig.ask(list) else { panic!("no list") };
    assert_eq!(sessions.into_iter().map(|found| found.birth.session).collect::<Vec<_>>(), [key().session]);
    assert_eq!(rig.ask(Op::ReadView { key: other }), Ok(Reply::Refused(StoreRefusal::Damaged)));
    assert!(matches!(rig.ask(Op::ReadView { key: key() }), Ok(Reply::View(_))));
    drop(rig);
    assert_eq!(stored_bytes(dir.path()), stored_bytes(small.path()));
}

/// A deleted session keeps its head and is in no index, also where the index is built again.
#[test]
fn rebuilt_index_leaves_out_deleted_sessions() {
    let dir = tempfile::tempdir().expect("a directory");
    {
        let rig = StoreFixture::at(dir.path());
        let Ok(Reply::Accepted(taken)) = rig.ask(said("m1")) else { panic!("not accepted") };
        let Ok(Reply::Claimed(claimed)) = rig.ask(claim()) else { panic!("not claimed") };
        let Op::Accept { principal, input, .. } = said("m1") else { panic!("not an accept") };
        let end = Append {
            key: key(),
            token: claimed.token,
            after: Seq(0),
            facts: Vec::new(),
            ends: vec![(taken.position, input.run_id.clone())],
            answers: Vec::new(),
            closed: Some(true),
            annotations: Vec::new(),
            known_listeners: ListenersVersion(0),
        };
        assert!(matches!(rig.ask(Op::Append(Box::new(end))), Ok(Reply::Appended { .. })));
        let delete = Op::Delete { key: key(), principal, link: LinkId::default() };
        assert_eq!(rig.ask(delete), Ok(Reply::Done));
    }
    let to = tempfile::tempdir().expect("a directory");
    let rescued = rescue(dir.path(), to.path(), &options()).expect("saved");
    assert_eq!((rescued.damages, rescued.left_out, rescued.sessions), (0, 0, 1), "{rescued:?}");
    make_older(to.path(), None);
    let report = check(to.path(), &options()).expect("checked");
    assert_eq!((report.damages, report.sessions), (0, 1), "{report:?}");
}

/// Performs an accept in one batch with an op on a damaged session: the store discards the first attempt and repeats
/// the accept.
#[test]
fn bytes_of_a_repeated_batch_count_once() {
    let disk = Disk::new(0);
    let damaged = session("damaged");
    {
        let rig = StoreFixture::on(&disk);
        for op in [said("m1"), said_in(&damaged, "m1")] {
            assert!(matches!(rig.ask(op), Ok(Reply::Accepted(_))));
        }
    }
    let lanes: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("lanes");
    let database = Database::builder().create_with_backend(disk.clone()).expect("a database");
    let txn = database.begin_write().expect("a transaction");
    {
        let mut table = txn.open_table(lanes).expect("a table");
        // The damaged session is the first by name.
        let (key, mut input) = {
            let (key, input) = table.first().expect("read").expect("an input");
            (key.value().to_vec(), input.value().to_vec())
        };
        input[9] ^= 1;
        table.insert(&*key, &*input).expect("written");
    }
    txn.commit().expect("committed");
    drop(database);
    let perform = |ops: Vec<Op>| {
        let (options, counted) = options_with_usage();
        let mut engine = Engine::with_backend(disk.copy(), &options).expect("a store");
        let mut replies = Vec::new();
        engine.perform(ops, &mut |_, reply| replies.push(reply)).expect("performed");
        engine.close().expect("closed");
        (counted.load(Ordering::SeqCst), replies)
    };
    let (before, _) = perform(Vec::new());
    let (alone, _) = perform(vec![said("m2")]);
    let (repeated, replies) = perform(vec![said("m2"), claim_of(damaged)]);
    assert!(replies.contains(&Ok(Reply::Refused(StoreRefusal::Damaged))), "{replies:?}");
    assert!(replies.iter().any(|reply| matches!(reply, Ok(Reply::Accepted(_)))), "{replies:?}");
    assert!(before < alone, "{before} {alone}");
    assert_eq!(repeated, alone);
}

/// Returns the accept of a short input of one user.
fn said(message: &str) -> Op {
    said_in(&key(), message)
}

fn said_in(key: &SessionKey, message: &str) -> Op {
    let principal = Principal { tenant: key.tenant.clone(), user: UserId::local(), operator: false, writes: true };
    let user = principal.user.clone();
    let message_id = MessageId::parse(message).expect("a name");
    let input = Input {
        run_id: RunId::derive(key, &user, &message_id),
        message_id,
        request_id: None,
        user,
        agent_id: None,
        message: Message { role: Role::User, content: Content::Text("hi".to_owned()) },
        history: None,
        replaces: None,
        strategy: Strategy::Enqueue,
        metadata: None,
        origin: None,
        traceparent: None,
    };
    Op::Accept { key: key.clone(), principal, hash: input.body_hash(), input: Arc::new(input), route: None }
}

/// Counts each new snapshot in place of the one before, in the quota as in the file.
///
/// Covers: S-48.
#[test]
fn snapshots_count_once_for_the_user_quota() {
    let quotas = Quotas { tenant: Quota::Off, user: Quota::Bytes(64 * 1024) };
    let rig = StoreFixture::open(|options, answers| {
        EmbeddedStore::with_backend(Disk::new(0), EmbeddedOptions { quotas, ..options }, answers)
    });
    let Ok(Reply::Claimed(claimed)) = rig.ask(claim()) else { panic!("not claimed") };
    assert!(matches!(rig.ask(said("m1")), Ok(Reply::Accepted(_))));
    let token = claimed.token;
    for n in 0..10 {
        let fact = Fact::Session(SessionFact::Notice { name: format!("n{n}"), request_id: None });
        let entry = Entry {
            id: EventId::new(START_TIME.store, n),
            time: START_TIME.store,
            source: "turnway".into(),
            correlation_id: "x".into(),
            causation_id: None,
            traceparent: None,
            run_id: None,
            fact,
        };
        let after = Seq(u64::try_from(n).expect("small"));
        let append = Append {
            key: key(),
            token,
            after,
            facts: vec![Arc::new(entry)],
            ends: Vec::new(),
            answers: Vec::new(),
            closed: None,
            annotations: Vec::new(),
            known_listeners: ListenersVersion(0),
        };
        assert!(matches!(rig.ask(Op::Append(Box::new(append))), Ok(Reply::Appended { .. })));
        let at = Cursor { seq: Seq(after.0 + 1), epoch: token.epoch };
        let keep = SnapshotWrite { key: key(), token, at, state: vec![7; 16 * 1024].into() };
        assert_eq!(rig.ask(Op::WriteSnapshot(Box::new(keep))), Ok(Reply::Done));
    }
    let more = rig.ask(said("m2"));
    assert!(matches!(more, Ok(Reply::Accepted(_))), "one snapshot of 16 KiB and a few facts: {more:?}");
}

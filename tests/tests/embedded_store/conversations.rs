//! Bindings of conversations in the embedded store: tables that are built from the rows, and a row that is damaged.
use super::{StoreFixture, key, options, said};
use redb::{Database, ReadableTable, TableDefinition};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use turnway::store::embedded::{EmbeddedStore, Engine, check, copy, rescue};
use turnway::store::{AnswerSink, Store};
use turnway_core::id::{Nonce, Principal, SessionKey, UserId};
use turnway_core::protocol::binding::{ExpiryRules, Generation, TargetKind, UnbindReason};
use turnway_core::protocol::conversation::{ConversationKey, ConversationRef};
use turnway_core::rng::Rng;
use turnway_core::store::binding::{BindingAction, BindingRow, NewBinding, UnnamedFields, change_row};
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply, StoreError};
use turnway_simulator::power_cuts::Disk;
use turnway_simulator::script::{START_TIME, Script, binding_reads};

/// Returns a directory with bindings of conversations, and the sessions of its store.
fn bound_store() -> (tempfile::TempDir, Vec<SessionKey>) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut script = Script::bound(7);
    let rig = StoreFixture::at(dir.path());
    for _ in 0..400 {
        let op = script.next(START_TIME);
        if let Ok(reply) = rig.ask(op.clone()) {
            script.learn(&op, &reply);
        }
    }
    (dir, script.keys().to_vec())
}

/// The lists of sessions and the times at which rows are due are built from the rows: in a store of an earlier release,
/// which had neither, in a copy, and in a salvaged store.
#[test]
fn tables_derived_from_conversations_are_rebuilt() {
    let (dir, keys) = bound_store();
    let ask = |dir: &Path| {
        let rig = StoreFixture::at(dir);
        binding_reads(&keys).into_iter().map(|op| rig.ask(op)).collect::<Vec<_>>()
    };
    let before = ask(dir.path());
    let is_listed = |answer: &Result<Reply, StoreError>| matches!(answer, Ok(Reply::Conversation(ConversationReply::Bindings(bindings))) if !bindings.is_empty());
    assert!(before.iter().any(is_listed), "{before:#?}");
    let found = check(dir.path(), &options()).expect("checked");
    assert_eq!((found.damages, found.conversations > 3), (0, true), "{found:#?}");
    let [copied, salvaged] = [0, 1].map(|_| tempfile::tempdir().expect("a directory"));
    assert_eq!(copy(dir.path(), copied.path(), &options()).expect("copied").conversations, found.conversations);
    assert_eq!(rescue(dir.path(), salvaged.path(), &options()).expect("saved").conversations, found.conversations);
    let table = |name| TableDefinition::<'_, &[u8], &[u8]>::new(name);
    let database = Database::open(dir.path().join("turnway.redb")).expect("a database");
    let txn = database.begin_write().expect("a transaction");
    for derived in ["session_conversations", "conversation_times"] {
        assert!(txn.delete_table(table(derived)).expect("deleted"));
    }
    txn.open_table(table("meta")).expect("a table").remove(&b"conversations"[..]).expect("removed");
    txn.commit().expect("committed");
    drop(database);
    for dir in [dir.path(), copied.path(), salvaged.path()] {
        assert_eq!(ask(dir), before);
        assert_eq!(check(dir, &options()).expect("checked").damages, 0);
    }
}

/// Covers: BR-32: a row that cannot be read is not a free conversation.
#[test]
fn damaged_row_of_a_conversation_is_unknown_and_reported() {
    let (dir, keys) = bound_store();
    let table = |name| TableDefinition::<'_, &[u8], &[u8]>::new(name);
    let database = Database::open(dir.path().join("turnway.redb")).expect("a database");
    let txn = database.begin_write().expect("a transaction");
    let name = {
        let mut rows = txn.open_table(table("conversations")).expect("a table");
        let (name, mut row) = {
            let (name, row) = rows.first().expect("read").expect("a row");
            (name.value().to_vec(), row.value().to_vec())
        };
        row[9] ^= 1;
        rows.insert(&*name, &*row).expect("written");
        name
    };
    txn.commit().expect("committed");
    drop(database);
    let key = ConversationKey::parse(std::str::from_utf8(&name).expect("UTF-8")).expect("a key");
    {
        let rig = StoreFixture::at(dir.path());
        let resolve = |key: &ConversationKey| {
            Op::from(ConversationOp::Change { key: key.clone(), action: BindingAction::Resolve })
        };
        assert_eq!(rig.ask(resolve(&key)), Err(StoreError::Unavailable));
        let session = keys[0].clone();
        assert!(rig.ask(Op::ReadView { key: session }).is_ok(), "everything else goes on");
    }
    let found = check(dir.path(), &options()).expect("checked");
    assert!(found.complaints.iter().any(|complaint| complaint.contains("conversations")), "{found:#?}");
    let to = tempfile::tempdir().expect("a directory");
    let saved = rescue(dir.path(), to.path(), &options()).expect("saved");
    assert_eq!((saved.damages, saved.conversations), (0, found.conversations - 1), "{saved:#?}");
}

fn change(conversation: &str, action: BindingAction) -> Op {
    let conversation = ConversationRef::without_parent("rooms", "a", conversation).expect("a reference");
    ConversationOp::Change { key: conversation.key(&key().tenant), action }.into()
}

fn resolve(conversation: &str) -> Op {
    change(conversation, BindingAction::Resolve)
}

fn bind(conversation: &str, nonce: u128) -> Op {
    let new = NewBinding {
        conversation: ConversationRef::without_parent("rooms", "a", conversation).expect("a reference"),
        session: key().session,
        principal: Principal { tenant: key().tenant, user: UserId::local(), operator: true, writes: true },
        target_kind: TargetKind::Session,
        expected: None,
        expiry: ExpiryRules::default(),
        mirror: false,
        metadata: BTreeMap::new(),
        unnamed: UnnamedFields::default(),
        nonce: Nonce(nonce),
    };
    change(conversation, BindingAction::Bind(Box::new(new)))
}

fn unbind(conversation: &str, generation: Generation) -> Op {
    change(conversation, BindingAction::Unbind { generation, reason: UnbindReason::Manual, farewell: false })
}

/// Returns the conversation of an op.
fn place(op: &Op) -> &str {
    let Op::Conversation { op: ConversationOp::Change { key, .. }, .. } = op else { panic!("{op:?}") };
    key.conversation.as_str()
}

/// Returns the conversation of an answer, and whether it is bound.
fn bound_place(op: &Op, result: Result<Reply, StoreError>) -> (String, bool) {
    let reply = result.expect("a reply");
    let Reply::Conversation(ConversationReply::Row { row, .. }) = reply else { panic!("{reply:?}") };
    let is_bound = row.is_some_and(|row| row.active().is_some());
    (place(op).to_owned(), is_bound)
}

/// Performs a batch. Returns the conversation of each answer, in the order of the answers, and whether it is bound.
fn perform(engine: &mut Engine, ops: Vec<Op>) -> Vec<(String, bool)> {
    let mut answers = Vec::new();
    let mut answer = |op: Op, result: Result<Reply, StoreError>| {
        if matches!(op, Op::Conversation { .. }) {
            answers.push(bound_place(&op, result));
        }
    };
    engine.perform(ops, &mut answer).expect("no fault");
    answers
}

/// A look-up writes nothing. In a batch with changes it waits for the disk only if its own row is changed before it, and
/// it has every change before it.
#[test]
fn look_up_waits_only_for_changes_of_its_own_row() {
    let disk = Disk::new(0);
    let mut engine = Engine::with_backend(disk.clone(), &options()).expect("a store");
    perform(&mut engine, vec![said("m"), bind("1", 1)]);
    let syncs = disk.syncs();
    let answer = |conversation: &str, is_bound| (conversation.to_owned(), is_bound);
    let found = perform(&mut engine, vec![resolve("1"), resolve("2")]);
    assert_eq!(found, [answer("1", true), answer("2", false)]);
    assert_eq!(disk.syncs(), syncs);
    let ops = vec![resolve("2"), bind("2", 1), resolve("2"), resolve("1"), resolve("3")];
    let found = perform(&mut engine, ops);
    let at_once = [answer("2", false), answer("1", true), answer("3", false)];
    assert_eq!(found, [&at_once[..], &[answer("2", true), answer("2", true)]].concat());
    assert!(disk.syncs() > syncs);
}

/// A row that was looked up or changed is looked up again in the caller's thread, until the next change of it.
#[test]
fn look_up_of_a_cached_row_needs_no_other_thread() {
    let dir = tempfile::tempdir().expect("a directory");
    let (sent, answers) = channel();
    let sink: AnswerSink = Arc::new(move |op, result| {
        drop(sent.send((std::thread::current().id(), op, result)));
    });
    let store = EmbeddedStore::open(dir.path(), options(), sink).expect("a store");
    let me = std::thread::current().id();
    let ask = |op: Op| {
        store.submit(op);
        let (thread, _, result) = answers.recv().expect("an answer");
        (thread == me, result.expect("a reply"))
    };
    ask(said("m"));
    let (was_cached, absent) = ask(resolve("1"));
    assert!(!was_cached);
    assert_eq!(ask(resolve("1")), (true, absent), "an absent row is cached as well");
    let (was_cached, bound) = ask(bind("1", 1));
    assert!(!was_cached);
    let Reply::Conversation(ConversationReply::Row { row: Some(row), .. }) = &bound else { panic!("{bound:?}") };
    let generation = row.generation;
    assert_eq!(ask(resolve("1")), (true, bound));
    let (_, changed) = ask(unbind("1", generation));
    assert_eq!(ask(resolve("1")), (true, changed));
    assert!(!ask(resolve("2")).0);
    store.close();
    store.submit(resolve("1"));
    assert_eq!(answers.recv().expect("an answer").2, Err(StoreError::Unavailable), "a closed store answers nothing");
}

/// Covers: BR-32: a look-up has every change that was submitted before it, also if nobody has waited for the change.
#[test]
fn cached_look_ups_follow_the_changes_before_them() {
    let mut rng = Rng::from_number(3);
    let dir = tempfile::tempdir().expect("a directory");
    let rig = StoreFixture::at(dir.path());
    rig.ask(said("m")).expect("a session");
    let mut rows: BTreeMap<String, Option<BindingRow>> = BTreeMap::new();
    let mut expected: BTreeMap<String, VecDeque<Reply>> = BTreeMap::new();
    for nonce in 0..200 {
        let count = rng.below(40);
        for _ in 0..count {
            let name = rng.below(5).to_string();
            let row = rows.entry(name.clone()).or_default();
            let op = random_op(&mut rng, &name, row.as_ref(), nonce);
            let Op::Conversation { op: ConversationOp::Change { action, .. }, .. } = &op else { panic!("{op:?}") };
            let (outcome, after) = change_row(row.take(), START_TIME.store, action);
            *row = after.clone();
            let reply = Reply::Conversation(ConversationReply::Row { outcome, row: after.map(Box::new) });
            expected.entry(name).or_default().push_back(reply);
            rig.store.submit(op);
        }
        for _ in 0..count {
            let (op, result) = rig.answers.recv().expect("an answer");
            let expected = expected.get_mut(place(&op)).and_then(VecDeque::pop_front);
            assert_eq!(result.ok(), expected, "{op:?}");
        }
    }
    assert!(rows.values().all(|row| row.as_ref().is_some_and(|row| row.generation > Generation(20))), "{rows:#?}");
}

/// Returns a look-up or a change that fits a row.
fn random_op(rng: &mut Rng, name: &str, row: Option<&BindingRow>, nonce: u128) -> Op {
    let report = row.and_then(|row| row.reports.front());
    match rng.below(6) {
        0 => bind(name, nonce),
        1 => unbind(name, row.map_or_else(Generation::default, |row| row.generation)),
        2 if let Some(report) = report => {
            let generation = report.binding.generation;
            change(name, BindingAction::Settle { generation, is_end: report.ended.is_some() })
        }
        _ => resolve(name),
    }
}

//! Bindings of conversations in the embedded store: tables that are built from the rows, and a row that is damaged.
use super::{StoreFixture, options};
use redb::{Database, ReadableTable, TableDefinition};
use std::path::Path;
use turnway::store::embedded::{check, copy, rescue};
use turnway_core::id::SessionKey;
use turnway_core::protocol::conversation::ConversationKey;
use turnway_core::store::binding::BindingAction;
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply, StoreError};
use turnway_tests::script::{START_TIME, Script, binding_reads};

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

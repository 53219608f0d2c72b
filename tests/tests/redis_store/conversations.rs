//! Bindings of conversations in Redis: many nodes that change one row at once, and lists that lie in another slot.
use crate::store_client::{StoreClient, accept, ann, key};
use std::collections::{BTreeMap, BTreeSet};
use tempfile::tempdir;
use turnway::config::Durability;
use turnway_core::id::{Nonce, SessionId, TenantId};
use turnway_core::limits::SESSION_BINDINGS_MAX;
use turnway_core::protocol::binding::{Binding, ExpiryRules, Generation, TargetKind, UnbindReason};
use turnway_core::protocol::conversation::{ConversationKey, ConversationRef};
use turnway_core::store::binding::{BindingAction, BindingOutcome, BindingRow, NewBinding, UnnamedFields};
use turnway_core::store::{ConversationOp, ConversationReply, Op, Reply, StoreRefusal};
use turnway_tests::real::redis::Redis;

fn conversation(id: &str) -> ConversationRef {
    ConversationRef::without_parent("rooms", "a", id).expect("a reference")
}

fn conversation_key(id: &str) -> ConversationKey {
    conversation(id).key(&TenantId::default_tenant())
}

fn change(id: &str, action: BindingAction) -> Op {
    Op::from(ConversationOp::Change { key: conversation_key(id), action })
}

fn bind(id: &str, session: &str, expected: Option<Generation>, nonce: u128) -> Op {
    let new = NewBinding {
        conversation: conversation(id),
        session: SessionId::parse(session).expect("a name"),
        principal: ann(),
        target_kind: TargetKind::Session,
        expected,
        expiry: ExpiryRules::default(),
        mirror: false,
        metadata: BTreeMap::new(),
        unnamed: UnnamedFields::default(),
        nonce: Nonce(nonce),
    };
    change(id, BindingAction::Bind(Box::new(new)))
}

async fn row(store: &mut StoreClient, op: Op) -> (BindingOutcome, Option<BindingRow>) {
    match store.ask(op).await {
        Ok(Reply::Conversation(ConversationReply::Row { outcome, row })) => (outcome, row.map(|row| *row)),
        other => panic!("{other:?}"),
    }
}

/// Settles the reports of a conversation in their order, as far as nobody else does.
async fn settle_all(store: &mut StoreClient, id: &str) {
    let (_, mut at) = row(store, change(id, BindingAction::Resolve)).await;
    while let Some(report) = at.as_ref().and_then(|row| row.reports.front()) {
        let generation = report.binding.generation;
        let is_end = report.ended.is_some();
        (_, at) = row(store, change(id, BindingAction::Settle { generation, is_end })).await;
    }
}

async fn list(store: &mut StoreClient, session: &str) -> Vec<Binding> {
    match store.ask(Op::from(ConversationOp::List { session: key(session), principal: None })).await {
        Ok(Reply::Conversation(ConversationReply::Bindings(bindings))) => bindings,
        other => panic!("{other:?}"),
    }
}

/// Two nodes bind and unbind one conversation at the same time, both as fast as they can. Every bind that is applied has
/// a generation of its own, and in the end the lists say what the row does.
///
/// Covers: BR-32.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_binds_each_get_a_generation_of_their_own() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut stores = Vec::new();
    for _ in 0..2 {
        stores.push(StoreClient::open(&server.url(), Durability::Mem).await);
    }
    for session in ["s0", "s1"] {
        stores[0].ask(accept(session, "m")).await.expect("accepted");
    }
    let workers = stores.into_iter().enumerate().map(|(n, mut store)| {
        tokio::spawn(async move {
            let session = format!("s{n}");
            let mut generations = BTreeSet::new();
            for round in 0..200u128 {
                let nonce = round * 2 + n as u128 + 1;
                let (outcome, bound) = row(&mut store, bind("7", &session, None, nonce)).await;
                if outcome != BindingOutcome::Applied {
                    continue;
                }
                let bound = bound.expect("a row");
                let active = bound.active().expect("a binding").clone();
                assert_eq!((active.session.as_str(), active.nonce), (&*session, Nonce(nonce)));
                assert!(generations.insert(active.generation), "{active:?}");
                let end = BindingAction::Unbind {
                    generation: active.generation,
                    reason: UnbindReason::Manual,
                    farewell: false,
                };
                assert_eq!(row(&mut store, change("7", end)).await.0, BindingOutcome::Applied);
                settle_all(&mut store, "7").await;
            }
            (store, generations)
        })
    });
    let mut all = BTreeSet::new();
    let mut stores = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        let (store, generations) = worker.await.expect("no panic");
        assert!(!generations.is_empty());
        for generation in generations {
            assert!(all.insert(generation), "{generation:?} was given twice");
        }
        stores.push(store);
    }
    let store = &mut stores[0];
    settle_all(store, "7").await;
    let (_, left) = row(store, change("7", BindingAction::Resolve)).await;
    assert_eq!(left.as_ref().map(|row| (row.active().is_none(), row.reports.len())), Some((true, 0)));
    for session in ["s0", "s1"] {
        assert_eq!(list(store, session).await, []);
    }
}

/// Covers: S-44.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_has_a_limited_number_of_bindings() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    store.ask(accept("s", "m")).await.expect("accepted");
    for n in 0..SESSION_BINDINGS_MAX {
        assert_eq!(row(&mut store, bind(&n.to_string(), "s", None, 1)).await.0, BindingOutcome::Applied);
    }
    assert_eq!(list(&mut store, "s").await.len(), SESSION_BINDINGS_MAX);
    let further = store.ask(bind("further", "s", None, 1)).await;
    assert_eq!(further, Ok(Reply::Refused(StoreRefusal::TooMany)));
    // A conversation that is bound already may be bound again, and one that ends makes room.
    let (outcome, again) = row(&mut store, bind("0", "s", None, 2)).await;
    assert_eq!(outcome, BindingOutcome::Applied);
    let generation = again.and_then(|row| row.active().map(|active| active.generation)).expect("a binding");
    let end = BindingAction::Unbind { generation, reason: UnbindReason::Manual, farewell: false };
    assert_eq!(row(&mut store, change("0", end)).await.0, BindingOutcome::Applied);
    assert_eq!(row(&mut store, bind("further", "s", None, 1)).await.0, BindingOutcome::Applied);
}

/// An entry of a list whose row was never written, because its node died in between, stands for nothing and goes; an
/// entry that is missing comes back with the next bind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_entry_without_a_row_is_removed() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    store.ask(accept("s", "m")).await.expect("accepted");
    row(&mut store, bind("7", "s", None, 1)).await;
    let entries = |server: &Redis| -> BTreeMap<String, u64> {
        server
            .command::<Vec<(String, u64)>>(&["ZRANGE", "ix:{default/s}", "0", "-1", "WITHSCORES"])
            .into_iter()
            .collect()
    };
    let [old, recent] = ["default/rooms/a/old", "default/rooms/a/recent"];
    let _: u64 = server.command(&["ZADD", "ix:{default/s}", "5", old]);
    let now = entries(&server)["default/rooms/a/7"].to_string();
    let _: u64 = server.command(&["ZADD", "ix:{default/s}", &now, recent]);
    let bindings = list(&mut store, "s").await;
    assert_eq!(bindings.iter().map(|binding| binding.id().to_string()).collect::<Vec<_>>(), [format!("{now}.7")]);
    // The entry of a bind that may be in progress stays.
    assert_eq!(entries(&server).into_keys().collect::<Vec<_>>(), ["default/rooms/a/7", recent]);
}

/// Covers: BR-32.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_that_cannot_be_read_is_unknown_and_not_free() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    store.ask(accept("s", "m")).await.expect("accepted");
    row(&mut store, bind("7", "s", None, 1)).await;
    let keys: Vec<String> = server.command(&["KEYS", "ix:{c:*}:*"]);
    let [name] = &keys[..] else { panic!("{keys:?}") };
    let _: String = server.command(&["SET", name, "{}"]);
    for op in [change("7", BindingAction::Resolve), bind("7", "s", None, 2)] {
        assert!(store.ask(op).await.is_err());
    }
    let kept: String = server.command(&["GET", name]);
    assert_eq!(kept, "{}", "whatever it is, it stays");
}

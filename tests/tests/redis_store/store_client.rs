//! A Redis store that tests use one request at a time, and the most common requests.
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use turnway::config::Durability;
use turnway::config::redis::RedisUrl;
use turnway::store::Store;
use turnway::store::redis::{RedisOpenError, RedisStore, RedisStoreOptions};
use turnway_core::id::{
    Epoch, Holder, LeaseId, MessageId, NodeId, Nonce, OwnershipSnapshot, Principal, RunId, SessionId, SessionKey,
    TenantId, UserId,
};
use turnway_core::protocol::input::{Content, Input, Message, Role, Strategy};
use turnway_core::store::{Acceptance, Claimed, Op, Reply, StoreError};
use turnway_core::time::Mono;
use turnway_tests::real::PATIENCE;

/// A result of the store.
pub(crate) type Answered = Result<Reply, StoreError>;

/// A store, and the channel of its answers.
pub(crate) struct StoreClient {
    pub(crate) store: RedisStore,
    answers: UnboundedReceiver<(Op, Answered)>,
}

impl StoreClient {
    pub(crate) async fn try_open(url: &str, options: RedisStoreOptions) -> Result<Self, RedisOpenError> {
        let (sender, answers) = unbounded_channel();
        // The last answers may come after the test has ended.
        let sink = Arc::new(move |op, result| drop(sender.send((op, result))));
        let url = RedisUrl::parse(url).expect("a URL");
        Ok(Self { store: RedisStore::open(url, options, sink).await?, answers })
    }

    pub(crate) async fn open(url: &str, durability: Durability) -> Self {
        let options = RedisStoreOptions { durability, ..RedisStoreOptions::default() };
        Self::try_open(url, options).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Submits a request and waits for the answer.
    pub(crate) async fn ask(&mut self, op: Op) -> Answered {
        self.store.submit(op);
        self.answer().await
    }

    /// Waits for the answer to a submitted request.
    pub(crate) async fn answer(&mut self) -> Answered {
        let (_, answer) = timeout(PATIENCE, self.answers.recv()).await.expect("an answer").expect("a store");
        answer
    }

    /// Performs operations, with at most `abreast` in flight, and returns the answers.
    pub(crate) async fn pour(&mut self, ops: impl IntoIterator<Item = Op>, abreast: usize) -> Vec<Reply> {
        let mut replies = Vec::new();
        let mut ops = ops.into_iter();
        let mut under_way = 0;
        loop {
            while under_way < abreast
                && let Some(op) = ops.next()
            {
                self.store.submit(op);
                under_way += 1;
            }
            if under_way == 0 {
                return replies;
            }
            replies.push(self.answer().await.expect("an answer"));
            under_way -= 1;
        }
    }

    /// Repeats a request until it is answered; returns the number of tries as well.
    pub(crate) async fn ask_until(&mut self, op: &Op) -> (Reply, u32) {
        for tries in 1..1000 {
            match self.ask(op.clone()).await {
                Ok(reply) => return (reply, tries),
                Err(_) => timeout(PATIENCE, self.store.ready()).await.expect("it comes back"),
            }
        }
        panic!("no answer to {op:?}");
    }

    // === common requests ===

    pub(crate) async fn accept(&mut self, session: &str, message: &str) -> Result<Acceptance, Answered> {
        match self.ask(accept(session, message)).await {
            Ok(Reply::Accepted(accepted)) => Ok(accepted),
            other => Err(other),
        }
    }

    /// Accepts a message like a node, which asks again while nobody knows whether it was stored.
    pub(crate) async fn accept_until(&mut self, session: &str, message: &str) -> Acceptance {
        match self.ask_until(&accept(session, message)).await {
            (Reply::Accepted(accepted), _) => accepted,
            (other, _) => panic!("{other:?}"),
        }
    }

    pub(crate) async fn claim(&mut self, session: &str, holder: Holder, expect: OwnershipSnapshot) -> Claimed {
        let key = key(session);
        let nonce = Nonce(u128::from(expect.epoch.0) + 7);
        let floor = Epoch(0);
        match self.ask(Op::Claim { key, holder, nonce, expect, floor }).await {
            Ok(Reply::Claimed(claimed)) => *claimed,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn renew(&mut self, holder: Holder, fresh: bool) -> Answered {
        let ttl = Duration::from_secs(3);
        let sent = Mono::default();
        self.ask(Op::Renew { holder, ttl, fresh, sent }).await
    }

    /// Returns the store's era, by renewing the lease.
    pub(crate) async fn era(&mut self, holder: Holder, fresh: bool) -> u64 {
        match self.renew(holder, fresh).await {
            Ok(Reply::Renewed { era, .. }) => era,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn key(session: &str) -> SessionKey {
    SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse(session).expect("a name") }
}

pub(crate) fn holder(node: u128, life: u128) -> Holder {
    Holder { node: NodeId(node), life: LeaseId(life) }
}

pub(crate) fn ann() -> Principal {
    let user = UserId::parse("ann").expect("a name");
    Principal { tenant: TenantId::default_tenant(), user, operator: false, writes: true }
}

pub(crate) fn accept(session: &str, message: &str) -> Op {
    let key = key(session);
    let principal = ann();
    let user = principal.user.clone();
    let message_id = MessageId::parse(message).expect("a name");
    let input = Input {
        run_id: RunId::derive(&key, &user, &message_id),
        message_id,
        request_id: None,
        user,
        agent_id: None,
        message: Message { role: Role::User, content: Content::Text(format!("this is {message}")) },
        history: None,
        replaces: None,
        strategy: Strategy::Enqueue,
        metadata: None,
        origin: None,
        traceparent: None,
    };
    Op::Accept { key, principal, hash: input.body_hash(), input: Arc::new(input), route: None }
}

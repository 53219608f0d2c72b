//! Small named values that the shell itself keeps in the store beside the sessions. Replies to these ops are
//! intercepted before the switchboard sees them; the switchboard's own values have name prefixes of their own. Used by
//! `keys` and `models::budget`.
use super::{AnswerSink, Store};
use futures_util::future::try_join_all;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use turnway_core::limits;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_node::switchboard::is_switchboard_value;

/// Timeout of one op; a caller that still needs the value repeats the op.
const OP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum ops without a reply: all that a node issues at once, plus a few checks whether it has to, and those of budgets.
const PENDING_MAX: usize = 128 + limits::BUDGET_STORE_OPS_MAX;

/// A client for named values in the store.
#[derive(Clone)]
pub struct Registers {
    store: Arc<dyn Store>,
    replies: RegisterReplies,
}

/// An interceptor for the replies that belong to [`Registers`].
#[derive(Clone, Default)]
pub struct RegisterReplies(Arc<Mutex<VecDeque<PendingRegisterOp>>>);

type RegisterReply = Result<Reply, StoreError>;

/// An op that waits for its reply.
struct PendingRegisterOp {
    op: Op,
    reply: oneshot::Sender<RegisterReply>,
}

/// A named value and its version; version 0 means that the value never existed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterValue {
    /// Number of changes to the value so far.
    pub version: u64,
    /// None if the value was removed or never existed.
    pub bytes: Option<Vec<u8>>,
}

// === impl RegisterReplies ===

impl RegisterReplies {
    /// Returns a reply handler that consumes the replies of registers and passes all others to `answers`.
    pub fn intercept(&self, answers: AnswerSink) -> AnswerSink {
        let waiting = Arc::clone(&self.0);
        Arc::new(move |op, result| {
            let (Op::Get { name } | Op::Put { name, .. }) = &op else { return answers(op, result) };
            if is_switchboard_value(name) {
                return answers(op, result);
            }
            let mut waiting = locked(&waiting);
            // Of two equal ops the earlier one gets the earlier reply, since that reply is the older one. An op that
            // timed out keeps its position, so that no other op receives its reply.
            let index = waiting.iter().position(|waiting| waiting.op == op);
            if let Some(waiting) = index.and_then(|index| waiting.remove(index)) {
                let _ = waiting.reply.send(result);
            }
        })
    }

    /// Creates the client for this store.
    pub fn open(self, store: Arc<dyn Store>) -> Registers {
        Registers { store, replies: self }
    }
}

fn locked(waiting: &Mutex<VecDeque<PendingRegisterOp>>) -> MutexGuard<'_, VecDeque<PendingRegisterOp>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Registers ===

impl Registers {
    /// Returns the value stored under a name.
    pub async fn get(&self, name: &str) -> Result<RegisterValue, StoreError> {
        self.perform(Op::Get { name: name.to_owned() }).await
    }

    /// Returns the values under these names. The ops run concurrently: one after the other they would take one round
    /// trip each.
    pub async fn get_all(&self, names: &[String]) -> Result<Vec<RegisterValue>, StoreError> {
        try_join_all(names.iter().map(|name| self.get(name))).await
    }

    /// Stores a value if the current version is `expect`; returns the value stored afterwards in either case.
    pub async fn put(&self, name: &str, expect: u64, bytes: Vec<u8>) -> Result<RegisterValue, StoreError> {
        self.perform(Op::Put { name: name.to_owned(), expect, value: Some(bytes) }).await
    }

    async fn perform(&self, op: Op) -> Result<RegisterValue, StoreError> {
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = locked(&self.replies.0);
            if waiting.len() >= PENDING_MAX {
                return Err(StoreError::Unavailable);
            }
            waiting.push_back(PendingRegisterOp { op: op.clone(), reply: answer });
        }
        self.store.submit(op);
        match timeout(OP_TIMEOUT, answered).await {
            Ok(Ok(Ok(Reply::Value { version, value }))) => Ok(RegisterValue { version, bytes: value }),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Ok(Ok(_)) | Err(_)) | Err(_) => Err(StoreError::Unknown),
        }
    }
}

/// Returns registers in memory, for tests.
#[cfg(test)]
pub(crate) fn in_memory() -> Registers {
    let clock = crate::clock::Clock::start();
    let replies = RegisterReplies::default();
    let sink = replies.intercept(Arc::new(|_, _| {}));
    let quotas = turnway_core::store::quota::Quotas::OFF;
    let now = Arc::new(move || clock.now());
    replies.open(Arc::new(super::memory::MemoryStore::new(now, quotas, Arc::new(|_, _| {}), sink)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::memory::MemoryStore;
    use turnway_core::store::quota::Quotas;

    #[tokio::test]
    async fn register_write_requires_the_previous_version() {
        let others = Arc::new(Mutex::new(Vec::new()));
        let clock = Clock::start();
        let seen = Arc::clone(&others);
        let counter = RegisterReplies::default();
        let sink = counter.intercept(Arc::new(move |op, _| seen.lock().expect("sound").push(op)));
        let store: Arc<dyn Store> =
            Arc::new(MemoryStore::new(Arc::new(move || clock.now()), Quotas::OFF, Arc::new(|_, _| {}), sink));
        let registers = counter.open(Arc::clone(&store));
        let nothing = registers.get("a").await.expect("an answer");
        assert_eq!(nothing, RegisterValue { version: 0, bytes: None });
        let first = registers.put("a", 0, b"1".to_vec()).await.expect("an answer");
        assert_eq!(first.bytes.as_deref(), Some(&b"1"[..]));
        let late = registers.put("a", 0, b"2".to_vec()).await.expect("an answer");
        assert_eq!(late, first);
        assert_eq!(registers.get("a").await.as_ref(), Ok(&first));
        let names = ["a", "b"].map(str::to_owned);
        assert_eq!(registers.get_all(&names).await, Ok(vec![first, nothing]));
        // Replies to other ops are passed through.
        store.submit(Op::Sweep { limit: 1 });
        assert!(matches!(others.lock().expect("sound")[..], [Op::Sweep { .. }]));
    }
}

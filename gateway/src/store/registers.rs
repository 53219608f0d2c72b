//! Small values under names, asked for by the shell itself: what it keeps in the store beside sessions.
//!
//! The switchboard never asks for one, so their answers need not pass through it.
use super::{Answers, Store};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use turnway_core::store::{Op, Reply, StoreError};

/// A store that has not answered by then is asked again by whoever needs it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks for values, one at a time.
#[derive(Clone)]
pub struct Registers {
    store: Arc<dyn Store>,
    turn: Arc<tokio::sync::Mutex<()>>,
    counter: Counter,
}

/// Where their answers are picked up on their way.
#[derive(Clone, Default)]
pub struct Counter(Arc<Mutex<Option<Waiting>>>);

type Answer = Result<Reply, StoreError>;

/// What is waited for.
struct Waiting {
    op: Op,
    answer: oneshot::Sender<Answer>,
}

/// A value, and which one it is: 0 is none that ever was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Counts its changes.
    pub version: u64,
    /// None: forgotten, or never there.
    pub bytes: Option<Vec<u8>>,
}

// === impl Counter ===

impl Counter {
    /// The answers of a store, without those that are for registers.
    pub fn before(&self, answers: Answers) -> Answers {
        let waiting = Arc::clone(&self.0);
        Arc::new(move |op, result| {
            if !matches!(op, Op::Get { .. } | Op::Put { .. }) {
                return answers(op, result);
            }
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever has waited for too long asks for something else by now.
            if let Some(waiting) = waiting.take_if(|waiting| waiting.op == op) {
                let _ = waiting.answer.send(result);
            }
        })
    }

    /// The registers of that store.
    pub fn open(self, store: Arc<dyn Store>) -> Registers {
        Registers { store, turn: Arc::default(), counter: self }
    }
}

// === impl Registers ===

impl Registers {
    /// What is stored under a name.
    pub async fn get(&self, name: &str) -> Result<Value, StoreError> {
        self.ask(Op::Get { name: name.to_owned() }).await
    }

    /// Stores something if what is there is as expected; what is stored now, whether or not this is it.
    pub async fn put(&self, name: &str, expect: u64, bytes: Vec<u8>) -> Result<Value, StoreError> {
        self.ask(Op::Put { name: name.to_owned(), expect, value: Some(bytes) }).await
    }

    async fn ask(&self, op: Op) -> Result<Value, StoreError> {
        let _turn = self.turn.lock().await;
        let (answer, answered) = oneshot::channel();
        *self.counter.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Waiting { op: op.clone(), answer });
        self.store.submit(op);
        match timeout(PATIENCE, answered).await {
            Ok(Ok(Ok(Reply::Value { version, value }))) => Ok(Value { version, bytes: value }),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Ok(Ok(_)) | Err(_)) | Err(_) => Err(StoreError::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::memory::Memory;

    #[tokio::test]
    async fn a_value_is_set_by_who_knows_the_one_before() {
        let others = Arc::new(Mutex::new(Vec::new()));
        let (clock, seen) = (Clock::start(), Arc::clone(&others));
        let counter = Counter::default();
        let sink = counter.before(Arc::new(move |op, _| seen.lock().expect("sound").push(op)));
        let store: Arc<dyn Store> = Arc::new(Memory::new(Arc::new(move || clock.now()), sink));
        let registers = counter.open(Arc::clone(&store));
        let nothing = registers.get("a").await.expect("an answer");
        assert_eq!(nothing, Value { version: 0, bytes: None });
        let first = registers.put("a", 0, b"1".to_vec()).await.expect("an answer");
        assert_eq!(first.bytes.as_deref(), Some(&b"1"[..]));
        let late = registers.put("a", 0, b"2".to_vec()).await.expect("an answer");
        assert_eq!(late, first);
        assert_eq!(registers.get("a").await, Ok(first));
        // What others ask goes to others.
        store.submit(Op::Sweep { limit: 1 });
        assert!(matches!(others.lock().expect("sound")[..], [Op::Sweep { .. }]));
    }
}

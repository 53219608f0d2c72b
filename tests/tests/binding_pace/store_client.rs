//! A store that tests use with one op at a time, or with many in flight.
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use turnway::store::{AnswerSink, Store};
use turnway_core::store::{Op, Reply, StoreError};
use turnway_tests::real::PATIENCE;

/// Ops in flight where a rate is measured.
pub(crate) const ABREAST: usize = 256;

type Answer = (Op, Result<Reply, StoreError>);

/// Answers of a store that is about to be opened.
pub(crate) struct Answers(UnboundedReceiver<Answer>);

/// A store and its answers.
pub(crate) struct StoreClient {
    store: Arc<dyn Store>,
    answers: Answers,
}

/// Returns what a store is opened with, and its answers.
pub(crate) fn answers() -> (AnswerSink, Answers) {
    let (sender, answers) = unbounded_channel();
    // The last answers may come after the test has ended.
    (Arc::new(move |op, result| drop(sender.send((op, result)))), Answers(answers))
}

impl StoreClient {
    pub(crate) fn new(store: Arc<dyn Store>, answers: Answers) -> Self {
        Self { store, answers }
    }

    pub(crate) fn submit(&self, op: Op) {
        self.store.submit(op);
    }

    /// Waits for the answer to a submitted op.
    pub(crate) async fn answer(&mut self) -> (Op, Reply) {
        let answer = timeout(PATIENCE, self.answers.0.recv()).await.expect("an answer in time");
        let (op, result) = answer.expect("a store");
        let reply = result.unwrap_or_else(|error| panic!("{op:?}: {error:?}"));
        (op, reply)
    }

    /// Waits at most until `deadline` for the answer to a submitted op.
    pub(crate) async fn answer_before(&mut self, deadline: Instant) -> Option<(Op, Reply)> {
        let answer = tokio::time::timeout_at(deadline.into(), self.answer()).await;
        answer.ok()
    }

    /// Performs one op.
    pub(crate) async fn ask(&mut self, op: Op) -> Reply {
        self.submit(op);
        self.answer().await.1
    }

    /// Performs ops with at most [`ABREAST`] in flight; `next` may return one more op for each reply. Returns the time
    /// that all took.
    pub(crate) async fn pour(
        &mut self,
        ops: impl Iterator<Item = Op>,
        mut next: impl FnMut(Op, Reply) -> Option<Op>,
    ) -> Duration {
        let mut ops = ops.fuse();
        let mut in_flight = 0;
        let start = Instant::now();
        loop {
            while in_flight < ABREAST
                && let Some(op) = ops.next()
            {
                self.submit(op);
                in_flight += 1;
            }
            if in_flight == 0 {
                return start.elapsed();
            }
            let (op, reply) = self.answer().await;
            match next(op, reply) {
                Some(more) => self.submit(more),
                None => in_flight -= 1,
            }
        }
    }
}

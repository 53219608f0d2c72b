//! Where inputs come from: links, agents, the store, and what the shell answers to itself.
use crate::agent::Report;
use crate::links::Asked;
use crate::metrics::{DriverMetrics, Source};
use crate::store::Answers;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, mpsc};
use turnway_bindings::switchboard::Input;
use turnway_core::limits;
use turnway_core::store::{Op, Reply, StoreError};

/// Of each batch so much may come from each source, so that none can starve another.
const QUOTA: usize = limits::DRIVER_BATCH_MAX / 3;

/// Answers of the store on their way to the switchboard. Not bounded by a number of its own: it holds
/// at most one answer to each op, and the store takes no more than [`limits::STORE_QUEUE_MAX`] ops.
#[derive(Clone, Default)]
pub struct AnswerQueue(Arc<Answered>);

#[derive(Default)]
struct Answered {
    queue: Mutex<VecDeque<(Op, Result<Reply, StoreError>)>>,
    bell: Notify,
}

/// Everything that waits for the switchboard.
pub struct Inbox {
    asked: Asked,
    reports: mpsc::Receiver<Report>,
    answers: AnswerQueue,
    /// Taken from the links while waiting.
    said: Vec<Input>,
    /// Taken from the agents while waiting.
    reported: Vec<Report>,
    /// What the shell answers by itself.
    echoes: Vec<Input>,
}

// === impl AnswerQueue ===

impl AnswerQueue {
    /// For the store: takes an answer, on any thread, without waiting.
    pub fn sink(&self) -> Answers {
        let answered = Arc::clone(&self.0);
        Arc::new(move |op, result| {
            answered.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back((op, result));
            answered.bell.notify_one();
        })
    }

    fn take(&self, into: &mut Vec<Input>) -> usize {
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let count = queue.len().min(QUOTA);
        into.extend(queue.drain(..count).map(|(op, result)| Input::Stored { op, result }));
        count
    }

    fn waiting(&self) -> usize {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

// === impl Inbox ===

impl Inbox {
    /// An inbox with these three sources.
    pub fn new(asked: Asked, reports: mpsc::Receiver<Report>, answers: AnswerQueue) -> Self {
        let (said, reported, echoes) = (Vec::new(), Vec::new(), Vec::new());
        Self { asked, reports, answers, said, reported, echoes }
    }

    /// Waits until there is something. Safe to drop and to ask again: nothing is lost.
    pub async fn wait(&mut self) {
        let is_something = !(self.said.is_empty() && self.reported.is_empty() && self.echoes.is_empty());
        if is_something || self.answers.waiting() > 0 {
            return;
        }
        tokio::select! {
            _ = self.asked.take(&mut self.said, QUOTA) => {}
            _ = self.reports.recv_many(&mut self.reported, QUOTA) => {}
            () = self.answers.0.bell.notified() => {}
        }
    }

    /// Takes the next batch, in which every source has its part.
    pub fn take(&mut self, batch: &mut Vec<Input>, metrics: &DriverMetrics) {
        batch.append(&mut self.echoes);
        metrics.took(Source::Store, self.answers.take(batch));
        while self.said.len() < QUOTA
            && let Some(input) = self.asked.try_take()
        {
            self.said.push(input);
        }
        metrics.took(Source::Links, self.said.len());
        batch.append(&mut self.said);
        while self.reported.len() < QUOTA
            && let Ok(report) = self.reports.try_recv()
        {
            self.reported.push(report);
        }
        metrics.took(Source::Agents, self.reported.len());
        join(self.reported.drain(..), batch);
    }

    /// Something the shell knows the answer to.
    pub fn echo(&mut self, input: Input) {
        self.echoes.push(input);
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.asked.waiting() + self.reports.len() + self.answers.waiting()
    }
}

/// Reports of one attempt that stand one after the other become one input, so that their facts share an
/// append: an agent that says all of it at once costs the disk once.
fn join(reports: impl Iterator<Item = Report>, batch: &mut Vec<Input>) {
    for Report { key, run_id, attempt, event } in reports {
        match batch.last_mut() {
            Some(Input::Agent { run_id: last, attempt: of, events, .. })
                if *last == run_id && *of == attempt =>
            {
                events.push(event);
            }
            Some(_) | None => batch.push(Input::Agent { key, run_id, attempt, events: vec![event] }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links;
    use crate::metrics::Metrics;
    use prometheus::Registry;
    use turnway_core::id::{LinkId, NodeId};

    #[tokio::test]
    async fn no_source_starves_another() {
        let metrics = Metrics::register(&Registry::new()).expect("each family once");
        let (board, asked) = links::board();
        let (_reports, reports) = mpsc::channel(1);
        let answers = AnswerQueue::default();
        let mut inbox = Inbox::new(asked, reports, answers.clone());
        for _ in 0..limits::DRIVER_BATCH_MAX {
            board.disconnect(LinkId(1)).await.expect("room");
            answers.sink()(Op::Lease { node: NodeId(1) }, Ok(Reply::Lost));
        }
        let (mut batches, mut seen) = (0, 0);
        while seen < 2 * limits::DRIVER_BATCH_MAX {
            inbox.wait().await;
            let mut batch = Vec::new();
            inbox.take(&mut batch, &metrics.driver);
            assert!(!batch.is_empty() && batch.len() <= limits::DRIVER_BATCH_MAX);
            (batches, seen) = (batches + 1, seen + batch.len());
        }
        assert!(batches >= 3 && inbox.waiting() == 0);
    }
}

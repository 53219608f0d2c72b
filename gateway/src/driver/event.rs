//! The input queues of the driver: links, agents, tools, the store, other nodes, and the driver itself. Used by
//! `driver`.
use crate::agent::Report;
use crate::bus::{Ear, Heard};
use crate::links::Asked;
use crate::metrics::{DriverMetrics, Source};
use crate::store::Answers;
use crate::tools;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, mpsc};
use turnway_bindings::peer::frame::Frame;
use turnway_bindings::switchboard::Input;
use turnway_core::limits;
use turnway_core::store::{Op, Reply, StoreError};

/// Maximum inputs of each source in one batch, so that no source can starve another.
const QUOTA: usize = limits::DRIVER_BATCH_MAX / 4;

/// Answers of the store on their way to the switchboard. Needs no limit of its own: it holds at most one answer to each
/// operation, and the store takes no more than [`limits::STORE_QUEUE_MAX`] operations.
#[derive(Clone, Default)]
pub struct AnswerQueue(Arc<Answered>);

#[derive(Default)]
struct Answered {
    queue: Mutex<VecDeque<(Op, Result<Reply, StoreError>)>>,
    bell: Notify,
}

/// All inputs that wait for the switchboard.
pub struct Inbox {
    asked: Asked,
    reports: mpsc::Receiver<Report>,
    tools: mpsc::Receiver<tools::Report>,
    answers: AnswerQueue,
    ear: Ear,
    /// Inputs from the bus: a frame holds more than one, and may hold more than a batch.
    heard: VecDeque<Input>,
    /// Taken from the links while waiting.
    said: Vec<Input>,
    /// Taken from the agents while waiting.
    reported: Vec<Report>,
    /// Inputs that the driver or a source put in directly.
    echoes: Vec<Input>,
}

// === impl AnswerQueue ===

impl AnswerQueue {
    /// Returns the callback by which the store delivers answers; it may be called on any thread, and does not block.
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
    /// Creates an inbox with these five sources.
    pub fn new(
        asked: Asked,
        reports: mpsc::Receiver<Report>,
        tools: mpsc::Receiver<tools::Report>,
        answers: AnswerQueue,
        ear: Ear,
    ) -> Self {
        let (said, reported, echoes, heard) = (Vec::new(), Vec::new(), Vec::new(), VecDeque::new());
        Self { asked, reports, tools, answers, ear, heard, said, reported, echoes }
    }

    /// Waits until there is an input. Cancel-safe: no input is lost.
    pub async fn wait(&mut self) {
        let is_nothing = self.said.is_empty()
            && self.reported.is_empty()
            && self.echoes.is_empty()
            && self.heard.is_empty();
        if !is_nothing || self.answers.waiting() > 0 {
            return;
        }
        tokio::select! {
            _ = self.asked.take(&mut self.said, QUOTA) => {}
            _ = self.reports.recv_many(&mut self.reported, QUOTA) => {}
            Some(report) = self.tools.recv() => self.echoes.push(told(report)),
            () = self.answers.0.bell.notified() => {}
            Some(heard) = self.ear.recv() => hear(&mut self.heard, heard),
        }
    }

    /// Takes the next batch, in which every source gets its share.
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
        for _ in 0..QUOTA {
            let Ok(report) = self.tools.try_recv() else { break };
            batch.push(told(report));
        }
        while self.heard.len() < QUOTA
            && let Ok(heard) = self.ear.try_recv()
        {
            hear(&mut self.heard, heard);
        }
        let count = self.heard.len().min(QUOTA);
        metrics.took(Source::Bus, count);
        batch.extend(self.heard.drain(..count));
    }

    /// Adds an input of the driver itself.
    pub fn echo(&mut self, input: Input) {
        self.echoes.push(input);
    }

    /// Returns how many inputs wait; of the bus, only those whose frames were decoded.
    pub fn waiting(&self) -> usize {
        self.asked.waiting()
            + self.reports.len()
            + self.tools.len()
            + self.answers.waiting()
            + self.heard.len()
    }
}

fn told(tools::Report { key, action_id, report }: tools::Report) -> Input {
    Input::Tool { key, action_id, report }
}

fn hear(into: &mut VecDeque<Input>, heard: Heard) {
    match heard {
        Heard::Frame(Frame { from, words }) => {
            into.extend(words.into_iter().map(|words| Input::Peer { from, words }));
        }
        Heard::Unheard(to) => into.push_back(Input::Unheard { to }),
        Heard::Gap => into.push_back(Input::Gap),
        Heard::Heirs(nodes) => into.push_back(Input::Heirs(nodes)),
    }
}

/// Merges consecutive reports of one attempt into one input, so that their facts share an append: an agent that sends
/// everything at once costs one disk sync.
fn join(reports: impl Iterator<Item = Report>, batch: &mut Vec<Input>) {
    for Report { key, run_id, attempt, epoch, event } in reports {
        match batch.last_mut() {
            Some(Input::Agent { run_id: last, attempt: of, epoch: under, events, .. })
                if *last == run_id && *of == attempt && *under == epoch =>
            {
                events.push(event);
            }
            Some(_) | None => batch.push(Input::Agent { key, run_id, attempt, epoch, events: vec![event] }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::{bus, links};
    use prometheus::Registry;
    use turnway_bindings::peer::Words;
    use turnway_core::id::{LinkId, NodeId};
    use turnway_core::time::Mono;

    #[tokio::test]
    async fn event_sources_are_served_fairly() {
        let metrics = Metrics::register(&Registry::new()).expect("each family once");
        let (board, asked) = links::board();
        let ((_reports, reports), (_told, tools)) = (mpsc::channel(1), mpsc::channel(1));
        let (answers, (mouth, ear)) = (AnswerQueue::default(), bus::ear());
        let mut inbox = Inbox::new(asked, reports, tools, answers.clone(), ear);
        // The maximum that one frame may hold.
        let words = vec![Words::Knock; limits::FRAME_WORDS_MAX];
        mouth.try_send(Heard::Frame(Frame { from: NodeId(2), words }));
        for _ in 0..limits::DRIVER_BATCH_MAX {
            board.disconnect(LinkId(1)).await.expect("room");
            answers.sink()(Op::Lease { node: NodeId(1), sent: Mono::default() }, Ok(Reply::Lost));
        }
        let (mut batches, mut links, mut others) = (0, 0, 0);
        while links + others < 2 * limits::DRIVER_BATCH_MAX + limits::FRAME_WORDS_MAX {
            inbox.wait().await;
            let mut batch = Vec::new();
            inbox.take(&mut batch, &metrics.driver);
            assert!(!batch.is_empty() && batch.len() <= limits::DRIVER_BATCH_MAX);
            let of_links = batch.iter().filter(|input| matches!(input, Input::Disconnect { .. })).count();
            assert!(
                of_links == QUOTA || links == limits::DRIVER_BATCH_MAX,
                "each batch has its part of them"
            );
            (batches, links, others) = (batches + 1, links + of_links, others + batch.len() - of_links);
        }
        assert!(batches >= 4 && inbox.waiting() == 0);
    }
}

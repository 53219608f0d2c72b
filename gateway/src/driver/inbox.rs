//! The input queues of the driver: links, agents, tools, the store, other nodes, and the driver itself. Used by
//! `driver`.
use crate::agent::AttemptReport;
use crate::bus::{BusEvent, BusEventReceiver};
use crate::links::CommandReceiver;
use crate::metrics::{DriverMetrics, InputSource};
use crate::store::AnswerSink;
use crate::tools;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, mpsc};
use turnway_core::limits;
use turnway_core::store::{Op, Reply, StoreError};
use turnway_node::switchboard::Input;
use turnway_wire::peer::frame::PeerFrame;

/// Maximum inputs of each source in one batch, so that no source can starve another.
const QUOTA: usize = limits::DRIVER_BATCH_MAX / 4;

/// Answers of the store on their way to the switchboard. Needs no limit of its own: it holds at most one answer to each
/// operation, and the store takes no more than [`limits::STORE_QUEUE_MAX`] operations.
#[derive(Clone, Default)]
pub struct AnswerQueue(Arc<AnswerQueueInner>);

#[derive(Default)]
struct AnswerQueueInner {
    queue: Mutex<VecDeque<(Op, Result<Reply, StoreError>)>>,
    wake: Notify,
}

/// All inputs that wait for the switchboard.
pub struct DriverInbox {
    commands: CommandReceiver,
    reports: mpsc::Receiver<AttemptReport>,
    tools: mpsc::Receiver<tools::RunnerReport>,
    answers: AnswerQueue,
    bus_events: BusEventReceiver,
    /// Inputs from the bus: a frame holds more than one, and may hold more than a batch.
    bus_inputs: VecDeque<Input>,
    /// Taken from the links while waiting.
    link_inputs: Vec<Input>,
    /// Taken from the agents while waiting.
    agent_reports: Vec<AttemptReport>,
    /// Inputs that the driver or a source put in directly.
    own_inputs: Vec<Input>,
}

// === impl AnswerQueue ===

impl AnswerQueue {
    /// Returns the callback by which the store delivers answers; it may be called on any thread, and does not block.
    pub fn sink(&self) -> AnswerSink {
        let answered = Arc::clone(&self.0);
        Arc::new(move |op, result| {
            answered.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back((op, result));
            answered.wake.notify_one();
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

// === impl DriverInbox ===

impl DriverInbox {
    /// Creates an inbox with these five sources.
    pub fn new(
        commands: CommandReceiver,
        reports: mpsc::Receiver<AttemptReport>,
        tools: mpsc::Receiver<tools::RunnerReport>,
        answers: AnswerQueue,
        bus_events: BusEventReceiver,
    ) -> Self {
        let link_inputs = Vec::new();
        let agent_reports = Vec::new();
        let own_inputs = Vec::new();
        let bus_inputs = VecDeque::new();
        Self { commands, reports, tools, answers, bus_events, bus_inputs, link_inputs, agent_reports, own_inputs }
    }

    /// Waits until there is an input. Cancel-safe: no input is lost.
    pub async fn wait(&mut self) {
        let is_nothing = self.link_inputs.is_empty()
            && self.agent_reports.is_empty()
            && self.own_inputs.is_empty()
            && self.bus_inputs.is_empty();
        if !is_nothing || self.answers.waiting() > 0 {
            return;
        }
        tokio::select! {
            _ = self.commands.take(&mut self.link_inputs, QUOTA) => {}
            _ = self.reports.recv_many(&mut self.agent_reports, QUOTA) => {}
            Some(report) = self.tools.recv() => self.own_inputs.push(tool_input(report)),
            () = self.answers.0.wake.notified() => {}
            Some(event) = self.bus_events.recv() => push_bus_event(&mut self.bus_inputs, event),
        }
    }

    /// Takes the next batch, in which every source gets its share.
    pub fn take(&mut self, batch: &mut Vec<Input>, metrics: &DriverMetrics) {
        batch.append(&mut self.own_inputs);
        metrics.count_inputs(InputSource::Store, self.answers.take(batch));
        while self.link_inputs.len() < QUOTA
            && let Some(input) = self.commands.try_take()
        {
            self.link_inputs.push(input);
        }
        metrics.count_inputs(InputSource::Links, self.link_inputs.len());
        batch.append(&mut self.link_inputs);
        while self.agent_reports.len() < QUOTA
            && let Ok(report) = self.reports.try_recv()
        {
            self.agent_reports.push(report);
        }
        metrics.count_inputs(InputSource::Agents, self.agent_reports.len());
        merge_reports(self.agent_reports.drain(..), batch);
        for _ in 0..QUOTA {
            let Ok(report) = self.tools.try_recv() else { break };
            batch.push(tool_input(report));
        }
        while self.bus_inputs.len() < QUOTA
            && let Ok(event) = self.bus_events.try_recv()
        {
            push_bus_event(&mut self.bus_inputs, event);
        }
        let count = self.bus_inputs.len().min(QUOTA);
        metrics.count_inputs(InputSource::Bus, count);
        batch.extend(self.bus_inputs.drain(..count));
    }

    /// Adds an input of the driver itself.
    pub fn push(&mut self, input: Input) {
        self.own_inputs.push(input);
    }

    /// Returns how many inputs wait; of the bus, only those whose frames were decoded.
    pub fn waiting(&self) -> usize {
        self.commands.waiting() + self.reports.len() + self.tools.len() + self.answers.waiting() + self.bus_inputs.len()
    }
}

fn tool_input(tools::RunnerReport { key, action_id, report }: tools::RunnerReport) -> Input {
    Input::Tool { key, action_id, report }
}

fn push_bus_event(into: &mut VecDeque<Input>, event: BusEvent) {
    match event {
        BusEvent::Frame(PeerFrame { from, messages }) => {
            into.extend(messages.into_iter().map(|messages| Input::Peer { from, message: messages }));
        }
        BusEvent::NotSubscribed(to) => into.push_back(Input::PublishFailed { to }),
        BusEvent::Gap => into.push_back(Input::MessagesMissed),
        BusEvent::Successors(nodes) => into.push_back(Input::Successors(nodes)),
        BusEvent::FactLevel(level) => into.push_back(Input::FactLevel(level)),
    }
}

/// Merges consecutive reports of one attempt into one input, so that their facts share an append: an agent that sends
/// everything at once costs one disk sync.
fn merge_reports(reports: impl Iterator<Item = AttemptReport>, batch: &mut Vec<Input>) {
    for AttemptReport { key, run_id, attempt, epoch, event } in reports {
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
    use turnway_core::id::{LinkId, NodeId};
    use turnway_core::time::Mono;
    use turnway_wire::peer::PeerMessage;

    #[tokio::test]
    async fn event_sources_are_served_fairly() {
        let metrics = Metrics::register(&Registry::new()).expect("each family once");
        let (commands, command_receiver) = links::command_channel();
        let ((_reports, reports), (_told, tools)) = (mpsc::channel(1), mpsc::channel(1));
        let (answers, (event_sender, event_receiver)) = (AnswerQueue::default(), bus::event_channel());
        let mut inbox = DriverInbox::new(command_receiver, reports, tools, answers.clone(), event_receiver);
        // The maximum that one frame may hold.
        let messages = vec![PeerMessage::Probe; limits::FRAME_MESSAGES_MAX];
        event_sender.try_send(BusEvent::Frame(PeerFrame { from: NodeId(2), messages }));
        for _ in 0..limits::DRIVER_BATCH_MAX {
            commands.disconnect(LinkId(1)).await.expect("room");
            answers.sink()(Op::Lease { node: NodeId(1), sent: Mono::default() }, Ok(Reply::LeaseLost));
        }
        let mut batches = 0;
        let mut links = 0;
        let mut others = 0;
        while links + others < 2 * limits::DRIVER_BATCH_MAX + limits::FRAME_MESSAGES_MAX {
            inbox.wait().await;
            let mut batch = Vec::new();
            inbox.take(&mut batch, &metrics.driver);
            assert!(!batch.is_empty() && batch.len() <= limits::DRIVER_BATCH_MAX);
            let of_links = batch.iter().filter(|input| matches!(input, Input::Disconnect { .. })).count();
            assert!(of_links == QUOTA || links == limits::DRIVER_BATCH_MAX, "each batch has its part of them");
            (batches, links, others) = (batches + 1, links + of_links, others + batch.len() - of_links);
        }
        assert!(batches >= 4 && inbox.waiting() == 0);
    }
}

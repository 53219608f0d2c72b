//! The session's outputs, and the outbox that holds an output back until the facts it depends on are durable.
use crate::id::{ControlId, DeliveryId, Epoch, InboxPosition, RunId, Seq};
use crate::protocol::action::{ProcessOutput, ToolOrder};
use crate::protocol::agent::Order;
use crate::protocol::chunk::TextChunk;
use crate::protocol::delivery::DeliveryOrder;
use crate::protocol::entry::Entry;
use crate::protocol::input::Strategy;
use crate::protocol::member::SessionTask;
use crate::protocol::route::RouteQuestion;
use crate::protocol::task::TaskOrder;
use crate::time::Mono;
use std::collections::VecDeque;
use std::sync::Arc;

/// An output of the session machine. A recorded fact, once durable, is its own acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write a fact at the end of the log.
    Record(FactRecord),
    /// Remove a control entry that needed no fact from its lane.
    RemoveControl { position: InboxPosition },
    /// Send an order to an agent, never before its fact is durable (G4).
    Order(Order),
    /// Send an order to a tool runner, never before its fact is durable.
    Tool(ToolOrder),
    /// Have the node begin or cancel a task, never before its fact is durable.
    Task(TaskOrder),
    /// Answer a question about the session's bindings with [`super::Input::Route`].
    Route(RouteQuestion),
    /// Have an adapter send a part of a delivery, never before its fact is durable.
    Deliver(Arc<DeliveryOrder>),
    /// Withdraw the order for a part of a delivery that has ended without it.
    WithdrawDelivery(DeliveryId),
    /// Show a piece of text to all subscribers. May be lost: a checkpoint repeats the text.
    Chunk(TextChunk),
    /// Show output of a process to those that have asked for it. May be lost, for good.
    ProcessOutput {
        /// The run that requested the action.
        run_id: RunId,
        printed: Box<ProcessOutput>,
    },
    /// Tell the node that sent a control entry that the entry is answered, durably.
    ControlAnswered {
        control: ControlId,
        /// True if a fact contains the answer, so that subscribers of the session have been told.
        shown: bool,
    },
    /// Execute a task and answer with [`super::Input::TaskResult`].
    SessionTask(SessionTask),
    /// Read the inbox up to its end, then answer with [`super::Input::InboxRead`]: a control entry names a turn that
    /// may be there.
    ReadInbox,
    /// Read the input at [`super::SessionRuntime::wanted_content`] from the inbox, then answer with
    /// [`super::Input::Content`].
    ReadContent,
}

/// One fact to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactRecord {
    pub entry: Arc<Entry>,
    /// The input that ends with the fact, and is removed from the inbox in the same step.
    pub ends: Option<EndedInput>,
    /// The control entry that the fact answers.
    pub answers: Option<InboxPosition>,
    /// True if the session is closed from here on, false if it is open; `None`: unchanged.
    pub closed: Option<bool>,
}

/// An input that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedInput {
    pub position: InboxPosition,
    pub run_id: RunId,
    /// Time at which this owner got the input: for metrics.
    pub taken: Mono,
    /// The applied strategy: for metrics.
    pub strategy: Strategy,
}

/// Outputs in order. An output that depends on a fact waits until the fact is durable; records may overtake it (as
/// persisted messages in raft-rs).
#[derive(Debug, Default)]
pub(super) struct Outbox {
    ready: VecDeque<Output>,
    gated: VecDeque<(Seq, Output)>,
    durable_upto: Seq,
}

impl Output {
    /// Returns the order to close an agent's request, if the output is one: the only kind of output that outlives an
    /// ownership.
    pub fn drop_order(&self) -> Option<&Order> {
        match self {
            Self::Order(order @ Order::Drop { .. }) => Some(order),
            // A stop whose fact is not durable: the next owner may resume the attempt.
            Self::Order(
                Order::Invoke(_)
                | Order::Cancel { .. }
                | Order::Steer(_)
                | Order::Stop { .. }
                | Order::News(_)
                | Order::Credit { .. },
            )
            | Self::Tool(_)
            | Self::Task(_)
            | Self::Route(_)
            | Self::Deliver(_)
            | Self::WithdrawDelivery(_)
            | Self::Record(_)
            | Self::RemoveControl { .. }
            | Self::Chunk(_)
            | Self::ProcessOutput { .. }
            | Self::ControlAnswered { .. }
            | Self::SessionTask(_)
            | Self::ReadInbox
            | Self::ReadContent => None,
        }
    }
}

impl Outbox {
    pub(super) fn new(durable_upto: Seq) -> Self {
        Self { durable_upto, ..Self::default() }
    }

    pub(super) fn push(&mut self, output: Output) {
        self.ready.push_back(output);
    }

    /// Adds an output that waits until the fact at `seq` is durable, and for every gated output before it.
    pub(super) fn push_after(&mut self, seq: Seq, output: Output) {
        if seq <= self.durable_upto && self.gated.is_empty() {
            self.ready.push_back(output);
        } else {
            self.gated.push_back((seq, output));
        }
    }

    /// Returns whether an output waits for a fact that is not durable.
    pub(super) fn is_gated(&self) -> bool {
        !self.gated.is_empty()
    }

    pub(super) fn mark_durable(&mut self, seq: Seq) {
        self.durable_upto = self.durable_upto.max(seq);
        // Gates are set in log order, except for an early gate of text, which only waits for the outputs before it.
        while self.gated.front().is_some_and(|(gate, _)| *gate <= self.durable_upto) {
            let Some((_, output)) = self.gated.pop_front() else { break };
            self.ready.push_back(output);
        }
    }

    /// Returns the orders to close requests that were sent, whatever else the end of these requests waits for.
    pub(super) fn pending_drops(&self) -> Vec<Order> {
        let unsent = |run: &RunId, number: u32| {
            self.gated.iter().any(|(_, output)| {
                let Output::Order(Order::Invoke(invoke)) = output else { return false };
                invoke.run_id == *run && invoke.attempt == number
            })
        };
        let gated = self.gated.iter().map(|(_, output)| output);
        let drops = self.ready.iter().chain(gated).filter_map(Output::drop_order);
        let sent = drops.filter(|order| !matches!(order, Order::Drop { run_id, attempt } if unsent(run_id, *attempt)));
        sent.cloned().collect()
    }

    /// Changes the epoch of orders that were not sent yet to that of another ownership.
    pub(super) fn set_epoch(&mut self, epoch: Epoch) {
        let gated = self.gated.iter_mut().map(|(_, output)| output);
        for output in self.ready.iter_mut().chain(gated) {
            match output {
                Output::Order(Order::Invoke(invoke)) => invoke.epoch = epoch,
                Output::Order(Order::Steer(steer)) => steer.epoch = epoch,
                Output::Order(Order::Cancel { epoch: under, .. } | Order::Stop { epoch: under, .. }) => *under = epoch,
                Output::Order(Order::Drop { .. } | Order::Credit { .. } | Order::News(_))
                | Output::Tool(_)
                | Output::Task(_)
                | Output::Route(_)
                | Output::Deliver(_)
                | Output::WithdrawDelivery(_)
                | Output::Record(_)
                | Output::RemoveControl { .. }
                | Output::Chunk(_)
                | Output::ProcessOutput { .. }
                | Output::ControlAnswered { .. }
                | Output::SessionTask(_)
                | Output::ReadInbox
                | Output::ReadContent => {}
            }
        }
    }

    /// Drops the order to hand over an input that has ended or has become a turn of its own.
    pub(super) fn drop_steer(&mut self, turn: &RunId) {
        self.gated
            .retain(|(_, output)| !matches!(output, Output::Order(Order::Steer(steer)) if steer.turn_id == *turn));
    }

    pub(super) fn is_durable(&self, seq: Seq) -> bool {
        seq <= self.durable_upto
    }

    pub(super) fn pop(&mut self) -> Option<Output> {
        self.ready.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.gated.is_empty()
    }
}

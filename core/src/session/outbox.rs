//! What a session asks for, and how it waits for its facts to be durable.
use crate::id::{ControlId, Epoch, Place, RunId, Seq};
use crate::private::Private;
use crate::protocol::action::{Printed, ToolOrder};
use crate::protocol::agent::{Order, TextKind};
use crate::protocol::entry::Entry;
use crate::protocol::input::Strategy;
use crate::protocol::member::Errand;
use crate::time::Mono;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a session asks for. A recorded fact, once durable, is its own acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write this at the end of the log.
    Record(Record),
    /// Take a control entry from its lane that needed no fact.
    Consume {
        /// Where it lies.
        place: Place,
    },
    /// Tell an agent. Never before its fact is durable (G4).
    Order(Order),
    /// Tell a tool runner. Never before its fact is durable.
    Tool(ToolOrder),
    /// Show everyone. May be lost: checkpoints heal it.
    Chunk {
        /// Which run.
        run_id: RunId,
        /// Which attempt.
        attempt: u32,
        /// Bytes of this attempt's text of this kind before it.
        offset: u64,
        /// Answer or reasoning.
        kind: TextKind,
        /// The piece.
        text: Private<Arc<str>>,
    },
    /// Show whoever wants to see it. May be lost, for good.
    Printed {
        /// In which run it was asked for.
        run_id: RunId,
        /// What.
        printed: Box<Printed>,
    },
    /// Tell the node that asked: this control entry is answered, durably.
    Answered {
        /// Which.
        control: ControlId,
        /// A fact says so: whoever follows the session has been told.
        shown: bool,
    },
    /// Let whoever keeps sessions do this, and say [`super::Input::Receipt`].
    Errand(Errand),
    /// Read the inbox up to its end, then say [`super::Input::CaughtUp`]: something names a turn that
    /// may lie there.
    CatchUp,
    /// Read the input at [`super::SessionRuntime::wanted_content`] from the inbox, then say
    /// [`super::Input::Content`].
    ReadContent,
}

/// One fact to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The fact.
    pub entry: Arc<Entry>,
    /// The input that ends with it, and leaves the inbox in the same step.
    pub ends: Option<Ended>,
    /// The control entry that is answered by it.
    pub answers: Option<Place>,
    /// Whether the session is closed from here on.
    pub closed: Option<bool>,
}

/// An input that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Where it lies.
    pub place: Place,
    /// The turn it opened.
    pub run_id: RunId,
    /// When this owner was handed it: for metrics.
    pub taken: Mono,
    /// How it came: for metrics.
    pub strategy: Strategy,
}

/// Outputs in order; one that depends on a fact waits until that is durable, but records may
/// overtake it (raft-rs: persisted messages).
#[derive(Debug, Default)]
pub(super) struct Outbox {
    ready: VecDeque<Output>,
    gated: VecDeque<(Seq, Output)>,
    durable: Seq,
}

impl Outbox {
    pub(super) fn new(durable: Seq) -> Self {
        Self { durable, ..Self::default() }
    }

    pub(super) fn now(&mut self, output: Output) {
        self.ready.push_back(output);
    }

    /// After the fact at `seq` is durable, and after everything said `after` that before.
    pub(super) fn after(&mut self, seq: Seq, output: Output) {
        if seq <= self.durable && self.gated.is_empty() {
            self.ready.push_back(output);
        } else {
            self.gated.push_back((seq, output));
        }
    }

    /// Whether something waits for a fact that is not durable.
    pub(super) fn is_gated(&self) -> bool {
        !self.gated.is_empty()
    }

    pub(super) fn durable(&mut self, seq: Seq) {
        self.durable = self.durable.max(seq);
        // Gates are set in log order but for an early text gate, which only waits for its elders.
        while self.gated.front().is_some_and(|(gate, _)| *gate <= self.durable) {
            let Some((_, output)) = self.gated.pop_front() else { break };
            self.ready.push_back(output);
        }
    }

    /// Requests that are to be closed: those that have gone out, whatever else their end waits for.
    pub(super) fn unsent_drops(&self) -> Vec<Order> {
        let unsent = |run: &RunId, number: u32| {
            self.gated.iter().any(|(_, output)| {
                let Output::Order(Order::Invoke(invoke)) = output else { return false };
                invoke.run_id == *run && invoke.attempt == number
            })
        };
        let gated = self.gated.iter().map(|(_, output)| output);
        let drops = self.ready.iter().chain(gated).filter_map(|output| match output {
            Output::Order(Order::Drop { run_id, attempt }) if unsent(run_id, *attempt) => None,
            Output::Order(order @ Order::Drop { .. }) => Some(order.clone()),
            // A stop whose fact is not durable: the next owner may go on.
            Output::Order(
                Order::Invoke(_)
                | Order::Cancel { .. }
                | Order::Steer(_)
                | Order::Stop { .. }
                | Order::News(_)
                | Order::Credit { .. },
            )
            | Output::Tool(_)
            | Output::Record(_)
            | Output::Consume { .. }
            | Output::Chunk { .. }
            | Output::Printed { .. }
            | Output::Answered { .. }
            | Output::Errand(_)
            | Output::CatchUp
            | Output::ReadContent => None,
        });
        drops.collect()
    }

    /// Orders that have not gone out go out in the name of another ownership.
    pub(super) fn rename(&mut self, epoch: Epoch) {
        let gated = self.gated.iter_mut().map(|(_, output)| output);
        for output in self.ready.iter_mut().chain(gated) {
            match output {
                Output::Order(Order::Invoke(invoke)) => invoke.epoch = epoch,
                Output::Order(Order::Steer(steer)) => steer.epoch = epoch,
                Output::Order(Order::Cancel { epoch: under, .. } | Order::Stop { epoch: under, .. }) => {
                    *under = epoch
                }
                Output::Order(Order::Drop { .. } | Order::Credit { .. } | Order::News(_))
                | Output::Tool(_)
                | Output::Record(_)
                | Output::Consume { .. }
                | Output::Chunk { .. }
                | Output::Printed { .. }
                | Output::Answered { .. }
                | Output::Errand(_)
                | Output::CatchUp
                | Output::ReadContent => {}
            }
        }
    }

    /// An input that has an end, or is a turn of its own, is not handed over any more.
    pub(super) fn recall(&mut self, turn: &RunId) {
        self.gated.retain(
            |(_, output)| !matches!(output, Output::Order(Order::Steer(steer)) if steer.turn_id == *turn),
        );
    }

    pub(super) fn is_durable(&self, seq: Seq) -> bool {
        seq <= self.durable
    }

    pub(super) fn pop(&mut self) -> Option<Output> {
        self.ready.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.gated.is_empty()
    }
}

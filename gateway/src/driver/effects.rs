//! Carries out the switchboard's outputs: calls the store, links, agents, tools and the bus, and counts what passes.
//! Called by `driver`.
use crate::agent::Agents;
use crate::bus::{AddressedMessage, Bus};
use crate::links::LinkRegistry;
use crate::metrics::{Metrics, PendingOps};
use crate::phase::{Lifecycle, UnreadyReason};
use crate::store::Store;
use crate::tools::ToolRunners;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::planted::{Planted, planted};
use turnway_core::store::{Op, Reply};
use turnway_core::time::Mono;
use turnway_node::switchboard::{Input, Output};

/// Time for which an operation without an answer keeps the node unready, so that a store of which only a part answers
/// does not make readiness flap with each operation.
const STORE_AWAY: Duration = Duration::from_secs(1);

/// The parts of the node that the switchboard's outputs go to.
pub struct Effects {
    pub store: Arc<dyn Store>,
    pub links: Arc<LinkRegistry>,
    pub agents: Agents,
    pub tools: ToolRunners,
    pub bus: Arc<dyn Bus>,
    /// Messages to other nodes, posted at the end of the round.
    pub outgoing: Vec<AddressedMessage>,
    pub metrics: Arc<Metrics>,
    /// Operations that the store has not answered yet, for metrics.
    pub unanswered: PendingOps,
    /// Takes the reason if the store does not answer.
    pub life: Lifecycle,
    /// When an operation last had no answer; `None` if the store answers.
    pub store_missed: Option<Mono>,
}

/// The result of carrying out one output.
#[derive(Debug)]
pub(super) enum EffectOutcome {
    /// The driver continues; any answer arrives as an input.
    Continue,
    /// The switchboard has nothing left to do.
    Exit,
}

// === impl Effects ===

impl Effects {
    /// Carries out one output. Never blocks.
    pub(super) fn perform(&mut self, output: Output, now: Mono) -> EffectOutcome {
        match output {
            Output::Store(op) => {
                self.metrics.store.record_request(&mut self.unanswered, &op, now);
                self.store.submit(op);
            }
            Output::Publish { to, message } => self.outgoing.push((to, message)),
            Output::Order(order) => {
                self.metrics.agents.count_order(&order);
                self.agents.perform(order);
            }
            Output::Tool(order) => self.tools.perform(order),
            Output::Notify { link, notification: note } => self.links.send(link, note),
            Output::Exit => return EffectOutcome::Exit,
        }
        EffectOutcome::Continue
    }

    /// Posts the messages of this round to the bus.
    pub(super) fn flush_messages(&mut self) {
        if !self.outgoing.is_empty() {
            self.bus.publish(&mut self.outgoing);
        }
    }

    /// Records an input in the metrics before the switchboard takes it.
    pub(super) fn record_input(&mut self, input: &Input, now: Mono) {
        match input {
            Input::Stored { op, result } => {
                if let (Op::DeleteIdle { key, .. }, Ok(Reply::Done)) = (op, result) {
                    tracing::info!(session = %key, "session deleted: it was inactive for longer than store.max_age");
                }
                self.report_store_health(result.is_ok(), now);
                self.metrics.store.record_reply(&mut self.unanswered, op, result, now);
            }
            Input::Agent { events, .. } => events.iter().for_each(|event| self.metrics.agents.record_event(event)),
            Input::Connect { .. }
            | Input::ServeAccount { .. }
            | Input::Tool { .. }
            | Input::Disconnect { .. }
            | Input::Command { .. }
            | Input::Written { .. }
            | Input::PauseSession { .. }
            | Input::Peer { .. }
            | Input::PublishFailed { .. }
            | Input::MessagesMissed
            | Input::Drain
            | Input::Successors(_)
            | Input::FactLevel(_) => {}
        }
    }

    /// Reports whether the store answers; a lease renewal every half second keeps this up to date.
    fn report_store_health(&mut self, answered: bool, now: Mono) {
        if !answered {
            self.store_missed = Some(now);
            self.life.report_store_away();
        } else if self.store_missed.is_some_and(|at| at + STORE_AWAY <= now) && !planted(Planted::StoreStaysAway) {
            self.store_missed = None;
            self.life.report(UnreadyReason::StoreAway, false);
        }
    }
}

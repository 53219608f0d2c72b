//! Carries out the switchboard's outputs: calls the store, links, agents, tools and the bus, and counts what passes.
//! Called by `driver`.
use crate::agent::Agents;
use crate::bus::{Bus, Mail};
use crate::links::Links;
use crate::metrics::{Metrics, Unanswered};
use crate::phase::{Life, Reason};
use crate::store::Store;
use crate::tools::Tools;
use std::sync::Arc;
use std::time::Duration;
use turnway_bindings::switchboard::{Input, Output};
use turnway_core::planted::{Planted, planted};
use turnway_core::store::{Op, Reply};
use turnway_core::time::Mono;

/// Time for which an operation without an answer keeps the node unready, so that a store of which only a part answers
/// does not make readiness flap with each operation.
const STORE_AWAY: Duration = Duration::from_secs(1);

/// The parts of the node that the switchboard's outputs go to.
pub struct Hands {
    pub store: Arc<dyn Store>,
    pub links: Arc<Links>,
    pub agents: Agents,
    pub tools: Tools,
    pub bus: Arc<dyn Bus>,
    /// Messages to other nodes, posted at the end of the round.
    pub mail: Vec<Mail>,
    pub metrics: Arc<Metrics>,
    /// Operations that the store has not answered yet, for metrics.
    pub unanswered: Unanswered,
    /// Takes the reason if the store is unavailable.
    pub life: Life,
    /// When an operation last had no answer; `None` if the store answers.
    pub store_missed: Option<Mono>,
}

/// The result of carrying out one output.
#[derive(Debug)]
pub(super) enum Done {
    /// The driver continues; any answer arrives as an input.
    Nothing,
    /// The switchboard has nothing left to do.
    Exit,
}

// === impl Hands ===

impl Hands {
    /// Carries out one output. Never blocks.
    pub(super) fn perform(&mut self, output: Output, now: Mono) -> Done {
        match output {
            Output::Store(op) => {
                self.metrics.store.asked(&mut self.unanswered, &op, now);
                self.store.submit(op);
            }
            Output::Publish { to, words } => self.mail.push((to, words)),
            Output::Order(order) => {
                self.metrics.agents.ordered(&order);
                self.agents.perform(order);
            }
            Output::Tool(order) => self.tools.perform(order),
            Output::Send { link, note } => self.links.send(link, note),
            Output::Exit => return Done::Exit,
        }
        Done::Nothing
    }

    /// Posts the messages of this round to the bus.
    pub(super) fn post(&mut self) {
        if !self.mail.is_empty() {
            self.bus.post(&mut self.mail);
        }
    }

    /// Records an input in the metrics before the switchboard takes it.
    pub(super) fn count(&mut self, input: &Input, now: Mono) {
        match input {
            Input::Stored { op, result } => {
                if let (Op::Forget { key, .. }, Ok(Reply::Done)) = (op, result) {
                    tracing::info!(session = %key, "session deleted: it was inactive for longer than store.max_age");
                }
                self.note_health(result.is_ok(), now);
                self.metrics.store.answered(&mut self.unanswered, op, result, now);
            }
            Input::Agent { events, .. } => {
                events.iter().for_each(|event| self.metrics.agents.reported(event))
            }
            Input::Connect { .. }
            | Input::Tool { .. }
            | Input::Disconnect { .. }
            | Input::Say { .. }
            | Input::Written { .. }
            | Input::Hold { .. }
            | Input::Peer { .. }
            | Input::Unheard { .. }
            | Input::Gap
            | Input::Drain
            | Input::Heirs(_) => {}
        }
    }

    /// Reports whether the store answers; a lease renewal every half second keeps this up to date.
    fn note_health(&mut self, answered: bool, now: Mono) {
        if !answered {
            self.store_missed = Some(now);
            self.life.report_store_away();
        } else if self.store_missed.is_some_and(|at| at + STORE_AWAY <= now)
            && !planted(Planted::StoreStaysAway)
        {
            self.store_missed = None;
            self.life.report(Reason::StoreAway, false);
        }
    }
}

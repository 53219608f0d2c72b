//! What becomes of outputs: the store, links, agents and other nodes are told, and what passes is counted.
use crate::agent::Agents;
use crate::bus::{Bus, Mail};
use crate::links::Links;
use crate::metrics::{Metrics, Unanswered};
use crate::phase::Life;
use crate::store::Store;
use crate::tools::Tools;
use std::sync::Arc;
use turnway_bindings::switchboard::{Input, Output};
use turnway_core::time::Mono;

/// Everything a switchboard can reach.
pub struct Hands {
    /// Where facts live.
    pub store: Arc<dyn Store>,
    /// Who is shown them.
    pub links: Arc<Links>,
    /// Who answers.
    pub agents: Agents,
    /// Who does what they want done.
    pub tools: Tools,
    /// The other nodes.
    pub bus: Arc<dyn Bus>,
    /// What they are told at the end of the round.
    pub mail: Vec<Mail>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What the store was asked and has not answered: for metrics.
    pub unanswered: Unanswered,
    /// Whether the store answers is part of the process's health.
    pub life: Life,
}

/// What doing one output led to.
#[derive(Debug)]
pub(super) enum Done {
    /// Whatever comes of it comes by itself.
    Nothing,
    /// There is nothing left to do here.
    Exit,
}

// === impl Hands ===

impl Hands {
    /// Does one output. Never waits.
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

    /// The round is over: what other nodes are to be told goes together.
    pub(super) fn post(&mut self) {
        if !self.mail.is_empty() {
            self.bus.post(&mut self.mail);
        }
    }

    /// Counts an input before the switchboard takes it.
    pub(super) fn count(&mut self, input: &Input, now: Mono) {
        match input {
            Input::Stored { op, result } => {
                self.life.store_answers(result.is_ok());
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
}

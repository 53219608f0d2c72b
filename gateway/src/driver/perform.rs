//! What becomes of outputs: the store, links and agents are told, and what passes is counted.
use crate::agent::Agents;
use crate::links::Links;
use crate::metrics::{Metrics, Unanswered};
use crate::phase::Life;
use crate::store::Store;
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
    /// The answer is already known.
    Answered(Box<Input>),
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
            // One node has nobody to speak to: whoever it names is gone.
            Output::Publish { to, .. } => return Done::Answered(Box::new(Input::Unheard { to })),
            Output::Order(order) => {
                self.metrics.agents.ordered(&order);
                self.agents.perform(order);
            }
            Output::Send { link, note } => self.links.send(link, note),
            Output::Exit => return Done::Exit,
        }
        Done::Nothing
    }

    /// Counts an input before the switchboard takes it.
    pub(super) fn count(&mut self, input: &Input, now: Mono) {
        match input {
            Input::Stored { op, result } => {
                self.life.store_answers(result.is_ok());
                self.metrics.store.answered(&mut self.unanswered, op, result, now);
            }
            Input::Agent { event, .. } => self.metrics.agents.reported(event),
            Input::Connect { .. }
            | Input::Disconnect { .. }
            | Input::Say { .. }
            | Input::Written { .. }
            | Input::Peer { .. }
            | Input::Unheard { .. }
            | Input::Gap
            | Input::Drain => {}
        }
    }
}

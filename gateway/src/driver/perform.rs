//! What becomes of outputs: the store, links, agents and other nodes are told, and what passes is counted.
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

/// An op without an answer keeps a node unready for so long, so that a store of which only a part answers
/// does not make readiness flap with each op.
const STORE_AWAY: Duration = Duration::from_secs(1);

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
    /// When an op last had no answer; none: the store answers.
    pub store_missed: Option<Mono>,
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
                if let (Op::Forget { key, .. }, Ok(Reply::Done)) = (op, result) {
                    tracing::info!(session = %key, "deleted: nothing was said for longer than store.max_age");
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

    /// Reports whether the store answers; a renewal every half second sees to it that this is known.
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

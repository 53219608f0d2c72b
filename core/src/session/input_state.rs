//! State of inputs: their order, and the runs that they were handed to. `input_apply` and `run_apply` change it.
use crate::id::{RunId, Seq};
use crate::mutant::{Mutant, planted};
use crate::protocol::entry::Admission;
use crate::protocol::steer::SteerOutcome;
use crate::session::state::State;

/// An input that was handed to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteeredInput {
    /// The host run.
    pub host: RunId,
    /// The agent's answer in the latest attempt; `None`: no answer yet.
    pub outcome: Option<SteerOutcome>,
}

/// The order of waiting turns, first to start first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The input has cancelled the running turn.
    Interrupts,
    /// The input was handed to a run that did not take it: the next turn.
    Returned,
    /// The input waits in the order of the inbox.
    #[default]
    Queued,
}

// === impl State ===

impl State {
    /// Gives an admitted input its place among the waiting turns, or hands it to a run.
    pub(super) fn place_admitted(&mut self, run_id: &RunId, strategy: Admission, host: Option<&RunId>) {
        let Some(run) = self.runs.get_mut(run_id) else { return };
        if let (Admission::Steered, Some(host)) = (strategy, host) {
            run.steered = Some(SteeredInput { host: host.clone(), outcome: None });
            return;
        }
        let returned = run.steered.take().is_some();
        if self.waiting.contains(run_id) {
            // Another agent is to answer, which changes nothing else.
            return;
        }
        let interrupts = strategy == Admission::Interrupts && !planted(Mutant::InterruptQueues);
        run.rank = match (interrupts, returned) {
            (true, _) => Rank::Interrupts,
            (false, true) => Rank::Returned,
            (false, false) => Rank::Queued,
        };
        let rank = run.rank;
        let first = run.first;
        let index = if interrupts { 0 } else { self.waiting_index(rank, first) };
        self.waiting.insert(index, run_id.clone());
    }

    /// Gives an input the place of another, which has ended.
    pub(super) fn place_replacement(&mut self, run_id: &RunId, ahead: u32) {
        let index = (ahead as usize).saturating_sub(usize::from(self.running.is_some()));
        if self.runs.contains_key(run_id) {
            self.waiting.insert(index.min(self.waiting.len()), run_id.clone());
        }
    }

    /// Returns the index at which to insert a waiting turn: a returned input goes before the first turn of a lower
    /// rank or of a later input, any other input to the end.
    pub(super) fn waiting_index(&self, rank: Rank, first: Seq) -> usize {
        let after = |run_id: &RunId| {
            let other = self.runs.get(run_id);
            rank == Rank::Returned && other.is_some_and(|other| (other.rank, other.first) > (rank, first))
        };
        self.waiting.iter().position(after).unwrap_or(self.waiting.len())
    }

    /// Makes a waiting input part of an earlier one's turn, whose answer then goes to the later message.
    pub(super) fn gather(&mut self, run_id: &RunId, host: &RunId) {
        let Some(run) = self.runs.get_mut(run_id) else { return };
        run.steered = Some(SteeredInput { host: host.clone(), outcome: Some(SteerOutcome::Accepted) });
        self.waiting.retain(|waiting| waiting != run_id);
        self.deliveries.gather(run_id, host);
    }

    /// Takes a gathered input that is cancelled out of the turn that it is part of: the answer goes to the last message that
    /// is left.
    pub(super) fn remove_gathered(&mut self, run_id: &RunId) {
        let host = self.runs.get(run_id).and_then(|run| run.steered.as_ref()).map(|steered| steered.host.clone());
        let Some(host) = host.filter(|_| self.deliveries.gathered.contains(run_id)) else { return };
        let steered = self.steered_inputs().into_iter();
        let mut others = steered.filter(|(other, steered)| {
            steered.host == host && (other == run_id || self.deliveries.gathered.contains(other))
        });
        others.find(|(other, _)| other == run_id);
        let next = others.next().map_or(host, |(next, _)| next);
        self.deliveries.replace_origin(run_id, &next);
    }

    /// Resets the answers of a host run: a further attempt knows nothing of inputs sent in the previous one. Gathered
    /// inputs are part of the prompt of every attempt.
    pub(super) fn reset_steers(&mut self, host: &RunId) {
        if planted(Mutant::SteerStaysTaken) {
            return;
        }
        let gathered = &self.deliveries.gathered;
        let is_kept = |run_id: &RunId| gathered.contains(run_id) && !planted(Mutant::GatheredRunsAlone);
        let runs = self.runs.iter_mut().filter(|(run_id, _)| !is_kept(run_id));
        let steered = runs.filter_map(|(_, run)| run.steered.as_mut());
        for steered in steered.filter(|steered| steered.host == *host) {
            steered.outcome = None;
        }
    }

    /// Returns the inputs that have a host run, open or ended, in their order.
    pub(super) fn steered_inputs(&self) -> Vec<(RunId, SteeredInput)> {
        let steered = self.runs.iter().filter_map(|(id, run)| Some((run.first, id.clone(), run.steered.clone()?)));
        let mut steered: Vec<_> = steered.collect();
        steered.sort_by_key(|(first, ..)| *first);
        steered.into_iter().map(|(_, id, steered)| (id, steered)).collect()
    }

    /// Returns whether a turn is handed to a run.
    pub(super) fn is_steered(&self, run_id: &RunId) -> bool {
        self.runs.get(run_id).is_some_and(|run| run.steered.is_some())
    }
}

//! The preconditions of starting a turn: an attempt permit of the node, and the input's content in memory. Content of
//! waiting inputs beyond a few kB stays in the store and is read when the turn comes.
use crate::id::{InboxPosition, RunId, UserId};
use crate::limits;
use crate::session::attempt::Attempt;
use crate::session::context::SessionContext;
use crate::session::outbox::Output;
use crate::session::plan::Plan;
use crate::session::run_gather;

/// The state of a session's permit for its next attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttemptPermit {
    /// Attempts of this session need no permit.
    #[default]
    Unbounded,
    /// No permit is held or needed.
    None,
    /// A turn waits for a permit.
    Wanted,
    /// The session has a permit, until the attempt ends.
    Granted,
}

/// A turn that waits for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitRequest {
    /// The user that sent the input.
    pub user: UserId,
    /// Bytes of the input's content, which stays in memory while the turn runs.
    pub bytes: u64,
}

/// The preconditions of the next attempt, as far as they are met.
#[derive(Debug)]
pub(super) struct Permits {
    pub(super) permit: AttemptPermit,
    /// Position of an input whose content is being read.
    pub(super) reading_content: Option<InboxPosition>,
}

/// Returns the turn that would start next if permitted, whether new or taken over.
pub(super) fn next_turn(context: &SessionContext, attempt: &Attempt) -> Option<RunId> {
    if context.is_draining || !matches!(attempt, Attempt::None) {
        return None;
    }
    let next = context.state.running.as_ref();
    let next = next.or_else(|| context.state.waiting.first().filter(|_| context.is_open()));
    next.filter(|run_id| context.inputs.contains_key(*run_id)).cloned()
}

impl Permits {
    /// Returns the turn that waits for a permit, if any.
    pub(super) fn request(&self, context: &SessionContext, attempt: &Attempt) -> Option<PermitRequest> {
        let run_id = next_turn(context, attempt).filter(|_| self.permit == AttemptPermit::Wanted)?;
        let open_input = context.inputs.get(&run_id)?;
        let gathered = run_gather::gathered_inputs(context, &run_id);
        let gathered = gathered.iter().filter_map(|run_id| context.inputs.get(run_id)).map(|input| input.bytes);
        let bytes = open_input.bytes + gathered.sum::<u64>();
        Some(PermitRequest { user: open_input.input.user.clone(), bytes })
    }

    /// Returns whether a turn may start; if the turn needs a permit and has none, a permit is requested.
    pub(super) fn check_permit(&mut self, context: &SessionContext, run_id: &RunId) -> bool {
        let is_local = context.run_agent(run_id).is_some_and(|agent| context.directory.policy(agent).is_local);
        if is_local || matches!(self.permit, AttemptPermit::Unbounded | AttemptPermit::Granted) {
            return true;
        }
        self.permit = AttemptPermit::Wanted;
        false
    }

    /// Returns whether the content of a turn's input is in memory; otherwise requests the content.
    pub(super) fn check_content(&mut self, context: &SessionContext, run_id: &RunId, plan: &mut Plan) -> bool {
        let Some(open_input) = context.inputs.get(run_id) else { return false };
        if open_input.has_content {
            return true;
        }
        if self.reading_content.replace(open_input.position) != Some(open_input.position) {
            plan.send(Output::ReadContent);
        }
        false
    }

    /// Accepts a permit that was requested.
    pub(super) fn grant(&mut self) {
        if self.permit == AttemptPermit::Wanted {
            self.permit = AttemptPermit::Granted;
        }
    }

    /// Gives the permit of an ended turn back: the next turn requests a new permit, so that sessions of other users
    /// are not passed over.
    pub(super) fn give_back(&mut self) {
        if self.permit == AttemptPermit::Granted {
            self.permit = AttemptPermit::None;
        }
    }

    /// Gives the permit back if no attempt runs, and drops requests of turns that are gone.
    pub(super) fn update(&mut self, context: &SessionContext, attempt: &Attempt) {
        if self.reading_content.is_none() && matches!(self.permit, AttemptPermit::Unbounded | AttemptPermit::None) {
            return;
        }
        let next = next_turn(context, attempt);
        let is_read = |position: InboxPosition| {
            let Some(run_id) = &next else { return false };
            let gathered = run_gather::gathered_inputs(context, run_id);
            let inputs = gathered.iter().chain([run_id]).filter_map(|run_id| context.inputs.get(run_id));
            inputs.into_iter().any(|open_input| open_input.position == position)
        };
        self.reading_content = self.reading_content.filter(|position| is_read(*position));
        let is_idle = matches!(attempt, Attempt::None) && self.reading_content.is_none();
        match self.permit {
            AttemptPermit::Granted if is_idle => self.permit = AttemptPermit::None,
            AttemptPermit::Wanted if next.is_none() => self.permit = AttemptPermit::None,
            AttemptPermit::Unbounded | AttemptPermit::None | AttemptPermit::Wanted | AttemptPermit::Granted => {}
        }
    }

    /// Returns whether the content of a new input is left in the store, because the input is not about to be used.
    pub(super) fn leaves_content(&self, context: &SessionContext, attempt: &Attempt, run_id: &RunId) -> bool {
        let is_next = next_turn(context, attempt).as_ref() == Some(run_id);
        self.permit != AttemptPermit::Unbounded && !is_next && context.state.waiting.contains(run_id)
    }
}

/// Returns whether the content of waiting inputs is more than memory has room for.
pub(super) fn is_content_over_limit(context: &SessionContext) -> bool {
    let waiting = context.state.waiting.iter().filter_map(|run_id| context.inputs.get(run_id));
    let kept: u64 = waiting.filter(|open_input| open_input.has_content).map(|open_input| open_input.bytes).sum();
    kept > limits::WAITING_CONTENT_BYTES_MAX
}

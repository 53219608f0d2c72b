//! The preconditions of starting a turn: an attempt permit of the node, and the input's content in memory. Content of
//! waiting inputs beyond a few kB stays in the store and is read when the turn comes.
use crate::id::{InboxPosition, RunId, UserId};
use crate::limits;
use crate::protocol::input::{Content, Input, Message};
use crate::session::attempt::Attempt;
use crate::session::outbox::Output;
use crate::session::runtime::SessionRuntime;
use std::sync::Arc;

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

impl SessionRuntime {
    /// Requires a permit for every attempt at an agent outside this process.
    pub fn require_permits(&mut self) {
        self.permit = AttemptPermit::None;
    }

    /// Returns the state of the session's permit.
    pub fn permit(&self) -> AttemptPermit {
        self.permit
    }

    /// Returns the turn that waits for a permit, if any.
    pub fn permit_request(&self) -> Option<PermitRequest> {
        let run_id = self.next_turn().filter(|_| self.permit == AttemptPermit::Wanted)?;
        let open_input = self.inputs.get(&run_id)?;
        Some(PermitRequest { user: open_input.input.user.clone(), bytes: open_input.bytes })
    }

    /// Returns the position of an input whose content is to be read from the inbox.
    pub fn wanted_content(&self) -> Option<InboxPosition> {
        self.reading_content
    }

    /// Returns the turn that would start next if permitted, whether new or taken over.
    pub(super) fn next_turn(&self) -> Option<RunId> {
        if self.is_draining || !matches!(self.attempt, Attempt::None) {
            return None;
        }
        let next = self.state.running.as_ref();
        let next = next.or_else(|| self.state.waiting.first().filter(|_| self.is_open()));
        next.filter(|run_id| self.inputs.contains_key(*run_id)).cloned()
    }

    /// Returns whether a turn may start; if the turn needs a permit and has none, a permit is requested.
    pub(super) fn check_permit(&mut self, run_id: &RunId) -> bool {
        let agent = self.state.runs.get(run_id).and_then(|run| run.agent.as_ref());
        let is_local = agent.is_some_and(|agent| self.directory.policy(agent).is_local);
        if is_local || matches!(self.permit, AttemptPermit::Unbounded | AttemptPermit::Granted) {
            return true;
        }
        self.permit = AttemptPermit::Wanted;
        false
    }

    /// Returns whether the content of a turn's input is in memory; otherwise requests the content.
    pub(super) fn check_content(&mut self, run_id: &RunId) -> bool {
        let Some(open_input) = self.inputs.get(run_id) else { return false };
        if open_input.has_content {
            return true;
        }
        if self.reading_content.replace(open_input.place) != Some(open_input.place) {
            self.outbox.push(Output::ReadContent);
        }
        false
    }

    /// Accepts a permit that was requested.
    pub(super) fn grant_permit(&mut self) {
        if self.permit == AttemptPermit::Wanted {
            self.permit = AttemptPermit::Granted;
        }
    }

    /// Accepts the content of an input that was read from the inbox.
    pub(super) fn handle_content(&mut self, place: InboxPosition, input: Arc<Input>) {
        self.reading_content = self.reading_content.filter(|wanted| *wanted != place);
        if let Some(open_input) = self.inputs.get_mut(&input.run_id).filter(|open_input| open_input.place == place) {
            (open_input.input, open_input.has_content) = (input, true);
        }
    }

    /// Gives the permit back if no attempt runs, and drops requests of turns that are gone.
    pub(super) fn update_permit(&mut self) {
        if self.reading_content.is_none() && matches!(self.permit, AttemptPermit::Unbounded | AttemptPermit::None) {
            return;
        }
        let next = self.next_turn();
        let is_read = |place: InboxPosition| {
            next.as_ref().and_then(|run_id| self.inputs.get(run_id)).is_some_and(|open_input| open_input.place == place)
        };
        self.reading_content = self.reading_content.filter(|place| is_read(*place));
        let is_idle = matches!(self.attempt, Attempt::None) && self.reading_content.is_none();
        match self.permit {
            AttemptPermit::Granted if is_idle => self.permit = AttemptPermit::None,
            AttemptPermit::Wanted if next.is_none() => self.permit = AttemptPermit::None,
            AttemptPermit::Unbounded | AttemptPermit::None | AttemptPermit::Wanted | AttemptPermit::Granted => {}
        }
    }

    /// Drops the content of the turn that waits for a permit from memory.
    pub fn unload_waiting_content(&mut self) {
        if let Some(run_id) = self.next_turn().filter(|_| self.permit == AttemptPermit::Wanted) {
            self.unload_content(&run_id);
        }
    }

    /// Drops the content of a new input from memory, unless the input is about to be used.
    pub(super) fn unload_if_waiting(&mut self, run_id: &RunId) {
        let is_next = self.next_turn().as_ref() == Some(run_id);
        if self.permit != AttemptPermit::Unbounded && !is_next && self.state.waiting.contains(run_id) {
            self.unload_content(run_id);
        }
    }

    /// Drops the content of an input from memory, unless the content of waiting inputs is small in total.
    fn unload_content(&mut self, run_id: &RunId) {
        let waiting = self.state.waiting.iter().filter_map(|run_id| self.inputs.get(run_id));
        let kept: u64 = waiting.filter(|open_input| open_input.has_content).map(|open_input| open_input.bytes).sum();
        if kept <= limits::WAITING_CONTENT_BYTES_MAX {
            return;
        }
        let Some(open_input) = self.inputs.get_mut(run_id) else { return };
        let input = &*open_input.input;
        let nothing = Content::Text(String::new());
        let named = Input {
            run_id: input.run_id.clone(),
            message_id: input.message_id.clone(),
            request_id: input.request_id.clone(),
            user: input.user.clone(),
            agent_id: input.agent_id.clone(),
            message: Message { role: input.message.role, content: nothing },
            history: None,
            strategy: input.strategy,
            replaces: input.replaces.clone(),
            metadata: None,
            traceparent: input.traceparent.clone(),
        };
        (open_input.input, open_input.has_content) = (Arc::new(named), false);
    }
}

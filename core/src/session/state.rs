//! A session's state, derived from the facts of its log and from nothing else.
use crate::id::{AgentId, Cursor, EventId, MessageId, RequestId, RunId, Seq, UserId};
use crate::mutant::{Mutant, planted};
use crate::protocol::agent::EventMark;
use crate::protocol::member::Member;
use crate::session::action_state::Actions;
use crate::session::delivery_state::Deliveries;
use crate::session::handover_state::Handovers;
use crate::session::input_state::{Rank, SteeredInput};
use crate::session::member_state::PendingMemberChange;
use crate::session::model_state::ModelCalls;
use crate::session::text_hash::TextHash;
use crate::time::Millis;
use std::collections::BTreeMap;

/// A session's phase in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionPhase {
    /// No fact was recorded yet.
    #[default]
    New,
    /// The session accepts inputs.
    Open,
    /// The open run is being cancelled; inputs end `failed{session_closed}`.
    Closing,
    /// The session is closed and no run is open.
    Closed,
}

/// A turn's phase in its life, as recorded in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunPhase {
    Waiting,
    /// The order was sent; INPUT_ACK is awaited.
    Routing,
    /// The agent has the input.
    Running,
    /// CANCEL was sent; CANCEL_ACK is awaited.
    Cancelling {
        /// The cause of the cancel.
        reason: String,
        /// Time at which the run ends by force.
        deadline: Millis,
    },
}

/// A turn that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The answering agent; `None` until the turn was admitted.
    pub agent: Option<AgentId>,
    pub user: UserId,
    pub message_id: MessageId,
    pub request_id: Option<RequestId>,
    /// Position of the turn's first fact.
    pub first: Seq,
    /// Position of the latest attempt's first fact; 0 before the first attempt.
    pub began: Seq,
    pub phase: RunPhase,
    /// Number of attempts started.
    pub attempt: u32,
    /// Number of times that an attempt was resumed by another owner.
    pub resumed: u32,
    /// Attempts, or parts of attempts, that do not count because a draining node ended them.
    pub excused: u32,
    /// Bytes of the latest attempt's text that are recorded.
    pub saved: u64,
    /// True if text of any attempt was recorded.
    pub spoke: bool,
    /// Data that another owner needs to resume the latest attempt; `None`: another owner starts a new attempt.
    pub resume: Option<Box<ResumeState>>,
    /// The run that the input was handed to, until that run has ended or did not take the input.
    pub steered: Option<SteeredInput>,
    /// Order among the waiting turns.
    pub rank: Rank,
    /// Time at which the whole run ends at the latest, without the time of calls of models that are open.
    pub deadline: Millis,
    /// The fact that the turn's next fact follows from.
    pub cause: EventId,
}

/// The recorded part of an attempt that outlives its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeState {
    /// The last event that is recorded completely; `None`: the first event is not.
    pub mark: Option<EventMark>,
    /// Number of recorded states of the agent.
    pub states: u32,
    /// Hash of the recorded text.
    pub hash: TextHash,
}

/// A session's state. [`State::apply`] is the only mutation, live and on replay alike (RX-3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The last fact that the state includes.
    pub tail: Cursor,
    pub phase: SessionPhase,
    /// The user that the session belongs to.
    pub user: Option<UserId>,
    /// Members, in order (SR-T2).
    pub agents: Vec<AgentId>,
    /// The agent that answers inputs which address no agent (SR-T1).
    pub active: Option<AgentId>,
    /// The turn that has started and not ended.
    pub running: Option<RunId>,
    /// Waiting turns, in the order in which they will start.
    pub waiting: Vec<RunId>,
    /// Every turn that has not ended (SR-T5). Boxed, because a map node has room for eleven entries, and most
    /// sessions have one.
    pub runs: BTreeMap<RunId, Box<Run>>,
    /// The records of the members, in the order of `agents`.
    pub members: Vec<Member>,
    /// Open changes of members, by the agent that they concern (SR-T14).
    pub changes: BTreeMap<AgentId, PendingMemberChange>,
    /// Handovers from agent to agent.
    pub handovers: Handovers,
    /// Actions of the session's agents.
    pub actions: Actions,
    /// Deliveries to conversations.
    pub deliveries: Deliveries,
    /// Open calls of models.
    pub model_calls: ModelCalls,
    /// The time of the last fact.
    pub time: Millis,
    /// Facts of a later release were applied, whose effects are missing here: the state must not become a snapshot,
    /// which that release would read.
    pub has_unknown_facts: bool,
}

impl State {
    /// Returns whether any turn is open.
    pub fn has_open_turn(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Returns whether the session needs an owner: a handover waits for a decision, an action or a call of a model
    /// is open, or a delivery is not sent.
    pub fn needs_owner(&self) -> bool {
        self.handovers.open.is_some()
            || !self.actions.open.is_empty()
            || self.has_open_call()
            || self.deliveries.are_due()
    }

    /// Returns whether a call of a model has not ended.
    pub fn has_open_call(&self) -> bool {
        !self.model_calls.open.is_empty()
    }

    /// Returns the time at which a run ends at the latest. The time of a run stands still while it has a call of a model open.
    pub(super) fn run_deadline(&self, run_id: &RunId, run: &Run, now: Millis) -> Millis {
        run.deadline.after(self.model_calls.time_calling(run_id, now))
    }

    /// Returns the speaking agent (SR-T3): the agent of a running turn that has reported something.
    pub fn speaking(&self) -> Option<&AgentId> {
        let run = self.runs.get(self.running.as_ref()?)?;
        matches!(run.phase, RunPhase::Running).then_some(run.agent.as_ref()).flatten()
    }
}

impl ResumeState {
    pub(super) fn advance_mark(&mut self, mark: Option<&EventMark>) {
        if let Some(mark) = mark {
            self.mark = Some(mark.clone());
        }
    }
}

impl Run {
    /// Creates a waiting run from the user, message id and request id of its message.
    pub(super) fn new_waiting(first: Seq, cause: EventId, origin: (UserId, MessageId, Option<RequestId>)) -> Self {
        let (user, message_id, request_id) = origin;
        Self {
            agent: None,
            user,
            message_id,
            request_id,
            first,
            began: Seq(0),
            phase: RunPhase::Waiting,
            attempt: 0,
            resumed: 0,
            excused: 0,
            saved: 0,
            spoke: false,
            resume: None,
            steered: None,
            rank: Rank::default(),
            deadline: Millis(u64::MAX),
            cause,
        }
    }

    /// Starts the attempt that the fact at `seq` records.
    pub(super) fn begin_attempt(&mut self, attempt: u32, seq: Seq, resumable: bool) {
        self.phase = RunPhase::Routing;
        (self.attempt, self.began, self.saved) = (attempt, seq, 0);
        self.resume = resumable.then(Box::default);
    }

    /// Applies the record of a part of the run's text.
    pub(super) fn apply_text(&mut self, offset: u64, text: &str, mark: Option<&EventMark>) {
        (self.saved, self.spoke) = (offset + text.len() as u64, true);
        if let Some(resume) = &mut self.resume {
            resume.hash.update(text.as_bytes());
            resume.advance_mark(mark);
        }
    }

    /// Applies the record of a state of the run's agent.
    pub(super) fn apply_state(&mut self, mark: Option<&EventMark>) {
        if let Some(resume) = &mut self.resume {
            resume.states += 1;
            resume.advance_mark(mark);
        }
    }

    /// Returns the number of owners that ran this turn, including the current one, without excused ones (ownership.md
    /// §2.5).
    pub(super) fn owner_count(&self) -> u32 {
        let resumed = if planted(Mutant::ResumeUncounted) { 0 } else { self.resumed };
        (self.attempt + resumed).saturating_sub(self.excused)
    }

    /// Records that the agent has the input.
    pub(super) fn mark_running(&mut self) {
        if self.phase == RunPhase::Routing {
            self.phase = RunPhase::Running;
        }
    }

    /// Returns the name of the phase on the wire.
    pub fn state(&self) -> &'static str {
        match self.phase {
            RunPhase::Waiting => "QUEUED",
            RunPhase::Routing => "ROUTING",
            RunPhase::Running => "RUNNING",
            RunPhase::Cancelling { .. } => "CANCELLING",
        }
    }
}

//! The context of a decision: the state, the open inputs and the ownership. Decisions read it; only the runtime writes.
use crate::id::{AgentId, Epoch, FenceToken, InboxPosition, RunId, SessionKey, UserId};
use crate::protocol::agent::{AgentDirectory, AgentPolicy};
use crate::protocol::entry::FACT_LEVEL;
use crate::protocol::input::{Content, Input, Message};
use crate::session::state::{Run, RunPhase, SessionPhase, State};
use crate::time::{Mono, Now};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Counters of a session, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Reports of agents that came too late or belonged to no attempt: dropped, never shown (RX-8).
    pub late_reports: u64,
    /// Attempts after the first.
    pub restarts: u64,
    /// Attempts that were resumed under another owner.
    pub resumed: u64,
}

/// An input that this owner has taken from the inbox and not ended.
#[derive(Clone, Debug)]
pub(super) struct OpenInput {
    pub(super) position: InboxPosition,
    /// The input; without its content if that was left in the store.
    pub(super) input: Arc<Input>,
    /// Bytes of the input's content.
    pub(super) bytes: u64,
    /// True if the content is in memory.
    pub(super) has_content: bool,
    /// Time at which this owner got the input: for metrics.
    pub(super) taken_at: Mono,
    /// True once a part of the answer was shown: for metrics.
    pub(super) is_shown: bool,
    pub(super) gather_role: GatherRole,
}

/// The part of an input in a turn that gathers messages; decided while its content is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GatherRole {
    /// The input is a turn of its own: its channel has no debounce, or it is a command.
    Apart,
    /// The input waits for further ones, and joins those before it.
    Joins,
    /// The input joins those before it, and waits for no other: it has content other than text.
    Last,
}

impl OpenInput {
    pub(super) fn new(now: Now, position: InboxPosition, input: Arc<Input>) -> Self {
        let bytes = input.weight() as u64;
        let gather_role = GatherRole::of(&input);
        Self { position, input, bytes, has_content: true, taken_at: now.mono, is_shown: false, gather_role }
    }

    /// Drops the content from memory.
    pub(super) fn drop_content(&mut self) {
        let input = &*self.input;
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
            origin: input.origin.clone(),
            traceparent: input.traceparent.clone(),
        };
        (self.input, self.has_content) = (Arc::new(named), false);
    }
}

impl GatherRole {
    fn of(input: &Input) -> Self {
        if input.origin.as_deref().is_none_or(|origin| origin.debounce_ms.is_none()) {
            return Self::Apart;
        }
        let content = &input.message.content;
        if content.has_other_than_text() {
            return Self::Last;
        }
        // A command: a comma and a letter at the very start (docs/plugins.md).
        let text = content.plain_text();
        let rest = text.strip_prefix(',').unwrap_or_default();
        if rest.starts_with(|first: char| first.is_ascii_alphabetic()) { Self::Apart } else { Self::Joins }
    }
}

/// Everything that any decision may read.
#[derive(Debug)]
pub(super) struct SessionContext {
    /// Time of the input that is being handled.
    pub(super) now: Now,
    pub(super) key: SessionKey,
    pub(super) token: FenceToken,
    /// The user whose session it is by the store, which knows the user before the log does.
    pub(super) stored_user: Option<UserId>,
    pub(super) directory: Arc<AgentDirectory>,
    pub(super) state: State,
    /// Inputs that have not ended, by the turn that they open.
    pub(super) inputs: BTreeMap<RunId, OpenInput>,
    pub(super) is_draining: bool,
    /// The level of facts that every live node knows.
    pub(super) fact_level: u32,
    /// An attempt that was ordered under an earlier ownership of this same owner.
    pub(super) earlier_order: Option<(RunId, u32, Epoch)>,
}

impl SessionContext {
    pub(super) fn new(key: SessionKey, token: FenceToken, directory: Arc<AgentDirectory>, state: State) -> Self {
        Self {
            now: Now::default(),
            key,
            token,
            stored_user: None,
            directory,
            state,
            inputs: BTreeMap::new(),
            is_draining: false,
            fact_level: FACT_LEVEL,
            earlier_order: None,
        }
    }

    /// Returns the user whose session it is. The sender of the first entry may be another one: conversations and operators
    /// write to sessions of users.
    pub(super) fn session_user(&self, sender: &UserId) -> UserId {
        self.state.user.as_ref().or(self.stored_user.as_ref()).unwrap_or(sender).clone()
    }

    /// Returns whether the session accepts inputs.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state.phase, SessionPhase::Open)
    }

    /// Returns whether a running turn is already being cancelled.
    pub(super) fn is_cancelling(&self, run_id: &RunId) -> bool {
        self.state.runs.get(run_id).is_some_and(|run| matches!(run.phase, RunPhase::Cancelling { .. }))
    }

    /// Returns the agent that answers in a run, once the run's input is admitted.
    pub(super) fn run_agent(&self, run_id: &RunId) -> Option<&AgentId> {
        self.state.runs.get(run_id)?.agent.as_ref()
    }

    /// Returns the run if its agent has not acknowledged the input.
    pub(super) fn routing_run(&self, run_id: &RunId) -> Option<&Run> {
        self.state.runs.get(run_id).map(Box::as_ref).filter(|run| run.phase == RunPhase::Routing)
    }

    /// Returns the policy for the agent of a run.
    pub(super) fn agent_policy(&self, run: &Run) -> AgentPolicy {
        run.agent.as_ref().map(|agent| self.directory.policy(agent)).unwrap_or_default()
    }

    /// Returns the ownership that ordered an attempt, if the attempt is the current one.
    pub(super) fn ordering_epoch(&self, run_id: &RunId, attempt: u32) -> Epoch {
        let kept = self.earlier_order.as_ref().filter(|(run, number, _)| run == run_id && *number == attempt);
        kept.map_or(self.token.epoch, |(_, _, epoch)| *epoch)
    }
}

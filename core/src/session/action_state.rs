//! State of the actions of a session's agents, derived from the log alone (EV-C6, EV-R6). `action_apply` and
//! `run_apply` change it.
use crate::id::{AgentEventId, AgentId, EventId, RunId, RunnerId, ToolName};
use crate::limits;
use crate::private::Private;
use crate::protocol::action::{
    ActionRequested, ActionSpec, ActionsContext, EndedAction, KILL_TOOLS, OpenAction, OpenState, SPAWN_TOOL, ToolResult,
};
use crate::protocol::delivery::ButtonSet;
use crate::protocol::message_action::{BUTTONS_TOOL, CHANGE_TOOLS, MESSAGE_TOOLS};
use crate::protocol::task::SPAWN_AGENT_TOOL;
use crate::time::Millis;
use serde_json::Value;
use std::collections::BTreeMap;

/// A session's actions, as recorded in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// Actions that were requested and have not ended.
    pub open: BTreeMap<EventId, Action>,
    /// Ended actions of an open run, and those whose agent was not told yet; the last one last.
    pub ended: Vec<FinishedAction>,
    /// The run that made the last request, with the number of its requests.
    pub(super) last_request: Option<(RunId, u32)>,
}

/// An open action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The run that requested the action.
    pub run_id: RunId,
    /// The agent that requested the action.
    pub agent: AgentId,
    /// The agent's own name for the action.
    pub name: Option<AgentEventId>,
    pub tool: ToolName,
    /// Arguments as JSON.
    pub args: Private<String>,
    /// Time at which the action has ended at the latest.
    pub deadline: Millis,
    /// The runner, once it has started the action.
    pub runner: Option<RunnerId>,
    /// True once the process was started.
    pub spawned: bool,
    /// True once the agent has requested the end of the process.
    pub is_ending: bool,
    /// Number of progress reports.
    pub progress_count: u32,
    /// True if the run that requested the action was cancelled or has failed.
    pub orphan: bool,
    /// The fact that the action's next fact follows from (EV-C5).
    pub cause: EventId,
}

/// An ended action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedAction {
    pub action_id: EventId,
    /// The run that requested the action.
    pub run_id: RunId,
    /// The agent that requested the action.
    pub agent: AgentId,
    /// The agent's own name for the action.
    pub name: Option<AgentEventId>,
    pub tool: ToolName,
    pub ok: bool,
    /// The result as the JSON of [`ToolResult`]; `None` if newer results have replaced it.
    pub outcome: Option<Private<String>>,
    /// The turn with which the agent is told, if the requesting turn is over.
    pub with: Option<RunId>,
}

// === impl Actions ===

impl Actions {
    /// Returns how often a run has requested an action.
    pub(super) fn request_count(&self, run_id: &RunId) -> u32 {
        self.last_request.as_ref().filter(|(last_run, _)| last_run == run_id).map_or(0, |(_, times)| *times)
    }

    /// Returns how many changes of messages a run has requested. Everything that an open run has requested is remembered.
    pub(super) fn message_change_count(&self, run_id: &RunId) -> usize {
        let is_its = |run: &RunId, tool: &ToolName| run == run_id && CHANGE_TOOLS.contains(&tool.as_str());
        let open = self.open.values().filter(|action| is_its(&action.run_id, &action.tool)).count();
        open + self.ended.iter().filter(|over| is_its(&over.run_id, &over.tool)).count()
    }

    /// Returns whether a run has already requested an action with this name.
    pub(super) fn is_known(&self, run_id: &RunId, name: &AgentEventId) -> bool {
        let same = |run: &RunId, other: Option<&AgentEventId>| run == run_id && other == Some(name);
        let open = self.open.values().any(|action| same(&action.run_id, action.name.as_ref()));
        open || self.ended.iter().any(|over| same(&over.run_id, over.name.as_ref()))
    }

    /// Returns the actions that the agent of a run is told of with the run.
    pub(super) fn context_for(&self, run_id: &RunId) -> Option<Box<ActionsContext>> {
        let ended = self.ended.iter();
        let ended = ended.filter(|over| over.run_id == *run_id || over.with.as_ref() == Some(run_id));
        let ended_actions: Vec<_> = ended.map(FinishedAction::to_context).collect();
        let open_actions: Vec<_> = self.open.iter().map(|(id, action)| action.to_context(*id)).collect();
        let any = !(open_actions.is_empty() && ended_actions.is_empty());
        any.then(|| Box::new(ActionsContext { open_actions, ended_actions }))
    }

    /// Returns the runner of the process that an action is about, if it is a process of this session.
    pub(super) fn runner_of(&self, args: &Value) -> Option<RunnerId> {
        self.process_of(args).and_then(|id| self.open.get(&id)).and_then(|action| action.runner.clone())
    }

    /// Returns the process that an action is about.
    fn process_of(&self, args: &Value) -> Option<EventId> {
        let id = EventId::parse(args.get("process_id")?.as_str()?).ok()?;
        self.open.contains_key(&id).then_some(id)
    }

    /// Adds a requested action; a request for the end of a process marks that process.
    pub(super) fn add(&mut self, run_id: &RunId, requested: &ActionRequested) {
        self.last_request = Some((run_id.clone(), self.request_count(run_id) + 1));
        let ActionSpec::ToolCall { tool, args } = &requested.what else { return };
        if KILL_TOOLS.contains(&tool.as_str())
            && let Some(ends) = self.process_of(&args.0).and_then(|id| self.open.get_mut(&id))
        {
            ends.is_ending = true;
        }
        let action = Action {
            run_id: run_id.clone(),
            agent: requested.agent_id.clone(),
            name: requested.name.clone(),
            tool: tool.clone(),
            args: Private(args.text()),
            deadline: requested.deadline_ms.unwrap_or_default(),
            runner: None,
            spawned: false,
            is_ending: false,
            progress_count: 0,
            orphan: false,
            cause: requested.action_id,
        };
        self.open.insert(requested.action_id, action);
    }

    /// Ends an action and keeps its result; results of runs that are not open are dropped first.
    pub(super) fn end(&mut self, ended: &ToolResult, is_open: impl Fn(&RunId) -> bool) {
        let Some(action) = self.open.remove(&ended.action_id) else { return };
        // Only a limited number of results is kept, since a run may have any number of them.
        if let Some(old) = self.ended.len().checked_sub(limits::ACTION_RESULTS_KEPT_MAX) {
            self.ended.iter_mut().take(old + 1).for_each(|over| over.outcome = None);
        }
        if self.ended.len() >= limits::ACTIONS_ENDED_MAX {
            let oldest = self.ended.iter().position(|over| !is_open(&over.run_id)).unwrap_or(0);
            self.ended.remove(oldest);
        }
        self.ended.push(FinishedAction {
            action_id: ended.action_id,
            run_id: action.run_id,
            agent: action.agent,
            name: action.name,
            tool: action.tool,
            ok: ended.ok,
            outcome: serde_json::to_string(ended).ok().map(Private),
            with: None,
        });
    }

    /// Tells an agent's turn of the results that the agent does not know.
    pub(super) fn tell_with(&mut self, agent: &AgentId, run_id: &RunId) {
        let untold = self.ended.iter_mut().filter(|over| over.agent == *agent && over.with.is_none());
        untold.for_each(|over| over.with = Some(run_id.clone()));
    }

    /// Handles the end of a turn: results that it told of are known if the turn was completed, and its own open
    /// actions are orphaned if not.
    pub(super) fn finish_run(&mut self, run_id: &RunId, done: bool) {
        let forgotten = |over: &FinishedAction| over.run_id == *run_id || done && over.with.as_ref() == Some(run_id);
        self.ended.retain(|over| !forgotten(over));
        self.ended.iter_mut().for_each(|over| over.with = over.with.take().filter(|with| with != run_id));
        if !done {
            let own = self.open.values_mut().filter(|action| action.run_id == *run_id);
            own.for_each(|action| action.orphan = true);
        }
    }
}

impl Action {
    /// Returns whether the action stays open while the process that it starts runs.
    pub(super) fn is_process(&self) -> bool {
        self.tool.as_str() == SPAWN_TOOL
    }

    /// Returns whether the action is a task for another agent.
    pub(super) fn is_task(&self) -> bool {
        self.tool.as_str() == SPAWN_AGENT_TOOL
    }

    /// Returns the buttons that the action sets below the answer of its turn.
    pub(super) fn buttons(&self) -> Option<ButtonSet> {
        if self.tool.as_str() == BUTTONS_TOOL { serde_json::from_str(self.args.reveal()).ok() } else { None }
    }

    /// Returns whether the gateway carries the action out, and no tool runner.
    pub(super) fn is_of_gateway(&self) -> bool {
        self.is_task() || self.is_about_message()
    }

    /// Returns whether the action is about a message of a conversation.
    pub(super) fn is_about_message(&self) -> bool {
        MESSAGE_TOOLS.contains(&self.tool.as_str())
    }

    fn to_context(&self, action_id: EventId) -> OpenAction {
        OpenAction {
            action_id,
            name: self.name.clone(),
            agent_id: self.agent.clone(),
            run_id: self.run_id.clone(),
            tool: self.tool.clone(),
            state: if self.runner.is_some() { OpenState::Running } else { OpenState::Requested },
            process_id: self.spawned.then_some(action_id),
            deadline_ts: self.deadline,
        }
    }
}

impl FinishedAction {
    fn to_context(&self) -> EndedAction {
        let ended = self.outcome.as_ref().and_then(|json| serde_json::from_str::<ToolResult>(json.reveal()).ok());
        let (result, error) = ended.map_or((None, None), |ended| (ended.result, ended.error));
        let action_id = self.action_id;
        let name = self.name.clone();
        let tool = self.tool.clone();
        EndedAction { action_id, name, tool, ok: self.ok, result, error }
    }
}

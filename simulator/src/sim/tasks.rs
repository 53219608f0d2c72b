//! Tasks in the simulated world: agents of turns that came from rooms give tasks to other agents, and the platform makes a
//! thread for each. Most agents wait for the end of their task before they go on.
use super::agents::Streams;
use super::behaviour::AgentBehaviour;
use super::fixtures::{self, PlannedMessage};
use super::platform::FIRST_NUMBER;
use super::world::{ScheduledEvent, World};
use serde_json::json;
use std::time::Duration;
use turnway_core::id::{AgentEventId, NodeId, RunId, ToolName};
use turnway_core::protocol::action::{ActionRequest, ActionSpec, FactDelivery};
use turnway_core::protocol::agent::AgentEvent;
use turnway_core::protocol::entry::{ActionFact, Fact};
use turnway_core::protocol::json::Json;
use turnway_core::protocol::task::SPAWN_AGENT_TOOL;

/// The difference between the number of a message and that of a task that is given in its turn.
pub(crate) const STEP: u64 = 20_000;
/// The time after which a task's action ends.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Milliseconds for which an agent waits for the end of its task.
pub(super) const PATIENCE_MS: (u64, u64) = (6000, 14_000);

/// Returns whether the turn of a message gives a task: three of ten messages of people, and half of these tasks.
fn gives_task(n: u64) -> bool {
    match n / STEP {
        1 => n >= FIRST_NUMBER && n % 10 < 3,
        2 => n % 20 < 3,
        _ => false,
    }
}

/// Returns whether an agent's event gives a task.
pub(super) fn is_task(event: &AgentEvent) -> bool {
    let AgentEvent::Action { request, .. } = event else { return false };
    matches!(&request.what, ActionSpec::ToolCall { tool, .. } if tool.as_str() == SPAWN_AGENT_TOOL)
}

/// Returns the request for a task.
fn request(n: u64, agent: &str) -> AgentEvent {
    let show = ["bound", "bound", "both", "parent", "none"][(n / 3 % 5) as usize];
    let args = json!({
        "agent": agent, "message": format!("{n} hello"), "show": show, "wake_parent": !n.is_multiple_of(3),
    });
    let tool = ToolName::parse(SPAWN_AGENT_TOOL).expect("a tool's name");
    let what = ActionSpec::ToolCall { tool, args: Json(args) };
    let name = AgentEventId::parse("task").ok();
    AgentEvent::Action { request: Box::new(ActionRequest { name, what, timeout: Some(TIMEOUT) }), id: None }
}

impl World {
    /// Adds a task to the events with which an agent answers a message.
    pub(super) fn with_task(&mut self, n: u64, mut says: Vec<AgentEvent>) -> Vec<AgentEvent> {
        if !gives_task(n) || says.first() != Some(&AgentEvent::Acked) {
            return says;
        }
        let task = n + STEP;
        self.plan_turn(task, n);
        let names = if self.lasting { 4 } else { 3 };
        let (agent, _) = fixtures::AGENTS[(n / 10 % names) as usize];
        says.insert(1, request(task, agent));
        says
    }

    /// Chooses the behaviour of the agent in a turn that follows from the turn of another message.
    pub(super) fn plan_turn(&mut self, n: u64, from: u64) {
        if self.sayings.contains_key(&n) {
            return;
        }
        let Some(PlannedMessage { client, run_id, strategy, .. }) = self.sayings.get(&from).cloned() else { return };
        let roll = self.rng.below(100);
        let manner = if self.platform.troubled { AgentBehaviour::of(n, roll) } else { AgentBehaviour::Plain };
        self.sayings.insert(n, PlannedMessage { client, run_id, manner, strategy, replaces: None, agent_id: None });
    }

    /// Lets an agent go on that is told the end of its task.
    pub(super) fn hear_of_task(&mut self, node: NodeId, delivery: &FactDelivery) {
        let Fact::Action(ActionFact::Ended(ended)) = &delivery.entry.fact else { return };
        if ended.tool.as_str() == SPAWN_AGENT_TOOL
            && let Some(stream) = self.streams.waiting_for_task(node, &delivery.run_id, delivery.attempt)
        {
            self.later(1, 100, ScheduledEvent::Agent { stream });
        }
    }
}

impl Streams {
    /// Returns an attempt that waits for the end of its task.
    fn waiting_for_task(&self, node: NodeId, run_id: &RunId, attempt: u32) -> Option<u64> {
        self.find(node, run_id, attempt).filter(|id| self.open.get(id).is_some_and(|stream| stream.awaits_task))
    }
}

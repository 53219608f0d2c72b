//! A simulated tool runner: a process of its own, connected to every node, with a journal that survives restarts.
//! The runner may be slow or silent, forget actions, repeat reports, and is killed now and then.
use super::world::{ScheduledEvent, World};
use std::collections::BTreeMap;
use std::time::Duration;
use turnway_core::id::{AgentEventId, EventId, NodeId, RunnerId, SessionKey, ToolName};
use turnway_core::machine::Machine;
use turnway_core::protocol::action::{
    ActionRequest, ActionSpec, SPAWN_TOOL, ToolError, ToolExecution, ToolOrder, ToolReport,
};
use turnway_core::protocol::agent::AgentEvent;
use turnway_core::protocol::json::Json;
use turnway_node::runner::pool;
use turnway_node::switchboard::Input;
use turnway_wire::channel::service::ServerIdentity;
use turnway_wire::runner::{FromRunner, ToRunner, UNKNOWN_ACTION_CODE};

/// A tool of the runner other than `process.spawn`.
const TOOL: &str = "t";
/// Latency in one direction between the runner and a node.
const WIRE_MS: u64 = 5;

/// An event between nodes and their runner.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// The runner connects to a node.
    Come { node_id: NodeId },
    /// The runner is killed, and restarts after this time.
    Die { back_ms: u64 },
    /// A message of a node reaches the runner.
    Told { line: Line, word: ToRunner },
    /// A message of the runner reaches a node.
    Said { line: Line, word: FromRunner },
    /// A report reaches a node's switchboard.
    Heard { node_id: NodeId, key: SessionKey, action_id: EventId, report: ToolReport },
    /// The runner completes an action.
    Done { action_id: EventId, life: u64 },
}

/// A connection: the node's process, and the number of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    node_id: NodeId,
    number: u64,
}

/// State of the runner.
#[derive(Debug, Default)]
pub(crate) struct ToolRunner {
    lines: BTreeMap<NodeId, u64>,
    made: u64,
    /// Number of starts.
    life: u64,
    jobs: BTreeMap<EventId, Job>,
}

#[derive(Debug)]
struct Job {
    /// Node that sent or queried the action last.
    asker: NodeId,
    manner: Manner,
    /// `None` while the action runs.
    outcome: Option<Result<(), &'static str>>,
}

/// Behaviour of the runner for one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Plain,
    /// Never reports the end.
    Silent,
    /// Sends every report twice.
    Twice,
    /// Does nothing, and does not know the action.
    Forgets,
}

/// Adds action requests to an agent's events: one, one with a process, or a repeat under the same name.
pub(crate) fn asks(n: u64, mut says: Vec<AgentEvent>) -> Vec<AgentEvent> {
    if says.first() != Some(&AgentEvent::Acked) {
        return says;
    }
    match n % 5 {
        0 => says.insert(1, wish(TOOL, "a1", 12)),
        1 => {
            says.insert(1, wish(SPAWN_TOOL, "a1", 40));
            says.insert(2, wish(TOOL, "a2", 12));
        }
        2 => {
            says.insert(1, wish(TOOL, "a1", 12));
            says.insert(2, wish(TOOL, "a1", 12));
        }
        3 => says.insert(1, wish("nobody.has.it", "a1", 12)),
        _ => {}
    }
    says
}

fn wish(tool: &str, name: &str, seconds: u64) -> AgentEvent {
    let what = ActionSpec::ToolCall { tool: tool_name(tool), args: Json(serde_json::json!({})) };
    let timeout = Some(Duration::from_secs(seconds));
    let request = Box::new(ActionRequest { name: AgentEventId::parse(name).ok(), what, timeout });
    AgentEvent::Action { request, id: None }
}

fn tool_name(name: &str) -> ToolName {
    ToolName::parse(name).expect("a tool's name")
}

impl Manner {
    fn of(action_id: EventId) -> Self {
        match action_id.0.as_u128() % 10 {
            0 => Self::Silent,
            1 => Self::Twice,
            2 => Self::Forgets,
            _ => Self::Plain,
        }
    }
}

impl ToolRunner {
    /// Closes the connection to a process that has died.
    pub(crate) fn cut_off(&mut self, node_id: NodeId) {
        self.lines.remove(&node_id);
    }

    /// Returns whether the runner has begun this action.
    pub(crate) fn has_begun(&self, action_id: EventId) -> bool {
        self.jobs.contains_key(&action_id)
    }

    fn line(&self, node_id: NodeId) -> Option<Line> {
        self.lines.get(&node_id).map(|number| Line { node_id, number: *number })
    }

    fn is_open(&self, line: Line) -> bool {
        self.line(line.node_id) == Some(line)
    }
}

impl World {
    /// Schedules an event of the runner.
    pub(crate) fn step_later(&mut self, ms_min: u64, ms_max: u64, step: Step) {
        self.later(ms_min, ms_max, ScheduledEvent::Tool(Box::new(step)));
    }

    /// Connects the runner to a new process, and kills the runner now and then.
    pub(crate) fn connect_runner(&mut self, node_id: NodeId) {
        if self.actions {
            self.step_later(1, 1500, Step::Come { node_id });
            if self.rng.chance(30) {
                let back_ms = self.rng.below(9000);
                self.step_later(1000, 60_000, Step::Die { back_ms });
            }
        }
    }

    /// Passes a session's order to its node's runner pool.
    pub(crate) fn tool_order(&mut self, at: usize, order: ToolOrder) {
        if let ToolOrder::Execute(execute) = &order {
            self.ledger.wanted(execute);
        }
        self.tell_tools(at, pool::Input::Order(order));
    }

    fn tell_tools(&mut self, at: usize, input: pool::Input) {
        let now = self.clock_of(at);
        self.nodes[at].tools.handle_input(now, input);
        self.drain_tools(at);
    }

    pub(crate) fn wake_tools(&mut self, at: usize) {
        let now = self.clock_of(at);
        if self.nodes[at].tools.poll_timeout().is_some_and(|due| due.at <= now.mono) {
            self.nodes[at].tools.handle_timeout(now);
            self.drain_tools(at);
        }
    }

    fn drain_tools(&mut self, at: usize) {
        let node_id = self.nodes[at].node_id;
        while let Some(output) = self.nodes[at].tools.poll_output() {
            match output {
                pool::Output::Send { connection: number, message: word } => {
                    if let ToRunner::Execute(execute) = &word {
                        self.ledger.given(execute);
                    }
                    let line = Line { node_id, number };
                    self.step_later(WIRE_MS, WIRE_MS, Step::Told { line, word });
                }
                pool::Output::Report { key, action_id, report } => {
                    self.step_later(1, 1, Step::Heard { node_id, key, action_id, report });
                }
            }
        }
    }

    /// Performs an event. A paused process gets it when it resumes.
    pub(crate) fn step(&mut self, step: Step) {
        let of = match &step {
            Step::Come { node_id } | Step::Heard { node_id, .. } => Some(*node_id),
            Step::Said { line, .. } => Some(line.node_id),
            Step::Die { .. } | Step::Told { .. } | Step::Done { .. } => None,
        };
        let at = of.map(|node_id| self.at(node_id));
        match at {
            Some(None) => return,
            Some(Some(at)) if self.nodes[at].paused_until > self.now => {
                return self.step_later(10, 10, step);
            }
            Some(Some(_)) | None => {}
        }
        match (step, at.flatten()) {
            (Step::Come { node_id }, Some(at)) => self.comes(node_id, at),
            (Step::Said { line, word }, Some(at)) if self.hands.is_open(line) => {
                self.tell_tools(at, pool::Input::Message { connection: line.number, message: word });
            }
            (Step::Heard { key, action_id, report, .. }, Some(at)) => {
                self.give(at, Input::Tool { key, action_id, report });
            }
            (Step::Die { back_ms }, _) => self.runner_dies(back_ms),
            (Step::Told { line, word }, _) if self.hands.is_open(line) => self.told(line, word),
            (Step::Done { action_id, life }, _) if self.hands.life == life => {
                self.ends(action_id, Ok(()));
            }
            (_, _) => {}
        }
    }

    fn comes(&mut self, node_id: NodeId, at: usize) {
        self.hands.made += 1;
        let number = self.hands.made;
        let before = self.hands.lines.insert(node_id, number);
        if let Some(connection) = before {
            self.tell_tools(at, pool::Input::RunnerDisconnected { connection });
        }
        let runner = RunnerId::parse("r1").expect("a name");
        let tools = [SPAWN_TOOL, TOOL].map(tool_name).into();
        let identity = ServerIdentity::local();
        self.tell_tools(at, pool::Input::RunnerConnected { connection: number, runner, identity, tools });
    }

    /// Kills the runner: its running actions end, and the next runner knows this from the journal.
    fn runner_dies(&mut self, back_ms: u64) {
        self.say(format_args!("the tool runner dies"));
        self.hands.life += 1;
        for (node_id, connection) in std::mem::take(&mut self.hands.lines) {
            // A paused process finds out when the next connection comes.
            if let Some(at) = self.at(node_id).filter(|at| self.nodes[*at].paused_until <= self.now) {
                self.tell_tools(at, pool::Input::RunnerDisconnected { connection });
            }
        }
        for job in self.hands.jobs.values_mut() {
            job.outcome.get_or_insert(Err("abnormal_exit"));
        }
        for node_id in self.nodes.iter().map(|node| node.node_id).collect::<Vec<_>>() {
            self.step_later(back_ms, back_ms + 500, Step::Come { node_id });
        }
    }

    fn told(&mut self, line: Line, word: ToRunner) {
        match word {
            ToRunner::Execute(execute) => self.execute(line, &execute),
            ToRunner::Query { action_id, .. } => match self.hands.jobs.get_mut(&action_id) {
                Some(job) => {
                    job.asker = line.node_id;
                    self.tell_state(action_id);
                }
                None => self.reply(line, result(action_id, Err(UNKNOWN_ACTION_CODE))),
            },
            ToRunner::Signal { action_id, .. } => self.ends(action_id, Err("canceled")),
        }
    }

    fn execute(&mut self, line: Line, execute: &ToolExecution) {
        let action_id = execute.action_id;
        if let Some(job) = self.hands.jobs.get_mut(&action_id) {
            job.asker = line.node_id;
            return self.tell_state(action_id);
        }
        let manner = Manner::of(action_id);
        if manner == Manner::Forgets {
            return;
        }
        self.hands.jobs.insert(action_id, Job { asker: line.node_id, manner, outcome: None });
        self.tell_state(action_id);
        let long = if execute.tool.as_str() == SPAWN_TOOL { 30_000 } else { 3000 };
        if manner != Manner::Silent {
            let life = self.hands.life;
            self.step_later(1, long, Step::Done { action_id, life });
        }
    }

    fn ends(&mut self, action_id: EventId, how: Result<(), &'static str>) {
        let Some(job) = self.hands.jobs.get_mut(&action_id).filter(|job| job.outcome.is_none()) else {
            return;
        };
        job.outcome = Some(how);
        self.tell_state(action_id);
    }

    /// Reports an action's state to the node that asked last, if that is connected.
    fn tell_state(&mut self, action_id: EventId) {
        let Some(job) = self.hands.jobs.get(&action_id) else { return };
        let word = match job.outcome {
            None => FromRunner::Invoked { action_id: action_id.into(), pid: None },
            Some(how) => result(action_id, how),
        };
        let times = if job.manner == Manner::Twice { 2 } else { 1 };
        let Some(line) = self.hands.line(job.asker) else { return };
        for _ in 0..times {
            self.reply(line, word.clone());
        }
    }

    fn reply(&mut self, line: Line, word: FromRunner) {
        self.step_later(WIRE_MS, WIRE_MS, Step::Said { line, word });
    }
}

fn result(action_id: EventId, how: Result<(), &'static str>) -> FromRunner {
    let error = how.err().map(|code| ToolError::of(code, ""));
    FromRunner::Result { action_id: action_id.into(), ok: error.is_none(), result: None, error }
}

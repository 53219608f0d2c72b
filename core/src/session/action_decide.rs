//! Decisions on actions: the fact first, then the order to a tool runner, and the runner's reports become facts. An
//! action ends exactly once: by its runner, its deadline, or the end of its run. An owner never repeats an open
//! action of a previous owner: it asks the runner for its state (§2.6).
use crate::id::{AgentEventId, AgentId, EventId, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::action::{
    ActionRequest, ActionRequested, ActionSpec, FactDelivery, ProcessReported, SPAWN_TOOL, SystemReported, ToolError,
    ToolExecution, ToolInvoked, ToolOrder, ToolReport, ToolResult,
};
use crate::protocol::agent::Order;
use crate::protocol::entry::{ActionFact, Entry, Fact, RunFact};
use crate::protocol::json::Json;
use crate::session::action_state::{Action, Actions};
use crate::session::attempt::Attempt;
use crate::session::outbox::Output;
use crate::session::runtime::{FactSource, RecordContext, SessionRuntime};
use crate::time::{Deadline, Mono, Now};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The signal for an action that the gateway no longer needs.
const KILL: &str = "KILL";

/// The end of an action.
struct ActionEnd {
    ok: bool,
    result: Option<Json>,
    error: Option<ToolError>,
    /// The way in which its process ended.
    process: ProcessExit,
    /// True if the runner is to stop the action.
    signal: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProcessExit {
    Exited,
    Canceled,
    Abnormal,
}

/// This owner's part of the open actions, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct ActionDeadlines {
    /// Actions about which this owner has sent an order, with their deadlines by this owner's clock.
    deadlines: BTreeMap<EventId, Mono>,
}

// === impl ActionDeadlines ===

impl ActionDeadlines {
    /// Returns the next deadline. An action that this owner has only read in the log is due at once.
    pub(super) fn poll_timeout(&self, actions: &Actions) -> Option<Deadline> {
        let at = actions.open.keys().map(|id| self.deadlines.get(id).copied().unwrap_or_default()).min()?;
        Some(Deadline { at, label: "action" })
    }
}

// === impl ActionEnd ===

impl ActionEnd {
    fn failed(code: &str, why: &str, process: ProcessExit, signal: bool) -> Self {
        Self { ok: false, result: None, error: Some(ToolError::of(code, why)), process, signal }
    }
}

// === impl SessionRuntime ===

impl SessionRuntime {
    /// Handles an agent's request for an action. A repeated request of the same run starts nothing (EV-N5): its
    /// action is open, or the agent is told the result.
    pub(super) fn handle_action_request(
        &mut self,
        now: Now,
        run_id: &RunId,
        request: ActionRequest,
        event_id: Option<AgentEventId>,
    ) {
        if event_id.is_some() {
            // As for a state: the log must have the agent's events in their order.
            self.checkpoint_text(now, run_id);
        }
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.repeat_bytes.is_some_and(|bytes| bytes > 0) {
            return;
        }
        live.advance_mark(event_id);
        let mark = live.mark.clone();
        let attempt = live.attempt;
        let again = request.name.as_ref().is_some_and(|name| self.state.actions.is_known(run_id, name));
        let again = again && !planted(Mutant::ActionAskedAgain);
        let many = self.state.actions.request_count(run_id) >= limits::RUN_ACTIONS_MAX;
        let agent = self.state.runs.get(run_id).and_then(|run| run.agent.clone());
        let Some(agent_id) = agent.filter(|_| self.is_open() && !many && !again) else {
            self.counts.late_reports += 1;
            return;
        };
        let ActionRequest { name, what, timeout } = request;
        let action_id = self.event_id(now);
        let usual = match &what {
            ActionSpec::ToolCall { tool, .. } if tool.as_str() == SPAWN_TOOL => limits::PROCESS_TIMEOUT,
            ActionSpec::Say { .. } | ActionSpec::ToolCall { .. } => limits::TOOL_TIMEOUT,
        };
        let wait = timeout.unwrap_or(usual).min(limits::ACTION_TIMEOUT_MAX);
        let deadline_ms = matches!(what, ActionSpec::ToolCall { .. }).then(|| now.store.after(wait));
        let crowded = self.state.actions.open.len() >= limits::SESSION_ACTIONS_MAX;
        let execute = self.tool_execution(run_id, action_id, &what, now.store.after(wait));
        let requested = ActionRequested { action_id, name, agent_id, attempt, what, deadline_ms, mark };
        let requester = requested.agent_id.clone();
        let about = RecordContext { tx: Some(action_id), asker: Some(&requester), ..RecordContext::agent(run_id) };
        let seq = self.record(now, Fact::Action(ActionFact::Requested(requested)), about);
        let Some(execute) = execute else { return };
        self.actions.deadlines.insert(action_id, now.mono + wait);
        if crowded {
            let why = "the session already has the maximum number of open actions";
            return self.end_action(
                now,
                action_id,
                ActionEnd::failed("too_many_actions", why, ProcessExit::Exited, false),
            );
        }
        let order = Output::Tool(ToolOrder::Execute(Box::new(execute)));
        if planted(Mutant::ActionEarly) {
            self.outbox.push(order);
        } else {
            self.outbox.push_after(seq, order);
        }
    }

    fn tool_execution(
        &self,
        run_id: &RunId,
        action_id: EventId,
        what: &ActionSpec,
        deadline: crate::time::Millis,
    ) -> Option<ToolExecution> {
        let ActionSpec::ToolCall { tool, args } = what else { return None };
        Some(ToolExecution {
            key: self.key.clone(),
            run_id: run_id.clone(),
            action_id,
            tool: tool.clone(),
            args: Private(args.text()),
            deadline,
            runner: self.state.actions.runner_of(&args.0),
        })
    }

    /// Handles a report about an action. Reports about an ended action are dropped and counted.
    pub(super) fn handle_tool_report(&mut self, now: Now, action_id: EventId, report: ToolReport) {
        let Some(action) = self.state.actions.open.get(&action_id) else {
            self.counts.late_reports += 1;
            return;
        };
        let begun = action.runner.is_some();
        match report {
            ToolReport::Invoked { .. } if begun => {}
            ToolReport::Invoked { runner, pid } => {
                let invoked = ToolInvoked {
                    action_id,
                    tool: action.tool.clone(),
                    args: serde_json::from_str(action.args.reveal()).unwrap_or_default(),
                    runner_id: runner,
                };
                let is_process = action.is_process();
                self.record_for_action(now, action_id, Fact::Action(ActionFact::Invoked(invoked)));
                if is_process {
                    let reported = ProcessReported { pid, ..process_report(action_id) };
                    self.record_for_action(now, action_id, Fact::Action(ActionFact::ProcessSpawned(reported)));
                }
            }
            ToolReport::Progress(_) | ToolReport::System { .. } if action.told >= limits::ACTION_PROGRESS_MAX => {
                self.counts.late_reports += 1;
            }
            ToolReport::Progress(data) => {
                let reported = ProcessReported { data: Some(data), ..process_report(action_id) };
                self.record_for_action(now, action_id, Fact::Action(ActionFact::ProcessProgress(reported)));
            }
            // No part of the action has started on that machine, as far as is known.
            ToolReport::System { .. } if !begun => {}
            ToolReport::System { runner: runner_id, name, data } => {
                let reported = SystemReported { action_id, runner_id, name, data };
                self.record_for_action(now, action_id, Fact::Action(ActionFact::SystemEvent(reported)));
            }
            ToolReport::Output(printed) => {
                let run_id = action.run_id.clone();
                let shown = self.state.tail.seq;
                self.outbox.push_after(shown, Output::ProcessOutput { run_id, printed });
            }
            ToolReport::Ended { ok, result, error } => {
                let exit = if action.is_ending { ProcessExit::Canceled } else { ProcessExit::Exited };
                self.end_action(now, action_id, ActionEnd { ok, result, error, process: exit, signal: false });
            }
            ToolReport::NoRunner if !begun => {
                let why = "no tool runner that has this tool is connected to the node that owns the session";
                self.end_action(now, action_id, ActionEnd::failed("no_runner", why, ProcessExit::Abnormal, false));
            }
            ToolReport::Unknown | ToolReport::Lost | ToolReport::NoRunner => {
                // The action may have been executed: it is not repeated, and not reported as not executed.
                let (code, why) = if begun {
                    ("abnormal_exit", "the tool runner was lost, or does not know the action any more")
                } else {
                    ("UNKNOWN", "it is unknown whether the action was executed")
                };
                self.end_action(now, action_id, ActionEnd::failed(code, why, ProcessExit::Abnormal, false));
            }
        }
    }

    /// Performs the follow-ups for actions after any change.
    pub(super) fn settle_actions(&mut self, now: Now) {
        let ids: Vec<EventId> = self.state.actions.open.keys().copied().collect();
        self.actions.deadlines.retain(|id, _| self.state.actions.open.contains_key(id));
        for action_id in ids {
            let Some(action) = self.state.actions.open.get(&action_id) else { continue };
            let orphan = action.orphan || !self.is_open();
            let asks = !self.actions.deadlines.contains_key(&action_id);
            let query = asks.then(|| self.query_order(action_id, action));
            let due = *self
                .actions
                .deadlines
                .entry(action_id)
                .or_insert(now.mono_at(action.deadline, limits::ACTION_TIMEOUT_MAX));
            if orphan {
                let why = "the run that requested the action, or its session, has ended";
                self.end_action(now, action_id, ActionEnd::failed("canceled", why, ProcessExit::Canceled, true));
            } else if due <= now.mono && planted(Mutant::ActionNeverEnds) {
                self.actions.deadlines.insert(action_id, now.mono + limits::ACTION_TIMEOUT_MAX);
            } else if due <= now.mono {
                let why = "the action timed out";
                self.end_action(now, action_id, ActionEnd::failed("tool_timeout", why, ProcessExit::Canceled, true));
            } else if let Some(order) = query {
                self.outbox.push_after(self.state.tail.seq, Output::Tool(order));
            }
        }
    }

    /// Returns the query for an action that a previous owner has started: only its runner knows whether it still
    /// runs.
    fn query_order(&self, action_id: EventId, action: &Action) -> ToolOrder {
        if planted(Mutant::ActionRedone) {
            let args = serde_json::from_str(action.args.reveal()).unwrap_or_default();
            let what = ActionSpec::ToolCall { tool: action.tool.clone(), args };
            if let Some(again) = self.tool_execution(&action.run_id, action_id, &what, action.deadline) {
                return ToolOrder::Execute(Box::new(again));
            }
        }
        let tool = action.tool.clone();
        let runner = action.runner.clone();
        ToolOrder::Query { key: self.key.clone(), action_id, tool, runner, deadline: action.deadline }
    }

    fn end_action(&mut self, now: Now, action_id: EventId, end: ActionEnd) {
        let Some(action) = self.state.actions.open.get(&action_id) else { return };
        let name = action.name.clone();
        let tool = action.tool.clone();
        let runner = action.runner.clone();
        if action.spawned {
            let reported = ProcessReported {
                abnormal_exit: end.process == ProcessExit::Abnormal,
                data: end.result.clone(),
                ..process_report(action_id)
            };
            let fact = match end.process {
                ProcessExit::Canceled => Fact::Action(ActionFact::ProcessCanceled(reported)),
                ProcessExit::Exited | ProcessExit::Abnormal => Fact::Action(ActionFact::ProcessExited(reported)),
            };
            self.record_for_action(now, action_id, fact);
        }
        let ActionEnd { ok, result, error, signal, .. } = end;
        let ended = ToolResult { action_id, name, tool, ok, result, error };
        self.record_for_action(now, action_id, Fact::Action(ActionFact::Ended(ended)));
        self.actions.deadlines.remove(&action_id);
        if signal {
            let order = ToolOrder::Signal { action_id, signal: KILL, runner };
            self.outbox.push_after(self.state.tail.seq, Output::Tool(order));
        }
    }

    /// Records a fact about an open action.
    fn record_for_action(&mut self, now: Now, action_id: EventId, fact: Fact) {
        let Some(action) = self.state.actions.open.get(&action_id) else { return };
        let run_id = action.run_id.clone();
        let cause = action.cause;
        let agent = action.agent.clone();
        let begins =
            if let Fact::Action(ActionFact::Invoked(invoked)) = &fact { Some(invoked.runner_id.clone()) } else { None };
        let runner = begins.or_else(|| action.runner.clone());
        let source = if runner.is_some() { FactSource::Runner } else { FactSource::Gateway };
        let runner = runner.as_ref();
        let cause = Some(cause);
        let agent = Some(&agent);
        self.record(now, fact, RecordContext { source, runner, cause, asker: agent, ..RecordContext::run(&run_id) });
    }

    /// Sends the running agent the fact that was just recorded, once durable, if the fact is about an action that the
    /// agent has requested, in the same or in an earlier run (EV-T8), or of a type that the agent has subscribed to
    /// (EV-G1). The cancel or the end of the agent's own run is reported by other orders. An agent that does not run
    /// is told with its next turn.
    pub(super) fn deliver_to_agent(&mut self, requester: Option<&AgentId>, entry: &Arc<Entry>) {
        let Attempt::Live(live) = &self.attempt else { return };
        let seq = self.state.tail.seq;
        let wants =
            live.is_subscribed_to(entry.fact.name()) && !(planted(Mutant::NewsSkipped) && seq.0.is_multiple_of(16));
        let ends = entry.fact.is_terminal() || matches!(entry.fact, Fact::Run(RunFact::Cancelling { .. }));
        if live.cancel_due.is_some() || (ends && entry.run_id.as_ref() == Some(&live.run_id)) {
            return;
        }
        let agent = self.state.runs.get(&live.run_id).and_then(|run| run.agent.as_ref());
        let Some(agent_id) = agent.filter(|agent| wants || requester == Some(agent)).cloned() else { return };
        let key = self.key.clone();
        let run_id = live.run_id.clone();
        let attempt = live.attempt;
        let epoch = self.token.epoch;
        let delivery = FactDelivery { key, run_id, attempt, agent_id, seq, epoch, entry: entry.for_users() };
        let order = Output::Order(Order::News(Box::new(delivery)));
        if planted(Mutant::NewsEarly) {
            self.outbox.push(order);
        } else {
            self.outbox.push_after(seq, order);
        }
    }
}

fn process_report(action_id: EventId) -> ProcessReported {
    ProcessReported { action_id, process_id: action_id, pid: None, abnormal_exit: false, data: None }
}

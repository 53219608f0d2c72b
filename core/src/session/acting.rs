//! Decisions on actions: the fact first, then the order to a tool runner, and the runner's reports become facts. An
//! action ends exactly once: by its runner, its deadline, or the end of its run. An owner never repeats an open
//! action of a previous owner: it asks the runner for its state (§2.6).
use crate::id::{AgentId, EventId, RunId, SaidId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::action::{
    ActionAsked, ActionWish, Doing, Execute, News, ProcessTold, SPAWN, SystemTold, ToolEnded, ToolError,
    ToolInvoked, ToolOrder, ToolReport,
};
use crate::protocol::agent::Order;
use crate::protocol::entry::{Entry, Fact};
use crate::protocol::json::Json;
use crate::session::actions::{Action, Actions};
use crate::session::attempt::Attempt;
use crate::session::outbox::Output;
use crate::session::runtime::{About, SessionRuntime, Source};
use crate::time::{Deadline, Mono, Now};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The signal for an action that the gateway no longer needs.
const KILL: &str = "KILL";

/// The end of an action.
struct End {
    ok: bool,
    result: Option<Json>,
    error: Option<ToolError>,
    /// The way in which its process ended.
    process: Exit,
    /// True if the runner is to stop the action.
    signal: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Exit {
    Exited,
    Canceled,
    Abnormal,
}

/// This owner's part of the open actions, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct Acting {
    /// Actions about which this owner has sent an order, with their deadlines by this owner's clock.
    due: BTreeMap<EventId, Mono>,
}

// === impl Acting ===

impl Acting {
    /// Returns the next deadline. An action that this owner has only read in the log is due at once.
    pub(super) fn poll_timeout(&self, actions: &Actions) -> Option<Deadline> {
        let at = actions.open.keys().map(|id| self.due.get(id).copied().unwrap_or_default()).min()?;
        Some(Deadline { at, why: "action" })
    }
}

// === impl End ===

impl End {
    fn failed(code: &str, why: &str, process: Exit, signal: bool) -> Self {
        Self { ok: false, result: None, error: Some(ToolError::of(code, why)), process, signal }
    }
}

// === impl SessionRuntime ===

impl SessionRuntime {
    /// Handles an agent's request for an action. A repeated request of the same run starts nothing (EV-N5): its
    /// action is open, or the agent is told the result.
    pub(super) fn action_wished(&mut self, now: Now, run_id: &RunId, wish: ActionWish, said: Option<SaidId>) {
        if said.is_some() {
            // As for a state: the log must have the agent's events in their order.
            self.save(now, run_id);
        }
        let Attempt::Live(live) = &mut self.attempt else { return };
        if live.again.is_some_and(|bytes| bytes > 0) {
            return;
        }
        live.reach(said);
        let (mark, attempt) = (live.mark.clone(), live.attempt);
        let again = wish.name.as_ref().is_some_and(|name| self.state.actions.is_known(run_id, name));
        let again = again && !planted(Mutant::ActionAskedAgain);
        let many = self.state.actions.times(run_id) >= limits::RUN_ACTIONS_MAX;
        let agent = self.state.runs.get(run_id).and_then(|run| run.agent.clone());
        let Some(agent_id) = agent.filter(|_| self.is_open() && !many && !again) else {
            self.counts.late_reports += 1;
            return;
        };
        let ActionWish { name, what, timeout } = wish;
        let action_id = self.event_id(now);
        let usual = match &what {
            Doing::ToolCall { tool, .. } if tool.as_str() == SPAWN => limits::PROCESS_TIMEOUT,
            Doing::Say { .. } | Doing::ToolCall { .. } => limits::TOOL_TIMEOUT,
        };
        let wait = timeout.unwrap_or(usual).min(limits::ACTION_TIMEOUT_MAX);
        let deadline_ms = matches!(what, Doing::ToolCall { .. }).then(|| now.store.after(wait));
        let crowded = self.state.actions.open.len() >= limits::SESSION_ACTIONS_MAX;
        let execute = self.execute(run_id, action_id, &what, now.store.after(wait));
        let asked = ActionAsked { action_id, name, agent_id, attempt, what, deadline_ms, mark };
        let asker = asked.agent_id.clone();
        let about = About { tx: Some(action_id), asker: Some(&asker), ..About::agent(run_id) };
        let seq = self.record(now, Fact::AgentAction(asked), about);
        let Some(execute) = execute else { return };
        self.acting.due.insert(action_id, now.mono + wait);
        if crowded {
            let why = "the session already has the maximum number of open actions";
            return self.end_action(
                now,
                action_id,
                End::failed("too_many_actions", why, Exit::Exited, false),
            );
        }
        let order = Output::Tool(ToolOrder::Execute(Box::new(execute)));
        if planted(Mutant::ActionEarly) {
            self.outbox.now(order);
        } else {
            self.outbox.after(seq, order);
        }
    }

    fn execute(
        &self,
        run_id: &RunId,
        action_id: EventId,
        what: &Doing,
        deadline: crate::time::Millis,
    ) -> Option<Execute> {
        let Doing::ToolCall { tool, args } = what else { return None };
        Some(Execute {
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
    pub(super) fn tool(&mut self, now: Now, action_id: EventId, report: ToolReport) {
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
                self.record_of(now, action_id, Fact::ToolInvoke(invoked));
                if is_process {
                    let told = ProcessTold { pid, ..process(action_id) };
                    self.record_of(now, action_id, Fact::ProcessSpawned(told));
                }
            }
            ToolReport::Progress(_) | ToolReport::System { .. }
                if action.told >= limits::ACTION_PROGRESS_MAX =>
            {
                self.counts.late_reports += 1;
            }
            ToolReport::Progress(data) => {
                let told = ProcessTold { data: Some(data), ..process(action_id) };
                self.record_of(now, action_id, Fact::ProcessProgress(told));
            }
            // No part of the action has started on that machine, as far as is known.
            ToolReport::System { .. } if !begun => {}
            ToolReport::System { runner: runner_id, name, data } => {
                let told = SystemTold { action_id, runner_id, name, data };
                self.record_of(now, action_id, Fact::SystemEvent(told));
            }
            ToolReport::Printed(printed) => {
                let (run_id, shown) = (action.run_id.clone(), self.state.tail.seq);
                self.outbox.after(shown, Output::Printed { run_id, printed });
            }
            ToolReport::Ended { ok, result, error } => {
                let exit = if action.is_ending { Exit::Canceled } else { Exit::Exited };
                self.end_action(now, action_id, End { ok, result, error, process: exit, signal: false });
            }
            ToolReport::NoRunner if !begun => {
                let why = "no tool runner that has this tool is connected to the node that owns the session";
                self.end_action(now, action_id, End::failed("no_runner", why, Exit::Abnormal, false));
            }
            ToolReport::Unknown | ToolReport::Lost | ToolReport::NoRunner => {
                // The action may have been executed: it is not repeated, and not reported as not executed.
                let (code, why) = if begun {
                    ("abnormal_exit", "the tool runner was lost, or does not know the action any more")
                } else {
                    ("UNKNOWN", "it is unknown whether the action was executed")
                };
                self.end_action(now, action_id, End::failed(code, why, Exit::Abnormal, false));
            }
        }
    }

    /// Performs the follow-ups for actions after any change.
    pub(super) fn settle_actions(&mut self, now: Now) {
        let ids: Vec<EventId> = self.state.actions.open.keys().copied().collect();
        self.acting.due.retain(|id, _| self.state.actions.open.contains_key(id));
        for action_id in ids {
            let Some(action) = self.state.actions.open.get(&action_id) else { continue };
            let (orphan, asks) =
                (action.orphan || !self.is_open(), !self.acting.due.contains_key(&action_id));
            let query = asks.then(|| self.query(action_id, action));
            let due = *self
                .acting
                .due
                .entry(action_id)
                .or_insert(now.mono_at(action.deadline, limits::ACTION_TIMEOUT_MAX));
            if orphan {
                let why = "the run that requested the action, or its session, has ended";
                self.end_action(now, action_id, End::failed("canceled", why, Exit::Canceled, true));
            } else if due <= now.mono && planted(Mutant::ActionNeverEnds) {
                self.acting.due.insert(action_id, now.mono + limits::ACTION_TIMEOUT_MAX);
            } else if due <= now.mono {
                let why = "the action timed out";
                self.end_action(now, action_id, End::failed("tool_timeout", why, Exit::Canceled, true));
            } else if let Some(order) = query {
                self.outbox.after(self.state.tail.seq, Output::Tool(order));
            }
        }
    }

    /// Returns the query for an action that a previous owner has started: only its runner knows whether it still
    /// runs.
    fn query(&self, action_id: EventId, action: &Action) -> ToolOrder {
        if planted(Mutant::ActionRedone) {
            let args = serde_json::from_str(action.args.reveal()).unwrap_or_default();
            let what = Doing::ToolCall { tool: action.tool.clone(), args };
            if let Some(again) = self.execute(&action.run_id, action_id, &what, action.deadline) {
                return ToolOrder::Execute(Box::new(again));
            }
        }
        let (tool, runner) = (action.tool.clone(), action.runner.clone());
        ToolOrder::Query { key: self.key.clone(), action_id, tool, runner, deadline: action.deadline }
    }

    fn end_action(&mut self, now: Now, action_id: EventId, end: End) {
        let Some(action) = self.state.actions.open.get(&action_id) else { return };
        let (name, tool, runner) = (action.name.clone(), action.tool.clone(), action.runner.clone());
        if action.spawned {
            let told = ProcessTold {
                abnormal_exit: end.process == Exit::Abnormal,
                data: end.result.clone(),
                ..process(action_id)
            };
            let fact = match end.process {
                Exit::Canceled => Fact::ProcessCanceled(told),
                Exit::Exited | Exit::Abnormal => Fact::ProcessExited(told),
            };
            self.record_of(now, action_id, fact);
        }
        let End { ok, result, error, signal, .. } = end;
        let ended = ToolEnded { action_id, name, tool, ok, result, error };
        self.record_of(now, action_id, Fact::ToolResult(ended));
        self.acting.due.remove(&action_id);
        if signal {
            let order = ToolOrder::Signal { action_id, signal: KILL, runner };
            self.outbox.after(self.state.tail.seq, Output::Tool(order));
        }
    }

    /// Records a fact about an open action.
    fn record_of(&mut self, now: Now, action_id: EventId, fact: Fact) {
        let Some(action) = self.state.actions.open.get(&action_id) else { return };
        let (run_id, cause, asker) = (action.run_id.clone(), action.cause, action.agent.clone());
        let begins =
            if let Fact::ToolInvoke(invoked) = &fact { Some(invoked.runner_id.clone()) } else { None };
        let runner = begins.or_else(|| action.runner.clone());
        let source = if runner.is_some() { Source::Runner } else { Source::Gateway };
        let (runner, cause, asker) = (runner.as_ref(), Some(cause), Some(&asker));
        self.record(now, fact, About { source, runner, cause, asker, ..About::run(&run_id) });
    }

    /// Sends the running agent the fact that was just recorded, once durable, if the fact is about an action that the
    /// agent has requested, in the same or in an earlier run (EV-T8), or of a type that the agent has subscribed to
    /// (EV-G1). The cancel or the end of the agent's own run is reported by other orders. An agent that does not run
    /// is told with its next turn.
    pub(super) fn tell_agent(&mut self, asker: Option<&AgentId>, entry: &Arc<Entry>) {
        let Attempt::Live(live) = &self.attempt else { return };
        let seq = self.state.tail.seq;
        let wants =
            live.wants(entry.fact.name()) && !(planted(Mutant::NewsSkipped) && seq.0.is_multiple_of(16));
        let ends = entry.fact.is_terminal() || matches!(entry.fact, Fact::RunCancelling { .. });
        if live.cancel_at.is_some() || (ends && entry.run_id.as_ref() == Some(&live.run_id)) {
            return;
        }
        let agent = self.state.runs.get(&live.run_id).and_then(|run| run.agent.as_ref());
        let Some(agent_id) = agent.filter(|agent| wants || asker == Some(agent)).cloned() else { return };
        let (key, run_id, attempt, epoch) =
            (self.key.clone(), live.run_id.clone(), live.attempt, self.token.epoch);
        let news = News { key, run_id, attempt, agent_id, seq, epoch, entry: entry.for_users() };
        let order = Output::Order(Order::News(Box::new(news)));
        if planted(Mutant::NewsEarly) {
            self.outbox.now(order);
        } else {
            self.outbox.after(seq, order);
        }
    }
}

fn process(action_id: EventId) -> ProcessTold {
    ProcessTold { action_id, process_id: action_id, pid: None, abnormal_exit: false, data: None }
}

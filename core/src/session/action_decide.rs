//! Decisions on actions: the fact first, then the order to a tool runner, and the runner's reports become facts. An
//! action ends exactly once: by its runner, its deadline, or the end of its run. An owner never repeats an open
//! action of a previous owner: it asks the runner for its state (§2.6).
use crate::id::{AgentId, EventId, RunId};
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::private::Private;
use crate::protocol::action::{
    ActionRequest, ActionRequested, ActionSpec, FactDelivery, ProcessReported, SPAWN_TOOL, SystemReported, ToolError,
    ToolExecution, ToolInvoked, ToolOrder, ToolReport, ToolResult,
};
use crate::protocol::agent::{EventMark, Order};
use crate::protocol::delivery::DeliveryRequested;
use crate::protocol::entry::{ActionFact, Entry, Fact, RunFact};
use crate::protocol::json::Json;
use crate::protocol::message_action::{BUTTONS_TOOL, CHANGE_TOOLS};
use crate::protocol::task::SPAWN_AGENT_TOOL;
use crate::session::action_state::{Action, Actions};
use crate::session::attempt::Attempt;
use crate::session::command::{ActionCommand, DeliveryFactCommand};
use crate::session::context::SessionContext;
use crate::session::message_decide;
use crate::session::outbox::Output;
use crate::session::plan::{FactSource, Plan, RecordContext};
use crate::session::task_decide::{self, TaskRefusal};
use crate::time::{Deadline, Millis, Mono};
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

/// The result of the check of a call.
enum CallCheck {
    /// The call is for a tool runner.
    None,
    /// The call gives a task.
    Task,
    /// The call changes a message, by this delivery.
    Change(Box<DeliveryRequested>),
    /// The call is carried out, with this result.
    Done(Json),
    Refused(TaskRefusal),
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

/// Decides on a command about actions.
pub(super) fn decide(
    context: &SessionContext,
    deadlines: &mut ActionDeadlines,
    command: ActionCommand,
    plan: &mut Plan,
) {
    match command {
        ActionCommand::Request { run_id, attempt, request, mark } => {
            handle_request(context, deadlines, (&run_id, attempt, mark), *request, plan);
        }
        ActionCommand::Refuse(action_id) => {
            let why = "the session already has the maximum number of open actions";
            let end = ActionEnd::failed("too_many_actions", why, ProcessExit::Exited, false);
            end_action(context, deadlines, action_id, end, plan);
        }
        ActionCommand::RefuseCall { action_id, refusal: (code, why) } => {
            let end = ActionEnd::failed(code, why, ProcessExit::Exited, false);
            end_action(context, deadlines, action_id, end, plan);
        }
        ActionCommand::Finish { action_id, result } => {
            let process = ProcessExit::Exited;
            let end = ActionEnd { ok: true, result: Some(result), error: None, process, signal: false };
            end_action(context, deadlines, action_id, end, plan);
        }
        ActionCommand::StartTask { delivery_id, place } => task_decide::start(context, &delivery_id, &place, plan),
        ActionCommand::SettleAction(action_id) => settle(context, deadlines, action_id, plan),
    }
}

/// Handles an agent's request for an action. A repeated request of the same run starts nothing (EV-N5): its action is
/// open, or the agent is told the result.
fn handle_request(
    context: &SessionContext,
    deadlines: &mut ActionDeadlines,
    (run_id, attempt, mark): (&RunId, u32, Option<EventMark>),
    request: ActionRequest,
    plan: &mut Plan,
) {
    let actions = &context.state.actions;
    let again = request.name.as_ref().is_some_and(|name| actions.is_known(run_id, name));
    let again = again && !planted(Mutant::ActionAskedAgain);
    let many = actions.request_count(run_id) >= limits::RUN_ACTIONS_MAX;
    let agent = context.run_agent(run_id).cloned();
    let Some(agent_id) = agent.filter(|_| context.is_open() && !many && !again) else {
        plan.counts.late_reports += 1;
        return;
    };
    let ActionRequest { name, what, timeout } = request;
    let action_id = plan.event_id(context);
    let (what, check) = check_call(context, (run_id, action_id), what);
    let usual = match &what {
        ActionSpec::ToolCall { tool, .. } if [SPAWN_TOOL, SPAWN_AGENT_TOOL].contains(&tool.as_str()) => {
            limits::PROCESS_TIMEOUT
        }
        ActionSpec::Say { .. } | ActionSpec::ToolCall { .. } => limits::TOOL_TIMEOUT,
    };
    let wait = timeout.unwrap_or(usual).min(limits::ACTION_TIMEOUT_MAX);
    let deadline_ms = matches!(what, ActionSpec::ToolCall { .. }).then(|| context.now.store.after(wait));
    let crowded = actions.open.len() >= limits::SESSION_ACTIONS_MAX;
    let execute = tool_execution(context, run_id, action_id, &what, context.now.store.after(wait));
    let asker = Some(agent_id.clone());
    let requested = ActionRequested { action_id, name, agent_id, attempt, what, deadline_ms, mark };
    let about = RecordContext { tx: Some(action_id), asker, ..RecordContext::agent(run_id) };
    plan.record(context, Fact::Action(ActionFact::Requested(requested)), about);
    let Some(execute) = execute else { return };
    deadlines.deadlines.insert(action_id, context.now.mono + wait);
    if crowded {
        return plan.action(ActionCommand::Refuse(action_id));
    }
    match check {
        CallCheck::None => {}
        CallCheck::Refused(refusal) => return plan.action(ActionCommand::RefuseCall { action_id, refusal }),
        CallCheck::Done(result) => return plan.action(ActionCommand::Finish { action_id, result }),
        CallCheck::Change(requested) => {
            let result = message_decide::change_result(&requested.delivery_id);
            plan.delivery(DeliveryFactCommand::Change { action_id, requested });
            return plan.action(ActionCommand::Finish { action_id, result });
        }
        CallCheck::Task => return plan.delivery(DeliveryFactCommand::RequestConversation(action_id)),
    }
    let order = Output::Tool(ToolOrder::Execute(Box::new(execute)));
    if planted(Mutant::ActionEarly) {
        plan.send(order);
    } else {
        plan.send_after(order);
    }
}

/// Checks a call that the gateway carries out. Returns the call as it is recorded.
fn check_call(
    context: &SessionContext,
    (run_id, action_id): (&RunId, EventId),
    what: ActionSpec,
) -> (ActionSpec, CallCheck) {
    let ActionSpec::ToolCall { tool, args } = what else { return (what, CallCheck::None) };
    if tool.as_str() == BUTTONS_TOOL {
        let check = message_decide::check_buttons(context, run_id, &args);
        let check = check.map_or_else(CallCheck::Refused, CallCheck::Done);
        return (ActionSpec::ToolCall { tool, args }, check);
    }
    if CHANGE_TOOLS.contains(&tool.as_str()) {
        let check = message_decide::check_change(context, (run_id, action_id), &tool, &args);
        let check = check.map_or_else(CallCheck::Refused, |requested| CallCheck::Change(Box::new(requested)));
        return (ActionSpec::ToolCall { tool, args }, check);
    }
    if tool.as_str() != SPAWN_AGENT_TOOL {
        return (ActionSpec::ToolCall { tool, args }, CallCheck::None);
    }
    match task_decide::check_task(context, run_id, &args) {
        Ok(task) => (ActionSpec::ToolCall { tool, args: task_decide::recorded_args(&task) }, CallCheck::Task),
        Err(refusal) => {
            let args = task_decide::refused_args(args);
            (ActionSpec::ToolCall { tool, args }, CallCheck::Refused(refusal))
        }
    }
}

fn tool_execution(
    context: &SessionContext,
    run_id: &RunId,
    action_id: EventId,
    what: &ActionSpec,
    deadline: Millis,
) -> Option<ToolExecution> {
    let ActionSpec::ToolCall { tool, args } = what else { return None };
    Some(ToolExecution {
        key: context.key.clone(),
        run_id: run_id.clone(),
        action_id,
        tool: tool.clone(),
        args: Private(args.text()),
        deadline,
        runner: context.state.actions.runner_of(&args.0),
    })
}

/// Handles a report about an action. Reports about an ended action are dropped and counted.
pub(super) fn handle_report(
    context: &SessionContext,
    deadlines: &mut ActionDeadlines,
    action_id: EventId,
    report: ToolReport,
    plan: &mut Plan,
) {
    let Some(action) = context.state.actions.open.get(&action_id) else {
        plan.counts.late_reports += 1;
        return;
    };
    let begun = action.runner.is_some();
    let end = match report {
        ToolReport::Invoked { .. } if begun => return,
        ToolReport::Invoked { runner, pid } => {
            let invoked = ToolInvoked {
                action_id,
                tool: action.tool.clone(),
                args: serde_json::from_str(action.args.reveal()).unwrap_or_default(),
                runner_id: runner,
            };
            record_for_action(context, action_id, ActionFact::Invoked(invoked), plan);
            if action.is_process() {
                let reported = ProcessReported { pid, ..process_report(action_id) };
                record_for_action(context, action_id, ActionFact::ProcessSpawned(reported), plan);
            }
            return;
        }
        ToolReport::Progress(_) | ToolReport::System { .. } if action.progress_count >= limits::ACTION_PROGRESS_MAX => {
            plan.counts.late_reports += 1;
            return;
        }
        ToolReport::Progress(data) => {
            let reported = ProcessReported { data: Some(data), ..process_report(action_id) };
            return record_for_action(context, action_id, ActionFact::ProcessProgress(reported), plan);
        }
        // No part of the action has started on that machine, as far as is known.
        ToolReport::System { .. } if !begun => return,
        ToolReport::System { runner: runner_id, name, data } => {
            let reported = SystemReported { action_id, runner_id, name, data };
            return record_for_action(context, action_id, ActionFact::SystemEvent(reported), plan);
        }
        ToolReport::Output(printed) => {
            return plan.send_after(Output::ProcessOutput { run_id: action.run_id.clone(), printed });
        }
        ToolReport::Ended { ok, result, error } => {
            let exit = if action.is_ending { ProcessExit::Canceled } else { ProcessExit::Exited };
            ActionEnd { ok, result, error, process: exit, signal: false }
        }
        ToolReport::NoRunner if !begun => {
            let why = "no tool runner that has this tool is connected to the node that owns the session";
            ActionEnd::failed("no_runner", why, ProcessExit::Abnormal, false)
        }
        ToolReport::Unknown | ToolReport::Lost | ToolReport::NoRunner => {
            // The action may have been executed: it is not repeated, and not reported as not executed.
            let (code, why) = if begun {
                ("abnormal_exit", "the tool runner was lost, or does not know the action any more")
            } else {
                ("UNKNOWN", "it is unknown whether the action was executed")
            };
            ActionEnd::failed(code, why, ProcessExit::Abnormal, false)
        }
    };
    end_action(context, deadlines, action_id, end, plan);
}

/// Decides on every open action, one after the other.
pub(super) fn settle_all(context: &SessionContext, deadlines: &mut ActionDeadlines, plan: &mut Plan) {
    let open = &context.state.actions.open;
    deadlines.deadlines.retain(|id, _| open.contains_key(id));
    open.keys().for_each(|id| plan.action(ActionCommand::SettleAction(*id)));
}

/// Decides on the follow-ups for an action after any change.
fn settle(context: &SessionContext, deadlines: &mut ActionDeadlines, action_id: EventId, plan: &mut Plan) {
    let Some(action) = context.state.actions.open.get(&action_id) else { return };
    let now = context.now;
    let orphan = action.orphan || !context.is_open();
    let asks = !deadlines.deadlines.contains_key(&action_id);
    let query = if asks { continue_order(context, action_id, action) } else { None };
    let failure = task_decide::creation_failure(context, action_id, action);
    let due = now.mono_at(action.deadline, limits::ACTION_TIMEOUT_MAX);
    let due = *deadlines.deadlines.entry(action_id).or_insert(due);
    if orphan {
        let why = "the run that requested the action, or its session, has ended";
        let end = ActionEnd::failed("canceled", why, ProcessExit::Canceled, true);
        end_action(context, deadlines, action_id, end, plan);
    } else if asks && action.is_about_message() {
        // The owner that recorded the request stopped before it recorded the end.
        let why = "it is unknown whether the action was executed";
        let end = ActionEnd::failed("UNKNOWN", why, ProcessExit::Abnormal, false);
        end_action(context, deadlines, action_id, end, plan);
    } else if due <= now.mono && planted(Mutant::ActionNeverEnds) {
        deadlines.deadlines.insert(action_id, now.mono + limits::ACTION_TIMEOUT_MAX);
    } else if due <= now.mono {
        let end = ActionEnd::failed("tool_timeout", "the action timed out", ProcessExit::Canceled, true);
        end_action(context, deadlines, action_id, end, plan);
    } else if let Some(reason) = failure {
        let why = format!("the conversation of the task was not made: {reason}");
        end_action(
            context,
            deadlines,
            action_id,
            ActionEnd::failed("create_failed", &why, ProcessExit::Exited, false),
            plan,
        );
    } else if let Some(order) = query {
        plan.send_after(order);
    }
}

/// Returns the order about an action that a previous owner has started.
fn continue_order(context: &SessionContext, action_id: EventId, action: &Action) -> Option<Output> {
    if action.is_of_gateway() {
        return task_decide::continue_order(context, action_id, action);
    }
    Some(Output::Tool(query_order(context, action_id, action)))
}

/// Returns the query for an action that a previous owner has started: only its runner knows whether it still runs.
fn query_order(context: &SessionContext, action_id: EventId, action: &Action) -> ToolOrder {
    if planted(Mutant::ActionRedone) {
        let args = serde_json::from_str(action.args.reveal()).unwrap_or_default();
        let what = ActionSpec::ToolCall { tool: action.tool.clone(), args };
        if let Some(again) = tool_execution(context, &action.run_id, action_id, &what, action.deadline) {
            return ToolOrder::Execute(Box::new(again));
        }
    }
    let tool = action.tool.clone();
    let runner = action.runner.clone();
    ToolOrder::Query { key: context.key.clone(), action_id, tool, runner, deadline: action.deadline }
}

fn end_action(
    context: &SessionContext,
    deadlines: &mut ActionDeadlines,
    action_id: EventId,
    end: ActionEnd,
    plan: &mut Plan,
) {
    let Some(action) = context.state.actions.open.get(&action_id) else { return };
    if action.spawned {
        let reported = ProcessReported {
            abnormal_exit: end.process == ProcessExit::Abnormal,
            data: end.result.clone(),
            ..process_report(action_id)
        };
        let fact = match end.process {
            ProcessExit::Canceled => ActionFact::ProcessCanceled(reported),
            ProcessExit::Exited | ProcessExit::Abnormal => ActionFact::ProcessExited(reported),
        };
        record_for_action(context, action_id, fact, plan);
    }
    let ActionEnd { ok, result, error, signal, .. } = end;
    let cancel = task_decide::cancel_order(context, action_id, action);
    let creation = task_decide::pending_creation(context, action_id, action);
    let name = action.name.clone();
    let tool = action.tool.clone();
    let ended = ToolResult { action_id, name, tool, ok, result, error };
    record_for_action(context, action_id, ActionFact::Ended(ended), plan);
    deadlines.deadlines.remove(&action_id);
    creation.into_iter().for_each(|delivery_id| plan.delivery(DeliveryFactCommand::Drop(delivery_id)));
    if action.is_of_gateway() {
        cancel.filter(|_| signal).into_iter().for_each(|order| plan.send_after(order));
    } else if signal {
        let order = ToolOrder::Signal { action_id, signal: KILL, runner: action.runner.clone() };
        plan.send_after(Output::Tool(order));
    }
}

/// Records a fact about an open action.
fn record_for_action(context: &SessionContext, action_id: EventId, fact: ActionFact, plan: &mut Plan) {
    let Some(action) = context.state.actions.open.get(&action_id) else { return };
    let action_id = Some(action_id);
    let about = RecordContext { action: action_id, source: FactSource::Runner, ..RecordContext::run(&action.run_id) };
    plan.record(context, Fact::Action(fact), about);
}

/// Returns the order that sends the running agent the fact that was just recorded, once durable, if the fact is about
/// an action that the agent has requested, in the same or in an earlier run (EV-T8), or of a type that the agent has
/// subscribed to (EV-G1). The cancel or the end of the agent's own run is reported by other orders. An agent that does
/// not run is told with its next turn.
pub(super) fn news_order(
    context: &SessionContext,
    attempt: &Attempt,
    requester: Option<&AgentId>,
    entry: &Arc<Entry>,
) -> Option<Output> {
    let live = attempt.live()?;
    let seq = context.state.tail.seq;
    let wants = live.is_subscribed_to(entry.fact.name()) && !(planted(Mutant::NewsSkipped) && seq.0.is_multiple_of(16));
    let ends = entry.fact.is_terminal() || matches!(entry.fact, Fact::Run(RunFact::Cancelling { .. }));
    if live.cancel_due.is_some() || (ends && entry.run_id.as_ref() == Some(&live.run_id)) {
        return None;
    }
    let agent = context.run_agent(&live.run_id);
    let agent_id = agent.filter(|agent| wants || requester == Some(agent)).cloned()?;
    let key = context.key.clone();
    let run_id = live.run_id.clone();
    let attempt = live.attempt;
    let epoch = context.token.epoch;
    let delivery = FactDelivery { key, run_id, attempt, agent_id, seq, epoch, entry: entry.for_users() };
    Some(Output::Order(Order::News(Box::new(delivery))))
}

fn process_report(action_id: EventId) -> ProcessReported {
    ProcessReported { action_id, process_id: action_id, pid: None, abnormal_exit: false, data: None }
}

//! Decisions about calls of models: a node reports the beginning and the end of each, and the log records both once. A call
//! whose end is not reported in time counts as lost.
use crate::id::EventId;
use crate::limits;
use crate::mutant::{Mutant, planted};
use crate::protocol::entry::{Fact, ModelFact};
use crate::protocol::input::ControlRequest;
use crate::protocol::model_call::{
    ModelCallEnd, ModelCallEnded, ModelCallStart, ModelCallStarted, RecordedCallOutcome,
};
use crate::session::command::ModelCommand;
use crate::session::context::SessionContext;
use crate::session::plan::{FactSource, Plan, RecordContext};
use crate::session::state::State;
use crate::time::{Deadline, Millis, Mono};
use std::time::Duration;

/// This owner's part of the open calls, which is not in the log.
#[derive(Debug, Default)]
pub(super) struct ModelCallDeadline {
    /// Time at which the next call counts as lost, by this owner's clock; none before the first look at the calls.
    next: Option<Mono>,
}

// === impl ModelCallDeadline ===

impl ModelCallDeadline {
    /// Returns the next deadline. Calls that this owner has only read in the log are looked at at once.
    pub(super) fn poll_timeout(&self, state: &State) -> Option<Deadline> {
        let at = state.has_open_call().then(|| self.next.unwrap_or_default())?;
        Some(Deadline { at, label: "model_call" })
    }
}

/// Decides on a command about calls of models.
pub(super) fn decide(context: &SessionContext, command: ModelCommand, plan: &mut Plan) {
    match command {
        ModelCommand::Take((position, control)) => {
            let fact = if let ControlRequest::StartModelCall { start } = &control.what {
                start_fact(context, start)
            } else if let ControlRequest::EndModelCall { end } = &control.what {
                end_fact(context, end)
            } else {
                None
            };
            let Some((fact, about)) = fact else { return plan.answer_without_fact(position, &control) };
            plan.record(context, Fact::Model(fact), RecordContext { answers: Some(position), ..about });
            plan.answer_with_fact(&control);
        }
        ModelCommand::Lose(call_id) => {
            let began = context.state.model_calls.open.get(&call_id).map(|call| call.began).unwrap_or_default();
            let latency_ms = context.now.store.0.saturating_sub(began.0);
            if let Some((fact, about)) =
                end_fact(context, &ModelCallEnd::without_attempt(call_id, RecordedCallOutcome::Lost, latency_ms))
            {
                plan.record(context, Fact::Model(fact), about);
            }
        }
    }
}

/// Returns the fact of a call's beginning; none if its run has ended, if it is known, or if the session has too many calls.
fn start_fact(context: &SessionContext, start: &ModelCallStart) -> Option<(ModelFact, RecordContext)> {
    let run = context.state.runs.get(&start.run_id)?;
    let open = &context.state.model_calls.open;
    if open.contains_key(&start.call_id) || open.len() >= limits::MODEL_CALLS_RECORDED_MAX {
        return None;
    }
    let timeout = Duration::from_millis(start.timeout_ms).min(limits::MODEL_CALL_DEADLINE_MAX);
    let started = ModelCallStarted {
        call_id: start.call_id,
        agent_id: run.agent.clone(),
        model: start.model.clone(),
        format: start.format.clone(),
        deadline_ms: context.now.store.after(timeout),
    };
    let about = RecordContext { source: FactSource::Agent, ..RecordContext::run(&start.run_id) };
    Some((ModelFact::Started(started), about))
}

/// Returns the fact of a call's end; none if the call is not open, so that each call ends once.
fn end_fact(context: &SessionContext, end: &ModelCallEnd) -> Option<(ModelFact, RecordContext)> {
    let call = context.state.model_calls.open.get(&end.call_id)?;
    let agent_id = call.agent.clone();
    let model = call.model.clone();
    let ended = ModelCallEnded { agent_id, model, end: end.clone() };
    Some((ModelFact::Ended(Box::new(ended)), RecordContext::run(&call.run_id)))
}

/// Ends the calls whose ends were not reported in time, and sets the time of the next look.
pub(super) fn settle_all(context: &SessionContext, deadline: &mut ModelCallDeadline, plan: &mut Plan) {
    let due = |deadline: Millis| deadline <= context.now.store && !planted(Mutant::LostCallKept);
    let open = context.state.model_calls.open.iter();
    let lost: Vec<EventId> = open.filter(|(_, call)| due(call.deadline)).map(|(call_id, _)| *call_id).collect();
    lost.into_iter().for_each(|call_id| plan.model(ModelCommand::Lose(call_id)));
    let most = limits::MODEL_CALL_DEADLINE_MAX + limits::MODEL_CALL_REPORT_WAIT;
    let next = context.state.model_calls.next_deadline().map(|at| context.now.mono_at(at, most));
    deadline.next = if planted(Mutant::LostCallKept) { Some(context.now.mono + most) } else { next };
}

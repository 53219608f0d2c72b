//! Decisions on runs that other decisions ask for: gives each command to the part that decides on it. Called by the
//! runtime.
use crate::session::attempt::Attempt;
use crate::session::command::RunCommand;
use crate::session::context::SessionContext;
use crate::session::plan::Plan;
use crate::session::run_permit::Permits;
use crate::session::{run_end, run_start};

/// Decides on a command about a run.
pub(super) fn decide(
    context: &SessionContext,
    attempt: &mut Attempt,
    permits: &mut Permits,
    command: RunCommand,
    plan: &mut Plan,
) {
    match command {
        RunCommand::End(run_id, ending) => run_end::end(context, attempt, run_id, ending, plan),
        RunCommand::RecordEnd(run_id, ending) => run_end::record_end(context, attempt, run_id, ending, plan),
        RunCommand::Close(turn) => {
            if turn.was_running {
                permits.give_back();
            }
            run_end::stop_attempt(context, attempt, turn, plan);
        }
        RunCommand::Cancel { run_id, reason, by } => run_end::cancel(context, attempt, run_id, reason, by, plan),
        RunCommand::Stop(run_id) => run_end::stop(context, attempt, run_id, plan),
        RunCommand::Order { run_id, resume } => run_start::order_attempt(context, attempt, run_id, resume, plan),
        RunCommand::ContinueLost(run_id) => run_start::continue_lost(context, attempt, &run_id, plan),
        RunCommand::Leave => *attempt = Attempt::None,
    }
}

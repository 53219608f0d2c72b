//! What one attempt does: its agent is asked, through plugins where there are any, and its end is told.
use crate::agent::attempt::{Attempt, Line};
use crate::agent::dialin::{self, Desk};
use crate::agent::directory::Builtin;
use crate::agent::http::{End, HttpAgent};
use crate::agent::request::Names;
use crate::agent::token::RunToken;
use crate::agent::{Inner, Name, answered, counter, echo, http, stages};
use ::http::HeaderValue;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;
use turnway_core::id::Epoch;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure};
use turnway_core::protocol::steer::SteerOutcome;

/// One running attempt. Taking it out of the table kills its token and frees its place.
pub(super) struct Running {
    pub(super) epoch: Epoch,
    pub(super) line: Arc<Line>,
    pub(super) task: AbortHandle,
    pub(super) token: Option<RunToken>,
    pub(super) _place: Option<OwnedSemaphorePermit>,
}

/// What one attempt has to work with.
pub(super) enum Work {
    Http(Arc<HttpAgent>, HeaderValue),
    Builtin(Builtin),
    DialIn(Arc<Desk>),
}

// === impl Work ===

impl Work {
    /// Asks the agent, to the end of its answer.
    pub(super) async fn run(&self, attempt: &mut Attempt) -> End {
        match self {
            // In a box: the task of an echo need not have the size of an HTTP client's, nor that of timers.
            Self::Http(agent, auth) => Box::pin(http::run(attempt, agent, auth.clone())).await,
            Self::Builtin(Builtin::Echo) => (echo::run(attempt).await, None),
            Self::Builtin(Builtin::Counter) => (Box::pin(counter::run(attempt)).await, None),
            Self::DialIn(desk) => (Box::pin(dialin::run(attempt, desk)).await, None),
        }
    }

    /// Nobody hears what it says any more: one that outlives the request is told so.
    pub(super) fn stop(&self, attempt: &Attempt) {
        match self {
            Self::Http(agent, auth) if agent.takes_cancel => {
                agent.stop(Names::of(&attempt.invoke), auth.clone());
            }
            // One that has dialed in is told as soon as nobody listens.
            Self::Http(..) | Self::Builtin(_) | Self::DialIn(_) => {}
        }
    }
}

/// Leaves the table when the task ends, also when it panics. One that was dropped has left already, and
/// its name may be another's by now.
struct Leave {
    agents: Arc<Inner>,
    name: Name,
    line: Arc<Line>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.agents.running.remove_if(&self.name, |_, running| Arc::ptr_eq(&running.line, &self.line));
    }
}

/// Runs one attempt, and tells how it ended.
pub(super) async fn run(agents: Arc<Inner>, mut attempt: Attempt, work: Work) {
    let line = attempt.line();
    let name = (attempt.invoke.run_id.clone(), attempt.invoke.attempt);
    let leave = Leave { agents: Arc::clone(&agents), name, line: Arc::clone(&line) };
    // In a box: few attempts need the size of both.
    let (end, rest) = if agents.plugins.concern(&attempt.invoke.message.content) {
        Box::pin(stages::run(&mut attempt, &agents, &work)).await
    } else {
        work.run(&mut attempt).await
    };
    attempt.ended();
    let is_acked = end == AgentEvent::CancelAcked;
    // The same attempt may be ordered again as soon as it is known that its connection is lost.
    let again = matches!(end, AgentEvent::Failed(AgentFailure::Lost(_)));
    let leave = (!again).then_some(leave);
    attempt.report(end).await;
    drop(leave);
    // What it was handed and has not looked at, it has not taken.
    while let Some(steer) = line.next_steer() {
        let _ = Box::pin(agents.reports.send(answered(steer, SteerOutcome::Refused))).await;
    }
    // A cancel that came while the end was reported is acknowledged like one that comes from now on.
    if line.is_cancelled() && !is_acked {
        attempt.report(AgentEvent::CancelAcked).await;
    }
    if let Some(rest) = rest {
        Box::pin(rest.finish()).await;
    }
}

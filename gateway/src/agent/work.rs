//! Runs one attempt at its agent, through the plugins if there are any, and reports its end. Called by `agent`.
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

/// A running attempt. Removing it from the table revokes its token and frees its slot.
pub(super) struct Running {
    pub(super) epoch: Epoch,
    pub(super) line: Arc<Line>,
    pub(super) task: AbortHandle,
    pub(super) token: Option<RunToken>,
    pub(super) _place: Option<OwnedSemaphorePermit>,
}

/// The agent of one attempt, with its credential.
pub(super) enum Work {
    Http(Arc<HttpAgent>, HeaderValue),
    Builtin(Builtin),
    DialIn(Arc<Desk>),
}

// === impl Work ===

impl Work {
    /// Asks the agent, and reads its answer to the end.
    pub(super) async fn run(&self, attempt: &mut Attempt) -> End {
        match self {
            // Boxed: the task of an echo should not have the size of an HTTP client or of timers.
            Self::Http(agent, auth) => Box::pin(http::run(attempt, agent, auth.clone())).await,
            Self::Builtin(Builtin::Echo) => (echo::run(attempt).await, None),
            Self::Builtin(Builtin::Counter) => (Box::pin(counter::run(attempt)).await, None),
            Self::DialIn(desk) => (Box::pin(dialin::run(attempt, desk)).await, None),
        }
    }

    /// Tells an agent that outlives its request to stop, because nothing reads its answer any more.
    pub(super) fn stop(&self, attempt: &Attempt) {
        match self {
            Self::Http(agent, auth) if agent.takes_cancel => {
                agent.stop(Names::of(&attempt.invoke), auth.clone());
            }
            // A dial-in agent is told to stop when its call is dropped.
            Self::Http(..) | Self::Builtin(_) | Self::DialIn(_) => {}
        }
    }
}

/// A guard that removes the attempt from the table when its task ends, even by a panic. An aborted attempt was removed
/// already, and its key may belong to a newer attempt by now.
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

/// Runs one attempt, and reports how it ended.
pub(super) async fn run(agents: Arc<Inner>, mut attempt: Attempt, work: Work) {
    let line = attempt.line();
    let name = (attempt.invoke.run_id.clone(), attempt.invoke.attempt);
    let leave = Leave { agents: Arc::clone(&agents), name, line: Arc::clone(&line) };
    // Boxed: few attempts need the size of both.
    let (end, rest) = if agents.plugins.concern(&attempt.invoke.message.content) {
        Box::pin(stages::run(&mut attempt, &agents, &work)).await
    } else {
        work.run(&mut attempt).await
    };
    attempt.ended();
    let is_acked = end == AgentEvent::CancelAcked;
    // The same attempt may be ordered again as soon as the loss of its connection is reported, so it leaves the table
    // first.
    let again = matches!(end, AgentEvent::Failed(AgentFailure::Lost(_)));
    let leave = (!again).then_some(leave);
    attempt.report(end).await;
    drop(leave);
    // An input that the agent has not looked at counts as refused.
    while let Some(steer) = line.next_steer() {
        let _ = Box::pin(agents.reports.send(answered(steer, SteerOutcome::Refused))).await;
    }
    // A cancel that arrived while the end was reported is acknowledged like one that arrives later.
    if line.is_cancelled() && !is_acked {
        attempt.report(AgentEvent::CancelAcked).await;
    }
    if let Some(rest) = rest {
        Box::pin(rest.finish()).await;
    }
}

//! One attempt's task and its place among those that run.
use super::{Inner, Name, answered};
use crate::agent::attempt::{Attempt, Line};
use crate::agent::dialin::{self, Desk};
use crate::agent::directory::Builtin;
use crate::agent::http::{self, HttpAgent};
use crate::agent::token::RunToken;
use crate::agent::{counter, echo};
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

pub(super) async fn run(agents: Arc<Inner>, mut attempt: Attempt, work: Work) {
    let line = attempt.line();
    let name = (attempt.invoke.run_id.clone(), attempt.invoke.attempt);
    let leave = Leave { agents: Arc::clone(&agents), name, line: Arc::clone(&line) };
    let (end, rest) = match work {
        // In a box: a built-in agent's task need not have the size of an HTTP client's.
        Work::Http(agent, auth) => Box::pin(http::run(&mut attempt, &agent, &agents.client, auth)).await,
        Work::Builtin(Builtin::Echo) => (echo::run(&mut attempt).await, None),
        Work::Builtin(Builtin::Counter) => (counter::run(&mut attempt).await, None),
        Work::DialIn(desk) => (Box::pin(dialin::run(&mut attempt, &desk)).await, None),
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
        let _ = agents.reports.send(answered(steer, SteerOutcome::Refused)).await;
    }
    // A cancel that came while the end was reported is acknowledged like one that comes from now on.
    if line.is_cancelled() && !is_acked {
        attempt.report(AgentEvent::CancelAcked).await;
    }
    if let Some(rest) = rest {
        rest.finish().await;
    }
}

//! Runs one attempt at its agent, through the plugins if there are any, and reports its end. Called by `agent`.
use crate::agent::access::GatewayAccess;
use crate::agent::attempt::{AttemptControl, AttemptTask};
use crate::agent::dialin::{self, AgentConnectionPool};
use crate::agent::directory::BuiltinAgent;
use crate::agent::http::{AttemptEnd, HttpAgent};
use crate::agent::model_agent::{self, ModelAgent};
use crate::agent::request::RequestIds;
use crate::agent::{AgentsInner, AttemptKey, bearer, counter, earlier_messages, echo, http, pipelined, steer_report};
use crate::run_token::TokenRun;
use crate::shared_secret::SecretUnavailable;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;
use turnway_core::id::Epoch;
use turnway_core::protocol::agent::{AgentEvent, AgentFailure};
use turnway_core::protocol::steer::SteerOutcome;

/// A running attempt. Removing it from the table frees its slot.
pub(super) struct RunningAttempt {
    pub(super) epoch: Epoch,
    pub(super) control: Arc<AttemptControl>,
    pub(super) task: AbortHandle,
    pub(super) _slot: Option<OwnedSemaphorePermit>,
}

/// The agent of one attempt.
pub(super) enum AttemptAgent {
    Http(Arc<HttpAgent>),
    Builtin(BuiltinAgent),
    DialIn(Arc<AgentConnectionPool>),
    Model(Arc<ModelAgent>),
}

// === impl AttemptAgent ===

impl AttemptAgent {
    /// Gives the attempt its token, and the earlier messages that its agent is to have.
    async fn prepare(&self, attempt: &mut AttemptTask, agents: &AgentsInner) -> Result<(), AgentFailure> {
        let refused = |why: SecretUnavailable| AgentFailure::Unavailable(format!("no run token: {why}"));
        self.authorize(attempt, &agents.access).await.map_err(refused)?;
        earlier_messages::add(agents, &mut attempt.invoke).await
    }

    /// Gives the attempt the token of its run, and the URLs that the token opens. Builtin agents and models
    /// need neither: this process runs the ones, and calls the others.
    async fn authorize(&self, attempt: &mut AttemptTask, access: &GatewayAccess) -> Result<(), SecretUnavailable> {
        if matches!(self, Self::Builtin(_) | Self::Model(_)) {
            return Ok(());
        }
        access.complete_invoke(&mut attempt.invoke);
        let run = TokenRun::of(&attempt.invoke);
        let token = access.tokens.mint(&run).await?;
        match self {
            Self::Http(_) => attempt.control().set_credential(bearer(&token)),
            Self::DialIn(_) => attempt.invoke.run_token = Some(Box::new(token)),
            Self::Builtin(_) | Self::Model(_) => {}
        }
        Ok(())
    }

    /// Asks the agent, and reads its answer to the end.
    pub(super) async fn run(&self, attempt: &mut AttemptTask) -> AttemptEnd {
        match self {
            // Boxed: the task of an echo should not have the size of an HTTP client or of timers.
            Self::Http(agent) => match attempt.control().credential() {
                Some(auth) => Box::pin(http::run(attempt, agent, auth)).await,
                None => unreachable!("an attempt is authorized before it runs"),
            },
            Self::Builtin(BuiltinAgent::Echo) => (echo::run(attempt).await, None),
            Self::Builtin(BuiltinAgent::Counter) => (Box::pin(counter::run(attempt)).await, None),
            Self::DialIn(pool) => (Box::pin(dialin::run(attempt, pool)).await, None),
            Self::Model(agent) => (Box::pin(model_agent::run(attempt, agent)).await, None),
        }
    }

    /// Tells an agent that outlives its request to stop, because nothing reads its answer any more.
    pub(super) fn stop(&self, attempt: &AttemptTask) {
        match self {
            Self::Http(agent) if agent.supports_cancel => {
                if let Some(auth) = attempt.control().credential() {
                    agent.stop(RequestIds::of(&attempt.invoke), auth);
                }
            }
            // A dial-in agent is told to stop when its call is dropped.
            Self::Http(_) | Self::Builtin(_) | Self::DialIn(_) | Self::Model(_) => {}
        }
    }
}

/// A guard that removes the attempt from the table when its task ends, even by a panic. An aborted attempt was removed
/// already, and its key may belong to a newer attempt by now.
struct RunningGuard {
    agents: Arc<AgentsInner>,
    key: AttemptKey,
    control: Arc<AttemptControl>,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.agents.running.remove_if(&self.key, |_, running| Arc::ptr_eq(&running.control, &self.control));
    }
}

/// Runs one attempt, and reports how it ended.
pub(super) async fn run(agents: Arc<AgentsInner>, mut attempt: AttemptTask, work: AttemptAgent) {
    let control = attempt.control();
    let name = (attempt.invoke.run_id.clone(), attempt.invoke.attempt);
    let leave = RunningGuard { agents: Arc::clone(&agents), key: name, control: Arc::clone(&control) };
    // Boxed: few attempts wait for the store, or need the size of both of the others.
    let (end, rest) = if let Err(failure) = Box::pin(work.prepare(&mut attempt, &agents)).await {
        (AgentEvent::Failed(failure), None)
    } else if agents.plugins.applies_to(&attempt.invoke.message.content) {
        Box::pin(pipelined::run(&mut attempt, &agents, &work)).await
    } else {
        work.run(&mut attempt).await
    };
    attempt.record_end();
    let is_acked = end == AgentEvent::CancelAcked;
    // The same attempt may be ordered again as soon as the loss of its connection is reported, so it leaves the table
    // first.
    let again = matches!(end, AgentEvent::Failed(AgentFailure::Lost(_)));
    let leave = (!again).then_some(leave);
    attempt.report(end).await;
    drop(leave);
    // An input that the agent has not looked at counts as refused.
    while let Some(steer) = control.pop_steer() {
        let _ = Box::pin(agents.reports.send(steer_report(steer, SteerOutcome::Refused))).await;
    }
    // A cancel that arrived while the end was reported is acknowledged like one that arrives later.
    if control.is_cancelled() && !is_acked {
        attempt.report(AgentEvent::CancelAcked).await;
    }
    if let Some(rest) = rest {
        Box::pin(rest.drain()).await;
    }
}

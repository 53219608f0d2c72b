//! The last known reachability of an HTTP agent, learnt from real requests. Only an agent that could not be reached is
//! probed, so that healthy agents cost nothing. Used by `http`.
use crate::agent::http::HttpEndpoint;
use crate::outbound::client::OutboundClient;
use crate::supervise;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};

/// Pause before the first probe of a lost agent; doubled after each probe.
const PROBE_PAUSE_FIRST: Duration = Duration::from_millis(250);
/// Maximum pause between two probes.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(10);

/// The reachability of one HTTP agent.
#[derive(Debug)]
pub(super) struct AgentHealth {
    is_healthy: AtomicBool,
    endpoint: HttpEndpoint,
}

// === impl AgentHealth ===

impl AgentHealth {
    /// Creates the health of an agent that is taken for reachable until a request fails.
    pub(super) fn new(endpoint: HttpEndpoint) -> Arc<Self> {
        Arc::new(Self { is_healthy: AtomicBool::new(true), endpoint })
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Acquire)
    }

    /// Records that the agent answered.
    pub(super) fn mark_reachable(&self) {
        self.is_healthy.store(true, Ordering::Release);
    }

    /// Records that the agent could not be reached, and starts probing it.
    pub(super) fn mark_unreachable(self: &Arc<Self>, client: &OutboundClient) {
        if self.is_healthy.swap(false, Ordering::AcqRel) {
            tracing::warn!(endpoint = %self.endpoint.invoke, "agent cannot be reached");
            let this = Arc::downgrade(self);
            let client = client.clone();
            let look = move || probe(Weak::clone(&this), client.clone());
            Handle::current().spawn(supervise::run_restarting("agent health", look));
        }
    }
}

/// Probes `GET {endpoint}/health` until the agent answers, or until the agent is dropped.
async fn probe(health: Weak<AgentHealth>, client: OutboundClient) {
    let mut wait = PROBE_PAUSE_FIRST;
    loop {
        tokio::time::sleep(wait).await;
        wait = wait.saturating_mul(2).min(PROBE_PAUSE_MAX);
        let Some(health) = health.upgrade() else { return };
        // A request in the meantime may have reached the agent.
        if health.is_healthy() {
            return;
        }
        let mut request = Request::new(Full::<Bytes>::default());
        *request.uri_mut() = health.endpoint.health.clone();
        let answer = tokio::time::timeout(limits::AGENT_CONNECT_TIMEOUT, client.send(request)).await;
        if let Ok(Ok(response)) = &answer {
            // The agent's `Retry-After` sets the next probe.
            let retry_after = client.retry_after(response.headers()).unwrap_or_default();
            wait = wait.max(retry_after).min(PROBE_PAUSE_MAX);
        }
        // Agents need not implement the health page: any answer but a server error counts as reachable.
        let is_ill = |status: http::StatusCode| status.is_server_error() && !planted(Planted::IllAgentIsBack);
        if matches!(answer, Ok(Ok(response)) if !is_ill(response.status())) {
            tracing::info!(endpoint = %health.endpoint.invoke, "agent can be reached again");
            health.mark_reachable();
            return;
        }
    }
}

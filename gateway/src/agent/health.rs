//! Whether an agent can be reached, as far as is known: learnt from real requests. Only one that could
//! not be reached is asked again, so healthy agents cost nothing.
use crate::agent::client::Client;
use crate::agent::http::HttpEndpoint;
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

/// Between the loss of an agent and the first look whether it is back; doubled with each look.
const LOOK_FIRST: Duration = Duration::from_millis(250);
/// Between two looks at most.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// What is known of one HTTP agent.
#[derive(Debug)]
pub(super) struct Health {
    is_healthy: AtomicBool,
    endpoint: HttpEndpoint,
}

// === impl Health ===

impl Health {
    /// Believed in until it fails.
    pub(super) fn new(endpoint: HttpEndpoint) -> Arc<Self> {
        Arc::new(Self { is_healthy: AtomicBool::new(true), endpoint })
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Acquire)
    }

    /// It answered.
    pub(super) fn found(&self) {
        self.is_healthy.store(true, Ordering::Release);
    }

    /// It could not be reached: look for it until it is back.
    pub(super) fn lost(self: &Arc<Self>, client: &Client) {
        if self.is_healthy.swap(false, Ordering::AcqRel) {
            tracing::warn!(endpoint = %self.endpoint.invoke, "agent cannot be reached");
            let (this, client) = (Arc::downgrade(self), client.clone());
            let look = move || look(Weak::clone(&this), client.clone());
            Handle::current().spawn(supervise::keep("agent health", look));
        }
    }
}

/// Asks `GET {endpoint}/health` until it answers, or until nobody wants to know any more.
async fn look(health: Weak<Health>, client: Client) {
    let mut wait = LOOK_FIRST;
    loop {
        tokio::time::sleep(wait).await;
        wait = wait.saturating_mul(2).min(LOOK_MAX);
        let Some(health) = health.upgrade() else { return };
        // A request that went through in the meantime has found it.
        if health.is_healthy() {
            return;
        }
        let mut request = Request::new(Full::<Bytes>::default());
        *request.uri_mut() = health.endpoint.health.clone();
        let answer = tokio::time::timeout(limits::AGENT_CONNECT, client.send(request)).await;
        if let Ok(Ok(response)) = &answer {
            // It says itself when to look again.
            let asked = client.retry_after(response.headers()).unwrap_or_default();
            wait = wait.max(asked).min(LOOK_MAX);
        }
        // Agents need not have a health page: whoever answers is there, unless it says that it is ill.
        let is_ill = |status: http::StatusCode| status.is_server_error() && !planted(Planted::IllAgentIsBack);
        if matches!(answer, Ok(Ok(response)) if !is_ill(response.status())) {
            tracing::info!(endpoint = %health.endpoint.invoke, "agent is back");
            health.found();
            return;
        }
    }
}

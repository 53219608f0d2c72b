//! Sends an HTTP agent the results of its actions and its subscribed facts while it answers: `POST {endpoint}/event`
//! (protocol.md §2), one at a time, in order, each with its fact's id as idempotency key. The agent's answers are
//! ignored: a notification that the agent has not taken reaches it from the log, with its next input.
use super::{AgentBackend, Agents};
use crate::agent::attempt::AttemptControl;
use crate::agent::deliver::deliver;
use crate::agent::http::HttpAgent;
use crate::agent::request;
use http::HeaderValue;
use std::sync::Arc;
use turnway_core::limits;
use turnway_core::protocol::action::FactDelivery;

impl Agents {
    /// Sends a notification to a running attempt. If the attempt does not take it, the agent gets it with the next
    /// turn.
    pub(super) fn news(&self, delivery: FactDelivery) {
        let Some(running) = self.0.running.get(&(delivery.run_id.clone(), delivery.attempt)) else { return };
        let agent = self.0.agents.get(&delivery.agent_id);
        if !running.control.push_news(delivery) {
            return;
        }
        let Some(AgentBackend::Http(agent)) = agent else { return };
        let Some(auth) = running.control.credential().filter(|_| running.control.begin_delivery()) else {
            return;
        };
        let agent = Arc::clone(agent);
        let control = Arc::clone(&running.control);
        let over = Arc::clone(&control);
        self.0.runtime.spawn(async move {
            tokio::select! {
                () = deliver_news(agent, control, auth) => {}
                () = over.wait_ended() => {}
            }
        });
    }
}

/// Sends notifications one after the other, until the future is dropped at the end of the attempt.
async fn deliver_news(agent: Arc<HttpAgent>, control: Arc<AttemptControl>, auth: HeaderValue) {
    loop {
        let delivery = control.recv_news().await;
        let Ok(request) = request::news(&delivery, &agent.endpoint, auth.clone()) else { continue };
        drop(deliver(&agent.client, &request, limits::STEER_ACK_TIMEOUT).await);
    }
}

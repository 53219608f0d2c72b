//! What an HTTP agent is told of its actions while it answers: `POST {endpoint}/event` (protocol.md §2), one after the
//! other, in their order.
//!
//! Nothing is made of its answers: what it has not taken it is told with its next input, from the log. Each has its
//! fact's id as its name, so a repeat is known.
use super::{Agent, Agents, bearer};
use crate::agent::attempt::Line;
use crate::agent::deliver::deliver;
use crate::agent::http::HttpAgent;
use crate::agent::request;
use http::HeaderValue;
use std::sync::Arc;
use turnway_core::limits;
use turnway_core::protocol::action::News;

impl Agents {
    /// Tells an attempt that runs what has become of what its agent has asked for. What it does not take is told to its
    /// agent with the next turn.
    pub(super) fn news(&self, news: News) {
        let Some(running) = self.0.running.get(&(news.run_id.clone(), news.attempt)) else { return };
        let agent = self.0.agents.get(&news.agent_id);
        if !running.line.tell(news) {
            return;
        }
        let Some(Agent::Http(agent)) = agent else { return };
        let Some(auth) = running.token.as_ref().and_then(bearer).filter(|_| running.line.begin_telling())
        else {
            return;
        };
        let (agent, line) = (Arc::clone(agent), Arc::clone(&running.line));
        let over = Arc::clone(&line);
        self.0.runtime.spawn(async move {
            tokio::select! {
                () = tell(agent, line, auth) => {}
                () = over.over() => {}
            }
        });
    }
}

/// Tells of one after the other, until it is dropped with its attempt.
async fn tell(agent: Arc<HttpAgent>, line: Arc<Line>, auth: HeaderValue) {
    loop {
        let news = line.news().await;
        let Ok(request) = request::news(&news, &agent.endpoint, auth.clone()) else { continue };
        drop(deliver(&agent.client, &request, limits::STEER_ACK).await);
    }
}

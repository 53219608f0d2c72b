//! The public HTTP API: one file for each resource, put behind its path by [`router`]. A request is a link of its own
//! ([`guest`]), so that all decisions about sessions, repeats and order stay with the switchboard. Shared parts:
//! [`intake`], [`query`], [`read`], [`stream`], [`problem`], [`counted`]. Called by `listen`.
mod agents;
mod counted;
mod events;
pub mod guest;
pub mod intake;
mod messages;
mod node;
mod openai;
mod openapi;
pub mod problem;
pub mod query;
pub mod read;
mod runs;
mod sessions;
pub mod stream;
mod turns;

pub use counted::counted;
pub use node::Node;

use crate::agent::Agents;
use crate::answer::Body;
use crate::clock::Clock;
use crate::door::{Admitted, Door};
use crate::keys::call_names::CallNames;
use crate::links::{Board, Links};
use crate::phase::Life;
use axum::Router;
use axum::routing::{get, post};
use http::{HeaderMap, Response};
use problem::Problem;
use std::fmt;
use std::sync::Arc;
use turnway_core::protocol::agent::Directory;
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Millis;

/// The parts of the node that requests need.
pub struct Desk {
    pub door: Door,
    /// Creates the mailboxes of request links.
    pub links: Arc<Links>,
    /// Sends the commands of request links.
    pub board: Board,
    pub directory: Arc<Directory>,
    pub agents: Agents,
    pub clock: Clock,
    /// Start of the node, by the store's time.
    pub began: Millis,
    pub life: Life,
    /// Names the sessions that OpenAI calls create for themselves.
    pub call_names: CallNames,
    /// The durability of an acknowledgement (`turn_accepted.durability`).
    pub durability: &'static str,
    pub node: Node,
}

/// The response to a request, or the problem to answer with.
pub type Answer = Result<Response<Body>, Problem>;

/// Builds the router of all paths.
pub fn router(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/", get(node::show))
        .route("/openapi.json", get(openapi::show))
        .route("/v1/agents", get(agents::list))
        .route("/v1/runs/{run_id}", get(runs::show).post(runs::command).fallback(runs::neither))
        .route("/v1/runs/{run_id}/events", get(runs::facts))
        .route("/v1/sessions", get(sessions::list))
        .route("/v1/sessions/{session_id}", get(sessions::show).delete(sessions::delete))
        .route("/v1/sessions/{session_id}/events", get(events::of_session))
        .route("/v1/sessions/{session_id}/messages", get(messages::list))
        .route("/v1/sessions/{session_id}/turns", post(turns::create))
        .method_not_allowed_fallback(not_this_way)
        .merge(openai::router())
        .fallback(nothing)
        .with_state(desk)
}

async fn nothing() -> Problem {
    Problem::new(Code::NotFound, "no such resource")
}

async fn not_this_way() -> Problem {
    Problem::method_not_allowed()
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpContext").finish_non_exhaustive()
    }
}

// === impl Desk ===

impl Desk {
    /// Authenticates a request, and opens a link for its principal.
    pub async fn welcome(self: &Arc<Self>, headers: &HeaderMap) -> Result<guest::Guest, Problem> {
        let admitted = self.admit(headers).await?;
        Ok(guest::Guest::enter(Arc::clone(self), admitted).await?)
    }

    /// Authenticates a request.
    pub async fn admit(&self, headers: &HeaderMap) -> Result<Admitted, Problem> {
        self.door.look_at_request(headers, self.clock.now()).await;
        Ok(self.door.admit_request(headers, self.clock.now().store)?)
    }
}

//! The public HTTP surface: one file per resource.
//!
//! - [`Desk`]: everything a request needs of its node; [`router`] puts the resources behind their paths.
//! - [`guest`]: a request as a link of its own. All opinions are the switchboard's: whose a session is,
//!   what a repeat is, in which order things come.
//! - [`problem`]: refusals as problem JSON, each code with its status.
//! - [`intake`], [`query`]: bodies, headers and parameters within bounds; [`stream`]: notes as server-sent
//!   events; [`read`]: facts of a session.
//! - `turns`: one input and its answer; `openai`: the same in OpenAI's words · `sessions`, `events`,
//!   `messages`, `runs`, `agents`: what there is · `node`: what this is · `openapi`: all of it for programs.
//! - [`counted`]: all of it, counted.
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

/// Everything a request needs of its node.
pub struct Desk {
    /// Who may come in.
    pub door: Door,
    /// Where guests are shown things.
    pub links: Arc<Links>,
    /// Where guests ask.
    pub board: Board,
    /// The agents there are.
    pub directory: Arc<Directory>,
    /// Who answers.
    pub agents: Agents,
    /// The time.
    pub clock: Clock,
    /// When the node began.
    pub began: Millis,
    /// The process's phase.
    pub life: Life,
    /// By which sessions are named that calls make for themselves.
    pub call_names: CallNames,
    /// What an acknowledgement promises.
    pub durability: &'static str,
    /// The node itself.
    pub node: Node,
}

/// A request's answer, or why there is none.
pub type Answer = Result<Response<Body>, Problem>;

/// Every path there is.
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
    Problem::new(Code::NotFound, "there is nothing here")
}

async fn not_this_way() -> Problem {
    Problem::method_not_allowed()
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

// === impl Desk ===

impl Desk {
    /// Lets a request in, as a link of its principal.
    pub async fn welcome(self: &Arc<Self>, headers: &HeaderMap) -> Result<guest::Guest, Problem> {
        let admitted = self.admit(headers).await?;
        Ok(guest::Guest::enter(Arc::clone(self), admitted).await?)
    }

    /// Who a request is of.
    pub async fn admit(&self, headers: &HeaderMap) -> Result<Admitted, Problem> {
        self.door.look_at_request(headers, self.clock.now()).await;
        Ok(self.door.admit_request(headers, self.clock.now().store)?)
    }
}

//! The public HTTP surface: one file per resource.
//!
//! - [`Desk`]: everything a request needs of its node; [`router`] puts the resources behind their paths.
//! - [`guest`]: a request as a link of its own. All opinions are the switchboard's: whose a session is,
//!   what a repeat is, in which order things come.
//! - [`problem`]: refusals as problem JSON, each code with its status.
//! - [`intake`]: bodies and headers within bounds; [`stream`]: notes as server-sent events.
//! - [`turns`]: one input and its answer; `openai`: the same in OpenAI's words. `node`: what this is.
pub mod guest;
pub mod intake;
mod node;
mod openai;
pub mod problem;
pub mod stream;
mod turns;

pub use node::Node;

use crate::answer::Body;
use crate::clock::Clock;
use crate::door::Door;
use crate::links::{Board, Links};
use crate::phase::Life;
use axum::Router;
use axum::routing::{get, post};
use http::{HeaderMap, Response};
use problem::Problem;
use std::sync::Arc;
use turnway_core::protocol::agent::Directory;
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Millis;

/// Everything a request needs of its node.
#[derive(Debug)]
pub struct Desk {
    /// Who may come in.
    pub door: Door,
    /// Where guests are shown things.
    pub links: Arc<Links>,
    /// Where guests ask.
    pub board: Board,
    /// The agents there are.
    pub directory: Arc<Directory>,
    /// The time.
    pub clock: Clock,
    /// When the node began.
    pub began: Millis,
    /// The process's phase.
    pub life: Life,
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

// === impl Desk ===

impl Desk {
    /// Lets a request in, as a link of its principal.
    pub async fn welcome(self: &Arc<Self>, headers: &HeaderMap) -> Result<guest::Guest, Problem> {
        let principal = self.door.admit_request(headers)?;
        Ok(guest::Guest::enter(Arc::clone(self), principal).await?)
    }
}

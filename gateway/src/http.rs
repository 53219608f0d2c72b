//! The public HTTP API: one file for each resource, put behind its path by [`router`]. A request is a link of its own
//! ([`request_link`]), so that all decisions about sessions, repeats and order stay with the switchboard. Shared parts:
//! [`request_parts`], [`query`], [`run_scope`], [`session_facts`], [`stream`], [`problem`], `request_metrics`. Called by `listen`.
mod accounts;
mod agent_conversation;
mod agents;
mod asyncapi;
mod bindings;
mod blobs;
mod call_writer;
mod deliveries;
mod events;
mod messages;
mod models;
mod node;
mod openai;
mod openapi;
pub mod problem;
pub mod query;
pub mod request_link;
mod request_metrics;
pub mod request_parts;
pub mod run_scope;
mod run_usage;
mod runs;
pub mod session_facts;
mod sessions;
pub mod stream;
mod turns;
mod web_chat;

pub use agent_conversation::SessionConversations;
pub use blobs::HttpBlobs;
pub use call_writer::SessionCallWriter;
pub use node::HttpNode;
pub use request_metrics::with_request_metrics;

use crate::agent::Agents;
use crate::auth::{AuthProof, AuthenticatedClient, Authenticator};
use crate::clock::Clock;
use crate::keys::call_names::CallNames;
use crate::links::{CommandSender, LinkRegistry};
use crate::models::Models;
use crate::phase::Lifecycle;
use crate::response::Body;
use axum::Router;
use axum::routing::{get, post};
use http::{HeaderMap, Response};
use problem::HttpProblem;
use std::fmt;
use std::sync::Arc;
use turnway_core::id::SessionId;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::protocol::refusal::Code;
use turnway_core::time::Millis;

/// The parts of the node that requests need.
pub struct HttpContext {
    pub auth: Authenticator,
    /// Creates the mailboxes of request links.
    pub links: Arc<LinkRegistry>,
    /// Sends the commands of request links.
    pub commands: CommandSender,
    pub directory: Arc<AgentDirectory>,
    pub agents: Agents,
    pub clock: Clock,
    /// Start of the node, by the store's time.
    pub started_at: Millis,
    pub life: Lifecycle,
    /// Names the sessions that OpenAI calls create for themselves.
    pub call_names: CallNames,
    /// The durability of an acknowledgement (`turn_accepted.durability`).
    pub durability: &'static str,
    pub node: HttpNode,
    pub blobs: HttpBlobs,
    pub models: Models,
    /// True if the web chat is served under `/chat/`.
    pub serves_web_chat: bool,
}

/// The response to a request, or the problem to answer with.
pub type HttpResult = Result<Response<Body>, HttpProblem>;

/// Builds the router of all paths.
pub fn router(context: Arc<HttpContext>) -> Router {
    let router = Router::new()
        .route("/", get(node::show))
        .route("/asyncapi.json", get(asyncapi::show))
        .route("/openapi.json", get(openapi::show))
        .route("/v1/agents", get(agents::list))
        .route("/v1/bindings", get(bindings::list).post(bindings::bind))
        .route("/v1/bindings/children", post(bindings::bind_child))
        .route("/v1/bindings/expiry", post(bindings::set_expiry))
        .route("/v1/bindings/resolve", get(bindings::resolve).post(bindings::resolve_all))
        .route("/v1/bindings/touch", post(bindings::touch))
        .route("/v1/bindings/unbind", post(bindings::unbind))
        .route("/v1/accounts/paused", get(accounts::list_paused))
        .route("/v1/accounts/pause", post(accounts::pause))
        .route("/v1/accounts/resume", post(accounts::resume))
        .route("/v1/accounts/show", get(accounts::show))
        .route("/v1/deliveries", get(deliveries::list))
        .route("/v1/deliveries/settle", post(deliveries::settle))
        .route("/v1/runs/{run_id}", get(runs::show).post(runs::command).fallback(runs::neither))
        .route("/v1/runs/{run_id}/events", get(runs::facts))
        .route("/v1/runs/{run_id}/usage", get(run_usage::show))
        .route("/v1/sessions", get(sessions::list))
        .route("/v1/sessions/{session_id}", get(sessions::show).delete(sessions::delete))
        .route("/v1/sessions/{session_id}/blobs", get(blobs::list).post(blobs::upload))
        .route("/v1/sessions/{session_id}/blobs/{sha256}", get(blobs::read).delete(blobs::delete))
        .route("/v1/sessions/{session_id}/events", get(events::of_session))
        .route("/v1/sessions/{session_id}/messages", get(messages::list).post(messages::send))
        .route("/v1/sessions/{session_id}/turns", post(turns::create))
        .method_not_allowed_fallback(method_not_allowed)
        .merge(openai::router())
        .merge(models::router())
        .fallback(not_found);
    // Files for people are no part of the API: metrics count them with all other paths.
    let router = if context.serves_web_chat { router.fallback(web_chat::serve) } else { router };
    router.with_state(context)
}

async fn not_found() -> HttpProblem {
    HttpProblem::new(Code::NotFound, "no such resource")
}

async fn method_not_allowed() -> HttpProblem {
    HttpProblem::method_not_allowed()
}

impl fmt::Debug for HttpContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpContext").finish_non_exhaustive()
    }
}

// === impl HttpContext ===

impl HttpContext {
    /// Authenticates a request, and opens a link for its principal.
    pub async fn open_link(self: &Arc<Self>, headers: &HeaderMap) -> Result<request_link::RequestLink, HttpProblem> {
        let admitted = self.admit(headers).await?;
        self.open_link_of(admitted).await
    }

    /// Opens a link as [`Self::open_link`] does, over which the token of a run adds files to the session of its run, and
    /// that of an adapter to the session that it was given for.
    pub async fn open_upload_link(
        self: &Arc<Self>,
        headers: &HeaderMap,
        session: &SessionId,
    ) -> Result<request_link::RequestLink, HttpProblem> {
        if let Some(admitted) = self.auth.admit_file_request(headers, (session, true), self.clock.now().store).await {
            return self.open_link_of(admitted?).await;
        }
        let mut admitted = self.admit(headers).await?;
        admitted.principal.writes |= matches!(admitted.proof, AuthProof::Run(_));
        self.open_link_of(admitted).await
    }

    /// Opens a link as [`Self::open_link`] does, for reading a file of a session: a file token of that session is accepted,
    /// too.
    pub async fn open_file_link(
        self: &Arc<Self>,
        headers: &HeaderMap,
        session: &SessionId,
    ) -> Result<request_link::RequestLink, HttpProblem> {
        match self.auth.admit_file_request(headers, (session, false), self.clock.now().store).await {
            Some(admitted) => self.open_link_of(admitted?).await,
            None => self.open_link(headers).await,
        }
    }

    async fn open_link_of(
        self: &Arc<Self>,
        admitted: AuthenticatedClient,
    ) -> Result<request_link::RequestLink, HttpProblem> {
        let run = if let AuthProof::Run(run) = &admitted.proof { Some(run.clone()) } else { None };
        let mut link = request_link::RequestLink::open(Arc::clone(self), admitted).await?;
        if let Some(run) = run {
            link.limit_to_run(run).await?;
        }
        Ok(link)
    }

    /// Authenticates a request of a client. A run's token only reads, over a link of [`Self::open_link`].
    pub async fn authenticate(&self, headers: &HeaderMap) -> Result<AuthenticatedClient, HttpProblem> {
        let admitted = self.admit(headers).await?;
        if matches!(admitted.proof, AuthProof::Run(_)) && !planted(Planted::RunTokenUnscoped) {
            return Err(run_scope::refusal().into());
        }
        Ok(admitted)
    }

    /// Authenticates a request of a client or of a run; the caller checks what a run may do.
    pub async fn admit(&self, headers: &HeaderMap) -> Result<AuthenticatedClient, HttpProblem> {
        self.auth.prepare_request(headers, self.clock.now()).await;
        Ok(self.auth.admit_request(headers, self.clock.now().store)?)
    }
}

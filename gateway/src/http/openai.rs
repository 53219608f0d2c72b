//! Serves the OpenAI-compatible API: chat completions by agents ([`completions`]), the list of models, and errors in
//! OpenAI's format ([`error`]). The message formats are in `turnway_wire::channel::openai`.
pub(in crate::http) mod call_body;
mod call_files;
mod completions;
pub(in crate::http) mod error;

use crate::auth::AuthProof;
use crate::http::HttpContext;
use crate::response::{self, Body};
use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use error::OpenAiError;
use http::{HeaderMap, Response, StatusCode};
use std::collections::BTreeSet;
use std::sync::Arc;
use turnway_wire::channel::openai::ChatError;
use turnway_wire::channel::openai::model::{self, OpenAiModel, OpenAiModelList};

/// The response to a request, or its error.
type OpenAiResult = Result<Response<Body>, OpenAiError>;

/// Returns the routes of the OpenAI-compatible API, which has an error format of its own.
pub(super) fn router() -> Router<Arc<HttpContext>> {
    Router::new()
        .route("/v1/chat/completions", post(completions::create))
        .route("/v1/models", get(list))
        .route("/v1/models/{*model}", get(show))
        .method_not_allowed_fallback(method_not_allowed)
}

async fn method_not_allowed() -> OpenAiError {
    OpenAiError::method_not_allowed()
}

async fn list(State(context): State<Arc<HttpContext>>, headers: HeaderMap) -> OpenAiResult {
    let client = context.admit(&headers).await?;
    let names = if client.models { context.models.names() } else { BTreeSet::new() };
    // The token of a run calls models, and no agents.
    let agents = context.directory.agents.keys().filter(|_| !matches!(client.proof, AuthProof::Run(_)));
    let list = OpenAiModelList::new(agents, names, context.started_at);
    Ok(response::json(StatusCode::OK, &list))
}

async fn show(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> OpenAiResult {
    let client = context.admit(&headers).await?;
    let name = path.map(|Path(name)| name).unwrap_or_default();
    if client.models && context.models.contains(&name) {
        return Ok(response::json(StatusCode::OK, &OpenAiModel::upstream(&name, context.started_at)));
    }
    let agent = model::parse_model_name(&name).filter(|_| !matches!(client.proof, AuthProof::Run(_)));
    let known =
        agent.filter(|agent| context.directory.agents.contains_key(agent)).ok_or_else(ChatError::model_not_found)?;
    Ok(response::json(StatusCode::OK, &OpenAiModel::new(&known, context.started_at)))
}

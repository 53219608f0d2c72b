//! Serves the OpenAI-compatible API: chat completions by agents ([`completions`]), the list of models, and errors in
//! OpenAI's format ([`error`]). The message formats are in `turnway_wire::channel::openai`.
mod call_body;
mod call_files;
mod completions;
mod error;

use crate::http::HttpContext;
use crate::response::{self, Body};
use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use error::OpenAiError;
use http::{HeaderMap, Response, StatusCode};
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
    context.authenticate(&headers).await?;
    Ok(response::json(StatusCode::OK, &OpenAiModelList::new(context.directory.agents.keys(), context.started_at)))
}

async fn show(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> OpenAiResult {
    context.authenticate(&headers).await?;
    let agent = path.ok().and_then(|Path(name)| model::parse_model_name(&name));
    let known =
        agent.filter(|agent| context.directory.agents.contains_key(agent)).ok_or_else(ChatError::model_not_found)?;
    Ok(response::json(StatusCode::OK, &OpenAiModel::new(&known, context.started_at)))
}

//! Serves the OpenAI-compatible API: chat completions by agents ([`completions`]), the list of models, and errors in
//! OpenAI's format ([`fault`]). The message formats are in `turnway_bindings::channel::openai`.
mod completions;
mod fault;

use crate::answer::{self, Body};
use crate::http::Desk;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Extension, Router};
use fault::Fault;
use http::{HeaderMap, Response, StatusCode};
use std::sync::Arc;
use tokio::sync::Semaphore;
use turnway_bindings::channel::openai::Trouble;
use turnway_bindings::channel::openai::model::{self, Model, Models};

/// Maximum requests read at a time that are larger than a channel message: together about 100 MB.
const LONG_CALLS_MAX: usize = 256;

/// A semaphore for requests that are larger than a channel message.
type LongCalls = Arc<Semaphore>;

/// The response to a request, or its error.
type Answer = Result<Response<Body>, Fault>;

/// Returns the routes of the OpenAI-compatible API, which has an error format of its own.
pub(super) fn router() -> Router<Arc<Desk>> {
    Router::new()
        .route("/v1/chat/completions", post(completions::create))
        .route("/v1/models", get(list))
        .route("/v1/models/{*model}", get(show))
        .method_not_allowed_fallback(not_this_way)
        .layer(Extension(LongCalls::new(Semaphore::new(LONG_CALLS_MAX))))
}

async fn not_this_way() -> Fault {
    Fault::not_this_way()
}

async fn list(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> Answer {
    desk.admit(&headers).await?;
    Ok(answer::json(StatusCode::OK, &Models::new(desk.directory.agents.keys(), desk.began)))
}

async fn show(
    State(desk): State<Arc<Desk>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Answer {
    desk.admit(&headers).await?;
    let agent = path.ok().and_then(|Path(name)| model::agent(&name));
    let known =
        agent.filter(|agent| desk.directory.agents.contains_key(agent)).ok_or_else(Trouble::no_model)?;
    Ok(answer::json(StatusCode::OK, &Model::new(&known, desk.began)))
}

//! What an OpenAI client finds here: completions by agents, and the list of them.
//!
//! The words are `turnway_bindings::channel::openai`'s; here they get their HTTP.
//!
//! - [`completions`]: `POST /v1/chat/completions`.
//! - [`fault`]: trouble as an answer.
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

/// Requests larger than a message of the channel protocol that are read at a time: about 100 MB of them.
const LONG_CALLS_MAX: usize = 256;

/// A place for one more of those.
type LongCalls = Arc<Semaphore>;

/// A request's answer, or what went wrong.
type Answer = Result<Response<Body>, Fault>;

/// The paths of this front, which speaks of its own errors in its own way.
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

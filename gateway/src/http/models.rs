//! Serves calls of language models: `POST /v1/responses`, `/v1/messages` and `/v1/embeddings`, and chat completions whose
//! model is no agent ([`relay_call`], called by `openai`). Decides who may call; `crate::models` does the call.
mod error;
mod guard;
mod relay;

use crate::auth::{AuthProof, AuthenticatedClient};
use crate::http::HttpContext;
use crate::http::openai::call_body::CallBody;
use crate::http::problem::HttpProblem;
use crate::links::Pool;
use crate::models::{ModelCall, headers as model_headers};
use crate::phase::NodePhase;
use crate::response::{self, Body};
use crate::socket::ClientWatch;
use axum::extract::State;
use axum::routing::{MethodRouter, post};
use axum::{Extension, Router};
use bytes::Bytes;
pub(super) use error::ModelCallError;
use guard::{CallGuard, CutReason};
use http::{HeaderMap, HeaderName, HeaderValue, Response, Uri, header};
use std::sync::Arc;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::Code;
use turnway_wire::channel::command::RateClass;
use turnway_wire::model::{CallFormat, CallRequest};

/// Header with the credential of Anthropic's clients.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The only query that is passed on: Anthropic's clients mark beta features with it.
const BETA_QUERY: &str = "beta=true";

/// The answer to a call, or its error.
type ModelCallResult = Result<Response<Body>, ModelCallError>;

/// Returns the routes of the formats that only models have.
pub(super) fn router() -> Router<Arc<HttpContext>> {
    Router::new()
        .route("/v1/responses", route(CallFormat::Responses))
        .route("/v1/messages", route(CallFormat::Messages))
        .route("/v1/embeddings", route(CallFormat::Embeddings))
}

/// Returns the methods of a format's path.
fn route(format: CallFormat) -> MethodRouter<Arc<HttpContext>> {
    let serve = move |State(context): State<Arc<HttpContext>>,
                      watch: Option<Extension<ClientWatch>>,
                      headers: HeaderMap,
                      uri: Uri,
                      body: Body| serve(format, context, watch, headers, uri, body);
    let refuse = move || async move { ModelCallError::from(HttpProblem::allow_only("POST")).into_response(format) };
    post(serve).fallback(refuse)
}

/// Moves the credential of Anthropic's clients to where all other credentials are.
fn with_bearer(mut headers: HeaderMap) -> HeaderMap {
    let shown = headers.get(X_API_KEY).filter(|_| !headers.contains_key(header::AUTHORIZATION));
    let bearer = shown.and_then(|shown| HeaderValue::try_from([b"Bearer ", shown.as_bytes()].concat()).ok());
    if let Some(bearer) = bearer {
        headers.insert(header::AUTHORIZATION, bearer);
    }
    headers
}

async fn serve(
    format: CallFormat,
    context: Arc<HttpContext>,
    watch: Option<Extension<ClientWatch>>,
    headers: HeaderMap,
    uri: Uri,
    body: Body,
) -> Response<Body> {
    let headers = if format == CallFormat::Messages { with_bearer(headers) } else { headers };
    let answer = async {
        let client =
            context.admit(&headers).await.map_err(|problem| ModelCallError::from(problem).with_unread_body())?;
        // Before the body is read: it may be long.
        check_right(&client).map_err(|problem| ModelCallError::from(problem).with_unread_body())?;
        let body = CallBody::read(&context, &client, &headers, body).await.map_err(ModelCallError::from)?;
        let (parsed, body) = body.parse_model_call(format).await;
        let call = ParsedCall { format, call: parsed?, body };
        relay_call(context, client, watch.map(|Extension(watch)| watch), &headers, &uri, call).await
    };
    answer.await.unwrap_or_else(|error| error.into_response(format))
}

/// A call whose body was read.
pub(super) struct ParsedCall {
    pub(super) format: CallFormat,
    pub(super) call: CallRequest,
    pub(super) body: CallBody,
}

/// Answers a call of a model for an authenticated client.
pub(super) async fn relay_call(
    context: Arc<HttpContext>,
    client: AuthenticatedClient,
    watch: Option<ClientWatch>,
    headers: &HeaderMap,
    uri: &Uri,
    parsed: ParsedCall,
) -> ModelCallResult {
    let ParsedCall { format, call, body } = parsed;
    check_right(&client)?;
    let query = match uri.query() {
        None => None,
        Some(BETA_QUERY) if format == CallFormat::Messages => Some(BETA_QUERY),
        Some(_) => return Err(HttpProblem::invalid("the query is not supported").into()),
    };
    if !context.models.contains(call.model()) {
        return Err(ModelCallError::model_not_found(call.model()));
    }
    if context.life.phase() >= NodePhase::Draining {
        return Err(HttpProblem::draining().into());
    }
    let limiter = context.auth.rate_limiter(&client, context.clock.mono());
    if let Some(refusal) = limiter.check_request(RateClass::Work, context.clock.mono()) {
        return Err(HttpProblem::from(refusal).into());
    }
    let permit = context.links.acquire(Pool::Models, &client.principal).map_err(HttpProblem::from)?;
    let run = if let AuthProof::Run(run) = &client.proof { Some(run.clone()) } else { None };
    let mut guard = CallGuard::open(&context, client, watch, permit).await?;
    // The body stays in memory, and in its share, until an upstream has answered: it may be sent again.
    let (text, room) = body.into_parts();
    let request = ModelCall {
        format,
        call,
        body: Bytes::from(text),
        headers: model_headers::for_upstream(headers),
        query,
        run,
        accounts: guard.take_accounts(),
    };
    let opened = tokio::select! {
        biased;
        opened = context.models.open(&request) => opened,
        reason = guard.wait_cut_before_head() => return Err(reason.into()),
    };
    drop((request, room));
    let call = opened?;
    let status = call.answer.status();
    let mut answer_headers = call.answer.caller_headers();
    answer_headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if call.answer.takes_events() {
        // Without this header nginx buffers an answer.
        answer_headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    }
    let mut answer = response::of_body(status, relay::start(format, call, guard, &context.clock));
    *answer.headers_mut() = answer_headers;
    Ok(answer)
}

/// Checks that a credential may call models. The token of a run may; whether its run goes on is checked by its link.
fn check_right(client: &AuthenticatedClient) -> Result<(), HttpProblem> {
    if client.models && !matches!(client.proof, AuthProof::Files(_)) || planted(Planted::ModelScopeUnchecked) {
        return Ok(());
    }
    let why = "the credential may not call models: it needs the scope `models`";
    Err(HttpProblem::new(Code::Forbidden, why))
}

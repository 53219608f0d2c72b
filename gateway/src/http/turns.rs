//! Serves `POST /v1/sessions/{session_id}/turns`: one input, answered as an event stream. Nothing is sent until the
//! input is accepted, so the status tells. To resume, the client repeats the request with `Last-Event-ID`: the
//! switchboard detects the duplicate, and events that the client has are left out.
use crate::http::openapi::refusals::TurnRefusals;
use crate::http::openapi::shape;
use crate::http::problem::HttpProblem;
use crate::http::request_link::RequestLink;
use crate::http::session_facts::{SessionFactReader, with_deadline};
use crate::http::{HttpContext, HttpResult, request_parts, runs, stream};
use crate::phase::NodePhase;
use crate::response::Body;
use crate::socket::ClientWatch;
use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::HeaderMap;
use std::sync::Arc;
use turnway_core::id::{MessageId, SessionId};
use turnway_core::planted::{Planted, planted};
use turnway_wire::channel::command::InvokeCommand;
use turnway_wire::channel::json::parse::parse_turn;
use turnway_wire::channel::sse::{TurnCursor, TurnStream};

/// Header with a message id, for requests that may be repeated.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Sends one input and streams the answer
#[utoipa::path(
    post,
    operation_id = "create_turn",
    path = "/v1/sessions/{session_id}/turns",
    params(
        ("session_id" = String, Path, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"),
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
        ("idempotency-key" = Option<String>, Header, description = "Message id; a repeated id returns the same turn", pattern = "^[!-~]([ -~]{0,254}[!-~])?$"),
        ("last-event-id" = Option<String>, Header, example = "0-0-0-0-aaaaaaaa", description = "`id` of the last received event: events up to it are left out; an id of another stream is ignored"),
    ),
    request_body = shape::TurnSchema,
    responses(
        (status = 200, description = "The turn's messages, each as the `data:` of an event, to its `done`", content_type = "text/event-stream", body = shape::SseEventSchema),
        TurnRefusals,
    ),
)]
pub(super) async fn create(
    State(context): State<Arc<HttpContext>>,
    watch: Option<Extension<ClientWatch>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> HttpResult {
    let session = request_parts::parse_name(&request_parts::path_parameter(path)?, SessionId::parse)?;
    // An empty id or the id of another stream's event is ignored (HTML, "Server-sent events": an EventSource sends the
    // last id it has seen).
    let resume =
        request_parts::header(&headers, request_parts::LAST_EVENT_ID)?.and_then(|text| TurnCursor::parse(text).ok());
    // The body of an unauthenticated client is not read.
    let admitted = context.authenticate(&headers).await?;
    let text = request_parts::read_json(&headers, body).await?;
    let invoke = apply_idempotency_key(parse_turn(&text, &session)?, &headers)?;
    if context.life.phase() >= NodePhase::Draining && !planted(Planted::DrainTakesTurns) {
        return Err(HttpProblem::draining());
    }
    let mut link = RequestLink::open(Arc::clone(&context), admitted.clone()).await?;
    link.set_watch(watch.map(|Extension(watch)| watch));
    let accepted = link.invoke(invoke).await?;
    let resume = match resume {
        Some(cursor) if cursor.belongs_to(&accepted.run_id) => {
            let reader = SessionFactReader::new(RequestLink::open(Arc::clone(&context), admitted).await?, session);
            Some(with_deadline(runs::valid_cursor(reader, &accepted.run_id, cursor)).await?)
        }
        Some(_) | None => None,
    };
    let mut first = String::new();
    let turn = TurnStream::begin(context.clock.now().store, context.durability, accepted, resume, &mut first);
    Ok(stream::event_stream(link, turn, first))
}

/// Sets the message id from the header. Fails if the body has a different one.
fn apply_idempotency_key(invoke: InvokeCommand, headers: &HeaderMap) -> Result<InvokeCommand, HttpProblem> {
    let Some(key) = request_parts::header(headers, IDEMPOTENCY_KEY)? else { return Ok(invoke) };
    let key = MessageId::parse(key).map_err(|why| HttpProblem::invalid(format!("{IDEMPOTENCY_KEY}: {why}")))?;
    match &invoke.message_id {
        Some(named) if *named != key => {
            Err(HttpProblem::invalid(format!("{IDEMPOTENCY_KEY} and message.message_id do not agree")))
        }
        Some(_) | None => Ok(InvokeCommand { message_id: Some(key), ..invoke }),
    }
}

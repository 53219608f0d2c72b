//! Serves `GET /v1/runs/{run_id}` (state of a turn), `GET …/events` (its facts) and `POST /v1/runs/{run_id}:cancel`.
use crate::http::events::{self, EventsPage, EventsQuery};
use crate::http::openapi::refusals::ResourceRefusals;
use crate::http::openapi::shape;
use crate::http::problem::HttpProblem;
use crate::http::request_link::{RequestFailure, RequestLink};
use crate::http::session_facts::{SessionFactReader, with_deadline};
use crate::http::{HttpContext, HttpResult, request_parts};
use crate::response::{self, Body};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use serde::Serialize;
use std::sync::Arc;
use turnway_core::id::{RunId, Seq};
use turnway_wire::channel::command::{CancelTarget, LinkCommand};
use turnway_wire::channel::notification::{CommandReply, Notification};
use turnway_wire::channel::run::RunView;
use turnway_wire::channel::sse;
use utoipa::ToSchema;

/// Suffix of the path that cancels a run.
const CANCEL: &str = ":cancel";

/// The outcome of a cancel.
#[derive(Serialize, ToSchema)]
#[schema(as = Cancelled)]
pub(super) struct CancelView<'a> {
    #[schema(value_type = String)]
    run_id: &'a RunId,
    status: &'a str,
}

/// Shows the state of a turn
#[utoipa::path(
    get,
    operation_id = "show_run",
    path = "/v1/runs/{run_id}",
    params(("run_id" = String, Path, description = "Run id of the turn", pattern = r"^[A-Za-z0-9_-]{1,64}\.[a-z2-7]{26}$"), ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    responses((status = 200, description = "State of the turn, derived from its facts", body = shape::RunSchema), ResourceRefusals),
)]
pub(super) async fn show(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let name = request_parts::path_parameter(path)?;
    if name.ends_with(CANCEL) {
        return Err(allowed_methods(&name));
    }
    let run_id = request_parts::parse_name(&name, RunId::parse)?;
    let link = context.open_link(&headers).await?;
    let run =
        with_deadline(async { Ok(read_run(&mut SessionFactReader::new(link, run_id.session()), &run_id).await?) })
            .await?;
    Ok(response::json(StatusCode::OK, &run))
}

/// Lists the facts of a turn: a page, or with `Accept: text/event-stream` all of them to its end
#[utoipa::path(
    get,
    operation_id = "list_run_events",
    path = "/v1/runs/{run_id}/events",
    params(
        ("run_id" = String, Path, description = "Run id of the turn", pattern = r"^[A-Za-z0-9_-]{1,64}\.[a-z2-7]{26}$"),
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
        ("after_seq" = Option<u64>, Query, description = "Only facts after this `seq`", minimum = 0, maximum = 9007199254740991u64),
        ("after_epoch" = Option<u64>, Query, description = "Epoch of that fact; detects whether the store lost it", minimum = 0, maximum = 9007199254740991u64),
        ("types" = Option<String>, Query, description = "Comma-separated patterns: `*` is one segment, `>` the rest", example = "run.*,user.message", pattern = r"^([A-Za-z0-9_-]{1,30}|\*)(\.([A-Za-z0-9_-]{1,30}|\*)){0,3}$"),
        ("limit" = Option<u16>, Query, description = "Maximum number of facts; default 50", minimum = 1, maximum = 500),
        ("last-event-id" = Option<String>, Header, example = "0-0", description = "`id` of the last received event: the stream continues after it; an id of another stream is ignored"),
    ),
    responses(
        (status = 200, description = "Envelopes: a page of them, or each as the `data:` of an event", content(
            (EventsPage = "application/json"),
            (shape::SseEventSchema = "text/event-stream"),
        )),
        (status = 204, description = "Stream only: all events were sent, and none will follow"),
        ResourceRefusals,
    ),
)]
pub(super) async fn facts(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    uri: Uri,
) -> HttpResult {
    let run_id = request_parts::parse_name(&request_parts::path_parameter(path)?, RunId::parse)?;
    let wanted = EventsQuery::from_request(&headers, &uri)?;
    let session = run_id.session();
    let mut reader = SessionFactReader::new(context.open_link(&headers).await?, session.clone());
    let (first, ended) = reader.find_run(&run_id).await?;
    let began = wanted.after <= first.seq;
    let (after, epoch) = if began { (first.seq, None) } else { (wanted.after, wanted.epoch) };
    if wanted.streamed && ended.is_some_and(|ended| after >= ended) {
        // The client has received everything. With 204 an `EventSource` does not reconnect.
        let mut nothing = Response::new(Body::empty());
        *nothing.status_mut() = StatusCode::NO_CONTENT;
        nothing.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        return Ok(nothing);
    }
    events::show(reader, &session, EventsQuery { after, epoch, run_id: Some(run_id), upto: ended, ..wanted }).await
}

// The router cannot match a suffix, so this handler has the route of the run itself.
/// Cancels a turn
#[utoipa::path(
    post,
    operation_id = "cancel_run",
    path = "/v1/runs/{run_id}:cancel",
    params(("run_id" = String, Path, description = "Run id of the turn", pattern = r"^[A-Za-z0-9_-]{1,64}\.[a-z2-7]{26}$"), ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    responses(
        (status = 200, description = "The turn has ended, by this request or earlier", body = CancelView),
        (status = 202, description = "The agent is being told to stop", body = CancelView),
        ResourceRefusals,
    ),
)]
pub(super) async fn command(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let name = request_parts::path_parameter(path)?;
    let run_id = name.strip_suffix(CANCEL).ok_or_else(|| allowed_methods(&name))?;
    let run_id = request_parts::parse_name(run_id, RunId::parse)?;
    let link = context.open_link(&headers).await?;
    let (status, run) = with_deadline(async { Ok(cancel(link, &run_id).await?) }).await?;
    Ok(response::json(status, &CancelView { run_id: &run_id, status: run }))
}

/// Refuses any other method; the allowed methods depend on the suffix of the path.
pub(super) async fn neither(path: Result<Path<String>, PathRejection>) -> HttpProblem {
    request_parts::path_parameter(path).map_or_else(|problem| problem, |name| allowed_methods(&name))
}

fn allowed_methods(name: &str) -> HttpProblem {
    HttpProblem::allow_only(if name.ends_with(CANCEL) { "POST" } else { "GET,HEAD" })
}

async fn cancel(mut link: RequestLink, run_id: &RunId) -> Result<(StatusCode, &'static str), RequestFailure> {
    let target = CancelTarget::Run(run_id.clone());
    link.send(LinkCommand::Cancel { request_id: None, target, wants_receipt: true }).await?;
    link.wait_for(|note| matches!(note, Notification::Reply(CommandReply::CancelAccepted { .. })).then_some(()))
        .await?;
    // The owner has handled the cancel and recorded it, if there was something to cancel.
    let mut reader = SessionFactReader::new(link, run_id.session());
    let (_, ended) = reader.find_run(run_id).await?;
    if ended.is_none() {
        return Ok((StatusCode::ACCEPTED, "CANCELLING"));
    }
    Ok((StatusCode::OK, read_run(&mut reader, run_id).await?.status))
}

/// Returns a reader's valid cursor in a run. A cursor in an attempt that the run has not reached is not valid: the
/// reader then gets the present attempt from its beginning.
pub(super) async fn valid_cursor(
    mut reader: SessionFactReader,
    run_id: &RunId,
    cursor: sse::TurnCursor,
) -> Result<sse::TurnCursor, HttpProblem> {
    // Every run that has started has attempt 1.
    if cursor.attempt <= 1 || cursor.attempt <= read_run(&mut reader, run_id).await?.attempt {
        return Ok(cursor);
    }
    Ok(sse::TurnCursor::start(run_id))
}

/// Folds all facts of a run.
async fn read_run(reader: &mut SessionFactReader, run_id: &RunId) -> Result<RunView, RequestFailure> {
    let (after, ended) = reader.find_run(run_id).await?;
    let span = reader.start(after.seq, None).await?;
    let end = ended.unwrap_or(Seq(u64::MAX)).min(span.snapshot.seq);
    let mut run = RunView::new(run_id.clone());
    run.trimmed = span.floor.is_some();
    let mut at = span.after;
    while at < end && !run.has_ended() {
        let (position, entry) = reader.next().await?;
        run.apply(position.seq, &entry);
        at = position.seq;
    }
    if ended.is_some() && !run.has_ended() {
        run.mark_end_trimmed();
    }
    Ok(run)
}

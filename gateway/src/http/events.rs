//! Serves `GET /v1/sessions/{session_id}/events`: the facts of a session's log, as a page or as an event stream.
use crate::http::openapi::refusals::ResourceRefusals;
use crate::http::openapi::shape;
use crate::http::problem::HttpProblem;
use crate::http::query::HttpQuery;
use crate::http::session_facts::{ANSWER_BYTES_MAX, ReadStart, SessionFactReader, with_deadline};
use crate::http::{HttpContext, HttpResult, request_parts, stream};
use crate::response::{self, Body};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::{HeaderMap, Response, StatusCode, Uri, header};
use serde::Serialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use turnway_core::id::{Epoch, RunId, Seq, SessionId};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::pattern::Pattern;
use turnway_wire::channel::json::envelope::envelope;
use turnway_wire::channel::sse::{self, LogStream};
use utoipa::ToSchema;

/// Maximum facts that one request scans; above it the answer says where to continue.
const SCAN_FACTS_MAX: usize = 10_000;

/// A page of facts.
#[derive(Serialize, ToSchema)]
#[schema(as = Events)]
pub(super) struct EventsPage {
    #[schema(value_type = Vec<shape::EnvelopeSchema>)]
    events: Vec<Box<RawValue>>,
    /// `after_seq` of the next page; `null` at the end of the log.
    #[schema(required, value_type = Option<u64>)]
    next: Option<Seq>,
    /// Sequence number of the last fact of the log.
    #[schema(value_type = u64)]
    seq: Seq,
    /// True if requested facts were trimmed: all up to `floor`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    trimmed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    floor: Option<Seq>,
    /// True if the store has lost the fact that the client has seen.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    regressed: bool,
}

/// The parameters of a request for facts.
#[derive(Debug)]
pub(super) struct EventsQuery {
    pub(super) after: Seq,
    pub(super) epoch: Option<Epoch>,
    pub(super) types: Vec<Pattern>,
    pub(super) limit: usize,
    /// True if server-sent events are requested.
    pub(super) streamed: bool,
    /// Restricts the answer to the facts of this turn.
    pub(super) run_id: Option<RunId>,
    /// Position after which nothing is sent, if it is known.
    pub(super) upto: Option<Seq>,
}

/// Lists the facts of a session: a page, or with `Accept: text/event-stream` all present and future facts
#[utoipa::path(
    get,
    operation_id = "list_session_events",
    path = "/v1/sessions/{session_id}/events",
    params(
        ("session_id" = String, Path, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"),
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
        ResourceRefusals,
    ),
)]
pub(super) async fn of_session(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    uri: Uri,
) -> HttpResult {
    let session = request_parts::parse_name(&request_parts::path_parameter(path)?, SessionId::parse)?;
    let wanted = EventsQuery::from_request(&headers, &uri)?;
    show(SessionFactReader::new(context.open_link(&headers).await?, session.clone()), &session, wanted).await
}

/// Answers a request for the facts of a session.
pub(super) async fn show(mut reader: SessionFactReader, session: &SessionId, wanted: EventsQuery) -> HttpResult {
    if wanted.streamed {
        let span = with_deadline(async { Ok(reader.start(wanted.after, wanted.epoch).await?) }).await?;
        return Ok(stream_events(reader, &span, wanted));
    }
    with_deadline(page(reader, session, wanted)).await
}

async fn page(mut reader: SessionFactReader, session: &SessionId, wanted: EventsQuery) -> HttpResult {
    let _reading = reader.acquire_read_slot()?;
    let span = reader.start(wanted.after, wanted.epoch).await?;
    let end = wanted.upto.map_or(span.snapshot.seq, |upto| upto.min(span.snapshot.seq));
    let mut events = Vec::new();
    let mut bytes = 0;
    let mut at = span.after;
    for _ in 0..SCAN_FACTS_MAX {
        if at >= end || events.len() >= wanted.limit {
            break;
        }
        let (position, entry) = reader.next().await?;
        let is_mine = wanted.run_id.is_none() || entry.run_id == wanted.run_id;
        if is_mine && wanted.types.iter().any(|pattern| pattern.matches(entry.fact.name())) {
            let event = envelope(session, position, &entry);
            bytes += event.len();
            if bytes > ANSWER_BYTES_MAX && !events.is_empty() && !planted(Planted::HttpPageUnbounded) {
                break;
            }
            events.push(RawValue::from_string(event).map_err(|_| HttpProblem::internal())?);
        }
        at = position.seq;
    }
    let next = (at < end).then_some(at);
    let ReadStart { floor, regressed, snapshot, .. } = span;
    let events = EventsPage { events, next, seq: snapshot.seq, trimmed: floor.is_some(), floor, regressed };
    Ok(response::json(StatusCode::OK, &events))
}

fn stream_events(reader: SessionFactReader, span: &ReadStart, wanted: EventsQuery) -> Response<Body> {
    let mut log = LogStream::new(wanted.types, wanted.run_id);
    let link = reader.into_link();
    let mut first = String::new();
    let ts = link.context().clock.now().store;
    if let Some(reset) = span.reset() {
        log.push(ts, &reset, &mut first);
    }
    stream::event_stream(link, log, first)
}

// === impl EventsQuery ===

impl EventsQuery {
    /// Reads query and headers. A reconnecting client names its position in `Last-Event-ID`.
    pub(super) fn from_request(headers: &HeaderMap, uri: &Uri) -> Result<Self, HttpProblem> {
        let query = HttpQuery::parse(uri)?;
        let mut after = query.number("after_seq")?.map_or(Seq(0), Seq);
        let mut epoch = query.number("after_epoch")?.map(Epoch);
        let types = query.types()?;
        let limit = query.limit()?;
        let streamed = wants_stream(headers);
        let last = request_parts::header(headers, request_parts::LAST_EVENT_ID)?;
        if let Some(at) = last.and_then(|text| sse::log::parse_event_id(text).ok()) {
            (after, epoch) = (at.seq, Some(at.epoch).filter(|_| !planted(Planted::LastEventIdWithoutEpoch)));
        }
        Ok(Self { after, epoch, types, limit, streamed, run_id: None, upto: None })
    }
}

/// Returns true if the client accepts an event stream explicitly; `*/*` gets JSON.
fn wants_stream(headers: &HeaderMap) -> bool {
    let texts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = texts.flat_map(|text| text.split(',')).filter_map(|kind| kind.split(';').next());
    kinds.any(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
}

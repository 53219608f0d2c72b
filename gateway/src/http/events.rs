//! Serves `GET /v1/sessions/{session_id}/events`: the facts of a session's log, as a page or as an event stream.
use crate::answer::{self, Body};
use crate::http::openapi::refusals::Named;
use crate::http::openapi::shape;
use crate::http::problem::Problem;
use crate::http::query::Query;
use crate::http::read::{ANSWER_BYTES_MAX, Reader, Span, in_time};
use crate::http::{Answer, Desk, intake, stream};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::{HeaderMap, Response, StatusCode, Uri, header};
use serde::Serialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use turnway_bindings::channel::json::envelope::envelope;
use turnway_bindings::channel::sse::{self, Log};
use turnway_core::id::{Epoch, RunId, Seq, SessionId};
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::pattern::Pattern;
use utoipa::ToSchema;

/// Maximum facts that one request scans; above it the answer says where to continue.
const SCAN_FACTS_MAX: usize = 10_000;

/// A page of facts.
#[derive(Serialize, ToSchema)]
pub(super) struct Events {
    #[schema(value_type = Vec<shape::Envelope>)]
    events: Vec<Box<RawValue>>,
    /// `after_seq` of the next page; `null` at the end of the log.
    #[schema(required, value_type = Option<u64>)]
    next: Option<Seq>,
    /// `seq` of the last fact in the log.
    #[schema(value_type = u64)]
    seq: Seq,
    /// Requested facts up to `floor` were trimmed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    trimmed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    floor: Option<Seq>,
    /// The log lacks the fact that the client has seen: the store lost it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    regressed: bool,
}

/// The parameters of a request for facts.
#[derive(Debug)]
pub(super) struct Wanted {
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

/// List the facts of a session: a page, or with `Accept: text/event-stream` all present and future facts
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
            (Events = "application/json"),
            (shape::Event = "text/event-stream"),
        )),
        Named,
    ),
)]
pub(super) async fn of_session(
    State(desk): State<Arc<Desk>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    uri: Uri,
) -> Answer {
    let session = intake::name(&intake::path(path)?, SessionId::parse)?;
    let wanted = Wanted::read(&headers, &uri)?;
    show(Reader::new(desk.welcome(&headers).await?, session.clone()), &session, wanted).await
}

/// Answers a request for the facts of a session.
pub(super) async fn show(mut reader: Reader, session: &SessionId, wanted: Wanted) -> Answer {
    if wanted.streamed {
        let span = in_time(async { Ok(reader.begin(wanted.after, wanted.epoch).await?) }).await?;
        return Ok(streamed(reader, &span, wanted));
    }
    in_time(page(reader, session, wanted)).await
}

async fn page(mut reader: Reader, session: &SessionId, wanted: Wanted) -> Answer {
    let _reading = reader.begin_reading()?;
    let span = reader.begin(wanted.after, wanted.epoch).await?;
    let end = wanted.upto.map_or(span.snapshot.seq, |upto| upto.min(span.snapshot.seq));
    let (mut events, mut bytes, mut at) = (Vec::new(), 0, span.after);
    for _ in 0..SCAN_FACTS_MAX {
        if at >= end || events.len() >= wanted.limit {
            break;
        }
        let (place, entry) = reader.next().await?;
        let is_mine = wanted.run_id.is_none() || entry.run_id == wanted.run_id;
        if is_mine && wanted.types.iter().any(|pattern| pattern.matches(entry.fact.name())) {
            let event = envelope(session, place, &entry);
            bytes += event.len();
            if bytes > ANSWER_BYTES_MAX && !events.is_empty() && !planted(Planted::HttpPageUnbounded) {
                break;
            }
            events.push(RawValue::from_string(event).map_err(|_| Problem::internal())?);
        }
        at = place.seq;
    }
    let next = (at < end).then_some(at);
    let Span { floor, regressed, snapshot, .. } = span;
    let events = Events { events, next, seq: snapshot.seq, trimmed: floor.is_some(), floor, regressed };
    Ok(answer::json(StatusCode::OK, &events))
}

fn streamed(reader: Reader, span: &Span, wanted: Wanted) -> Response<Body> {
    let mut log = Log::new(wanted.types, wanted.run_id);
    let guest = reader.into_guest();
    let mut first = String::new();
    let ts = guest.desk().clock.now().store;
    if let Some(reset) = span.reset() {
        log.show(ts, &reset, &mut first);
    }
    stream::answer(guest, log, first)
}

// === impl Wanted ===

impl Wanted {
    /// Reads query and headers. A reconnecting client names its position in `Last-Event-ID`.
    pub(super) fn read(headers: &HeaderMap, uri: &Uri) -> Result<Self, Problem> {
        let query = Query::of(uri)?;
        let mut after = query.number("after_seq")?.map_or(Seq(0), Seq);
        let mut epoch = query.number("after_epoch")?.map(Epoch);
        let (types, limit, streamed) = (query.types()?, query.limit()?, wants_stream(headers));
        let last = intake::header(headers, intake::LAST_EVENT_ID)?;
        if let Some(at) = last.and_then(|text| sse::log::place(text).ok()) {
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

//! Serves `/v1/sessions/{session_id}/messages`: reads the conversation backwards from its end, and sends texts to the
//! conversations of platforms that are bound to the session.
use crate::http::openapi::bindings::ConversationSchema;
use crate::http::openapi::refusals::{ResourceRefusals, SendRefusals};
use crate::http::openapi::shape;
use crate::http::query::HttpQuery;
use crate::http::request_link::RequestFailure;
use crate::http::session_facts::{ANSWER_BYTES_MAX, SessionFactReader, with_deadline};
use crate::http::{HttpContext, HttpResult, request_parts};
use crate::response::{self, Body};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::{HeaderMap, StatusCode, Uri};
use serde::Serialize;
use std::sync::Arc;
use turnway_core::id::{DeliveryId, MessageId, RunId, Seq, SessionId};
use turnway_core::protocol::entry::{Entry, Fact, RunFact};
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::json::delivery::parse_send_body;
use turnway_wire::channel::notification::{AcceptedSend, CommandReply, Notification};
use turnway_wire::channel::transcript::{Transcript, TranscriptMessage, TranscriptPage};
use utoipa::ToSchema;

/// Facts read first; each further step backwards reads twice as many as the one before.
const WINDOW: u64 = 64;
/// Maximum facts read in one step: they are in memory meanwhile.
const WINDOW_MAX: u64 = 512;

/// A page of messages, the newest last.
#[derive(Serialize, ToSchema)]
#[schema(as = Messages)]
pub(super) struct MessagesPage {
    #[schema(value_type = Vec<shape::ConversationMessageSchema>)]
    messages: Vec<TranscriptMessage>,
    /// `before` of the page with older messages.
    #[schema(required, value_type = Option<u64>)]
    next: Option<Seq>,
    /// True if older messages were trimmed, with all facts up to `floor`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    trimmed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    floor: Option<Seq>,
}

/// A text to a conversation that is bound to the session
#[derive(Serialize, ToSchema)]
#[schema(as = SendMessageRequest)]
pub(super) struct SendMessageSchema {
    /// The same id again is the same message; absent: `request_id`, or else an id of its own
    #[schema(pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "m1")]
    message_id: Option<String>,
    /// Absent: the only one that is bound to the session
    conversation: Option<ConversationSchema>,
    /// At most 24 KiB; not blank
    #[schema(min_length = 1, max_length = 24576, pattern = r"\S", example = "The build is green.")]
    text: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = AcceptedSend)]
pub(super) struct AcceptedSendPayload {
    #[schema(value_type = String)]
    session_id: SessionId,
    #[schema(value_type = String)]
    message_id: MessageId,
    /// The delivery, as in `GET /v1/deliveries`
    #[schema(value_type = String)]
    delivery_id: DeliveryId,
}

/// Sends a text to a conversation that is bound to the session, without a turn
#[utoipa::path(
    post,
    operation_id = "send_message",
    path = "/v1/sessions/{session_id}/messages",
    params(
        ("session_id" = String, Path, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"),
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
    ),
    request_body = SendMessageSchema,
    responses((status = 200, description = "The delivery is durably requested", body = AcceptedSendPayload), SendRefusals),
)]
pub(super) async fn send(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> HttpResult {
    let session = request_parts::parse_name(&request_parts::path_parameter(path)?, SessionId::parse)?;
    // The body of an unauthenticated client is not read.
    let mut link = context.open_link(&headers).await?;
    let text = request_parts::read_json(&headers, body).await?;
    link.send(LinkCommand::Send(Box::new(parse_send_body(&text, &session)?))).await?;
    let accepted = link
        .wait_for(|note| {
            if let Notification::Reply(CommandReply::MessageAccepted(accepted)) = note { Some(accepted) } else { None }
        })
        .await?;
    let AcceptedSend { request_id: _, session: session_id, message_id, delivery_id } = *accepted;
    Ok(response::json(StatusCode::OK, &AcceptedSendPayload { session_id, message_id, delivery_id }))
}

/// Lists the messages of a conversation, backwards from its end
#[utoipa::path(
    get,
    operation_id = "list_messages",
    path = "/v1/sessions/{session_id}/messages",
    params(
        ("session_id" = String, Path, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"),
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
        ("limit" = Option<u16>, Query, description = "Maximum number of messages; default 50", minimum = 1, maximum = 500),
        ("before" = Option<u64>, Query, description = "Only messages before this `seq`: the `next` of the newer page", minimum = 0, maximum = 9007199254740991u64),
    ),
    responses((status = 200, description = "A page, the newest last", body = MessagesPage), ResourceRefusals),
)]
pub(super) async fn list(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    uri: Uri,
) -> HttpResult {
    let session = request_parts::parse_name(&request_parts::path_parameter(path)?, SessionId::parse)?;
    let query = HttpQuery::parse(&uri)?;
    let limit = query.limit()?;
    let before = query.number("before")?.map(Seq);
    let reader = SessionFactReader::new(context.open_link(&headers).await?, session);
    with_deadline(page(reader, limit, before)).await
}

async fn page(mut reader: SessionFactReader, limit: usize, before: Option<Seq>) -> HttpResult {
    let _reading = reader.acquire_read_slot()?;
    let last = reader.snapshot().await?.seq;
    let end = before.map_or(last, |before| Seq(before.0.saturating_sub(1)).min(last));
    let transcript = Transcript::new(limit, ANSWER_BYTES_MAX);
    let (transcript, floor) = read_backwards(&mut reader, end, transcript).await?;
    let TranscriptPage { mut messages, before: next, without_end: unended } = transcript.finish();
    if before.is_some() {
        for run_id in unended {
            if is_rolled_back(&mut reader, &run_id).await? {
                messages.retain(|message| message.run_id != run_id);
            }
        }
    }
    let floor = floor.filter(|_| next.is_none());
    Ok(response::json(StatusCode::OK, &MessagesPage { messages, next, trimmed: floor.is_some(), floor }))
}

/// Reads facts up to a position, from there backwards, until the transcript needs no older one. Also returns the position up
/// to which facts are trimmed, if it was reached.
pub(super) async fn read_backwards(
    reader: &mut SessionFactReader,
    upto: Seq,
    mut transcript: Transcript,
) -> Result<(Transcript, Option<Seq>), RequestFailure> {
    // `end` is the position up to which facts are still to be read.
    let mut end = upto;
    let mut window = WINDOW;
    let mut floor = None;
    while end > Seq(0) && !transcript.is_done() {
        let from = Seq(end.0.saturating_sub(window));
        let span = reader.start(from, None).await?;
        floor = span.floor.or(floor);
        for (seq, entry) in read_facts(reader, span.after, end).await?.iter().rev() {
            transcript.push_older(*seq, entry);
            if transcript.is_done() {
                break;
            }
        }
        end = if span.floor.is_some() { Seq(0) } else { from };
        window = (window * 2).min(WINDOW_MAX);
    }
    Ok((transcript, floor))
}

/// Returns true if a turn was rolled back or was merged into one that was. Its end lies after the page.
async fn is_rolled_back(reader: &mut SessionFactReader, run_id: &RunId) -> Result<bool, RequestFailure> {
    let mut run_id = run_id.clone();
    // A merged run cannot be the host of another one.
    for _ in 0..2 {
        let Some(end) = terminal_fact(reader, &run_id).await? else { return Ok(false) };
        let Fact::Run(RunFact::Done { host_run_id: Some(host), .. }) = &end.fact else {
            return Ok(end.fact.retracts_turn());
        };
        run_id.clone_from(host);
    }
    Ok(false)
}

/// Returns the last fact of a turn, if the turn has ended.
async fn terminal_fact(reader: &mut SessionFactReader, run_id: &RunId) -> Result<Option<Arc<Entry>>, RequestFailure> {
    let (first, Some(mut upto)) = reader.find_run(run_id).await? else { return Ok(None) };
    // `upto` is the end of the append with the terminal fact, which is therefore near.
    while upto > first.seq {
        let from = Seq(upto.0.saturating_sub(WINDOW)).max(first.seq);
        let span = reader.start(from, None).await?;
        let facts = read_facts(reader, span.after, upto).await?;
        let is_end = |entry: &Entry| entry.run_id.as_ref() == Some(run_id) && entry.fact.is_terminal();
        if let Some((_, end)) = facts.into_iter().rev().find(|(_, entry)| is_end(entry)) {
            return Ok(Some(end));
        }
        upto = if span.floor.is_some() { first.seq } else { from };
    }
    Ok(None)
}

/// Reads the facts after one position, up to another.
async fn read_facts(
    reader: &mut SessionFactReader,
    after: Seq,
    upto: Seq,
) -> Result<Vec<(Seq, Arc<Entry>)>, RequestFailure> {
    let mut facts = Vec::new();
    let mut at = after;
    while at < upto {
        let (position, entry) = reader.next().await?;
        at = position.seq;
        facts.push((at, entry));
    }
    Ok(facts)
}

//! Serves `GET /v1/sessions` (the user's own sessions), `GET /v1/sessions/{session_id}` (one session's state), and
//! `DELETE` of a session.
use crate::http::openapi::refusals::{CommonRefusals, ResourceRefusals};
use crate::http::openapi::shape;
use crate::http::problem::HttpProblem;
use crate::http::query::HttpQuery;
use crate::http::request_link::{RequestFailure, RequestLink};
use crate::http::session_facts::SessionFactReader;
use crate::http::{HttpContext, HttpResult, request_parts};
use crate::response;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::{HeaderMap, StatusCode, Uri};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{Seq, SessionId, UserId};
use turnway_core::limits;
use turnway_core::protocol::annotation::Annotations;
use turnway_core::protocol::input::ControlRequest;
use turnway_core::protocol::refusal::Code;
use turnway_core::store::CreationKey;
use turnway_core::time::Millis;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::json::render;
use turnway_wire::channel::notification::{CommandReply, Notification, SessionListEntry};
use utoipa::ToSchema;

/// A page of sessions, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = Sessions)]
pub(super) struct SessionsPage {
    sessions: Vec<SessionListItem>,
    /// `before` of the next page.
    #[schema(required)]
    next: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
struct SessionListItem {
    #[schema(value_type = String)]
    session_id: SessionId,
    #[schema(value_type = String)]
    user_id: UserId,
    /// `open` or `closed`.
    state: &'static str,
    #[schema(value_type = u64)]
    created_ts: Millis,
    /// `seq` of the last fact.
    #[schema(value_type = u64)]
    seq: Seq,
    /// Number of unfinished inputs.
    pending: u32,
    /// Short texts about the session, by name; absent if there are none.
    #[schema(value_type = BTreeMap<String, String>)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: Annotations,
}

/// Lists the caller's own sessions, newest first
#[utoipa::path(
    get,
    operation_id = "list_sessions",
    path = "/v1/sessions",
    params(
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
        ("limit" = Option<u16>, Query, description = "Maximum number of sessions; default 50", minimum = 1, maximum = 500),
        ("before" = Option<String>, Query, description = "`next` of the previous page", pattern = "^(0|[1-9][0-9]{0,14})-[A-Za-z0-9_-]{1,64}$"),
    ),
    responses((status = 200, description = "A page", body = SessionsPage), CommonRefusals),
)]
pub(super) async fn list(State(context): State<Arc<HttpContext>>, headers: HeaderMap, uri: Uri) -> HttpResult {
    let query = HttpQuery::parse(&uri)?;
    let before = query.text("before").map(parse_page_cursor).transpose()?;
    let limit = u32::try_from(query.limit()?).unwrap_or(u32::MAX).min(limits::LIST_SESSIONS_MAX);
    let mut link = context.open_link(&headers).await?;
    let _reading = link.acquire_read_slot().map_err(RequestFailure::from)?;
    link.send(LinkCommand::List { before, limit }).await?;
    let (listed, more) = link
        .wait_for(|note| {
            if let Notification::Reply(CommandReply::SessionList { sessions, more }) = note {
                Some((sessions, more))
            } else {
                None
            }
        })
        .await?;
    let last = listed.last().filter(|_| more);
    let next = last.map(|last| format!("{}-{}", last.birth.at.0, last.birth.session));
    let sessions = listed.into_iter().map(SessionListItem::from).collect();
    Ok(response::json(StatusCode::OK, &SessionsPage { sessions, next }))
}

/// Shows the present state of a session
#[utoipa::path(
    get,
    operation_id = "show_session",
    path = "/v1/sessions/{session_id}",
    params(("session_id" = String, Path, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"), ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    responses((status = 200, description = "The present state of the session", body = shape::SnapshotSchema), ResourceRefusals),
)]
pub(super) async fn show(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let session = request_parts::parse_name(&request_parts::path_parameter(path)?, SessionId::parse)?;
    let snapshot = SessionFactReader::new(context.open_link(&headers).await?, session).snapshot().await?;
    Ok(response::build(StatusCode::OK, "application/json", render::snapshot(&snapshot)))
}

/// Number of attempts to close and delete a session that is opened again meanwhile.
const DELETE_TRIES: u32 = 3;

/// Deletes a session permanently: closes it, then removes its facts, messages and list entry
#[utoipa::path(
    delete,
    operation_id = "delete_session",
    path = "/v1/sessions/{session_id}",
    params(("session_id" = String, Path, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"), ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    responses((status = 204, description = "The session is deleted, now or earlier; its id cannot be reused"), ResourceRefusals),
)]
pub(super) async fn delete(
    State(context): State<Arc<HttpContext>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let session = request_parts::parse_name(&request_parts::path_parameter(path)?, SessionId::parse)?;
    let mut link = context.open_link(&headers).await?;
    remove(&mut link, &session).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Closes and deletes a session.
pub(super) async fn remove(link: &mut RequestLink, session: &SessionId) -> Result<(), HttpProblem> {
    let mut refusal = None;
    for _ in 0..DELETE_TRIES {
        link.send(LinkCommand::Delete { session: session.clone() }).await?;
        match link
            .wait_for(|note| matches!(note, Notification::Reply(CommandReply::Deleted { .. })).then_some(()))
            .await
        {
            Ok(()) => {
                link.context().blobs.sweeps.request(link.session_key(session));
                return Ok(());
            }
            Err(RequestFailure::Refused(busy)) if busy.code == Code::Busy => refusal = Some(busy),
            Err(why) => return Err(why.into()),
        }
        link.send(LinkCommand::Control { request_id: None, session: session.clone(), request: ControlRequest::Close })
            .await?;
        link.wait_for(|note| matches!(note, Notification::Reply(CommandReply::Performed { .. })).then_some(())).await?;
    }
    Err(refusal.map_or_else(HttpProblem::internal, HttpProblem::from))
}

/// Maximum digits of a time in milliseconds: sufficient for 30,000 years.
const TIME_DIGITS: usize = 15;

/// Parses the `before` parameter, which is the `next` of an earlier page.
fn parse_page_cursor(text: &str) -> Result<CreationKey, HttpProblem> {
    let bad = || HttpProblem::invalid("before: expected the `next` of an earlier answer");
    let (at, session) = text.split_once('-').ok_or_else(bad)?;
    let plain = at.len() <= TIME_DIGITS && at.bytes().all(|b| b.is_ascii_digit());
    let plain = plain && (at == "0" || !at.starts_with('0'));
    let at = at.parse().ok().filter(|_| plain).ok_or_else(bad)?;
    let session = SessionId::parse(session).map_err(|_| bad())?;
    Ok(CreationKey { at: Millis(at), session })
}

impl From<SessionListEntry> for SessionListItem {
    fn from(listed: SessionListEntry) -> Self {
        let SessionListEntry { birth, user, closed, seq, pending, annotations } = listed;
        let state = if closed { "closed" } else { "open" };
        Self { session_id: birth.session, user_id: user, state, created_ts: birth.at, seq, pending, annotations }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_page_continues_after_the_previous_one() {
        let session = SessionId::parse("a-1").expect("a name");
        assert_eq!(parse_page_cursor("17-a-1"), Ok(CreationKey { at: Millis(17), session }));
        for bad in ["", "17", "-a", "17-", "x-a", "+17-a", "017-a", "1234567890123456-a", "17-a b"] {
            assert!(parse_page_cursor(bad).is_err(), "{bad}");
        }
    }
}

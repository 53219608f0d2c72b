//! Serves `/v1/bindings`: binds conversations to sessions, looks bindings up, changes and ends them. Bodies have the fields of
//! the messages of the same names (docs/messages.md).
use crate::http::openapi::bindings::{
    BindChildRequestSchema, BindRequestSchema, BindingListSchema, BindingSchema, ExpiryRequestSchema,
    LookupRequestSchema, RequestedChildSchema, ResolutionListSchema, ResolutionSchema, TouchRequestSchema,
    UnbindRequestSchema,
};
use crate::http::openapi::refusals::{BindingRefusals, BodyRefusals, ChildRefusals, CommonRefusals, ResourceRefusals};
use crate::http::problem::HttpProblem;
use crate::http::query::HttpQuery;
use crate::http::request_link::RequestLink;
use crate::http::{HttpContext, HttpResult, request_parts};
use crate::response::{self, Body};
use axum::extract::State;
use http::{HeaderMap, StatusCode, Uri};
use std::sync::Arc;
use turnway_core::id::SessionId;
use turnway_core::protocol::conversation::{ConversationRef, UncheckedConversationRef};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_wire::channel::binding::{BindingCommand, BindingReply};
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::json::binding::{parse_bind_child_body, parse_body, parse_lookup_body};
use turnway_wire::channel::json::render::binding::{NOT_APPLIED, binding_reply_object};
use turnway_wire::channel::notification::{CommandReply, Notification, RequestedChild};

/// Lists the active bindings of a session
#[utoipa::path(
    get,
    operation_id = "list_bindings",
    path = "/v1/bindings",
    params(
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
        ("session_id" = String, Query, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"),
    ),
    responses((status = 200, description = "The bindings, in the order of their conversations", body = BindingListSchema), ResourceRefusals),
)]
pub(super) async fn list(State(context): State<Arc<HttpContext>>, headers: HeaderMap, uri: Uri) -> HttpResult {
    let link = context.open_link(&headers).await?;
    let query = HttpQuery::parse(&uri)?;
    let session = request_parts::parse_name(query.required_text("session_id")?, SessionId::parse)?;
    perform(link, BindingCommand::List { session }).await
}

/// Looks up the binding of a conversation; operators only
#[utoipa::path(
    get,
    operation_id = "resolve_binding",
    path = "/v1/bindings/resolve",
    params(
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
        ("channel" = String, Query, description = "The platform", pattern = "^[a-z0-9_.-]{1,64}$", example = "rooms"),
        ("account_id" = String, Query, description = "The gateway's account there", pattern = "^[A-Za-z0-9_.-]{1,64}$", example = "main"),
        ("conversation_id" = String, Query, description = "As the platform names it", pattern = r"^[!-9;-~]{1,256}$", example = "7"),
        ("parent_conversation_id" = Option<String>, Query, description = "The conversation that contains it", pattern = r"^[!-9;-~]{1,256}$"),
        ("explain" = Option<bool>, Query, description = "Also return the rows that were looked at"),
    ),
    responses((status = 200, description = "The binding, or `null` if nobody has bound the conversation", body = ResolutionSchema), CommonRefusals),
)]
pub(super) async fn resolve(State(context): State<Arc<HttpContext>>, headers: HeaderMap, uri: Uri) -> HttpResult {
    let link = context.open_link(&headers).await?;
    let query = HttpQuery::parse(&uri)?;
    let raw = UncheckedConversationRef {
        channel: query.required_text("channel")?.to_owned(),
        account_id: query.required_text("account_id")?.to_owned(),
        conversation_id: query.required_text("conversation_id")?.to_owned(),
        parent_conversation_id: query.text("parent_conversation_id").map(str::to_owned),
    };
    let conversation = ConversationRef::parse(&raw).map_err(|error| HttpProblem::invalid(error.to_string()))?;
    let explain = match query.text("explain") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(HttpProblem::invalid("explain: expected true or false")),
    };
    perform(link, BindingCommand::Resolve { conversation, explain }).await
}

/// Looks up the bindings of several conversations at one moment; operators only
#[utoipa::path(
    post,
    operation_id = "resolve_bindings",
    path = "/v1/bindings/resolve",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    request_body = LookupRequestSchema,
    responses((status = 200, description = "The bindings, in the order of the request", body = ResolutionListSchema), BodyRefusals),
)]
pub(super) async fn resolve_all(State(context): State<Arc<HttpContext>>, headers: HeaderMap, body: Body) -> HttpResult {
    let link = context.open_link(&headers).await?;
    let text = request_parts::read_json(&headers, body).await?;
    perform(link, parse_lookup_body(&text)?).await
}

/// Binds a conversation to a session; operators only
#[utoipa::path(
    post,
    operation_id = "bind",
    path = "/v1/bindings",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    request_body = BindRequestSchema,
    responses((status = 200, description = "The binding", body = BindingSchema), BindingRefusals),
)]
pub(super) async fn bind(State(context): State<Arc<HttpContext>>, headers: HeaderMap, body: Body) -> HttpResult {
    perform_body(&context, &headers, "bind", body).await
}

/// Has the platform make a conversation within another one, and binds it to a session; operators only
///
/// The answer says that the conversation is durably requested. The log of the session gets `binding.bound` once the platform
/// has made it, or `delivery.failed`.
#[utoipa::path(
    post,
    operation_id = "bind_child",
    path = "/v1/bindings/children",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    request_body = BindChildRequestSchema,
    responses((status = 202, description = "The conversation is durably requested", body = RequestedChildSchema), ChildRefusals),
)]
pub(super) async fn bind_child(State(context): State<Arc<HttpContext>>, headers: HeaderMap, body: Body) -> HttpResult {
    // The body of an unauthenticated client is not read.
    let mut link = context.open_link(&headers).await?;
    let text = request_parts::read_json(&headers, body).await?;
    link.send(LinkCommand::BindChild(Box::new(parse_bind_child_body(&text)?))).await?;
    let child =
        link.wait_for(|note| {
            if let Notification::Reply(CommandReply::ChildRequested(child)) = note { Some(child) } else { None }
        })
        .await?;
    let RequestedChild { request_id: _, session: session_id, creation_id, delivery_id } = *child;
    Ok(response::json(StatusCode::ACCEPTED, &RequestedChildSchema { session_id, creation_id, delivery_id }))
}

/// Ends a binding, or all bindings of a session; operators only
#[utoipa::path(
    post,
    operation_id = "unbind",
    path = "/v1/bindings/unbind",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    request_body = UnbindRequestSchema,
    responses((status = 200, description = "The bindings that have ended, now or earlier", body = BindingListSchema), BindingRefusals),
)]
pub(super) async fn unbind(State(context): State<Arc<HttpContext>>, headers: HeaderMap, body: Body) -> HttpResult {
    perform_body(&context, &headers, "unbind", body).await
}

/// Records that a message was routed by a binding; operators only
#[utoipa::path(
    post,
    operation_id = "touch_binding",
    path = "/v1/bindings/touch",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    request_body = TouchRequestSchema,
    responses((status = 200, description = "The binding", body = BindingListSchema), BindingRefusals),
)]
pub(super) async fn touch(State(context): State<Arc<HttpContext>>, headers: HeaderMap, body: Body) -> HttpResult {
    perform_body(&context, &headers, "touch", body).await
}

/// Changes when a binding, or every binding of a session, expires; operators only
#[utoipa::path(
    post,
    operation_id = "set_binding_expiry",
    path = "/v1/bindings/expiry",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    request_body = ExpiryRequestSchema,
    responses((status = 200, description = "The bindings with their new times", body = BindingListSchema), BindingRefusals),
)]
pub(super) async fn set_expiry(State(context): State<Arc<HttpContext>>, headers: HeaderMap, body: Body) -> HttpResult {
    perform_body(&context, &headers, "set_binding_expiry", body).await
}

/// Performs the request of a body, which is a message of this type.
async fn perform_body(context: &Arc<HttpContext>, headers: &HeaderMap, kind: &'static str, body: Body) -> HttpResult {
    // The body of an unauthenticated client is not read.
    let link = context.open_link(headers).await?;
    let text = request_parts::read_json(headers, body).await?;
    perform(link, parse_body(kind, &text)?).await
}

async fn perform(mut link: RequestLink, command: BindingCommand) -> HttpResult {
    link.send(LinkCommand::Binding { request_id: None, command }).await?;
    let reply =
        link.wait_for(|note| {
            if let Notification::Reply(CommandReply::Binding { reply, .. }) = note { Some(reply) } else { None }
        })
        .await?;
    let object = binding_reply_object(&reply);
    if let BindingReply::NotApplied { .. } = reply {
        let refusal = Refusal::new(Code::NotApplied, NOT_APPLIED);
        return Ok(response::refused_with_current(StatusCode::CONFLICT, &refusal, &object));
    }
    Ok(response::build(StatusCode::OK, "application/json", object))
}

//! Serves `/v1/accounts`: shows an account of an adapter, lists those that are paused, pauses and resumes them. Bodies have
//! the fields of the messages of the same names (docs/messages.md).
use crate::http::openapi::accounts::{
    AccountPausedSchema, AccountResumedSchema, AccountViewSchema, NamedAccountSchema, PausedAccountListSchema,
};
use crate::http::openapi::refusals::{BodyRefusals, CommonRefusals};
use crate::http::problem::HttpProblem;
use crate::http::query::HttpQuery;
use crate::http::request_link::RequestLink;
use crate::http::{HttpContext, HttpResult, request_parts};
use crate::response::{self, Body};
use axum::extract::State;
use http::{HeaderMap, StatusCode, Uri};
use std::sync::Arc;
use turnway_wire::channel::account::AccountCommand;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::json::account::{parse_account_body, parse_account_name};
use turnway_wire::channel::json::render::account::account_reply_object;
use turnway_wire::channel::notification::{CommandReply, Notification};

/// Lists the paused accounts of the tenant; operators only
#[utoipa::path(
    get,
    operation_id = "list_paused_accounts",
    path = "/v1/accounts/paused",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    responses((status = 200, description = "The accounts, in the order of their names", body = PausedAccountListSchema), CommonRefusals),
)]
pub(super) async fn list_paused(State(context): State<Arc<HttpContext>>, headers: HeaderMap) -> HttpResult {
    let link = context.open_link(&headers).await?;
    perform(link, AccountCommand::ListPaused).await
}

/// Shows whether an adapter serves an account, and what the adapter can do; operators only
#[utoipa::path(
    get,
    operation_id = "show_account",
    path = "/v1/accounts/show",
    params(
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
        ("channel" = String, Query, description = "The platform", pattern = "^[a-z0-9_.-]{1,64}$", example = "rooms"),
        ("account_id" = String, Query, description = "The gateway's account there", pattern = "^[A-Za-z0-9_.-]{1,64}$", example = "main"),
    ),
    responses((status = 200, description = "The account; an unknown one is served by nobody", body = AccountViewSchema), CommonRefusals),
)]
pub(super) async fn show(State(context): State<Arc<HttpContext>>, headers: HeaderMap, uri: Uri) -> HttpResult {
    let link = context.open_link(&headers).await?;
    let query = HttpQuery::parse(&uri)?;
    let account = parse_account_name(query.required_text("channel")?, query.required_text("account_id")?);
    let account = account.map_err(|reason| HttpProblem::invalid(reason.to_string()))?;
    perform(link, AccountCommand::Show(account)).await
}

/// Stops what is sent for an account; operators only
#[utoipa::path(
    post,
    operation_id = "pause_account",
    path = "/v1/accounts/pause",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    request_body = NamedAccountSchema,
    responses((status = 200, description = "The pause that the account has; an earlier one stays", body = AccountPausedSchema), BodyRefusals),
)]
pub(super) async fn pause(State(context): State<Arc<HttpContext>>, headers: HeaderMap, body: Body) -> HttpResult {
    change(&context, "pause_account", &headers, body).await
}

/// Lets an account send again; operators only
#[utoipa::path(
    post,
    operation_id = "resume_account",
    path = "/v1/accounts/resume",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    request_body = NamedAccountSchema,
    responses((status = 200, description = "The account is not paused", body = AccountResumedSchema), BodyRefusals),
)]
pub(super) async fn resume(State(context): State<Arc<HttpContext>>, headers: HeaderMap, body: Body) -> HttpResult {
    change(&context, "resume_account", &headers, body).await
}

/// Performs a request with a body, which is a message whose type the path gives.
async fn change(context: &Arc<HttpContext>, kind: &str, headers: &HeaderMap, body: Body) -> HttpResult {
    // The body of an unauthenticated client is not read.
    let link = context.open_link(headers).await?;
    let text = request_parts::read_json(headers, body).await?;
    perform(link, parse_account_body(kind, &text)?).await
}

async fn perform(mut link: RequestLink, command: AccountCommand) -> HttpResult {
    link.send(LinkCommand::Account { request_id: None, command }).await?;
    let reply =
        link.wait_for(|note| {
            if let Notification::Reply(CommandReply::Account { reply, .. }) = note { Some(reply) } else { None }
        })
        .await?;
    Ok(response::build(StatusCode::OK, "application/json", account_reply_object(&reply)))
}

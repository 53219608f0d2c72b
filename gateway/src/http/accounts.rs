//! Serves `/v1/accounts`: lists the accounts of adapters that are paused, pauses and resumes them. Bodies have the fields of
//! the messages of the same names (docs/messages.md).
use crate::http::openapi::accounts::{
    AccountPausedSchema, AccountResumedSchema, NamedAccountSchema, PausedAccountListSchema,
};
use crate::http::openapi::refusals::{BodyRefusals, CommonRefusals};
use crate::http::request_link::RequestLink;
use crate::http::{HttpContext, HttpResult, request_parts};
use crate::response::{self, Body};
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use std::sync::Arc;
use turnway_wire::channel::account::AccountCommand;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::json::account::parse_account_body;
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

//! Serves `/v1/deliveries`: lists the messages to conversations that are not sent, and settles those that are held or have
//! failed. Bodies have the fields of the messages of the same names (docs/messages.md).
use crate::http::openapi::deliveries::{DeliveryListSchema, SettledDeliverySchema, SettlementSchema};
use crate::http::openapi::refusals::{BodyRefusals, ResourceRefusals};
use crate::http::query::HttpQuery;
use crate::http::{HttpContext, HttpResult, request_parts};
use crate::response::{self, Body};
use axum::extract::State;
use http::{HeaderMap, StatusCode, Uri};
use serde::Serialize;
use std::sync::Arc;
use turnway_core::id::SessionId;
use turnway_wire::channel::command::LinkCommand;
use turnway_wire::channel::json::delivery::parse_settlement_body;
use turnway_wire::channel::json::render::delivery::delivery_list_object;
use turnway_wire::channel::notification::{CommandReply, Notification};

#[derive(Serialize)]
struct SettledDelivery {
    session_id: SessionId,
}

/// Lists the deliveries of a session that are not sent
#[utoipa::path(
    get,
    operation_id = "list_deliveries",
    path = "/v1/deliveries",
    params(
        ("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann"),
        ("session_id" = String, Query, description = "Session id", pattern = "^[A-Za-z0-9_-]{1,64}$", example = "s1"),
    ),
    responses((status = 200, description = "The deliveries, in the order in which they were requested", body = DeliveryListSchema), ResourceRefusals),
)]
pub(super) async fn list(State(context): State<Arc<HttpContext>>, headers: HeaderMap, uri: Uri) -> HttpResult {
    let mut link = context.open_link(&headers).await?;
    let query = HttpQuery::parse(&uri)?;
    let session = request_parts::parse_name(query.required_text("session_id")?, SessionId::parse)?;
    link.send(LinkCommand::ListDeliveries { request_id: None, session }).await?;
    let reply =
        link.wait_for(|note| {
            if let Notification::Reply(CommandReply::DeliveryList(reply)) = note { Some(reply) } else { None }
        })
        .await?;
    Ok(response::build(StatusCode::OK, "application/json", delivery_list_object(&reply)))
}

/// Sends a held or failed delivery again, or drops it
#[utoipa::path(
    post,
    operation_id = "settle_delivery",
    path = "/v1/deliveries/settle",
    params(("x-user-id" = Option<String>, Header, description = "User id of the caller; without it, the operator", pattern = "^[!-~]([ -~]{0,254}[!-~])?$", example = "ann")),
    request_body = SettlementSchema,
    responses((status = 200, description = "The decision is recorded", body = SettledDeliverySchema), BodyRefusals),
)]
pub(super) async fn settle(State(context): State<Arc<HttpContext>>, headers: HeaderMap, body: Body) -> HttpResult {
    // The body of an unauthenticated client is not read.
    let mut link = context.open_link(&headers).await?;
    let text = request_parts::read_json(&headers, body).await?;
    link.send(parse_settlement_body(&text)?).await?;
    let session_id = link
        .wait_for(|note| {
            if let Notification::Reply(CommandReply::Performed { session, .. }) = note { Some(session) } else { None }
        })
        .await?;
    Ok(response::json(StatusCode::OK, &SettledDelivery { session_id }))
}

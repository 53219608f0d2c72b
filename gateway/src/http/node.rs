//! Serves `GET /`: the node's name, version and number of links.
use crate::http::openapi::refusals::CommonRefusals;
use crate::http::{HttpContext, HttpResult};
use crate::response;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// The node's description for clients.
#[derive(Clone, Debug)]
pub struct HttpNode {
    /// The configured label of the node.
    pub name: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Node)]
pub(super) struct NodeView<'a> {
    name: &'a str,
    version: &'static str,
    links: usize,
    connect: &'static str,
}

/// Shows the node
#[utoipa::path(get,
    operation_id = "show_node", path = "/", responses((status = 200, description = "The node", body = NodeView), CommonRefusals))]
pub(super) async fn show(State(context): State<Arc<HttpContext>>, headers: HeaderMap) -> HttpResult {
    context.authenticate(&headers).await?;
    let view = NodeView {
        name: &context.node.name,
        version: env!("CARGO_PKG_VERSION"),
        links: context.links.count(),
        connect: "/v1/connect",
    };
    Ok(response::json(StatusCode::OK, &view))
}

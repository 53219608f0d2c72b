//! Serves `GET /`: the node's name, version and number of links.
use crate::answer;
use crate::http::openapi::refusals::Plain;
use crate::http::{Answer, Desk};
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// The node's description for clients.
#[derive(Clone, Debug)]
pub struct Node {
    /// The configured label of the node.
    pub name: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Node)]
pub(super) struct View<'a> {
    name: &'a str,
    version: &'static str,
    links: usize,
    connect: &'static str,
}

/// Show the node
#[utoipa::path(get,
    operation_id = "show_node", path = "/", responses((status = 200, description = "The node", body = View), Plain))]
pub(super) async fn show(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> Answer {
    desk.admit(&headers).await?;
    let view = View {
        name: &desk.node.name,
        version: env!("CARGO_PKG_VERSION"),
        links: desk.links.count(),
        connect: "/v1/connect",
    };
    Ok(answer::json(StatusCode::OK, &view))
}

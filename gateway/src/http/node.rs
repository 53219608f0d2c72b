//! `GET /`: what this is.
use crate::answer::{self, Body};
use crate::http::Desk;
use axum::extract::State;
use http::{Response, StatusCode};
use serde::Serialize;
use std::sync::Arc;

/// A node as it shows itself to whoever finds its port.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its label.
    pub name: String,
}

#[derive(Serialize)]
struct View<'a> {
    name: &'a str,
    version: &'static str,
    links: usize,
    connect: &'static str,
}

pub(super) async fn show(State(desk): State<Arc<Desk>>) -> Response<Body> {
    let view = View {
        name: &desk.node.name,
        version: env!("CARGO_PKG_VERSION"),
        links: desk.links.count(),
        connect: "/v1/connect",
    };
    answer::json(StatusCode::OK, &view)
}

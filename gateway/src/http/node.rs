//! `GET /`: what this is.
use crate::answer::{self, Body};
use crate::links::Links;
use http::{Response, StatusCode};
use serde::Serialize;
use std::sync::Arc;

/// A node as it shows itself to whoever finds its port.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its label.
    pub name: String,
    /// Its open links.
    pub links: Arc<Links>,
}

#[derive(Serialize)]
struct View<'a> {
    name: &'a str,
    version: &'static str,
    links: usize,
    connect: &'static str,
}

// === impl Node ===

impl Node {
    pub(super) fn show(&self) -> Response<Body> {
        let view = View {
            name: &self.name,
            version: env!("CARGO_PKG_VERSION"),
            links: self.links.count(),
            connect: "/v1/connect",
        };
        answer::json(StatusCode::OK, &view)
    }
}

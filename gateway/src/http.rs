//! The public HTTP surface: one file per resource.
mod node;

pub use node::Node;

use crate::answer::{self, Body};
use http::{Method, Request, Response, StatusCode};

/// The pages of the public listener.
#[derive(Clone, Debug)]
pub struct Pages {
    /// The node itself.
    pub node: Node,
}

// === impl Pages ===

impl Pages {
    /// Answers one request.
    pub fn answer<B>(&self, request: &Request<B>) -> Response<Body> {
        match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/") => self.node.show(),
            (_, "/") => answer::problem(StatusCode::METHOD_NOT_ALLOWED, "invalid_message", "only GET"),
            (_, _) => answer::problem(StatusCode::NOT_FOUND, "not_found", "there is nothing here"),
        }
    }
}

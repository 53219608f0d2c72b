//! The operators' listener: health, metrics, drain, nodes, keys, copies of the store. Never on the public port (S-45).
mod backup;
mod keys;
mod nodes;

pub use backup::Backup;
pub use keys::KeyDesk;
pub use nodes::Roster;

use crate::answer::{self, Body};
use crate::metrics::Metrics;
use crate::phase::{Life, Phase, Reason};
use bytes::Buf;
use http::{Method, Request, Response, StatusCode};
use prometheus::{Encoder, Registry, TextEncoder};
use serde::Serialize;
use std::error::Error;
use std::sync::Arc;
use turnway_core::protocol::refusal::Code;

/// Where copies of the store are asked for.
const BACKUP: &str = "/v1/store/backup";
/// Which nodes there are.
const NODES: &str = "/v1/nodes";

/// The pages of the operators' listener.
#[derive(Clone)]
pub struct Pages {
    /// The process's phase and health.
    pub life: Life,
    /// Everything that is counted.
    pub registry: Registry,
    /// The same, to be told what is looked up when it is asked for.
    pub metrics: Arc<Metrics>,
    /// Who copies the store.
    pub backup: Backup,
    /// Who makes keys.
    pub keys: KeyDesk,
    /// Who knows the nodes.
    pub roster: Roster,
}

/// `/readyz`: ready or not, and the codes of the reasons, nothing more (S-46).
#[derive(Serialize)]
struct Readiness {
    ready: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
}

// === impl Pages ===

impl Pages {
    /// Answers one request.
    pub async fn serve<B>(self, request: Request<B>) -> Response<Body>
    where
        B: http_body_util::BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        if KeyDesk::knows(request.uri().path()) {
            let (head, body) = request.into_parts();
            return self.keys.answer(&head, body).await;
        }
        match (request.method(), request.uri().path()) {
            (&Method::POST, BACKUP) => {
                let (head, body) = request.into_parts();
                self.backup.answer(&head.headers, body).await
            }
            (&Method::GET | &Method::HEAD, NODES) => self.roster.answer().await,
            (_, _) => self.answer(&request),
        }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Body> {
        match (request.method(), request.uri().path()) {
            // Process only: a dead store must not make an orchestrator kill every node.
            (&Method::GET | &Method::HEAD, "/livez") => answer::text(StatusCode::OK, "live\n"),
            (&Method::GET | &Method::HEAD, "/readyz") => self.ready(),
            (&Method::GET | &Method::HEAD, "/metrics") => self.metrics(),
            (&Method::POST, "/drain") => self.drain(),
            (_, "/livez" | "/readyz" | "/metrics" | "/drain" | BACKUP | NODES) => {
                answer::problem(StatusCode::METHOD_NOT_ALLOWED, Code::InvalidMessage, "not this way")
            }
            (_, _) => answer::problem(StatusCode::NOT_FOUND, Code::NotFound, "there is nothing here"),
        }
    }

    fn ready(&self) -> Response<Body> {
        let answer = Readiness::of(&self.life);
        let status = if answer.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        answer::json(status, &answer)
    }

    fn metrics(&self) -> Response<Body> {
        self.metrics.node.tell(&self.life);
        let mut text = Vec::new();
        match TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            Ok(()) => answer::of(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text),
            Err(error) => {
                tracing::error!(%error, "metrics cannot be told");
                answer::problem(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    Code::InternalError,
                    "metrics cannot be told",
                )
            }
        }
    }

    /// Saying it twice does no harm.
    fn drain(&self) -> Response<Body> {
        if self.life.advance(Phase::Draining) {
            tracing::info!("an operator asks to drain");
        }
        answer::json(StatusCode::ACCEPTED, &Readiness::of(&self.life))
    }
}

// === impl Readiness ===

impl Readiness {
    fn of(life: &Life) -> Self {
        let reasons: Vec<_> = life.reasons().into_iter().map(Reason::code).collect();
        Self { ready: reasons.is_empty(), reasons, remaining: life.remaining() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use turnway_core::id::NodeId;

    fn ask(pages: &Pages, method: Method, path: &str) -> StatusCode {
        let request = Request::builder().method(method).uri(path).body(()).expect("a request");
        pages.answer(&request).status()
    }

    #[test]
    fn a_node_is_ready_while_it_serves() {
        let registry = Registry::new();
        let metrics = Arc::new(Metrics::register(&registry).expect("each family once"));
        let backup = Backup::new(None);
        let life = Life::default();
        let roster = Roster {
            node: NodeId(1),
            name: "one".to_owned(),
            address: "127.0.0.1:1".to_owned(),
            metrics: Arc::clone(&metrics),
            clock: Clock::start(),
            life: life.clone(),
            durability: crate::bus::redis::Kept { level: "fsync".to_owned(), attested: false },
            fleet: None,
        };
        let pages = Pages { life, registry, metrics, backup, keys: KeyDesk::new(None), roster };
        assert_eq!(ask(&pages, Method::GET, "/livez"), StatusCode::OK);
        assert_eq!(ask(&pages, Method::GET, "/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        pages.life.advance(Phase::Serving);
        assert_eq!(ask(&pages, Method::GET, "/readyz"), StatusCode::OK);
        pages.life.report(Reason::StoreAway, true);
        assert_eq!(ask(&pages, Method::GET, "/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        pages.life.report(Reason::StoreAway, false);
        assert_eq!(ask(&pages, Method::GET, "/drain"), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(ask(&pages, Method::POST, "/drain"), StatusCode::ACCEPTED);
        assert_eq!(ask(&pages, Method::GET, "/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask(&pages, Method::GET, "/livez"), StatusCode::OK);
        assert_eq!(ask(&pages, Method::GET, "/console"), StatusCode::NOT_FOUND);
    }
}

//! Serves the operators' HTTP listener: health, metrics, drain, the list of nodes, API keys, budgets and store backups. These
//! pages must never be served on the public port (S-45). Called by `app::build`.
mod backup;
mod budgets;
mod csrf;
mod json_body;
mod keys;
mod nodes;

pub use backup::Backup;
pub use budgets::BudgetAdmin;
pub use keys::KeyAdmin;
pub use nodes::NodesPage;

use crate::metrics::Metrics;
use crate::phase::{Lifecycle, NodePhase, UnreadyReason};
use crate::response::{self, Body};
use bytes::Buf;
use http::{Method, Request, Response, StatusCode};
use prometheus::{Encoder, Registry, TextEncoder};
use serde::Serialize;
use std::error::Error;
use std::sync::Arc;
use turnway_core::protocol::refusal::Code;

/// A page of the operators' listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdminPage {
    Live,
    Ready,
    Metrics,
    Drain,
    Backup,
    Nodes,
    Keys,
    Budgets,
}

/// One method and path of the operators' listener, and the page behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminRoute {
    /// A `GET` route also answers `HEAD`.
    pub method: &'static str,
    /// `{…}` stands for one path segment that varies.
    pub path: &'static str,
    page: AdminPage,
}

/// Every route of the operators' listener; any other path is answered with 404.
pub const ROUTES: [AdminRoute; 13] = [
    AdminRoute { method: "GET", path: "/livez", page: AdminPage::Live },
    AdminRoute { method: "GET", path: "/readyz", page: AdminPage::Ready },
    AdminRoute { method: "GET", path: "/metrics", page: AdminPage::Metrics },
    AdminRoute { method: "POST", path: "/drain", page: AdminPage::Drain },
    AdminRoute { method: "POST", path: "/v1/store/backup", page: AdminPage::Backup },
    AdminRoute { method: "GET", path: "/v1/nodes", page: AdminPage::Nodes },
    AdminRoute { method: "GET", path: budgets::PATH, page: AdminPage::Budgets },
    AdminRoute { method: "PUT", path: budgets::PATH, page: AdminPage::Budgets },
    AdminRoute { method: "POST", path: budgets::REMOVE_PATH, page: AdminPage::Budgets },
    AdminRoute { method: "GET", path: keys::PATH, page: AdminPage::Keys },
    AdminRoute { method: "POST", path: keys::PATH, page: AdminPage::Keys },
    AdminRoute { method: "POST", path: "/v1/keys:migrate", page: AdminPage::Keys },
    AdminRoute { method: "POST", path: "/v1/keys/{key_id}:revoke", page: AdminPage::Keys },
];

/// The request handler of the operators' listener, with everything its pages read.
#[derive(Clone)]
pub struct AdminPages {
    pub life: Lifecycle,
    pub registry: Registry,
    /// Updated before `registry` is encoded, for values that are read on demand instead of counted.
    pub metrics: Arc<Metrics>,
    pub backup: Backup,
    pub keys: KeyAdmin,
    pub budgets: BudgetAdmin,
    pub roster: NodesPage,
}

/// Body of `/readyz`: readiness and the codes of the reasons against it. Nothing more may be shown (S-46).
#[derive(Serialize)]
struct ReadinessBody {
    ready: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
}

// === impl AdminRoute ===

impl AdminRoute {
    fn matches_path(&self, path: &str) -> bool {
        match self.path.split_once('{') {
            None => path == self.path,
            Some((before, rest)) => {
                let after = rest.split_once('}').map_or("", |(_, after)| after);
                let name = path.strip_prefix(before).and_then(|path| path.strip_suffix(after));
                name.is_some_and(|name| !name.is_empty() && !name.contains('/'))
            }
        }
    }

    fn accepts_method(&self, method: &Method) -> bool {
        method.as_str() == self.method || (method == Method::HEAD && self.method == "GET")
    }

    /// Returns the page for a method and path, or the status to refuse the request with.
    fn find(method: &Method, path: &str) -> Result<AdminPage, StatusCode> {
        let mut there = ROUTES.iter().filter(|route| route.matches_path(path)).peekable();
        if there.peek().is_none() {
            return Err(StatusCode::NOT_FOUND);
        }
        let page = there.find(|route| route.accepts_method(method)).map(|route| route.page);
        page.ok_or(StatusCode::METHOD_NOT_ALLOWED)
    }
}

// === impl AdminPages ===

impl AdminPages {
    /// Answers one request of an operator.
    pub async fn serve<B>(self, request: Request<B>) -> Response<Body>
    where
        B: http_body_util::BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        // Checked before the route is looked up, so that the check covers every page.
        if let Err(forged) = csrf::check(request.method(), request.headers()) {
            return forged.answer();
        }
        let page = match AdminRoute::find(request.method(), request.uri().path()) {
            Ok(page) => page,
            Err(StatusCode::NOT_FOUND) => {
                return response::problem(StatusCode::NOT_FOUND, Code::NotFound, "no such resource");
            }
            Err(status) => {
                return response::problem(status, Code::InvalidMessage, "method not allowed");
            }
        };
        let (head, body) = request.into_parts();
        match page {
            // Says only that the process runs: an orchestrator must not kill every node when the store is down.
            AdminPage::Live => response::text(StatusCode::OK, "live\n"),
            AdminPage::Ready => self.ready(),
            AdminPage::Metrics => self.metrics(),
            AdminPage::Drain => self.drain(),
            AdminPage::Backup => self.backup.answer(&head.headers, body).await,
            AdminPage::Nodes => self.roster.answer().await,
            AdminPage::Keys => self.keys.answer(&head, body).await,
            AdminPage::Budgets => self.budgets.answer(&head, body).await,
        }
    }

    /// Answers one request on the health listener, which other machines can reach and which only reads: `/livez`,
    /// `/readyz`, and `/metrics` if `with_metrics` is set (S-46).
    pub fn serve_health<B>(&self, request: &Request<B>, with_metrics: bool) -> Response<Body> {
        let path = request.uri().path();
        let is_there = matches!(path, "/livez" | "/readyz") || (with_metrics && path == "/metrics");
        match AdminRoute::find(request.method(), path) {
            Ok(AdminPage::Live) => response::text(StatusCode::OK, "live\n"),
            Ok(AdminPage::Ready) => self.ready(),
            Ok(AdminPage::Metrics) if with_metrics => self.metrics(),
            Err(StatusCode::METHOD_NOT_ALLOWED) if is_there => {
                response::problem(StatusCode::METHOD_NOT_ALLOWED, Code::InvalidMessage, "method not allowed")
            }
            Ok(_) | Err(_) => response::problem(StatusCode::NOT_FOUND, Code::NotFound, "no such resource"),
        }
    }

    fn ready(&self) -> Response<Body> {
        let answer = ReadinessBody::of(&self.life);
        let status = if answer.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        response::json(status, &answer)
    }

    fn metrics(&self) -> Response<Body> {
        self.metrics.node.refresh(&self.life);
        let mut text = Vec::new();
        match TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            Ok(()) => response::build(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text),
            Err(error) => {
                tracing::error!(%error, "metrics cannot be encoded");
                response::problem(StatusCode::INTERNAL_SERVER_ERROR, Code::InternalError, "metrics cannot be encoded")
            }
        }
    }

    /// Starts the drain; a repeated request has no further effect.
    fn drain(&self) -> Response<Body> {
        if self.life.advance(NodePhase::Draining) {
            tracing::info!("drain requested by an operator");
        }
        response::json(StatusCode::ACCEPTED, &ReadinessBody::of(&self.life))
    }
}

// === impl ReadinessBody ===

impl ReadinessBody {
    fn of(life: &Lifecycle) -> Self {
        let reasons: Vec<_> = life.reasons().into_iter().map(UnreadyReason::code).collect();
        Self { ready: reasons.is_empty(), reasons, remaining: life.remaining() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use turnway_core::id::NodeId;

    async fn ask(pages: &AdminPages, method: Method, path: &str) -> StatusCode {
        let body = http_body_util::Empty::<bytes::Bytes>::new();
        let request = Request::builder().method(method).uri(path).body(body).expect("a request");
        pages.clone().serve(request).await.status()
    }

    #[tokio::test]
    async fn node_is_ready_only_while_serving() {
        let registry = Registry::new();
        let metrics = Arc::new(Metrics::register(&registry).expect("each family once"));
        let backup = Backup::new(None);
        let life = Lifecycle::default();
        let roster = NodesPage {
            node: NodeId(1),
            name: "one".to_owned(),
            address: "127.0.0.1:1".to_owned(),
            metrics: Arc::clone(&metrics),
            clock: Clock::start(),
            life: life.clone(),
            durability: crate::bus::redis::NodeDurability { level: "fsync".to_owned(), attested: false },
            fleet: None,
        };
        let pages = AdminPages {
            life,
            registry,
            metrics,
            backup,
            keys: KeyAdmin::new(None),
            budgets: BudgetAdmin::new(None),
            roster,
        };
        assert_eq!(ask(&pages, Method::GET, "/livez").await, StatusCode::OK);
        assert_eq!(ask(&pages, Method::GET, "/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
        pages.life.advance(NodePhase::Serving);
        assert_eq!(ask(&pages, Method::GET, "/readyz").await, StatusCode::OK);
        for reason in [UnreadyReason::StoreAway, UnreadyReason::Clock] {
            pages.life.report(reason, true);
            assert_eq!(ask(&pages, Method::GET, "/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
            pages.life.report(reason, false);
            assert_eq!(ask(&pages, Method::GET, "/readyz").await, StatusCode::OK);
        }
        assert_eq!(ask(&pages, Method::GET, "/drain").await, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(ask(&pages, Method::POST, "/drain").await, StatusCode::ACCEPTED);
        assert_eq!(ask(&pages, Method::GET, "/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask(&pages, Method::GET, "/livez").await, StatusCode::OK);
        assert_eq!(ask(&pages, Method::GET, "/console").await, StatusCode::NOT_FOUND);
    }
}

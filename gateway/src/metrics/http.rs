//! Metrics of HTTP requests on the public listener, except those that become WebSockets.
use super::family::{FamilyBuilder, LazyChildren};
use super::{buckets, label_values};
use prometheus::{Histogram, IntCounter};
use std::time::Duration;

/// The metrics of HTTP requests.
#[derive(Debug)]
pub struct HttpMetrics {
    requests: LazyChildren<IntCounter>,
    answer: LazyChildren<Histogram>,
}

/// The router's path patterns; the last entry is for all other paths. A test compares the list with the router.
pub const ROUTES: [&str; 33] = [
    "/",
    "/asyncapi.json",
    "/openapi.json",
    "/v1/agents",
    "/v1/bindings",
    "/v1/bindings/children",
    "/v1/bindings/expiry",
    "/v1/bindings/resolve",
    "/v1/bindings/touch",
    "/v1/bindings/unbind",
    "/v1/chat/completions",
    "/v1/accounts/paused",
    "/v1/accounts/pause",
    "/v1/accounts/resume",
    "/v1/accounts/show",
    "/v1/deliveries",
    "/v1/deliveries/settle",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/models",
    "/v1/models/{*model}",
    "/v1/responses",
    "/v1/runs/{run_id}",
    "/v1/runs/{run_id}/events",
    "/v1/runs/{run_id}/usage",
    "/v1/sessions",
    "/v1/sessions/{session_id}",
    "/v1/sessions/{session_id}/blobs",
    "/v1/sessions/{session_id}/blobs/{sha256}",
    "/v1/sessions/{session_id}/events",
    "/v1/sessions/{session_id}/messages",
    "/v1/sessions/{session_id}/turns",
    "other",
];

label_values! {
    /// The method of a request, as a label.
    pub HttpMethod {
        Get = "GET",
        Head = "HEAD",
        Post = "POST",
        /// Any other method.
        Other = "other",
    }
}

/// Classes of status codes. Only a WebSocket is answered with 1xx, and is not counted here.
const STATUSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

// === impl HttpMetrics ===

impl HttpMetrics {
    pub(super) fn register(workshop: &mut FamilyBuilder<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            requests: workshop.counter_grid(
                "turnway_http_requests_total",
                "Requests that were answered, those for WebSockets left out.",
                &[("route", &ROUTES), ("method", &HttpMethod::NAMES), ("status", &STATUSES)],
            )?,
            answer: workshop.histogram_grid(
                "turnway_http_answer_seconds",
                "From a request to the head of its answer; a stream goes on after that.",
                &[("route", &ROUTES)],
                &buckets::SHORT,
            )?,
        })
    }

    /// Records an answered request of a route.
    pub fn record_answer(&self, route: Option<&str>, method: HttpMethod, status: u16, took: Duration) {
        let other = ROUTES.len() - 1;
        let route = ROUTES.iter().position(|known| Some(*known) == route).unwrap_or(other);
        let status = usize::from(status / 100).saturating_sub(2);
        if let Some(counter) = self.requests.child(route * HttpMethod::NAMES.len() + method as usize, status) {
            counter.inc();
        }
        if let Some(seconds) = self.answer.child(route, 0) {
            seconds.observe(took.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Encoder, Registry, TextEncoder};

    #[test]
    fn requests_are_counted_by_route_method_and_status() {
        let registry = Registry::new();
        let metrics = HttpMetrics::register(&mut FamilyBuilder::new(&registry)).expect("each family once");
        metrics.record_answer(Some("/v1/sessions/{session_id}/turns"), HttpMethod::Post, 200, Duration::from_millis(2));
        metrics.record_answer(Some("/not/known"), HttpMethod::Other, 404, Duration::ZERO);
        metrics.record_answer(None, HttpMethod::Get, 999, Duration::ZERO);
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        let counted: Vec<&str> = text.lines().filter(|line| line.ends_with(" 1")).collect();
        for line in [
            "turnway_http_requests_total{method=\"POST\",route=\"/v1/sessions/{session_id}/turns\",status=\"2xx\"} 1",
            "turnway_http_requests_total{method=\"other\",route=\"other\",status=\"4xx\"} 1",
            "turnway_http_answer_seconds_count{route=\"/v1/sessions/{session_id}/turns\"} 1",
        ] {
            assert!(counted.contains(&line), "{line} is not in {text}");
        }
        assert!(text.contains("turnway_http_answer_seconds_count{route=\"other\"} 2"), "{text}");
    }
}

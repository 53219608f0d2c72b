//! Counts and times every HTTP answer by its route and method.
use crate::clock::Clock;
use crate::metrics::{HttpMethod, Metrics};
use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use http::{Method, Response};
use std::sync::Arc;
use turnway_core::planted::{Planted, planted};

/// Adds metrics to a router.
pub fn with_request_metrics(router: Router, metrics: Arc<Metrics>, clock: Clock) -> Router {
    router.layer(from_fn_with_state(RequestMetrics { metrics, clock }, record_request))
}

#[derive(Clone)]
struct RequestMetrics {
    metrics: Arc<Metrics>,
    clock: Clock,
}

async fn record_request(State(counter): State<RequestMetrics>, request: Request, next: Next) -> Response<Body> {
    let began = counter.clock.mono();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = match *request.method() {
        Method::GET => HttpMethod::Get,
        Method::HEAD => HttpMethod::Head,
        Method::POST if !planted(Planted::PostCountedAsOther) => HttpMethod::Post,
        _ => HttpMethod::Other,
    };
    let answer = next.run(request).await;
    let route = route.as_ref().map(MatchedPath::as_str);
    let took = counter.clock.mono() - began;
    counter.metrics.http.record_answer(route, method, answer.status().as_u16(), took);
    answer
}

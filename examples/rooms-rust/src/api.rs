//! The HTTP interface of the platform `rooms.py`. An error says whether the platform may have the request.
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::time::Duration;
use tokio::time::timeout;
use turnway_client::adapter::PlatformFailure;

/// Time for an answer of the platform; a request for updates waits up to 5 s for one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of the platform.
pub(crate) struct RoomsApi {
    url: String,
    http: Client<HttpConnector, Full<Bytes>>,
}

impl RoomsApi {
    /// Creates a client. The URL has no slash at its end.
    pub(crate) fn new(url: &str) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        // The platform closes each connection, and a request on a closed one would have an unknown outcome.
        let http = builder.pool_max_idle_per_host(0).build_http();
        Self { url: url.trim_end_matches('/').to_owned(), http }
    }

    /// Sends a request, as POST if there is a body, and returns the answer.
    pub(crate) async fn ask(&self, path: &str, body: Option<&Value>) -> Result<Value, PlatformFailure> {
        let method = if body.is_some() { "POST" } else { "GET" };
        let bytes = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(Bytes::from(bytes)))?;
        timeout(ANSWER_TIMEOUT, self.exchange(request)).await?
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Value, PlatformFailure> {
        let response = self.http.request(request).await.map_err(|error| {
            // Without a connection the platform has nothing. After any other error it may have the request.
            if error.is_connect() { PlatformFailure::not_sent(error.to_string()) } else { error.into() }
        })?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = response.into_body().collect().await?.to_bytes();
        if !(200..300).contains(&status) {
            return Err(PlatformFailure::by_status(status, retry_after.as_deref()));
        }
        Ok(serde_json::from_slice(&body)?)
    }
}

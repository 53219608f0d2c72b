//! The connections to all HTTP agents of a node.
use crate::agent::directory::BadAgent;
use crate::agent::request::Whole;
use bytes::Bytes;
use http::uri::Scheme;
use http_body_util::Full;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::limits;

/// An idle connection is closed after this, before most servers would.
const IDLE_WAIT: Duration = Duration::from_secs(30);
/// The head of an answer, and what is read ahead of its body.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Headers of an answer.
const HEADERS_MAX: usize = 64;
/// What the system holds of one answer that is not read on: a fixed window, for it would grow to several
/// megabytes, and they would be the memory of every agent that waits for credit.
const RECEIVE_BUFFER_BYTES: usize = 256 * 1024;
/// A peer that is gone without a word is found out by the system.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// HTTP/1.1 only: in HTTP/2, streams share one window, and one run that waits for credit would hold up the
/// others.
///
/// Two pools, for a connection that may be either kind has the size of a TLS session, in each of the futures
/// that it is handed through: most agents are next door and without TLS.
#[derive(Clone)]
pub(super) struct Client {
    plain: legacy::Client<HttpConnector, Full<Bytes>>,
    /// Where an agent is behind TLS.
    tls: Option<legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>>,
}

impl Client {
    /// The client of a node. Root certificates are needed only where an agent is behind TLS.
    pub(super) fn new(is_https: bool) -> Result<Self, BadAgent> {
        let tls = if is_https { Some(pool(tls()?)) } else { None };
        Ok(Self { plain: pool(tcp()), tls })
    }

    /// Sends a request; the answer is there when its head is.
    pub(super) fn request(&self, request: Whole) -> legacy::ResponseFuture {
        match &self.tls {
            Some(tls) if request.uri().scheme() == Some(&Scheme::HTTPS) => tls.request(request),
            // Its connector refuses https: nothing of that goes out in plain text.
            Some(_) | None => self.plain.request(request),
        }
    }
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_connect_timeout(Some(limits::AGENT_CONNECT));
    tcp.set_recv_buffer_size(Some(RECEIVE_BUFFER_BYTES));
    tcp
}

fn tls() -> Result<HttpsConnector<HttpConnector>, BadAgent> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| BadAgent::Roots(error.to_string()))?
        .with_native_roots()
        .map_err(|error| BadAgent::Roots(error.to_string()))?
        .with_no_client_auth();
    let mut tcp = tcp();
    tcp.enforce_http(false);
    Ok(HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1().wrap_connector(tcp))
}

fn pool<C: Connect + Clone>(connector: C) -> legacy::Client<C, Full<Bytes>> {
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_WAIT)
        .pool_max_idle_per_host(limits::AGENT_IDLE_CONNECTIONS_MAX)
        .http1_max_buf_size(HEAD_BYTES_MAX)
        .http1_max_headers(HEADERS_MAX)
        .build(connector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use tokio::io::AsyncReadExt;

    /// Covers: S-27.
    #[tokio::test]
    async fn what_is_to_be_secret_never_goes_out_in_plain_text() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("its address");
        let client = Client::new(false).expect("it needs no certificates");
        let request = Request::get(format!("https://{at}/health")).body(Full::default()).expect("a request");
        let error = client.request(request).await.expect_err("there is no TLS");
        assert!(error.is_connect(), "{error:?}");
        let request = Request::get(format!("http://{at}/health")).body(Full::default()).expect("a request");
        let asked = tokio::spawn(client.request(request));
        // The first that comes is the one without TLS.
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut words = [0; 11];
        stream.read_exact(&mut words).await.expect("words");
        assert_eq!(&words, b"GET /health");
        asked.abort();
    }
}

//! HTTP client of one agent: pools its connections, and opens a new one if a pooled one turns out to be closed. A
//! server may close an idle connection while a request is on its way; such a request is sent once more, unchanged, on a
//! new connection (RFC 9112 section 9.3.1): same body, `Idempotency-Key` and attempt. Used by `http` and `health`.
use crate::agent::directory::{BadAgent, KeepAliveOptions};
use crate::agent::request::FullRequest;
use crate::agent::retry_after::retry_after;
use crate::agent::traffic::{CountingConnector, Traffic};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::system_trust;
use bytes::Bytes;
use http::{Extensions, HeaderMap, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{CaptureConnection, Connect, HttpConnector, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};

/// Receive buffer of one connection: fixed, because an autotuned window would grow to several megabytes, and that
/// memory would be held for every agent that waits for credit.
const RECEIVE_BUFFER_BYTES: usize = 256 * 1024;
/// TCP keepalive time: the operating system finds out that a peer vanished without closing.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// The connectors that open connections to all HTTP agents of a node.
pub(super) struct Connectors {
    plain: CountingConnector<HttpConnector>,
    /// Present if an agent is behind TLS.
    tls: Option<CountingConnector<HttpsConnector<HttpConnector>>>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// The HTTP client of one agent. HTTP/1.1 only: streams of HTTP/2 share one connection window, so one run that waits
/// for credit would block the others.
#[derive(Clone)]
pub(super) struct AgentClient {
    pools: ClientPools,
    keep_alive_options: KeepAliveOptions,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// The pooled clients, without or with TLS. Two variants, because a connection that may be either has the size of a TLS
/// session in each future that it passes through, and most agents are local and without TLS.
#[derive(Clone)]
enum ClientPools {
    /// Its connector refuses `https`, so a request to an `https` URL is never sent in plain text.
    Plain(ClientPair<CountingConnector<HttpConnector>>),
    Tls(ClientPair<CountingConnector<HttpsConnector<HttpConnector>>>),
}

/// A client with pooled connections, and one whose connections serve one request each.
#[derive(Clone)]
struct ClientPair<C> {
    pooled: legacy::Client<C, Full<Bytes>>,
    single: legacy::Client<C, Full<Bytes>>,
}

/// A reason why a request has no response.
#[derive(Debug)]
pub(super) enum AgentRequestError {
    /// No connection was opened.
    Unreachable(&'static str),
    /// There was a connection, and no readable response came over it.
    Failed(legacy::Error),
}

/// A try to send a request that failed.
struct FailedTry {
    error: AgentRequestError,
    /// Traffic counters of the connection used, if there was one.
    traffic: Option<Traffic>,
}

// === impl Connectors ===

impl Connectors {
    /// Builds the connectors of a node. Root certificates are loaded only if an agent is behind TLS.
    pub(super) fn new(is_https: bool, clock: Clock, metrics: Arc<Metrics>) -> Result<Self, BadAgent> {
        let plain = CountingConnector::new(tcp(), clock.clone());
        let tls = if is_https { Some(CountingConnector::new(tls()?, clock.clone())) } else { None };
        Ok(Self { plain, tls, clock, metrics })
    }

    /// Returns the client of an agent. A client for `https` without a TLS connector fails every request.
    pub(super) fn client(&self, is_https: bool, keeping: KeepAliveOptions) -> AgentClient {
        let pools = match &self.tls {
            Some(tls) if is_https => ClientPools::Tls(ClientPair::new(tls, keeping)),
            Some(_) | None => ClientPools::Plain(ClientPair::new(&self.plain, keeping)),
        };
        AgentClient {
            pools,
            keep_alive_options: keeping,
            clock: self.clock.clone(),
            metrics: Arc::clone(&self.metrics),
        }
    }
}

// === impl AgentClient ===

impl AgentClient {
    /// Sends a request and waits for the head of its response. Only opening the connection has a deadline here.
    pub(super) async fn send(&self, request: FullRequest) -> Result<Response<Incoming>, AgentRequestError> {
        self.send_tracking_start(request, &AtomicBool::new(false)).await
    }

    /// Sends a request as [`Self::send`] does, and sets `is_begun` once there is a connection to write the request to.
    pub(super) async fn send_tracking_start(
        &self,
        request: FullRequest,
        is_begun: &AtomicBool,
    ) -> Result<Response<Incoming>, AgentRequestError> {
        match &self.pools {
            ClientPools::Plain(pair) => self.send_with_retry(pair, request, is_begun).await,
            ClientPools::Tls(pair) => self.send_with_retry(pair, request, is_begun).await,
        }
    }

    /// Returns how long a response asks the client to wait before the next request (`Retry-After`).
    pub(super) fn retry_after(&self, headers: &HeaderMap) -> Option<Duration> {
        retry_after(headers, self.clock.now().store)
    }

    async fn send_with_retry<C: Connect + Clone + Send + Sync + 'static>(
        &self,
        pair: &ClientPair<C>,
        request: FullRequest,
        is_begun: &AtomicBool,
    ) -> Result<Response<Incoming>, AgentRequestError> {
        let again = self.keep_alive_options.resend_on_stale.then(|| request.clone());
        let sent_at = self.clock.mono();
        let missed = match self.try_send(&pair.pooled, request, is_begun).await {
            Ok(response) => return Ok(response),
            Err(missed) => missed,
        };
        let is_stale = missed.traffic.is_some_and(|traffic| traffic.is_stale(sent_at, self.clock.mono()));
        let Some(again) = again.filter(|_| is_stale) else { return Err(missed.error) };
        self.metrics.agents.count_resend();
        tracing::debug!("an agent closed a pooled connection; resending the request");
        // Boxed: few requests need the size of both tries.
        Box::pin(self.try_send(&pair.single, again, is_begun)).await.map_err(|missed| missed.error)
    }

    /// Tries once, on one connection.
    async fn try_send<C: Connect + Clone + Send + Sync + 'static>(
        &self,
        pool: &legacy::Client<C, Full<Bytes>>,
        mut request: FullRequest,
        is_begun: &AtomicBool,
    ) -> Result<Response<Incoming>, FailedTry> {
        let mut connection = capture_connection(&mut request);
        let response = pool.request(request);
        tokio::pin!(response);
        // The connector's own deadline covers TCP; this deadline also covers DNS and TLS.
        let connected = tokio::time::timeout(limits::AGENT_CONNECT_TIMEOUT, async {
            drop(connection.wait_for_connection_metadata().await);
        });
        let answer = tokio::select! {
            biased;
            answer = &mut response => answer,
            connected = connected => match connected {
                Ok(()) => {
                    is_begun.store(true, Ordering::Release);
                    response.await
                }
                Err(_) => {
                    let why = AgentRequestError::Unreachable("connecting timed out");
                    return Err(FailedTry { error: why, traffic: None });
                }
            },
        };
        match answer {
            Ok(response) => {
                // The server may close the connection before the next request arrives.
                if server_keep_alive(response.headers()).is_some_and(|wait| wait <= self.keep_alive_options.keep_alive)
                    && !planted(Planted::KeepAliveNotHeeded)
                    && let Some(connection) = connection.connection_metadata().as_ref()
                {
                    connection.poison();
                }
                Ok(response)
            }
            Err(error) if error.is_connect() => {
                Err(FailedTry { error: AgentRequestError::Unreachable("cannot connect"), traffic: None })
            }
            Err(error) => Err(FailedTry { error: AgentRequestError::Failed(error), traffic: traffic_of(&connection) }),
        }
    }
}

fn traffic_of(connection: &CaptureConnection) -> Option<Traffic> {
    let mut extras = Extensions::new();
    connection.connection_metadata().as_ref()?.get_extras(&mut extras);
    extras.remove()
}

/// Returns how long a server says that it keeps an idle connection (`Keep-Alive: timeout=5, max=100`).
fn server_keep_alive(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all("keep-alive").iter().filter_map(|value| value.to_str().ok());
    let mut parts = values.flat_map(|value| value.split(','));
    let seconds = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("timeout").then(|| value.trim().trim_matches('"').parse().ok())?
    });
    seconds.map(Duration::from_secs)
}

// === impl ClientPair ===

impl<C: Connect + Clone> ClientPair<C> {
    fn new(connector: &C, keeping: KeepAliveOptions) -> Self {
        let KeepAliveOptions { keep_alive, .. } = keeping;
        let max = if keep_alive.is_zero() { 0 } else { limits::AGENT_IDLE_CONNECTIONS_MAX };
        Self { pooled: pool(connector.clone(), keep_alive, max), single: pool(connector.clone(), keep_alive, 0) }
    }
}

fn pool<C: Connect + Clone>(connector: C, keep: Duration, max: usize) -> legacy::Client<C, Full<Bytes>> {
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(keep)
        .pool_max_idle_per_host(max)
        .http1_max_buf_size(limits::AGENT_HEAD_BYTES_MAX)
        .http1_max_headers(limits::AGENT_HEADERS_MAX)
        .build(connector)
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(TCP_KEEPALIVE));
    tcp.set_connect_timeout(Some(limits::AGENT_CONNECT_TIMEOUT));
    tcp.set_recv_buffer_size(Some(RECEIVE_BUFFER_BYTES));
    tcp
}

fn tls() -> Result<HttpsConnector<HttpConnector>, BadAgent> {
    let config = system_trust::client_config(true).map_err(|error| BadAgent::Roots(error.to_string()))?;
    let mut tcp = tcp();
    tcp.enforce_http(false);
    Ok(HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1().wrap_connector(tcp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Request};
    use tokio::io::AsyncReadExt;

    /// Covers: S-27.
    #[tokio::test]
    async fn https_request_is_never_sent_in_plain_text() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("its address");
        let metrics = Metrics::register(&prometheus::Registry::new()).expect("each family once");
        let connectors = Connectors::new(false, Clock::start(), Arc::new(metrics)).expect("it needs no certificates");
        let client = connectors.client(true, KeepAliveOptions::default());
        let request = Request::get(format!("https://{at}/health")).body(Full::default()).expect("a request");
        let error = client.send(request).await.expect_err("there is no TLS");
        assert!(matches!(error, AgentRequestError::Unreachable(_)), "{error:?}");
        let request = Request::get(format!("http://{at}/health")).body(Full::default()).expect("a request");
        let request_task = tokio::spawn(async move { client.send(request).await });
        // The first request to arrive is the one without TLS.
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut start = [0; 11];
        stream.read_exact(&mut start).await.expect("words");
        assert_eq!(&start, b"GET /health");
        request_task.abort();
    }

    #[test]
    fn keep_alive_header_is_parsed_in_all_common_forms() {
        for (text, expected) in [
            ("timeout=5", Some(5)),
            ("timeout=5, max=100", Some(5)),
            ("max=100,Timeout = 2", Some(2)),
            ("timeout=\"3\"", Some(3)),
            ("timeout=0", Some(0)),
            ("max=100", None),
            ("timeout", None),
            ("timeout=soon", None),
            ("timeout=-1", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("keep-alive", HeaderValue::from_static(text));
            assert_eq!(server_keep_alive(&headers), expected.map(Duration::from_secs), "{text}");
        }
    }
}

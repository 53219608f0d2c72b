//! HTTP client of one server: pools its connections, and opens a new one if a pooled one turns out to be closed. A
//! server may close an idle connection while a request is on its way; such a request is sent once more, unchanged, on a
//! new connection (RFC 9112 section 9.3.1): same body and headers. Used by `agent` and `models`.
use super::retry_after::retry_after;
use super::traffic::{CountingConnector, Traffic};
use crate::clock::Clock;
use crate::system_trust::{self, SystemTrustError};
use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
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
/// memory would be held for every server whose answer waits for its reader.
const RECEIVE_BUFFER_BYTES: usize = 256 * 1024;
/// TCP keepalive time: the operating system finds out that a peer vanished without closing.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// The connectors that open connections to servers of one kind.
pub struct Connectors {
    plain: CountingConnector<HttpConnector>,
    /// Present if a server is behind TLS.
    tls: Option<CountingConnector<HttpsConnector<HttpConnector>>>,
    clock: Clock,
}

/// The HTTP client of one server. HTTP/1.1 only: streams of HTTP/2 share one connection window, so one answer that waits
/// for its reader would block the others.
#[derive(Clone)]
pub struct OutboundClient<B = Full<Bytes>> {
    pools: ClientPools<B>,
    options: ConnectionOptions,
    clock: Clock,
    resends: ResendCounter,
}

/// The settings of the connections to one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// Time that an idle connection is kept; zero keeps none.
    pub keep_alive: Duration,
    /// Idle connections kept.
    pub idle_max: usize,
    /// True if a request that met the close of a pooled connection is sent once more on a new one.
    pub resend_on_stale: bool,
    /// Longest time until there is a connection, with DNS and TLS.
    pub connect_timeout: Duration,
}

/// Counts requests that are sent once more.
pub type ResendCounter = Arc<dyn Fn() + Send + Sync>;

/// The pooled clients, without or with TLS. Two variants, because a connection that may be either has the size of a TLS
/// session in each future that it passes through, and most agents are local and without TLS.
#[derive(Clone)]
enum ClientPools<B> {
    /// Its connector refuses `https`, so a request to an `https` URL is never sent in plain text.
    Plain(ClientPair<CountingConnector<HttpConnector>, B>),
    Tls(ClientPair<CountingConnector<HttpsConnector<HttpConnector>>, B>),
}

/// A client with pooled connections, and one whose connections serve one request each.
#[derive(Clone)]
struct ClientPair<C, B> {
    pooled: legacy::Client<C, B>,
    single: legacy::Client<C, B>,
}

/// A reason why a request has no response.
#[derive(Debug)]
pub enum OutboundError {
    /// No connection was opened.
    Unreachable(&'static str),
    /// There was a connection, and no readable response came over it.
    Failed(legacy::Error),
}

/// A try to send a request that failed.
struct FailedTry {
    error: OutboundError,
    /// Traffic counters of the connection used, if there was one.
    traffic: Option<Traffic>,
}

// === impl Connectors ===

impl Connectors {
    /// Builds the connectors. Root certificates are loaded only if a server is behind TLS. `tcp_timeout` bounds the TCP
    /// handshake of all of them.
    pub fn new(is_https: bool, tcp_timeout: Duration, clock: Clock) -> Result<Self, SystemTrustError> {
        let plain = CountingConnector::new(tcp(tcp_timeout), clock.clone());
        let tls = if is_https { Some(CountingConnector::new(tls(tcp_timeout)?, clock.clone())) } else { None };
        Ok(Self { plain, tls, clock })
    }

    /// Returns the client of a server. A client for `https` without a TLS connector fails every request.
    pub fn client<B>(&self, is_https: bool, options: ConnectionOptions, resends: ResendCounter) -> OutboundClient<B>
    where
        B: Body + Send + Unpin + 'static,
        B::Data: Send,
    {
        let pools = match &self.tls {
            Some(tls) if is_https => ClientPools::Tls(ClientPair::new(tls, options)),
            Some(_) | None => ClientPools::Plain(ClientPair::new(&self.plain, options)),
        };
        OutboundClient { pools, options, clock: self.clock.clone(), resends }
    }
}

// === impl OutboundClient ===

impl<B> OutboundClient<B>
where
    B: Body + Clone + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Sends a request and waits for the head of its response. Only opening the connection has a deadline here.
    pub async fn send(&self, request: Request<B>) -> Result<Response<Incoming>, OutboundError> {
        self.send_tracking_start(request, &AtomicBool::new(false)).await
    }

    /// Sends a request as [`Self::send`] does, and sets `is_begun` once there is a connection to write the request to.
    pub async fn send_tracking_start(
        &self,
        request: Request<B>,
        is_begun: &AtomicBool,
    ) -> Result<Response<Incoming>, OutboundError> {
        match &self.pools {
            ClientPools::Plain(pair) => self.send_with_retry(pair, request, is_begun).await,
            ClientPools::Tls(pair) => self.send_with_retry(pair, request, is_begun).await,
        }
    }

    /// Returns how long a response asks the client to wait before the next request (`Retry-After`).
    pub fn retry_after(&self, headers: &HeaderMap) -> Option<Duration> {
        retry_after(headers, self.clock.now().store)
    }

    async fn send_with_retry<C: Connect + Clone + Send + Sync + 'static>(
        &self,
        pair: &ClientPair<C, B>,
        request: Request<B>,
        is_begun: &AtomicBool,
    ) -> Result<Response<Incoming>, OutboundError> {
        let again = self.options.resend_on_stale.then(|| request.clone());
        let sent_at = self.clock.mono();
        let missed = match self.try_send(&pair.pooled, request, is_begun).await {
            Ok(response) => return Ok(response),
            Err(missed) => missed,
        };
        let is_stale = missed.traffic.is_some_and(|traffic| traffic.is_stale(sent_at, self.clock.mono()));
        let Some(again) = again.filter(|_| is_stale) else { return Err(missed.error) };
        (self.resends)();
        tracing::debug!("a server closed a pooled connection; resending the request");
        // Boxed: few requests need the size of both tries.
        Box::pin(self.try_send(&pair.single, again, is_begun)).await.map_err(|missed| missed.error)
    }

    /// Tries once, on one connection.
    async fn try_send<C: Connect + Clone + Send + Sync + 'static>(
        &self,
        pool: &legacy::Client<C, B>,
        mut request: Request<B>,
        is_begun: &AtomicBool,
    ) -> Result<Response<Incoming>, FailedTry> {
        let mut connection = capture_connection(&mut request);
        let response = pool.request(request);
        tokio::pin!(response);
        // The connector's own deadline covers TCP; this deadline also covers DNS and TLS.
        let connected = tokio::time::timeout(self.options.connect_timeout, async {
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
                    let why = OutboundError::Unreachable("connecting timed out");
                    return Err(FailedTry { error: why, traffic: None });
                }
            },
        };
        match answer {
            Ok(response) => {
                // The server may close the connection before the next request arrives.
                if server_keep_alive(response.headers()).is_some_and(|wait| wait <= self.options.keep_alive)
                    && !planted(Planted::KeepAliveNotHeeded)
                    && let Some(connection) = connection.connection_metadata().as_ref()
                {
                    connection.poison();
                }
                Ok(response)
            }
            Err(error) if error.is_connect() => {
                Err(FailedTry { error: OutboundError::Unreachable("cannot connect"), traffic: None })
            }
            Err(error) => Err(FailedTry { error: OutboundError::Failed(error), traffic: traffic_of(&connection) }),
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

impl<C, B> ClientPair<C, B>
where
    C: Connect + Clone,
    B: Body + Send,
    B::Data: Send,
{
    fn new(connector: &C, options: ConnectionOptions) -> Self {
        let ConnectionOptions { keep_alive, idle_max, .. } = options;
        let max = if keep_alive.is_zero() { 0 } else { idle_max };
        Self { pooled: pool(connector.clone(), keep_alive, max), single: pool(connector.clone(), keep_alive, 0) }
    }
}

fn pool<C, B>(connector: C, keep: Duration, max: usize) -> legacy::Client<C, B>
where
    C: Connect + Clone,
    B: Body + Send,
    B::Data: Send,
{
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(keep)
        .pool_max_idle_per_host(max)
        .http1_max_buf_size(limits::AGENT_HEAD_BYTES_MAX)
        .http1_max_headers(limits::AGENT_HEADERS_MAX)
        .build(connector)
}

fn tcp(timeout: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(TCP_KEEPALIVE));
    tcp.set_connect_timeout(Some(timeout));
    tcp.set_recv_buffer_size(Some(RECEIVE_BUFFER_BYTES));
    tcp
}

fn tls(timeout: Duration) -> Result<HttpsConnector<HttpConnector>, SystemTrustError> {
    let config = system_trust::client_config(true)?;
    let mut tcp = tcp(timeout);
    tcp.enforce_http(false);
    Ok(HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1().wrap_connector(tcp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use tokio::io::AsyncReadExt;

    /// Covers: S-27.
    #[tokio::test]
    async fn https_request_is_never_sent_in_plain_text() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("its address");
        let timeout = limits::AGENT_CONNECT_TIMEOUT;
        let connectors = Connectors::new(false, timeout, Clock::start()).expect("it needs no certificates");
        let options = ConnectionOptions {
            keep_alive: limits::AGENT_KEEP_ALIVE,
            idle_max: 1,
            resend_on_stale: true,
            connect_timeout: timeout,
        };
        let client = connectors.client(true, options, Arc::new(|| {}));
        let request = Request::get(format!("https://{at}/health"));
        let request = request.body(Full::<Bytes>::default()).expect("a request");
        let error = client.send(request).await.expect_err("there is no TLS");
        assert!(matches!(error, OutboundError::Unreachable(_)), "{error:?}");
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

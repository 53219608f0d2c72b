//! HTTP client of the commands: one request per connection, one JSON answer.
use super::CliError;
use super::gateway::GatewayArgs;
use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::Value;
use std::io;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Timeout for establishing a connection, from the first packet on.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for an answer that the node can give at once.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of an answer; lists come in pages that are far smaller.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The address of a gateway or of a node's operators' listener.
#[derive(Clone, Debug)]
pub(super) struct ApiClient {
    authority: String,
    tls: bool,
    /// Path prefix of every request, without a trailing slash.
    base: String,
}

/// One request to a [`ApiClient`].
pub(super) struct ApiRequest<'a> {
    pub(super) method: Method,
    /// Path with its query.
    pub(super) path: &'a str,
    /// Credentials; without them the request is anonymous.
    pub(super) credentials: Option<&'a GatewayArgs>,
    pub(super) body: Option<Value>,
    /// Timeout of the whole exchange.
    pub(super) timeout: Duration,
}

/// A byte stream that carries HTTP: TCP, with or without TLS.
trait ByteStream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> ByteStream for S {}

/// Sends a request to the gateway of the arguments, with their credentials, and returns the JSON of its answer.
pub(super) async fn call(
    gateway: &GatewayArgs,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<Value, CliError> {
    let server = ApiClient::parse(&gateway.url)?;
    let credentials = Some(gateway);
    server.request_json(ApiRequest { method, path, credentials, body, timeout: ANSWER_TIMEOUT }).await
}

/// Returns a path with its query.
pub(super) fn path_with_query(path: &str, parameters: &[(&str, &str)]) -> String {
    let encoded = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    format!("{path}?{encoded}")
}

/// Returns the items of a list in an answer.
pub(super) fn parse_list<T: for<'de> Deserialize<'de>>(answer: &Value, name: &str) -> Result<Vec<T>, CliError> {
    let items = answer.get(name).cloned().unwrap_or_default();
    serde_json::from_value(items).map_err(unexpected_answer)
}

/// Returns the error of an answer that this release does not understand.
pub(super) fn unexpected_answer(why: impl std::fmt::Display) -> CliError {
    CliError::Failed(format!("the answer has an unexpected format; the node may run another release: {why}"))
}

// === impl ApiClient ===

impl ApiClient {
    /// Parses `http://host:port`, or `https://host:port` for TLS. `ws://` and `wss://` are equivalent, and a
    /// path that ends with the WebSocket's own `/v1/connect` loses that part.
    pub(super) fn parse(url: &str) -> Result<Self, CliError> {
        let bad = |why: &str| CliError::Usage(format!("{url}: {why}"));
        let uri: Uri = url.parse().map_err(|_| bad("not a URL"))?;
        let tls = match uri.scheme_str() {
            Some("http" | "ws") => false,
            Some("https" | "wss") => true,
            Some(_) | None => return Err(bad("the URL must begin with http:// or https://")),
        };
        let authority = uri.authority().filter(|it| !it.as_str().contains('@'));
        let authority = authority.ok_or_else(|| bad("the URL has no host"))?.as_str().to_owned();
        let base = uri.path().trim_end_matches('/').trim_end_matches("/v1/connect").to_owned();
        Ok(Self { authority, tls, base })
    }

    /// Sends a request and returns the JSON of its answer.
    pub(super) async fn request_json(&self, ask: ApiRequest<'_>) -> Result<Value, CliError> {
        let patience = ask.timeout;
        let answered = timeout(patience, self.exchange(ask)).await;
        answered.map_err(|_| self.unavailable(format!("no answer within {} s", patience.as_secs())))?
    }

    /// Fetches a page and returns its status and body unchanged.
    pub(super) async fn fetch_raw(&self, path: &str, patience: Duration) -> Result<(StatusCode, Bytes), CliError> {
        let ask = ApiRequest { method: Method::GET, path, credentials: None, body: None, timeout: patience };
        let answered = timeout(patience, self.send(ask)).await;
        answered.map_err(|_| self.unavailable(format!("no answer within {} s", patience.as_secs())))?
    }

    async fn exchange(&self, ask: ApiRequest<'_>) -> Result<Value, CliError> {
        let (status, body) = self.send(ask).await?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let word = |key: &str| answer.get(key).and_then(Value::as_str).map(str::to_owned);
        match (status.is_success(), word("code")) {
            (true, _) if !answer.is_null() => Ok(answer),
            (false, Some(code)) => {
                Err(CliError::Refused { message: word("detail").unwrap_or_else(|| code.clone()), code })
            }
            (_, _) => Err(CliError::Failed(format!("{}: answered {status} without JSON", self.authority))),
        }
    }

    async fn send(&self, ask: ApiRequest<'_>) -> Result<(StatusCode, Bytes), CliError> {
        let lost = |error: hyper::Error| self.unavailable(error);
        let stream = match timeout(CONNECT_TIMEOUT, self.connect()).await {
            Ok(connected) => connected.map_err(|error| self.unavailable(error))?,
            Err(_) => return Err(self.unavailable("timed out while connecting")),
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        // The task ends with this one exchange; the sender reports the same failure.
        tokio::spawn(async { drop(connection.await) });
        let response = sender.send_request(self.build_request(ask)?).await.map_err(lost)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| self.unavailable(error))?.to_bytes()))
    }

    async fn connect(&self) -> io::Result<Pin<Box<dyn ByteStream>>> {
        let port = if self.tls { 443 } else { 80 };
        let with_port = if self.has_port() { self.authority.clone() } else { format!("{}:{port}", self.authority) };
        let stream = TcpStream::connect(&with_port).await?;
        if !self.tls {
            return Ok(Box::pin(stream));
        }
        let host = with_port.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Box::pin(TlsConnector::from(turnway_client::trust()).connect(name, stream).await?))
    }

    fn build_request(&self, ask: ApiRequest<'_>) -> Result<Request<Full<Bytes>>, CliError> {
        let mut request = Request::builder()
            .method(ask.method)
            .uri(format!("{}{}", self.base, ask.path))
            .header(header::HOST, &self.authority)
            .header(header::ACCEPT, "application/json");
        if let Some(user) = ask.credentials.and_then(|who| who.user.as_deref()) {
            request = request.header("x-user-id", user);
        }
        if let Some(key) = ask.credentials.and_then(|who| who.api_key.as_deref()) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let body = match ask.body {
            None => Bytes::new(),
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
        };
        request.body(Full::new(body)).map_err(|error| CliError::Usage(error.to_string()))
    }

    fn has_port(&self) -> bool {
        self.authority.rsplit(']').next().is_some_and(|rest| rest.contains(':'))
    }

    fn unavailable(&self, why: impl std::fmt::Display) -> CliError {
        CliError::Unavailable(format!("cannot reach {}: {why}", self.authority))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_url_is_parsed() {
        for (url, authority, base, port) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", "", true),
            ("ws://host/v1/connect", "host", "", false),
            ("http://[::1]:80/a/b/", "[::1]:80", "/a/b", true),
            ("wss://[::1]/a/v1/connect", "[::1]", "/a", false),
        ] {
            let server = ApiClient::parse(url).expect(url);
            assert_eq!((server.authority.as_str(), server.base.as_str(), server.has_port()), (authority, base, port));
        }
        for url in ["h:80", "ftp://h", "http://", "http://u:p@h", "/x", ""] {
            assert!(matches!(ApiClient::parse(url), Err(CliError::Usage(_))), "{url}");
        }
    }
}

//! Upgrades `GET /v1/connect` from HTTP to a WebSocket (RFC 6455 §4.2), and starts the task of the link.
use super::IncomingRequest;
use super::churn_limiter::ChurnLimiter;
use super::connection_task;
use super::frame_guard::FrameGuard;
use super::maybe_tls::MaybeTlsStream;
use super::stall_guard::StallGuard;
use super::websocket::{WebSocket, WebSocketCodec};
use crate::agent::dialin::AgentRegistry;
use crate::auth::Authenticator;
use crate::clock::Clock;
use crate::links::{CommandSender, LinkRegistry};
use crate::metrics::{HandshakeOutcome, Metrics};
use crate::phase::Lifecycle;
use crate::response::{self, Body};
use crate::tools::ToolRunners;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use std::sync::Arc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_util::task::TaskTracker;
use turnway_core::id::NodeId;
use turnway_core::limits;
use turnway_core::protocol::refusal::Code;
use turnway_wire::channel::PROTOCOL;

/// Path of the WebSocket endpoint.
pub const PATH: &str = "/v1/connect";
/// Most links are idle, and this buffer counts 18,000 times. tungstenite's default is 128 KiB; this size costs no
/// throughput.
const READ_BUFFER_BYTES: usize = 1024;
/// Read buffer of an idle link. Its next messages need more read calls until the link proves to be busy.
const IDLE_READ_BUFFER_BYTES: usize = 64;
/// Notes up to this size are written together.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;
/// Writing waits for the socket long before this limit; a single note may be large.
const WRITE_BUFFER_BYTES_MAX: usize = 4 * limits::FRAME_BYTES_MAX;

/// The dependencies of a link on its node.
pub struct LinkContext {
    pub auth: Authenticator,
    /// Limits how many links connect or disconnect at once.
    pub churn_limiter: ChurnLimiter,
    /// The mailboxes of links.
    pub links: Arc<LinkRegistry>,
    /// Sends commands to the switchboard.
    pub commands: CommandSender,
    /// Registry of agents that dial in.
    pub agent_registry: AgentRegistry,
    /// Registry of tool runners.
    pub tools: ToolRunners,
    /// The process's phase.
    pub life: Lifecycle,
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    pub node: NodeId,
    /// The durability promised by an acknowledgement.
    pub durability: &'static str,
    /// Tracks the task of each link.
    pub tasks: TaskTracker,
}

// === impl LinkContext ===

impl LinkContext {
    /// Answers an upgrade request, and starts the link.
    pub(super) fn upgrade(
        self: &Arc<Self>,
        request: &mut Request<Incoming>,
        arrival: IncomingRequest,
    ) -> Response<Body> {
        let accept = match check_handshake(request) {
            Ok(accept) => accept,
            Err(refused) => {
                self.metrics.links.count_handshake(HandshakeOutcome::Malformed);
                return refused.answer();
            }
        };
        let mut response = response::text(StatusCode::SWITCHING_PROTOCOLS, "");
        let headers = response.headers_mut();
        headers.clear();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        // Subprotocol names are case-sensitive, unlike HTTP tokens.
        // The only subprotocol. A client that offers none is served the same.
        if list_tokens(request.headers(), &header::SEC_WEBSOCKET_PROTOCOL).any(|offered| offered == PROTOCOL) {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
        }
        let upgrade = hyper::upgrade::on(request);
        self.tasks.spawn(Arc::clone(self).finish_upgrade(upgrade, arrival));
        response
    }

    /// Waits for the switch of protocols, then moves the raw socket to a new task: this task still has the size of the
    /// HTTP state.
    async fn finish_upgrade(self: Arc<Self>, upgrade: OnUpgrade, arrival: IncomingRequest) {
        let Ok(upgraded) = upgrade.await else {
            return self.metrics.links.count_handshake(HandshakeOutcome::Abandoned);
        };
        match into_stream(upgraded) {
            Ok(stream) => {
                let socket = open_websocket(stream.0, stream.1).await;
                let tasks = self.tasks.clone();
                tasks.spawn(async move { connection_task::serve(socket, &self, arrival).await });
            }
            Err(_) => tracing::error!("upgraded connection has an unexpected type"),
        }
    }
}

/// Returns the connection below HTTP, and the bytes that the client has sent behind its request.
fn into_stream(upgraded: Upgraded) -> Result<(MaybeTlsStream, Vec<u8>), Upgraded> {
    let parts = upgraded.downcast::<StallGuard>()?;
    Ok((parts.io.into_inner(), parts.read_buf.to_vec()))
}

async fn open_websocket(stream: MaybeTlsStream, read: Vec<u8>) -> Box<WebSocket> {
    let (seam, read) = FrameGuard::new(stream, read);
    Box::new(WebSocket::new(if read.is_empty() {
        WebSocketStream::from_raw_socket(seam, Role::Server, Some(websocket_config())).await
    } else {
        WebSocketStream::from_partially_read(seam, read, Role::Server, Some(websocket_config())).await
    }))
}

/// Creates a codec over a stream whose old codec holds no bytes.
pub(super) async fn new_codec(seam: FrameGuard, is_idle: bool) -> WebSocketCodec {
    let config = if is_idle { websocket_config().read_buffer_size(IDLE_READ_BUFFER_BYTES) } else { websocket_config() };
    WebSocketStream::from_raw_socket(seam, Role::Server, Some(config)).await
}

/// Returns the buffer sizes and message limits of a link's codec. The echo server of the benchmarks uses the same.
pub fn websocket_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX)
        .max_message_size(Some(limits::MESSAGE_BYTES_MAX))
        .max_frame_size(Some(limits::MESSAGE_BYTES_MAX))
}

/// The reason why a request is not a WebSocket handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocketHandshakeError {
    /// The request does not ask for a WebSocket.
    NotRequested,
    /// The WebSocket version is not 13.
    Version,
    /// The key is missing, repeated, or not 16 bytes in base64.
    Key,
    /// The request has a body.
    Body,
}

/// Checks a WebSocket handshake. Returns the value of `Sec-WebSocket-Accept`.
pub fn check_handshake<B: hyper::body::Body>(request: &Request<B>) -> Result<HeaderValue, WebSocketHandshakeError> {
    let headers = request.headers();
    let wants = request.method() == Method::GET
        && request.version() >= Version::HTTP_11
        && has_token(headers, header::CONNECTION, "upgrade")
        && has_token(headers, header::UPGRADE, "websocket");
    if !wants {
        return Err(WebSocketHandshakeError::NotRequested);
    }
    let mut versions = headers.get_all(header::SEC_WEBSOCKET_VERSION).iter();
    if versions.next().is_none_or(|version| version != "13") || versions.next().is_some() {
        return Err(WebSocketHandshakeError::Version);
    }
    if !request.body().is_end_stream() {
        return Err(WebSocketHandshakeError::Body);
    }
    let mut keys = headers.get_all(header::SEC_WEBSOCKET_KEY).iter();
    match (keys.next(), keys.next()) {
        (Some(key), None) if is_key(key.as_bytes()) => {
            HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| WebSocketHandshakeError::Key)
        }
        (_, _) => Err(WebSocketHandshakeError::Key),
    }
}

/// Returns true if the text is 16 bytes in base64 (RFC 6455 §4.2.1); their value does not matter.
fn is_key(text: &[u8]) -> bool {
    let digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    text.strip_suffix(b"==").is_some_and(|digits| digits.len() == 22 && digits.iter().all(digit))
}

// === impl WebSocketHandshakeError ===

impl WebSocketHandshakeError {
    fn answer(self) -> Response<Body> {
        let refuse = |status, why, name, value| {
            let mut response = response::problem(status, Code::InvalidMessage, why);
            response.headers_mut().insert(name, HeaderValue::from_static(value));
            response
        };
        match self {
            Self::NotRequested => {
                let why = "this is a WebSocket endpoint";
                let mut response = refuse(StatusCode::UPGRADE_REQUIRED, why, header::UPGRADE, "websocket");
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
                response
            }
            Self::Version => {
                let why = "expected Sec-WebSocket-Version: 13";
                refuse(StatusCode::UPGRADE_REQUIRED, why, header::SEC_WEBSOCKET_VERSION, "13")
            }
            Self::Key => {
                let why = "expected one Sec-WebSocket-Key of 16 bytes";
                refuse(StatusCode::BAD_REQUEST, why, header::CONNECTION, "close")
            }
            Self::Body => {
                let why = "a WebSocket handshake has no body";
                refuse(StatusCode::BAD_REQUEST, why, header::CONNECTION, "close")
            }
        }
    }
}

/// Returns true if a list header contains this token, case-insensitively.
fn has_token(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    list_tokens(headers, &name).any(|part| part.eq_ignore_ascii_case(token))
}

/// Returns the elements of a list header.
fn list_tokens<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> impl Iterator<Item = &'a str> {
    let texts = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Empty;
    use hyper::body::Bytes;

    fn handshake() -> http::request::Builder {
        Request::builder()
            .uri(PATH)
            .header("connection", "keep-alive, Upgrade")
            .header("upgrade", "WebSocket")
            .header("sec-websocket-version", "13")
    }

    #[test]
    fn handshake_response_matches_the_rfc() {
        let request = handshake()
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .body(Empty::<Bytes>::new())
            .expect("good");
        assert_eq!(check_handshake(&request).expect("good"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn invalid_handshake_gets_a_reason() {
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        for (request, status) in [
            (Request::builder().uri(PATH), 426),
            (handshake().method("POST").header("sec-websocket-key", key), 426),
            (handshake(), 400),
            (handshake().header("sec-websocket-key", "short"), 400),
            (handshake().header("sec-websocket-key", "dGhlIHNhbXBsZSBub25j!!=="), 400),
            (handshake().header("sec-websocket-key", key).version(Version::HTTP_10), 426),
            (handshake().header("sec-websocket-key", key).header("sec-websocket-key", key), 400),
        ] {
            let refused =
                check_handshake(&request.body(Empty::<Bytes>::new()).expect("a request")).expect_err("no handshake");
            assert_eq!(refused.answer().status(), status);
        }
    }
}

//! HTTP client of an S3-compatible store: signs requests, bounds their time, and repeats those that got no answer. It follows
//! no redirect and uses no proxy of the environment.
use super::answer::error_code;
use super::credentials::{CredentialsError, S3Credentials};
use super::sign::{SignableRequest, sign};
use super::upload_body::UploadBody;
use crate::clock::Clock;
use crate::config::s3::S3Place;
use crate::metrics::{BodyOperation, BodyRequestResult, Metrics};
use crate::system_trust::{self, SystemTrustError};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::sync::Arc;
use tokio::time::timeout;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};

type StoreClient = legacy::Client<HttpsConnector<HttpConnector>, UploadBody>;

/// The client of one bucket. Clones share its connections.
#[derive(Clone)]
pub(super) struct S3Client(Arc<S3ClientInner>);

struct S3ClientInner {
    place: S3Place,
    credentials: S3Credentials,
    clock: Clock,
    metrics: Arc<Metrics>,
    pooled: StoreClient,
    /// Each of its connections serves one request: the body of an upload cannot be sent again if a kept connection turns
    /// out to be closed.
    single: StoreClient,
}

/// One request without its body.
#[derive(Clone, Debug)]
pub(super) struct S3Request {
    pub(super) operation: BodyOperation,
    /// Name of the object below the bucket; empty for the bucket itself.
    pub(super) object: String,
    /// Encoded, and sorted by name.
    pub(super) query: String,
}

/// The reason why a request to an S3-compatible store failed. Never has credentials or signatures.
#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    #[error("cannot connect")]
    Unreachable,
    #[error("the connection was lost")]
    Lost,
    #[error("no answer in time")]
    TooSlow,
    /// An answer with another status than success.
    #[error("status {}, {code}", status.as_u16())]
    Refused { status: StatusCode, code: String },
    #[error("an answer that cannot be read")]
    Unreadable,
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The time or the address cannot be part of a signature.
    #[error("the request cannot be signed")]
    NotSignable,
}

/// The store's certificates cannot be checked.
#[derive(Debug, thiserror::Error)]
#[error("blobs.url: cannot load the system's certificates: {0}")]
pub struct S3SetupError(#[from] SystemTrustError);

// === impl S3Client ===

impl S3Client {
    pub(super) fn new(
        place: S3Place,
        credentials: S3Credentials,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<Self, S3SetupError> {
        let connector = connector(place.url.is_https)?;
        let pooled = client(connector.clone(), limits::S3_IDLE_CONNECTIONS_MAX);
        let single = client(connector, 0);
        Ok(Self(Arc::new(S3ClientInner { place, credentials, clock, metrics, pooled, single })))
    }

    /// Returns the prefix of all objects: empty, or with a slash at its end.
    pub(super) fn prefix(&self) -> &str {
        &self.0.place.url.prefix
    }

    /// Sends an upload, whose time its writer bounds. Returns when the store has the object.
    pub(super) async fn put(&self, request: S3Request, body: UploadBody) -> Result<(), S3Error> {
        let response = self.try_send(&self.0.single, &request, body).await;
        self.accepted(&request, response).await.map(drop)
    }

    /// Sends a request without a body, and once more if it got no answer. Returns a successful answer.
    pub(super) async fn send(&self, request: S3Request) -> Result<Response<Incoming>, S3Error> {
        let pooled = self.in_time(&self.0.pooled, &request).await;
        let response = match pooled {
            Err(S3Error::Unreachable | S3Error::Lost) => self.in_time(&self.0.single, &request).await,
            Ok(_)
            | Err(
                S3Error::TooSlow
                | S3Error::Refused { .. }
                | S3Error::Unreadable
                | S3Error::Credentials(_)
                | S3Error::NotSignable,
            ) => pooled,
        };
        self.accepted(&request, response).await
    }

    /// Sends a request without a body, and reads its answer up to this size.
    pub(super) async fn read(&self, request: S3Request, bytes_max: usize) -> Result<Bytes, S3Error> {
        let response = self.send(request).await?;
        match timeout(limits::S3_PAUSE_MAX, Limited::new(response.into_body(), bytes_max).collect()).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<hyper::Error>() => Err(S3Error::Lost),
            Ok(Err(_)) => Err(S3Error::Unreadable),
            Err(_) => Err(S3Error::TooSlow),
        }
    }

    async fn in_time(&self, client: &StoreClient, request: &S3Request) -> Result<Response<Incoming>, S3Error> {
        let sent = self.try_send(client, request, UploadBody::none());
        timeout(limits::S3_PAUSE_MAX, sent).await.unwrap_or(Err(S3Error::TooSlow))
    }

    async fn try_send(
        &self,
        client: &StoreClient,
        request: &S3Request,
        body: UploadBody,
    ) -> Result<Response<Incoming>, S3Error> {
        let request = self.signed(request, body).await?;
        let sent = client.request(request).await;
        sent.map_err(|error| if error.is_connect() { S3Error::Unreachable } else { S3Error::Lost })
    }

    async fn signed(&self, request: &S3Request, body: UploadBody) -> Result<Request<UploadBody>, S3Error> {
        let S3Place { url, region, credentials: _ } = &self.0.place;
        let key = self.0.credentials.key().await?;
        let method = method_of(request.operation);
        let path = format!("/{}/{}", url.bucket, request.object);
        let path = if request.object.is_empty() { path.trim_end_matches('/') } else { &path };
        let signable = SignableRequest {
            method: &method,
            path,
            query: &request.query,
            host: &url.host,
            has_body: body.length().is_some(),
        };
        let headers = sign(signable, &key, region, self.0.clock.now().store).map_err(|_| S3Error::NotSignable)?;
        let scheme = if url.is_https { "https" } else { "http" };
        let question = if request.query.is_empty() { "" } else { "?" };
        let uri: Result<Uri, _> = format!("{scheme}://{}{path}{question}{}", url.host, request.query).parse();
        let length = body.length();
        let mut signed = Request::new(body);
        *signed.method_mut() = method;
        *signed.uri_mut() = uri.map_err(|_| S3Error::NotSignable)?;
        *signed.headers_mut() = headers;
        if let Some(length) = length {
            signed.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        Ok(signed)
    }

    /// Counts a request, and makes an error of an answer that is none of success.
    async fn accepted(
        &self,
        request: &S3Request,
        response: Result<Response<Incoming>, S3Error>,
    ) -> Result<Response<Incoming>, S3Error> {
        let result = match &response {
            Ok(response) if response.status().is_success() => BodyRequestResult::Done,
            Ok(response) if response.status() == StatusCode::NOT_FOUND => BodyRequestResult::Missing,
            Ok(_) => BodyRequestResult::Refused,
            Err(_) => BodyRequestResult::Failed,
        };
        self.0.metrics.blobs.count_request(request.operation, result);
        let response = response?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if planted(Planted::S3CredentialsLogged) {
            let key = self.0.credentials.key().await?;
            tracing::warn!(secret = key.secret(), "a request was refused");
        }
        let body = Limited::new(response.into_body(), limits::S3_ERROR_BYTES_MAX).collect();
        let code = match timeout(limits::S3_PAUSE_MAX, body).await {
            Ok(Ok(body)) => error_code(&String::from_utf8_lossy(&body.to_bytes())),
            Ok(Err(_)) | Err(_) => "none".to_owned(),
        };
        Err(S3Error::Refused { status, code })
    }
}

fn method_of(operation: BodyOperation) -> Method {
    match operation {
        BodyOperation::Put => Method::PUT,
        BodyOperation::Get | BodyOperation::List => Method::GET,
        BodyOperation::Delete => Method::DELETE,
    }
}

fn client(connector: HttpsConnector<HttpConnector>, idle_max: usize) -> StoreClient {
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(limits::S3_IDLE_TIMEOUT)
        .pool_max_idle_per_host(idle_max)
        .http1_max_buf_size(limits::S3_BUFFER_BYTES_MAX)
        .build(connector)
}

/// Builds a connector with the system's certificates, or for plain text alone.
fn connector(is_https: bool) -> Result<HttpsConnector<HttpConnector>, S3SetupError> {
    let tls = system_trust::client_config(is_https)?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(limits::S3_CONNECT_TIMEOUT));
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
    let builder = if is_https { builder.https_only() } else { builder.https_or_http() };
    Ok(builder.enable_http1().wrap_connector(tcp))
}

impl std::fmt::Debug for S3Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S3Client({})", self.0.place.url)
    }
}

//! Bodies as objects of an S3-compatible store: `PREFIX/TENANT/SESSION/BODY`, with the names that files have. A body passes in
//! parts; an object is there whole or not at all. Called by `BodyStore`.
mod answer;
mod client;
mod credentials;
mod sign;
mod upload_body;

pub use self::client::{S3Error, S3SetupError};
pub use self::credentials::{CredentialsError, S3Credentials};

use self::answer::{ObjectPage, parse_page};
use self::client::{S3Client, S3Request};
use self::upload_body::UploadBody;
use super::BodyError;
use super::files::{decode, encode};
use crate::clock::Clock;
use crate::config::s3::S3Place;
use crate::metrics::{BodyOperation, Metrics};
use bytes::Bytes;
use form_urlencoded::byte_serialize;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use tokio::time::timeout;
use turnway_core::id::{BodyId, SessionId, SessionKey, TenantId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};

/// Bodies in a bucket.
#[derive(Clone, Debug)]
pub struct S3Bodies {
    client: S3Client,
    /// Key behind which the next list of sessions begins; empty for the beginning.
    listed_to: Arc<Mutex<String>>,
}

/// A body that is being stored. Dropped before its end, it closes the connection in the middle of the object, of which the
/// store then keeps nothing.
pub struct S3Writer {
    parts: mpsc::Sender<Bytes>,
    /// The end of the request. Dropping the future closes its connection.
    answer: Pin<Box<dyn Future<Output = Result<(), S3Error>> + Send>>,
}

/// An object that is being read.
#[derive(Debug)]
pub struct S3Reader(Incoming);

// === impl S3Bodies ===

impl S3Bodies {
    /// Stores bodies in this place. Nothing is sent yet.
    pub fn new(
        place: S3Place,
        credentials: S3Credentials,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<Self, S3SetupError> {
        Ok(Self { client: S3Client::new(place, credentials, clock, metrics)?, listed_to: Arc::default() })
    }

    /// Returns the prefix of a session's objects.
    fn folder(&self, session: &SessionKey) -> String {
        format!("{}{}/{}/", self.client.prefix(), encode(session.tenant.as_str()), encode(session.session.as_str()))
    }

    fn request(&self, operation: BodyOperation, session: &SessionKey, body: BodyId) -> S3Request {
        S3Request { operation, object: format!("{}{body}", self.folder(session)), query: String::new() }
    }

    /// Begins to store a body of exactly this length.
    pub(super) fn begin(&self, session: &SessionKey, body: BodyId, bytes: u64) -> S3Writer {
        let request = self.request(BodyOperation::Put, session, body);
        let client = self.client.clone();
        let (parts, upload) = UploadBody::of_length(bytes);
        S3Writer { parts, answer: Box::pin(async move { client.put(request, upload).await }) }
    }

    pub(super) async fn open(&self, session: &SessionKey, body: BodyId) -> Result<S3Reader, BodyError> {
        let response =
            self.client.send(self.request(BodyOperation::Get, session, body)).await.map_err(error_of_object)?;
        Ok(S3Reader(response.into_body()))
    }

    pub(super) async fn delete(&self, session: &SessionKey, body: BodyId) -> Result<(), BodyError> {
        let request = self.request(BodyOperation::Delete, session, body);
        match self.client.read(request, limits::S3_ERROR_BYTES_MAX).await.map_err(error_of_object) {
            // Deleted before, perhaps by the sweep of another node.
            Ok(_) | Err(BodyError::Missing) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns sessions with bodies: of a large bucket a part, behind those that the last call returned.
    pub(super) async fn sessions(&self) -> Result<Vec<SessionKey>, BodyError> {
        let mut sessions = Vec::new();
        for _ in 0..limits::S3_PAGES_MAX {
            let from = self.listed_to().clone();
            let page = self.page(self.client.prefix(), &from).await?;
            sessions.extend(page.keys.iter().filter_map(|key| self.parse_key(key)).map(|(session, _)| session));
            sessions.dedup();
            let next = if page.is_truncated { page.keys.last().cloned() } else { None };
            let is_end = next.is_none();
            *self.listed_to() = next.unwrap_or_default();
            if is_end {
                break;
            }
        }
        Ok(sessions)
    }

    pub(super) async fn bodies(&self, session: &SessionKey) -> Result<Vec<BodyId>, BodyError> {
        let folder = self.folder(session);
        let mut bodies = Vec::new();
        let mut from = String::new();
        for _ in 0..limits::S3_PAGES_MAX {
            let page = self.page(&folder, &from).await?;
            bodies.extend(page.keys.iter().filter_map(|key| self.parse_key(key)).map(|(_, body)| body));
            match page.keys.last() {
                Some(last) if page.is_truncated && !planted(Planted::S3PagesNotFollowed) => from.clone_from(last),
                Some(_) | None => break,
            }
        }
        Ok(bodies)
    }

    fn listed_to(&self) -> MutexGuard<'_, String> {
        self.listed_to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the keys with a prefix behind `from`, or the first ones if it is empty.
    async fn page(&self, prefix: &str, from: &str) -> Result<ObjectPage, BodyError> {
        let encoded =
            |text: &str| byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20").replace('*', "%2A");
        let start = if from.is_empty() { String::new() } else { format!("&start-after={}", encoded(from)) };
        let prefix = encoded(prefix);
        let most = limits::S3_PAGE_OBJECTS_MAX;
        let query = format!("list-type=2&max-keys={most}&prefix={prefix}{start}");
        let request = S3Request { operation: BodyOperation::List, object: String::new(), query };
        let xml = self.client.read(request, limits::S3_PAGE_BYTES_MAX).await?;
        let page = std::str::from_utf8(&xml).ok().and_then(parse_page).ok_or(S3Error::Unreadable)?;
        // A list that does not go on would be read for ever.
        let goes_on = page.keys.last().map_or(!page.is_truncated, |last| last.as_str() > from);
        if goes_on { Ok(page) } else { Err(S3Error::Unreadable.into()) }
    }

    /// Parses the key of a body; none if the object is something else.
    fn parse_key(&self, key: &str) -> Option<(SessionKey, BodyId)> {
        let mut names = key.strip_prefix(self.client.prefix())?.split('/');
        let tenant = TenantId::parse(&decode(names.next()?)?).ok()?;
        let session = SessionId::parse(&decode(names.next()?)?).ok()?;
        let body = BodyId::parse(names.next()?)?;
        names.next().is_none().then_some((SessionKey { tenant, session }, body))
    }
}

// === impl S3Writer ===

impl S3Writer {
    pub(super) async fn write(&mut self, bytes: Bytes) -> Result<(), BodyError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let sent = timeout(limits::S3_PAUSE_MAX, async {
            tokio::select! {
                biased;
                // An answer before the end of the body refuses it.
                answer = &mut self.answer => Err(answer.err().unwrap_or(S3Error::Unreadable)),
                sent = self.parts.send(bytes) => sent.map_err(|_| S3Error::Lost),
            }
        });
        Ok(sent.await.unwrap_or(Err(S3Error::TooSlow))?)
    }

    pub(super) async fn finish(self) -> Result<(), BodyError> {
        let Self { parts, answer } = self;
        drop(parts);
        Ok(timeout(limits::S3_PAUSE_MAX, answer).await.unwrap_or(Err(S3Error::TooSlow))?)
    }
}

impl std::fmt::Debug for S3Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Writer").finish_non_exhaustive()
    }
}

// === impl S3Reader ===

impl S3Reader {
    pub(super) async fn next_part(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            match timeout(limits::S3_PAUSE_MAX, self.0.frame()).await {
                Err(_) => return Err(S3Error::TooSlow.into()),
                // Also if the object ends before its declared length.
                Ok(Some(Err(_))) => return Err(S3Error::Lost.into()),
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(part) if !part.is_empty() => return Ok(Some(part)),
                    Ok(_) | Err(_) => {}
                },
            }
        }
    }
}

/// Returns the error of a request for an object that may be absent.
fn error_of_object(error: S3Error) -> BodyError {
    let is_missing = matches!(&error, S3Error::Refused { status, code }
        if *status == StatusCode::NOT_FOUND && code != "NoSuchBucket");
    if is_missing { BodyError::Missing } else { error.into() }
}

impl From<S3Error> for BodyError {
    fn from(error: S3Error) -> Self {
        match &error {
            S3Error::Refused { status, code }
                if *status == StatusCode::INSUFFICIENT_STORAGE
                    || code.contains("Quota")
                    || code.contains("StorageFull") =>
            {
                Self::Full
            }
            S3Error::Refused { .. }
            | S3Error::Unreachable
            | S3Error::Lost
            | S3Error::TooSlow
            | S3Error::Unreadable
            | S3Error::Credentials(_)
            | S3Error::NotSignable => Self::S3(error),
        }
    }
}

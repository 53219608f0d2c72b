//! Serves `GET /v1/keys`, `POST /v1/keys`, `POST /v1/keys/{key_id}:revoke` and `POST /v1/keys:migrate`: API keys, for
//! operators.
use super::json_body::{AdminRefusal, bad_request, invalid, read_json};
use crate::auth::key::{ApiKeyRecord, KeyId, Scopes};
use crate::auth::service_grants::ServiceGrants;
use crate::keys::key_store::KeyStoreError;
use crate::keys::{ApiKeys, KeyError, KeySpec};
use crate::response::{self, Body};
use bytes::Buf;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{TenantId, UserId};
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};

/// Path of the collection of keys.
pub(super) const PATH: &str = "/v1/keys";
/// Suffix of a key's path that revokes the key.
const REVOKE: &str = ":revoke";
/// Suffix of the collection's path that seals keys of an earlier release.
const MIGRATE: &str = ":migrate";
/// Maximum keys sealed by one request: each is a write.
const MIGRATE_MAX: usize = 100;
/// Maximum bytes of a label; as long as a name.
const LABEL_BYTES_MAX: usize = 256;
/// Ten years. A key without expiry leaves the field out.
const LIFETIME_SECONDS_MAX: u64 = 10 * 365 * 86_400;

/// The handler that creates, revokes and lists keys; it refuses on a node without a pepper.
#[derive(Clone)]
pub struct KeyAdmin(Option<Arc<ApiKeys>>);

/// The body of a request for a new key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewKeyRequest {
    tenant: Option<String>,
    user_id: Option<String>,
    scopes: Option<Scopes>,
    serves: Option<ServiceGrants>,
    label: Option<String>,
    lasts_s: Option<u64>,
}

/// The body of a request to seal keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MigrateKeysRequest {
    key_ids: Vec<KeyId>,
}

/// A key without its secret.
#[derive(Serialize)]
struct KeyView<'a> {
    key_id: &'a KeyId,
    /// True if the key is accepted now.
    good: bool,
    /// True if the stored record has a valid seal.
    sealed: bool,
    tenant: &'a TenantId,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<&'a UserId>,
    scopes: Scopes,
    serves: &'a ServiceGrants,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    created_ts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ts: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_ts: Option<u64>,
}

/// A new key. Its secret occurs in this answer and nowhere else.
#[derive(Serialize)]
struct NewKeyView<'a> {
    key: &'a str,
    #[serde(flatten)]
    shown: KeyView<'a>,
}

#[derive(Serialize)]
struct KeyListView<'a> {
    keys: Vec<KeyView<'a>>,
}

type KeyResult = Result<Response<Body>, AdminRefusal>;

// === impl KeyAdmin ===

impl KeyAdmin {
    /// Creates the handler; `None` on a node without a pepper.
    pub fn new(keys: Option<Arc<ApiKeys>>) -> Self {
        Self(keys)
    }

    /// Answers a request for one of these paths.
    pub(super) async fn answer<B>(&self, head: &http::request::Parts, body: B) -> Response<Body>
    where
        B: BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let rest = head.uri.path().strip_prefix(PATH).unwrap_or_default();
        let answer = match (&head.method, rest.strip_prefix('/')) {
            (&Method::GET | &Method::HEAD, None) => self.list().await,
            (&Method::POST, None) if rest == MIGRATE => self.migrate(&head.headers, body).await,
            (&Method::POST, None) => self.make(&head.headers, body).await,
            (&Method::POST, Some(name)) if name.ends_with(REVOKE) => self.revoke(name).await,
            (_, _) => Err(invalid(StatusCode::METHOD_NOT_ALLOWED, "method not allowed")),
        };
        answer.unwrap_or_else(|AdminRefusal(status, refusal)| response::refused(status, &refusal))
    }

    fn keys(&self) -> Result<&ApiKeys, AdminRefusal> {
        let none = "API keys are disabled on this node: no pepper is configured (auth.pepper)";
        self.0.as_deref().ok_or_else(|| invalid(StatusCode::CONFLICT, none))
    }

    async fn list(&self) -> KeyResult {
        let list = self.keys()?.list().await.map_err(KeyError::from)?;
        let keys = list.iter().map(|(record, good)| self.key_view(record, *good)).collect();
        Ok(response::json(StatusCode::OK, &KeyListView { keys }))
    }

    async fn make<B>(&self, headers: &HeaderMap, body: B) -> KeyResult
    where
        B: BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let keys = self.keys()?;
        let spec = read_new_key(headers, body).await?;
        let (key, record) = keys.create(spec).await?;
        tracing::info!(key = record.id.as_str(), tenant = record.tenant.as_str(), "API key created by an operator");
        Ok(response::json(StatusCode::CREATED, &NewKeyView { key: &key.reveal(), shown: self.key_view(&record, true) }))
    }

    async fn revoke(&self, name: &str) -> KeyResult {
        let id = name.strip_suffix(REVOKE).and_then(KeyId::parse).ok_or(KeyError::Unknown)?;
        let record = self.keys()?.revoke(&id).await?;
        tracing::info!(key = id.as_str(), "API key revoked by an operator");
        Ok(response::json(StatusCode::OK, &self.key_view(&record, false)))
    }

    async fn migrate<B>(&self, headers: &HeaderMap, body: B) -> KeyResult
    where
        B: BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let (keys, MigrateKeysRequest { key_ids }) = (self.keys()?, read_json(headers, body).await?);
        if key_ids.is_empty() || key_ids.len() > MIGRATE_MAX {
            let why = format!("key_ids: expected 1 to {MIGRATE_MAX} names of keys");
            return Err(bad_request(why));
        }
        let sealed = keys.migrate(&key_ids).await?;
        tracing::info!(keys = sealed.len(), "API keys of an earlier release sealed by an operator");
        let keys = sealed.iter().map(|record| self.key_view(record, true)).collect();
        Ok(response::json(StatusCode::OK, &KeyListView { keys }))
    }

    fn key_view<'a>(&self, record: &'a ApiKeyRecord, good: bool) -> KeyView<'a> {
        let sealed = self.0.as_deref().is_some_and(|keys| keys.is_sealed(record));
        key_view(record, good, sealed)
    }
}

fn key_view(record: &ApiKeyRecord, good: bool, sealed: bool) -> KeyView<'_> {
    KeyView {
        key_id: &record.id,
        good,
        sealed,
        tenant: &record.tenant,
        user_id: record.user.as_ref(),
        scopes: record.scopes,
        serves: &record.serves,
        label: record.label.as_deref(),
        created_ts: record.created.0,
        expires_ts: record.expires.map(|at| at.0),
        revoked_ts: record.revoked.map(|at| at.0),
    }
}

async fn read_new_key<B>(headers: &HeaderMap, body: B) -> Result<KeySpec, AdminRefusal>
where
    B: BodyExt<Data: Buf, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    let request: NewKeyRequest = read_json(headers, body).await?;
    let named = |error: turnway_core::id::BadName| bad_request(error.to_string());
    let NewKeyRequest { tenant, user_id, scopes, serves, label, lasts_s } = request;
    if label.as_ref().is_some_and(|label| label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control)) {
        return Err(bad_request(format!("label: expected up to {LABEL_BYTES_MAX} bytes of printable text")));
    }
    if lasts_s.is_some_and(|lasts| lasts == 0 || lasts > LIFETIME_SECONDS_MAX) {
        return Err(bad_request(format!("lasts_s: expected 1 to {LIFETIME_SECONDS_MAX}")));
    }
    Ok(KeySpec {
        tenant: tenant.map_or_else(|| Ok(TenantId::default_tenant()), |name| TenantId::parse(&name)).map_err(named)?,
        user: user_id.map(|name| UserId::parse_person(&name)).transpose().map_err(named)?,
        scopes: scopes.unwrap_or_else(Scopes::defaults),
        serves: serves.unwrap_or_default(),
        label,
        lifetime: lasts_s.map(Duration::from_secs),
    })
}

impl From<KeyError> for AdminRefusal {
    fn from(error: KeyError) -> Self {
        let why = error.to_string();
        let refuse = |status, code| Self(status, Refusal::new(code, why.clone()));
        match error {
            KeyError::Unknown => refuse(StatusCode::NOT_FOUND, Code::NotFound),
            KeyError::Changed => refuse(StatusCode::CONFLICT, Code::Forbidden),
            KeyError::Store(KeyStoreError::Full) => refuse(StatusCode::CONFLICT, Code::TooLarge),
            KeyError::Store(KeyStoreError::Store(_) | KeyStoreError::Busy) => {
                let refusal = Refusal::new(Code::StoreUnavailable, why);
                Self(StatusCode::SERVICE_UNAVAILABLE, refusal.retry_after(limits::STORE_RETRY_AFTER))
            }
            KeyError::Store(KeyStoreError::Unreadable | KeyStoreError::Randomness(_)) | KeyError::Randomness(_) => {
                refuse(StatusCode::INTERNAL_SERVER_ERROR, Code::InternalError)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::header;

    /// Covers: S-01.
    #[test]
    fn missing_randomness_is_an_internal_error_without_retry() {
        let error = getrandom::Error::UNSUPPORTED;
        for error in [KeyError::Randomness(error), KeyStoreError::Randomness(error).into()] {
            let AdminRefusal(status, refusal) = error.into();
            assert_eq!((status, refusal.code), (StatusCode::INTERNAL_SERVER_ERROR, Code::InternalError));
            assert_eq!(refusal.retry_after_ms, None, "it is no matter of time");
        }
        let AdminRefusal(status, refusal) = KeyError::Store(KeyStoreError::Busy).into();
        assert_eq!((status, refusal.code), (StatusCode::SERVICE_UNAVAILABLE, Code::StoreUnavailable));
        assert!(refusal.retry_after_ms.is_some(), "another try may succeed");
    }

    /// Covers: S-07.
    #[tokio::test]
    async fn key_for_an_account_is_not_made() {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, "application/json".parse().expect("a value"))]);
        let read = async |user: &str| {
            let body = serde_json::json!({"user_id": user}).to_string();
            read_new_key(&headers, http_body_util::Full::new(Bytes::from(body))).await
        };
        let Err(AdminRefusal(status, refusal)) = read("channel:rooms/main").await else { panic!("a reserved name") };
        assert_eq!((status, refusal.code), (StatusCode::BAD_REQUEST, Code::InvalidMessage));
        assert!(refusal.message.contains("channel:"), "{}", refusal.message);
        let Ok(spec) = read("channels").await else { panic!("a usual name") };
        assert_eq!(spec.user.as_ref().map(UserId::as_str), Some("channels"));
    }
}

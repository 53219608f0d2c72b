//! Fetches the public keys of an identity provider (S-02): every few minutes, and when a token names an unknown key.
//! The last keys stay in use for some minutes while the provider is unreachable, and no longer. Started by `app::run`.
use crate::auth::jwks::{self, BadKeySet, KeySet};
use crate::auth::token_verifier::{FETCH_INTERVAL_MIN, TokenVerifier};
use crate::clock::Clock;
use crate::config::JwksSource;
use crate::metrics::{FetchOutcome, Metrics};
use crate::outbound::retry_after::retry_after;
use crate::signal::ReloadSignal;
use crate::system_trust;
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::Mono;

/// Pause between two scheduled fetches.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Age at which keys that could not be fetched again are dropped: the provider may have withdrawn them.
const KEYS_MAX_AGE: Duration = Duration::from_secs(10 * 60);
/// Timeout of one fetch, from the connection to the last byte.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

type ProviderClient = legacy::Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// The task that keeps a provider's keys up to date.
pub struct ProviderKeysFetcher {
    tokens: TokenVerifier,
    source: ProviderKeysSource,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// The source of the keys.
enum ProviderKeysSource {
    Url { url: Uri, client: Box<ProviderClient> },
    File(PathBuf),
}

/// A reason why the fetcher cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The configured URL is invalid.
    #[error("auth.jwks: {0}")]
    Url(#[from] http::uri::InvalidUri),
    /// There are no root certificates to verify the provider with.
    #[error("auth.jwks: there are no root certificates: {0}")]
    Roots(String),
}

/// A reason why a fetch failed.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("no answer within {FETCH_TIMEOUT:?}")]
    Timeout,
    #[error("cannot be reached: {0}")]
    Unreachable(#[from] legacy::Error),
    #[error("answered {status}; redirects are not followed")]
    Status { status: StatusCode, retry_after: Option<Duration> },
    #[error("the response was cut off, or is larger than {} bytes", jwks::BYTES_MAX)]
    Body,
    #[error("cannot be read: {0}")]
    File(#[from] std::io::Error),
    #[error(transparent)]
    Keys(#[from] BadKeySet),
}

// === impl ProviderKeysFetcher ===

impl ProviderKeysFetcher {
    /// Creates the fetcher for these tokens, with the source configured for their issuer.
    pub fn new(tokens: TokenVerifier, clock: Clock, metrics: Arc<Metrics>) -> Result<Self, ProviderError> {
        let source = match &tokens.issuer().jwks {
            JwksSource::File(path) => ProviderKeysSource::File(path.clone()),
            JwksSource::Url(text) => {
                let url: Uri = text.parse()?;
                let client = client(url.scheme_str() == Some("https"))?;
                ProviderKeysSource::Url { url, client: Box::new(client) }
            }
        };
        Ok(Self { tokens, source, clock, metrics })
    }

    /// Fetches periodically, when a token asks for it, and on `SIGHUP`. Never returns.
    pub async fn run(self, mut reload: ReloadSignal) {
        let mut fetched: Option<Mono> = None;
        loop {
            let got = tokio::time::timeout(FETCH_TIMEOUT, self.fetch()).await.unwrap_or(Err(FetchError::Timeout));
            let now = self.clock.mono();
            let wait = match got {
                Ok(keys) => {
                    tracing::debug!(keys = keys.len(), "the provider's keys were fetched");
                    self.metrics.auth.record_fetch(FetchOutcome::Ok, Some(keys.len()));
                    self.tokens.record_fetch(Some(keys), now);
                    fetched = Some(now);
                    REFRESH_INTERVAL
                }
                Err(error) => {
                    let (is_old, wait) = after_failure(fetched.map(|at| now - at), error.retry_after());
                    tracing::error!(%error, kept = !is_old, "the provider's keys cannot be fetched (auth.jwks)");
                    self.metrics.auth.record_fetch(FetchOutcome::Failed, is_old.then_some(0));
                    self.tokens.record_fetch(is_old.then(KeySet::default), now);
                    wait
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.tokens.wait_fetch_request(|| self.clock.mono()) => {}
                () = reload.recv() => tracing::info!("fetching the provider's keys again"),
            }
        }
    }

    async fn fetch(&self) -> Result<KeySet, FetchError> {
        let bytes = match &self.source {
            ProviderKeysSource::File(path) => {
                let mut bytes = Vec::new();
                let file = tokio::fs::File::open(path).await?;
                file.take(jwks::BYTES_MAX as u64 + 1).read_to_end(&mut bytes).await?;
                if bytes.len() > jwks::BYTES_MAX {
                    return Err(FetchError::Body);
                }
                bytes.into()
            }
            ProviderKeysSource::Url { url, client } => get(client, url, &self.clock).await?,
        };
        Ok(KeySet::parse(&bytes)?)
    }
}

// === impl FetchError ===

impl FetchError {
    /// Returns how long the provider asks to wait.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::Timeout | Self::Unreachable(_) | Self::Body | Self::File(_) | Self::Keys(_) => None,
        }
    }
}

/// Returns whether keys of this age must be dropped, and the wait before the next try: as the provider asks, but never
/// past the moment at which the keys become too old.
fn after_failure(age: Option<Duration>, retry_after: Option<Duration>) -> (bool, Duration) {
    let left = age.map_or(Duration::ZERO, |age| KEYS_MAX_AGE.saturating_sub(age + FETCH_TIMEOUT));
    let wait = retry_after.unwrap_or(FETCH_INTERVAL_MIN).clamp(FETCH_INTERVAL_MIN, REFRESH_INTERVAL);
    if left < FETCH_INTERVAL_MIN && !planted(Planted::ProviderKeysKept) {
        (true, wait)
    } else {
        (false, wait.min(left))
    }
}

async fn get(client: &ProviderClient, url: &Uri, clock: &Clock) -> Result<Bytes, FetchError> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = url.clone();
    let accept = http::HeaderValue::from_static("application/jwk-set+json, application/json");
    request.headers_mut().insert(header::ACCEPT, accept);
    let response = client.request(request).await?;
    if response.status() != StatusCode::OK {
        let retry_after = retry_after(response.headers(), clock.now().store);
        return Err(FetchError::Status { status: response.status(), retry_after });
    }
    let body = Limited::new(response.into_body(), jwks::BYTES_MAX).collect().await;
    Ok(body.map_err(|_| FetchError::Body)?.to_bytes())
}

/// Builds a client that connects only to the given URL: no proxy from the environment, no redirect. Connections are not
/// pooled, because the next fetch is minutes away.
fn client(is_https: bool) -> Result<ProviderClient, ProviderError> {
    let tls = system_trust::client_config(is_https).map_err(|error| ProviderError::Roots(error.to_string()))?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
    Ok(legacy::Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .http1_max_headers(limits::AGENT_HEADERS_MAX)
        .build(connector))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-02.
    #[test]
    fn jwks_refresh_interval_follows_the_provider() {
        let seconds = Duration::from_secs;
        for (age, asked, is_old, wait) in [
            (Some(300), None, false, 30),
            (Some(300), Some(120), false, 120),
            (Some(300), Some(1), false, 30),
            (Some(0), Some(86_400), false, 300),
            // Keys are kept for ten minutes, and a fetch takes at most five seconds.
            (Some(500), Some(300), false, 95),
            (Some(565), None, false, 30),
            (Some(566), None, true, 30),
            (Some(900), Some(300), true, 300),
            (None, None, true, 30),
            (None, Some(60), true, 60),
        ] {
            let decided = after_failure(age.map(seconds), asked.map(seconds));
            assert_eq!(decided, (is_old, seconds(wait)), "{age:?} {asked:?}");
        }
    }
}

//! Verifies tokens with the provider's cached keys. Another task fetches the keys; a token that names an unknown key
//! requests a fetch, at a limited rate.
use super::jwks::KeySet;
use super::jwt::{self, BadToken, TokenSubject};
use crate::config::IssuerConfig;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::{Millis, Mono};

/// Minimum time between fetches that tokens request, so that invented key ids cause no more (S-02).
pub const FETCH_INTERVAL_MIN: Duration = Duration::from_secs(30);
/// Longest wait of a client whose token names a key that is being fetched: a little longer than a fetch may take.
const FETCH_WAIT: Duration = Duration::from_secs(6);

/// A verifier of the tokens of one issuer. Clones share the cached keys.
#[derive(Clone, Debug)]
pub struct TokenVerifier {
    issuer: Arc<IssuerConfig>,
    provider_keys: watch::Sender<ProviderKeys>,
    fetch_requested: Arc<Notify>,
}

/// The cached keys of the provider.
#[derive(Debug, Default)]
struct ProviderKeys {
    keys: Arc<KeySet>,
    /// Time at which the last fetch ended.
    fetched_at: Option<Mono>,
}

// === impl TokenVerifier ===

impl TokenVerifier {
    /// Creates a verifier without keys.
    pub fn new(issuer: IssuerConfig) -> Self {
        Self { issuer: Arc::new(issuer), provider_keys: watch::Sender::default(), fetch_requested: Arc::default() }
    }

    /// Returns the configured issuer.
    pub fn issuer(&self) -> &IssuerConfig {
        &self.issuer
    }

    /// Verifies a token.
    pub fn verify(&self, token: &str, now: Millis) -> Result<TokenSubject, BadToken> {
        let keys = Arc::clone(&self.provider_keys.borrow().keys);
        jwt::verify(&self.issuer, token, &keys, now)
    }

    /// Waits until the key that a token names is cached or cannot be fetched now.
    pub async fn prepare(&self, token: &str, now: Mono) {
        let Some(kid) = jwt::key_id(token) else { return };
        let mut known = self.provider_keys.subscribe();
        let is_settled = {
            let known = known.borrow_and_update();
            known.keys.get(&kid).is_some() || !known.may_fetch(now)
        };
        if !is_settled {
            self.fetch_requested.notify_one();
            let _ = timeout(FETCH_WAIT, known.changed()).await;
        }
    }

    /// Waits until a fetch is requested at a time when one is allowed.
    pub async fn wait_fetch_request(&self, now: impl Fn() -> Mono) {
        loop {
            self.fetch_requested.notified().await;
            // A request that was made during a fetch was answered by that fetch.
            if self.provider_keys.borrow().may_fetch(now()) {
                return;
            }
        }
    }

    /// Records the end of a fetch; `None` keeps the cached keys.
    pub fn record_fetch(&self, keys: Option<KeySet>, now: Mono) {
        self.provider_keys.send_modify(|known| {
            known.fetched_at = Some(now);
            if let Some(keys) = keys {
                known.keys = Arc::new(keys);
            }
        });
    }
}

// === impl ProviderKeys ===

impl ProviderKeys {
    fn may_fetch(&self, now: Mono) -> bool {
        self.fetched_at.is_none_or(|tried| now - tried >= FETCH_INTERVAL_MIN || planted(Planted::ProviderAskedByAnyone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{JwksSource, SignatureAlgorithm};
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use futures_util::FutureExt;

    /// Covers: S-02.
    #[tokio::test]
    async fn unknown_key_is_fetched_at_most_once_in_30_seconds() {
        let tokens = TokenVerifier::new(IssuerConfig {
            name: "i".to_owned(),
            audience: "a".to_owned(),
            algorithms: SignatureAlgorithm::ALL.to_vec(),
            jwks: JwksSource::File("nowhere".into()),
        });
        let shown = format!("{}.e.e", URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","kid":"k"}"#));
        let at = |seconds| Mono(Duration::from_secs(seconds));
        let is_asked_at = |now| tokens.wait_fetch_request(move || at(now)).now_or_never().is_some();
        assert!(!is_asked_at(0));
        for (seconds, over) in [(0, 1), (31, 40)] {
            let mut waiting = Box::pin(tokens.prepare(&shown, at(seconds)));
            assert!((&mut waiting).now_or_never().is_none(), "it waits");
            // A client that arrives meanwhile waits for the same fetch.
            let mut second = Box::pin(tokens.prepare(&shown, at(seconds)));
            assert!((&mut second).now_or_never().is_none(), "it waits");
            assert!(is_asked_at(seconds));
            tokens.record_fetch(None, at(over));
            assert!(waiting.now_or_never().is_some() && second.now_or_never().is_some());
            assert!(tokens.prepare(&shown, at(over + 29)).now_or_never().is_some(), "it is told at once");
            assert!(!is_asked_at(over + 29));
        }
        // A malformed token causes no fetch.
        assert!(tokens.prepare("nothing", at(100)).now_or_never().is_some());
        assert!(!is_asked_at(100));
    }
}

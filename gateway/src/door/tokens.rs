//! Verifies tokens with the provider's cached keys. Another task fetches the keys; a token that names an unknown key
//! requests a fetch, at a limited rate.
use super::jwks::KeySet;
use super::token::{self, BadToken, Subject};
use crate::config::Issuer;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::{Millis, Mono};

/// Minimum time between fetches that tokens request, so that invented key ids cause no more (S-02).
pub const ASK_EVERY: Duration = Duration::from_secs(30);
/// Longest wait of a client whose token names a key that is being fetched: a little longer than a fetch may take.
const PATIENCE: Duration = Duration::from_secs(6);

/// A verifier of the tokens of one issuer. Clones share the cached keys.
#[derive(Clone, Debug)]
pub struct Tokens {
    issuer: Arc<Issuer>,
    known: watch::Sender<Known>,
    asked: Arc<Notify>,
}

/// The cached keys of the provider.
#[derive(Debug, Default)]
struct Known {
    keys: Arc<KeySet>,
    /// Time at which the last fetch ended.
    tried: Option<Mono>,
}

// === impl Tokens ===

impl Tokens {
    /// Creates a verifier without keys.
    pub fn of(issuer: Issuer) -> Self {
        Self { issuer: Arc::new(issuer), known: watch::Sender::default(), asked: Arc::default() }
    }

    /// Returns the configured issuer.
    pub fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// Verifies a token.
    pub fn subject(&self, token: &str, now: Millis) -> Result<Subject, BadToken> {
        let keys = Arc::clone(&self.known.borrow().keys);
        token::verify(&self.issuer, token, &keys, now)
    }

    /// Waits until the key that a token names is cached or cannot be fetched now.
    pub async fn meet(&self, token: &str, now: Mono) {
        let Some(kid) = token::kid(token) else { return };
        let mut known = self.known.subscribe();
        let is_settled = {
            let known = known.borrow_and_update();
            known.keys.get(&kid).is_some() || !known.may_ask(now)
        };
        if !is_settled {
            self.asked.notify_one();
            let _ = timeout(PATIENCE, known.changed()).await;
        }
    }

    /// Waits until a fetch is requested at a time when one is allowed.
    pub async fn asked(&self, now: impl Fn() -> Mono) {
        loop {
            self.asked.notified().await;
            // A request that was made during a fetch was answered by that fetch.
            if self.known.borrow().may_ask(now()) {
                return;
            }
        }
    }

    /// Records the end of a fetch; `None` keeps the cached keys.
    pub fn tried(&self, keys: Option<KeySet>, now: Mono) {
        self.known.send_modify(|known| {
            known.tried = Some(now);
            if let Some(keys) = keys {
                known.keys = Arc::new(keys);
            }
        });
    }
}

// === impl Known ===

impl Known {
    fn may_ask(&self, now: Mono) -> bool {
        self.tried.is_none_or(|tried| now - tried >= ASK_EVERY || planted(Planted::ProviderAskedByAnyone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Algorithm, Jwks};
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use futures_util::FutureExt;

    /// Covers: S-02.
    #[tokio::test]
    async fn unknown_key_is_fetched_at_most_once_in_30_seconds() {
        let tokens = Tokens::of(Issuer {
            name: "i".to_owned(),
            audience: "a".to_owned(),
            algorithms: Algorithm::ALL.to_vec(),
            jwks: Jwks::File("nowhere".into()),
        });
        let shown = format!("{}.e.e", URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","kid":"k"}"#));
        let at = |seconds| Mono(Duration::from_secs(seconds));
        let is_asked_at = |now| tokens.asked(move || at(now)).now_or_never().is_some();
        assert!(!is_asked_at(0));
        for (seconds, over) in [(0, 1), (31, 40)] {
            let mut waiting = Box::pin(tokens.meet(&shown, at(seconds)));
            assert!((&mut waiting).now_or_never().is_none(), "it waits");
            // A client that arrives meanwhile waits for the same fetch.
            let mut second = Box::pin(tokens.meet(&shown, at(seconds)));
            assert!((&mut second).now_or_never().is_none(), "it waits");
            assert!(is_asked_at(seconds));
            tokens.tried(None, at(over));
            assert!(waiting.now_or_never().is_some() && second.now_or_never().is_some());
            assert!(tokens.meet(&shown, at(over + 29)).now_or_never().is_some(), "it is told at once");
            assert!(!is_asked_at(over + 29));
        }
        // A malformed token causes no fetch.
        assert!(tokens.meet("nothing", at(100)).now_or_never().is_some());
        assert!(!is_asked_at(100));
    }
}

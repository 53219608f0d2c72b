//! Whose tokens are good here, and the keys they are held against. Somebody else fetches those; whoever shows a
//! token that names a key nobody knows yet can have it fetched, but not often.
use super::jwks::KeySet;
use super::token::{self, BadToken, Subject};
use crate::config::Issuer;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use turnway_core::planted::{Planted, planted};
use turnway_core::time::{Millis, Mono};

/// From one fetch to the next that a token may ask for: whoever makes up names of keys causes no more (S-02).
pub const ASK_EVERY: Duration = Duration::from_secs(30);
/// How long somebody waits whose token names a key that is being fetched: a little longer than a fetch may take.
const PATIENCE: Duration = Duration::from_secs(6);

/// Decides about tokens. Clones share their keys.
#[derive(Clone, Debug)]
pub struct Tokens {
    issuer: Arc<Issuer>,
    known: watch::Sender<Known>,
    asked: Arc<Notify>,
}

/// What is known of a provider.
#[derive(Debug, Default)]
struct Known {
    keys: Arc<KeySet>,
    /// When the last try to fetch them was over.
    tried: Option<Mono>,
}

// === impl Tokens ===

impl Tokens {
    /// Those of this issuer. No key is known yet.
    pub fn of(issuer: Issuer) -> Self {
        Self { issuer: Arc::new(issuer), known: watch::Sender::default(), asked: Arc::default() }
    }

    /// Whose tokens they are.
    pub fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// Decides about one.
    pub fn subject(&self, token: &str, now: Millis) -> Result<Subject, BadToken> {
        let keys = Arc::clone(&self.known.borrow().keys);
        token::verify(&self.issuer, token, &keys, now)
    }

    /// Waits until the key that a token names is known, or cannot be had now.
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

    /// Waits until a key is asked for that may be fetched at that time.
    pub async fn asked(&self, now: impl Fn() -> Mono) {
        loop {
            self.asked.notified().await;
            // A bell that rang during a fetch was answered by it.
            if self.known.borrow().may_ask(now()) {
                return;
            }
        }
    }

    /// A try to fetch them is over: these are the keys from now on, or those from before.
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
    async fn an_unknown_key_is_asked_for_and_not_again_within_thirty_seconds() {
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
            // Whoever comes meanwhile waits for the same.
            let mut second = Box::pin(tokens.meet(&shown, at(seconds)));
            assert!((&mut second).now_or_never().is_none(), "it waits");
            assert!(is_asked_at(seconds));
            tokens.tried(None, at(over));
            assert!(waiting.now_or_never().is_some() && second.now_or_never().is_some());
            assert!(tokens.meet(&shown, at(over + 29)).now_or_never().is_some(), "it is told at once");
            assert!(!is_asked_at(over + 29));
        }
        // What is no token has nothing fetched.
        assert!(tokens.meet("nothing", at(100)).now_or_never().is_some());
        assert!(!is_asked_at(100));
    }
}

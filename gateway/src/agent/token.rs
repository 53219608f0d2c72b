//! Run tokens: the credential with which an agent proves that it acts for its own run, valid while the run is active.
//! Minted by `agent`, verified by `auth`.
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dashmap::{DashMap, Entry};
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use turnway_core::id::{RunId, SessionKey};
use turnway_core::planted::{Planted, planted};

/// Length of the token's lookup part, which is not secret; [`SECRET_BYTES`] is the secret part.
const LOOKUP_BYTES: usize = 8;
/// 256 random bits (protocol.md §2).
const SECRET_BYTES: usize = 32;
const TOKEN_BYTES: usize = LOOKUP_BYTES + SECRET_BYTES;

type TokenLookup = [u8; LOOKUP_BYTES];

/// The valid tokens. The lookup uses only the part that is not secret, so that its time reveals nothing about the
/// secret part, which is compared in constant time.
#[derive(Clone, Default)]
pub struct RunTokens(Arc<DashMap<TokenLookup, RunTokenEntry>>);

struct RunTokenEntry {
    secret: [u8; SECRET_BYTES],
    key: SessionKey,
    run_id: RunId,
}

/// One token; revoked when dropped. Must not be printable (S-38).
pub struct RunToken {
    tokens: RunTokens,
    lookup: TokenLookup,
    text: String,
}

/// The operating system gave no randomness, so no token can be minted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system provides no randomness")]
pub struct NoRandomness;

// === impl RunTokens ===

impl RunTokens {
    /// Mints a token that is valid for this run until the token is dropped.
    pub fn mint(&self, key: &SessionKey, run_id: &RunId) -> Result<RunToken, NoRandomness> {
        let mut bytes = [0u8; TOKEN_BYTES];
        loop {
            getrandom::fill(&mut bytes).map_err(|_| NoRandomness)?;
            let Some((name, secret)) = split_token(&bytes) else { return Err(NoRandomness) };
            // Replacing a token of the same lookup part would give another run's token to this run.
            if let Entry::Vacant(vacant) = self.0.entry(name) {
                vacant.insert(RunTokenEntry { secret, key: key.clone(), run_id: run_id.clone() });
                let text = URL_SAFE_NO_PAD.encode(bytes);
                return Ok(RunToken { tokens: self.clone(), lookup: name, text });
            }
        }
    }

    /// Returns the run that a token belongs to, or `None` if the token is not valid.
    pub fn verify(&self, token: &str) -> Option<(SessionKey, RunId)> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (name, secret) = split_token(&bytes)?;
        let live = self.0.get(&name)?;
        constant_time_eq(&live.secret, &secret).then(|| (live.key.clone(), live.run_id.clone()))
    }

    /// Returns the number of valid tokens.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no valid token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for RunTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} tokens>", self.len())
    }
}

// === impl RunToken ===

impl RunToken {
    /// Returns the token as text; the caller must not log it.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for RunToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<run token>")
    }
}

impl Drop for RunToken {
    fn drop(&mut self) {
        if !planted(Planted::RunTokenKept) {
            self.tokens.0.remove(&self.lookup);
        }
    }
}

fn split_token(bytes: &[u8]) -> Option<(TokenLookup, [u8; SECRET_BYTES])> {
    let (name, secret) = bytes.split_first_chunk::<LOOKUP_BYTES>()?;
    Some((*name, secret.try_into().ok()?))
}

/// Compares every byte, in constant time; `black_box` keeps the compiler from returning early.
fn constant_time_eq(left: &[u8; SECRET_BYTES], right: &[u8; SECRET_BYTES]) -> bool {
    let difference = left.iter().zip(right).fold(0u8, |all, (l, r)| black_box(all | (l ^ r)));
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::{MessageId, SessionId, TenantId, UserId};

    fn run(message: &str) -> (SessionKey, RunId) {
        let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
        let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse(message).expect("a name"));
        (key, run_id)
    }

    /// Covers: S-38.
    #[test]
    fn run_token_is_valid_until_dropped() {
        let tokens = RunTokens::default();
        let ((key, one), (_, two)) = (run("m1"), run("m2"));
        let first = tokens.mint(&key, &one).expect("a token");
        let second = tokens.mint(&key, &two).expect("a token");
        assert_ne!(first.reveal(), second.reveal());
        assert_eq!(tokens.verify(first.reveal()), Some((key.clone(), one)));
        assert_eq!(tokens.verify(second.reveal()), Some((key, two)));
        let text = first.reveal().to_owned();
        assert!(!format!("{first:?}{first:#?}{tokens:?}").contains(&text));
        drop(first);
        assert_eq!(tokens.verify(&text), None);
        assert_eq!(tokens.len(), 1);
    }

    #[test]
    fn altered_run_token_is_rejected() {
        let tokens = RunTokens::default();
        let (key, run_id) = run("m1");
        let token = tokens.mint(&key, &run_id).expect("a token");
        let bytes = URL_SAFE_NO_PAD.decode(token.reveal()).expect("base64url");
        assert_eq!(bytes.len(), TOKEN_BYTES);
        for vacant in 0..bytes.len() {
            let mut other = bytes.clone();
            other[vacant] ^= 1;
            assert_eq!(tokens.verify(&URL_SAFE_NO_PAD.encode(other)), None, "byte {vacant}");
        }
        for other in ["", "x", "===", &token.reveal()[1..], &format!("{}A", token.reveal())] {
            assert_eq!(tokens.verify(other), None);
        }
    }
}

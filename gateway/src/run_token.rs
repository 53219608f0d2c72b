//! Run tokens: the credential with which an agent proves to any node that it acts for a run. A token is signed and names the
//! run; whether the run goes on is checked where the token is used. Minted by `agent`, verified by `auth`.
use crate::shared_secret::{SecretUnavailable, SharedSecret};
use crate::store::registers::Registers;
use aws_lc_rs::hmac;
use turnway_core::id::{Principal, RunId, TenantId, UserId};
use turnway_core::private::Private;
use turnway_core::protocol::agent::Invoke;

/// Beginning of every token, by which people and scanners of leaked secrets recognise it.
const PREFIX: &str = "twrun_";
/// Register of the secret in the store, used if there is no pepper.
const REGISTER: &str = "run-tokens";
/// Label of the key derived from the pepper; other uses of the pepper have other labels.
pub const PURPOSE: &str = "run tokens";
/// Prefix of the signed text, in case the key ever signs something else.
const SIGNED: &str = "run-token:1:";
/// Above this length a text is no token: a tenant and a run have at most some 170 bytes.
const TOKEN_BYTES_MAX: usize = 1024;

/// The run that a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRun {
    pub tenant: TenantId,
    pub run_id: RunId,
}

/// Mints and verifies the tokens of a node's store: every node of the store accepts them.
#[derive(Clone, Debug)]
pub struct RunTokens(SharedSecret);

// === impl TokenRun ===

impl TokenRun {
    /// Returns the run that an order is for.
    pub fn of(invoke: &Invoke) -> Self {
        Self { tenant: invoke.key.tenant.clone(), run_id: invoke.run_id.clone() }
    }

    /// Returns the principal as whom an agent reads. It may see every session of the tenant, because the run may be another
    /// user's than the session; the caller limits it to the session of the run.
    pub fn principal(&self) -> Principal {
        let user = UserId::parse(&format!("run:{}", self.run_id)).unwrap_or_else(|_| UserId::local());
        Principal { tenant: self.tenant.clone(), user, operator: true, writes: false }
    }
}

// === impl RunTokens ===

impl RunTokens {
    /// Creates the tokens with a key that is derived from the pepper, for [`PURPOSE`], or else with the store's secret.
    pub fn new(key: Option<hmac::Key>, registers: Registers) -> Self {
        Self(SharedSecret::new(key, registers, REGISTER))
    }

    /// Returns the secret, with which other tokens are signed for a purpose of their own.
    pub fn secret(&self) -> &SharedSecret {
        &self.0
    }

    /// Creates the tokens with this key, without a store.
    pub fn of_key(key: hmac::Key) -> Self {
        Self(SharedSecret::known(key, REGISTER))
    }

    /// Returns whether a text claims to be a run token.
    pub fn is_token(shown: &str) -> bool {
        shown.starts_with(PREFIX)
    }

    /// Mints the token of a run.
    pub async fn mint(&self, run: &TokenRun) -> Result<Private<String>, SecretUnavailable> {
        let signed = SharedSecret::sign(self.0.key().await?, SIGNED, &(&run.tenant, &run.run_id));
        Ok(Private(format!("{PREFIX}{signed}")))
    }

    /// Reads the secret, which verification needs.
    pub async fn prepare(&self) -> Result<(), SecretUnavailable> {
        self.0.key().await.map(drop)
    }

    /// Returns whether the secret was read.
    pub fn is_ready(&self) -> bool {
        self.0.known_key().is_some()
    }

    /// Returns the run that a token is for, or `None` if the token was not minted here. The secret must have been read.
    pub fn verify(&self, shown: &str) -> Option<TokenRun> {
        let shown = shown.strip_prefix(PREFIX).filter(|shown| shown.len() <= TOKEN_BYTES_MAX)?;
        let (tenant, run_id) = self.0.verify(SIGNED, shown)?;
        Some(TokenRun { tenant, run_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::registers::in_memory;
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use turnway_core::id::{MessageId, SessionId, SessionKey};

    fn run(message: &str) -> TokenRun {
        let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s1").expect("a name") };
        let run_id = RunId::derive(&key, &UserId::local(), &MessageId::parse(message).expect("a name"));
        TokenRun { tenant: key.tenant, run_id }
    }

    /// Covers: PR-27.
    #[tokio::test]
    async fn run_token_is_valid_at_every_node_of_its_store() {
        let store = in_memory();
        let owner = RunTokens::new(None, store.clone());
        let [first, second] = ["m1", "m2"].map(run);
        let token = owner.mint(&first).await.expect("a token");
        let other = RunTokens::new(None, store.clone());
        assert_eq!(other.verify(token.reveal()), None, "before the secret is read");
        other.prepare().await.expect("the secret");
        assert_eq!(other.verify(token.reveal()), Some(first.clone()));
        assert_eq!(other.verify(other.mint(&second).await.expect("a token").reveal()), Some(second));
        let stranger = RunTokens::new(None, in_memory());
        stranger.prepare().await.expect("the secret");
        assert_eq!(stranger.verify(token.reveal()), None, "of another store");
        let peppered = RunTokens::of_key(hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]));
        assert_eq!(peppered.verify(token.reveal()), None, "with another secret");
        assert!(!format!("{token:?} {owner:?}").contains("twrun_"), "debug output shows no token");
        assert!(!first.principal().writes, "a run token reads");
    }

    /// Covers: PR-27, S-06.
    #[tokio::test]
    async fn altered_run_token_is_rejected() {
        let tokens = RunTokens::new(None, in_memory());
        let token = tokens.mint(&run("m1")).await.expect("a token").reveal().to_owned();
        for at in 0..token.len() {
            let mut other = token.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'Q' } else { b'A' };
            let other = String::from_utf8(other).expect("ASCII");
            assert_eq!(tokens.verify(&other), None, "byte {at}");
        }
        let names = URL_SAFE_NO_PAD.encode(r#"["default","s1.aaaaaaaaaaaaaaaaaaaaaaaaaa"]"#);
        let unsigned = format!("twrun_{names}.");
        for other in ["", "twrun_", "twrun_.", &token[..token.len() - 2], &unsigned, &token.repeat(9)] {
            assert_eq!(tokens.verify(other), None, "{other}");
        }
    }
}

//! A secret that all nodes of a store share: given by the caller, who derives it from the pepper, or else kept in the
//! store. Used by `keys::call_names`, `run_token` and `file_token`.
use crate::store::registers::Registers;
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;
use tokio::sync::OnceCell;
use turnway_core::planted::{Planted, planted};
use turnway_core::store::StoreError;

const SECRET_BYTES: usize = 32;

/// The secret, or the store to read it from. Clones share it.
#[derive(Clone)]
pub struct SharedSecret(Arc<SharedSecretInner>);

struct SharedSecretInner {
    /// Absent only if the secret is known.
    registers: Option<Registers>,
    /// Name of the secret in the store.
    register: &'static str,
    key: OnceCell<hmac::Key>,
}

/// A reason why a secret is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretUnavailable {
    /// The store did not answer.
    #[error("the store is unavailable")]
    Store(StoreError),
    /// The system gave no randomness.
    #[error("the system provides no randomness")]
    Randomness,
    /// The stored value has another length.
    #[error("the secret in the store cannot be read: it was written by a newer release")]
    Unreadable,
}

// === impl SharedSecret ===

impl SharedSecret {
    /// Creates the secret with a given key, or else that of the store: it is read when it is first needed, and the first
    /// node that reads it creates it.
    pub fn new(key: Option<hmac::Key>, registers: Registers, register: &'static str) -> Self {
        let key = OnceCell::new_with(key);
        Self(Arc::new(SharedSecretInner { registers: Some(registers), register, key }))
    }

    /// Creates a secret that is known.
    pub fn known(key: hmac::Key, register: &'static str) -> Self {
        Self(Arc::new(SharedSecretInner { registers: None, register, key: OnceCell::new_with(Some(key)) }))
    }

    /// Returns the secret.
    pub async fn key(&self) -> Result<&hmac::Key, SecretUnavailable> {
        self.0.key.get_or_try_init(|| self.load_or_create()).await
    }

    /// Returns the secret if it was needed before.
    pub fn known_key(&self) -> Option<&hmac::Key> {
        self.0.key.get()
    }

    /// Signs claims for a purpose, which no other use of the secret has: `BASE64URL(claims).BASE64URL(tag)`.
    pub fn sign(key: &hmac::Key, purpose: &str, claims: &impl Serialize) -> String {
        let claims = serde_json::to_vec(claims).unwrap_or_else(|_| unreachable!("claims are ids and numbers"));
        let claims = URL_SAFE_NO_PAD.encode(claims);
        let tag = hmac::sign(key, format!("{purpose}{claims}").as_bytes());
        format!("{claims}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// Returns the claims that were signed for a purpose, or `None` if they were not signed with this secret. The secret
    /// must have been read.
    pub fn verify<T: DeserializeOwned>(&self, purpose: &str, shown: &str) -> Option<T> {
        let (claims, tag) = shown.split_once('.')?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        // The comparison takes the same time whatever differs.
        hmac::verify(self.known_key()?, format!("{purpose}{claims}").as_bytes(), &tag)
            .or_else(|error| if planted(Planted::RunTokenForged) { Ok(()) } else { Err(error) })
            .ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }

    async fn load_or_create(&self) -> Result<hmac::Key, SecretUnavailable> {
        let register = self.0.register;
        let registers = self.0.registers.as_ref().ok_or(SecretUnavailable::Unreadable)?;
        let mut value = registers.get(register).await.map_err(SecretUnavailable::Store)?;
        if value.bytes.is_none() {
            let mut secret = [0; SECRET_BYTES];
            let filled = getrandom::fill(&mut secret)
                .inspect_err(|error| tracing::error!(%error, "the system provides no randomness"));
            filled.map_err(|_| SecretUnavailable::Randomness)?;
            // Another node may have stored its secret first: `put` then returns that one.
            let put = registers.put(register, value.version, secret.to_vec());
            value = put.await.map_err(SecretUnavailable::Store)?;
        }
        let secret = value.bytes.filter(|bytes| bytes.len() == SECRET_BYTES).ok_or(SecretUnavailable::Unreadable)?;
        Ok(hmac::Key::new(hmac::HMAC_SHA256, &secret))
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<secret {}>", self.0.register)
    }
}

//! Proofs that an address is who came from it (RFC 9000 §8.1): in `Retry`, and for the next connection.
//!
//! Nodes that show the same certificate take each other's (S-23): the key is made of the certificate's key and
//! the day, so it needs no place of its own and changes by itself. Those of today and of yesterday are good; so
//! are those of the certificate before, as long as the process runs.
use crate::clock::Clock;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use quinn::crypto::{AeadKey, CryptoError, HandshakeTokenKey};
use std::time::Duration;

/// How long one key seals.
pub(super) const PERIOD: Duration = Duration::from_secs(86_400);

/// Seals and opens them.
pub struct TokenKeys {
    /// What keys are made of; the first seals.
    secrets: Vec<hkdf::Prk>,
    clock: Clock,
}

/// The keys that are good now, for one token.
struct Good(Vec<LessSafeKey>);

// === impl TokenKeys ===

impl TokenKeys {
    /// Keys of these secrets, the one in use first.
    pub fn new(secrets: &[[u8; 32]], clock: Clock) -> Self {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"turnway address tokens");
        Self { secrets: secrets.iter().map(|secret| salt.extract(secret)).collect(), clock }
    }

    fn at(&self, period: u64, chance: &[u8]) -> Good {
        let periods = [period, period.saturating_sub(1)];
        let keys = self.secrets.iter().flat_map(|secret| periods.map(|period| key(secret, period, chance)));
        Good(keys.flatten().collect())
    }
}

/// The key of a day. Deriving it cannot fail: it asks for 32 bytes.
fn key(secret: &hkdf::Prk, period: u64, chance: &[u8]) -> Option<LessSafeKey> {
    let (period, mut key) = (period.to_be_bytes(), [0; 32]);
    secret.expand(&[&period, chance], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut key)).ok()?;
    UnboundKey::new(&AES_256_GCM, &key).ok().map(LessSafeKey::new)
}

impl HandshakeTokenKey for TokenKeys {
    fn aead_from_hkdf(&self, chance: &[u8]) -> Box<dyn AeadKey> {
        let period = self.clock.now().store.0 / 1000 / PERIOD.as_secs();
        Box::new(self.at(period, chance))
    }
}

// === impl Good ===

/// Each key seals one token: its chance is the token's own.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

impl AeadKey for Good {
    fn seal(&self, data: &mut Vec<u8>, also: &[u8]) -> Result<(), CryptoError> {
        let key = self.0.first().ok_or(CryptoError)?;
        key.seal_in_place_append_tag(nonce(), Aad::from(also), data).map_err(|_| CryptoError)
    }

    fn open<'a>(&self, data: &'a mut [u8], also: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        for key in &self.0 {
            // What a key that does not fit leaves behind is nothing.
            let mut tried = data.to_vec();
            if let Ok(opened) = key.open_in_place(nonce(), Aad::from(also), &mut tried) {
                let opened_bytes = opened.len();
                data[..opened_bytes].copy_from_slice(opened);
                return Ok(&mut data[..opened_bytes]);
            }
        }
        Err(CryptoError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(keys: &TokenKeys, period: u64) -> Vec<u8> {
        let mut data = b"an address".to_vec();
        keys.at(period, b"chance").seal(&mut data, b"also").expect("sealed");
        data
    }

    fn opens(keys: &TokenKeys, period: u64, token: &[u8]) -> bool {
        let mut token = token.to_vec();
        let opened = keys.at(period, b"chance").open(&mut token, b"also");
        opened.is_ok_and(|data| data == b"an address")
    }

    /// Covers: S-23.
    #[test]
    fn nodes_with_one_certificate_take_each_others_for_a_day_and_the_next() {
        let keys = |secrets: &[[u8; 32]]| TokenKeys::new(secrets, Clock::start());
        let (one, other, stranger) = (keys(&[[1; 32]]), keys(&[[1; 32]]), keys(&[[2; 32]]));
        let token = sealed(&one, 7);
        assert!(opens(&other, 7, &token) && opens(&other, 8, &token));
        assert!(!opens(&other, 9, &token) && !opens(&other, 6, &token) && !opens(&stranger, 7, &token));
        // A new certificate, and the one before.
        assert!(opens(&keys(&[[2; 32], [1; 32]]), 7, &token));
        let mut bent = token.clone();
        bent[0] ^= 1;
        assert!(!opens(&one, 7, &bent) && !opens(&one, 7, b""));
        assert!(one.at(7, b"other").open(&mut token.clone(), b"also").is_err());
    }
}

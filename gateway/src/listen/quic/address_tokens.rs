//! Seals and opens address tokens (RFC 9000 §8.1), for `Retry` and for a client's next connection. Nodes with the same
//! certificate accept each other's tokens (S-23): the key derives from the certificate's key and the day. Keys of today
//! and yesterday are valid, also those of the previous certificate while the process runs.
use crate::clock::Clock;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use quinn::crypto::{AeadKey, CryptoError, HandshakeTokenKey};
use quinn::{BloomTokenLog, TimeSource, TokenLog, TokenReuseError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Period for which one key seals.
pub(super) const PERIOD: Duration = Duration::from_secs(86_400);

/// The keys of address tokens.
pub struct AddressTokenKeys {
    /// Secrets of the certificates; the first one seals.
    secrets: Vec<hkdf::Prk>,
    clock: Clock,
}

/// The keys that are valid now, derived for one token.
struct AddressTokenAead(Vec<LessSafeKey>);

/// The node's clock as quinn's time source.
pub(super) struct NodeTimeSource(pub(super) Clock);

/// A log of used address tokens, of at most 20 MiB, for all connections. A log keeps the latest time it has seen and
/// rejects tokens that are much older; so a new log begins when the clock steps.
pub(super) struct UsedAddressTokens {
    clock: Clock,
    /// The log, with the number of clock steps before it began.
    log: Mutex<(u32, BloomTokenLog)>,
}

// === impl NodeTimeSource ===

impl NodeTimeSource {
    fn time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.now().store.0)
    }
}

impl TimeSource for NodeTimeSource {
    fn now(&self) -> SystemTime {
        self.time()
    }
}

// === impl UsedAddressTokens ===

impl UsedAddressTokens {
    pub(super) fn new(clock: Clock) -> Self {
        let log = Mutex::new((clock.steps(), new_log(&clock)));
        Self { clock, log }
    }
}

impl TokenLog for UsedAddressTokens {
    fn check_and_insert(&self, nonce: u128, issued: SystemTime, lifetime: Duration) -> Result<(), TokenReuseError> {
        let mut known = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = self.clock.steps();
        if known.0 != steps {
            *known = (steps, new_log(&self.clock));
        }
        known.1.check_and_insert(nonce, issued, lifetime)
    }
}

/// Creates a log. A log takes its first token for the oldest and rejects tokens issued before it; so it is given an
/// artificial token that expires just now.
fn new_log(clock: &Clock) -> BloomTokenLog {
    let log = BloomTokenLog::default();
    _ = log.check_and_insert(0, NodeTimeSource(clock.clone()).time() - PERIOD, PERIOD);
    log
}

// === impl AddressTokenKeys ===

impl AddressTokenKeys {
    /// Derives the keys from these secrets, the one in use first.
    pub fn new(secrets: &[[u8; 32]], clock: Clock) -> Self {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"turnway address tokens");
        Self { secrets: secrets.iter().map(|secret| salt.extract(secret)).collect(), clock }
    }

    fn keys_of_period(&self, period: u64, chance: &[u8]) -> AddressTokenAead {
        let periods = [period, period.saturating_sub(1)];
        let keys = self.secrets.iter().flat_map(|secret| periods.map(|period| derive_key(secret, period, chance)));
        AddressTokenAead(keys.flatten().collect())
    }
}

/// Derives the key of a day. This cannot fail, since it expands to 32 bytes.
fn derive_key(secret: &hkdf::Prk, period: u64, chance: &[u8]) -> Option<LessSafeKey> {
    let period = period.to_be_bytes();
    let mut key = [0; 32];
    secret.expand(&[&period, chance], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut key)).ok()?;
    UnboundKey::new(&AES_256_GCM, &key).ok().map(LessSafeKey::new)
}

impl HandshakeTokenKey for AddressTokenKeys {
    fn aead_from_hkdf(&self, chance: &[u8]) -> Box<dyn AeadKey> {
        let period = self.clock.now().store.0 / 1000 / PERIOD.as_secs();
        Box::new(self.keys_of_period(period, chance))
    }
}

// === impl AddressTokenAead ===

/// Returns a fixed nonce: each key seals one token, because it is derived from the token's own random bytes.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

impl AeadKey for AddressTokenAead {
    fn seal(&self, data: &mut Vec<u8>, also: &[u8]) -> Result<(), CryptoError> {
        let key = self.0.first().ok_or(CryptoError)?;
        key.seal_in_place_append_tag(nonce(), Aad::from(also), data).map_err(|_| CryptoError)
    }

    fn open<'a>(&self, data: &'a mut [u8], also: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        for key in &self.0 {
            // Each key is tried on a copy, because a failed attempt overwrites its input.
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

    fn sealed(keys: &AddressTokenKeys, period: u64) -> Vec<u8> {
        let mut data = b"an address".to_vec();
        keys.keys_of_period(period, b"chance").seal(&mut data, b"also").expect("sealed");
        data
    }

    fn opens(keys: &AddressTokenKeys, period: u64, token: &[u8]) -> bool {
        let mut token = token.to_vec();
        let opened = keys.keys_of_period(period, b"chance").open(&mut token, b"also");
        opened.is_ok_and(|data| data == b"an address")
    }

    /// Covers: S-23.
    #[test]
    fn tokens_are_shared_by_certificate_for_two_days() {
        let keys = |secrets: &[[u8; 32]]| AddressTokenKeys::new(secrets, Clock::start());
        let one = keys(&[[1; 32]]);
        let other = keys(&[[1; 32]]);
        let stranger = keys(&[[2; 32]]);
        let token = sealed(&one, 7);
        assert!(opens(&other, 7, &token) && opens(&other, 8, &token));
        assert!(!opens(&other, 9, &token) && !opens(&other, 6, &token) && !opens(&stranger, 7, &token));
        // A new certificate and the previous one.
        assert!(opens(&keys(&[[2; 32], [1; 32]]), 7, &token));
        let mut bent = token.clone();
        bent[0] ^= 1;
        assert!(!opens(&one, 7, &bent) && !opens(&one, 7, b""));
        assert!(one.keys_of_period(7, b"other").open(&mut token.clone(), b"also").is_err());
    }

    /// Covers: S-23.
    #[test]
    fn used_token_log_resets_on_a_clock_step() {
        let clock = Clock::following_store();
        let own = clock.now();
        clock.observe_store_time(own.store, own.mono, own.mono);
        let used = UsedAddressTokens::new(clock.clone());
        let time = NodeTimeSource(clock.clone());
        let is_fresh = |nonce, issued| used.check_and_insert(nonce, issued, PERIOD).is_ok();
        clock.step(PERIOD * 100, false);
        assert!(is_fresh(1, time.now()), "a hundred days ahead");
        clock.step(PERIOD * 100, true);
        assert!(is_fresh(2, time.now()), "and back");
        assert!(used.check_and_insert(2, time.now(), PERIOD).is_err(), "used");
    }
}

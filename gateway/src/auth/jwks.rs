//! Parses the public keys of an identity provider (JWKS, RFC 7517) and keeps those that can be used here.
use crate::config::SignatureAlgorithm;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Maximum size of a fetched key set (S-02).
pub const BYTES_MAX: usize = 64 * 1024;
/// Maximum keys of a set; providers publish two or three.
const KEYS_MAX: usize = 64;
/// 2,048 bits. A signature by a shorter key is refused in any case, so the key is not kept.
const MODULUS_BYTES_MIN: usize = 256;

/// The public keys of a provider, by `kid`.
#[derive(Clone, Debug, Default)]
pub struct KeySet(BTreeMap<String, PublicKey>);

/// A public key of the provider.
#[derive(Clone)]
pub enum PublicKey {
    Rsa {
        /// Modulus, as big-endian bytes.
        n: Vec<u8>,
        /// Exponent, as big-endian bytes.
        e: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
    /// The 32 bytes of the key.
    Ed25519(Vec<u8>),
}

/// The fetched bytes are not a usable key set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a JWKS document with a usable key: expected RSA of 2,048 bits or more, P-256 or Ed25519, each with a kid")]
pub struct BadKeySet;

#[derive(Deserialize)]
struct JwksDocument {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: String,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

// === impl KeySet ===

impl KeySet {
    /// Parses a key set. Keys for other purposes or of unknown kinds are skipped.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadKeySet> {
        let JwksDocument { keys } = serde_json::from_slice(bytes).map_err(|_| BadKeySet)?;
        let keys = keys.into_iter().take(KEYS_MAX).filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        let keys: BTreeMap<_, _> = keys.filter_map(|key| Some((key.kid.clone(), PublicKey::from_jwk(&key)?))).collect();
        if keys.is_empty() { Err(BadKeySet) } else { Ok(Self(keys)) }
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the key with this `kid`.
    pub fn get(&self, kid: &str) -> Option<&PublicKey> {
        self.0.get(kid)
    }
}

// === impl PublicKey ===

impl PublicKey {
    fn from_jwk(key: &Jwk) -> Option<Self> {
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_ref()?).ok();
        if key.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let found = match (key.kty.as_str(), key.crv.as_deref()) {
            ("RSA", _) => Self::Rsa { n: bytes(&key.n)?, e: bytes(&key.e)? },
            ("EC", Some("P-256")) => Self::P256([&[4][..], &bytes(&key.x)?, &bytes(&key.y)?].concat()),
            ("OKP", Some("Ed25519")) => Self::Ed25519(bytes(&key.x)?),
            _ => return None,
        };
        let fits = match &found {
            Self::Rsa { n, .. } => n.iter().skip_while(|byte| **byte == 0).count() >= MODULUS_BYTES_MIN,
            Self::P256(point) => point.len() == 65,
            Self::Ed25519(bytes) => bytes.len() == 32,
        };
        let as_said = key.alg.as_deref().is_none_or(|alg| alg == found.algorithm().as_str());
        (fits && as_said).then_some(found)
    }

    /// Returns the only algorithm that the key may be used with: a token cannot choose another.
    pub fn algorithm(&self) -> SignatureAlgorithm {
        match self {
            Self::Rsa { .. } => SignatureAlgorithm::Rs256,
            Self::P256(_) => SignatureAlgorithm::Es256,
            Self::Ed25519(_) => SignatureAlgorithm::EdDsa,
        }
    }

    /// Returns true if the message was signed with the private key.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rsa { n, e } => {
                let key = RsaPublicKeyComponents { n: n.as_slice(), e: e.as_slice() };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).is_ok()
            }
            Self::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature).is_ok()
            }
            Self::Ed25519(bytes) => UnparsedPublicKey::new(&ED25519, bytes).verify(message, signature).is_ok(),
        }
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.algorithm().as_str())
    }
}

//! Defines API keys, `twk_<id>_<secret>`. The id is public and names the key in lists and logs. The secret is 128
//! random bits, shown once; only its hash is stored, which cannot be computed without the pepper (S-01).
use super::pepper::{Pepper, PepperId};
use super::service_grants::ServiceGrants;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use turnway_core::id::{TenantId, UserId};
use turnway_core::private::Private;
use turnway_core::time::Millis;

/// Prefix of every key, so that secret scanners can find leaked keys.
const PREFIX: &str = "twk";
/// Letters of an id: 50 bits, so that two keys of a store never have the same id.
const ID_LETTERS: usize = 10;
/// Letters of a secret: 130 bits, of which 128 are random.
const SECRET_LETTERS: usize = 26;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The public id of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct KeyId(Arc<str>);

/// A whole key with its secret, as its bearer has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    id: KeyId,
    secret: Private<String>,
}

/// A key as it is stored: owner, grants and the hash of its secret. All fields are authenticated by
/// [`ApiKeyRecord::seal`], so that write access to the store does not suffice to change what a key grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKeyRecord {
    pub id: KeyId,
    /// HMAC of the secret, made with the pepper.
    pub hash: ApiKeyHash,
    /// The pepper that the hash was made with.
    pub pepper: PepperId,
    /// The tenant whose sessions the bearer may access.
    pub tenant: TenantId,
    /// The user that the bearer acts as; `None` for a user of the key's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserId>,
    /// Rights of the bearer.
    pub scopes: Scopes,
    /// Agents, tools and adapters that the bearer may serve, for its own tenant.
    #[serde(default, skip_serializing_if = "ServiceGrants::is_empty")]
    pub serves: ServiceGrants,
    /// Free text for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Time of creation.
    pub created: Millis,
    /// Time of expiry, if the key expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Millis>,
    /// Time of revocation, if the key was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Millis>,
    /// HMAC of every other field, made with the pepper. `None` in records of earlier releases, which authenticated only
    /// the secret; such a key is refused until an operator seals it (`turnway key migrate`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<ApiKeyHash>,
}

/// An HMAC-SHA-256 value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ApiKeyHash(pub(super) [u8; 32]);

/// The rights of a credential, besides reading the bearer's own sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Scopes {
    /// Send messages, and open, close and cancel.
    pub write: bool,
    /// Act as any user of the tenant.
    pub act_as: bool,
    /// Access everything within the tenant.
    pub operator: bool,
    /// Call models at the node's upstreams.
    pub models: bool,
}

/// A word that is not a scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scope {0:?}; expected read, write, act_as, operator or models")]
pub struct BadScope(pub String);

// === impl KeyId ===

impl KeyId {
    /// Parses an id.
    pub fn parse(text: &str) -> Option<Self> {
        is_letters(text, ID_LETTERS).then(|| Self(text.into()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for KeyId {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not the id of an API key"))
    }
}

// === impl ApiKey ===

impl ApiKey {
    /// Generates a key.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut id = [0; 7];
        let mut secret = [0; 16];
        getrandom::fill(&mut id)?;
        getrandom::fill(&mut secret)?;
        let id = KeyId(letters(&id, ID_LETTERS).into());
        Ok(Self { id, secret: letters(&secret, SECRET_LETTERS).into() })
    }

    /// Parses a whole key.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.strip_prefix('_')?.split_once('_')?;
        let id = KeyId::parse(id)?;
        is_letters(secret, SECRET_LETTERS).then(|| Self { id, secret: secret.to_owned().into() })
    }

    /// Returns the public id.
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// Returns the whole key with its secret, to be shown once to its bearer.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}_{}_{}", self.id, self.secret.reveal())
    }

    /// Returns the hash of the secret.
    pub fn hash(&self, pepper: &Pepper) -> ApiKeyHash {
        pepper.hash(self.id.as_str(), self.secret.reveal())
    }

    /// Returns true if the hash is that of this key. Takes constant time.
    pub fn matches(&self, hash: &ApiKeyHash, pepper: &Pepper) -> bool {
        pepper.verify(self.id.as_str(), self.secret.reveal(), hash)
    }
}

// === impl ApiKeyRecord ===

impl ApiKeyRecord {
    /// Returns true if the key is neither revoked nor expired. Its pepper and its seal are checked elsewhere.
    pub fn is_active(&self, now: Millis) -> bool {
        self.revoked.is_none() && self.expires.is_none_or(|end| now < end)
    }

    /// Returns the record with the HMAC of all its fields.
    #[must_use]
    pub fn sealed(mut self, pepper: &Pepper) -> Self {
        self.seal = Some(pepper.seal(&self.authenticated()));
        self
    }

    /// Returns true if no field has changed since the record was sealed with this pepper.
    pub fn is_sealed(&self, pepper: &Pepper) -> bool {
        self.seal.is_some_and(|seal| pepper.verify_seal(&self.authenticated(), &seal))
    }

    /// Changes a record, and seals it again if its seal was valid. A record without a valid seal stays refused.
    pub fn update(&mut self, pepper: &Pepper, change: impl FnOnce(&mut Self)) {
        let was_sealed = self.is_sealed(pepper);
        change(self);
        if was_sealed {
            self.seal = Some(pepper.seal(&self.authenticated()));
        }
    }

    /// Returns every field but the seal as bytes, each with its length before it, so that the encoding is unambiguous.
    fn authenticated(&self) -> Vec<u8> {
        let Self { id, hash, pepper, tenant, user, scopes, serves, label, created, expires, revoked, seal: _ } = self;
        let mut bytes = Vec::with_capacity(256);
        let mut part = |part: &[u8]| {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        };
        let time = |at: &Option<Millis>| at.map_or_else(Vec::new, |at| at.0.to_be_bytes().to_vec());
        part(id.as_str().as_bytes());
        part(&hash.0);
        part(pepper.as_str().as_bytes());
        part(tenant.as_str().as_bytes());
        // A user name is never empty; a label may be empty, and grants nothing.
        part(user.as_ref().map_or("", UserId::as_str).as_bytes());
        part(scopes.words().join(",").as_bytes());
        part(serves.words().join(",").as_bytes());
        part(label.as_deref().unwrap_or_default().as_bytes());
        part(&created.0.to_be_bytes());
        part(&time(expires));
        part(&time(revoked));
        bytes
    }

    /// Returns the user that the bearer acts as.
    pub fn user(&self) -> UserId {
        let own = || UserId::parse(&format!("key:{}", self.id)).unwrap_or_else(|_| UserId::local());
        self.user.clone().unwrap_or_else(own)
    }
}

// === impl ApiKeyHash ===

impl fmt::Debug for ApiKeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hash>")
    }
}

impl Serialize for ApiKeyHash {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }
}

impl<'de> Deserialize<'de> for ApiKeyHash {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        let byte = |at: usize| text.get(2 * at..2 * at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
        let bytes = bytes.filter(|_| text.len() == 64).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("not a hash"))
    }
}

// === impl Scopes ===

impl Scopes {
    /// Returns the scopes of a new key for which none are given.
    pub fn defaults() -> Self {
        Self { write: true, ..Self::default() }
    }

    /// Parses the words of a list of scopes.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, BadScope> {
        let mut scopes = Self::default();
        for word in words {
            match word {
                // Every bearer may read its own sessions.
                "read" => {}
                "write" => scopes.write = true,
                "act_as" => scopes.act_as = true,
                "operator" => scopes.operator = true,
                "models" => scopes.models = true,
                other => return Err(BadScope(other.to_owned())),
            }
        }
        Ok(scopes)
    }

    /// Returns the scopes as words.
    pub fn words(self) -> Vec<&'static str> {
        let all = [
            (true, "read"),
            (self.write, "write"),
            (self.act_as, "act_as"),
            (self.operator, "operator"),
            (self.models, "models"),
        ];
        all.into_iter().filter_map(|(has, word)| has.then_some(word)).collect()
    }
}

impl TryFrom<Vec<String>> for Scopes {
    type Error = BadScope;

    fn try_from(words: Vec<String>) -> Result<Self, BadScope> {
        Self::parse(words.iter().map(String::as_str))
    }
}

impl From<Scopes> for Vec<String> {
    fn from(scopes: Scopes) -> Self {
        scopes.words().into_iter().map(str::to_owned).collect()
    }
}

/// Encodes bytes as `count` letters of five bits each.
fn letters(bytes: &[u8], count: usize) -> String {
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| usize::from(byte >> (7 - at % 8) & 1));
    let letter = |n: usize| BASE32[(5 * n..5 * n + 5).fold(0, |sum, at| sum << 1 | bit(at))];
    (0..count).map(|n| char::from(letter(n))).collect()
}

fn is_letters(text: &str, count: usize) -> bool {
    text.len() == count && text.bytes().all(|byte| BASE32.contains(&byte))
}

#[cfg(test)]
mod tests;

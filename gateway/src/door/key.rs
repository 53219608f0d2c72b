//! API keys: `twk_<id>_<secret>`. The id is public and names a key in lists and logs; the secret is 128 random
//! bits, shown once, and kept nowhere but as a hash that only who has the pepper can make (S-01).
use super::pepper::{Pepper, PepperId};
use super::serves::Serves;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use turnway_core::id::{TenantId, UserId};
use turnway_core::private::Private;
use turnway_core::time::Millis;

/// What every key begins with, so that it is found where it does not belong.
const PREFIX: &str = "twk";
/// Letters of an id: 50 bits, so that two of a store's keys are never called the same.
const ID_LETTERS: usize = 10;
/// Letters of a secret: 130 bits, of which 128 are random.
const SECRET_LETTERS: usize = 26;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// A key's public name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct KeyId(Arc<str>);

/// A whole key, as its bearer has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    id: KeyId,
    secret: Private<String>,
}

/// A key as it is kept: whose it is, what it grants, and what its secret comes to. All of it is authenticated by
/// [`Record::seal`], so that whoever can write to the store cannot change what a key grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub id: KeyId,
    /// Made of the secret and the pepper.
    pub hash: Hash,
    /// Which pepper that was.
    pub pepper: PepperId,
    /// Whose sessions its bearer may have to do with.
    pub tenant: TenantId,
    /// As whom; none: as nobody but the key itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserId>,
    /// What its bearer may do.
    pub scopes: Scopes,
    /// What its bearer may serve, for its own tenant.
    #[serde(default, skip_serializing_if = "Serves::is_empty")]
    pub serves: Serves,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it was made.
    pub created: Millis,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Millis>,
    /// When it was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Millis>,
    /// HMAC of every other field, made with the pepper. None: the key was made by an earlier release, which
    /// authenticated its secret only; it opens nothing until an operator has sealed it (`turnway key migrate`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Hash>,
}

/// HMAC-SHA-256.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hash(pub(super) [u8; 32]);

/// What the bearer of a credential may do, beside reading what is its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Scopes {
    /// Say things, and open, close and cancel.
    pub write: bool,
    /// Name any user of the tenant, and be that one.
    pub act_as: bool,
    /// See and do everything within the tenant.
    pub operator: bool,
}

/// Words that are no scopes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scope {0:?}; expected read, write, act_as or operator")]
pub struct BadScope(pub String);

// === impl KeyId ===

impl KeyId {
    /// Checks the form.
    pub fn parse(text: &str) -> Option<Self> {
        is_letters(text, ID_LETTERS).then(|| Self(text.into()))
    }

    /// As text.
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
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a key's id"))
    }
}

// === impl ApiKey ===

impl ApiKey {
    /// A new one.
    pub fn make() -> Result<Self, getrandom::Error> {
        let (mut id, mut secret) = ([0; 7], [0; 16]);
        getrandom::fill(&mut id)?;
        getrandom::fill(&mut secret)?;
        let id = KeyId(letters(&id, ID_LETTERS).into());
        Ok(Self { id, secret: letters(&secret, SECRET_LETTERS).into() })
    }

    /// Takes one apart.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.strip_prefix('_')?.split_once('_')?;
        let id = KeyId::parse(id)?;
        is_letters(secret, SECRET_LETTERS).then(|| Self { id, secret: secret.to_owned().into() })
    }

    /// Its public name.
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// All of it; to be shown once, to whom it is for.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}_{}_{}", self.id, self.secret.reveal())
    }

    /// What is kept of it.
    pub fn hash(&self, pepper: &Pepper) -> Hash {
        pepper.hash(self.id.as_str(), self.secret.reveal())
    }

    /// Whether it is the one of which this is kept. Takes the same time for every key.
    pub fn is(&self, hash: &Hash, pepper: &Pepper) -> bool {
        pepper.verify(self.id.as_str(), self.secret.reveal(), hash)
    }
}

// === impl Record ===

impl Record {
    /// Whether it opens anything at this time, where its pepper is.
    pub fn is_good(&self, now: Millis) -> bool {
        self.revoked.is_none() && self.expires.is_none_or(|end| now < end)
    }

    /// Returns the record with the HMAC of all its fields.
    #[must_use]
    pub fn sealed(mut self, pepper: &Pepper) -> Self {
        self.seal = Some(pepper.seal(&self.authenticated()));
        self
    }

    /// Returns whether every field is as it was when the record was sealed with this pepper.
    pub fn is_sealed(&self, pepper: &Pepper) -> bool {
        self.seal.is_some_and(|seal| pepper.verify_seal(&self.authenticated(), &seal))
    }

    /// Changes a record. It is sealed again if it was; one that was not stays without a seal, and opens nothing.
    pub fn change(&mut self, pepper: &Pepper, change: impl FnOnce(&mut Self)) {
        let was_sealed = self.is_sealed(pepper);
        change(self);
        if was_sealed {
            self.seal = Some(pepper.seal(&self.authenticated()));
        }
    }

    /// Returns every field but the seal as bytes: each with its length before it, so that no two records have the same.
    fn authenticated(&self) -> Vec<u8> {
        let Self {
            id,
            hash,
            pepper,
            tenant,
            user,
            scopes,
            serves,
            label,
            created,
            expires,
            revoked,
            seal: _,
        } = self;
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
        // No user has an empty name; a label may be empty, and grants nothing.
        part(user.as_ref().map_or("", UserId::as_str).as_bytes());
        part(scopes.words().join(",").as_bytes());
        part(serves.words().join(",").as_bytes());
        part(label.as_deref().unwrap_or_default().as_bytes());
        part(&created.0.to_be_bytes());
        part(&time(expires));
        part(&time(revoked));
        bytes
    }

    /// As whom its bearer comes.
    pub fn user(&self) -> UserId {
        let own = || UserId::parse(&format!("key:{}", self.id)).unwrap_or_else(|_| UserId::local());
        self.user.clone().unwrap_or_else(own)
    }
}

// === impl Hash ===

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hash>")
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }
}

impl<'de> Deserialize<'de> for Hash {
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
    /// What a new key may do unless it is said.
    pub fn usual() -> Self {
        Self { write: true, ..Self::default() }
    }

    /// Reads words.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, BadScope> {
        let mut scopes = Self::default();
        for word in words {
            match word {
                // Whoever comes in may read what is its own.
                "read" => {}
                "write" => scopes.write = true,
                "act_as" => scopes.act_as = true,
                "operator" => scopes.operator = true,
                other => return Err(BadScope(other.to_owned())),
            }
        }
        Ok(scopes)
    }

    /// The same as words.
    pub fn words(self) -> Vec<&'static str> {
        let all =
            [(true, "read"), (self.write, "write"), (self.act_as, "act_as"), (self.operator, "operator")];
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

/// Bytes as so many letters of five bits each.
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

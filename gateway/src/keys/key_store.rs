//! Stores keys in registers: on pages by the first letter of their ids, so that no value is large, and with a
//! generation value that changes with every change. Used by `keys`.
use crate::auth::key::{ApiKeyRecord, KeyId};
use crate::auth::keyring;
use crate::store::registers::{RegisterValue, Registers};
use serde::Deserialize;
use turnway_core::store::StoreError;

/// First letters of ids; each has a page.
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz234567";
/// Maximum keys on one page, of some 300 bytes each: 12,000 in all, because ids are random.
const PAGE_KEYS_MAX: usize = 400;
/// Maximum tries of a change while other nodes change the same page.
const TRIES_MAX: usize = 16;
/// Register of the generation, and prefix of the pages' registers.
const GENERATION: &str = "keys";

/// The keys in a store.
#[derive(Clone)]
pub struct KeyStore(Registers);

/// A reason why keys were not read or not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyStoreError {
    /// The store did not answer.
    #[error("the store does not answer")]
    Store(StoreError),
    /// Other nodes changed the same page in every try.
    #[error("others are changing keys; try again")]
    Busy,
    /// The page is full.
    #[error("there are too many keys; those that open nothing are forgotten after 30 days")]
    Full,
    /// The stored value cannot be parsed.
    #[error("the stored keys cannot be read: they are of a newer release")]
    Unreadable,
}

/// One page, and its version in the store.
struct KeyPage {
    version: u64,
    records: Vec<ApiKeyRecord>,
    /// Records that this release cannot parse: written back unchanged, and never valid.
    unreadable: Vec<serde_json::Value>,
}

// === impl KeyStore ===

impl KeyStore {
    /// Creates the key store in these registers.
    pub fn new(registers: Registers) -> Self {
        Self(registers)
    }

    /// Returns the generation, which changes with every change of a key. It has a random part, because a store may lose
    /// its last writes and count the same version twice.
    pub async fn generation(&self) -> Result<RegisterValue, KeyStoreError> {
        Ok(self.0.get(GENERATION).await?)
    }

    /// Reads all keys.
    pub async fn all(&self) -> Result<keyring::ApiKeyRecords, KeyStoreError> {
        let mut keys = keyring::ApiKeyRecords::new();
        let names: Vec<_> = LETTERS.chars().map(page_register).collect();
        for value in self.0.get_all(&names).await? {
            let page = KeyPage::read(value)?;
            if !page.unreadable.is_empty() {
                let others = page.unreadable.len();
                tracing::warn!(keys = others, "cannot be read: they are of a newer release, and open nothing here");
            }
            keys.extend(page.records.into_iter().map(|record| (record.id.clone(), record)));
        }
        Ok(keys)
    }

    /// Stores a new key.
    pub async fn insert(&self, record: ApiKeyRecord) -> Result<(), KeyStoreError> {
        let now = record.created;
        let added = |records: &mut Vec<ApiKeyRecord>| {
            // An expired or revoked key of this age is not worth listing either. It is dropped only to make room:
            // otherwise a clock that is months off would delete valid keys.
            if records.len() >= PAGE_KEYS_MAX {
                let month = 30 * 86_400_000;
                let is_old = |end: u64| end.saturating_add(month) < now.0;
                records.retain(|old| !old.revoked.or(old.expires).is_some_and(|end| is_old(end.0)));
            }
            if records.len() >= PAGE_KEYS_MAX {
                return Err(KeyStoreError::Full);
            }
            // The previous try may have been stored after all.
            records.retain(|old| old.id != record.id);
            records.push(record.clone());
            Ok(Some(()))
        };
        self.edit(&record.id, added).await.map(drop)
    }

    /// Changes one key; returns `None` if there is no key with this id.
    pub async fn change(
        &self,
        id: &KeyId,
        change: impl Fn(&mut ApiKeyRecord),
    ) -> Result<Option<ApiKeyRecord>, KeyStoreError> {
        let changed = |records: &mut Vec<ApiKeyRecord>| {
            let found = records.iter_mut().find(|record| record.id == *id);
            Ok(found.map(|record| {
                change(record);
                record.clone()
            }))
        };
        self.edit(id, changed).await
    }

    /// Edits the page of a key, then changes the generation. The generation changes even if the page was already as
    /// wanted, because the node that wrote the page may have died before it changed the generation.
    async fn edit<T>(
        &self,
        id: &KeyId,
        edit: impl Fn(&mut Vec<ApiKeyRecord>) -> Result<Option<T>, KeyStoreError>,
    ) -> Result<Option<T>, KeyStoreError> {
        let name = page_register(id.as_str().chars().next().unwrap_or('a'));
        for _ in 0..TRIES_MAX {
            let KeyPage { version, mut records, unreadable: others } = self.page(&name).await?;
            let before = records.clone();
            let Some(done) = edit(&mut records)? else { return Ok(None) };
            if records != before {
                let values = records.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>();
                let values: Vec<_> = values.map_err(|_| KeyStoreError::Unreadable)?.into_iter().chain(others).collect();
                let bytes = serde_json::to_vec(&values).map_err(|_| KeyStoreError::Unreadable)?;
                let stored = self.0.put(&name, version, bytes.clone()).await?;
                if stored.bytes != Some(bytes) {
                    continue;
                }
            }
            self.advance_generation().await?;
            return Ok(Some(done));
        }
        Err(KeyStoreError::Busy)
    }

    /// Changes the generation, read after the page was written: if another node changed it in between, that change is
    /// enough.
    async fn advance_generation(&self) -> Result<(), KeyStoreError> {
        let mut fresh = [0; 16];
        getrandom::fill(&mut fresh).map_err(|_| KeyStoreError::Busy)?;
        let seen = self.generation().await?;
        let stored = self.0.put(GENERATION, seen.version, fresh.to_vec()).await?;
        if stored == seen { Err(KeyStoreError::Busy) } else { Ok(()) }
    }

    async fn page(&self, name: &str) -> Result<KeyPage, KeyStoreError> {
        KeyPage::read(self.0.get(name).await?)
    }
}

// === impl Page ===

impl KeyPage {
    fn read(RegisterValue { version, bytes }: RegisterValue) -> Result<Self, KeyStoreError> {
        let values: Vec<serde_json::Value> = match bytes {
            None => Vec::new(),
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|_| KeyStoreError::Unreadable)?,
        };
        let mut records = Vec::new();
        let mut others = Vec::new();
        for value in values {
            match ApiKeyRecord::deserialize(&value) {
                Ok(record) => records.push(record),
                Err(_) => others.push(value),
            }
        }
        Ok(Self { version, records, unreadable: others })
    }
}

fn page_register(letter: char) -> String {
    format!("{GENERATION}/{letter}")
}

impl From<StoreError> for KeyStoreError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

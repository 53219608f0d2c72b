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

/// Fills a buffer with randomness.
type RandomSource = fn(&mut [u8]) -> Result<(), getrandom::Error>;

/// The keys in a store.
#[derive(Clone)]
pub struct KeyStore {
    registers: Registers,
    /// The system's randomness; tests replace it by one that fails.
    random: RandomSource,
}

/// A reason why keys were not read or not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyStoreError {
    /// The store did not answer.
    #[error("the store is unavailable")]
    Store(StoreError),
    /// Other nodes changed the same page in every try.
    #[error("other nodes are changing keys at the same time; try again")]
    Busy,
    /// The system gave no randomness. Nothing was stored, and another try helps only once the system is repaired.
    #[error("the system provides no randomness: {0}")]
    Randomness(getrandom::Error),
    /// The page is full.
    #[error("there are too many keys; revoked and expired keys are deleted after 30 days")]
    Full,
    /// The stored value cannot be parsed.
    #[error("the stored keys cannot be read: they were written by a newer release")]
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
        Self { registers, random: getrandom::fill }
    }

    /// Returns the generation, which changes with every change of a key. It has a random part, because a store may lose
    /// its last writes and count the same version twice.
    pub async fn generation(&self) -> Result<RegisterValue, KeyStoreError> {
        Ok(self.registers.get(GENERATION).await?)
    }

    /// Reads all keys.
    pub async fn all(&self) -> Result<keyring::ApiKeyRecords, KeyStoreError> {
        let mut keys = keyring::ApiKeyRecords::new();
        let names: Vec<_> = LETTERS.chars().map(page_register).collect();
        for value in self.registers.get_all(&names).await? {
            let page = KeyPage::read(value)?;
            if !page.unreadable.is_empty() {
                let others = page.unreadable.len();
                let what = "stored keys cannot be read: they were written by a newer release and are not valid here";
                tracing::warn!(keys = others, "{what}");
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
        // Made before the page is written, so that a failure leaves the store unchanged.
        let next = self.new_generation()?;
        for _ in 0..TRIES_MAX {
            let KeyPage { version, mut records, unreadable: others } = self.page(&name).await?;
            let before = records.clone();
            let Some(done) = edit(&mut records)? else { return Ok(None) };
            if records != before {
                let values = records.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>();
                let values: Vec<_> = values.map_err(|_| KeyStoreError::Unreadable)?.into_iter().chain(others).collect();
                let bytes = serde_json::to_vec(&values).map_err(|_| KeyStoreError::Unreadable)?;
                let stored = self.registers.put(&name, version, bytes.clone()).await?;
                if stored.bytes != Some(bytes) {
                    continue;
                }
            }
            self.advance_generation(&next).await?;
            return Ok(Some(done));
        }
        Err(KeyStoreError::Busy)
    }

    /// Returns a generation that differs from every other.
    fn new_generation(&self) -> Result<[u8; 16], KeyStoreError> {
        let mut fresh = [0; 16];
        let filled = (self.random)(&mut fresh).inspect_err(super::log_missing_randomness);
        filled.map_err(KeyStoreError::Randomness)?;
        Ok(fresh)
    }

    /// Changes the generation, read after the page was written: if another node changed it in between, that change is
    /// enough.
    async fn advance_generation(&self, next: &[u8]) -> Result<(), KeyStoreError> {
        let seen = self.generation().await?;
        let stored = self.registers.put(GENERATION, seen.version, next.to_vec()).await?;
        if stored == seen { Err(KeyStoreError::Busy) } else { Ok(()) }
    }

    async fn page(&self, name: &str) -> Result<KeyPage, KeyStoreError> {
        KeyPage::read(self.registers.get(name).await?)
    }
}

// === impl KeyPage ===

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::key::{ApiKey, Scopes};
    use crate::auth::pepper::Pepper;
    use crate::auth::service_grants::ServiceGrants;
    use crate::clock::Clock;
    use crate::store::Store;
    use crate::store::memory::MemoryStore;
    use crate::store::registers::RegisterReplies;
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::layer;
    use tracing_subscriber::layer::SubscriberExt;
    use turnway_core::id::TenantId;
    use turnway_core::store::quota::Quotas;
    use turnway_core::time::Millis;

    /// The lines logged during a test.
    #[derive(Clone, Default)]
    struct LoggedLines(Arc<Mutex<Vec<u8>>>);

    impl Write for LoggedLines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("sound").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn registers() -> Registers {
        let clock = Clock::start();
        let replies = RegisterReplies::default();
        let sink = replies.intercept(Arc::new(|_, _| {}));
        let store: Arc<dyn Store> =
            Arc::new(MemoryStore::new(Arc::new(move || clock.now()), Quotas::OFF, Arc::new(|_, _| {}), sink));
        replies.open(store)
    }

    fn record() -> ApiKeyRecord {
        let pepper = Pepper::from_text("0123456789abcdef0123456789abcdef").expect("long enough");
        let key = ApiKey::generate().expect("randomness");
        let record = ApiKeyRecord {
            id: key.id().clone(),
            hash: key.hash(&pepper),
            pepper: pepper.id().clone(),
            tenant: TenantId::default_tenant(),
            user: None,
            scopes: Scopes::defaults(),
            serves: ServiceGrants::default(),
            label: None,
            created: Millis(0),
            expires: None,
            revoked: None,
            seal: None,
        };
        record.sealed(&pepper)
    }

    /// Covers: S-01.
    #[tokio::test]
    async fn change_without_randomness_stores_nothing_and_is_logged() {
        let lines = LoggedLines::default();
        let written = lines.clone();
        let log = tracing_subscriber::registry().with(layer().with_writer(move || written.clone()));
        let _logging = tracing::subscriber::set_default(log);
        let good = KeyStore::new(registers());
        let bad = KeyStore { random: |_| Err(getrandom::Error::UNSUPPORTED), ..good.clone() };
        let kept = record();
        good.insert(kept.clone()).await.expect("stored");
        let generation = good.generation().await.expect("a generation");
        let refused = KeyStoreError::Randomness(getrandom::Error::UNSUPPORTED);
        assert_eq!(bad.insert(record()).await, Err(refused.clone()));
        let revoke = |record: &mut ApiKeyRecord| record.revoked = Some(Millis(1));
        assert_eq!(bad.change(&kept.id, revoke).await, Err(refused));
        assert_eq!(good.all().await, Ok([(kept.id.clone(), kept)].into()));
        assert_eq!(good.generation().await, Ok(generation));
        let text = String::from_utf8(lines.0.lock().expect("sound").clone()).expect("UTF-8");
        assert_eq!(text.matches("the system provides no randomness").count(), 2, "{text}");
    }
}

//! The lists of accounts that have limits, a register for each tenant, and this node's copies of them: most accounts have none,
//! which a node knows without asking the store at each call. Used by [`keeper`](super::keeper).
use super::{BudgetAccount, BudgetError, BudgetKind, BudgetRegisters};
use crate::store::registers::RegisterValue;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use turnway_core::id::TenantId;
use turnway_core::limits;
use turnway_core::time::Mono;

/// Version of the encoding. A release that adds a field raises it.
const VERSION: u32 = 1;

/// The accounts of one tenant that have limits.
pub(super) type LimitedAccounts = BTreeSet<(BudgetKind, String)>;

/// A clock, which tests can set.
pub(super) type MonoClock = Arc<dyn Fn() -> Mono + Send + Sync>;

/// The lists of all tenants.
pub(super) struct BudgetIndex {
    registers: BudgetRegisters,
    now: MonoClock,
    runtime: Handle,
    tenants: Mutex<HashMap<TenantId, Arc<TenantList>>>,
}

/// A list of one tenant.
#[derive(Default)]
struct TenantList {
    copy: Mutex<ListCopy>,
    /// Held during reads and changes, so that many callers need one read, and no read replaces the result of a later change.
    access: Arc<tokio::sync::Mutex<()>>,
}

/// A node's copy of a list.
#[derive(Clone, Default)]
struct ListCopy {
    accounts: Arc<LimitedAccounts>,
    read_at: Option<Mono>,
    /// The last read, if the store did not answer it.
    failed_at: Option<Mono>,
}

#[derive(Serialize, Deserialize)]
struct EncodedList<T> {
    version: u32,
    accounts: T,
}

// === impl BudgetIndex ===

impl BudgetIndex {
    /// Creates the lists. Reads nothing yet.
    pub(super) fn new(registers: BudgetRegisters, now: MonoClock, runtime: Handle) -> Self {
        Self { registers, now, runtime, tenants: Mutex::default() }
    }

    /// Returns the accounts of a tenant that have limits, as of at most [`limits::BUDGET_CACHE_TTL`] ago. While the store does
    /// not answer, the list may be as old as [`limits::BUDGET_CACHE_GRACE`].
    pub(super) async fn accounts(self: &Arc<Self>, tenant: &TenantId) -> Result<Arc<LimitedAccounts>, BudgetError> {
        let list = self.list(tenant);
        let copy = list.copy().clone();
        let now = (self.now)();
        if let Some(accounts) = copy.usable(now) {
            if copy.is_ageing(now) {
                self.read_ahead(tenant, &list);
            }
            return Ok(accounts);
        }
        let _alone = list.access.lock().await;
        // Another caller may have read the list meanwhile, or have waited for a store that does not answer.
        let copy = list.copy().clone();
        let now = (self.now)();
        match copy.usable(now) {
            Some(accounts) => Ok(accounts),
            None if copy.has_just_failed(now) => Err(BudgetError::Unavailable),
            None => self.read(tenant, &list).await,
        }
    }

    /// Reads the accounts of a tenant that have limits.
    pub(super) async fn read_accounts(&self, tenant: &TenantId) -> Result<Arc<LimitedAccounts>, BudgetError> {
        let list = self.list(tenant);
        let _alone = list.access.lock().await;
        let value = self.registers.get(&register(tenant)).await?;
        Ok(list.publish(decode(&value)?, (self.now)()))
    }

    /// Adds an account to the list or removes it. This node's copy is up to date afterwards.
    pub(super) async fn change(&self, account: &BudgetAccount, is_limited: bool) -> Result<(), BudgetError> {
        let name = register(&account.tenant);
        let list = self.list(&account.tenant);
        let _alone = list.access.lock().await;
        let mut value = self.registers.get(&name).await?;
        for _ in 0..limits::BUDGET_CONFLICTS_MAX {
            let mut accounts = decode(&value)?;
            let entry = (account.kind, account.name.clone());
            let is_changed = if is_limited { accounts.insert(entry) } else { accounts.remove(&entry) };
            if !is_changed {
                list.publish(accounts, (self.now)());
                return Ok(());
            }
            if accounts.len() > limits::BUDGET_ACCOUNTS_MAX && is_limited {
                return Err(BudgetError::TooManyAccounts);
            }
            let bytes = encode(&accounts);
            let stored = self.registers.put(&name, value.version, bytes.clone()).await?;
            if stored.version > value.version && stored.bytes.as_ref() == Some(&bytes) {
                list.publish(accounts, (self.now)());
                return Ok(());
            }
            value = stored;
        }
        Err(BudgetError::Busy)
    }

    /// Reads a list before its copy is too old, so that no call waits for the read.
    fn read_ahead(self: &Arc<Self>, tenant: &TenantId, list: &Arc<TenantList>) {
        let Ok(alone) = Arc::clone(&list.access).try_lock_owned() else { return };
        let this = Arc::clone(self);
        let tenant = tenant.clone();
        let list = Arc::clone(list);
        self.runtime.spawn(async move {
            let _alone = alone;
            // An error shows at the next call that needs the list.
            _ = this.read(&tenant, &list).await;
        });
    }

    /// Reads a list; the caller must have its `access`.
    async fn read(&self, tenant: &TenantId, list: &TenantList) -> Result<Arc<LimitedAccounts>, BudgetError> {
        let read = self.registers.get(&register(tenant)).await;
        let now = (self.now)();
        match read {
            Ok(value) => Ok(list.publish(decode(&value)?, now)),
            Err(_) => {
                let mut copy = list.copy();
                copy.failed_at = Some(now);
                copy.usable(now).ok_or(BudgetError::Unavailable)
            }
        }
    }

    fn list(&self, tenant: &TenantId) -> Arc<TenantList> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = tenants.get(tenant) {
            return Arc::clone(list);
        }
        if tenants.len() >= limits::BUDGET_TENANTS_CACHED_MAX {
            let now = (self.now)();
            tenants.retain(|_, list| Arc::strong_count(list) > 1 || list.copy().usable(now).is_some());
        }
        if tenants.len() >= limits::BUDGET_TENANTS_CACHED_MAX {
            tenants.retain(|_, list| Arc::strong_count(list) > 1);
        }
        Arc::clone(tenants.entry(tenant.clone()).or_default())
    }
}

// === impl TenantList ===

impl TenantList {
    fn copy(&self) -> MutexGuard<'_, ListCopy> {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, accounts: LimitedAccounts, now: Mono) -> Arc<LimitedAccounts> {
        let accounts = Arc::new(accounts);
        *self.copy() = ListCopy { accounts: Arc::clone(&accounts), read_at: Some(now), failed_at: None };
        accounts
    }
}

// === impl ListCopy ===

impl ListCopy {
    /// Returns the accounts if they were read lately, or if the store does not answer.
    fn usable(&self, now: Mono) -> Option<Arc<LimitedAccounts>> {
        // While there are calls, a list is read again within this time, timeout included.
        let is_failing = self.has_failed_within(limits::BUDGET_CACHE_TTL * 2, now);
        let most = if is_failing { limits::BUDGET_CACHE_GRACE } else { limits::BUDGET_CACHE_TTL };
        self.read_at.filter(|at| now - *at < most).map(|_| Arc::clone(&self.accounts))
    }

    fn is_ageing(&self, now: Mono) -> bool {
        let is_old = self.read_at.is_some_and(|at| now - at >= limits::BUDGET_CACHE_TTL / 2);
        is_old && !self.has_just_failed(now)
    }

    fn has_just_failed(&self, now: Mono) -> bool {
        self.has_failed_within(limits::BUDGET_RETRY_AFTER, now)
    }

    fn has_failed_within(&self, time: Duration, now: Mono) -> bool {
        self.failed_at.is_some_and(|at| now - at < time)
    }
}

fn register(tenant: &TenantId) -> String {
    format!("budgets/{tenant}")
}

fn encode(accounts: &LimitedAccounts) -> Vec<u8> {
    let list = EncodedList { version: VERSION, accounts };
    serde_json::to_vec(&list).unwrap_or_else(|_| unreachable!("names are text"))
}

fn decode(value: &RegisterValue) -> Result<LimitedAccounts, BudgetError> {
    let Some(bytes) = &value.bytes else { return Ok(LimitedAccounts::new()) };
    let list: EncodedList<LimitedAccounts> = serde_json::from_slice(bytes).map_err(|_| BudgetError::Unreadable)?;
    if list.version == VERSION { Ok(list.accounts) } else { Err(BudgetError::Unreadable) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::registers::in_memory;

    fn tenant() -> TenantId {
        TenantId::default_tenant()
    }

    fn user(name: &str) -> BudgetAccount {
        BudgetAccount { tenant: tenant(), kind: BudgetKind::User, name: name.to_owned() }
    }

    /// Returns a list of a node, and its clock.
    fn index(registers: &BudgetRegisters) -> (Arc<BudgetIndex>, Arc<Mutex<Mono>>) {
        let now = Arc::new(Mutex::new(Mono(Duration::from_secs(100))));
        let read = Arc::clone(&now);
        let clock: MonoClock = Arc::new(move || *read.lock().expect("sound"));
        (Arc::new(BudgetIndex::new(registers.clone(), clock, Handle::current())), now)
    }

    #[tokio::test]
    async fn new_limit_is_known_to_other_nodes_in_time() {
        let registers = BudgetRegisters::new(in_memory());
        let (one, _) = index(&registers);
        let (other, now) = index(&registers);
        let pass = |time: Duration| {
            let mut now = now.lock().expect("sound");
            *now = *now + time;
        };
        assert!(other.accounts(&tenant()).await.expect("a list").is_empty());
        one.change(&user("ann"), true).await.expect("changed");
        assert_eq!(one.accounts(&tenant()).await.expect("a list").len(), 1, "known at once");
        pass(limits::BUDGET_CACHE_TTL / 3);
        assert!(other.accounts(&tenant()).await.expect("a list").is_empty(), "the copy");
        pass(limits::BUDGET_CACHE_TTL);
        assert_eq!(other.accounts(&tenant()).await.expect("a list").len(), 1);
        one.change(&user("ann"), false).await.expect("changed");
        // A copy that is in use is read again before it is too old.
        pass(limits::BUDGET_CACHE_TTL * 2 / 3);
        assert_eq!(other.accounts(&tenant()).await.expect("a list").len(), 1, "the copy");
        while !other.accounts(&tenant()).await.expect("a list").is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn copy_is_used_longer_while_the_store_fails() {
        let at = |seconds: u64| Mono(Duration::from_secs(seconds));
        let mut copy = ListCopy { read_at: Some(at(100)), ..ListCopy::default() };
        assert!(copy.usable(at(104)).is_some() && copy.usable(at(105)).is_none());
        assert!(!copy.is_ageing(at(102)) && copy.is_ageing(at(103)));
        copy.failed_at = Some(at(104));
        assert!(copy.usable(at(113)).is_some() && copy.usable(at(114)).is_none());
        assert!(!copy.is_ageing(at(104)) && copy.is_ageing(at(105)), "one read a second");
        copy.failed_at = Some(at(400));
        assert!(copy.usable(at(399)).is_some() && copy.usable(at(400)).is_none());
    }

    #[tokio::test]
    async fn list_of_a_tenant_is_bounded() {
        let registers = BudgetRegisters::new(in_memory());
        let (index, _) = index(&registers);
        let full = (0..limits::BUDGET_ACCOUNTS_MAX).map(|number| (BudgetKind::Key, number.to_string())).collect();
        registers.put(&register(&tenant()), 0, encode(&full)).await.expect("stored");
        assert_eq!(index.change(&user("ann"), true).await, Err(BudgetError::TooManyAccounts));
        let one = BudgetAccount { kind: BudgetKind::Key, name: "1".to_owned(), ..user("") };
        index.change(&one, true).await.expect("it is in the list");
        index.change(&one, false).await.expect("removed");
        index.change(&user("ann"), true).await.expect("there is room");
        assert!(index.accounts(&tenant()).await.expect("a list").contains(&(BudgetKind::User, "ann".to_owned())));
    }

    #[tokio::test]
    async fn list_of_a_newer_release_is_refused() {
        let registers = BudgetRegisters::new(in_memory());
        let (index, _) = index(&registers);
        let newer = br#"{"version":2,"accounts":[]}"#.to_vec();
        registers.put(&register(&tenant()), 0, newer).await.expect("stored");
        assert_eq!(index.accounts(&tenant()).await, Err(BudgetError::Unreadable));
        assert_eq!(index.change(&user("ann"), true).await, Err(BudgetError::Unreadable));
    }
}

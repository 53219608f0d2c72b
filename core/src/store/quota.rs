//! Quotas of stored bytes: limits of tenants and users, and their usage. Each store counts; a quota refuses inputs
//! only, so that open turns are still recorded.
use crate::id::{SessionKey, TenantId};
use crate::share::{Account, Fraction, ShareBound};
use std::collections::{BTreeMap, BTreeSet};

/// A limit of stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    Off,
    Bytes(u64),
    /// A part of what the store may hold: what it holds now, and the free space above its reserve.
    Part(Fraction),
}

/// Bytes that every store counts for a record in addition to its text: a checksum.
const RECORD_OVERHEAD_BYTES: u64 = 4;
/// Bytes that every store counts for the position of a fact or of a stored state, in addition to its record.
const POSITION_OVERHEAD_BYTES: u64 = 16;

/// A way to count the bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteMeasure {
    /// The size as a durable store writes the record: see [`fact_bytes`].
    Text,
    /// Like [`Self::Text`], but a change in a session's size is counted for its user from
    /// [`crate::limits::UNCOUNTED_BYTES_MAX`] bytes on, and when its owner releases it: for a store in which every
    /// change of a sum is a write.
    Deferred,
    /// By the weight of the content, which needs no JSON: for a store that writes no JSON.
    Weight,
}

/// The quotas of one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// For each tenant.
    pub tenant: Quota,
    /// For each user.
    pub user: Quota,
}

/// Stored bytes of each user.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    users: BTreeMap<Account, u64>,
    tenants: BTreeMap<TenantId, u64>,
    total: u64,
    /// Users whose number is not yet written to the store.
    changed: BTreeSet<Account>,
}

// === impl Quota ===

impl Quota {
    /// Returns the quota in bytes for a store that may hold `whole` bytes in all; `None`: no limit.
    pub fn bytes(self, whole: Option<u64>) -> Option<u64> {
        match self {
            Self::Off => None,
            Self::Bytes(bytes) => Some(bytes),
            Self::Part(part) => whole.map(|whole| part.part(whole)),
        }
    }
}

impl Quotas {
    /// Quotas without any limit.
    pub const OFF: Self = Self { tenant: Quota::Off, user: Quota::Off };

    /// Returns whether a quota is a part, which needs a store of known size.
    pub fn has_parts(self) -> bool {
        [self.tenant, self.user].iter().any(|quota| matches!(quota, Quota::Part(_)))
    }
}

impl Default for Quotas {
    /// Returns no quotas.
    fn default() -> Self {
        Self::OFF
    }
}

/// Returns the bytes that a fact counts for, from the length of its JSON.
pub fn fact_bytes(json: usize) -> u64 {
    RECORD_OVERHEAD_BYTES + POSITION_OVERHEAD_BYTES + json as u64
}

/// Returns the bytes that a waiting input or control entry counts for, from the length of its JSON.
pub fn waiting_bytes(json: usize) -> u64 {
    RECORD_OVERHEAD_BYTES + json as u64
}

/// Returns the bytes that a stored state counts for, from its length.
pub fn state_bytes(state: usize) -> u64 {
    RECORD_OVERHEAD_BYTES + POSITION_OVERHEAD_BYTES + state as u64
}

// === impl Usage ===

impl Usage {
    /// Sets a user's bytes to a number read from the store.
    pub fn restore(&mut self, account: Account, bytes: u64) {
        let before = self.of_user(&account);
        self.record_unmarked(&account, bytes.wrapping_sub(before).cast_signed());
    }

    /// Counts bytes that a user's session has gained or lost.
    pub fn record(&mut self, account: &Account, bytes: i64) {
        self.record_unmarked(account, bytes);
        self.changed.insert(account.clone());
    }

    /// Counts bytes without marking the number to be written.
    pub(super) fn record_unmarked(&mut self, account: &Account, bytes: i64) {
        let gained = add_to_sum(&mut self.users, account, bytes);
        add_to_sum(&mut self.tenants, &account.tenant, gained);
        self.total = self.total.saturating_add_signed(gained);
    }

    /// Returns the bytes of one user.
    pub fn of_user(&self, account: &Account) -> u64 {
        self.users.get(account).copied().unwrap_or(0)
    }

    /// Returns the bytes of all users of one user's tenant.
    pub fn of_tenant(&self, account: &Account) -> u64 {
        self.tenants.get(&account.tenant).copied().unwrap_or(0)
    }

    /// Returns the bytes of all users.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the quota that `bytes` more of a user would exceed. `free` is the space above the reserve, if known.
    pub fn exceeded_quota(
        &self,
        quotas: Quotas,
        account: &Account,
        bytes: i64,
        free: Option<u64>,
    ) -> Option<ShareBound> {
        if quotas == Quotas::OFF {
            return None;
        }
        let whole = free.map(|free| free.saturating_add(self.total()));
        let exceeds =
            |quota: Quota, held: u64| quota.bytes(whole).is_some_and(|most| held.saturating_add_signed(bytes) > most);
        if exceeds(quotas.user, self.of_user(account)) {
            return Some(ShareBound::User);
        }
        exceeds(quotas.tenant, self.of_tenant(account)).then_some(ShareBound::Tenant)
    }

    /// Takes the users whose numbers are to be written, with their bytes.
    pub fn take_changed(&mut self) -> Vec<(Account, u64)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|account| (account.clone(), self.of_user(&account))).collect()
    }

    /// Returns the account of the user that a session belongs to.
    pub fn account(key: &SessionKey, user: &crate::id::UserId) -> Account {
        Account { tenant: key.tenant.clone(), user: user.clone() }
    }
}

/// Adds to a sum, which never falls below zero, and removes a name whose sum is zero. Returns the change.
fn add_to_sum<K: Ord + Clone>(sums: &mut BTreeMap<K, u64>, name: &K, bytes: i64) -> i64 {
    let Some(sum) = sums.get_mut(name) else {
        let after = 0_u64.saturating_add_signed(bytes);
        if after > 0 {
            sums.insert(name.clone(), after);
        }
        return after.cast_signed();
    };
    let before = std::mem::replace(sum, sum.saturating_add_signed(bytes));
    let after = *sum;
    if after == 0 {
        sums.remove(name);
    }
    after.wrapping_sub(before).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::UserId;
    use crate::rng::Rng;

    fn account(tenant: &str, user: &str) -> Account {
        Account { tenant: TenantId::parse(tenant).expect("a name"), user: UserId::parse(user).expect("a name") }
    }

    fn parts(tenant: u16, user: u16) -> Quotas {
        let part = |thousandths| Quota::Part(Fraction::of_thousandths(thousandths).expect("a part"));
        Quotas { tenant: part(tenant), user: part(user) }
    }

    #[test]
    fn relative_quota_counts_used_and_free_space() {
        let mut usage = Usage::default();
        let quotas = parts(500, 250);
        usage.record(&account("evil", "eve"), 200);
        assert_eq!(usage.exceeded_quota(quotas, &account("evil", "eve"), 50, Some(800)), None);
        assert_eq!(usage.exceeded_quota(quotas, &account("evil", "eve"), 51, Some(800)), Some(ShareBound::User));
        usage.record(&account("evil", "bob"), 250);
        assert_eq!(usage.exceeded_quota(quotas, &account("evil", "sue"), 100, Some(650)), None);
        assert_eq!(usage.exceeded_quota(quotas, &account("evil", "sue"), 200, Some(550)), Some(ShareBound::Tenant));
        assert_eq!(usage.exceeded_quota(quotas, &account("acme", "ann"), 100, Some(550)), None);
        assert_eq!(
            usage.exceeded_quota(quotas, &account("evil", "eve"), 1 << 40, None),
            None,
            "free space is not known"
        );
    }

    #[test]
    fn absolute_quotas_need_no_disk() {
        let mut usage = Usage::default();
        let eve = account("evil", "eve");
        let quotas = Quotas { tenant: Quota::Off, user: Quota::Bytes(100) };
        usage.record(&eve, 60);
        assert_eq!(usage.exceeded_quota(quotas, &eve, 40, None), None);
        assert_eq!(usage.exceeded_quota(quotas, &eve, 41, None), Some(ShareBound::User));
        assert_eq!(usage.exceeded_quota(Quotas::OFF, &eve, i64::MAX, Some(0)), None);
    }

    #[test]
    fn random_gains_and_losses_return_to_zero() {
        let mut rng = Rng::from_number(5);
        let mut usage = Usage::default();
        let mut kept = Vec::new();
        for _ in 0..2_000 {
            let who = account(&format!("t{}", rng.below(3)), &format!("u{}", rng.below(3)));
            let bytes = i64::try_from(rng.below(10_000)).expect("small");
            usage.record(&who, bytes);
            kept.push((who, bytes));
            if rng.below(2) == 0 {
                let at = usize::try_from(rng.below(kept.len() as u64)).expect("small");
                let (who, bytes) = kept.swap_remove(at);
                usage.record(&who, -bytes);
            }
            let sum: i64 = kept.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(i64::try_from(usage.total()), Ok(sum));
        }
        for (who, bytes) in kept {
            usage.record(&who, -bytes);
        }
        assert_eq!(usage.total(), 0);
        assert!(usage.users.is_empty() && usage.tenants.is_empty());
        assert!(usage.take_changed().iter().all(|(_, bytes)| *bytes == 0));
    }
}

//! Fair shares of resources that a node's users hold: attempts, bytes, sessions, connections, subscriptions. A ledger
//! only counts and refuses; it stops nothing that runs. The switchboard and the gateway call it. [`queue`] defines
//! the order in which waiting holders are served.
pub mod queue;

use crate::id::{Principal, TenantId, UserId};
use std::collections::BTreeMap;

/// The user that an amount is counted for, with the user's tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    /// Tenant of the user.
    pub tenant: TenantId,
    /// User that acts, or that a service key acts for.
    pub user: UserId,
}

/// A part of a whole, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction(u16);

/// The settings of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Part of a node's capacity that one tenant may hold.
    pub tenant: Fraction,
    /// Part of its tenant's capacity that one user may hold.
    pub user: Fraction,
}

/// The bound that an amount would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareBound {
    /// Capacity of the node.
    Node,
    /// Share of the tenant.
    Tenant,
    /// Share of the user.
    User,
}

/// Amounts of one resource held by users of a node.
///
/// The bounds are dynamic thresholds (Choudhury and Hahne, 1998): a tenant may hold at most `f / (1 - f)` times what
/// the node has left, so one tenant alone reaches the fraction `f` of the node, and several tenants together always
/// leave room for a tenant that holds less. The same rule divides a tenant's part among its users.
#[derive(Clone, Debug)]
pub struct Ledger {
    capacity: u64,
    /// `None`: all users count as one, and only the capacity bounds them.
    shares: Option<Shares>,
    held: u64,
    tenants: BTreeMap<TenantId, TenantAccount>,
    refused: u64,
}

/// Amounts held by users of one tenant; no entry is zero.
#[derive(Clone, Debug, Default)]
struct TenantAccount {
    held: u64,
    users: BTreeMap<UserId, u64>,
}

// === impl Account ===

impl From<&Principal> for Account {
    fn from(principal: &Principal) -> Self {
        Self { tenant: principal.tenant.clone(), user: principal.user.clone() }
    }
}

// === impl Fraction ===

impl Fraction {
    /// The whole (1000 thousandths).
    pub const WHOLE: Self = Self(1000);

    /// Returns a fraction in thousandths; `None` for zero and for more than the whole.
    pub const fn of_thousandths(thousandths: u16) -> Option<Self> {
        if thousandths >= 1 && thousandths <= 1000 { Some(Self(thousandths)) } else { None }
    }

    /// Returns this part of an amount, rounded down.
    pub fn part(self, whole: u64) -> u64 {
        u64::try_from(u128::from(whole) * u128::from(self.0) / 1000).unwrap_or(u64::MAX)
    }

    /// Returns whether `held` is at most `f / (1 - f)` times `free`.
    fn admits(self, held: u64, free: u64) -> bool {
        u128::from(held) * u128::from(1000 - self.0) <= u128::from(free) * u128::from(self.0)
    }
}

// === impl Shares ===

impl Default for Shares {
    /// Returns three quarters of the node for a tenant and three quarters of the tenant for a user.
    fn default() -> Self {
        Self { tenant: Fraction(750), user: Fraction(750) }
    }
}

// === impl Ledger ===

impl Ledger {
    /// Creates an empty ledger; without `shares` only the capacity is a bound.
    pub fn new(capacity: u64, shares: Option<Shares>) -> Self {
        Self { capacity, shares, held: 0, tenants: BTreeMap::new(), refused: 0 }
    }

    /// Returns the bound that a further amount would exceed, if any.
    pub fn exceeded_bound(&self, account: &Account, amount: u64) -> Option<ShareBound> {
        let held = self.held.saturating_add(amount);
        if held > self.capacity {
            return Some(ShareBound::Node);
        }
        let shares = self.shares?;
        let tenant = self.tenants.get(&account.tenant);
        let of_tenant = tenant.map_or(0, |tenant| tenant.held);
        // The first amount needs no share, else small capacities would admit nobody.
        if of_tenant > 0 && !shares.tenant.admits(of_tenant.saturating_add(amount), self.capacity - held) {
            return Some(ShareBound::Tenant);
        }
        let of_user = tenant.and_then(|tenant| tenant.users.get(&account.user)).copied().unwrap_or(0);
        let free = shares.tenant.part(self.capacity).saturating_sub(of_tenant.saturating_add(amount));
        let admits = of_user == 0 || shares.user.admits(of_user.saturating_add(amount), free);
        (!admits).then_some(ShareBound::User)
    }

    /// Returns whether a further amount may be held, and counts a refusal if the amount may not be held.
    pub fn check(&mut self, account: &Account, amount: u64) -> Result<(), ShareBound> {
        let over = self.exceeded_bound(account, amount);
        self.refused += u64::from(over.is_some());
        over.map_or(Ok(()), Err)
    }

    /// Takes an amount, unless that exceeds a bound.
    pub fn take(&mut self, account: &Account, amount: u64) -> Result<(), ShareBound> {
        self.check(account, amount)?;
        self.force(account, amount);
        Ok(())
    }

    /// Counts an amount that is held regardless of the bounds, such as a session taken over from a lost node.
    pub fn force(&mut self, account: &Account, amount: u64) {
        self.held += amount;
        if self.shares.is_none() || amount == 0 {
            return;
        }
        let tenant = self.tenants.entry(account.tenant.clone()).or_default();
        tenant.held += amount;
        *tenant.users.entry(account.user.clone()).or_default() += amount;
    }

    /// Gives back an amount that was taken or forced.
    pub fn release(&mut self, account: &Account, amount: u64) {
        crate::invariant!(self.held >= amount, "{} held, but {amount} released", self.held);
        self.held -= amount;
        if self.shares.is_none() || amount == 0 {
            return;
        }
        let Some(tenant) = self.tenants.get_mut(&account.tenant) else { return };
        tenant.held = tenant.held.saturating_sub(amount);
        if let Some(held) = tenant.users.get_mut(&account.user) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                tenant.users.remove(&account.user);
            }
        }
        if tenant.users.is_empty() {
            self.tenants.remove(&account.tenant);
        }
    }

    /// Returns the amount that all holders have together.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Returns the number of refusals since the start.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the total amount that may be held.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
}

#[cfg(test)]
mod tests;

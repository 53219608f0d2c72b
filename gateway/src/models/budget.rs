//! Budgets of tokens and money for calls of language models: the accounts, limits and amounts. [`ledger`] does the arithmetic
//! without IO, [`keeper`] keeps the ledgers in the store. Knows neither prices nor callers' rights; used by `http::models`.
mod account_queue;
mod index;
pub mod keeper;
pub mod ledger;

use crate::store::registers::{RegisterValue, Registers};
use form_urlencoded::byte_serialize;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use turnway_core::id::{AgentId, TenantId, UserId};
use turnway_core::limits;
use turnway_core::store::StoreError;
use turnway_core::time::Millis;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A kind of account. Calls reserve in this order: the narrowest account first, so that a call which its own budget refuses
/// does not touch those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetKind {
    Key,
    Agent,
    User,
    Tenant,
}

/// An account that may have a budget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BudgetAccount {
    pub tenant: TenantId,
    pub kind: BudgetKind,
    /// The id of the key, agent or user; empty for the tenant itself.
    pub name: String,
}

/// A calendar period, in UTC by the store's clock, or all time, after which the amounts of a budget start again at zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetPeriod {
    Day,
    Month,
    Total,
}

/// The limits of an account in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetLimits {
    /// Input and output tokens together.
    pub tokens: Option<u64>,
    /// Millionths of the operator's currency.
    pub cost: Option<u64>,
    pub period: BudgetPeriod,
}

/// The amount of one call: the most that it may use, or what it has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetAmount {
    pub tokens: u64,
    /// Millionths of the operator's currency; `None` if the price is unknown.
    pub cost: Option<u64>,
}

/// The amount of several calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetTotals {
    pub tokens: u64,
    /// Millionths of the operator's currency, of the calls whose price is known.
    pub cost: u64,
}

/// A limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetResource {
    Tokens,
    Cost,
}

/// A state of a budget, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetView {
    pub limits: BudgetLimits,
    /// Amounts of the calls of this period that have ended.
    pub settled: BudgetTotals,
    /// Amounts of open calls.
    pub reserved: BudgetTotals,
    /// Number of open calls.
    pub open_calls: usize,
    /// The part of `settled` that calls used beyond their reservations.
    pub overdraft: BudgetTotals,
    /// Number of calls that used more than was reserved for them.
    pub overdraft_calls: u64,
    /// Tokens that a new call may reserve; `None` without a limit.
    pub remaining_tokens: Option<u64>,
    /// Cost that a new call may reserve; `None` without a limit.
    pub remaining_cost: Option<u64>,
    /// `None` if the period has no end.
    pub period_end: Option<Millis>,
}

/// A description of an exhausted budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetExhausted {
    pub resource: BudgetResource,
    pub limit: u64,
    /// Used in this period.
    pub settled: u64,
    /// Reserved by open calls, which may use less.
    pub reserved: u64,
    /// The time from which the whole limit is available again; `None` if there is no such time.
    pub period_end: Option<Millis>,
}

/// A reason why an account admits no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetRefusalReason {
    /// The call may use more than what is left.
    Exhausted(BudgetExhausted),
    /// The account has a limit of cost, and the call has no known price.
    UnknownPrice,
    /// The account has too many open or waiting calls.
    Busy { retry_after: Duration },
    /// The store did not answer.
    Unavailable { retry_after: Duration },
    /// The stored budget was written by a newer release.
    Unreadable,
}

/// A refusal of a call by one of its accounts. Nothing stays reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRefusal {
    pub account: BudgetAccount,
    pub reason: BudgetRefusalReason,
}

/// A reason why budgets cannot be read or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// The store did not answer; a change may have happened.
    #[error("the store is unavailable; try again")]
    Unavailable,
    /// Other changes came first in every try, or too many wait.
    #[error("the budget is being changed by too many others at the same time; try again")]
    Busy,
    /// The stored value cannot be parsed.
    #[error("the stored budget cannot be read: it was written by a newer release")]
    Unreadable,
    /// The tenant has too many accounts with limits.
    #[error(
        "the tenant has limits for {} accounts, which is the maximum; remove some first",
        limits::BUDGET_ACCOUNTS_MAX
    )]
    TooManyAccounts,
    /// The name is too long, is missing, or is given for a tenant.
    #[error(
        "a key, agent or user has a name of at most {} bytes, and a tenant has none",
        limits::BUDGET_NAME_BYTES_MAX
    )]
    BadAccount,
}

/// The registers, for the limited number of ops that budgets may have in the store at a time.
#[derive(Clone)]
pub(super) struct BudgetRegisters {
    registers: Registers,
    permits: Arc<Semaphore>,
}

// === impl BudgetKind ===

impl BudgetKind {
    /// Returns the name of the kind in the store and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Agent => "agent",
            Self::User => "user",
            Self::Tenant => "tenant",
        }
    }
}

// === impl BudgetAccount ===

impl BudgetAccount {
    /// Returns the account of a tenant as a whole.
    pub fn of_tenant(tenant: TenantId) -> Self {
        Self { tenant, kind: BudgetKind::Tenant, name: String::new() }
    }

    /// Returns the accounts of a call that a run makes.
    pub fn of_run(tenant: &TenantId, user: &UserId, agent: &AgentId) -> Vec<Self> {
        let named = |kind, name: &str| Self { tenant: tenant.clone(), kind, name: name.to_owned() };
        vec![
            named(BudgetKind::Agent, agent.as_str()),
            named(BudgetKind::User, user.as_str()),
            Self::of_tenant(tenant.clone()),
        ]
    }

    /// Returns the accounts of a call that a client makes, with an API key or another credential.
    pub fn of_client(tenant: &TenantId, user: &UserId, key: Option<&str>) -> Vec<Self> {
        let named = |kind, name: &str| Self { tenant: tenant.clone(), kind, name: name.to_owned() };
        let of_key = key.map(|key| named(BudgetKind::Key, key));
        of_key.into_iter().chain([named(BudgetKind::User, user.as_str()), Self::of_tenant(tenant.clone())]).collect()
    }

    /// Returns the name of the register of the ledger. Ids of tenants have no slash, and the name is encoded, so that no two
    /// accounts share a register.
    fn register(&self) -> String {
        let name: String = byte_serialize(self.name.as_bytes()).collect();
        format!("budget/{}/{}/{name}", self.tenant, self.kind.as_str())
    }

    /// Checks that the account has a name if its kind has names.
    pub fn check(&self) -> Result<(), BudgetError> {
        let is_named = (1..=limits::BUDGET_NAME_BYTES_MAX).contains(&self.name.len());
        let is_good = if self.kind == BudgetKind::Tenant { self.name.is_empty() } else { is_named };
        if is_good { Ok(()) } else { Err(BudgetError::BadAccount) }
    }
}

// === impl BudgetPeriod ===

impl BudgetPeriod {
    /// Returns the start of the period at a time.
    fn start(self, now: Millis) -> Millis {
        match self {
            Self::Day => Millis(now.0 - now.0 % DAY_MS),
            Self::Month => day_ms(date(now).first_of_month()),
            Self::Total => Millis(0),
        }
    }

    /// Returns the end of the period that has this start.
    fn end(self, start: Millis) -> Option<Millis> {
        match self {
            Self::Day => Some(Millis(start.0.saturating_add(DAY_MS))),
            Self::Month => {
                let next = date(start).last_of_month().tomorrow().ok()?;
                Some(day_ms(next))
            }
            Self::Total => None,
        }
    }
}

/// Returns the date in UTC; times beyond the year 9999 count as 1970.
fn date(at: Millis) -> Date {
    let at = i64::try_from(at.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    TimeZone::UTC.to_datetime(at.unwrap_or_default()).date()
}

fn day_ms(date: Date) -> Millis {
    let start = TimeZone::UTC.to_timestamp(date.into()).unwrap_or_default();
    Millis(u64::try_from(start.as_millisecond()).unwrap_or_default())
}

// === impl BudgetError ===

impl BudgetError {
    /// Returns the reason for which a call is refused because of this error.
    fn refusal(self) -> BudgetRefusalReason {
        let retry_after = limits::BUDGET_RETRY_AFTER;
        match self {
            Self::Unavailable => BudgetRefusalReason::Unavailable { retry_after },
            Self::Busy | Self::TooManyAccounts => BudgetRefusalReason::Busy { retry_after },
            Self::Unreadable | Self::BadAccount => BudgetRefusalReason::Unreadable,
        }
    }
}

impl From<StoreError> for BudgetError {
    fn from(_: StoreError) -> Self {
        Self::Unavailable
    }
}

// === impl BudgetRegisters ===

impl BudgetRegisters {
    fn new(registers: Registers) -> Self {
        Self { registers, permits: Arc::new(Semaphore::new(limits::BUDGET_STORE_OPS_MAX)) }
    }

    async fn get(&self, name: &str) -> Result<RegisterValue, StoreError> {
        let _permit = self.permits.acquire().await.map_err(|_| StoreError::Unavailable)?;
        self.registers.get(name).await
    }

    async fn put(&self, name: &str, expect: u64, bytes: Vec<u8>) -> Result<RegisterValue, StoreError> {
        let _permit = self.permits.acquire().await.map_err(|_| StoreError::Unavailable)?;
        self.registers.put(name, expect, bytes).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Millis {
        let at: Timestamp = text.parse().expect("a time");
        Millis(u64::try_from(at.as_millisecond()).expect("after 1970"))
    }

    #[test]
    fn periods_are_days_and_months_in_utc() {
        let leap = at("2028-02-29T23:59:59.999Z");
        assert_eq!(BudgetPeriod::Day.start(leap), at("2028-02-29T00:00:00Z"));
        assert_eq!(BudgetPeriod::Day.end(at("2028-02-29T00:00:00Z")), Some(at("2028-03-01T00:00:00Z")));
        assert_eq!(BudgetPeriod::Month.start(leap), at("2028-02-01T00:00:00Z"));
        assert_eq!(BudgetPeriod::Month.end(at("2028-02-01T00:00:00Z")), Some(at("2028-03-01T00:00:00Z")));
        assert_eq!(BudgetPeriod::Month.end(at("2027-12-01T00:00:00Z")), Some(at("2028-01-01T00:00:00Z")));
        let first = at("2028-03-01T00:00:00Z");
        assert_eq!([BudgetPeriod::Day, BudgetPeriod::Month].map(|period| period.start(first)), [first; 2]);
        assert_eq!(BudgetPeriod::Total.end(BudgetPeriod::Total.start(leap)), None);
        for period in [BudgetPeriod::Day, BudgetPeriod::Month, BudgetPeriod::Total] {
            assert!(period.start(Millis(u64::MAX)) <= Millis(u64::MAX));
            period.end(Millis(u64::MAX));
        }
    }

    #[test]
    fn accounts_have_registers_of_their_own() {
        let tenants = ["a", "a-user", "default"].map(|name| TenantId::parse(name).expect("a name"));
        let names = ["x", "x/y", "x%2Fy", "x+y", "x y", "ä", "channel:rooms/main", "user/x"];
        let mut accounts: Vec<_> = tenants.iter().cloned().map(BudgetAccount::of_tenant).collect();
        for tenant in &tenants {
            for kind in [BudgetKind::User, BudgetKind::Key, BudgetKind::Agent] {
                let account = |name: &str| BudgetAccount { tenant: tenant.clone(), kind, name: name.to_owned() };
                accounts.extend(names.map(account));
            }
        }
        let registers: std::collections::BTreeSet<_> = accounts.iter().map(BudgetAccount::register).collect();
        assert_eq!(registers.len(), accounts.len());
        assert!(registers.iter().all(|name| name.is_ascii() && !turnway_node::switchboard::is_switchboard_value(name)));
        assert!(accounts.iter().all(|account| account.check().is_ok()));
        let bad = BudgetAccount { name: "x".to_owned(), ..BudgetAccount::of_tenant(tenants[0].clone()) };
        assert_eq!(bad.check(), Err(BudgetError::BadAccount));
    }
}

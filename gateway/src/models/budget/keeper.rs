//! Keeps the budgets of a gateway in its store, exact over all its nodes: reserves the most that a call may use before it is made,
//! and settles what it has used. Knows neither prices nor callers; used by `http::models`.
use super::account_queue::{AccountQueue, LedgerChange};
use super::index::{BudgetIndex, LimitedAccounts};
use super::{
    BudgetAccount, BudgetAmount, BudgetError, BudgetKind, BudgetLimits, BudgetRefusal, BudgetRefusalReason,
    BudgetRegisters, BudgetView,
};
use crate::clock::Clock;
use crate::store::registers::Registers;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;
use tokio::time::timeout;
use turnway_core::id::{EventId, TenantId};
use turnway_core::limits;
use turnway_core::time::Millis;

/// The budgets of a gateway. Clones share them.
#[derive(Clone)]
pub struct BudgetKeeper(Arc<BudgetKeeperInner>);

struct BudgetKeeperInner {
    registers: BudgetRegisters,
    clock: Clock,
    runtime: Handle,
    index: Arc<BudgetIndex>,
    queues: Mutex<HashMap<BudgetAccount, Arc<AccountQueue>>>,
}

/// A reservation of one call in all its accounts that have limits. If it is dropped, the reserved amount counts as used.
#[must_use = "a reservation that is dropped counts as used"]
pub struct BudgetReservation {
    queues: Vec<Arc<AccountQueue>>,
    deadline: Millis,
    /// The change of each ledger when the reservation is dropped.
    end: LedgerChange,
}

// === impl BudgetKeeper ===

impl BudgetKeeper {
    /// Creates the keeper of the budgets in these registers. Reads nothing yet. `runtime` runs what outlasts a call.
    pub fn new(registers: Registers, clock: Clock, runtime: Handle) -> Self {
        let registers = BudgetRegisters::new(registers);
        let mono = clock.clone();
        let index = BudgetIndex::new(registers.clone(), Arc::new(move || mono.mono()), runtime.clone());
        let queues = Mutex::default();
        Self(Arc::new(BudgetKeeperInner { registers, clock, runtime, index: Arc::new(index), queues }))
    }

    /// Reserves the most that a call may use in each of its accounts that has limits. `call` must be new for each call. After the
    /// deadline the reserved amount counts as used, even if this node has died. Dropping the future reserves nothing.
    pub async fn reserve(
        &self,
        accounts: &[BudgetAccount],
        call: EventId,
        bound: BudgetAmount,
        deadline: Millis,
    ) -> Result<BudgetReservation, BudgetRefusal> {
        let limited = self.limited(accounts).await?;
        // Released when dropped, until every account has admitted the call.
        let end = LedgerChange::Release { call };
        let mut reservation = BudgetReservation { queues: Vec::new(), deadline, end };
        for account in limited {
            let refuse = |reason: BudgetRefusalReason| BudgetRefusal { account: account.clone(), reason };
            let queue = self.queue(account).ok_or_else(|| refuse(BudgetError::Busy.refusal()))?;
            reservation.queues.push(Arc::clone(&queue));
            match queue.perform(LedgerChange::Reserve { call, bound, deadline }).await {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => {
                    reservation.queues.pop();
                    return Err(refuse(reason));
                }
                Err(error) => return Err(refuse(error.refusal())),
            }
        }
        reservation.end = LedgerChange::Settle { call, used: None };
        Ok(reservation)
    }

    /// Sets the limits of an account, or removes them with its amounts. Takes effect at this node at once, and at other nodes
    /// within [`limits::BUDGET_CACHE_TTL`]. May be repeated after an error.
    pub async fn set(&self, account: &BudgetAccount, limits: Option<BudgetLimits>) -> Result<(), BudgetError> {
        account.check()?;
        let queue = self.queue(account).ok_or(BudgetError::Busy)?;
        let change = LedgerChange::SetLimits(limits);
        // A ledger that is not in the list is not used: after an error half-way, the account has no limits.
        if limits.is_none() {
            self.0.index.change(account, false).await?;
            return queue.perform(change).await.map(drop);
        }
        let is_known = |listed: Arc<LimitedAccounts>| listed.contains(&(account.kind, account.name.clone()));
        if !is_known(self.0.index.read_accounts(&account.tenant).await?) {
            // An earlier removal may have left a ledger behind.
            queue.perform(LedgerChange::SetLimits(None)).await?.ok();
        }
        queue.perform(change).await?.ok();
        self.0.index.change(account, true).await
    }

    /// Returns the state of an account's budget; `None` if it has no limits.
    pub async fn show(&self, account: &BudgetAccount) -> Result<Option<BudgetView>, BudgetError> {
        let listed = self.0.index.read_accounts(&account.tenant).await?;
        if !listed.contains(&(account.kind, account.name.clone())) {
            return Ok(None);
        }
        self.view(account).await
    }

    /// Returns the accounts of a tenant that have limits, and the states of their budgets.
    pub async fn list(&self, tenant: &TenantId) -> Result<BTreeMap<BudgetAccount, BudgetView>, BudgetError> {
        let listed = self.0.index.read_accounts(tenant).await?;
        let account = |(kind, name): &(BudgetKind, String)| BudgetAccount {
            tenant: tenant.clone(),
            kind: *kind,
            name: name.clone(),
        };
        let accounts: Vec<BudgetAccount> = listed.iter().map(account).collect();
        let views = accounts.into_iter().map(|account| async move {
            let view = self.view(&account).await?;
            Ok::<_, BudgetError>(view.map(|view| (account, view)))
        });
        let found: Vec<_> = stream::iter(views).buffer_unordered(limits::BUDGET_LIST_READS_MAX).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn view(&self, account: &BudgetAccount) -> Result<Option<BudgetView>, BudgetError> {
        let ledger = self.new_queue(account).read().await?;
        Ok(ledger.map(|ledger| ledger.view(self.0.clock.now().store)))
    }

    /// Returns those of the accounts that have limits, in the order in which every call reserves. With one order, of two calls
    /// that together exceed the limits of several accounts, the first account admits one.
    async fn limited<'a>(&self, accounts: &'a [BudgetAccount]) -> Result<BTreeSet<&'a BudgetAccount>, BudgetRefusal> {
        let mut limited = BTreeSet::new();
        for account in accounts {
            let read = timeout(limits::BUDGET_WAIT_MAX, self.0.index.accounts(&account.tenant)).await;
            let listed = read.unwrap_or(Err(BudgetError::Unavailable));
            let listed = listed.map_err(|error| BudgetRefusal { account: account.clone(), reason: error.refusal() })?;
            if !listed.is_empty() && listed.contains(&(account.kind, account.name.clone())) {
                limited.insert(account);
            }
        }
        Ok(limited)
    }

    /// Returns the queue of an account, or `None` if too many accounts are in use.
    fn queue(&self, account: &BudgetAccount) -> Option<Arc<AccountQueue>> {
        let mut queues = self.0.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(account) {
            return Some(Arc::clone(queue));
        }
        if queues.len() >= limits::BUDGET_CACHE_MAX {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
            if queues.len() >= limits::BUDGET_CACHE_MAX {
                return None;
            }
        }
        let queue = Arc::new(self.new_queue(account));
        queues.insert(account.clone(), Arc::clone(&queue));
        Some(queue)
    }

    fn new_queue(&self, account: &BudgetAccount) -> AccountQueue {
        let BudgetKeeperInner { registers, clock, runtime, .. } = &*self.0;
        AccountQueue::new(account.register(), registers.clone(), clock.clone(), runtime.clone())
    }
}

// === impl BudgetReservation ===

impl BudgetReservation {
    /// Ends the call: replaces the reservation by what was used, in full even if it is more. `None`: what was used is unknown, and
    /// the reserved amount counts as used. Returns at once; the store is told in the background.
    pub fn settle(mut self, used: Option<BudgetAmount>) {
        if let LedgerChange::Settle { used: settled, .. } = &mut self.end {
            *settled = used;
        }
    }

    /// Gives the reservation back, because the call was not made.
    pub fn release(mut self) {
        if let LedgerChange::Settle { call, .. } = self.end {
            self.end = LedgerChange::Release { call };
        }
    }

    /// Returns whether no account of the call has limits.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.perform_later(self.end, self.deadline);
        }
    }
}

impl fmt::Debug for BudgetKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BudgetKeeper").finish_non_exhaustive()
    }
}

impl fmt::Debug for BudgetReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BudgetReservation").field("end", &self.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

//! The ledger of one budget: reservations of open calls, and what ended calls have used. Does no IO and reads no clock;
//! [`keeper`](super::keeper) stores it.
use super::{
    BudgetAmount, BudgetError, BudgetExhausted, BudgetLimits, BudgetRefusalReason, BudgetResource, BudgetTotals,
    BudgetView,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::mem;
use turnway_core::id::EventId;
use turnway_core::limits;
use turnway_core::time::Millis;

/// Version of the encoding. A release that adds a field raises it, because an older one would drop the field.
const VERSION: u32 = 1;

/// A ledger of an account with limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetLedger {
    limits: BudgetLimits,
    period_start: Millis,
    settled: BudgetTotals,
    overdraft: BudgetTotals,
    overdraft_calls: u64,
    reservations: BTreeMap<EventId, OpenReservation>,
}

/// A reservation of a call that has not ended. Its names are short, because a ledger has many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OpenReservation {
    #[serde(rename = "t")]
    tokens: u64,
    /// `None` if the price is unknown, which only an account without a limit of cost admits.
    #[serde(rename = "c")]
    cost: Option<u64>,
    #[serde(rename = "d")]
    deadline: Millis,
}

/// The stored form of a ledger. An account whose limits were removed keeps a value, so that versions of the value in the store
/// never repeat.
#[derive(Serialize)]
struct EncodedLedger<'a> {
    version: u32,
    ledger: Option<&'a BudgetLedger>,
}

/// The part of the stored form that every release can read.
#[derive(Deserialize)]
struct EncodedVersion {
    version: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecodedLedger {
    #[serde(rename = "version")]
    _version: u32,
    ledger: Option<BudgetLedger>,
}

// === impl BudgetLedger ===

impl BudgetLedger {
    /// Creates a ledger in which nothing is used or reserved.
    pub fn new(now: Millis, limits: BudgetLimits) -> Self {
        Self {
            limits,
            period_start: limits.period.start(now),
            settled: BudgetTotals::default(),
            overdraft: BudgetTotals::default(),
            overdraft_calls: 0,
            reservations: BTreeMap::new(),
        }
    }

    /// Changes the limits. Used and reserved amounts remain, except that another kind of period starts a new period: how much
    /// of the used amount belongs to it is not known.
    pub fn set_limits(&mut self, now: Millis, limits: BudgetLimits) {
        self.advance(now);
        if limits.period != self.limits.period {
            self.begin_period(limits.period.start(now));
        }
        self.limits = limits;
    }

    /// Reserves the most that a call may use, until the call is settled or its deadline passes. Repeating it for an open call
    /// changes nothing.
    pub fn reserve(
        &mut self,
        now: Millis,
        call: EventId,
        bound: BudgetAmount,
        deadline: Millis,
    ) -> Result<(), BudgetRefusalReason> {
        self.advance(now);
        if self.reservations.contains_key(&call) {
            return Ok(());
        }
        let reserved = self.reserved();
        let BudgetLimits { tokens, cost, .. } = self.limits;
        if let Some(limit) = tokens {
            self.check(BudgetResource::Tokens, limit, self.settled.tokens, reserved.tokens, bound.tokens)?;
        }
        if let Some(limit) = cost {
            let bound = bound.cost.ok_or(BudgetRefusalReason::UnknownPrice)?;
            self.check(BudgetResource::Cost, limit, self.settled.cost, reserved.cost, bound)?;
        }
        if self.reservations.len() >= limits::BUDGET_RESERVATIONS_MAX {
            return Err(BudgetRefusalReason::Busy { retry_after: limits::BUDGET_RETRY_AFTER });
        }
        let reservation = OpenReservation { tokens: bound.tokens, cost: bound.cost, deadline };
        self.reservations.insert(call, reservation);
        Ok(())
    }

    /// Ends a call: replaces its reservation by what the call used, even if that is more. If `used` or its cost is unknown, the
    /// reserved amount counts as used. Changes nothing for a call without a reservation, which has ended before.
    pub fn settle(&mut self, now: Millis, call: EventId, used: Option<BudgetAmount>) {
        self.advance(now);
        if let Some(reservation) = self.reservations.remove(&call) {
            self.spend(reservation, used);
        }
    }

    /// Ends a call that was not made: nothing is used.
    pub fn release(&mut self, now: Millis, call: EventId) {
        self.advance(now);
        self.reservations.remove(&call);
    }

    /// Returns the state at a time.
    pub fn view(&self, now: Millis) -> BudgetView {
        let mut ledger = self.clone();
        ledger.advance(now);
        let Self { limits, settled, overdraft, overdraft_calls, .. } = ledger;
        let reserved = ledger.reserved();
        let left = |limit: u64, settled: u64, reserved: u64| limit.saturating_sub(settled).saturating_sub(reserved);
        BudgetView {
            limits,
            settled,
            reserved,
            open_calls: ledger.reservations.len(),
            overdraft,
            overdraft_calls,
            remaining_tokens: limits.tokens.map(|limit| left(limit, settled.tokens, reserved.tokens)),
            remaining_cost: limits.cost.map(|limit| left(limit, settled.cost, reserved.cost)),
            period_end: limits.period.end(ledger.period_start),
        }
    }

    /// Encodes the ledger of an account for the store; none if the account has no limits any more.
    pub fn encode(ledger: Option<&Self>) -> Vec<u8> {
        let stored = EncodedLedger { version: VERSION, ledger };
        serde_json::to_vec(&stored).unwrap_or_else(|_| unreachable!("ledgers are numbers and ids"))
    }

    /// Decodes the ledger of an account. Refuses what this release does not know in full.
    pub fn decode(bytes: Option<&[u8]>) -> Result<Option<Self>, BudgetError> {
        let Some(bytes) = bytes else { return Ok(None) };
        let EncodedVersion { version } = serde_json::from_slice(bytes).map_err(|_| BudgetError::Unreadable)?;
        if version != VERSION {
            return Err(BudgetError::Unreadable);
        }
        let stored: DecodedLedger = serde_json::from_slice(bytes).map_err(|_| BudgetError::Unreadable)?;
        Ok(stored.ledger)
    }

    fn check(
        &self,
        resource: BudgetResource,
        limit: u64,
        settled: u64,
        reserved: u64,
        bound: u64,
    ) -> Result<(), BudgetRefusalReason> {
        if settled.saturating_add(reserved).saturating_add(bound) <= limit {
            return Ok(());
        }
        let period_end = self.limits.period.end(self.period_start);
        Err(BudgetRefusalReason::Exhausted(BudgetExhausted { resource, limit, settled, reserved, period_end }))
    }

    fn reserved(&self) -> BudgetTotals {
        self.reservations.values().fold(BudgetTotals::default(), |sum, open| sum.plus(open.totals()))
    }

    /// Starts a new period if the last one is over, and counts calls whose deadline has passed as used in full: their node died,
    /// and nobody knows what they used.
    fn advance(&mut self, now: Millis) {
        let start = self.limits.period.start(now);
        if start > self.period_start {
            // A call that expired in the last period belongs to that period.
            self.expire(Millis(start.0 - 1));
            self.begin_period(start);
        } else if self.period_start.0 > now.0.saturating_add(limits::BUDGET_CLOCK_TOLERANCE_MS) {
            // A clock was far ahead. Without this, the next period would begin only at that time.
            self.period_start = start;
        }
        self.expire(now);
    }

    fn begin_period(&mut self, start: Millis) {
        self.period_start = start;
        self.settled = BudgetTotals::default();
        self.overdraft = BudgetTotals::default();
        self.overdraft_calls = 0;
    }

    fn expire(&mut self, now: Millis) {
        if self.reservations.values().all(|open| open.deadline > now) {
            return;
        }
        for (call, open) in mem::take(&mut self.reservations) {
            if open.deadline > now {
                self.reservations.insert(call, open);
            } else {
                self.spend(open, None);
            }
        }
    }

    fn spend(&mut self, reservation: OpenReservation, used: Option<BudgetAmount>) {
        let reserved = reservation.totals();
        let used = used
            .map_or(reserved, |used| BudgetTotals { tokens: used.tokens, cost: used.cost.unwrap_or(reserved.cost) });
        self.settled = self.settled.plus(used);
        let excess = BudgetTotals {
            tokens: used.tokens.saturating_sub(reserved.tokens),
            // Without a known price nothing was reserved that could be exceeded.
            cost: used.cost.saturating_sub(reservation.cost.unwrap_or(used.cost)),
        };
        if excess != BudgetTotals::default() {
            self.overdraft = self.overdraft.plus(excess);
            self.overdraft_calls = self.overdraft_calls.saturating_add(1);
        }
    }
}

// === impl OpenReservation ===

impl OpenReservation {
    fn totals(self) -> BudgetTotals {
        BudgetTotals { tokens: self.tokens, cost: self.cost.unwrap_or_default() }
    }
}

// === impl BudgetTotals ===

impl BudgetTotals {
    fn plus(self, more: Self) -> Self {
        Self { tokens: self.tokens.saturating_add(more.tokens), cost: self.cost.saturating_add(more.cost) }
    }
}

#[cfg(test)]
mod tests;

//! The changes of one account's ledger at one node: waiting changes are applied together and written by one put, which only the
//! version in the store decides. Used by [`keeper`](super::keeper).
use super::ledger::BudgetLedger;
use super::{BudgetAmount, BudgetError, BudgetLimits, BudgetRefusalReason, BudgetRegisters};
use crate::clock::Clock;
use crate::store::registers::RegisterValue;
use crate::supervise;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use turnway_core::id::EventId;
use turnway_core::limits;
use turnway_core::store::StoreError;
use turnway_core::time::Millis;

/// The queue of one account.
pub(super) struct AccountQueue {
    /// Name of the ledger in the store.
    register: String,
    registers: BudgetRegisters,
    clock: Clock,
    runtime: Handle,
    state: Mutex<QueueState>,
    /// Ends the pause after a failure.
    arrived: Notify,
}

/// A change of a ledger.
#[derive(Clone, Copy, Debug)]
pub(super) enum LedgerChange {
    Reserve { call: EventId, bound: BudgetAmount, deadline: Millis },
    Settle { call: EventId, used: Option<BudgetAmount> },
    Release { call: EventId },
    SetLimits(Option<BudgetLimits>),
}

/// An outcome of a change, which only a reservation can be refused; an error means that it may or may not have happened.
pub(super) type ChangeOutcome = Result<Result<(), BudgetRefusalReason>, BudgetError>;

#[derive(Default)]
struct QueueState {
    waiting: Vec<QueuedChange>,
    /// Number of changes that wait or are being written.
    pending: usize,
    /// A task writes; it looks for further changes before it ends.
    is_writing: bool,
    /// The ledger as last seen: with luck still the stored one.
    seen: Option<SeenLedger>,
    /// The version that a put of unknown outcome expected. The store may still perform that put, until the version is higher.
    unknown_put: Option<u64>,
}

struct QueuedChange {
    change: LedgerChange,
    waiter: ChangeWaiter,
}

enum ChangeWaiter {
    /// A caller, who is told of any error.
    Caller(oneshot::Sender<ChangeOutcome>),
    /// Nobody: the change is repeated after errors until this time.
    Until(Millis),
}

struct SeenLedger {
    version: u64,
    ledger: Option<BudgetLedger>,
}

// === impl AccountQueue ===

impl AccountQueue {
    /// Creates the queue of the account whose ledger has this name in the store.
    pub(super) fn new(register: String, registers: BudgetRegisters, clock: Clock, runtime: Handle) -> Self {
        Self { register, registers, clock, runtime, state: Mutex::default(), arrived: Notify::new() }
    }

    /// Performs a change. If the caller goes away, the change may still happen.
    pub(super) async fn perform(self: &Arc<Self>, change: LedgerChange) -> ChangeOutcome {
        let (answer, answered) = oneshot::channel();
        let queued = QueuedChange { change, waiter: ChangeWaiter::Caller(answer) };
        if !self.push(queued, limits::BUDGET_WAITING_MAX) {
            return Err(BudgetError::Busy);
        }
        match timeout(limits::BUDGET_WAIT_MAX, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(BudgetError::Unavailable),
        }
    }

    /// Performs a change in the background, after all earlier ones, and repeats it after errors until a time.
    pub(super) fn perform_later(self: &Arc<Self>, change: LedgerChange, until: Millis) {
        let queued = QueuedChange { change, waiter: ChangeWaiter::Until(until) };
        if !self.push(queued, limits::BUDGET_WAITING_MAX + limits::BUDGET_ENDS_MAX) {
            tracing::warn!("too many ended calls wait to be settled; the reserved amount of one counts as used");
        }
    }

    /// Reads the ledger.
    pub(super) async fn read(&self) -> Result<Option<BudgetLedger>, BudgetError> {
        let value = self.registers.get(&self.register).await?;
        BudgetLedger::decode(value.bytes.as_deref())
    }

    fn push(self: &Arc<Self>, queued: QueuedChange, pending_max: usize) -> bool {
        let mut state = self.state();
        if state.pending >= pending_max {
            return false;
        }
        state.pending += 1;
        state.waiting.push(queued);
        if state.is_writing {
            self.arrived.notify_one();
        } else {
            state.is_writing = true;
            let this = Arc::clone(self);
            self.runtime.spawn(async move {
                if supervise::run_caught("budget of an account", this.write_all()).await {
                    this.forget_lost_changes();
                }
            });
        }
        true
    }

    /// Writes until nothing waits.
    async fn write_all(&self) {
        let mut batch = Vec::new();
        let mut pause = limits::BUDGET_BACKOFF;
        while self.take_waiting(&mut batch) {
            match self.write(&mut batch).await {
                Ok(outcomes) => {
                    pause = limits::BUDGET_BACKOFF;
                    self.state().pending -= batch.len();
                    for (queued, outcome) in batch.drain(..).zip(outcomes) {
                        queued.answer(Ok(outcome));
                    }
                }
                Err(error) => {
                    self.fail(&mut batch, error);
                    if !batch.is_empty() {
                        // Ends at once if a caller comes, who wants to know whether the store answers.
                        _ = timeout(pause, self.arrived.notified()).await;
                        pause = (pause * 2).min(limits::BUDGET_BACKOFF_MAX);
                    }
                }
            }
        }
    }

    /// Moves what waits into the batch. If there is nothing to write, ends the writing and returns false.
    fn take_waiting(&self, batch: &mut Vec<QueuedChange>) -> bool {
        let mut state = self.state();
        batch.append(&mut state.waiting);
        state.is_writing = !batch.is_empty();
        state.is_writing
    }

    /// Applies a batch to the ledger, and stores it. Takes further changes into the batch before each try. A refusal is returned
    /// only from a ledger that the store has confirmed.
    async fn write(&self, batch: &mut Vec<QueuedChange>) -> Result<Vec<Result<(), BudgetRefusalReason>>, BudgetError> {
        let mut seen = self.state().seen.take();
        let mut is_confirmed = false;
        let mut has_repeated = false;
        for _ in 0..limits::BUDGET_CONFLICTS_MAX {
            let current = match seen.take() {
                Some(current) => current,
                None => {
                    is_confirmed = true;
                    SeenLedger::decode(self.registers.get(&self.register).await?)?
                }
            };
            self.take_waiting(batch);
            let now = self.clock.now().store;
            let mut ledger = current.ledger.clone();
            let outcomes = batch.iter().map(|queued| queued.change.apply(now, &mut ledger)).collect();
            // A put of unknown outcome could still be performed after this change found nothing to do.
            let is_put_possible = self.state().unknown_put.is_some_and(|version| version >= current.version);
            if ledger == current.ledger && !is_put_possible {
                if is_confirmed {
                    self.keep(current);
                    return Ok(outcomes);
                }
                continue;
            }
            let bytes = BudgetLedger::encode(ledger.as_ref());
            match self.registers.put(&self.register, current.version, bytes.clone()).await {
                Ok(value) if value.version > current.version && value.bytes.as_ref() == Some(&bytes) => {
                    self.keep(SeenLedger { version: value.version, ledger });
                    return Ok(outcomes);
                }
                Ok(value) => {
                    is_confirmed = true;
                    seen = Some(SeenLedger::decode(value)?);
                }
                Err(StoreError::Unknown) if !has_repeated => {
                    has_repeated = true;
                    self.record_unknown_put(current.version);
                }
                Err(error) => {
                    if error == StoreError::Unknown {
                        self.record_unknown_put(current.version);
                    }
                    return Err(error.into());
                }
            }
        }
        Err(BudgetError::Busy)
    }

    fn keep(&self, seen: SeenLedger) {
        let mut state = self.state();
        state.unknown_put = None;
        state.seen = Some(seen);
    }

    fn record_unknown_put(&self, version: u64) {
        let mut state = self.state();
        state.unknown_put = state.unknown_put.max(Some(version));
    }

    /// Answers the callers in a batch by an error. What nobody waits for remains in the batch, until it is too late.
    fn fail(&self, batch: &mut Vec<QueuedChange>, error: BudgetError) {
        let now = self.clock.now().store;
        let count = batch.len();
        let failed = batch.extract_if(.., |queued| !matches!(queued.waiter, ChangeWaiter::Until(until) if until > now));
        failed.for_each(|queued| queued.answer(Err(error)));
        self.state().pending -= count - batch.len();
    }

    /// Makes the queue usable after a panic, which has dropped the changes that were being written.
    fn forget_lost_changes(&self) {
        let mut state = self.state();
        state.pending = state.waiting.len();
        state.is_writing = false;
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl LedgerChange ===

impl LedgerChange {
    /// Applies the change to a ledger; without limits there is no ledger, and every call is admitted.
    fn apply(self, now: Millis, ledger: &mut Option<BudgetLedger>) -> Result<(), BudgetRefusalReason> {
        if let Self::SetLimits(limits) = self {
            match (limits, &mut *ledger) {
                (Some(limits), Some(ledger)) => ledger.set_limits(now, limits),
                (limits, ledger) => *ledger = limits.map(|limits| BudgetLedger::new(now, limits)),
            }
            return Ok(());
        }
        let Some(ledger) = ledger else { return Ok(()) };
        match self {
            Self::Reserve { call, bound, deadline } => return ledger.reserve(now, call, bound, deadline),
            Self::Settle { call, used } => ledger.settle(now, call, used),
            Self::Release { call } => ledger.release(now, call),
            Self::SetLimits(_) => {}
        }
        Ok(())
    }
}

// === impl QueuedChange ===

impl QueuedChange {
    fn answer(self, outcome: ChangeOutcome) {
        match self.waiter {
            // The caller may have gone away.
            ChangeWaiter::Caller(caller) => _ = caller.send(outcome),
            ChangeWaiter::Until(_) => {}
        }
    }
}

// === impl SeenLedger ===

impl SeenLedger {
    fn decode(value: RegisterValue) -> Result<Self, BudgetError> {
        let ledger = BudgetLedger::decode(value.bytes.as_deref())?;
        Ok(Self { version: value.version, ledger })
    }
}

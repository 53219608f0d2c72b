//! The orders that an adapter works on: their limit, repeated orders, and the outcome of each. Decides what the gateway
//! is told about an attempt; does not call the platform.
use crate::adapter::order::{ChangeKind, ReportedOrder};
use crate::adapter::outcome::AttemptOutcome;
use crate::adapter::output::{AdapterEffects, AdapterWork, WorkResult};
use crate::adapter::place::AccountPlace;
use crate::limits;
use crate::planted::{Planted, planted};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The orders of one account. One attempt at a part runs at a time, however often the part is ordered.
#[derive(Debug)]
pub(crate) struct Attempts {
    account: AccountPlace,
    at_a_time: usize,
    /// The last attempt at each part, by the memory key of its order.
    records: BTreeMap<String, AttemptRecord>,
    /// Memory keys by the age of their last order.
    by_age: BTreeMap<u64, String>,
    ages: u64,
    /// Memory keys of the attempts that wait for their turn.
    queue: VecDeque<String>,
    /// Memory keys of running attempts by their task.
    running: BTreeMap<u64, String>,
    is_stopping: bool,
}

#[derive(Debug)]
struct AttemptRecord {
    order: ReportedOrder,
    /// Connection of the latest order; an outcome that is no receipt counts only there.
    connection: u64,
    ordered_at: Duration,
    age: u64,
    state: AttemptState,
}

#[derive(Debug)]
enum AttemptState {
    Queued,
    Running { until: Duration },
    Ended { at: Duration, outcome: AttemptOutcome, is_reported: bool },
}

// === impl Attempts ===

impl Attempts {
    pub(crate) fn new(account: AccountPlace, at_a_time: usize) -> Self {
        Self {
            account,
            at_a_time,
            records: BTreeMap::new(),
            by_age: BTreeMap::new(),
            ages: 0,
            queue: VecDeque::new(),
            running: BTreeMap::new(),
            is_stopping: false,
        }
    }

    /// Returns whether no attempt runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.is_empty()
    }

    fn open_count(&self) -> usize {
        self.running.len() + self.queue.len()
    }

    /// Takes an order: starts an attempt, joins the one in progress, or repeats the outcome that answers the order.
    pub(crate) fn take(&mut self, order: ReportedOrder, connection: u64, fx: &mut AdapterEffects) {
        let key = order.memory_key();
        self.touch(&key);
        if let Some(record) = self.records.get_mut(&key)
            && record.answers(&order, fx.now.elapsed)
        {
            record.connection = connection;
            return record.report(fx);
        }
        let refusal = if self.is_stopping {
            Some("the adapter is stopping")
        } else if self.open_count() >= limits::ORDERS_MAX && !planted(Planted::SdkOrdersUnbounded) {
            Some("too many orders wait in the adapter")
        } else {
            None
        };
        if let Some(proof) = refusal {
            return fx.send(AttemptOutcome::NotSent(proof.to_owned()).report(&order).to_string());
        }
        if let Some(before) = self.records.remove(&key) {
            self.by_age.remove(&before.age);
        }
        self.ages += 1;
        self.by_age.insert(self.ages, key.clone());
        let ordered_at = fx.now.elapsed;
        let record = AttemptRecord { order, connection, ordered_at, age: self.ages, state: AttemptState::Queued };
        self.records.insert(key.clone(), record);
        self.queue.push_back(key);
        self.forget_oldest();
        self.start_queued(fx);
    }

    /// Takes the result of an attempt. Returns the result if the task is no attempt.
    pub(crate) fn handle_finished(
        &mut self,
        task: u64,
        result: WorkResult,
        fx: &mut AdapterEffects,
    ) -> Option<WorkResult> {
        let Some(key) = self.running.remove(&task) else { return Some(result) };
        if let Some(record) = self.records.get_mut(&key) {
            let outcome = outcome_of(&record.order, &self.account, result);
            record.end(outcome, fx);
        }
        self.start_queued(fx);
        None
    }

    /// Returns the time of the next action.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let until = |key: &String| match self.records.get(key)?.state {
            AttemptState::Running { until } => Some(until),
            AttemptState::Queued | AttemptState::Ended { .. } => None,
        };
        let running = self.running.values().filter_map(until).min();
        // The queue is in the order of arrival.
        let queued = self.queue.front().and_then(|key| self.records.get(key)).map(AttemptRecord::start_by);
        [running, queued].into_iter().flatten().min()
    }

    /// Ends attempts that took too long, and those that waited too long for their turn.
    pub(crate) fn handle_timeout(&mut self, fx: &mut AdapterEffects) {
        let now = fx.now.elapsed;
        let is_late = |record: &AttemptRecord| match record.state {
            AttemptState::Running { until } => until <= now,
            AttemptState::Queued | AttemptState::Ended { .. } => false,
        };
        let late: Vec<u64> = self
            .running
            .iter()
            .filter(|(_, key)| self.records.get(*key).is_some_and(is_late))
            .map(|(task, _)| *task)
            .collect();
        for task in late {
            fx.abandon(task);
            if let Some(record) = self.running.remove(&task).and_then(|key| self.records.get_mut(&key)) {
                tracing::warn!("the platform has not answered in time, and may have the message");
                record.end(AttemptOutcome::Unknown, fx);
            }
        }
        self.start_queued(fx);
    }

    /// Reports the receipts that no connection could take.
    pub(crate) fn handle_connected(&mut self, fx: &mut AdapterEffects) {
        for record in self.records.values_mut() {
            if let AttemptState::Ended { outcome, is_reported: false, .. } = &record.state
                && outcome.is_receipt()
            {
                record.report(fx);
            }
        }
    }

    /// Refuses new orders and those that wait; attempts that run may end.
    pub(crate) fn stop(&mut self, fx: &mut AdapterEffects) {
        self.is_stopping = true;
        for key in std::mem::take(&mut self.queue) {
            if let Some(record) = self.records.get_mut(&key) {
                record.end(AttemptOutcome::NotSent("the adapter is stopping".to_owned()), fx);
            }
        }
    }

    fn start_queued(&mut self, fx: &mut AdapterEffects) {
        while self.queue.front().is_some_and(|key| self.is_startable(key, fx)) {
            let Some(key) = self.queue.pop_front() else { return };
            let Some(record) = self.records.get_mut(&key) else { continue };
            let left = Duration::from_millis(record.order.deadline_ts().saturating_sub(fx.now.unix_ms));
            if left.is_zero() {
                record.end(AttemptOutcome::NotSent("the deadline has passed".to_owned()), fx);
            } else if record.start_by() <= fx.now.elapsed {
                record.end(AttemptOutcome::NotSent("the order waited too long in the adapter".to_owned()), fx);
            } else {
                let until = (record.ordered_at + limits::ATTEMPT_TIMEOUT).min(fx.now.elapsed.saturating_add(left));
                record.state = AttemptState::Running { until };
                let task = fx.start(AdapterWork::Order(record.order.clone()));
                self.running.insert(task, key);
            }
        }
    }

    /// Returns whether there is room for an attempt, or the attempt has waited too long.
    fn is_startable(&self, key: &str, fx: &AdapterEffects) -> bool {
        let is_late = self.records.get(key).is_none_or(|record| record.start_by() <= fx.now.elapsed);
        is_late || self.running.len() < self.at_a_time
    }

    /// Makes a part the one that was ordered last.
    fn touch(&mut self, key: &str) {
        let Some(record) = self.records.get_mut(key) else { return };
        self.by_age.remove(&record.age);
        self.ages += 1;
        record.age = self.ages;
        self.by_age.insert(self.ages, key.to_owned());
    }

    fn forget_oldest(&mut self) {
        while self.records.len() > limits::OUTCOMES_MAX {
            let is_ended = |key: &&String| {
                self.records.get(*key).is_none_or(|record| matches!(record.state, AttemptState::Ended { .. }))
            };
            // `ORDERS_MAX` bounds those that have not ended.
            let Some(key) = self.by_age.values().find(is_ended).cloned() else { return };
            if let Some(record) = self.records.remove(&key) {
                self.by_age.remove(&record.age);
            }
        }
    }
}

// === impl AttemptRecord ===

impl AttemptRecord {
    /// Returns whether this attempt answers a further order of the same part.
    fn answers(&self, order: &ReportedOrder, now: Duration) -> bool {
        match &self.state {
            AttemptState::Queued | AttemptState::Running { .. } => !planted(Planted::SdkOrderPerformedTwice),
            AttemptState::Ended { outcome, .. } if outcome.is_receipt() => true,
            // After an operator's `retry` attempts count from 1 again, so an old number is a new attempt.
            AttemptState::Ended { at, .. } => {
                order.attempt() == self.order.attempt() && now < *at + limits::REPEATED_ORDER_WINDOW
            }
        }
    }

    /// Returns the time by which the attempt has to begin, so that the platform has time for an answer.
    fn start_by(&self) -> Duration {
        self.ordered_at + limits::ORDER_WAIT
    }

    fn end(&mut self, outcome: AttemptOutcome, fx: &mut AdapterEffects) {
        self.state = AttemptState::Ended { at: fx.now.elapsed, outcome, is_reported: false };
        self.report(fx);
    }

    /// Reports the outcome, if there is one. A receipt counts on every connection; any other outcome only on the
    /// connection of the order, because the gateway regards the attempt as unknown by now.
    fn report(&mut self, fx: &mut AdapterEffects) {
        let AttemptState::Ended { outcome, is_reported, .. } = &mut self.state else { return };
        let is_heard = fx.connection.is_some_and(|connection| outcome.is_receipt() || connection == self.connection);
        if is_heard {
            *is_reported = true;
            fx.send(outcome.report(&self.order).to_string());
        }
    }
}

/// Returns the outcome of an order's work. A panic and a result of another kind prove nothing.
fn outcome_of(order: &ReportedOrder, account: &AccountPlace, result: WorkResult) -> AttemptOutcome {
    match (order, result) {
        (ReportedOrder::Part(_), WorkResult::Sent(sent)) => AttemptOutcome::of_part(order, account, sent),
        (ReportedOrder::Change(_, change), WorkResult::Changed(changed)) => {
            AttemptOutcome::of_change(order, &change.target_id, changed)
        }
        (ReportedOrder::Conversation(new), WorkResult::Created(created)) => {
            AttemptOutcome::of_conversation(&new.parent_conversation_id, account, created)
        }
        (
            ReportedOrder::Part(_)
            | ReportedOrder::Change(ChangeKind::Edit | ChangeKind::Delete | ChangeKind::React, _)
            | ReportedOrder::Conversation(_),
            other,
        ) => {
            tracing::error!(?other, "the platform's call has failed, and the platform may have the message");
            AttemptOutcome::Unknown
        }
    }
}

//! Tests of the ledger: random histories against a model that counts all calls anew, and the rules one by one.
use super::*;
use crate::models::budget::BudgetPeriod;
use std::time::Duration;
use turnway_core::rng::Rng;

/// A day at noon in UTC.
const NOON: Millis = Millis(1_900_065_600_000);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A call of the model, which keeps all calls for ever.
#[derive(Clone, Copy, Debug)]
struct ModelCallRecord {
    call: EventId,
    bound: BudgetAmount,
    deadline: Millis,
    /// The time of its end and the used amount.
    end: Option<(Millis, BudgetAmount)>,
}

/// A ledger and the calls it was told of.
struct LedgerHistory {
    rng: Rng,
    now: Millis,
    limits: BudgetLimits,
    ledger: BudgetLedger,
    calls: Vec<ModelCallRecord>,
}

fn call(number: u64) -> EventId {
    EventId::new(Millis(number), 0)
}

fn amount(tokens: u64, cost: u64) -> BudgetAmount {
    BudgetAmount { tokens, cost: Some(cost) }
}

fn totals(tokens: u64, cost: u64) -> BudgetTotals {
    BudgetTotals { tokens, cost }
}

fn tokens_a_day(tokens: u64) -> BudgetLimits {
    BudgetLimits { tokens: Some(tokens), cost: None, period: BudgetPeriod::Day }
}

fn exhausted(refused: Result<(), BudgetRefusalReason>) -> BudgetExhausted {
    match refused {
        Err(BudgetRefusalReason::Exhausted(exhausted)) => exhausted,
        other => panic!("{other:?}"),
    }
}

// === impl LedgerHistory ===

impl LedgerHistory {
    fn new(number: u64) -> Self {
        let mut rng = Rng::from_number(number);
        let period = [BudgetPeriod::Day, BudgetPeriod::Month, BudgetPeriod::Total][rng.below(3) as usize];
        let limits = BudgetLimits { tokens: Some(1000), cost: rng.chance(50).then_some(700), period };
        Self { rng, now: NOON, limits, ledger: BudgetLedger::new(NOON, limits), calls: Vec::new() }
    }

    fn open(&self, now: Millis) -> impl Iterator<Item = &ModelCallRecord> {
        self.calls.iter().filter(move |call| call.end.is_none() && call.deadline > now)
    }

    fn reserved(&self) -> BudgetTotals {
        self.open(self.now)
            .fold(totals(0, 0), |sum, call| sum.plus(totals(call.bound.tokens, call.bound.cost.unwrap_or(0))))
    }

    fn settled(&self) -> BudgetTotals {
        let start = self.limits.period.start(self.now);
        let ends = self.calls.iter().filter_map(|call| {
            let expired = (call.deadline <= self.now).then_some((call.deadline, call.bound));
            call.end.or(expired).filter(|(at, _)| *at >= start)
        });
        ends.fold(totals(0, 0), |sum, (_, used)| sum.plus(totals(used.tokens, used.cost.unwrap_or(0))))
    }

    fn admits(&self, bound: BudgetAmount) -> bool {
        let all = self.settled().plus(self.reserved()).plus(totals(bound.tokens, bound.cost.unwrap_or(0)));
        all.tokens <= 1000 && self.limits.cost.is_none_or(|limit| bound.cost.is_some() && all.cost <= limit)
    }

    fn reserve(&mut self, call: EventId) {
        let bound =
            BudgetAmount { tokens: self.rng.below(400), cost: self.rng.chance(80).then(|| self.rng.below(300)) };
        let deadline = self.now.after(Duration::from_secs(1 + self.rng.below(600)));
        let is_open = self.open(self.now).any(|open| open.call == call);
        let is_admitted = self.ledger.reserve(self.now, call, bound, deadline).is_ok();
        assert_eq!(is_admitted, is_open || self.admits(bound));
        if is_admitted && !is_open {
            self.calls.push(ModelCallRecord { call, bound, deadline, end: None });
        }
    }

    fn end(&mut self, call: EventId) {
        let used = self.rng.chance(80).then(|| BudgetAmount {
            tokens: self.rng.below(450),
            cost: self.rng.chance(80).then(|| self.rng.below(350)),
        });
        let is_released = self.rng.chance(20);
        if is_released {
            self.ledger.release(self.now, call);
        } else {
            self.ledger.settle(self.now, call, used);
        }
        let now = self.now;
        let open = self.calls.iter_mut().find(|open| open.call == call && open.end.is_none() && open.deadline > now);
        let Some(open) = open else { return };
        let used = used.map_or(open.bound, |used| BudgetAmount { cost: used.cost.or(open.bound.cost), ..used });
        open.end = Some((now, if is_released { amount(0, 0) } else { used }));
    }

    fn step(&mut self) {
        let number = call(self.rng.below(40));
        match self.rng.below(10) {
            0..4 => self.reserve(number),
            4..8 => self.end(number),
            8 => self.now = self.now.after(Duration::from_secs(self.rng.below(200))),
            _ if self.rng.chance(10) => self.now = self.now.after(MINUTE * 60 * 20),
            _ => {
                let bytes = BudgetLedger::encode(Some(&self.ledger));
                assert_eq!(BudgetLedger::decode(Some(&bytes)), Ok(Some(self.ledger.clone())));
            }
        }
        let view = self.ledger.view(self.now);
        assert_eq!(view.settled, self.settled());
        assert_eq!(view.reserved, self.reserved());
        assert_eq!(view.open_calls, self.open(self.now).count());
        assert!(view.settled.tokens + view.reserved.tokens <= 1000 + view.overdraft.tokens);
        if let Some(limit) = self.limits.cost {
            assert!(view.settled.cost + view.reserved.cost <= limit + view.overdraft.cost);
        }
    }
}

/// Covers every operation in random orders, repeated, late, and for calls that do not exist.
#[test]
fn random_histories_count_each_call_once() {
    for number in 0..300 {
        let mut history = LedgerHistory::new(number);
        for _ in 0..400 {
            history.step();
        }
    }
}

#[test]
fn reservation_beyond_the_limit_is_refused() {
    let mut ledger = BudgetLedger::new(NOON, tokens_a_day(100));
    let deadline = NOON.after(MINUTE);
    assert_eq!(ledger.reserve(NOON, call(1), amount(60, 0), deadline), Ok(()));
    assert_eq!(ledger.reserve(NOON, call(1), amount(60, 0), deadline), Ok(()), "repeated");
    let refused = exhausted(ledger.reserve(NOON, call(2), amount(41, 0), deadline));
    let period_end = Some(NOON.after(DAY / 2));
    let resource = BudgetResource::Tokens;
    assert_eq!(refused, BudgetExhausted { resource, limit: 100, settled: 0, reserved: 60, period_end });
    assert_eq!(ledger.reserve(NOON, call(2), amount(40, 0), deadline), Ok(()));
    assert_eq!(ledger.view(NOON).remaining_tokens, Some(0));
    ledger.settle(NOON, call(1), Some(amount(10, 0)));
    ledger.release(NOON, call(2));
    let view = ledger.view(NOON);
    assert_eq!((view.settled.tokens, view.reserved.tokens, view.remaining_tokens), (10, 0, Some(90)));
    ledger.set_limits(NOON, tokens_a_day(5));
    let refused = exhausted(ledger.reserve(NOON, call(3), amount(0, 0), deadline));
    assert_eq!((refused.limit, refused.settled), (5, 10));
}

#[test]
fn unknown_price_is_refused_only_under_a_limit_of_cost() {
    let unknown = BudgetAmount { tokens: 1, cost: None };
    let deadline = NOON.after(MINUTE);
    let mut ledger = BudgetLedger::new(NOON, tokens_a_day(100));
    assert_eq!(ledger.reserve(NOON, call(1), unknown, deadline), Ok(()));
    ledger.set_limits(NOON, BudgetLimits { cost: Some(50), ..tokens_a_day(100) });
    assert_eq!(ledger.reserve(NOON, call(2), unknown, deadline), Err(BudgetRefusalReason::UnknownPrice));
    assert_eq!(exhausted(ledger.reserve(NOON, call(2), amount(1, 51), deadline)).resource, BudgetResource::Cost);
    assert_eq!(ledger.reserve(NOON, call(2), amount(1, 50), deadline), Ok(()));
    ledger.settle(NOON, call(2), Some(unknown));
    ledger.settle(NOON, call(1), Some(amount(1, 7)));
    let view = ledger.view(NOON);
    assert_eq!((view.settled, view.overdraft_calls), (totals(2, 57), 0), "an unknown cost is the reserved one");
}

#[test]
fn use_beyond_the_reservation_blocks_further_calls() {
    let mut ledger = BudgetLedger::new(NOON, tokens_a_day(100));
    ledger.reserve(NOON, call(1), amount(50, 10), NOON.after(MINUTE)).expect("admitted");
    ledger.settle(NOON, call(1), Some(amount(130, 12)));
    let view = ledger.view(NOON);
    assert_eq!((view.settled, view.overdraft, view.overdraft_calls), (totals(130, 12), totals(80, 2), 1));
    assert_eq!(exhausted(ledger.reserve(NOON, call(2), amount(0, 0), NOON.after(MINUTE))).settled, 130);
    let tomorrow = NOON.after(DAY);
    assert_eq!(ledger.reserve(tomorrow, call(2), amount(100, 0), tomorrow.after(MINUTE)), Ok(()));
    let view = ledger.view(tomorrow);
    assert_eq!((view.settled, view.overdraft, view.overdraft_calls), (totals(0, 0), totals(0, 0), 0));
}

#[test]
fn expired_reservation_counts_as_used_exactly_once() {
    let mut ledger = BudgetLedger::new(NOON, tokens_a_day(100));
    ledger.reserve(NOON, call(1), amount(30, 5), NOON.after(MINUTE)).expect("admitted");
    let late = NOON.after(MINUTE);
    for _ in 0..2 {
        ledger.settle(late, call(1), Some(amount(1, 1)));
        ledger.release(late, call(1));
        let view = ledger.view(late);
        assert_eq!((view.settled, view.reserved, view.open_calls), (totals(30, 5), totals(0, 0), 0));
    }
}

#[test]
fn open_reservation_is_carried_into_the_next_period() {
    let mut ledger = BudgetLedger::new(NOON, tokens_a_day(100));
    let night = NOON.after(DAY / 2 - MINUTE);
    ledger.reserve(night, call(1), amount(20, 0), night.after(MINUTE / 2)).expect("admitted");
    ledger.reserve(night, call(2), amount(30, 0), night.after(2 * MINUTE)).expect("admitted");
    let morning = night.after(MINUTE);
    let view = ledger.view(morning);
    assert_eq!((view.settled.tokens, view.reserved.tokens), (0, 30), "the first expired yesterday");
    ledger.settle(morning, call(2), Some(amount(25, 0)));
    assert_eq!(ledger.view(morning).settled.tokens, 25);
    // A node whose clock is behind does not bring the last period back.
    ledger.reserve(night, call(3), amount(1, 0), morning.after(MINUTE)).expect("admitted");
    assert_eq!(ledger.view(morning).settled.tokens, 25);
}

#[test]
fn period_begun_by_a_wrong_clock_ends_in_time() {
    let mut ledger = BudgetLedger::new(NOON.after(400 * DAY), tokens_a_day(100));
    ledger.reserve(NOON, call(1), amount(20, 0), NOON.after(MINUTE)).expect("admitted");
    ledger.settle(NOON, call(1), None);
    assert_eq!(ledger.view(NOON).settled.tokens, 20);
    assert_eq!(ledger.view(NOON.after(DAY)).settled.tokens, 0);
}

#[test]
fn another_kind_of_period_starts_a_new_period() {
    let mut ledger = BudgetLedger::new(NOON, tokens_a_day(100));
    for number in 1..3 {
        ledger.reserve(NOON, call(number), amount(20, 0), NOON.after(MINUTE)).expect("admitted");
    }
    ledger.settle(NOON, call(1), None);
    ledger.set_limits(NOON, BudgetLimits { period: BudgetPeriod::Total, ..tokens_a_day(100) });
    let view = ledger.view(NOON);
    assert_eq!((view.settled.tokens, view.reserved.tokens, view.period_end), (0, 20, None));
    ledger.settle(NOON, call(2), None);
    assert_eq!(ledger.view(NOON.after(1000 * DAY)).settled.tokens, 20);
}

#[test]
fn open_reservations_are_bounded() {
    let mut ledger = BudgetLedger::new(NOON, tokens_a_day(u64::MAX));
    let count = limits::BUDGET_RESERVATIONS_MAX as u64;
    for number in 0..count {
        ledger.reserve(NOON, call(number), amount(u64::MAX / 2000, 0), NOON.after(MINUTE)).expect("admitted");
    }
    let busy = Err(BudgetRefusalReason::Busy { retry_after: limits::BUDGET_RETRY_AFTER });
    assert_eq!(ledger.reserve(NOON, call(count), amount(1, 0), NOON.after(MINUTE)), busy);
    assert_eq!(ledger.reserve(NOON, call(0), amount(1, 0), NOON.after(MINUTE)), Ok(()), "repeated");
    assert!(BudgetLedger::encode(Some(&ledger)).len() < 120 * limits::BUDGET_RESERVATIONS_MAX);
    for number in 0..count {
        ledger.settle(NOON, call(number), Some(amount(u64::MAX, u64::MAX)));
    }
    assert_eq!(ledger.view(NOON).settled, totals(u64::MAX, 0).plus(totals(0, u64::MAX)), "no overflow");
}

#[test]
fn ledger_of_a_newer_release_is_refused() {
    let ledger = BudgetLedger::new(NOON, tokens_a_day(100));
    let bytes = BudgetLedger::encode(Some(&ledger));
    let text = String::from_utf8(bytes).expect("JSON");
    assert_eq!(BudgetLedger::decode(Some(text.as_bytes())), Ok(Some(ledger)));
    let newer = [
        text.replace("\"version\":1", "\"version\":2"),
        text.replace("\"settled\"", "\"refunds\":0,\"settled\""),
        text.replace("\"day\"", "\"week\""),
        "{}".to_owned(),
        String::new(),
    ];
    for newer in newer {
        assert_eq!(BudgetLedger::decode(Some(newer.as_bytes())), Err(BudgetError::Unreadable), "{newer}");
    }
    assert_eq!(BudgetLedger::decode(Some(&BudgetLedger::encode(None))), Ok(None));
    assert_eq!(BudgetLedger::decode(None), Ok(None));
}

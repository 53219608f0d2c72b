//! Tests of the keeper: two nodes over one store, which loses answers, performs writes late, or is away.
use super::*;
use crate::models::budget::{BudgetKind, BudgetPeriod, BudgetResource, BudgetTotals};
use crate::store::registers::RegisterReplies;
use crate::store::{AnswerSink, Store};
use futures_util::FutureExt;
use futures_util::future::join_all;
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use turnway_core::rng::Rng;
use turnway_core::store::quota::{ByteMeasure, Quotas};
use turnway_core::store::{ModelStore, Op, StoreError};

const CALL_TIME: Duration = Duration::from_secs(600);

/// A fault of [`FaultyStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LedgerFault {
    None,
    /// No op is performed.
    Away,
    /// Puts are performed, and their answers are lost.
    LostAnswers,
    /// Puts are performed when the test says so, and their answers are lost.
    LatePuts,
    /// One of these at each op.
    Random,
}

/// A store in memory whose faults a test chooses.
struct FaultyStore {
    model: Mutex<ModelStore>,
    clock: Clock,
    answers: AnswerSink,
    fault: Mutex<LedgerFault>,
    rng: Mutex<Rng>,
    late: Mutex<Vec<Op>>,
    ops: AtomicUsize,
}

/// Two keepers over one store, as two nodes have them.
struct TwoKeepers {
    clock: Clock,
    store: Arc<FaultyStore>,
    registers: Registers,
    first: BudgetKeeper,
    second: BudgetKeeper,
}

// === impl FaultyStore ===

impl FaultyStore {
    fn set_fault(&self, fault: LedgerFault) {
        *self.fault.lock().expect("sound") = fault;
    }

    /// Performs the puts that are late, in the order in which they were submitted.
    fn perform_late_puts(&self) {
        let late = mem::take(&mut *self.late.lock().expect("sound"));
        for op in late {
            self.model.lock().expect("sound").apply(self.clock.now(), &op);
        }
    }

    fn op_count(&self) -> usize {
        self.ops.load(Ordering::SeqCst)
    }

    fn next_fault(&self) -> LedgerFault {
        let fault = *self.fault.lock().expect("sound");
        if fault != LedgerFault::Random {
            return fault;
        }
        let number = self.rng.lock().expect("sound").below(20);
        if number == 0 {
            self.perform_late_puts();
        }
        let faults = [LedgerFault::Away, LedgerFault::LostAnswers, LedgerFault::LatePuts];
        faults.get(usize::try_from(number).expect("small")).copied().unwrap_or(LedgerFault::None)
    }
}

impl Store for FaultyStore {
    fn submit(&self, op: Op) {
        self.ops.fetch_add(1, Ordering::SeqCst);
        let is_put = matches!(op, Op::Put { .. });
        let perform = |op: &Op| self.model.lock().expect("sound").apply(self.clock.now(), op);
        let answer = match self.next_fault() {
            LedgerFault::Away => Err(StoreError::Unavailable),
            LedgerFault::LostAnswers if is_put => {
                perform(&op);
                Err(StoreError::Unknown)
            }
            LedgerFault::LatePuts if is_put => {
                self.late.lock().expect("sound").push(op.clone());
                Err(StoreError::Unknown)
            }
            LedgerFault::None | LedgerFault::LostAnswers | LedgerFault::LatePuts | LedgerFault::Random => {
                Ok(perform(&op))
            }
        };
        (self.answers)(op, answer);
    }
}

// === impl TwoKeepers ===

impl TwoKeepers {
    fn new() -> Self {
        let clock = Clock::following_store();
        let own = clock.now();
        clock.observe_store_time(own.store, own.mono, own.mono);
        let replies = RegisterReplies::default();
        let store = Arc::new(FaultyStore {
            model: Mutex::new(ModelStore::metered(ByteMeasure::Weight, Quotas::OFF, None)),
            clock: clock.clone(),
            answers: replies.intercept(Arc::new(|_, _| {})),
            fault: Mutex::new(LedgerFault::None),
            rng: Mutex::new(Rng::from_number(7)),
            late: Mutex::default(),
            ops: AtomicUsize::new(0),
        });
        let registers = replies.open(Arc::clone(&store) as Arc<dyn Store>);
        let keeper = || BudgetKeeper::new(registers.clone(), clock.clone(), Handle::current());
        Self { first: keeper(), second: keeper(), clock, store, registers }
    }

    fn deadline(&self) -> Millis {
        self.clock.now().store.after(CALL_TIME)
    }

    /// Sets a limit that both nodes know at once.
    async fn set_known(&self, account: &BudgetAccount, tokens: u64) {
        self.first.set(account, total(tokens)).await.expect("set");
        self.second.show(account).await.expect("a store").expect("limits");
    }

    async fn reserve(
        &self,
        keeper: &BudgetKeeper,
        accounts: &[BudgetAccount],
        number: u64,
        tokens: u64,
    ) -> Result<BudgetReservation, BudgetRefusal> {
        keeper.reserve(accounts, call(number), amount(tokens), self.deadline()).await
    }

    /// Waits until a node has written all earlier changes of an account, and returns the state of the budget.
    async fn view(&self, keeper: &BudgetKeeper, account: &BudgetAccount) -> BudgetView {
        let queue = keeper.queue(account).expect("few accounts");
        while queue.perform(LedgerChange::Release { call: call(u64::MAX >> 16) }).await.is_err() {}
        keeper.show(account).await.expect("a store").expect("limits")
    }
}

fn call(number: u64) -> EventId {
    EventId::new(Millis(number), 0)
}

fn amount(tokens: u64) -> BudgetAmount {
    BudgetAmount { tokens, cost: None }
}

fn tenant() -> BudgetAccount {
    BudgetAccount::of_tenant(TenantId::default_tenant())
}

fn user(name: &str) -> BudgetAccount {
    BudgetAccount { kind: BudgetKind::User, name: name.to_owned(), ..tenant() }
}

fn total(tokens: u64) -> Option<BudgetLimits> {
    Some(BudgetLimits { tokens: Some(tokens), cost: None, period: BudgetPeriod::Total })
}

fn unavailable(account: BudgetAccount) -> BudgetRefusal {
    let retry_after = limits::BUDGET_RETRY_AFTER;
    BudgetRefusal { account, reason: BudgetRefusalReason::Unavailable { retry_after } }
}

/// Makes calls at both nodes at the same time, checks that they never hold more than the limit, and returns what they used.
async fn call_from_both(nodes: &Arc<TwoKeepers>, limit: u64, calls: u64) -> u64 {
    let held = Arc::new(AtomicU64::new(0));
    let tasks = (0..calls).map(|number| {
        let nodes = Arc::clone(nodes);
        let held = Arc::clone(&held);
        tokio::spawn(async move {
            let keeper = if number % 2 == 0 { &nodes.first } else { &nodes.second };
            let bound = 20 + number % 7;
            let used = number % 11;
            let Ok(reservation) = nodes.reserve(keeper, &[user("ann"), tenant()], number, bound).await else { return };
            assert!(held.fetch_add(bound, Ordering::SeqCst) + bound <= limit);
            tokio::task::yield_now().await;
            // The store never holds less than this: it is told of the end after this.
            held.fetch_sub(bound - used, Ordering::SeqCst);
            reservation.settle(Some(amount(used)));
        })
    });
    for end in join_all(tasks).await {
        end.expect("no panic");
    }
    held.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_of_two_nodes_never_exceed_the_limit() {
    let nodes = Arc::new(TwoKeepers::new());
    nodes.set_known(&tenant(), 500).await;
    nodes.set_known(&user("ann"), 1_000_000).await;
    let used = call_from_both(&nodes, 500, 400).await;
    for account in [tenant(), user("ann")] {
        nodes.view(&nodes.second, &account).await;
        let view = nodes.view(&nodes.first, &account).await;
        assert_eq!((view.settled.tokens, view.open_calls, view.overdraft_calls), (used, 0, 0));
    }
    assert!(used > 0);
}

/// Covers lost answers, late writes and an absent store at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sums_are_exact_although_the_store_fails_at_times() {
    let nodes = Arc::new(TwoKeepers::new());
    nodes.set_known(&tenant(), 500).await;
    nodes.set_known(&user("ann"), 1_000_000).await;
    nodes.store.set_fault(LedgerFault::Random);
    let used = call_from_both(&nodes, 500, 400).await;
    nodes.store.set_fault(LedgerFault::None);
    for account in [tenant(), user("ann")] {
        nodes.view(&nodes.second, &account).await;
        nodes.view(&nodes.first, &account).await;
        nodes.store.perform_late_puts();
        let view = nodes.view(&nodes.first, &account).await;
        assert_eq!((view.settled.tokens, view.open_calls), (used, 0));
    }
    assert!(used > 0);
}

#[tokio::test]
async fn concurrent_calls_of_one_node_share_a_write() {
    let nodes = TwoKeepers::new();
    nodes.first.set(&tenant(), total(1000)).await.expect("set");
    let before = nodes.store.op_count();
    let accounts = [tenant()];
    let calls = (0..40).map(|number| nodes.reserve(&nodes.first, &accounts, number, 10));
    let reservations: Vec<_> = join_all(calls).await.into_iter().map(|call| call.expect("admitted")).collect();
    assert!(nodes.store.op_count() - before <= 2, "{}", nodes.store.op_count() - before);
    drop(reservations);
    let view = nodes.view(&nodes.first, &tenant()).await;
    assert_eq!((view.settled.tokens, view.remaining_tokens), (400, Some(600)));
    assert!(nodes.store.op_count() - before <= 8, "{}", nodes.store.op_count() - before);
}

#[tokio::test]
async fn refused_call_gives_back_what_other_accounts_reserved() {
    let nodes = TwoKeepers::new();
    nodes.first.set(&tenant(), total(10)).await.expect("set");
    nodes.first.set(&user("ann"), total(100)).await.expect("set");
    let refused = nodes.reserve(&nodes.first, &[tenant(), user("ann")], 1, 11).await.expect_err("too much");
    assert_eq!(refused.account, tenant());
    let BudgetRefusalReason::Exhausted(exhausted) = refused.reason else { panic!("{refused:?}") };
    assert_eq!((exhausted.resource, exhausted.limit), (BudgetResource::Tokens, 10));
    assert_eq!(nodes.view(&nodes.first, &user("ann")).await.remaining_tokens, Some(100));
    // Another node's reservation is seen before a call is refused or admitted.
    let held = nodes.reserve(&nodes.second, &[tenant()], 2, 6).await.expect("admitted");
    assert!(nodes.reserve(&nodes.first, &[tenant()], 3, 6).await.is_err());
    held.release();
    nodes.view(&nodes.second, &tenant()).await;
    nodes.reserve(&nodes.first, &[tenant()], 4, 6).await.expect("admitted").settle(Some(amount(1)));
    assert_eq!(nodes.view(&nodes.first, &tenant()).await.settled, BudgetTotals { tokens: 1, cost: 0 });
}

#[tokio::test]
async fn cancelled_reserve_reserves_nothing() {
    let nodes = TwoKeepers::new();
    nodes.first.set(&tenant(), total(10)).await.expect("set");
    assert!(nodes.reserve(&nodes.first, &[tenant()], 1, 10).now_or_never().is_none());
    let view = nodes.view(&nodes.first, &tenant()).await;
    assert_eq!((view.open_calls, view.settled.tokens), (0, 0));
}

#[tokio::test]
async fn reservation_with_a_lost_answer_is_made_once() {
    let nodes = TwoKeepers::new();
    nodes.first.set(&tenant(), total(10)).await.expect("set");
    nodes.store.set_fault(LedgerFault::LostAnswers);
    let reservation = nodes.reserve(&nodes.first, &[tenant()], 1, 6).await.expect("admitted");
    reservation.settle(Some(amount(4)));
    let view = nodes.view(&nodes.first, &tenant()).await;
    assert_eq!((view.open_calls, view.settled.tokens), (0, 4));
}

#[tokio::test]
async fn late_write_of_a_refused_call_reserves_nothing() {
    let nodes = TwoKeepers::new();
    nodes.first.set(&tenant(), total(10)).await.expect("set");
    nodes.store.set_fault(LedgerFault::LatePuts);
    let refused = nodes.reserve(&nodes.first, &[tenant()], 1, 6).await.expect_err("unknown");
    assert_eq!(refused, unavailable(tenant()));
    nodes.store.set_fault(LedgerFault::None);
    nodes.view(&nodes.first, &tenant()).await;
    nodes.store.perform_late_puts();
    let view = nodes.view(&nodes.second, &tenant()).await;
    assert_eq!((view.open_calls, view.settled.tokens), (0, 0));
}

#[tokio::test]
async fn absent_store_refuses_only_accounts_with_limits() {
    let nodes = TwoKeepers::new();
    nodes.first.set(&user("ann"), total(10)).await.expect("set");
    let open = nodes.reserve(&nodes.first, &[user("ann")], 1, 6).await.expect("admitted");
    nodes.store.set_fault(LedgerFault::Away);
    let before = nodes.store.op_count();
    let free = nodes.reserve(&nodes.first, &[user("bob"), tenant()], 2, u64::MAX).await.expect("no limits");
    assert!(free.is_empty() && nodes.store.op_count() == before);
    let refused = nodes.reserve(&nodes.first, &[user("ann")], 3, 1).await.expect_err("no store");
    assert_eq!(refused, unavailable(user("ann")));
    let unknown = nodes.reserve(&nodes.second, &[user("bob")], 4, 1).await.expect_err("no store");
    assert_eq!(unknown, unavailable(user("bob")));
    // The end of a call waits for the store.
    open.settle(Some(amount(2)));
    tokio::task::yield_now().await;
    nodes.store.set_fault(LedgerFault::None);
    assert_eq!(nodes.view(&nodes.first, &user("ann")).await.settled.tokens, 2);
}

#[tokio::test]
async fn reservation_of_a_dead_node_counts_as_used() {
    let nodes = TwoKeepers::new();
    nodes.first.set(&tenant(), total(10)).await.expect("set");
    let open = nodes.reserve(&nodes.first, &[tenant()], 1, 6).await.expect("admitted");
    assert_eq!(nodes.view(&nodes.second, &tenant()).await.reserved.tokens, 6);
    nodes.clock.step(2 * CALL_TIME, false);
    let view = nodes.view(&nodes.second, &tenant()).await;
    assert_eq!((view.settled.tokens, view.open_calls), (6, 0));
    assert!(nodes.reserve(&nodes.second, &[tenant()], 2, 5).await.is_err());
    // The node was only slow.
    open.settle(Some(amount(1)));
    assert_eq!(nodes.view(&nodes.first, &tenant()).await.settled.tokens, 6);
}

#[tokio::test]
async fn limits_are_set_listed_changed_and_removed() {
    let nodes = TwoKeepers::new();
    assert_eq!(nodes.first.list(&tenant().tenant).await, Ok(BTreeMap::new()));
    assert_eq!(nodes.first.show(&tenant()).await, Ok(None));
    for account in [tenant(), user("ann"), user("a/b ö")] {
        nodes.first.set(&account, total(10)).await.expect("set");
    }
    nodes.reserve(&nodes.first, &[user("ann")], 1, 6).await.expect("admitted").settle(None);
    nodes.first.set(&user("ann"), total(20)).await.expect("changed");
    nodes.view(&nodes.first, &user("ann")).await;
    let listed = nodes.second.list(&tenant().tenant).await.expect("a list");
    let left: Vec<_> = listed.iter().map(|(account, view)| (account.name.as_str(), view.remaining_tokens)).collect();
    assert_eq!(left, [("a/b ö", Some(10)), ("ann", Some(14)), ("", Some(10))]);
    nodes.second.set(&user("ann"), None).await.expect("removed");
    nodes.second.set(&user("ann"), None).await.expect("repeated");
    nodes.reserve(&nodes.second, &[user("ann")], 2, 1000).await.expect("no limits").settle(None);
    // The other node still believes in the limits, and finds that there are none.
    nodes.reserve(&nodes.first, &[user("ann")], 3, 1000).await.expect("no limits").settle(None);
    assert_eq!(nodes.first.show(&user("ann")).await, Ok(None));
    nodes.first.set(&user("ann"), total(5)).await.expect("set");
    assert_eq!(nodes.view(&nodes.first, &user("ann")).await.remaining_tokens, Some(5));
    assert_eq!(nodes.first.set(&user(""), total(5)).await, Err(BudgetError::BadAccount));
}

#[tokio::test]
async fn budget_of_a_newer_release_is_never_replaced() {
    let nodes = TwoKeepers::new();
    nodes.first.set(&tenant(), total(10)).await.expect("set");
    let register = tenant().register();
    let stored = nodes.registers.get(&register).await.expect("a store");
    let newer = br#"{"version":2,"ledger":null}"#.to_vec();
    let newer = nodes.registers.put(&register, stored.version, newer).await.expect("a store");
    let refused = nodes.reserve(&nodes.first, &[tenant()], 1, 1).await.expect_err("unreadable");
    assert_eq!(refused.reason, BudgetRefusalReason::Unreadable);
    assert_eq!(nodes.first.set(&tenant(), total(10)).await, Err(BudgetError::Unreadable));
    assert_eq!(nodes.first.show(&tenant()).await, Err(BudgetError::Unreadable));
    assert_eq!(nodes.registers.get(&register).await, Ok(newer));
}

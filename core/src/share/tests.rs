//! Fair shares: what may be held, what is left for others, and that all amounts return to zero.
use super::queue::FairQueue;
use super::*;
use crate::rng::Rng;

fn account(tenant: &str, user: &str) -> Account {
    Account { tenant: TenantId::parse(tenant).expect("a name"), user: UserId::parse(user).expect("a name") }
}

fn fill(ledger: &mut Ledger, who: &Account) -> u64 {
    (0..).take_while(|_| ledger.take(who, 1).is_ok()).count() as u64
}

#[test]
fn single_user_gets_its_share_of_the_tenants_share() {
    let mut ledger = Ledger::new(1600, Some(Shares::default()));
    assert_eq!(fill(&mut ledger, &account("evil", "eve")), 900);
    assert_eq!(ledger.exceeded_bound(&account("evil", "eve"), 1), Some(ShareBound::User));
    assert!(fill(&mut ledger, &account("evil", "bob")) > 100, "the tenant's rest is for its other users");
}

#[test]
fn one_tenant_of_many_users_leaves_a_quarter_of_the_node() {
    let mut ledger = Ledger::new(1600, Some(Shares::default()));
    let held: u64 = (0..50).map(|n| fill(&mut ledger, &account("evil", &format!("u{n}")))).sum();
    assert!((1100..=1200).contains(&held), "{held}");
    assert!(fill(&mut ledger, &account("acme", "ann")) >= 200);
}

#[test]
fn greedy_tenants_leave_capacity_for_another() {
    // Each tenant gets three quarters of what the others have left.
    let mut ledger = Ledger::new(100_000, Some(Shares::default()));
    for n in 0..7 {
        assert!(fill(&mut ledger, &account(&format!("evil{n}"), "eve")) > 0, "tenant {n}");
    }
    assert!(ledger.take(&account("acme", "ann"), 1).is_ok());
}

#[test]
fn without_shares_only_the_capacity_bounds() {
    let mut ledger = Ledger::new(100, None);
    assert_eq!(fill(&mut ledger, &account("default", "local")), 100);
    assert_eq!(ledger.exceeded_bound(&account("other", "bob"), 1), Some(ShareBound::Node));
    ledger.release(&account("default", "local"), 100);
    assert_eq!(ledger.held(), 0);
}

#[test]
fn small_capacities_admit_a_first_amount() {
    let mut ledger = Ledger::new(2, Some(Shares::default()));
    assert_eq!(fill(&mut ledger, &account("a", "ann")), 1);
    assert_eq!(fill(&mut ledger, &account("b", "bob")), 1);
    assert_eq!(ledger.exceeded_bound(&account("c", "cat"), 1), Some(ShareBound::Node));
}

/// Random sequences: `take` never exceeds a bound, and after everything is given back all amounts are zero.
#[test]
fn random_sequences_keep_the_bounds_and_return_to_zero() {
    for number in 0..200 {
        let mut rng = Rng::from_number(number);
        let capacity = 1 + rng.below(2_000);
        let mut ledger = Ledger::new(capacity, Some(Shares::default()));
        let mut taken: Vec<(Account, u64)> = Vec::new();
        for _ in 0..400 {
            if rng.below(3) == 0 && !taken.is_empty() {
                let at = usize::try_from(rng.below(taken.len() as u64)).expect("small");
                let (account, amount) = taken.swap_remove(at);
                ledger.release(&account, amount);
                continue;
            }
            let by = account(&format!("t{}", rng.below(3)), &format!("u{}", rng.below(4)));
            let amount = rng.below(capacity / 8 + 2);
            let of = |taken: &[(Account, u64)], same: &dyn Fn(&Account) -> bool| -> u64 {
                taken.iter().filter(|(by, _)| same(by)).map(|(_, amount)| amount).sum()
            };
            let tenant = of(&taken, &|other| other.tenant == by.tenant);
            let user = of(&taken, &|other| *other == by);
            if ledger.take(&by, amount).is_ok() {
                assert!(tenant == 0 || tenant + amount <= capacity * 3 / 4, "{number}: a tenant");
                assert!(user == 0 || user + amount <= capacity * 9 / 16, "{number}: a user");
                taken.push((by, amount));
            }
            assert_eq!(ledger.held(), of(&taken, &|_| true));
            assert!(ledger.held() <= capacity, "{number}: the node");
        }
        for (account, amount) in taken {
            ledger.release(&account, amount);
        }
        assert_eq!(ledger.held(), 0);
        assert!(ledger.tenants.is_empty(), "{number}: accounts of nobody are gone");
    }
}

#[test]
fn fair_queue_alternates_between_tenants_and_users() {
    let mut queue = FairQueue::default();
    for (tenant, user, item) in
        [("a", "ann", 1), ("a", "ann", 2), ("a", "ann", 3), ("a", "bob", 4), ("b", "eve", 5), ("b", "eve", 6)]
    {
        queue.push(&account(tenant, user), item);
    }
    let order: Vec<i32> = std::iter::from_fn(|| queue.pop(|_, _| true).map(|(_, item)| item)).collect();
    assert_eq!(order, [1, 5, 4, 6, 2, 3]);
    assert!(queue.is_empty() && queue.tenants.is_empty());
}

#[test]
fn fair_queue_skips_accounts_over_their_share() {
    let mut queue = FairQueue::default();
    queue.push(&account("a", "ann"), 1);
    queue.push(&account("b", "bob"), 2);
    let (by, item) = queue.pop(|account, _| account.tenant.as_str() == "b").expect("one may");
    assert_eq!((by, item), (account("b", "bob"), 2));
    assert!(queue.pop(|_, _| false).is_none());
    queue.remove(&account("a", "ann"), |item| *item == 1);
    assert_eq!(queue.len(), 0);
}

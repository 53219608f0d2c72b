//! A queue that serves tenants by turns, and within a tenant its users by turns; each user's items keep their order.
//! A holder that may not have more is passed over, so free places go to holders that may (work-conserving).
use super::Account;
use crate::id::{TenantId, UserId};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// Items of holders that wait for a resource.
#[derive(Clone, Debug)]
pub struct FairQueue<T> {
    pub(super) tenants: BTreeMap<TenantId, TenantQueue<T>>,
    /// Tenant that was served last.
    last: Option<TenantId>,
    len: usize,
}

#[derive(Clone, Debug)]
pub(super) struct TenantQueue<T> {
    users: BTreeMap<UserId, VecDeque<T>>,
    /// User that was served last.
    last: Option<UserId>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { tenants: BTreeMap::new(), last: None, len: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Appends an item to those of its holder.
    pub fn push(&mut self, account: &Account, item: T) {
        let fresh = || TenantQueue { users: BTreeMap::new(), last: None };
        let tenant = self.tenants.entry(account.tenant.clone()).or_insert_with(fresh);
        tenant.users.entry(account.user.clone()).or_default().push_back(item);
        self.len += 1;
    }

    /// Removes and returns the next item whose holder `may` have it; each holder is asked about its first item.
    pub fn pop(&mut self, mut may: impl FnMut(&Account, &T) -> bool) -> Option<(Account, T)> {
        let (user, tenant) = keys_after(&self.tenants, self.last.as_ref()).find_map(|tenant| {
            let queue = self.tenants.get(tenant)?;
            let found = keys_after(&queue.users, queue.last.as_ref()).find(|user| {
                let account = Account { tenant: tenant.clone(), user: (*user).clone() };
                queue.users.get(*user).and_then(VecDeque::front).is_some_and(|item| may(&account, item))
            });
            Some((found?.clone(), tenant.clone()))
        })?;
        let queue = self.tenants.get_mut(&tenant)?;
        let items = queue.users.get_mut(&user)?;
        let item = items.pop_front()?;
        self.len -= 1;
        if items.is_empty() {
            queue.users.remove(&user);
        }
        queue.last = Some(user.clone());
        if queue.users.is_empty() {
            self.tenants.remove(&tenant);
        }
        self.last = Some(tenant.clone());
        Some((Account { tenant, user }, item))
    }

    /// Removes the items of one holder for which `is_gone` holds.
    pub fn remove(&mut self, account: &Account, is_gone: impl Fn(&T) -> bool) {
        let Some(queue) = self.tenants.get_mut(&account.tenant) else { return };
        let Some(items) = queue.users.get_mut(&account.user) else { return };
        let before = items.len();
        items.retain(|item| !is_gone(item));
        self.len -= before - items.len();
        if items.is_empty() {
            queue.users.remove(&account.user);
        }
        if queue.users.is_empty() {
            self.tenants.remove(&account.tenant);
        }
    }

    /// Returns the number of waiting items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Returns all keys once, beginning with the one after `last`.
fn keys_after<'a, K: Ord, V>(map: &'a BTreeMap<K, V>, last: Option<&'a K>) -> impl Iterator<Item = &'a K> {
    let later = map.range((last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
    let earlier = last.map(|last| map.range(..=last));
    later.chain(earlier.into_iter().flatten()).map(|(key, _)| key)
}

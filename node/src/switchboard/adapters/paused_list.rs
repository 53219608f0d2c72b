//! The list of a tenant's paused accounts: a value of the store that follows the accounts' own values, because the store
//! cannot search for those. The list decides nothing; nodes that serve a paused account put it right.
use super::pauses::{AccountAsker, PauseEffect};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use turnway_core::id::{AccountId, ChannelName, TenantId};
use turnway_core::limits;
use turnway_core::protocol::delivery::{AccountKey, AccountPause, PausedAccount};
use turnway_core::store::Op;
use turnway_wire::channel::account::AccountReply;

/// The prefix of the names of lists in the store.
const PREFIX: &str = "adapter-paused/";

/// The lists that this node reads or changes.
#[derive(Debug, Default)]
pub(super) struct PausedLists {
    tenants: BTreeMap<TenantId, ListWork>,
}

/// Work on the list of one tenant.
#[derive(Debug, Default)]
struct ListWork {
    /// The entries that the list is to have, or not to have; at most one entry for each account that this node serves or was asked about.
    changes: BTreeMap<(ChannelName, AccountId), Option<AccountPause>>,
    askers: Vec<AccountAsker>,
}

/// The list as it is stored.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StoredList {
    accounts: Vec<PausedAccount>,
}

/// Returns whether a named value of the store is a list of paused accounts.
pub(super) fn is_list(name: &str) -> bool {
    name.starts_with(PREFIX)
}

fn list_name(tenant: &TenantId) -> String {
    format!("{PREFIX}{tenant}")
}

/// Returns the tenant whose list has a name.
pub(super) fn parse_list_name(name: &str) -> Option<TenantId> {
    TenantId::parse(name.strip_prefix(PREFIX)?).ok()
}

// === impl PausedLists ===

impl PausedLists {
    /// Returns the number of requests for lists that wait.
    pub(super) fn len(&self) -> usize {
        self.tenants.values().map(|work| work.askers.len()).sum()
    }

    /// Begins to read the list for an operator.
    pub(super) fn ask(&mut self, tenant: TenantId, asker: AccountAsker) -> Op {
        let name = list_name(&tenant);
        self.tenants.entry(tenant).or_default().askers.push(asker);
        Op::Get { name }
    }

    /// Begins to record the pause of an account, or that it is not paused.
    pub(super) fn record(&mut self, account: AccountKey, pause: Option<AccountPause>) -> Op {
        let AccountKey { tenant, channel, account } = account;
        let name = list_name(&tenant);
        self.tenants.entry(tenant).or_default().changes.insert((channel, account), pause);
        Op::Get { name }
    }

    /// Uses the stored list of a tenant.
    pub(super) fn use_value(
        &mut self,
        tenant: &TenantId,
        (version, value): (u64, Option<&[u8]>),
        effects: &mut Vec<PauseEffect>,
    ) {
        let Some(work) = self.tenants.get_mut(tenant) else { return };
        let stored: StoredList = value.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
        let list = stored.with_changes(&work.changes);
        let more = list.accounts.len() >= limits::PAUSED_ACCOUNTS_LISTED_MAX;
        for asker in work.askers.drain(..) {
            effects.push(PauseEffect::Reply(asker, AccountReply::Listed { accounts: list.accounts.clone(), more }));
        }
        if list == stored {
            self.tenants.remove(tenant);
        } else {
            let value = (!list.accounts.is_empty()).then(|| serde_json::to_vec(&list).unwrap_or_default());
            effects.push(PauseEffect::Store(Op::Put { name: list_name(tenant), expect: version, value }));
        }
    }

    /// Handles that the store has not answered.
    pub(super) fn handle_failure(&mut self, tenant: &TenantId, effects: &mut Vec<PauseEffect>) {
        let Some(work) = self.tenants.get_mut(tenant) else { return };
        effects.extend(work.askers.drain(..).map(PauseEffect::Unavailable));
        if work.changes.is_empty() {
            self.tenants.remove(tenant);
        } else {
            effects.push(PauseEffect::StoreLater(Op::Get { name: list_name(tenant) }));
        }
    }
}

// === impl StoredList ===

impl StoredList {
    /// Returns the list with changes. A further account finds no room in a full list.
    fn with_changes(&self, changes: &BTreeMap<(ChannelName, AccountId), Option<AccountPause>>) -> Self {
        let mut accounts: BTreeMap<(ChannelName, AccountId), AccountPause> = BTreeMap::new();
        for PausedAccount { channel, account_id, pause } in &self.accounts {
            accounts.insert((channel.clone(), account_id.clone()), pause.clone());
        }
        for (account, pause) in changes {
            match pause {
                None => drop(accounts.remove(account)),
                Some(pause)
                    if accounts.contains_key(account) || accounts.len() < limits::PAUSED_ACCOUNTS_LISTED_MAX =>
                {
                    accounts.insert(account.clone(), pause.clone());
                }
                Some(_) => {}
            }
        }
        let listed = accounts.into_iter();
        Self {
            accounts: listed
                .map(|((channel, account_id), pause)| PausedAccount { channel, account_id, pause })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::LinkId;
    use turnway_core::protocol::delivery::PauseReason;
    use turnway_core::time::Millis;

    fn tenant() -> TenantId {
        TenantId::parse("default").expect("a tenant")
    }

    fn account(n: usize) -> AccountKey {
        let channel = ChannelName::parse("rooms").expect("a channel");
        AccountKey { tenant: tenant(), channel, account: AccountId::parse(&format!("a{n}")).expect("an account") }
    }

    fn pause() -> AccountPause {
        AccountPause { reason: PauseReason::Operator, since: Millis(1), misplaced: None }
    }

    /// Hands a stored list over until nothing is left to write; returns the list.
    fn settle(lists: &mut PausedLists, mut version: u64, mut value: Option<Vec<u8>>) -> (u64, Option<Vec<u8>>) {
        loop {
            let mut effects = Vec::new();
            lists.use_value(&tenant(), (version, value.as_deref()), &mut effects);
            let Some(PauseEffect::Store(Op::Put { value: next, .. })) = effects.pop() else { return (version, value) };
            version += 1;
            value = next;
        }
    }

    #[test]
    fn list_follows_changes_and_is_bounded() {
        let mut lists = PausedLists::default();
        for n in 0..=limits::PAUSED_ACCOUNTS_LISTED_MAX {
            lists.record(account(n), Some(pause()));
        }
        let (version, value) = settle(&mut lists, 0, None);
        assert!(lists.tenants.is_empty());
        let asker = AccountAsker { link: LinkId(1), request_id: None };
        lists.ask(tenant(), asker.clone());
        let mut effects = Vec::new();
        lists.use_value(&tenant(), (version, value.as_deref()), &mut effects);
        let [PauseEffect::Reply(to, AccountReply::Listed { accounts, more: true })] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        assert_eq!((to, accounts.len()), (&asker, limits::PAUSED_ACCOUNTS_LISTED_MAX));
        for paused in accounts {
            let AccountKey { tenant, .. } = account(0);
            let account = AccountKey { tenant, channel: paused.channel.clone(), account: paused.account_id.clone() };
            lists.record(account, None);
        }
        assert_eq!(settle(&mut lists, version, value).1, None, "an empty list is removed");
    }

    #[test]
    fn failed_store_refuses_operators_and_keeps_changes() {
        let mut lists = PausedLists::default();
        let asker = AccountAsker { link: LinkId(1), request_id: None };
        let get = lists.ask(tenant(), asker.clone());
        lists.record(account(1), Some(pause()));
        let mut effects = Vec::new();
        lists.handle_failure(&tenant(), &mut effects);
        assert_eq!(effects, [PauseEffect::Unavailable(asker), PauseEffect::StoreLater(get)]);
        assert_eq!(lists.len(), 0);
        assert!(settle(&mut lists, 0, None).1.is_some());
    }
}

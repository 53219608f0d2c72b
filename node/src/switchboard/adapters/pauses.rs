//! Requests to pause and to resume accounts, of operators and of this node itself: each is a compare and set on the value
//! of its account, repeated until the store confirms it. The account need not have an adapter here.
use super::lease::{StoredAccount, lease_name};
use super::paused_list::PausedLists;
use std::collections::BTreeMap;
use turnway_core::id::{LinkId, RequestId, TenantId};
use turnway_core::limits;
use turnway_core::protocol::delivery::{AccountKey, AccountPause, PausedAccount};
use turnway_core::store::Op;
use turnway_wire::channel::account::{AccountReply, NamedAccount};

/// A link that waits for the answer to a request about accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccountAsker {
    pub(super) link: LinkId,
    pub(super) request_id: Option<RequestId>,
}

/// The changes that wait for the store.
#[derive(Debug, Default)]
pub(super) struct AccountPauses {
    /// By account, in order; each queue is bounded by [`limits::ACCOUNT_PAUSE_REQUESTS_MAX`] and a change of this node.
    changes: BTreeMap<AccountKey, Vec<PauseChange>>,
    lists: PausedLists,
}

#[derive(Debug)]
struct PauseChange {
    /// `None`: this node itself asks, and never gives up.
    asker: Option<AccountAsker>,
    /// The pause to set, unless there is one; `None`: resume.
    wanted: Option<AccountPause>,
    /// The value that was put last, and whether the account was paused before.
    put: Option<(Option<Vec<u8>>, bool)>,
}

/// An effect of a request about accounts.
#[derive(Debug, PartialEq)]
pub(super) enum PauseEffect {
    Store(Op),
    /// The store has not answered: ask it again later.
    StoreLater(Op),
    Reply(AccountAsker, AccountReply),
    Unavailable(AccountAsker),
}

// === impl AccountPauses ===

impl AccountPauses {
    /// Returns the number of requests that wait for the store.
    pub(super) fn len(&self) -> usize {
        self.changes.values().map(Vec::len).sum::<usize>() + self.lists.len()
    }

    /// Begins an operator's change of an account, unless too many wait.
    pub(super) fn ask(
        &mut self,
        account: AccountKey,
        asker: AccountAsker,
        wanted: Option<AccountPause>,
    ) -> Result<Op, AccountAsker> {
        let waiting = self.changes.get(&account).map_or(0, Vec::len);
        if waiting >= limits::ACCOUNT_PAUSE_REQUESTS_MAX || self.len() >= limits::PAUSE_REQUESTS_MAX {
            return Err(asker);
        }
        Ok(self.begin(account, Some(asker), wanted))
    }

    /// Begins to read the list of a tenant for an operator, unless too many requests wait.
    pub(super) fn ask_list(&mut self, tenant: TenantId, asker: AccountAsker) -> Result<Op, AccountAsker> {
        if self.len() >= limits::PAUSE_REQUESTS_MAX { Err(asker) } else { Ok(self.lists.ask(tenant, asker)) }
    }

    /// Has the list of the tenant follow an account that is served here.
    pub(super) fn record(&mut self, account: &AccountKey, pause: Option<AccountPause>) -> Op {
        self.lists.record(account.clone(), pause)
    }

    /// Begins a pause for this node itself, unless one has begun.
    pub(super) fn pause(&mut self, account: &AccountKey, pause: AccountPause) -> Option<Op> {
        let is_begun = self.changes.get(account).is_some_and(|all| all.iter().any(|change| change.asker.is_none()));
        (!is_begun).then(|| self.begin(account.clone(), None, Some(pause)))
    }

    fn begin(&mut self, account: AccountKey, asker: Option<AccountAsker>, wanted: Option<AccountPause>) -> Op {
        let name = lease_name(&account);
        self.changes.entry(account).or_default().push(PauseChange { asker, wanted, put: None });
        Op::Get { name }
    }

    /// Uses the store's reply to an op on an account's value. A change is done when its own put was confirmed: any other
    /// reply may be older than a change before it.
    pub(super) fn use_value(
        &mut self,
        account: &AccountKey,
        op: &Op,
        (version, value): (u64, Option<&[u8]>),
        effects: &mut Vec<PauseEffect>,
    ) {
        let Some(changes) = self.changes.get_mut(account) else { return };
        let stored = StoredAccount::read(value);
        if let (Some(change), Op::Put { expect, value: put, .. }) = (changes.first(), op)
            && let Some((own, was_paused)) = &change.put
            && put == own
            && own.as_deref() == value
            && (version == expect + 1 || value.is_none())
        {
            let changed = *was_paused != change.wanted.is_some();
            if let Some(asker) = change.asker.clone() {
                effects.push(PauseEffect::Reply(asker, reply_of(account, &stored, changed)));
            }
            effects.push(PauseEffect::Store(self.lists.record(account.clone(), stored.pause.clone())));
            changes.remove(0);
        }
        let Some(change) = changes.first_mut() else { return drop(self.changes.remove(account)) };
        let was_paused = stored.pause.is_some();
        let pause = change.wanted.as_ref().map(|wanted| stored.pause.clone().unwrap_or_else(|| wanted.clone()));
        let next = StoredAccount { pause, ..stored };
        // A value that a resume has left empty stays: its version must go on, so that older ones are recognised.
        let value = next.to_value().or_else(|| (version > 0).then(|| b"{}".to_vec()));
        change.put = Some((value.clone(), was_paused));
        effects.push(PauseEffect::Store(Op::Put { name: lease_name(account), expect: version, value }));
    }

    /// Handles that the store has not answered an op on an account's value. A put is repeated by the caller.
    pub(super) fn handle_failure(&mut self, account: &AccountKey, op: &Op, effects: &mut Vec<PauseEffect>) {
        let Some(changes) = self.changes.get_mut(account) else { return };
        for change in changes.extract_if(.., |change| change.asker.is_some()) {
            effects.extend(change.asker.map(PauseEffect::Unavailable));
        }
        if changes.is_empty() {
            self.changes.remove(account);
        } else if let Op::Get { .. } = op {
            effects.push(PauseEffect::StoreLater(op.clone()));
        }
    }

    /// Uses the store's reply to an op on a list.
    pub(super) fn use_list(
        &mut self,
        tenant: &TenantId,
        result: Option<(u64, Option<&[u8]>)>,
        effects: &mut Vec<PauseEffect>,
    ) {
        match result {
            Some(stored) => self.lists.use_value(tenant, stored, effects),
            None => self.lists.handle_failure(tenant, effects),
        }
    }
}

fn reply_of(account: &AccountKey, stored: &StoredAccount, changed: bool) -> AccountReply {
    let AccountKey { channel, account, .. } = account.clone();
    match stored.pause.clone() {
        Some(pause) => {
            AccountReply::Paused { account: Box::new(PausedAccount { channel, account_id: account, pause }), changed }
        }
        None => AccountReply::Resumed { account: NamedAccount { channel, account }, changed },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::{AccountId, ChannelName};
    use turnway_core::protocol::delivery::PauseReason;
    use turnway_core::time::Millis;

    fn account() -> AccountKey {
        AccountKey {
            tenant: TenantId::parse("default").expect("a tenant"),
            channel: ChannelName::parse("rooms").expect("a channel"),
            account: AccountId::parse("main").expect("an account"),
        }
    }

    fn asker(n: u64) -> AccountAsker {
        AccountAsker { link: LinkId(n), request_id: None }
    }

    fn pause(since: u64) -> AccountPause {
        AccountPause { reason: PauseReason::Operator, since: Millis(since), misplaced: None }
    }

    /// Hands a reply over; returns the op that follows, and whether a request was answered as changed.
    fn reply(pauses: &mut AccountPauses, op: &Op, stored: (u64, Option<&[u8]>)) -> (Option<Op>, Vec<bool>) {
        let mut effects = Vec::new();
        pauses.use_value(&account(), op, stored, &mut effects);
        let mut next = None;
        let mut changed = Vec::new();
        for effect in effects {
            match effect {
                PauseEffect::Store(op @ Op::Put { .. }) => next = Some(op),
                // The list follows.
                PauseEffect::Store(_) => {}
                PauseEffect::Reply(
                    _,
                    AccountReply::Paused { changed: it, .. } | AccountReply::Resumed { changed: it, .. },
                ) => {
                    changed.push(it);
                }
                PauseEffect::Reply(_, AccountReply::Listed { .. } | AccountReply::Shown(_))
                | PauseEffect::StoreLater(_)
                | PauseEffect::Unavailable(_) => panic!("{effect:?}"),
            }
        }
        (next, changed)
    }

    fn value_of(op: &Op) -> Option<&[u8]> {
        let Op::Put { value, .. } = op else { panic!("{op:?}") };
        value.as_deref()
    }

    /// Covers: BR-11.
    #[test]
    fn pause_keeps_the_lease_and_an_earlier_pause() {
        let lease = br#"{"node":"0a","link":7,"since":3}"#.as_slice();
        let mut pauses = AccountPauses::default();
        let get = pauses.ask(account(), asker(1), Some(pause(5))).expect("room");
        let (put, none) = reply(&mut pauses, &get, (4, Some(lease)));
        let put = put.expect("a put");
        assert!(none.is_empty());
        let stored = StoredAccount::read(value_of(&put));
        assert_eq!((stored.pause.as_ref(), stored.lease.map(|lease| lease.since)), (Some(&pause(5)), Some(Millis(3))));
        assert_eq!(reply(&mut pauses, &put, (5, value_of(&put))), (None, vec![true]));
        let get = pauses.ask(account(), asker(1), Some(pause(9))).expect("room");
        let again = reply(&mut pauses, &get, (5, value_of(&put))).0.expect("a put");
        assert_eq!(value_of(&again), value_of(&put), "the first pause and its time stay");
        assert_eq!(reply(&mut pauses, &again, (6, value_of(&again))), (None, vec![false]));
        assert_eq!(pauses.len(), 0);
    }

    #[test]
    fn change_is_confirmed_only_by_its_own_put() {
        let mut pauses = AccountPauses::default();
        let get = pauses.pause(&account(), pause(5)).expect("a read");
        assert!(pauses.pause(&account(), pause(6)).is_none(), "one pause of this node at a time");
        // A reply from before a resume shows a pause, which proves nothing.
        let old = StoredAccount { lease: None, pause: Some(pause(1)) }.to_value();
        let put = reply(&mut pauses, &get, (8, old.as_deref())).0.expect("a put");
        let put = reply(&mut pauses, &put, (9, Some(b"{}"))).0.expect("another put, because somebody was faster");
        assert_eq!(StoredAccount::read(value_of(&put)).pause, Some(pause(5)));
        reply(&mut pauses, &put, (10, value_of(&put)));
        assert_eq!(pauses.len(), 0);
    }

    #[test]
    fn resume_without_a_pause_changes_nothing() {
        let mut pauses = AccountPauses::default();
        let get = pauses.ask(account(), asker(1), None).expect("room");
        let put = reply(&mut pauses, &get, (0, None)).0.expect("a put");
        assert_eq!(value_of(&put), None, "no value is made for an account that has none");
        assert_eq!(reply(&mut pauses, &put, (0, None)), (None, vec![false]));
        let paused = StoredAccount { lease: None, pause: Some(pause(1)) }.to_value();
        let get = pauses.ask(account(), asker(1), None).expect("room");
        let put = reply(&mut pauses, &get, (3, paused.as_deref())).0.expect("a put");
        assert_eq!(reply(&mut pauses, &put, (4, value_of(&put))), (None, vec![true]));
    }

    #[test]
    fn failed_store_refuses_operators_but_not_the_node() {
        let mut pauses = AccountPauses::default();
        let get = pauses.pause(&account(), pause(5)).expect("a read");
        pauses.ask(account(), asker(1), None).expect("room");
        let mut effects = Vec::new();
        pauses.handle_failure(&account(), &get, &mut effects);
        assert_eq!(effects, [PauseEffect::Unavailable(asker(1)), PauseEffect::StoreLater(get)]);
        assert_eq!(pauses.len(), 1, "a misplaced part pauses its account however long the store is away");
    }

    #[test]
    fn requests_about_one_account_are_bounded() {
        let mut pauses = AccountPauses::default();
        for n in 0..limits::ACCOUNT_PAUSE_REQUESTS_MAX as u64 {
            assert!(pauses.ask(account(), asker(n), None).is_ok());
        }
        assert_eq!(pauses.ask(account(), asker(99), None), Err(asker(99)));
        let other = AccountKey { account: AccountId::parse("other").expect("an account"), ..account() };
        assert!(pauses.ask(other, asker(99), None).is_ok());
        // A misplaced part of the account finds room all the same.
        assert!(pauses.pause(&account(), pause(1)).is_some());
    }
}

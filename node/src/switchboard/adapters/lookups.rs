//! Lookups of accounts, which may have their adapter at any node: the stored lease names the holder, and the holder's node
//! must have a lease itself. Nothing is written. Called by `adapters`.
use super::lease::{StoredAccount, lease_name};
use super::pauses::AccountAsker;
use std::collections::BTreeMap;
use turnway_core::id::{LinkId, NodeId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::delivery::AccountKey;
use turnway_core::store::Op;
use turnway_core::time::Now;
use turnway_wire::channel::account::{AccountView, NamedAccount};
use turnway_wire::channel::binding::BindChildCommand;

/// The use of an account's state once it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LookupPurpose {
    /// The answer to an operator.
    Show(AccountAsker),
    /// The check of a request for a conversation within another one.
    Create { link: LinkId, bind: Box<BindChildCommand> },
}

/// The lookups of one node that wait for the store.
#[derive(Debug, Default)]
pub(super) struct AccountLookups {
    by_account: BTreeMap<AccountKey, AccountLookup>,
}

/// The lookups of one account.
#[derive(Debug, Default)]
struct AccountLookup {
    /// They wait for the account's value.
    unread: Vec<LookupPurpose>,
    /// They wait for the answer whether the holder's node has a lease.
    unchecked: Option<UncheckedHolder>,
}

/// A stored lease whose node is asked for.
#[derive(Debug)]
struct UncheckedHolder {
    node: NodeId,
    stored: StoredAccount,
    purposes: Vec<LookupPurpose>,
}

/// The place of the connection that has an account's lease, as far as this node knows by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HolderPlace {
    /// Another node has it.
    Elsewhere(NodeId),
    /// It is connected to this node, which has a lease.
    Here,
    /// Nobody has the lease, or the connection was one of this node and is gone.
    Nowhere,
}

/// An effect of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookupEffect {
    Store(Op),
    Known(LookupPurpose, AccountView),
    Unavailable(LookupPurpose),
}

// === impl AccountLookups ===

impl AccountLookups {
    /// Returns the number of lookups that wait for the store.
    pub(super) fn len(&self) -> usize {
        self.by_account.values().map(AccountLookup::len).sum()
    }

    /// Begins a lookup, unless too many wait.
    pub(super) fn begin(&mut self, account: AccountKey, purpose: LookupPurpose) -> Result<Op, LookupPurpose> {
        if self.len() >= limits::ACCOUNT_LOOKUPS_MAX {
            return Err(purpose);
        }
        let name = lease_name(&account);
        self.by_account.entry(account).or_default().unread.push(purpose);
        Ok(Op::Get { name })
    }

    /// Uses the stored value of an account.
    pub(super) fn use_value(
        &mut self,
        now: Now,
        account: &AccountKey,
        (stored, place): (&StoredAccount, HolderPlace),
        effects: &mut Vec<LookupEffect>,
    ) {
        let Some(lookup) = self.by_account.get_mut(account).filter(|lookup| !lookup.unread.is_empty()) else { return };
        let mut purposes = std::mem::take(&mut lookup.unread);
        match place {
            HolderPlace::Elsewhere(node) => {
                purposes.extend(lookup.unchecked.take().into_iter().flat_map(|earlier| earlier.purposes));
                lookup.unchecked = Some(UncheckedHolder { node, stored: stored.clone(), purposes });
                effects.push(LookupEffect::Store(Op::Lease { node, sent: now.mono }));
            }
            HolderPlace::Here => answer(account, stored, true, purposes, effects),
            HolderPlace::Nowhere => answer(account, stored, false, purposes, effects),
        }
        self.forget_if_done(account);
    }

    /// Handles the answer whether a node has a lease: a dead one serves no account.
    pub(super) fn handle_lease_check(&mut self, node: NodeId, is_alive: bool, effects: &mut Vec<LookupEffect>) {
        let is_served = is_alive || planted(Planted::DeadAdapterShown);
        for (account, UncheckedHolder { stored, purposes, .. }) in self.take_unchecked(node) {
            answer(&account, &stored, is_served, purposes, effects);
        }
    }

    /// Handles that the store has not answered whether a node has a lease.
    pub(super) fn handle_check_failed(&mut self, node: NodeId, effects: &mut Vec<LookupEffect>) {
        for (_, unchecked) in self.take_unchecked(node) {
            effects.extend(unchecked.purposes.into_iter().map(LookupEffect::Unavailable));
        }
    }

    /// Handles that the store has not answered a read of an account's value.
    pub(super) fn handle_failure(&mut self, account: &AccountKey, effects: &mut Vec<LookupEffect>) {
        if let Some(lookup) = self.by_account.get_mut(account) {
            effects.extend(lookup.unread.drain(..).map(LookupEffect::Unavailable));
        }
        self.forget_if_done(account);
    }

    fn take_unchecked(&mut self, node: NodeId) -> Vec<(AccountKey, UncheckedHolder)> {
        let mut taken = Vec::new();
        for (account, lookup) in &mut self.by_account {
            taken.extend(lookup.unchecked.take_if(|unchecked| unchecked.node == node).map(|it| (account.clone(), it)));
        }
        taken.iter().for_each(|(account, _)| self.forget_if_done(account));
        taken
    }

    fn forget_if_done(&mut self, account: &AccountKey) {
        if self.by_account.get(account).is_some_and(|lookup| lookup.len() == 0) {
            self.by_account.remove(account);
        }
    }
}

// === impl AccountLookup ===

impl AccountLookup {
    fn len(&self) -> usize {
        self.unread.len() + self.unchecked.as_ref().map_or(0, |unchecked| unchecked.purposes.len())
    }
}

fn answer(
    account: &AccountKey,
    stored: &StoredAccount,
    is_served: bool,
    purposes: Vec<LookupPurpose>,
    effects: &mut Vec<LookupEffect>,
) {
    let AccountKey { channel, account, .. } = account.clone();
    let service = stored.service().filter(|_| is_served);
    let view = AccountView { account: NamedAccount { channel, account }, service, pause: stored.pause.clone() };
    effects.extend(purposes.into_iter().map(|purpose| LookupEffect::Known(purpose, view.clone())));
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::id::{AccountId, ChannelName, TenantId};
    use turnway_core::protocol::delivery::{AccountPause, PauseReason};
    use turnway_core::time::Millis;

    const OTHER: NodeId = NodeId(10);

    fn account(id: &str) -> AccountKey {
        AccountKey {
            tenant: TenantId::parse("default").expect("a tenant"),
            channel: ChannelName::parse("rooms").expect("a channel"),
            account: AccountId::parse(id).expect("an account"),
        }
    }

    fn purpose(n: u64) -> LookupPurpose {
        LookupPurpose::Show(AccountAsker { link: LinkId(n), request_id: None })
    }

    fn leased() -> StoredAccount {
        let value = br#"{"node":"0a","link":7,"since":3,"capabilities":{"create_conversation":{"level":1}}}"#;
        StoredAccount::read(Some(value.as_slice()))
    }

    /// Hands a value over; returns the effects.
    fn value(lookups: &mut AccountLookups, stored: &StoredAccount, place: HolderPlace) -> Vec<LookupEffect> {
        let mut effects = Vec::new();
        lookups.use_value(Now::default(), &account("main"), (stored, place), &mut effects);
        effects
    }

    /// Returns whether the account of the only answer is served, and whether conversations can be made.
    fn told(effects: &[LookupEffect]) -> (bool, Option<bool>) {
        let [LookupEffect::Known(_, view)] = effects else { panic!("{effects:?}") };
        (view.service.is_some(), view.creates_conversations())
    }

    /// Covers: BD-B4.
    #[test]
    fn holder_elsewhere_counts_once_its_node_lives() {
        for (is_alive, expected) in [(true, (true, Some(true))), (false, (false, None))] {
            let mut lookups = AccountLookups::default();
            let name = lease_name(&account("main"));
            assert_eq!(lookups.begin(account("main"), purpose(1)), Ok(Op::Get { name }));
            let asked = value(&mut lookups, &leased(), HolderPlace::Elsewhere(OTHER));
            assert_eq!(asked, [LookupEffect::Store(Op::Lease { node: OTHER, sent: Now::default().mono })]);
            assert_eq!(value(&mut lookups, &leased(), HolderPlace::Elsewhere(OTHER)), [], "one check at a time");
            let mut effects = Vec::new();
            lookups.handle_lease_check(NodeId(11), !is_alive, &mut effects);
            assert_eq!(effects, [], "another node");
            lookups.handle_lease_check(OTHER, is_alive, &mut effects);
            assert_eq!(told(&effects), expected);
            assert_eq!(lookups.len(), 0);
        }
    }

    /// Covers: BD-B4.
    #[test]
    fn account_without_a_holder_is_answered_at_once() {
        let pause = AccountPause { reason: PauseReason::Operator, since: Millis(1), misplaced: None };
        let paused = StoredAccount { lease: None, pause: Some(pause.clone()) };
        let mut lookups = AccountLookups::default();
        lookups.begin(account("main"), purpose(1)).expect("room");
        let effects = value(&mut lookups, &paused, HolderPlace::Nowhere);
        assert_eq!(told(&effects), (false, None));
        let [LookupEffect::Known(_, view)] = effects.as_slice() else { panic!("{effects:?}") };
        assert_eq!(view.pause, Some(pause));
        lookups.begin(account("main"), purpose(1)).expect("room");
        assert_eq!(told(&value(&mut lookups, &leased(), HolderPlace::Here)), (true, Some(true)));
        assert_eq!(value(&mut lookups, &leased(), HolderPlace::Here), [], "nobody waits");
        assert_eq!(lookups.len(), 0);
    }

    /// Covers: BD-B4.
    #[test]
    fn failed_store_is_told_apart_from_an_unserved_account() {
        let mut lookups = AccountLookups::default();
        lookups.begin(account("main"), purpose(1)).expect("room");
        value(&mut lookups, &leased(), HolderPlace::Elsewhere(OTHER));
        lookups.begin(account("main"), purpose(2)).expect("room");
        let mut effects = Vec::new();
        lookups.handle_failure(&account("main"), &mut effects);
        assert_eq!(effects, [LookupEffect::Unavailable(purpose(2))]);
        effects.clear();
        lookups.handle_check_failed(OTHER, &mut effects);
        assert_eq!(effects, [LookupEffect::Unavailable(purpose(1))]);
        assert_eq!(lookups.len(), 0);
    }

    /// Covers: BD-B4.
    #[test]
    fn waiting_lookups_are_bounded() {
        let mut lookups = AccountLookups::default();
        for n in 0..limits::ACCOUNT_LOOKUPS_MAX {
            assert!(lookups.begin(account(&format!("a{n}")), purpose(1)).is_ok());
        }
        assert_eq!(lookups.begin(account("main"), purpose(2)), Err(purpose(2)));
        lookups.handle_failure(&account("a1"), &mut Vec::new());
        assert!(lookups.begin(account("main"), purpose(2)).is_ok(), "there is room again");
    }
}

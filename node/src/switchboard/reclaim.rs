//! Sessions of this node after its lease expired: those that no other node has claimed continue.
use super::Switchboard;
use super::effect::DeliveryCommand;
use super::owned_session::{SessionOwnership, SubscriberNode};
use turnway_core::id::{Nonce, OwnershipSnapshot, SessionKey};
use turnway_core::store::{Claimed, Op, Reply};
use turnway_core::time::Now;

impl Switchboard {
    /// Handles the loss of a lease. Sessions owned under the lost lease may be claimed by any node. They are
    /// claimed again with the next lease; until then nothing is recorded, started or ended.
    pub(super) fn handle_lease_lost(&mut self) {
        let holder = self.lease.holder;
        let leaving = self.drain.is_some();
        let mut gone = Vec::new();
        for (key, ownership) in &mut self.owned_sessions {
            let epoch = match ownership {
                SessionOwnership::Claiming { .. } => None,
                SessionOwnership::Loading { claimed, .. } => Some(claimed.token.epoch),
                // The session was released, or claimed with a lease that is lost too; which of the two is unknown.
                SessionOwnership::Owned(owned) if owned.releasing || owned.reclaim_nonce.is_some() || leaving => None,
                SessionOwnership::Owned(owned) => {
                    owned.reclaim_nonce = Some(Nonce(self.sink.rng.next_u128()));
                    self.unclaimed_ownership
                        .insert(key.clone(), OwnershipSnapshot { holder: Some(holder), epoch: owned.epoch() });
                    continue;
                }
            };
            if let Some(epoch) = epoch {
                self.unclaimed_ownership.insert(key.clone(), OwnershipSnapshot { holder: Some(holder), epoch });
            }
            gone.push(key.clone());
        }
        for key in gone {
            self.drop_owned_session(&key);
        }
    }

    /// Claims a session that this node owned before, unless another node owns it.
    pub(super) fn reclaim(&mut self, now: Now, key: &SessionKey, mine: OwnershipSnapshot) {
        let Some(nonce) =
            self.owned_sessions.get(key).and_then(SessionOwnership::owned).and_then(|owned| owned.reclaim_nonce)
        else {
            return self.claim(now, key, mine);
        };
        let holder = self.lease.holder;
        let floor = self.delivery.newest_epoch(key);
        self.sink.store(Op::Claim { key: key.clone(), holder, nonce, expect: mine, floor });
    }

    /// Continues an owned session after a successful claim, if no other node has written since. Returns false if
    /// the session must be loaded again.
    pub(super) fn continue_owning(&mut self, now: Now, key: &SessionKey, claimed: &Claimed) -> bool {
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return false;
        };
        if owned.reclaim_nonce.is_none() {
            return false;
        }
        let old = owned.token;
        let inbox = &claimed.inbox;
        if inbox.tail < owned.head || inbox.control_tail < owned.control_head {
            return false;
        }
        if claimed.view.tail != owned.tail() {
            // Either the append in flight was stored, or another node wrote.
            let facts = owned.in_flight.as_ref().map_or(0, |append| append.facts.len() as u64);
            let written = claimed.view.tail.epoch == old.epoch && claimed.view.tail.seq.0 == owned.tail().seq.0 + facts;
            if facts == 0 || !written {
                return false;
            }
            let tail = claimed.view.tail.seq;
            let version = owned.version;
            let (inbox_tail, control_tail) = owned.heads;
            let reply = Reply::Appended { tail, inbox_tail, control_tail, version, listeners: None };
            self.handle_appended(now, key, old, reply);
        }
        let Some(owned) = self.owned_session_mut(key, old) else { return false };
        (owned.token, owned.version, owned.reclaim_nonce) = (claimed.token, claimed.version, None);
        owned.runtime.continue_under(claimed.token);
        owned.subscribers.retain(|node, _| claimed.listeners.contains_key(node));
        for (node, stamp) in &claimed.listeners {
            owned.subscribers.entry(*node).or_insert(SubscriberNode::new(*stamp)).stamp = *stamp;
        }
        // A read under the old token has no valid reply; the claim has returned its content.
        (owned.reading, owned.read_again) = (false, false);
        let again = owned.in_flight.as_mut().map(|append| {
            (append.token, append.known_listeners) = (claimed.token, claimed.version);
            append.clone()
        });
        self.sink.stats.claims += 1;
        if let Some(append) = again {
            self.sink.store(Op::Append(Box::new(append)));
        }
        let owner = OwnershipSnapshot { holder: Some(self.lease.holder), epoch: claimed.token.epoch };
        self.sink.push(DeliveryCommand::WatchOwner { key: key.clone(), owner });
        self.apply_inbox(now, key, claimed.token, claimed.inbox.clone());
        true
    }
}

//! Sessions of this node after its lease expired: those that no other node has claimed continue.
use super::owned_session::SessionOwnership;
use super::{OwnerContext, Ownership};
use crate::switchboard::effect::{DeliveryCommand, OwnershipCommand};
use crate::switchboard::sink::EffectSink;
use turnway_core::id::{Nonce, OwnershipSnapshot, SessionKey};
use turnway_core::store::{Claimed, Op, Reply};

impl Ownership {
    /// Handles the loss of a lease. Sessions owned under the lost lease may be claimed by any node. They are
    /// claimed again with the next lease; until then nothing is recorded, started or ended.
    pub(super) fn lose_lease(&mut self, context: OwnerContext<'_>, sink: &mut EffectSink) {
        let holder = Some(context.membership.lease.holder());
        let leaving = context.membership.drain.is_started();
        for (key, ownership) in self.sessions.iter_mut() {
            let epoch = match ownership {
                SessionOwnership::Claiming { .. } => None,
                SessionOwnership::Loading { claimed, .. } => Some(claimed.token.epoch),
                // The session was released, or claimed with a lease that is lost too; which of the two is unknown.
                SessionOwnership::Owned(owned) if owned.releasing || owned.reclaim_nonce.is_some() || leaving => None,
                SessionOwnership::Owned(owned) => {
                    owned.reclaim_nonce = Some(Nonce(sink.rng.next_u128()));
                    self.unclaimed.insert(key.clone(), OwnershipSnapshot { holder, epoch: owned.epoch() });
                    continue;
                }
            };
            if let Some(epoch) = epoch {
                self.unclaimed.insert(key.clone(), OwnershipSnapshot { holder, epoch });
            }
            sink.push(OwnershipCommand::Drop(key.clone()));
        }
    }

    /// Continues an owned session after a successful claim, if no other node has written since. Returns false if
    /// the session must be loaded again.
    pub(super) fn continue_owning(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        claimed: &Claimed,
        sink: &mut EffectSink,
    ) -> bool {
        let Some(owned) = self.sessions.owned_mut(key) else { return false };
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
            self.handle_appended(context, key, old, reply, sink);
        }
        let Some(owned) = self.sessions.owned_by(key, old) else { return false };
        (owned.token, owned.version, owned.reclaim_nonce) = (claimed.token, claimed.version, None);
        owned.runtime.continue_under(claimed.token);
        owned.replace_subscribers(&claimed.listeners);
        // A read under the old token has no valid reply; the claim has returned its content.
        (owned.reading, owned.read_again) = (false, false);
        let again = owned.in_flight.as_mut().map(|append| {
            (append.token, append.known_listeners) = (claimed.token, claimed.version);
            append.clone()
        });
        sink.stats.claims += 1;
        if let Some(append) = again {
            sink.store(Op::Append(Box::new(append)));
        }
        let holder = Some(context.membership.lease.holder());
        let owner = OwnershipSnapshot { holder, epoch: claimed.token.epoch };
        sink.push(DeliveryCommand::WatchOwner { key: key.clone(), owner });
        self.apply_inbox(context, key, claimed.token, claimed.inbox.clone(), sink);
        true
    }
}

//! Transfer of a session with open work to a chosen node without a gap in ownership (ownership.md §1.10).
use super::drain::Drain;
use super::effect::{DeliveryCommand, RouterCommand};
use super::owned_session::SessionOwnership;
use super::{Switchboard, Timer};
use turnway_core::id::{Epoch, FenceToken, Holder, NodeId, Nonce, OwnershipSnapshot, SessionKey};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::store::{Op, Reply};
use turnway_core::time::Now;
use turnway_wire::peer::PeerMessage;

impl Switchboard {
    // === the leaving owner ===

    /// Gives up a quiet session: transfers it if work is left and a node reserves it, and releases it otherwise.
    ///
    /// A transfer takes these steps: the leaving owner asks a node to reserve the session; that node names a claim;
    /// the store makes that claim in the step that ends the old ownership; the new owner is notified and claims
    /// what it owns already, to load it. Every message may be lost: an owner without an answer releases the
    /// session, and the reserving node checks by the claim's nonce whether the claim was made.
    pub(super) fn give_up_ownership(&mut self, now: Now, key: &SessionKey) {
        let leaves = matches!(self.drain, Some(Drain::Ending { .. }));
        let has_work = self
            .owned_sessions
            .get(key)
            .and_then(SessionOwnership::owned)
            .is_some_and(|owned| owned.runtime.has_work());
        let successor = if leaves && has_work { self.pick_successor() } else { None };
        let Some(successor) = successor else { return self.release_session(key) };
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        (owned.releasing, owned.lingering, owned.successor) = (true, false, Some(successor));
        let epoch = owned.epoch();
        self.sink.timers.set(Timer::Reserve(key.clone()), now.mono + limits::RESERVE_TIMEOUT);
        self.sink.send_peer(successor, PeerMessage::Reserve { key: key.clone(), epoch });
    }

    fn release_session(&mut self, key: &SessionKey) {
        let drain = self.drain.is_some();
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        let token = owned.token;
        let tail = owned.tail().seq;
        (owned.releasing, owned.lingering, owned.successor) = (true, false, None);
        self.sink.store(Op::Release { key: key.clone(), token, tail, drain });
    }

    /// Handles a node's offer to own the session by a named claim.
    pub(super) fn handle_reserved(
        &mut self,
        from: NodeId,
        key: &SessionKey,
        epoch: Epoch,
        (to, nonce): (Holder, Nonce),
    ) {
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        // A session kept beyond the end of a lease is not leaving, and only the asked node may answer.
        if owned.epoch() != epoch || owned.successor != Some(from) || to.node != from {
            return;
        }
        owned.successor = None;
        let token = owned.token;
        let tail = owned.tail().seq;
        self.sink.timers.clear(&Timer::Reserve(key.clone()));
        self.sink.store(Op::Transfer { key: key.clone(), token, tail, to, nonce });
    }

    pub(super) fn handle_transferred(
        &mut self,
        now: Now,
        key: &SessionKey,
        token: FenceToken,
        to: Holder,
        reply: &Reply,
    ) {
        let Some(owned) = self.owned_session_mut(key, token) else { return };
        let Reply::Transferred { token: next } = reply else {
            return self.reload_from_store(now, key, token);
        };
        // As with a release: if the store has lost the transfer, this node is still the owner.
        if owned.needs_check {
            return self.reload_from_store(now, key, token);
        }
        self.sink.stats.transferred += 1;
        self.drop_owned_session(key);
        let owner = OwnershipSnapshot { holder: Some(to), epoch: next.epoch };
        self.sink.push(DeliveryCommand::SetOwner { key: key.clone(), owner });
        self.sink.send_peer(to.node, PeerMessage::HandOff { key: key.clone(), released: owner });
        self.sink.push(RouterCommand::OfferAll { key: key.clone(), owner });
    }

    // === the successor ===

    /// Handles a leaving owner's request to reserve a session.
    pub(super) fn handle_reserve(&mut self, now: Now, from: NodeId, key: &SessionKey, epoch: Epoch) {
        if !self.may_own(now) || self.drain.is_some() || self.owned_sessions.contains_key(key) {
            return;
        }
        let nonce = Nonce(self.sink.rng.next_u128());
        let holder = self.lease.holder;
        self.owned_sessions
            .insert(key.clone(), SessionOwnership::Claiming { nonce, since: now.mono, reserved_for: Some(from) });
        if !planted(Mutant::ReservedForgotten) {
            self.sink.timers.set(Timer::Reserve(key.clone()), now.mono + limits::RESERVED_CHECK_INTERVAL);
        }
        self.sink.send_peer(from, PeerMessage::Reserved { key: key.clone(), epoch, holder, nonce });
    }

    /// Handles the end of the wait: an owner without an answer releases the session; a reserving node checks
    /// whether it owns the session.
    pub(super) fn handle_reserve_timeout(&mut self, key: &SessionKey) {
        match self.owned_sessions.get(key) {
            Some(SessionOwnership::Owned(owned)) if owned.successor.is_some() => self.release_session(key),
            Some(SessionOwnership::Claiming { nonce, reserved_for: Some(_), .. }) => {
                // No session is ever in the expected state, so this claim succeeds only if it was made already.
                let nonce = *nonce;
                let holder = self.lease.holder;
                let expect = OwnershipSnapshot { holder: Some(holder), epoch: Epoch(0) };
                self.sink.store(Op::Claim { key: key.clone(), holder, nonce, expect, floor: Epoch(0) });
            }
            Some(SessionOwnership::Owned(_) | SessionOwnership::Claiming { .. } | SessionOwnership::Loading { .. })
            | None => {}
        }
    }

    /// Returns whether a reserved session still has the owner that asked for the reservation and may hand it over
    /// at any moment. The sessions of a dead owner are claimed as usual.
    pub(super) fn is_hand_over_pending(&mut self, now: Now, key: &SessionKey, owner: OwnershipSnapshot) -> bool {
        let Some(SessionOwnership::Claiming { reserved_for: Some(from), .. }) = self.owned_sessions.get(key) else {
            return false;
        };
        let waits = self.drain.is_none() && owner.holder.is_some_and(|holder| holder.node == *from);
        if waits {
            self.sink.timers.set(Timer::Reserve(key.clone()), now.mono + limits::RESERVED_CHECK_INTERVAL);
        }
        waits
    }
}

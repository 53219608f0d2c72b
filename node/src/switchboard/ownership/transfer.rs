//! The end of an ownership: release of a session, or its transfer to a chosen node without a gap in ownership
//! (ownership.md §1.10).
use super::owned_session::SessionOwnership;
use super::{OwnerContext, Ownership};
use crate::switchboard::effect::{DeliveryCommand, MembershipCommand, OwnershipCommand, RouterCommand};
use crate::switchboard::sink::{EffectSink, Timer};
use turnway_core::id::{Epoch, FenceToken, Holder, NodeId, Nonce, OwnershipSnapshot, SessionKey};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::store::{Op, Reply};
use turnway_core::time::Now;
use turnway_wire::peer::PeerMessage;

impl Ownership {
    // === the leaving owner ===

    /// Gives up a quiet session: transfers it if work is left and a node reserves it, and releases it otherwise.
    ///
    /// A transfer takes these steps: the leaving owner asks a node to reserve the session; that node names a claim;
    /// the store makes that claim in the step that ends the old ownership; the new owner is notified and claims
    /// what it owns already, to load it. Every message may be lost: an owner without an answer releases the
    /// session, and the reserving node checks by the claim's nonce whether the claim was made.
    pub(super) fn give_up(&mut self, context: OwnerContext<'_>, key: &SessionKey, sink: &mut EffectSink) {
        let drain = &context.membership.drain;
        let has_work = self.sessions.owned(key).is_some_and(|owned| owned.runtime.has_work());
        let successor = if drain.is_ending() && has_work { drain.pick_successor(sink) } else { None };
        let Some(successor) = successor else { return self.release(context, key, sink) };
        let Some(owned) = self.sessions.owned_mut(key) else { return };
        (owned.releasing, owned.lingering, owned.successor) = (true, false, Some(successor));
        let epoch = owned.epoch();
        sink.timers.set(Timer::Reserve(key.clone()), context.now.mono + limits::RESERVE_TIMEOUT);
        sink.send_peer(successor, PeerMessage::Reserve { key: key.clone(), epoch });
    }

    fn release(&mut self, context: OwnerContext<'_>, key: &SessionKey, sink: &mut EffectSink) {
        let drain = context.membership.drain.is_started();
        let Some(owned) = self.sessions.owned_mut(key) else { return };
        let token = owned.token;
        let tail = owned.tail().seq;
        (owned.releasing, owned.lingering, owned.successor) = (true, false, None);
        sink.store(Op::Release { key: key.clone(), token, tail, drain });
    }

    /// Handles the store's reply to a release. `drain`: the node was leaving.
    pub(super) fn handle_released(
        &mut self,
        key: SessionKey,
        token: FenceToken,
        drain: bool,
        reply: &Reply,
        sink: &mut EffectSink,
    ) {
        let Some(owned) = self.sessions.owned_by(&key, token) else { return };
        // If the store has lost the release, this node is still the owner and no other node would claim the
        // session.
        if *reply == Reply::NotReleased || owned.needs_check {
            return sink.push(OwnershipCommand::Reload { key, token });
        }
        sink.stats.released += 1;
        sink.push(OwnershipCommand::Drop(key.clone()));
        let owner = OwnershipSnapshot { holder: None, epoch: token.epoch };
        sink.push(DeliveryCommand::SetOwner { key: key.clone(), owner });
        if drain {
            sink.push(MembershipCommand::OfferHandOff { key, free: owner });
        } else {
            sink.push(RouterCommand::OfferAll { key, owner });
        }
    }

    /// Handles a node's offer to own the session by a named claim.
    pub(in crate::switchboard) fn handle_reserved(
        &mut self,
        from: NodeId,
        key: &SessionKey,
        epoch: Epoch,
        (to, nonce): (Holder, Nonce),
        sink: &mut EffectSink,
    ) {
        let Some(owned) = self.sessions.owned_mut(key) else { return };
        // A session kept beyond the end of a lease is not leaving, and only the asked node may answer.
        if owned.epoch() != epoch || owned.successor != Some(from) || to.node != from {
            return;
        }
        owned.successor = None;
        let token = owned.token;
        let tail = owned.tail().seq;
        sink.timers.clear(&Timer::Reserve(key.clone()));
        sink.store(Op::Transfer { key: key.clone(), token, tail, to, nonce });
    }

    /// Handles the store's reply to a transfer.
    pub(super) fn handle_transferred(
        &mut self,
        key: SessionKey,
        token: FenceToken,
        to: Holder,
        reply: &Reply,
        sink: &mut EffectSink,
    ) {
        let Some(owned) = self.sessions.owned_by(&key, token) else { return };
        let Reply::Transferred { token: next } = reply else {
            return sink.push(OwnershipCommand::Reload { key, token });
        };
        // As with a release: if the store has lost the transfer, this node is still the owner.
        if owned.needs_check {
            return sink.push(OwnershipCommand::Reload { key, token });
        }
        sink.stats.transferred += 1;
        sink.push(OwnershipCommand::Drop(key.clone()));
        let owner = OwnershipSnapshot { holder: Some(to), epoch: next.epoch };
        sink.push(DeliveryCommand::SetOwner { key: key.clone(), owner });
        sink.send_peer(to.node, PeerMessage::HandOff { key: key.clone(), released: owner });
        sink.push(RouterCommand::OfferAll { key, owner });
    }

    // === the successor ===

    /// Handles a leaving owner's request to reserve a session.
    pub(in crate::switchboard) fn handle_reserve(
        &mut self,
        context: OwnerContext<'_>,
        from: NodeId,
        key: &SessionKey,
        epoch: Epoch,
        sink: &mut EffectSink,
    ) {
        let now = context.now;
        if !context.membership.may_claim(now) || self.sessions.contains(key) {
            return;
        }
        let nonce = Nonce(sink.rng.next_u128());
        let holder = context.membership.lease.holder();
        self.sessions
            .insert(key.clone(), SessionOwnership::Claiming { nonce, since: now.mono, reserved_for: Some(from) });
        if !planted(Mutant::ReservedForgotten) {
            sink.timers.set(Timer::Reserve(key.clone()), now.mono + limits::RESERVED_CHECK_INTERVAL);
        }
        sink.send_peer(from, PeerMessage::Reserved { key: key.clone(), epoch, holder, nonce });
    }

    /// Handles the end of the wait: an owner without an answer releases the session; a reserving node checks
    /// whether it owns the session.
    pub(super) fn handle_reserve_timeout(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        sink: &mut EffectSink,
    ) {
        match self.sessions.get(key) {
            Some(SessionOwnership::Owned(owned)) if owned.successor.is_some() => self.release(context, key, sink),
            Some(SessionOwnership::Claiming { nonce, reserved_for: Some(_), .. }) => {
                // No session is ever in the expected state, so this claim succeeds only if it was made already.
                let nonce = *nonce;
                let holder = context.membership.lease.holder();
                let expect = OwnershipSnapshot { holder: Some(holder), epoch: Epoch(0) };
                sink.store(Op::Claim { key: key.clone(), holder, nonce, expect, floor: Epoch(0) });
            }
            Some(SessionOwnership::Owned(_) | SessionOwnership::Claiming { .. } | SessionOwnership::Loading { .. })
            | None => {}
        }
    }

    /// Returns whether a reserved session still has the owner that asked for the reservation and may hand it over
    /// at any moment; then it is checked again later. The sessions of a dead owner are claimed as usual.
    pub(super) fn await_hand_over(
        &self,
        now: Now,
        key: &SessionKey,
        owner: OwnershipSnapshot,
        is_leaving: bool,
        sink: &mut EffectSink,
    ) -> bool {
        let Some(SessionOwnership::Claiming { reserved_for: Some(from), .. }) = self.sessions.get(key) else {
            return false;
        };
        let waits = !is_leaving && owner.holder.is_some_and(|holder| holder.node == *from);
        if waits {
            sink.timers.set(Timer::Reserve(key.clone()), now.mono + limits::RESERVED_CHECK_INTERVAL);
        }
        waits
    }
}

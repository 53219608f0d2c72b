//! Transfer of a session with open work to a chosen node without a gap in ownership (ownership.md §1.10).
use super::drain::Drain;
use super::seat::Seat;
use super::{Switchboard, Timer};
use crate::peer::Words;
use turnway_core::id::{Epoch, Holder, NodeId, Nonce, Seen, SessionKey, Token};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::store::{Op, Reply};
use turnway_core::time::Now;

impl Switchboard {
    // === the leaving owner ===

    /// Gives up a quiet session: transfers it if work is left and a node reserves it, and releases it otherwise.
    ///
    /// A transfer takes these steps: the leaving owner asks a node to reserve the session; that node names a claim;
    /// the store makes that claim in the step that ends the old ownership; the new owner is notified and claims
    /// what it owns already, to load it. Every message may be lost: an owner without an answer releases the
    /// session, and the reserving node checks by the claim's nonce whether the claim was made.
    pub(super) fn part_with(&mut self, now: Now, key: &SessionKey) {
        let leaves = matches!(self.drain, Some(Drain::Ending { .. }));
        let has_work =
            self.seats.get(key).and_then(Seat::owned).is_some_and(|owned| owned.runtime.has_work());
        let heir = if leaves && has_work { self.an_heir() } else { None };
        let Some(heir) = heir else { return self.release(key) };
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        (owned.releasing, owned.lingering, owned.heir) = (true, false, Some(heir));
        let epoch = owned.epoch();
        self.timers.set(Timer::Reserve(key.clone()), now.mono + limits::RESERVE_WITHIN);
        self.tell(now, heir, Words::Reserve { key: key.clone(), epoch });
    }

    fn release(&mut self, key: &SessionKey) {
        let drain = self.drain.is_some();
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        let (token, tail) = (owned.token, owned.tail().seq);
        (owned.releasing, owned.lingering, owned.heir) = (true, false, None);
        self.store(Op::Release { key: key.clone(), token, tail, drain });
    }

    /// Handles a node's offer to own the session by a named claim.
    pub(super) fn reserved(
        &mut self,
        from: NodeId,
        key: &SessionKey,
        epoch: Epoch,
        (to, nonce): (Holder, Nonce),
    ) {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        // A session kept beyond the end of a lease is not leaving, and only the asked node may answer.
        if owned.epoch() != epoch || owned.heir != Some(from) || to.node != from {
            return;
        }
        owned.heir = None;
        let (token, tail) = (owned.token, owned.tail().seq);
        self.timers.clear(&Timer::Reserve(key.clone()));
        self.store(Op::Transfer { key: key.clone(), token, tail, to, nonce });
    }

    pub(super) fn transferred(
        &mut self,
        now: Now,
        key: &SessionKey,
        token: Token,
        to: Holder,
        reply: &Reply,
    ) {
        let Some(owned) = self.owned(key, token) else { return };
        let Reply::Transferred { token: next } = reply else { return self.abandon(now, key, token) };
        // As with a release: if the store has lost the transfer, this node is still the owner.
        if owned.doubted {
            return self.abandon(now, key, token);
        }
        self.stats.transferred += 1;
        self.drop_seat(key);
        let owner = Seen { holder: Some(to), epoch: next.epoch };
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.owner = owner;
        }
        self.tell(now, to.node, Words::Adopt { key: key.clone(), free: owner });
        self.ring_all(now, key, owner);
    }

    // === the successor ===

    /// Handles a leaving owner's request to reserve a session.
    pub(super) fn reserve(&mut self, now: Now, from: NodeId, key: &SessionKey, epoch: Epoch) {
        if !self.is_lawful(now) || self.drain.is_some() || self.seats.contains_key(key) {
            return;
        }
        let (nonce, holder) = (Nonce(self.rng.next_u128()), self.lease.holder);
        self.seats.insert(key.clone(), Seat::Claiming { nonce, since: now.mono, from: Some(from) });
        if !planted(Mutant::ReservedForgotten) {
            self.timers.set(Timer::Reserve(key.clone()), now.mono + limits::RESERVED_LOOK);
        }
        self.tell(now, from, Words::Reserved { key: key.clone(), epoch, holder, nonce });
    }

    /// Handles the end of the wait: an owner without an answer releases the session; a reserving node checks
    /// whether it owns the session.
    pub(super) fn reserve_due(&mut self, key: &SessionKey) {
        match self.seats.get(key) {
            Some(Seat::Owned(owned)) if owned.heir.is_some() => self.release(key),
            Some(Seat::Claiming { nonce, from: Some(_), .. }) => {
                // No session is ever in the expected state, so this claim succeeds only if it was made already.
                let (nonce, holder) = (*nonce, self.lease.holder);
                let expect = Seen { holder: Some(holder), epoch: Epoch(0) };
                self.store(Op::Claim { key: key.clone(), holder, nonce, expect, floor: Epoch(0) });
            }
            Some(Seat::Owned(_) | Seat::Claiming { .. } | Seat::Loading { .. }) | None => {}
        }
    }

    /// Returns whether a reserved session still has the owner that asked for the reservation and may hand it over
    /// at any moment. The sessions of a dead owner are claimed as usual.
    pub(super) fn is_awaited_from(&mut self, now: Now, key: &SessionKey, owner: Seen) -> bool {
        let Some(Seat::Claiming { from: Some(from), .. }) = self.seats.get(key) else { return false };
        let waits = self.drain.is_none() && owner.holder.is_some_and(|holder| holder.node == *from);
        if waits {
            self.timers.set(Timer::Reserve(key.clone()), now.mono + limits::RESERVED_LOOK);
        }
        waits
    }
}

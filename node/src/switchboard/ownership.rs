//! The sessions that this node owns: claim, load, append, release.
use super::Switchboard;
use super::effect::{DeliveryCommand, DurableFacts, MembershipCommand, PartEffect, RouterCommand};
use super::io::Output;
use super::owned_session::{OwnedSession, SessionOwnership, inputs_after};
use super::sink::Timer;
use super::state_reads::state_of;
use std::sync::Arc;
use turnway_core::id::{
    Epoch, EventId, FenceToken, Holder, InboxPosition, NodeId, Nonce, OwnershipSnapshot, RunId, Seq, SessionKey,
};
use turnway_core::machine::Machine;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::action::ToolReport;
use turnway_core::protocol::entry::{Entry, Fact, RunFact};
use turnway_core::rng::Rng;
use turnway_core::session::{Input as RuntimeInput, Output as RuntimeOutput, SessionRuntime, State};
use turnway_core::store::{InboxContents, Op, Reply};
use turnway_core::time::Now;
use turnway_wire::peer::{OfferedEntry, PeerMessage};

impl Switchboard {
    // === claim and load ===

    /// Claims a session that was seen to be free, or to belong to a holder that is gone.
    pub(super) fn claim(&mut self, now: Now, key: &SessionKey, expect: OwnershipSnapshot) {
        if !self.may_own(now)
            || self.drain.is_some()
            || self.owned_sessions.get(key).is_some_and(SessionOwnership::is_beyond_reserved)
        {
            return;
        }
        let nonce = Nonce(self.sink.rng.next_u128());
        let floor = self.delivery.newest_epoch(key);
        self.sink.timers.clear(&Timer::Reserve(key.clone()));
        self.owned_sessions
            .insert(key.clone(), SessionOwnership::Claiming { nonce, since: now.mono, reserved_for: None });
        self.sink.store(Op::Claim { key: key.clone(), holder: self.lease.holder, nonce, expect, floor });
    }

    pub(super) fn handle_claimed(
        &mut self,
        now: Now,
        key: &SessionKey,
        (holder, nonce): (Holder, Nonce),
        expect: OwnershipSnapshot,
        reply: Reply,
    ) {
        self.handle_claim_answered(now, nonce, matches!(reply, Reply::Claimed(_)));
        let (mine, since) = match self.owned_sessions.get(key) {
            Some(SessionOwnership::Claiming { nonce, since, .. }) => (Some(*nonce), *since),
            Some(SessionOwnership::Owned(owned)) => (owned.reclaim_nonce, now.mono),
            Some(SessionOwnership::Loading { .. }) | None => return,
        };
        if mine != Some(nonce) || holder != self.lease.holder {
            return;
        }
        if let Reply::Claimed(claimed) = &reply
            && self.continue_owning(now, key, claimed)
        {
            return;
        }
        if let Reply::OwnershipConflict { owner } = &reply
            && self.is_hand_over_pending(now, key, *owner)
        {
            return;
        }
        self.drop_owned_session(key);
        if let Reply::Claimed(claimed) = reply {
            self.sink.stats.claims += 1;
            let before = expect.holder.map(|before| before.node).filter(|node| *node != holder.node);
            self.sink.stats.takeovers += u64::from(before.is_some());
            let by = claimed.token;
            let state = state_of(&claimed.view);
            let unread = state.is_none().then(|| claimed.view.clone());
            self.owned_sessions
                .insert(key.clone(), SessionOwnership::Loading { claimed, since, previous_owner: before });
            if let Some(state) = state {
                self.start_owning(now, key, by, state);
            } else if let Some(view) = unread {
                self.sink.push(DeliveryCommand::RebuildForOwner { key: key.clone(), token: by, view: Box::new(view) });
            }
        } else if let Reply::OwnershipConflict { owner } = reply {
            self.sink.stats.claims_held += 1;
            self.handle_claim_lost(now, key, owner);
        }
    }

    /// Handles a lost claim: another node is the owner, or was until it died.
    fn handle_claim_lost(&mut self, now: Now, key: &SessionKey, owner: OwnershipSnapshot) {
        self.sink.push(DeliveryCommand::SetNewerOwner { key: key.clone(), owner });
        // If the store lost a claim, a late copy of an older one may have won; then no other node would look after
        // a session whose named owner is alive. If this node is named, it claims the session; otherwise it tells
        // the named node.
        let Some(holder) = owner.holder.filter(|holder| holder.node != self.me) else {
            return self.claim(now, key, owner);
        };
        self.sink.push(MembershipCommand::AddFasterNode(holder.node));
        self.sink.push(RouterCommand::OfferAll { key: key.clone(), owner });
        self.sink.send_peer(holder.node, PeerMessage::HandOff { key: key.clone(), released: owner });
    }

    /// Starts to own a claimed session whose state is known.
    pub(super) fn start_owning(&mut self, now: Now, key: &SessionKey, by: FenceToken, state: State) {
        let Some(SessionOwnership::Loading { claimed, since, .. }) = self.owned_sessions.get(key) else {
            return;
        };
        if claimed.token != by {
            return;
        }
        if state.tail != claimed.view.tail {
            return self.reload_from_store(now, key, by);
        }
        self.sink.stats.claim_durations.record(now.mono - *since);
        let Some(SessionOwnership::Loading { claimed, previous_owner: before, .. }) = self.owned_sessions.remove(key)
        else {
            return;
        };
        let mut seed = [0; 32];
        seed[..16].copy_from_slice(&self.sink.rng.next_u128().to_be_bytes());
        seed[16..].copy_from_slice(&self.sink.rng.next_u128().to_be_bytes());
        let rng = Rng::from_seed(seed);
        let directory = Arc::clone(&self.directory);
        let mut runtime = SessionRuntime::new(key.clone(), by, directory, rng, state.clone());
        runtime.require_permits();
        let kept = claimed.view.snapshot.as_ref().map_or(Seq(0), |snapshot| snapshot.at.seq);
        let mut owned = OwnedSession::new(&claimed, runtime, state, kept);
        owned.previous_owner = before;
        owned.account = self.count_session(key, claimed.view.user.as_ref());
        if self.drain.is_some() {
            owned.runtime.handle_input(now, RuntimeInput::Hold);
        }
        self.owned_sessions.insert(key.clone(), SessionOwnership::Owned(Box::new(owned)));
        // Links here may have missed facts that another owner wrote.
        let owner = Some(OwnershipSnapshot { holder: Some(self.lease.holder), epoch: by.epoch });
        let after = claimed.view.tail;
        self.sink.push(PartEffect::Facts(DurableFacts { key: key.clone(), after, facts: Vec::new(), owner }));
        self.apply_inbox(now, key, by, claimed.inbox);
    }

    /// Drops an owned session and claims it again, because the store does not have what this owner remembers.
    pub(super) fn reload_from_store(&mut self, now: Now, key: &SessionKey, token: FenceToken) {
        self.sink.stats.abandoned += 1;
        self.drop_owned_session(key);
        let mine = OwnershipSnapshot { holder: Some(self.lease.holder), epoch: token.epoch };
        if self.may_own(now) {
            self.claim(now, key, mine);
        } else {
            // The store still names this node as owner, so no other node will take the session over; this node
            // claims it as soon as it has a lease.
            self.unclaimed_ownership.insert(key.clone(), mine);
        }
    }

    /// Gives up ownership when the store or the bus reports a newer claim. The owner would learn of the claim from
    /// its next write, but an owner that slept may have nothing to write while an agent works for it.
    pub(super) fn handle_newer_epoch(&mut self, now: Now, key: &SessionKey, by: Epoch) {
        let Some(owned) = self.owned_sessions.get(key).and_then(SessionOwnership::owned) else { return };
        if owned.reclaim_nonce.is_none() && owned.epoch() < by {
            let token = owned.token;
            self.reload_from_store(now, key, token);
        }
    }

    /// Resets a session after a broken invariant: drops the owned session and the feed, and loads both from the
    /// store. Every other session continues.
    pub fn reset_session(&mut self, now: Now, key: &SessionKey) {
        self.delivery.forget_state_read(key);
        match self.owned_sessions.get(key).and_then(SessionOwnership::owned).map(|owned| owned.token) {
            Some(token) => self.reload_from_store(now, key, token),
            None => self.drop_owned_session(key),
        }
        self.step(now);
        self.delivery.resync(key, &mut self.sink);
        self.step(now);
    }

    /// Drops an owned session: its attempts are closed, and later reports of them are ignored.
    pub(super) fn drop_owned_session(&mut self, key: &SessionKey) {
        self.sink.timers.clear(&Timer::Runtime(key.clone()));
        self.sink.timers.clear(&Timer::Write(key.clone()));
        self.sink.timers.clear(&Timer::Linger(key.clone()));
        self.sink.timers.clear(&Timer::Reserve(key.clone()));
        if let Some(SessionOwnership::Owned(mut owned)) = self.owned_sessions.remove(key) {
            let held = std::mem::take(&mut owned.held_outputs);
            let unsaid = held.iter().filter_map(RuntimeOutput::drop_order).cloned();
            for order in unsaid.chain(owned.runtime.abandon()) {
                self.sink.output(Output::Order(order));
            }
            self.record_runtime_counts(&mut owned);
            self.return_holdings(key, &mut owned);
        }
    }

    pub(super) fn owned_session_mut(&mut self, key: &SessionKey, token: FenceToken) -> Option<&mut OwnedSession> {
        self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut).filter(|owned| owned.token == token)
    }

    // === inbox and control lane ===

    pub(super) fn handle_offer(
        &mut self,
        now: Now,
        from: NodeId,
        key: &SessionKey,
        owner: OwnershipSnapshot,
        item: OfferedEntry,
    ) {
        let mine = owner.holder.is_some_and(|holder| holder.node == self.me) && self.drain.is_none();
        match self.owned_sessions.get_mut(key) {
            // The session was handed over, and the message about that is late.
            Some(ownership) if mine && !ownership.is_beyond_reserved() => self.claim(now, key, owner),
            Some(SessionOwnership::Claiming { .. } | SessionOwnership::Loading { .. }) => {}
            Some(SessionOwnership::Owned(owned)) if owned.releasing => {}
            Some(SessionOwnership::Owned(_)) => self.accept_offer(now, from, key, item),
            // The store names this node as owner: from an earlier lease, or because the store lost this node's
            // release.
            None if mine => self.claim(now, key, owner),
            None => self.sink.send_peer(from, PeerMessage::NotOwner { key: key.clone(), owner }),
        }
    }

    fn accept_offer(&mut self, now: Now, from: NodeId, key: &SessionKey, item: OfferedEntry) {
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        match item {
            OfferedEntry::Input { place, prev, input } => {
                let run_id = input.run_id.clone();
                if owned.is_next_input(place, prev) || (place > owned.head && planted(Mutant::BellTrusted)) {
                    owned.head = place;
                    owned.runtime.handle_input(now, RuntimeInput::Take { place, input });
                    self.drive_runtime(now, key);
                } else if place > owned.head {
                    return self.read_inbox(key);
                }
                if !self.is_start_announced_to(key, &run_id, from) {
                    self.sink.send_peer(from, PeerMessage::InputAccepted { key: key.clone(), run_id });
                }
                return;
            }
            OfferedEntry::Control { place, prev, control } => {
                if place > owned.control_head {
                    owned.control_offerers.insert(control.id.clone(), from);
                    if prev != owned.control_head || !owned.runtime.state().has_open_turn() && owned.reading {
                        return self.read_inbox(key);
                    }
                    owned.control_head = place;
                    owned.runtime.handle_input(now, RuntimeInput::Control { place, control });
                }
            }
        }
        self.drive_runtime(now, key);
    }

    /// Returns whether the start of a turn is being written and the node subscribes to it, so that it needs no
    /// other confirmation. If the fact is lost, the node repeats its offer.
    fn is_start_announced_to(&self, key: &SessionKey, run_id: &RunId, node: NodeId) -> bool {
        let Some(owned) = self.owned_sessions.get(key).and_then(SessionOwnership::owned) else {
            return false;
        };
        let begins = |entry: &Arc<Entry>| {
            matches!(entry.fact, Fact::Run(RunFact::Started { .. })) && entry.run_id.as_ref() == Some(run_id)
        };
        let mut written = owned.in_flight.iter().flat_map(|append| &append.facts);
        owned.subscribers.contains_key(&node) && written.any(begins)
    }

    pub(super) fn read_inbox(&mut self, key: &SessionKey) {
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            return;
        };
        if std::mem::replace(&mut owned.reading, true) {
            owned.read_again = true;
            return;
        }
        let token = owned.token;
        let control_after = owned.control_head;
        // Starts at an input whose content was left in the store, once its turn has come.
        let wanted = owned.runtime.wanted_content().map(|place| InboxPosition(place.0.saturating_sub(1)));
        let after = wanted.map_or(owned.head, |before| before.min(owned.head));
        self.sink.store(Op::Inbox { key: key.clone(), token, after, control_after });
    }

    /// Handles a read of inbox and control lane. If they end before the owner's position, the store has lost
    /// entries, and missing ones prove nothing about what was accepted.
    pub(super) fn handle_inbox(
        &mut self,
        now: Now,
        key: &SessionKey,
        token: FenceToken,
        had: (InboxPosition, InboxPosition),
        inputs: InboxContents,
    ) {
        let Some(owned) = self.owned_session_mut(key, token) else { return };
        let lacks = |wanted: InboxPosition| had.0 < wanted && !inputs.inputs.iter().any(|(place, _)| *place == wanted);
        let is_gone = owned.runtime.wanted_content().is_some_and(lacks);
        if inputs.tail >= had.0 && inputs.control_tail >= had.1 && !is_gone {
            self.apply_inbox(now, key, token, inputs);
        } else if owned.reclaim_nonce.is_none() {
            self.reload_from_store(now, key, token);
        }
    }

    /// Handles the entries of inbox and control lane: inputs first, because control entries refer to them.
    pub(super) fn apply_inbox(&mut self, now: Now, key: &SessionKey, token: FenceToken, inputs: InboxContents) {
        let Some(owned) = self.owned_session_mut(key, token) else { return };
        owned.reading = false;
        let head = owned.head;
        let control_head = owned.control_head;
        let wanted = owned.runtime.wanted_content();
        let content = inputs.inputs.iter().find(|(place, _)| Some(*place) == wanted);
        if let Some((place, input)) = content.map(|(place, input)| (*place, Arc::clone(input))) {
            owned.runtime.handle_input(now, RuntimeInput::Content { place, input });
        }
        let mut accepted = Vec::new();
        for (place, input) in inputs_after(&inputs, head) {
            accepted.push(input.run_id.clone());
            owned.runtime.handle_input(now, RuntimeInput::Take { place, input });
        }
        let controls = inputs.controls.into_iter().filter(|(place, _)| *place > control_head);
        for (place, control) in controls.filter(|_| !planted(Mutant::ControlUnread)) {
            owned.runtime.handle_input(now, RuntimeInput::Control { place, control });
        }
        owned.head = owned.head.max(inputs.tail);
        owned.control_head = owned.control_head.max(inputs.control_tail);
        let again = std::mem::take(&mut owned.read_again);
        if !again && std::mem::take(&mut owned.catching_up) {
            owned.runtime.handle_input(now, RuntimeInput::InboxRead);
        }
        for run_id in accepted {
            self.sink.push(RouterCommand::AcceptInput(run_id));
        }
        if again {
            self.read_inbox(key);
        }
        self.drive_runtime(now, key);
    }

    /// Handles a tool runner's report about an action.
    pub(super) fn handle_tool_report(&mut self, now: Now, key: &SessionKey, action_id: EventId, report: ToolReport) {
        self.handle_reports(now, key, std::iter::once(RuntimeInput::Tool { action_id, report }));
    }

    /// Handles reports of agents and tool runners.
    pub(super) fn handle_reports(
        &mut self,
        now: Now,
        key: &SessionKey,
        reports: impl ExactSizeIterator<Item = RuntimeInput>,
    ) {
        let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) else {
            self.sink.stats.late_reports += reports.len() as u64;
            return;
        };
        // The facts of all reports go into one append.
        for report in reports {
            owned.runtime.handle_input(now, report);
        }
        self.drive_runtime(now, key);
    }

    pub(super) fn handle_runtime_timeout(&mut self, now: Now, key: &SessionKey) {
        if let Some(owned) = self.owned_sessions.get_mut(key).and_then(SessionOwnership::owned_mut) {
            owned.runtime.handle_timeout(now);
        }
        self.drive_runtime(now, key);
    }
}

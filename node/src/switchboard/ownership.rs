//! The sessions that this node owns: claimed, loaded, given up. The modules `drive`, `reclaim`, `subscribers` and
//! `transfer` contain further operations; other parts are read, and reached by effects only.
mod append;
mod conversation_turns;
mod drive;
mod inbox;
mod owned_session;
mod owned_text;
mod reclaim;
pub(super) mod resources;
pub(super) mod session_task;
mod subscribers;
mod transfer;

use super::delivery::Delivery;
use super::delivery::state_reads::state_of;
use super::effect::{
    AdaptersCommand, BindingsCommand, DeliveryCommand, DurableFacts, MembershipCommand, OwnershipCommand, PartEffect,
    RouterCommand, TasksCommand,
};
use super::io::Output;
use super::membership::Membership;
use super::sink::{EffectSink, Timer};
use super::stats::SwitchboardStats;
use drive::add_counts;
use owned_session::{OwnedSession, OwnedSessions, SessionOwnership};
use resources::{Capacity, ResourceGauges, ResourceLedgers};
use session_task::SessionTasks;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnway_core::id::{
    Epoch, FenceToken, Holder, NodeId, Nonce, OwnershipSnapshot, Principal, RunId, Seq, SessionKey,
};
use turnway_core::machine::Machine;
use turnway_core::protocol::agent::AgentDirectory;
use turnway_core::protocol::binding::UnbindReason;
use turnway_core::protocol::entry::LOWEST_FACT_LEVEL;
use turnway_core::protocol::refusal::Refusal;
use turnway_core::rng::Rng;
use turnway_core::session::{Input as RuntimeInput, Output as RuntimeOutput, SessionPhase, SessionRuntime, State};
use turnway_core::store::{Claimed, Op, Reply, StoreError};
use turnway_core::time::Now;
use turnway_wire::peer::{OfferedEntry, PeerMessage};

/// The sessions that this node owns or claims.
#[derive(Debug)]
pub(super) struct Ownership {
    me: NodeId,
    /// Minimum number of facts kept for each session; `None`: all.
    keep_facts: Option<u64>,
    /// The level of facts that every live node knows.
    fact_level: u32,
    sessions: OwnedSessions,
    /// Sessions that the store assigns to this node and that this node does not have: given up while the lease had
    /// lapsed.
    unclaimed: BTreeMap<SessionKey, OwnershipSnapshot>,
    holdings: ResourceLedgers,
    tasks: SessionTasks,
}

/// The time and the other parts, as far as the ownership reads them.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerContext<'a> {
    pub(super) now: Now,
    pub(super) membership: &'a Membership,
    pub(super) delivery: &'a Delivery,
}

impl Ownership {
    pub(super) fn new(me: NodeId, keep_facts: Option<u64>, capacity: Capacity, directory: Arc<AgentDirectory>) -> Self {
        Self {
            me,
            keep_facts,
            fact_level: LOWEST_FACT_LEVEL,
            sessions: OwnedSessions::default(),
            unclaimed: BTreeMap::new(),
            holdings: ResourceLedgers::new(capacity),
            tasks: SessionTasks::new(directory),
        }
    }

    /// Sets the level of facts that every live node knows.
    pub(super) fn set_fact_level(&mut self, level: u32) {
        self.fact_level = level;
        for key in self.sessions.keys() {
            self.sessions.owned_mut(&key).into_iter().for_each(|owned| owned.runtime.set_fact_level(level));
        }
    }

    /// Handles an effect of another part.
    pub(super) fn handle_effect(
        &mut self,
        context: OwnerContext<'_>,
        command: OwnershipCommand,
        sink: &mut EffectSink,
    ) {
        match command {
            OwnershipCommand::CountRefusedSession(principal) => self.holdings.count_refused_session(&principal),
            OwnershipCommand::Claim { key, expect } => self.claim(context, &key, expect, sink),
            OwnershipCommand::ClaimAs { key, expect, nonce } => self.claim_as(context, &key, expect, nonce, sink),
            OwnershipCommand::CompareEpoch { key, epoch } => self.compare_epoch(context, &key, epoch, sink),
            OwnershipCommand::StartOwning { key, token, state } => {
                self.start_owning(context, &key, token, *state, sink);
            }
            OwnershipCommand::Drop(key) => self.drop_session(&key, sink),
            OwnershipCommand::Reload { key, token } => {
                // The session may have been claimed anew since: a later owner's memory is not in doubt.
                if self.sessions.owned(&key).is_none_or(|owned| owned.token == token) {
                    self.reload(context, &key, token, sink);
                }
            }
            OwnershipCommand::Drive(key) => self.drive(context, &key, sink),
            OwnershipCommand::Wake(key) => self.handle_runtime_timeout(context, &key, sink),
            OwnershipCommand::EndReserveWait(key) => self.handle_reserve_timeout(context, &key, sink),
            OwnershipCommand::SendTailDigests => self.send_tail_digests(context, sink),
            OwnershipCommand::DriveAll => self.drive_all(context, sink),
            OwnershipCommand::Broadcast(input) => self.broadcast(context, &input, sink),
            OwnershipCommand::Acknowledge { key, from, at } => self.acknowledge(key, from, at, sink),
            OwnershipCommand::CheckLease(node) => self.check_lease(context.now, node, sink),
            OwnershipCommand::RemoveSubscriber { node, sent } => self.remove_subscriber(node, sent, sink),
            OwnershipCommand::VerifyAll => self.verify_all(sink),
            OwnershipCommand::LoseLease => self.lose_lease(context, sink),
            OwnershipCommand::ReclaimAll => self.reclaim_all(context, sink),
            OwnershipCommand::Report { key, input } => {
                self.handle_reports(context, &key, std::iter::once(input), sink);
            }
        }
    }

    // === read by other parts ===

    pub(super) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Returns whether this node neither owns nor claims a session.
    pub(super) fn is_claimable(&self, key: &SessionKey) -> bool {
        !self.sessions.get(key).is_some_and(SessionOwnership::is_beyond_reserved)
    }

    /// Returns the refusal of a request that would make this node own a further session of a user who has too many;
    /// `None` if an owner is known, or the user has a share left.
    pub(super) fn session_refusal(
        &self,
        delivery: &Delivery,
        key: &SessionKey,
        principal: &Principal,
    ) -> Option<Refusal> {
        let has_owner = self.sessions.contains(key) || delivery.is_owned_elsewhere(key);
        if has_owner { None } else { self.holdings.session_refusal(principal) }
    }

    /// Returns the nonce of the claim in flight, if any.
    pub(super) fn claim_nonce(&self, key: &SessionKey) -> Option<Nonce> {
        match self.sessions.get(key)? {
            SessionOwnership::Claiming { nonce, .. } => Some(*nonce),
            SessionOwnership::Loading { .. } | SessionOwnership::Owned(_) => None,
        }
    }

    /// Returns whether every session only waits for people or agents, and has written everything.
    pub(super) fn only_awaits_others(&self) -> bool {
        self.sessions.values().all(|ownership| {
            ownership.owned().is_some_and(|owned| owned.is_written() && owned.runtime.only_awaits_others())
        })
    }

    /// Returns whether every owned session has written everything.
    pub(super) fn is_written(&self) -> bool {
        self.sessions.values().all(|ownership| ownership.owned().is_none_or(OwnedSession::is_written))
    }

    /// Returns the gauges of owned sessions.
    pub(super) fn stats(&self, now: Now) -> SwitchboardStats {
        let mut stats = SwitchboardStats { owned_sessions: self.sessions.len() as u64, ..SwitchboardStats::default() };
        let mut oldest = now.mono;
        for runtime in self.sessions.values().filter_map(SessionOwnership::owned).map(|owned| &owned.runtime) {
            let waits = runtime.state().waiting.len() as u64;
            stats.open_turns += runtime.state().runs.len() as u64;
            stats.waiting_turns += waits;
            stats.waiting_turns_max = waits.max(stats.waiting_turns_max);
            oldest = runtime.oldest_input_at().map_or(oldest, |at| at.min(oldest));
        }
        stats.oldest_turn = now.mono - oldest;
        stats.permits_waiting = self.holdings.waiting_turns();
        stats
    }

    /// Returns the gauges of attempts, content and sessions.
    pub(super) fn resource_gauges(&self) -> [ResourceGauges; 3] {
        self.holdings.gauges()
    }

    // === claim and load ===

    /// Claims a session that was seen to be free, or to belong to a holder that is gone.
    fn claim(&mut self, context: OwnerContext<'_>, key: &SessionKey, expect: OwnershipSnapshot, sink: &mut EffectSink) {
        if context.membership.may_claim(context.now) && self.is_claimable(key) {
            let nonce = Nonce(sink.rng.next_u128());
            self.claim_as(context, key, expect, nonce, sink);
        }
    }

    fn claim_as(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        expect: OwnershipSnapshot,
        nonce: Nonce,
        sink: &mut EffectSink,
    ) {
        let holder = context.membership.lease.holder();
        let floor = context.delivery.newest_epoch(key);
        sink.timers.clear(&Timer::Reserve(key.clone()));
        let since = context.now.mono;
        self.sessions.insert(key.clone(), SessionOwnership::Claiming { nonce, since, reserved_for: None });
        sink.store(Op::Claim { key: key.clone(), holder, nonce, expect, floor });
    }

    /// Claims the sessions that this node owned under an earlier lease, unless another node owns them.
    fn reclaim_all(&mut self, context: OwnerContext<'_>, sink: &mut EffectSink) {
        for (key, mine) in std::mem::take(&mut self.unclaimed) {
            let Some(nonce) = self.sessions.owned(&key).and_then(|owned| owned.reclaim_nonce) else {
                self.claim(context, &key, mine, sink);
                continue;
            };
            let holder = context.membership.lease.holder();
            let floor = context.delivery.newest_epoch(&key);
            sink.store(Op::Claim { key, holder, nonce, expect: mine, floor });
        }
    }

    /// Handles the store's reply to a claim.
    pub(super) fn handle_claimed(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        (holder, nonce): (Holder, Nonce),
        expect: OwnershipSnapshot,
        reply: Reply,
        sink: &mut EffectSink,
    ) {
        let now = context.now;
        let (mine, since) = match self.sessions.get(key) {
            Some(SessionOwnership::Claiming { nonce, since, .. }) => (Some(*nonce), *since),
            Some(SessionOwnership::Owned(owned)) => (owned.reclaim_nonce, now.mono),
            Some(SessionOwnership::Loading { .. }) | None => return,
        };
        if mine != Some(nonce) || holder != context.membership.lease.holder() {
            return;
        }
        if let Reply::Claimed(claimed) = &reply
            && self.continue_owning(context, key, claimed, sink)
        {
            return;
        }
        if let Reply::OwnershipConflict { owner } = &reply
            && self.await_hand_over(now, key, *owner, context.membership.drain.is_started(), sink)
        {
            return;
        }
        self.drop_session(key, sink);
        if let Reply::Claimed(claimed) = reply {
            sink.stats.claims += 1;
            let before = expect.holder.map(|before| before.node).filter(|node| *node != holder.node);
            sink.stats.takeovers += u64::from(before.is_some());
            let by = claimed.token;
            let state = state_of(&claimed.view);
            let unread = state.is_none().then(|| claimed.view.clone());
            self.sessions.insert(key.clone(), SessionOwnership::Loading { claimed, since, previous_owner: before });
            if let Some(state) = state {
                self.start_owning(context, key, by, state, sink);
            } else if let Some(view) = unread {
                sink.push(DeliveryCommand::RebuildForOwner { key: key.clone(), token: by, view: Box::new(view) });
            }
        } else if let Reply::OwnershipConflict { owner } = reply {
            sink.stats.claims_held += 1;
            self.handle_claim_lost(context, key, owner, sink);
        }
    }

    /// Handles a lost claim: another node is the owner, or was until it died.
    fn handle_claim_lost(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        owner: OwnershipSnapshot,
        sink: &mut EffectSink,
    ) {
        sink.push(DeliveryCommand::SetNewerOwner { key: key.clone(), owner });
        // If the store lost a claim, a late copy of an older one may have won; then no other node would look after
        // a session whose named owner is alive. If this node is named, it claims the session; otherwise it tells
        // the named node.
        let Some(holder) = owner.holder.filter(|holder| holder.node != self.me) else {
            return self.claim(context, key, owner, sink);
        };
        sink.push(MembershipCommand::AddFasterNode(holder.node));
        sink.push(RouterCommand::OfferAll { key: key.clone(), owner });
        sink.send_peer(holder.node, PeerMessage::HandOff { key: key.clone(), released: owner });
    }

    /// Starts to own a claimed session whose state is known.
    fn start_owning(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        by: FenceToken,
        state: State,
        sink: &mut EffectSink,
    ) {
        let Some(SessionOwnership::Loading { claimed, since, .. }) = self.sessions.get(key) else { return };
        if claimed.token != by {
            return;
        }
        if state.tail != claimed.view.tail {
            return self.reload(context, key, by, sink);
        }
        let is_closed = state.phase == SessionPhase::Closed;
        sink.stats.claim_durations.record(context.now.mono - *since);
        let Some(SessionOwnership::Loading { claimed, previous_owner, .. }) = self.sessions.remove(key) else {
            return;
        };
        let mut owned = self.loaded_session(key, &claimed, state, sink);
        owned.previous_owner = previous_owner;
        if context.membership.drain.is_started() {
            owned.runtime.handle_input(context.now, RuntimeInput::Hold);
        }
        owned.inherit_conversation_turns(key, sink);
        self.sessions.insert(key.clone(), SessionOwnership::Owned(Box::new(owned)));
        // Links here may have missed facts that another owner wrote.
        let owner = Some(OwnershipSnapshot { holder: Some(context.membership.lease.holder()), epoch: by.epoch });
        let after = claimed.view.tail;
        sink.push(PartEffect::Facts(DurableFacts { key: key.clone(), after, facts: Vec::new(), owner }));
        if is_closed {
            // The previous owner may have stopped before it ended the session's bindings.
            sink.push(BindingsCommand::EndAll { session: key.clone(), reason: UnbindReason::SessionClosed });
        }
        self.apply_inbox(context, key, by, claimed.inbox, sink);
    }

    /// Creates an owned session with a runtime of its own.
    fn loaded_session(
        &mut self,
        key: &SessionKey,
        claimed: &Claimed,
        state: State,
        sink: &mut EffectSink,
    ) -> OwnedSession {
        let mut seed = [0; 32];
        seed[..16].copy_from_slice(&sink.rng.next_u128().to_be_bytes());
        seed[16..].copy_from_slice(&sink.rng.next_u128().to_be_bytes());
        let rng = Rng::from_seed(seed);
        let directory = Arc::clone(self.tasks.directory());
        let mut runtime = SessionRuntime::new(key.clone(), claimed.token, directory, rng, state.clone());
        runtime.require_permits();
        runtime.set_user(claimed.view.user.clone());
        runtime.set_fact_level(self.fact_level);
        let kept = claimed.view.snapshot.as_ref().map_or(Seq(0), |snapshot| snapshot.at.seq);
        let mut owned = OwnedSession::new(claimed, runtime, state, kept);
        owned.account = self.holdings.count_session(key, claimed.view.user.as_ref());
        owned
    }

    // === end ===

    /// Drops an owned session and claims it again, because the store does not have what this owner remembers.
    pub(super) fn reload(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        token: FenceToken,
        sink: &mut EffectSink,
    ) {
        sink.stats.abandoned += 1;
        self.drop_session(key, sink);
        let mine = OwnershipSnapshot { holder: Some(context.membership.lease.holder()), epoch: token.epoch };
        if context.membership.lease.may_own(context.now) {
            self.claim(context, key, mine, sink);
        } else {
            // The store still names this node as owner, so no other node will take the session over; this node
            // claims it as soon as it has a lease.
            self.unclaimed.insert(key.clone(), mine);
        }
    }

    /// Reloads a session after a broken invariant.
    pub(super) fn reset(&mut self, context: OwnerContext<'_>, key: &SessionKey, sink: &mut EffectSink) {
        match self.sessions.owned(key).map(|owned| owned.token) {
            Some(token) => self.reload(context, key, token, sink),
            None => self.drop_session(key, sink),
        }
    }

    /// Gives up ownership when the store or the bus reports a newer claim. The owner would learn of the claim from
    /// its next write, but an owner that slept may have nothing to write while an agent works for it.
    pub(super) fn compare_epoch(
        &mut self,
        context: OwnerContext<'_>,
        key: &SessionKey,
        by: Epoch,
        sink: &mut EffectSink,
    ) {
        let Some(owned) = self.sessions.owned(key) else { return };
        if owned.reclaim_nonce.is_none() && owned.epoch() < by {
            let token = owned.token;
            self.reload(context, key, token, sink);
        }
    }

    /// Drops an owned session: its attempts are closed, and later reports of them are ignored.
    fn drop_session(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        sink.timers.clear(&Timer::Runtime(key.clone()));
        sink.timers.clear(&Timer::Write(key.clone()));
        sink.timers.clear(&Timer::Linger(key.clone()));
        sink.timers.clear(&Timer::Reserve(key.clone()));
        if let Some(SessionOwnership::Owned(mut owned)) = self.sessions.remove(key) {
            let held = std::mem::take(&mut owned.held_outputs);
            let unsaid = held.iter().filter_map(RuntimeOutput::drop_order).cloned();
            for order in unsaid.chain(owned.runtime.abandon()) {
                sink.output(Output::Order(order));
            }
            add_counts(&mut sink.stats, &mut owned);
            self.holdings.return_holdings(key, &mut owned);
            sink.push(AdaptersCommand::ForgetSession(key.clone()));
            sink.push(TasksCommand::ForgetSession(key.clone()));
        }
    }

    // === messages and replies ===

    /// Handles the store's reply to an owner's op.
    pub(super) fn handle_reply(&mut self, context: OwnerContext<'_>, op: Op, reply: Reply, sink: &mut EffectSink) {
        if let Op::Claim { key, holder, nonce, expect, .. } = op {
            self.handle_claimed(context, &key, (holder, nonce), expect, reply, sink);
        } else if let Op::Release { key, token, drain, .. } = op {
            self.handle_released(key, token, drain, &reply, sink);
        } else if let Op::Transfer { key, token, to, .. } = op {
            self.handle_transferred(key, token, to, &reply, sink);
        } else if let Op::WriteSnapshot(keep) = op {
            self.handle_snapshot_stored(context, &keep.key, keep.token, keep.at.seq, sink);
        } else if let Op::Inbox { key, token, after, control_after } = op {
            if let Reply::Inbox(inputs) = reply {
                self.handle_inbox(context, &key, token, (after, control_after), inputs, sink);
            } else {
                // The owner's session was quarantined because of damaged records.
                self.reload(context, &key, token, sink);
            }
        }
    }

    /// Handles an offer of an accepted entry. `owner`: the owner that the store has named to the sender.
    pub(super) fn handle_offer(
        &mut self,
        context: OwnerContext<'_>,
        from: NodeId,
        key: &SessionKey,
        owner: OwnershipSnapshot,
        item: OfferedEntry,
        sink: &mut EffectSink,
    ) {
        let is_leaving = context.membership.drain.is_started();
        let mine = owner.holder.is_some_and(|holder| holder.node == self.me) && !is_leaving;
        match self.sessions.get(key) {
            // The session was handed over, and the message about that is late.
            Some(ownership) if mine && !ownership.is_beyond_reserved() => self.claim(context, key, owner, sink),
            Some(SessionOwnership::Claiming { .. } | SessionOwnership::Loading { .. }) => {}
            Some(SessionOwnership::Owned(owned)) if owned.releasing => {}
            Some(SessionOwnership::Owned(_)) => self.accept_offer(context, from, key, item, sink),
            // The store names this node as owner: from an earlier lease, or because the store lost this node's
            // release.
            None if mine => self.claim(context, key, owner, sink),
            None => sink.send_peer(from, PeerMessage::NotOwner { key: key.clone(), owner }),
        }
    }

    /// Sends text of a run to a node that lacks it.
    pub(super) fn handle_fetch_text(
        &self,
        from: NodeId,
        key: &SessionKey,
        (run_id, attempt, offset): (&RunId, u32, u64),
        sink: &mut EffectSink,
    ) {
        if let Some(owned) = self.sessions.owned(key) {
            owned.send_text(from, key, run_id, attempt, offset, sink);
        }
    }

    /// Handles the reply to a read or a write for a session's task.
    pub(super) fn handle_task_value(
        &mut self,
        context: OwnerContext<'_>,
        name: String,
        result: Result<Reply, StoreError>,
        sink: &mut EffectSink,
    ) {
        let receipt = self.tasks.handle_value(context.now, name, result, &self.sessions, sink);
        if let Some(receipt) = receipt {
            self.deliver_receipt(context, receipt, sink);
        }
    }
}

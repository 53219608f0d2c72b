//! The sessions that this node owns: claim, load, append, release.
use super::feed::state_of;
use super::io::Output;
use super::seat::{Owned, Seat, newer};
use super::view::Asked;
use super::{Switchboard, Timer};
use crate::peer::{Item, Words};
use std::sync::Arc;
use turnway_core::id::{Epoch, EventId, Holder, NodeId, Nonce, Place, RunId, Seen, Seq, SessionKey, Token};
use turnway_core::machine::Machine;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::action::ToolReport;
use turnway_core::protocol::agent::Order;
use turnway_core::protocol::entry::{Entry, Fact};
use turnway_core::rng::Rng;
use turnway_core::session::{Input as Told, Output as Said, SessionRuntime, State};
use turnway_core::store::{Inputs, Op, Reply};
use turnway_core::time::Now;

impl Switchboard {
    // === claim and load ===

    /// Claims a session that was seen to be free, or to belong to a holder that is gone.
    pub(super) fn claim(&mut self, now: Now, key: &SessionKey, expect: Seen) {
        if !self.is_lawful(now) || self.drain.is_some() || self.seats.get(key).is_some_and(Seat::is_taken) {
            return;
        }
        let nonce = Nonce(self.rng.next_u128());
        let floor = self.feeds.get(key).map_or(Epoch(0), |feed| feed.epoch);
        self.timers.clear(&Timer::Reserve(key.clone()));
        self.seats.insert(key.clone(), Seat::Claiming { nonce, since: now.mono, from: None });
        self.store(Op::Claim { key: key.clone(), holder: self.lease.holder, nonce, expect, floor });
    }

    pub(super) fn claimed(
        &mut self,
        now: Now,
        key: &SessionKey,
        (holder, nonce): (Holder, Nonce),
        expect: Seen,
        reply: Reply,
    ) {
        self.claim_answered(now, nonce, matches!(reply, Reply::Claimed(_)));
        let (mine, since) = match self.seats.get(key) {
            Some(Seat::Claiming { nonce, since, .. }) => (Some(*nonce), *since),
            Some(Seat::Owned(owned)) => (owned.reclaim, now.mono),
            Some(Seat::Loading { .. }) | None => return,
        };
        if mine != Some(nonce) || holder != self.lease.holder {
            return;
        }
        if let Reply::Claimed(claimed) = &reply
            && self.keep_seat(now, key, claimed)
        {
            return;
        }
        if let Reply::Held { owner } = &reply
            && self.is_awaited_from(now, key, *owner)
        {
            return;
        }
        self.drop_seat(key);
        if let Reply::Claimed(claimed) = reply {
            self.stats.claims += 1;
            let before = expect.holder.map(|before| before.node).filter(|node| *node != holder.node);
            self.stats.takeovers += u64::from(before.is_some());
            let (by, state) = (claimed.token, state_of(&claimed.view));
            let unread = state.is_none().then(|| claimed.view.clone());
            self.seats.insert(key.clone(), Seat::Loading { claimed, since, before });
            if let Some(state) = state {
                self.own(now, key, by, state);
            } else if let Some(view) = unread {
                self.rebuild(key, Some(by), view, Asked { number: 0, since: Seq(0) });
            }
        } else if let Reply::Held { owner } = reply {
            self.stats.claims_held += 1;
            self.held(now, key, owner);
        }
    }

    /// Starts to own a claimed session whose state is known.
    pub(super) fn own(&mut self, now: Now, key: &SessionKey, by: Token, state: State) {
        let Some(Seat::Loading { claimed, since, .. }) = self.seats.get(key) else { return };
        if claimed.token != by {
            return;
        }
        if state.tail != claimed.view.tail {
            return self.abandon(now, key, by);
        }
        self.stats.taking_up.add(now.mono - *since);
        let Some(Seat::Loading { claimed, before, .. }) = self.seats.remove(key) else { return };
        let mut seed = [0; 32];
        seed[..16].copy_from_slice(&self.rng.next_u128().to_be_bytes());
        seed[16..].copy_from_slice(&self.rng.next_u128().to_be_bytes());
        let rng = Rng::from_seed(seed);
        let directory = Arc::clone(&self.directory);
        let mut runtime = SessionRuntime::new(key.clone(), by, directory, rng, state.clone());
        runtime.require_permits();
        let kept = claimed.view.snapshot.as_ref().map_or(Seq(0), |snapshot| snapshot.at.seq);
        let mut owned = Owned::new(&claimed, runtime, state, kept);
        owned.before = before;
        owned.account = self.count_session(key, claimed.view.user.as_ref());
        if self.drain.is_some() {
            owned.runtime.handle_input(now, Told::Hold);
        }
        self.seats.insert(key.clone(), Seat::Owned(Box::new(owned)));
        // Links here may have missed facts that another owner wrote.
        self.facts(now, key, claimed.view.tail, &[]);
        self.watch(now, key, Seen { holder: Some(self.lease.holder), epoch: by.epoch });
        self.inputs(now, key, by, claimed.inbox);
    }

    /// Drops an owned session and claims it again, because the store does not have what this owner remembers.
    pub(super) fn abandon(&mut self, now: Now, key: &SessionKey, token: Token) {
        self.stats.abandoned += 1;
        self.drop_seat(key);
        let mine = Seen { holder: Some(self.lease.holder), epoch: token.epoch };
        if self.is_lawful(now) {
            self.claim(now, key, mine);
        } else {
            // The store still names this node as owner, so no other node will take the session over; this node
            // claims it as soon as it has a lease.
            self.owed.insert(key.clone(), mine);
        }
    }

    /// Gives up ownership when the store or the bus reports a newer claim. The owner would learn of the claim from
    /// its next write, but an owner that slept may have nothing to write while an agent works for it.
    pub(super) fn outdone(&mut self, now: Now, key: &SessionKey, by: Epoch) {
        let Some(owned) = self.seats.get(key).and_then(Seat::owned) else { return };
        if owned.reclaim.is_none() && owned.epoch() < by {
            let token = owned.token;
            self.abandon(now, key, token);
        }
    }

    /// Resets a session after a broken invariant: drops the owned session and the feed, and loads both from the
    /// store. Every other session continues.
    pub fn give_up(&mut self, now: Now, key: &SessionKey) {
        self.viewing.remove(key);
        match self.seats.get(key).and_then(Seat::owned).map(|owned| owned.token) {
            Some(token) => self.abandon(now, key, token),
            None => self.drop_seat(key),
        }
        self.regress(key);
    }

    /// Drops an owned session: its attempts are closed, and later reports of them are ignored.
    pub(super) fn drop_seat(&mut self, key: &SessionKey) {
        self.timers.clear(&Timer::Seat(key.clone()));
        self.timers.clear(&Timer::Write(key.clone()));
        self.timers.clear(&Timer::Linger(key.clone()));
        self.timers.clear(&Timer::Reserve(key.clone()));
        if let Some(Seat::Owned(mut owned)) = self.seats.remove(key) {
            let unsaid = owned.unsaid.drain(..).filter_map(|output| match output {
                Said::Order(order @ Order::Drop { .. }) => Some(order),
                Said::Order(
                    Order::Invoke(_)
                    | Order::Cancel { .. }
                    | Order::Steer(_)
                    | Order::Stop { .. }
                    | Order::News(_)
                    | Order::Credit { .. },
                )
                | Said::Tool(_)
                | Said::Record(_)
                | Said::Consume { .. }
                | Said::Chunk { .. }
                | Said::Printed { .. }
                | Said::Answered { .. }
                | Said::Errand(_)
                | Said::CatchUp
                | Said::ReadContent => None,
            });
            for order in unsaid.chain(owned.runtime.give_up()) {
                self.outbox.push_back(Output::Order(order));
            }
            self.count(&mut owned);
            self.give_back(key, &mut owned);
        }
    }

    pub(super) fn owned(&mut self, key: &SessionKey, token: Token) -> Option<&mut Owned> {
        self.seats.get_mut(key).and_then(Seat::owned_mut).filter(|owned| owned.token == token)
    }

    // === inbox and control lane ===

    pub(super) fn bell(&mut self, now: Now, from: NodeId, key: &SessionKey, owner: Seen, item: Item) {
        let mine = owner.holder.is_some_and(|holder| holder.node == self.me) && self.drain.is_none();
        match self.seats.get_mut(key) {
            // The session was handed over, and the message about that is late.
            Some(seat) if mine && !seat.is_taken() => self.claim(now, key, owner),
            Some(Seat::Claiming { .. } | Seat::Loading { .. }) => {}
            Some(Seat::Owned(owned)) if owned.releasing => {}
            Some(Seat::Owned(_)) => self.rung(now, from, key, item),
            // The store names this node as owner: from an earlier lease, or because the store lost this node's
            // release.
            None if mine => self.claim(now, key, owner),
            None => self.tell(now, from, Words::NotMine { key: key.clone(), owner }),
        }
    }

    fn rung(&mut self, now: Now, from: NodeId, key: &SessionKey, item: Item) {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        match item {
            Item::Input { place, prev, input } => {
                let run_id = input.run_id.clone();
                if owned.is_next(place, prev) || (place > owned.head && planted(Mutant::BellTrusted)) {
                    owned.head = place;
                    owned.runtime.handle_input(now, Told::Take { place, input });
                    self.pump(now, key);
                } else if place > owned.head {
                    return self.read_inbox(key);
                }
                if !self.is_begun_for(key, &run_id, from) {
                    self.tell(now, from, Words::Taken { key: key.clone(), run_id });
                }
                return;
            }
            Item::Control { place, prev, control } => {
                if place > owned.control_head {
                    owned.ringers.insert(control.id.clone(), from);
                    if prev != owned.control_head || !owned.runtime.state().has_open_turn() && owned.reading {
                        return self.read_inbox(key);
                    }
                    owned.control_head = place;
                    owned.runtime.handle_input(now, Told::Control { place, control });
                }
            }
        }
        self.pump(now, key);
    }

    /// Returns whether the start of a turn is being written and the node subscribes to it, so that it needs no
    /// other confirmation. If the fact is lost, the node repeats its offer.
    fn is_begun_for(&self, key: &SessionKey, run_id: &RunId, node: NodeId) -> bool {
        let Some(owned) = self.seats.get(key).and_then(Seat::owned) else { return false };
        let begins = |entry: &Arc<Entry>| {
            matches!(entry.fact, Fact::RunStarted { .. }) && entry.run_id.as_ref() == Some(run_id)
        };
        let mut written = owned.in_flight.iter().flat_map(|append| &append.facts);
        owned.ears.contains_key(&node) && written.any(begins)
    }

    pub(super) fn read_inbox(&mut self, key: &SessionKey) {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        if std::mem::replace(&mut owned.reading, true) {
            owned.read_again = true;
            return;
        }
        let (token, control_after) = (owned.token, owned.control_head);
        // Starts at an input whose content was left in the store, once its turn has come.
        let wanted = owned.runtime.wanted_content().map(|place| Place(place.0.saturating_sub(1)));
        let after = wanted.map_or(owned.head, |before| before.min(owned.head));
        self.store(Op::Inbox { key: key.clone(), token, after, control_after });
    }

    /// Handles a read of inbox and control lane. If they end before the owner's position, the store has lost
    /// entries, and missing ones prove nothing about what was accepted.
    pub(super) fn inbox_read(
        &mut self,
        now: Now,
        key: &SessionKey,
        token: Token,
        had: (Place, Place),
        inputs: Inputs,
    ) {
        let Some(owned) = self.owned(key, token) else { return };
        let lacks =
            |wanted: Place| had.0 < wanted && !inputs.inputs.iter().any(|(place, _)| *place == wanted);
        let is_gone = owned.runtime.wanted_content().is_some_and(lacks);
        if inputs.tail >= had.0 && inputs.control_tail >= had.1 && !is_gone {
            self.inputs(now, key, token, inputs);
        } else if owned.reclaim.is_none() {
            self.abandon(now, key, token);
        }
    }

    /// Handles the entries of inbox and control lane: inputs first, because control entries refer to them.
    pub(super) fn inputs(&mut self, now: Now, key: &SessionKey, token: Token, inputs: Inputs) {
        let Some(owned) = self.owned(key, token) else { return };
        owned.reading = false;
        let (head, control_head) = (owned.head, owned.control_head);
        let wanted = owned.runtime.wanted_content();
        let content = inputs.inputs.iter().find(|(place, _)| Some(*place) == wanted);
        if let Some((place, input)) = content.map(|(place, input)| (*place, Arc::clone(input))) {
            owned.runtime.handle_input(now, Told::Content { place, input });
        }
        let mut taken = Vec::new();
        for (place, input) in newer(&inputs, head) {
            taken.push(input.run_id.clone());
            owned.runtime.handle_input(now, Told::Take { place, input });
        }
        let controls = inputs.controls.into_iter().filter(|(place, _)| *place > control_head);
        for (place, control) in controls.filter(|_| !planted(Mutant::ControlUnread)) {
            owned.runtime.handle_input(now, Told::Control { place, control });
        }
        owned.head = owned.head.max(inputs.tail);
        owned.control_head = owned.control_head.max(inputs.control_tail);
        let again = std::mem::take(&mut owned.read_again);
        if !again && std::mem::take(&mut owned.catching_up) {
            owned.runtime.handle_input(now, Told::CaughtUp);
        }
        for run_id in taken {
            self.taken(&run_id);
        }
        if again {
            self.read_inbox(key);
        }
        self.pump(now, key);
    }

    /// Handles a tool runner's report about an action.
    pub(super) fn tool(&mut self, now: Now, key: &SessionKey, action_id: EventId, report: ToolReport) {
        self.reported(now, key, std::iter::once(Told::Tool { action_id, report }));
    }

    /// Handles reports of agents and tool runners.
    pub(super) fn reported(
        &mut self,
        now: Now,
        key: &SessionKey,
        reports: impl ExactSizeIterator<Item = Told>,
    ) {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else {
            self.stats.late_reports += reports.len() as u64;
            return;
        };
        // The facts of all reports go into one append.
        for report in reports {
            owned.runtime.handle_input(now, report);
        }
        self.pump(now, key);
    }

    pub(super) fn seat_due(&mut self, now: Now, key: &SessionKey) {
        if let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) {
            owned.runtime.handle_timeout(now);
        }
        self.pump(now, key);
    }
}

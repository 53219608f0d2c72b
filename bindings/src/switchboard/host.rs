//! The sessions this node owns: claim, load, append, release.
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

    /// Claims what was seen to be free, or to belong to a holder that is gone.
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

    /// The state of a claimed session is known: it is owned from here on.
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
        // What listens here may have missed what was written elsewhere.
        self.facts(now, key, claimed.view.tail, &[]);
        self.watch(now, key, Seen { holder: Some(self.lease.holder), epoch: by.epoch });
        self.inputs(now, key, by, claimed.inbox);
    }

    /// The store does not remember what this owner remembers: start again from the store.
    pub(super) fn abandon(&mut self, now: Now, key: &SessionKey, token: Token) {
        self.stats.abandoned += 1;
        self.drop_seat(key);
        let mine = Seen { holder: Some(self.lease.holder), epoch: token.epoch };
        if self.is_lawful(now) {
            self.claim(now, key, mine);
        } else {
            // To the store it is still ours, so nobody else will look after it: as soon as we may.
            self.owed.insert(key.clone(), mine);
        }
    }

    /// Somebody has it under this claim, as the store or the bus tells. A seat under an older one is kept for
    /// nothing: it learns that from the store when it writes, but who slept through the change may have nothing to
    /// write, while an agent goes on for it.
    pub(super) fn outdone(&mut self, now: Now, key: &SessionKey, by: Epoch) {
        let Some(owned) = self.seats.get(key).and_then(Seat::owned) else { return };
        if owned.reclaim.is_none() && owned.epoch() < by {
            let token = owned.token;
            self.abandon(now, key, token);
        }
    }

    /// A rule was broken while this session was handled: whatever is half done of it is given up, and
    /// begun again from the store. Everything else goes on.
    pub fn give_up(&mut self, now: Now, key: &SessionKey) {
        self.viewing.remove(key);
        match self.seats.get(key).and_then(Seat::owned).map(|owned| owned.token) {
            Some(token) => self.abandon(now, key, token),
            None => self.drop_seat(key),
        }
        self.regress(key);
    }

    /// Forgets a seat: what it had under way with agents is closed, and reports of it come too late.
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
            // It was handed over, and the word of it is late.
            Some(seat) if mine && !seat.is_taken() => self.claim(now, key, owner),
            Some(Seat::Claiming { .. } | Seat::Loading { .. }) => {}
            Some(Seat::Owned(owned)) if owned.releasing => {}
            Some(Seat::Owned(_)) => self.rung(now, from, key, item),
            // The store thinks it is mine: from an earlier life, or because it forgot my release.
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

    /// Whether a turn's beginning is being written, and a node is told of that: it needs no other word of it. Where that
    /// is lost it rings again.
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
        // From an input whose content was left to the store, where its turn has come.
        let wanted = owned.runtime.wanted_content().map(|place| Place(place.0.saturating_sub(1)));
        let after = wanted.map_or(owned.head, |before| before.min(owned.head));
        self.store(Op::Inbox { key: key.clone(), token, after, control_after });
    }

    /// Inbox and control lane were read after what this owner had of them. Where they end before that, the store
    /// has forgotten what it rang for, and what is missing there says nothing about what was said.
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

    /// What lies in inbox and control lane was read: inputs first, for control entries name them.
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

    /// What is heard of an action.
    pub(super) fn tool(&mut self, now: Now, key: &SessionKey, action_id: EventId, report: ToolReport) {
        self.reported(now, key, std::iter::once(Told::Tool { action_id, report }));
    }

    /// What agents and tool runners report.
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
        // Their facts go out together, in one append.
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

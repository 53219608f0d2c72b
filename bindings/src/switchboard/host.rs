//! The sessions this node owns: claim, load, append, release.
use super::ask::AskKey;
use super::feed::state_of;
use super::io::Output;
use super::seat::{Ear, Owned, Seat, newer};
use super::{Switchboard, Timer};
use crate::peer::{Chunk, Item, Words};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use turnway_core::id::{Cursor, Epoch, Holder, NodeId, Nonce, RunId, Seen, Seq, SessionKey, Stamp, Token};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::agent::AgentEvent;
use turnway_core::protocol::entry::Entry;
use turnway_core::rng::Rng;
use turnway_core::session::{Input as Told, Output as Said, SessionRuntime};
use turnway_core::store::{Append, Inputs, Keep, Op, Reply, View};
use turnway_core::time::Now;

impl Switchboard {
    // === claim and load ===

    /// Claims what was seen to be free, or to belong to a holder that is gone.
    pub(super) fn claim(&mut self, now: Now, key: &SessionKey, expect: Seen) {
        if !self.is_lawful(now) || self.drain.is_some() || self.seats.contains_key(key) {
            return;
        }
        let nonce = Nonce(self.rng.next_u128());
        let floor = self.feeds.get(key).map_or(Epoch(0), |feed| feed.epoch);
        self.seats.insert(key.clone(), Seat::Claiming { nonce });
        self.store(Op::Claim { key: key.clone(), holder: self.lease.holder, nonce, expect, floor });
    }

    pub(super) fn claimed(&mut self, now: Now, key: &SessionKey, holder: Holder, nonce: Nonce, reply: Reply) {
        let mine = matches!(self.seats.get(key), Some(Seat::Claiming { nonce: mine }) if *mine == nonce);
        if !mine || holder != self.lease.holder {
            return;
        }
        self.seats.remove(key);
        if let Reply::Claimed(claimed) = reply {
            self.stats.claims += 1;
            let token = claimed.token;
            self.seats.insert(key.clone(), Seat::Loading { claimed });
            self.store(Op::Open { key: key.clone(), reader: Some(token) });
        } else if let Reply::Held { owner } = reply {
            self.stats.claims_held += 1;
            self.held(now, key, owner);
        }
    }

    pub(super) fn loaded(&mut self, now: Now, key: &SessionKey, by: Token, view: &View) {
        let Some(Seat::Loading { claimed }) = self.seats.get(key) else { return };
        if claimed.token != by {
            return;
        }
        let state = state_of(view).filter(|_| view.tail == claimed.tail);
        let Some(state) = state else { return self.abandon(now, key, by) };
        let Some(Seat::Loading { claimed }) = self.seats.remove(key) else { return };
        let mut seed = [0; 32];
        seed[..16].copy_from_slice(&self.rng.next_u128().to_be_bytes());
        seed[16..].copy_from_slice(&self.rng.next_u128().to_be_bytes());
        let rng = Rng::from_seed(seed);
        let directory = Arc::clone(&self.directory);
        let runtime = SessionRuntime::new(key.clone(), by, directory, rng, state.clone());
        let kept = view.snapshot.as_ref().map_or(Seq(0), |snapshot| snapshot.at.seq);
        let mut owned = Owned::new(&claimed, runtime, state, kept);
        if self.drain.is_some() {
            owned.runtime.handle_input(now, Told::Hold);
        }
        self.seats.insert(key.clone(), Seat::Owned(Box::new(owned)));
        // What listens here may have missed what was written elsewhere.
        self.facts(now, key, view.tail, &[]);
        self.watch(now, key, Seen { holder: Some(self.lease.holder), epoch: by.epoch });
        self.inputs(now, key, by, claimed.inbox);
    }

    /// The store does not remember what this owner remembers: start again from the store.
    pub(super) fn abandon(&mut self, now: Now, key: &SessionKey, token: Token) {
        self.stats.abandoned += 1;
        self.drop_seat(key);
        self.claim(now, key, Seen { holder: Some(self.lease.holder), epoch: token.epoch });
    }

    /// Forgets a seat: what it had under way with agents is closed, and reports of it come too late.
    pub(super) fn drop_seat(&mut self, key: &SessionKey) {
        self.timers.clear(&Timer::Seat(key.clone()));
        self.timers.clear(&Timer::Linger(key.clone()));
        if let Some(Seat::Owned(mut owned)) = self.seats.remove(key) {
            if let Some(order) = owned.runtime.give_up() {
                self.outbox.push_back(Output::Order(order));
            }
            self.count(&mut owned);
        }
    }

    fn owned(&mut self, key: &SessionKey, token: Token) -> Option<&mut Owned> {
        self.seats.get_mut(key).and_then(Seat::owned_mut).filter(|owned| owned.token == token)
    }

    // === inbox and control lane ===

    pub(super) fn bell(&mut self, now: Now, from: NodeId, key: &SessionKey, owner: Seen, item: Item) {
        let mine = owner.holder.is_some_and(|holder| holder.node == self.me) && self.drain.is_none();
        match self.seats.get_mut(key) {
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
                } else if place > owned.head {
                    return self.read_inbox(key);
                }
                self.tell(now, from, Words::Taken { key: key.clone(), run_id });
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

    fn read_inbox(&mut self, key: &SessionKey) {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        if std::mem::replace(&mut owned.reading, true) {
            owned.read_again = true;
            return;
        }
        let (token, after, control_after) = (owned.token, owned.head, owned.control_head);
        self.store(Op::Inbox { key: key.clone(), token, after, control_after });
    }

    /// What lies in inbox and control lane was read: inputs first, for control entries name them.
    pub(super) fn inputs(&mut self, now: Now, key: &SessionKey, token: Token, inputs: Inputs) {
        let Some(owned) = self.owned(key, token) else { return };
        owned.reading = false;
        let (head, control_head) = (owned.head, owned.control_head);
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

    pub(super) fn agent(
        &mut self,
        now: Now,
        key: &SessionKey,
        run_id: RunId,
        attempt: u32,
        event: AgentEvent,
    ) {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else {
            self.stats.late_reports += 1;
            return;
        };
        owned.runtime.handle_input(now, Told::Agent { run_id, attempt, event });
        self.pump(now, key);
    }

    pub(super) fn seat_due(&mut self, now: Now, key: &SessionKey) {
        if let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) {
            owned.runtime.handle_timeout(now);
        }
        self.pump(now, key);
    }

    // === what a session wants done ===

    /// Drains one runtime; at most one append is under way per session.
    pub(super) fn pump(&mut self, now: Now, key: &SessionKey) {
        let lawful = self.is_lawful(now);
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        let deadline = owned.runtime.poll_timeout().map(|deadline| deadline.at);
        self.timers.put(Timer::Seat(key.clone()), deadline.filter(|_| lawful));
        if !lawful {
            return;
        }
        let mut said = Vec::new();
        while let Some(output) = owned.runtime.poll_output() {
            match output {
                Said::Record(record) => owned.backlog.push_back(record),
                Said::Consume { place } => owned.consumed.push(place),
                Said::Order(order) => self.outbox.push_back(Output::Order(order)),
                other @ (Said::Chunk { .. } | Said::Answered { .. } | Said::CatchUp) => said.push(other),
            }
        }
        self.append(key);
        for output in said {
            self.say_for(now, key, output);
        }
        self.rest(now, key);
    }

    fn say_for(&mut self, now: Now, key: &SessionKey, output: Said) {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        match output {
            Said::Chunk { run_id, attempt, offset, kind, text } => {
                let (epoch, chunk) = (owned.epoch(), Chunk { run_id, attempt, offset, kind, text });
                let ears: Vec<NodeId> = owned.ears.keys().copied().filter(|node| *node != self.me).collect();
                for node in ears {
                    self.tell(now, node, Words::Chunk { key: key.clone(), epoch, chunk: chunk.clone() });
                }
                self.chunk(now, key, epoch, &chunk);
            }
            Said::Answered { control } => {
                let ringer = owned.ringers.remove(&control).unwrap_or(self.me);
                self.tell(now, ringer, Words::Answered { key: key.clone(), control });
            }
            Said::CatchUp => {
                owned.catching_up = true;
                self.read_inbox(key);
            }
            Said::Record(_) | Said::Consume { .. } | Said::Order(_) => {}
        }
    }

    fn append(&mut self, key: &SessionKey) {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        if owned.in_flight.is_some() || (owned.backlog.is_empty() && owned.consumed.is_empty()) {
            return;
        }
        let mut append = Append {
            key: key.clone(),
            token: owned.token,
            after: owned.tail().seq,
            facts: Vec::new(),
            ends: Vec::new(),
            answers: std::mem::take(&mut owned.consumed),
            closed: None,
            known: owned.version,
        };
        let count = owned.backlog.len().min(limits::APPEND_FACTS_MAX);
        for record in owned.backlog.drain(..count) {
            append.facts.push(record.entry);
            append.ends.extend(record.ends);
            append.answers.extend(record.answers);
            append.closed = record.closed.or(append.closed);
        }
        owned.in_flight = Some(append.clone());
        self.store(Op::Append(Box::new(append)));
    }

    pub(super) fn appended(&mut self, now: Now, key: &SessionKey, token: Token, reply: Reply) {
        let me = self.me;
        let owner = Seen { holder: Some(self.lease.holder), epoch: token.epoch };
        let Some(owned) = self.owned(key, token) else { return };
        let Reply::Appended { tail, inbox_tail, control_tail, version, listeners } = reply else {
            return self.append_failed(now, key, token, &reply);
        };
        let Some(append) = owned.in_flight.take() else { return };
        let after = owned.tail();
        if append.after != after.seq || tail.0 != after.seq.0 + append.facts.len() as u64 {
            return self.abandon(now, key, token);
        }
        let facts: Vec<(Epoch, Arc<Entry>)> =
            append.facts.into_iter().map(|entry| (token.epoch, entry)).collect();
        for (epoch, entry) in &facts {
            owned.durable.apply(*epoch, entry);
            owned.bytes_since_kept += entry.weight();
        }
        if let Some(listeners) = listeners.filter(|_| !planted(Mutant::AppendIgnoresListeners)) {
            owned.version = version;
            owned.ears.retain(|node, _| listeners.contains_key(node));
            for (node, stamp) in listeners {
                owned.ears.entry(node).or_insert(Ear::new(stamp)).stamp = stamp;
            }
        }
        owned.runtime.handle_input(now, Told::Durable(tail));
        let unread = inbox_tail > owned.head || control_tail > owned.control_head;
        let ears: Vec<NodeId> = owned.ears.keys().copied().filter(|node| *node != me).collect();
        self.stats.facts += facts.len() as u64;
        if unread {
            self.read_inbox(key);
        }
        if !facts.is_empty() {
            for node in ears {
                let facts = facts.clone();
                self.tell(now, node, Words::Facts { key: key.clone(), owner, after, facts });
            }
            self.facts(now, key, after, &facts);
            self.watch(now, key, owner);
        }
        self.keep(key);
        self.pump(now, key);
    }

    fn append_failed(&mut self, now: Now, key: &SessionKey, token: Token, reply: &Reply) {
        match reply {
            Reply::Order | Reply::Gone { .. } => self.abandon(now, key, token),
            _ => {
                self.stats.fenced += 1;
                self.drop_seat(key);
            }
        }
    }

    /// Keeps a snapshot, so that taking over never grows with history.
    fn keep(&mut self, key: &SessionKey) {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        let tail = owned.tail();
        let many = tail.seq.0 - owned.kept.0 >= limits::SNAPSHOT_FACTS / 2;
        if !many && owned.bytes_since_kept < limits::SNAPSHOT_BYTES {
            return;
        }
        let Ok(state) = owned.durable.to_snapshot() else { return };
        (owned.kept, owned.bytes_since_kept) = (tail.seq, 0);
        let (token, state) = (owned.token, Arc::from(state));
        self.store(Op::Keep(Box::new(Keep { key: key.clone(), token, at: tail, state })));
    }

    /// What is quiet is released after a while; what is not acknowledged is beaconed for.
    fn rest(&mut self, now: Now, key: &SessionKey) {
        let (me, draining) = (self.me, self.drain.is_some());
        let (kept, silent) = (planted(Mutant::IdleKept), planted(Mutant::NoBeacon));
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        let tail = owned.tail().seq;
        if !silent && owned.ears.iter().any(|(node, ear)| *node != me && (kept || ear.acked < tail)) {
            self.timers.set_earlier(Timer::Beacon, now.mono + limits::BEACON);
        }
        let unheard = silent && owned.runtime.is_quiet() && owned.is_written() && !owned.releasing;
        let linger = Timer::Linger(key.clone());
        if kept || !(owned.is_quiet(me) || unheard) {
            owned.lingering = false;
            self.timers.clear(&linger);
            return;
        }
        let over = owned.lingering && self.timers.at(&linger).is_none();
        if draining || over {
            (owned.releasing, owned.lingering) = (true, false);
            let token = owned.token;
            self.timers.clear(&linger);
            self.store(Op::Release { key: key.clone(), token, tail, drain: draining });
        } else if !owned.lingering {
            owned.lingering = true;
            self.timers.set(linger, now.mono + limits::SEAT_LINGER);
        }
        let mut counted = std::mem::take(&mut self.stats);
        if let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) {
            add_counts(&mut counted, owned);
        }
        self.stats = counted;
    }

    fn count(&mut self, owned: &mut Owned) {
        add_counts(&mut self.stats, owned);
    }

    pub(super) fn released(&mut self, now: Now, key: &SessionKey, token: Token, drain: bool, reply: &Reply) {
        if self.owned(key, token).is_none() {
            return;
        }
        if *reply == Reply::Pending {
            return self.abandon(now, key, token);
        }
        self.stats.released += 1;
        self.drop_seat(key);
        if let Some(feed) = self.feeds.get_mut(key) {
            feed.owner = Seen { holder: None, epoch: token.epoch };
        }
        if drain {
            self.offer(now, key, Seen { holder: None, epoch: token.epoch });
        } else {
            self.ring_all(now, key, Seen { holder: None, epoch: token.epoch });
        }
    }

    // === listeners ===

    pub(super) fn hello(&mut self, key: &SessionKey, from: NodeId, stamp: Stamp) {
        if let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) {
            owned.ears.entry(from).or_insert(Ear::new(stamp));
        }
    }

    pub(super) fn have(&mut self, now: Now, from: NodeId, logs: &[(SessionKey, Cursor)]) {
        for (key, at) in logs {
            let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { continue };
            let end = owned.tail();
            if let Some(ear) = owned.ears.get_mut(&from)
                && (*at == end || at.seq < end.seq)
            {
                ear.acked = ear.acked.max(at.seq);
                ear.silent = 0;
            }
            self.pump(now, key);
        }
    }

    /// Strikes a node that is dead from the lists of those who listen.
    pub(super) fn prune(&mut self, now: Now, node: NodeId) {
        let mut struck = Vec::new();
        for (key, seat) in &mut self.seats {
            if let Some(ear) = seat.owned_mut().and_then(|owned| owned.ears.remove(&node)) {
                struck.push((key.clone(), ear.stamp));
            }
        }
        for (key, stamp) in struck {
            self.store(Op::Unlisten { key: key.clone(), node, stamp });
            self.pump(now, &key);
        }
    }

    /// The store may have forgotten what these owners remember: they look.
    pub(super) fn probe(&mut self) {
        for (key, seat) in &mut self.seats {
            let Some(owned) = seat.owned_mut().filter(|owned| owned.in_flight.is_none() && !owned.releasing)
            else {
                continue;
            };
            let (token, after, known) = (owned.token, owned.tail().seq, owned.version);
            let (facts, ends, answers) = (Vec::new(), Vec::new(), Vec::new());
            let append = Append { key: key.clone(), token, after, facts, ends, answers, closed: None, known };
            owned.in_flight = Some(append.clone());
            self.outbox.push_back(Output::Store(Op::Append(Box::new(append))));
        }
    }

    /// One message per node that has not said that it has everything.
    pub(super) fn beacons(&mut self, now: Now) {
        let (me, kept) = (self.me, planted(Mutant::IdleKept));
        let mut mail: BTreeMap<NodeId, Vec<(SessionKey, Cursor)>> = BTreeMap::new();
        let mut silent = BTreeSet::new();
        for (key, seat) in &mut self.seats {
            let Some(owned) = seat.owned_mut() else { continue };
            let end = owned.tail();
            for (node, ear) in
                owned.ears.iter_mut().filter(|(node, ear)| **node != me && (kept || ear.acked < end.seq))
            {
                mail.entry(*node).or_default().push((key.clone(), end));
                ear.silent += 1;
                if ear.silent.is_multiple_of(5) {
                    silent.insert(*node);
                }
            }
        }
        if !mail.is_empty() {
            self.timers.set(Timer::Beacon, now.mono + limits::BEACON);
        }
        for node in silent {
            self.store(Op::Lease { node });
        }
        for (node, logs) in mail {
            self.tell(now, node, Words::Beacon { logs });
        }
    }

    /// A control entry of an ask here was answered.
    pub(super) fn answered(&mut self, ask: &AskKey) {
        self.finish(ask);
    }
}

fn add_counts(stats: &mut super::Stats, owned: &mut Owned) {
    let counts = owned.runtime.take_counts();
    let [completed, failed, cancelled] = counts.ended;
    stats.turns_completed += completed;
    stats.turns_failed += failed;
    stats.turns_cancelled += cancelled;
    stats.restarts += counts.restarts;
    stats.late_reports += counts.late_reports;
}

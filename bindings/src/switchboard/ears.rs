//! The nodes that subscribe to owned sessions, and the positions that they have acknowledged.
use super::seat::{Ear, Seat};
use super::{Switchboard, Timer};
use crate::peer::Words;
use std::collections::{BTreeMap, BTreeSet};
use turnway_core::id::{Cursor, NodeId, SessionKey, Stamp};
use turnway_core::mutant::{Mutant, planted};
use turnway_core::store::{Append, Op};
use turnway_core::time::{Mono, Now};

impl Switchboard {
    pub(super) fn hello(&mut self, now: Now, key: &SessionKey, from: NodeId, stamp: Stamp) {
        if let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) {
            owned.ears.entry(from).or_insert(Ear::new(stamp));
            // The subscription proves that the previous owner is alive.
            owned.before = owned.before.filter(|before| *before != from);
            if owned.write_at.is_some() {
                // A delayed write is now due soon, because a subscriber waits for it.
                self.pump(now, key);
            }
        } else if !self.seats.contains_key(key) {
            // The other node takes this node for the owner, so the store does or did until recently.
            self.view(key);
        }
    }

    pub(super) fn have(&mut self, now: Now, from: NodeId, logs: &[(SessionKey, Cursor)]) {
        for (key, at) in logs {
            self.outdone(now, key, at.epoch);
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

    /// Checks whether a node is alive: reads its lease, and remembers when the doubt about its subscriptions began.
    pub(super) fn doubt(&mut self, now: Now, node: NodeId) {
        for owned in self.seats.values_mut().filter_map(Seat::owned_mut) {
            if let Some(ear) = owned.ears.get_mut(&node)
                && ear.doubted.is_none_or(|(stamp, _)| stamp != ear.stamp)
            {
                ear.doubted = Some((ear.stamp, now.mono));
            }
        }
        self.store(Op::Lease { node, sent: now.mono });
    }

    /// Removes a node from the subscribers: the node had no lease when checked after this node knew of the
    /// subscription. An earlier check says nothing about a node that has since returned.
    pub(super) fn prune(&mut self, now: Now, node: NodeId, sent: Mono) {
        let mut struck = Vec::new();
        for (key, seat) in &mut self.seats {
            let Some(owned) = seat.owned_mut() else { continue };
            let gone = owned.ears.get(&node).filter(|ear| {
                let doubted = ear.doubted.filter(|(stamp, _)| *stamp == ear.stamp);
                doubted.is_some_and(|(_, since)| since <= sent) || planted(Mutant::PruneUnheard)
            });
            if let Some(stamp) = gone.map(|ear| ear.stamp) {
                owned.ears.remove(&node);
                struck.push((key.clone(), stamp));
            }
        }
        for (key, stamp) in struck {
            self.store(Op::Unlisten { key: key.clone(), node, stamp });
            self.pump(now, &key);
        }
    }

    /// Makes every owner compare its state with the store once its operation in flight is complete, because the
    /// store may have lost writes.
    pub(super) fn probe(&mut self) {
        for owned in self.seats.values_mut().filter_map(Seat::owned_mut) {
            owned.doubted = true;
        }
        for key in self.seats.keys().cloned().collect::<Vec<_>>() {
            self.look_again(&key);
        }
    }

    /// Appends nothing at the owner's end of the log; the reply shows whether the store has the same log.
    pub(super) fn look_again(&mut self, key: &SessionKey) {
        let Some(owned) = self.seats.get_mut(key).and_then(Seat::owned_mut) else { return };
        if !owned.doubted || owned.in_flight.is_some() || owned.releasing {
            return;
        }
        owned.doubted = false;
        let (token, after, known) = (owned.token, owned.tail().seq, owned.version);
        let (facts, ends, answers) = (Vec::new(), Vec::new(), Vec::new());
        let append = Append { key: key.clone(), token, after, facts, ends, answers, closed: None, known };
        owned.heads = (owned.head, owned.control_head);
        owned.in_flight = Some(append.clone());
        self.store(Op::Append(Box::new(append)));
    }

    /// Sends one message to each subscriber node that has not acknowledged everything.
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
            self.timers.set(Timer::Beacon, now.mono + self.beacon_waits().1);
        }
        for node in silent {
            self.doubt(now, node);
        }
        for (node, logs) in mail {
            self.tell(now, node, Words::Beacon { logs });
        }
    }
}

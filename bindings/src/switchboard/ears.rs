//! Who listens to owned sessions, and whether they have heard everything.
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
            // Whoever had it before lives.
            owned.before = owned.before.filter(|before| *before != from);
            if owned.write_at.is_some() {
                // What was to be written at leisure is written soon: somebody is there to see it.
                self.pump(now, key);
            }
        } else if !self.seats.contains_key(key) {
            // Somebody takes this node for the owner: so does the store, or did until just now.
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

    /// Asks whether a node lives. What it says to its owners after that tells that it does.
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

    /// Strikes a node from the lists of those who listen: it had no lease at a look that set out after its
    /// stamp was known here. An earlier look tells nothing of a node that has come back since.
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

    /// The store may have forgotten what these owners remember: they look, once what is under way is back.
    pub(super) fn probe(&mut self) {
        for owned in self.seats.values_mut().filter_map(Seat::owned_mut) {
            owned.doubted = true;
        }
        for key in self.seats.keys().cloned().collect::<Vec<_>>() {
            self.look_again(&key);
        }
    }

    /// A write of nothing, at the place where this owner believes the log to end.
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

//! Leaving: take on nothing, let running turns end, hand over, go (ownership.md §1.10).
use super::io::Output;
use super::seat::Seat;
use super::{Switchboard, Timer};
use crate::channel::note::Note;
use crate::peer::Words;
use std::collections::BTreeSet;
use std::time::Duration;
use turnway_core::id::{NodeId, Seen, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::session::Input as Told;
use turnway_core::store::Op;
use turnway_core::time::{Mono, Now};

/// A leaving node asks its listeners how far they are this soon, for its sessions wait for that answer; and again
/// after [`limits::KNOCK`].
const BEACON: Duration = Duration::from_millis(20);

/// How far a leaving node has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// Running turns may end until then.
    Ending { until: Mono },
    /// They were suspended; what was recorded of them is being written.
    Suspending { until: Mono },
    /// Nothing is left to do.
    Gone,
}

/// What every link of a leaving node is told.
pub(super) fn go_away() -> Note {
    Note::GoAway { reason: "drain", within: limits::GO_AWAY_WITHIN, jitter: limits::GO_AWAY_JITTER }
}

impl Switchboard {
    pub(super) fn is_gone(&self) -> bool {
        self.drain == Some(Drain::Gone)
    }

    /// Turns and seats that a leaving node still has: for its progress.
    pub fn drain_progress(&self) -> Option<usize> {
        self.drain.map(|_| self.seats.len())
    }

    pub(super) fn begin_drain(&mut self, now: Now) {
        if self.drain.is_some() {
            return;
        }
        let until = now.mono + limits::DRAIN;
        self.drain = Some(Drain::Ending { until });
        self.timers.set(Timer::Drain, until);
        for link in self.links.ids() {
            self.note(link, go_away());
        }
        self.tell_seats(now, &Told::Hold);
        self.leave();
    }

    /// There are nodes to go on with what can go on elsewhere. While there is none, a running turn has its best
    /// chance here.
    pub(super) fn hand_over(&mut self, now: Now, heirs: BTreeSet<NodeId>) {
        if !heirs.is_empty() && matches!(self.drain, Some(Drain::Ending { .. })) {
            self.peers = heirs;
            self.tell_seats(now, &Told::HandOver);
        }
    }

    fn tell_seats(&mut self, now: Now, told: &Told) {
        for key in self.seats.keys().cloned().collect::<Vec<_>>() {
            if let Some(owned) = self.seats.get_mut(&key).and_then(Seat::owned_mut) {
                owned.runtime.handle_input(now, told.clone());
            }
            self.pump(now, &key);
        }
    }

    /// Until listeners that have not acknowledged are asked: for the first time, and again.
    pub(super) fn beacon_waits(&self) -> (Duration, Duration) {
        if self.drain.is_some() { (BEACON, limits::KNOCK) } else { (limits::BEACON, limits::BEACON) }
    }

    /// The time for running turns is up: what there is of them is recorded, and they go on elsewhere.
    pub(super) fn drain_over(&mut self, now: Now) {
        match self.drain {
            Some(Drain::Ending { .. }) => {
                let until = now.mono + limits::DRAIN_RECORD;
                self.drain = Some(Drain::Suspending { until });
                self.timers.set(Timer::Drain, until);
                self.tell_seats(now, &Told::Suspend);
            }
            Some(Drain::Suspending { .. }) => self.go(),
            Some(Drain::Gone) | None => {}
        }
    }

    /// A draining node goes when nothing is left.
    pub(super) fn leave(&mut self) {
        // A session in which a person is to decide is not given back: nothing of it lies in its lanes, so a free one
        // would not be looked after. Of the dead it is.
        let waits =
            |seat: &Seat| seat.owned().is_some_and(|owned| owned.is_written() && owned.runtime.only_waits());
        let written = || self.seats.values().all(|seat| seat.owned().is_none_or(|owned| owned.is_written()));
        match self.drain {
            Some(Drain::Ending { .. }) if self.seats.values().all(waits) => self.go(),
            Some(Drain::Suspending { .. }) if self.seats.is_empty() || written() => self.go(),
            Some(Drain::Ending { .. } | Drain::Suspending { .. } | Drain::Gone) | None => {}
        }
    }

    fn go(&mut self) {
        self.drain = Some(Drain::Gone);
        for key in self.feeds.keys().cloned().collect::<Vec<_>>() {
            self.unlisten(&key);
        }
        self.store(Op::Retire { holder: self.lease.holder });
        self.outbox.push_back(Output::Exit);
    }

    /// Somebody who may go on with what this node leaves.
    pub(super) fn an_heir(&mut self) -> Option<NodeId> {
        let pick = usize::try_from(self.rng.below(self.peers.len() as u64)).unwrap_or(0);
        self.peers.iter().nth(pick).copied()
    }

    /// Suggests to somebody to take on what this node leaves.
    pub(super) fn offer(&mut self, now: Now, key: &SessionKey, free: Seen) {
        if let Some(peer) = self.an_heir() {
            self.tell(now, peer, Words::Adopt { key: key.clone(), free });
        }
    }
}

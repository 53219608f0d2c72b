//! Shutdown: accepts nothing new, lets running turns end, hands over, and exits (ownership.md §1.10).
use super::io::Output;
use super::owned_session::SessionOwnership;
use super::{Switchboard, Timer};
use std::collections::BTreeSet;
use std::time::Duration;
use turnway_core::id::{NodeId, OwnershipSnapshot, SessionKey};
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::session::Input as RuntimeInput;
use turnway_core::store::Op;
use turnway_core::time::{Mono, Now};
use turnway_wire::channel::notification::Notification;
use turnway_wire::peer::PeerMessage;

/// Delay before a leaving node first asks its subscriber nodes for their positions, because the release of its
/// sessions waits for the answer; the question repeats after [`limits::PROBE_INTERVAL`].
const DRAIN_DIGEST_WAIT: Duration = Duration::from_millis(20);

/// The progress of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// Running turns may end until this time.
    Ending { until: Mono },
    /// Running turns were suspended, and their records are being written.
    Suspending { until: Mono },
    /// The node has exited.
    Gone,
}

/// Returns the notification to every link of a leaving node.
pub(super) fn go_away() -> Notification {
    Notification::GoAway { reason: "drain", within: limits::GO_AWAY_WITHIN, jitter: limits::GO_AWAY_JITTER }
}

impl Switchboard {
    pub(super) fn is_gone(&self) -> bool {
        self.drain == Some(Drain::Gone)
    }

    /// Returns the number of sessions that a leaving node still owns.
    pub fn drain_progress(&self) -> Option<usize> {
        self.drain.map(|_| self.owned_sessions.len())
    }

    pub(super) fn begin_drain(&mut self, now: Now) {
        if self.drain.is_some() {
            return;
        }
        let until = now.mono + limits::DRAIN_TIMEOUT;
        self.drain = Some(Drain::Ending { until });
        self.sink.timers.set(Timer::Drain, until);
        for link in self.sink.links.ids() {
            self.sink.notify(link, go_away());
        }
        self.broadcast_to_runtimes(now, &RuntimeInput::Hold);
        self.exit_if_drained();
    }

    /// Hands over turns that can continue at another node. While no other node exists, a running turn has its best
    /// chance here.
    pub(super) fn hand_over_to_successors(&mut self, now: Now, successors: BTreeSet<NodeId>) {
        if !successors.is_empty() && matches!(self.drain, Some(Drain::Ending { .. })) {
            self.peers = successors;
            self.broadcast_to_runtimes(now, &RuntimeInput::HandOver);
        }
    }

    fn broadcast_to_runtimes(&mut self, now: Now, input: &RuntimeInput) {
        for key in self.owned_sessions.keys().cloned().collect::<Vec<_>>() {
            if let Some(owned) = self.owned_sessions.get_mut(&key).and_then(SessionOwnership::owned_mut) {
                owned.runtime.handle_input(now, input.clone());
            }
            self.drive_runtime(now, &key);
        }
    }

    /// Returns the delays before unacknowledged subscriber nodes are asked: the first and the following ones.
    pub(super) fn digest_waits(&self) -> (Duration, Duration) {
        if self.drain.is_some() {
            (DRAIN_DIGEST_WAIT, limits::PROBE_INTERVAL)
        } else {
            (limits::TAIL_DIGEST_INTERVAL, limits::TAIL_DIGEST_INTERVAL)
        }
    }

    /// Ends the time for running turns: their state is recorded, and they continue at other nodes.
    pub(super) fn handle_drain_timeout(&mut self, now: Now) {
        match self.drain {
            Some(Drain::Ending { .. }) => {
                let until = now.mono + limits::DRAIN_RECORD_TIMEOUT;
                self.drain = Some(Drain::Suspending { until });
                self.sink.timers.set(Timer::Drain, until);
                self.broadcast_to_runtimes(now, &RuntimeInput::Suspend);
            }
            Some(Drain::Suspending { .. }) => self.exit(),
            Some(Drain::Gone) | None => {}
        }
    }

    /// Exits once nothing is left.
    pub(super) fn exit_if_drained(&mut self) {
        // A session that waits for a person's decision is not released: its inbox is empty, so no node would claim
        // a free session, whereas the sessions of dead nodes are taken over.
        let waits = |ownership: &SessionOwnership| {
            ownership.owned().is_some_and(|owned| owned.is_written() && owned.runtime.only_awaits_others())
        };
        let written =
            || self.owned_sessions.values().all(|ownership| ownership.owned().is_none_or(|owned| owned.is_written()));
        match self.drain {
            Some(Drain::Ending { .. }) if self.owned_sessions.values().all(waits) => self.exit(),
            Some(Drain::Suspending { .. }) if self.owned_sessions.is_empty() || written() => self.exit(),
            Some(Drain::Ending { .. } | Drain::Suspending { .. } | Drain::Gone) | None => {}
        }
    }

    fn exit(&mut self) {
        self.drain = Some(Drain::Gone);
        self.delivery.deregister_all(&mut self.sink);
        self.sink.store(Op::Retire { holder: self.lease.holder });
        self.sink.output(Output::Exit);
    }

    /// Returns a node that may take over what this node leaves.
    pub(super) fn pick_successor(&mut self) -> Option<NodeId> {
        let pick = usize::try_from(self.sink.rng.below(self.peers.len() as u64)).unwrap_or(0);
        self.peers.iter().nth(pick).copied()
    }

    /// Suggests to another node that it take over a session.
    pub(super) fn offer_hand_off(&mut self, key: &SessionKey, free: OwnershipSnapshot) {
        if let Some(peer) = self.pick_successor() {
            self.sink.send_peer(peer, PeerMessage::HandOff { key: key.clone(), released: free });
        }
    }
}

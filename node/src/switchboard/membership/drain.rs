//! Shutdown: accepts nothing new, lets running turns end, hands over, and exits (ownership.md §1.10).
use crate::switchboard::effect::{OwnershipCommand, PartEffect};
use crate::switchboard::ownership::Ownership;
use crate::switchboard::sink::{EffectSink, Timer};
use std::collections::BTreeSet;
use std::time::Duration;
use turnway_core::id::{NodeId, OwnershipSnapshot, SessionKey};
use turnway_core::limits;
use turnway_core::session::Input as RuntimeInput;
use turnway_core::time::Now;
use turnway_wire::channel::notification::Notification;
use turnway_wire::peer::PeerMessage;

/// Delay before a leaving node first asks its subscriber nodes for their positions, because the release of its
/// sessions waits for the answer; the question repeats after [`limits::PROBE_INTERVAL`].
const DRAIN_DIGEST_WAIT: Duration = Duration::from_millis(20);

/// The shutdown of this node, and the nodes that can take over.
#[derive(Debug, Default)]
pub(in crate::switchboard) struct Drain {
    stage: Option<DrainStage>,
    /// Nodes that have sent a message to this node; from the handover on, its successors.
    peers: BTreeSet<NodeId>,
}

/// The progress of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainStage {
    /// Running turns may end.
    Ending,
    /// Running turns were suspended, and their records are being written.
    Suspending,
    /// The node has exited.
    Gone,
}

/// Returns the notification to every link of a leaving node.
pub(in crate::switchboard) fn go_away() -> Notification {
    Notification::GoAway { reason: "drain", within: limits::GO_AWAY_WITHIN, jitter: limits::GO_AWAY_JITTER }
}

impl Drain {
    pub(in crate::switchboard) fn is_started(&self) -> bool {
        self.stage.is_some()
    }

    pub(in crate::switchboard) fn is_gone(&self) -> bool {
        self.stage == Some(DrainStage::Gone)
    }

    /// Returns whether the node leaves and running turns may still end or move.
    pub(in crate::switchboard) fn is_ending(&self) -> bool {
        self.stage == Some(DrainStage::Ending)
    }

    /// Starts the shutdown.
    pub(in crate::switchboard) fn begin(&mut self, now: Now, sink: &mut EffectSink) {
        if self.stage.is_some() {
            return;
        }
        self.stage = Some(DrainStage::Ending);
        sink.timers.set(Timer::Drain, now.mono + limits::DRAIN_TIMEOUT);
        for link in sink.links.ids() {
            sink.notify(link, go_away());
        }
        sink.push(OwnershipCommand::Broadcast(RuntimeInput::Hold));
        sink.push(PartEffect::ExitIfDrained);
    }

    /// Hands over turns that can continue at another node. While no other node exists, a running turn has its best
    /// chance here.
    pub(in crate::switchboard) fn hand_over_to(&mut self, successors: BTreeSet<NodeId>, sink: &mut EffectSink) {
        if !successors.is_empty() && self.is_ending() {
            self.peers = successors;
            sink.push(OwnershipCommand::Broadcast(RuntimeInput::HandOver));
        }
    }

    /// Returns the delays before unacknowledged subscriber nodes are asked: the first and the following ones.
    pub(in crate::switchboard) fn digest_waits(&self) -> (Duration, Duration) {
        if self.stage.is_some() {
            (DRAIN_DIGEST_WAIT, limits::PROBE_INTERVAL)
        } else {
            (limits::TAIL_DIGEST_INTERVAL, limits::TAIL_DIGEST_INTERVAL)
        }
    }

    /// Ends the time for running turns: their state is recorded, and they continue at other nodes.
    pub(in crate::switchboard) fn handle_timeout(&mut self, now: Now, sink: &mut EffectSink) {
        match self.stage {
            Some(DrainStage::Ending) => {
                self.stage = Some(DrainStage::Suspending);
                sink.timers.set(Timer::Drain, now.mono + limits::DRAIN_RECORD_TIMEOUT);
                sink.push(OwnershipCommand::Broadcast(RuntimeInput::Suspend));
            }
            Some(DrainStage::Suspending) => sink.push(PartEffect::Exit),
            Some(DrainStage::Gone) | None => {}
        }
    }

    /// Returns whether nothing is left that the exit must wait for.
    ///
    /// A session that waits for a person's decision is not released: its inbox is empty, so no node would claim a
    /// free session, whereas the sessions of dead nodes are taken over.
    pub(in crate::switchboard) fn may_exit(&self, ownership: &Ownership) -> bool {
        match self.stage {
            Some(DrainStage::Ending) => ownership.only_awaits_others(),
            Some(DrainStage::Suspending) => ownership.is_written(),
            Some(DrainStage::Gone) | None => false,
        }
    }

    /// Records that the node has exited.
    pub(in crate::switchboard) fn end(&mut self) {
        self.stage = Some(DrainStage::Gone);
    }

    /// Records a node that has sent a message.
    pub(in crate::switchboard) fn add_peer(&mut self, node: NodeId) {
        self.peers.insert(node);
    }

    /// Returns a node that may take over what this node leaves.
    pub(in crate::switchboard) fn pick_successor(&self, sink: &mut EffectSink) -> Option<NodeId> {
        let pick = usize::try_from(sink.rng.below(self.peers.len() as u64)).unwrap_or(0);
        self.peers.iter().nth(pick).copied()
    }

    /// Suggests to another node that it take over a session.
    pub(in crate::switchboard) fn offer_hand_off(
        &self,
        key: SessionKey,
        free: OwnershipSnapshot,
        sink: &mut EffectSink,
    ) {
        if let Some(peer) = self.pick_successor(sink) {
            sink.send_peer(peer, PeerMessage::HandOff { key, released: free });
        }
    }
}

//! Delivery at the edge: passes facts in order to every link that has all earlier facts, and watches the owners of
//! open turns.
use super::feed::FeedStage;
use super::io::Output;
use super::subscription::{ShowOutcome, SubscriptionMode};
use super::{Switchboard, Timer};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::{Cursor, Epoch, NodeId, OwnershipSnapshot, Seq, SessionKey};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::planted::{self, Planted};
use turnway_core::protocol::entry::Entry;
use turnway_core::store::Op;
use turnway_core::time::Now;
use turnway_wire::peer::PeerMessage;

/// Time for a gap to close by itself before the log is read.
const GAP_WAIT: Duration = Duration::from_millis(100);

impl Switchboard {
    /// Handles durable facts and the position they follow, from an owner here or at another node.
    pub(super) fn handle_facts(&mut self, now: Now, key: &SessionKey, after: Cursor, facts: &[(Epoch, Arc<Entry>)]) {
        self.release_acceptances(now, facts);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        // A state that is being read may be older than these facts; the rest is read afterwards.
        feed.known_end = feed.known_end.max(Seq(after.seq.0 + facts.len() as u64));
        if feed.stage != FeedStage::Live {
            return;
        }
        let head = feed.head();
        if after.seq > head.seq && !planted(Mutant::EdgeSkipsGap) {
            return self.schedule_catch_up(now, key);
        }
        if !planted(Mutant::CursorBare) && contradicts(head, after, facts) {
            return self.resync_feed(key);
        }
        let skip = usize::try_from(head.seq.0.saturating_sub(after.seq.0)).unwrap_or(usize::MAX);
        for (epoch, entry) in facts.iter().skip(skip) {
            self.apply_fact(key, *epoch, entry);
        }
        self.schedule_catch_up(now, key);
    }

    /// Applies the next fact of a feed, and shows it to every link that has all earlier facts.
    fn apply_fact(&mut self, key: &SessionKey, epoch: Epoch, entry: &Arc<Entry>) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        feed.state.apply(epoch, entry);
        feed.epoch = feed.epoch.max(epoch);
        let at = feed.state.tail;
        let mut holes = Vec::new();
        let sink = &mut self.sink;
        for (link, sub) in feed.subs.iter_mut().filter(|(_, sub)| sub.mode == SubscriptionMode::Live) {
            match sub.show_fact(sink, *link, key, at, entry) {
                ShowOutcome::Done if sub.text_search_pending => {
                    sub.look_for_text(&feed.state);
                    holes.push(*link);
                }
                ShowOutcome::Done => {}
                ShowOutcome::Full => {
                    sub.mode = SubscriptionMode::Paused { scan: sub.cursor.seq };
                    sink.stats.slow_links += 1;
                }
                ShowOutcome::TextMissing(run_id) => {
                    sub.read_missing_text(&feed.state, &run_id);
                    holes.push(*link);
                }
            }
        }
        for link in holes {
            self.continue_link(key, link);
        }
    }

    /// Schedules a read of the log if this node knows of facts that it lacks.
    pub(super) fn schedule_catch_up(&mut self, now: Now, key: &SessionKey) {
        let Some(feed) = self.feeds.get(key) else { return };
        if feed.head().seq < feed.known_end {
            self.sink.stats.gaps += 1;
            self.sink.timers.set_earlier(Timer::Read(key.clone()), now.mono + GAP_WAIT);
        } else {
            self.sink.timers.clear(&Timer::Read(key.clone()));
        }
    }

    // === owners ===

    /// Watches the owner's node while a turn is open: one probe per node, not per session.
    pub(super) fn watch_owner(&mut self, now: Now, key: &SessionKey, owner: OwnershipSnapshot) {
        let Some(feed) = self.feeds.get_mut(key).filter(|feed| feed.owner.epoch <= owner.epoch) else {
            return;
        };
        feed.owner = owner;
        if feed.state.has_open_turn() && owner.holder.is_some_and(|holder| holder.node != self.me) {
            self.sink.timers.set_earlier(Timer::Probe, now.mono + limits::PROBE_INTERVAL);
        }
    }

    /// Probes each node that owns a session with an open turn or request here, and checks its lease: the probe
    /// detects a process that is gone, the lease one that is suspended.
    pub(super) fn probe_owners(&mut self, now: Now) {
        let me = self.me;
        let open = self.feeds.values().filter(|feed| feed.state.has_open_turn());
        let shown = open.filter_map(|feed| feed.owner.holder);
        let requested = self.requests.values().filter_map(|ask| ask.owner.holder);
        let owners: BTreeSet<NodeId> =
            shown.chain(requested).map(|holder| holder.node).filter(|node| *node != me).collect();
        self.without_lease.retain(|node, _| owners.contains(node));
        if !owners.is_empty() {
            self.sink.timers.set(Timer::Probe, now.mono + limits::PROBE_INTERVAL);
        }
        for node in owners {
            self.sink.store(Op::Lease { node, sent: now.mono });
            if !self.suspects.contains_key(&node) {
                self.sink.output(Output::Publish { to: node, message: PeerMessage::Probe });
            }
        }
    }

    /// Answers a tail digest with the positions that this node has.
    pub(super) fn handle_tail_digest(&mut self, now: Now, from: NodeId, logs: Vec<(SessionKey, Cursor)>) {
        let mut have = Vec::new();
        for (key, end) in logs {
            match self.feeds.get_mut(&key) {
                Some(feed) if feed.stage == FeedStage::Live => {
                    feed.known_end = feed.known_end.max(end.seq);
                    let head = feed.head();
                    if head.seq == end.seq && head.epoch != end.epoch && !planted(Mutant::CursorBare) {
                        self.resync_feed(&key);
                    }
                    self.schedule_catch_up(now, &key);
                    have.push((key, head));
                }
                Some(_) => {}
                None => {
                    if !planted::planted(Planted::NeverUnlistened) {
                        self.deregister_subscription(&key);
                    }
                    have.push((key, end));
                }
            }
        }
        self.send_peer(now, from, PeerMessage::Ack { logs: have });
    }
}

/// Returns whether facts prove that the log differs from the one this node has read: another epoch at the same
/// position, or a later epoch before it.
fn contradicts(head: Cursor, after: Cursor, facts: &[(Epoch, Arc<Entry>)]) -> bool {
    if after.seq == head.seq {
        return head.seq > Seq(0) && after.epoch != head.epoch;
    }
    let overlap = head.seq.0.saturating_sub(after.seq.0);
    facts.iter().zip(1..=overlap).any(|((epoch, _), n)| *epoch > head.epoch || (n == overlap && *epoch != head.epoch))
}

//! Delivery at the edge: passes facts in order to every link that has all earlier facts.
use super::feed::{Feed, FeedStage};
use super::state_reads::StateReads;
use super::subscription::{ShowOutcome, SubscriptionMode};
use crate::switchboard::sink::EffectSink;
use std::sync::Arc;
use turnway_core::id::{Cursor, Epoch, Seq, SessionKey};
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::entry::Entry;
use turnway_core::time::Now;

impl Feed {
    /// Handles durable facts and the position they follow, from an owner here or at another node.
    pub(super) fn handle_facts(
        &mut self,
        now: Now,
        key: &SessionKey,
        after: Cursor,
        facts: &[(Epoch, Arc<Entry>)],
        reads: &mut StateReads,
        sink: &mut EffectSink,
    ) {
        // A state that is being read may be older than these facts; the rest is read afterwards.
        self.known_end = self.known_end.max(Seq(after.seq.0 + facts.len() as u64));
        if self.stage != FeedStage::Live {
            return;
        }
        let head = self.head();
        if after.seq > head.seq && !planted(Mutant::EdgeSkipsGap) {
            return self.schedule_catch_up(now, key, sink);
        }
        if !planted(Mutant::CursorBare) && contradicts(head, after, facts) {
            return self.resync(key, reads, sink);
        }
        let skip = usize::try_from(head.seq.0.saturating_sub(after.seq.0)).unwrap_or(usize::MAX);
        for (epoch, entry) in facts.iter().skip(skip) {
            self.apply_fact(key, *epoch, entry, sink);
        }
        self.schedule_catch_up(now, key, sink);
    }

    /// Applies the next fact of a feed, and shows it to every link that has all earlier facts.
    fn apply_fact(&mut self, key: &SessionKey, epoch: Epoch, entry: &Arc<Entry>, sink: &mut EffectSink) {
        self.state.apply(epoch, entry);
        self.epoch = self.epoch.max(epoch);
        let at = self.state.tail;
        let mut holes = Vec::new();
        for (link, sub) in self.subs.iter_mut().filter(|(_, sub)| sub.mode == SubscriptionMode::Live) {
            match sub.show_fact(sink, *link, key, at, entry) {
                ShowOutcome::Done if sub.text_search_pending => {
                    sub.look_for_text(&self.state);
                    holes.push(*link);
                }
                ShowOutcome::Done => {}
                ShowOutcome::Full => {
                    sub.mode = SubscriptionMode::Paused { scan: sub.cursor.seq };
                    sink.stats.slow_links += 1;
                }
                ShowOutcome::TextMissing(run_id) => {
                    sub.read_missing_text(&self.state, &run_id);
                    holes.push(*link);
                }
            }
        }
        for link in holes {
            self.continue_link(key, link, sink);
        }
    }

    /// Handles the end of an owner's log. Returns the position that this node has; `None` while its state is unknown.
    pub(super) fn handle_tail(
        &mut self,
        now: Now,
        key: &SessionKey,
        end: Cursor,
        reads: &mut StateReads,
        sink: &mut EffectSink,
    ) -> Option<Cursor> {
        if self.stage != FeedStage::Live {
            return None;
        }
        self.known_end = self.known_end.max(end.seq);
        let head = self.head();
        if head.seq == end.seq && head.epoch != end.epoch && !planted(Mutant::CursorBare) {
            self.resync(key, reads, sink);
        }
        self.schedule_catch_up(now, key, sink);
        Some(head)
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

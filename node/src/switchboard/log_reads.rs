//! Reads of the log for feeds and links; links that read from the same position share one page.
use super::Switchboard;
use super::feed::{FeedStage, LogRead};
use super::stats::SubscriptionStart;
use super::subscription::{ShowOutcome, SubscriptionMode};
use std::collections::btree_map::Entry;
use turnway_core::id::{Cursor, Epoch, LinkId, Seq, SessionKey};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::shrink::Shrink;
use turnway_core::store::{FactPage, Op};
use turnway_core::time::Now;

impl Switchboard {
    pub(super) fn read_log(&mut self, key: &SessionKey, after: Seq) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        if let Entry::Vacant(vacant) = feed.reads.entry(after) {
            vacant.insert(LogRead { known_end: feed.state.tail.seq, stale: false });
            self.sink.store(Op::Read { key: key.clone(), after, limit: limits::READ_FACTS_MAX });
        }
    }

    /// Reads the facts that the feed lacks, starting one fact back to check that its last one is still there.
    pub(super) fn catch_up(&mut self, key: &SessionKey) {
        let Some(feed) = self.feeds.get(key).filter(|feed| feed.stage == FeedStage::Live) else { return };
        let after = Seq(feed.head().seq.0.saturating_sub(1));
        self.read_log(key, after);
    }

    /// Handles a page of the log.
    pub(super) fn handle_page(&mut self, now: Now, key: &SessionKey, after: Seq, page: &FactPage) {
        self.apply_page_to_rebuilds(now, key, page);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        let LogRead { known_end: since, stale: void } = feed.reads.remove(&after).unwrap_or_default();
        feed.reads.shrink_if_empty();
        if void {
            // The page contains facts that the store has lost since, so it is read again.
            return self.read_log(key, after);
        }
        if feed.stage != FeedStage::Live {
            return;
        }
        if page.tail.seq < since && !planted(Mutant::CursorBare) {
            return self.resync_feed(key);
        }
        feed.known_end = feed.known_end.max(page.tail.seq);
        self.release_acceptances(now, &page.facts);
        let Some(feed) = self.feeds.get(key) else { return };
        let readers = feed.subs.iter().filter(|(_, sub)| sub.mode == SubscriptionMode::Reading { scan: after });
        for link in readers.map(|(link, _)| *link).collect::<Vec<_>>() {
            self.apply_page_to_link(key, link, page, since);
        }
        self.apply_page_to_feed(now, key, page);
    }

    /// Applies the part of a page that is new to the feed.
    fn apply_page_to_feed(&mut self, now: Now, key: &SessionKey, page: &FactPage) {
        let Some(feed) = self.feeds.get(key) else { return };
        let head = feed.head();
        let end = page.after.0 + page.facts.len() as u64;
        if page.floor > head.seq {
            // The facts that this node lacks have been trimmed, so the feed starts from the snapshot.
            return self.resync_feed(key);
        }
        if page.after > head.seq {
            return;
        }
        if end <= head.seq.0 {
            // The owner's message was faster; links that wait for this page need no other one.
            return self.start_links(key, None);
        }
        let overlap = usize::try_from(head.seq.0 - page.after.0).unwrap_or(usize::MAX);
        let last = overlap.checked_sub(1).and_then(|n| page.facts.get(n));
        if last.is_some_and(|(epoch, _)| *epoch != head.epoch) && !planted(Mutant::CursorBare) {
            return self.resync_feed(key);
        }
        self.handle_facts(now, key, head, page.facts.get(overlap..).unwrap_or_default());
        let Some(feed) = self.feeds.get(key) else { return };
        if feed.head().seq < page.tail.seq {
            self.catch_up(key);
        }
        self.start_links(key, None);
        // Text of a turn that was not known to run was skipped.
        self.schedule_text_fetch(key);
    }

    /// Handles a page for one link.
    fn apply_page_to_link(&mut self, key: &SessionKey, link: LinkId, page: &FactPage, since: Seq) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        let Some(sub) = feed.subs.get_mut(&link) else { return };
        let sink = &mut self.sink;
        if page.tail.seq < sub.cursor.seq && since < sub.cursor.seq {
            // The page is older than the link's cursor and cannot disprove it.
            return self.read_log(key, page.after);
        }
        // A slow link may lack text of a turn that has ended and been trimmed. Only the fact directly before the
        // first kept one may be missing, because a link's check needs no more than its epoch.
        let holed = matches!(sub.mode, SubscriptionMode::Reading { scan } if scan.0 + 1 < page.floor.0);
        let start = if sub.cursor.seq < page.floor || holed {
            SubscriptionStart::Trimmed { floor: page.floor }
        } else if page.tail.seq < sub.cursor.seq
            || sub.verify.is_some_and(|at| at.0 > page.floor && !contains_fact(page, at))
        {
            SubscriptionStart::Regressed
        } else {
            SubscriptionStart::Behind
        };
        if start.reset_reason().is_some() {
            sub.send_subscribed(sink, link, key, &feed.state, start);
            sub.start_over(&feed.state);
            return self.continue_link(key, link);
        }
        sub.verify = None;
        if !sub.pending_requests.is_empty() {
            // Text before the cursor that the link lacks requires a read from further back.
            sub.send_subscribed(sink, link, key, &feed.state, start);
            sub.follow_open_runs(&feed.state);
            if let SubscriptionMode::Reading { scan } = sub.read_for_text(&feed.state)
                && scan < page.after
            {
                sub.mode = SubscriptionMode::Reading { scan };
                return self.continue_link(key, link);
            }
        }
        let mut scan = page.after;
        for (epoch, entry) in &page.facts {
            let at = Cursor { seq: Seq(scan.0 + 1), epoch: *epoch };
            match sub.show_fact(sink, link, key, at, entry) {
                ShowOutcome::Done => scan = at.seq,
                ShowOutcome::Full => {
                    sub.mode = SubscriptionMode::Paused { scan };
                    sink.stats.slow_links += 1;
                    return;
                }
                ShowOutcome::TextMissing(run_id) => {
                    sub.read_missing_text(&feed.state, &run_id);
                    return self.continue_link(key, link);
                }
            }
        }
        sub.mode =
            if scan >= feed.state.tail.seq { SubscriptionMode::Live } else { SubscriptionMode::Reading { scan } };
        sub.look_for_text(&feed.state);
        self.continue_link(key, link);
    }
}

/// Returns whether a page has a fact of this epoch at this position.
fn contains_fact(page: &FactPage, (seq, epoch): (Seq, Epoch)) -> bool {
    let n = seq.0.checked_sub(page.after.0 + 1).and_then(|n| usize::try_from(n).ok());
    n.and_then(|n| page.facts.get(n)).is_some_and(|(there, _)| *there == epoch)
}

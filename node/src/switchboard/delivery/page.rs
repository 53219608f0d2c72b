//! Pages of the log: for the feed itself, and for the links that read from the page's position.
use super::feed::{Feed, FeedStage, LogRead};
use super::state_reads::StateReads;
use super::subscription::{ShowOutcome, SubscriptionMode};
use crate::switchboard::effect::UsablePage;
use crate::switchboard::sink::EffectSink;
use crate::switchboard::stats::SubscriptionStart;
use turnway_core::id::{Cursor, Epoch, LinkId, Seq, SessionKey};
use turnway_core::mutant::{Mutant, planted};
use turnway_core::shrink::Shrink;
use turnway_core::store::FactPage;
use turnway_core::time::Now;

/// The effect of a page on a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageOutcome {
    /// The page is too late, or the feed checks its links again.
    Dropped,
    /// Links that wait for the feed's state can start.
    StartLinks,
    /// New facts were applied: links can start, and the text of a turn that was not known to run was skipped.
    FactsApplied,
}

impl Feed {
    /// Ends the read that a page answers. Returns the known end of the log at the start of the read; `None` if the
    /// page must not be used.
    pub(super) fn end_read(
        &mut self,
        key: &SessionKey,
        page: &FactPage,
        after: Seq,
        reads: &mut StateReads,
        sink: &mut EffectSink,
    ) -> Option<Seq> {
        let LogRead { known_end: since, stale } = self.reads.remove(&after).unwrap_or_default();
        self.reads.shrink_if_empty();
        if stale {
            // The page contains facts that the store has lost since, so it is read again.
            self.read_log(key, after, sink);
            return None;
        }
        if self.stage != FeedStage::Live {
            return None;
        }
        if page.tail.seq < since && !planted(Mutant::CursorBare) {
            self.resync(key, reads, sink);
            return None;
        }
        self.known_end = self.known_end.max(page.tail.seq);
        Some(since)
    }

    /// Applies a page to every link that reads from the position that the read named.
    pub(super) fn apply_page_to_links(&mut self, usable: &UsablePage, sink: &mut EffectSink) {
        let UsablePage { key, after, page, since } = usable;
        let position = SubscriptionMode::Reading { scan: *after };
        let readers = self.subs.iter().filter(|(_, sub)| sub.mode == position);
        for link in readers.map(|(link, _)| *link).collect::<Vec<_>>() {
            self.apply_page_to_link(key, link, page, *since, sink);
        }
    }

    /// Applies the part of a page that is new to the feed.
    pub(super) fn apply_page(
        &mut self,
        now: Now,
        key: &SessionKey,
        page: &FactPage,
        reads: &mut StateReads,
        sink: &mut EffectSink,
    ) -> PageOutcome {
        let head = self.head();
        let end = page.after.0 + page.facts.len() as u64;
        if page.floor > head.seq {
            // The facts that this node lacks have been trimmed, so the feed starts from the snapshot.
            self.resync(key, reads, sink);
            return PageOutcome::Dropped;
        }
        if page.after > head.seq {
            return PageOutcome::Dropped;
        }
        if end <= head.seq.0 {
            // The owner's message was faster; links that wait for this page need no other one.
            return PageOutcome::StartLinks;
        }
        let overlap = usize::try_from(head.seq.0 - page.after.0).unwrap_or(usize::MAX);
        let last = overlap.checked_sub(1).and_then(|n| page.facts.get(n));
        if last.is_some_and(|(epoch, _)| *epoch != head.epoch) && !planted(Mutant::CursorBare) {
            self.resync(key, reads, sink);
            return PageOutcome::Dropped;
        }
        self.handle_facts(now, key, head, page.facts.get(overlap..).unwrap_or_default(), reads, sink);
        if self.head().seq < page.tail.seq {
            self.catch_up(key, sink);
        }
        PageOutcome::FactsApplied
    }

    /// Handles a page for one link.
    fn apply_page_to_link(
        &mut self,
        key: &SessionKey,
        link: LinkId,
        page: &FactPage,
        since: Seq,
        sink: &mut EffectSink,
    ) {
        let Some(sub) = self.subs.get_mut(&link) else { return };
        if page.tail.seq < sub.cursor.seq && since < sub.cursor.seq {
            // The page is older than the link's cursor and cannot disprove it.
            return self.read_log(key, page.after, sink);
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
            sub.send_subscribed(sink, link, key, &self.state, start);
            sub.start_over(&self.state);
            return self.continue_link(key, link, sink);
        }
        sub.verify = None;
        if !sub.pending_requests.is_empty() {
            // Text before the cursor that the link lacks requires a read from further back.
            sub.send_subscribed(sink, link, key, &self.state, start);
            sub.follow_open_runs(&self.state);
            if let SubscriptionMode::Reading { scan } = sub.read_for_text(&self.state)
                && scan < page.after
            {
                sub.mode = SubscriptionMode::Reading { scan };
                return self.continue_link(key, link, sink);
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
                    sub.read_missing_text(&self.state, &run_id);
                    return self.continue_link(key, link, sink);
                }
            }
        }
        sub.mode =
            if scan >= self.state.tail.seq { SubscriptionMode::Live } else { SubscriptionMode::Reading { scan } };
        sub.look_for_text(&self.state);
        self.continue_link(key, link, sink);
    }
}

/// Returns whether a page has a fact of this epoch at this position.
fn contains_fact(page: &FactPage, (seq, epoch): (Seq, Epoch)) -> bool {
    let n = seq.0.checked_sub(page.after.0 + 1).and_then(|n| usize::try_from(n).ok());
    n.and_then(|n| page.facts.get(n)).is_some_and(|(there, _)| *there == epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switchboard::Capacity;
    use crate::switchboard::delivery::subscription::Subscription;
    use crate::switchboard::links::LinkTable;
    use turnway_core::id::{NodeId, Principal, SessionId};
    use turnway_core::rng::Rng;

    /// The store starts a page at the floor of the log if the facts after the position that was read are trimmed.
    #[test]
    fn trimmed_page_answers_the_links_that_read_it() {
        let mut sink = EffectSink::new(NodeId(1), LinkTable::new(Capacity::default()), Rng::from_seed([7; 32]));
        let link = LinkId(1);
        sink.links.connect(link, Principal::first());
        let tail = Cursor { seq: Seq(8), epoch: Epoch(1) };
        let mut feed = Feed::new(FeedStage::Live);
        feed.state.tail = tail;
        let mut sub = Subscription::joining(None);
        sub.mode = SubscriptionMode::Reading { scan: Seq(0) };
        feed.subs.insert(link, Box::new(sub));
        let key = SessionKey { tenant: Principal::first().tenant, session: SessionId::parse("s1").expect("a name") };
        let page = FactPage { after: Seq(8), facts: Vec::new(), tail, floor: Seq(8) };
        feed.apply_page_to_links(&UsablePage { key, after: Seq(0), page, since: Seq(8) }, &mut sink);
        assert_eq!(feed.subs[&link].cursor, tail);
        assert_eq!(feed.subs[&link].mode, SubscriptionMode::Live);
    }
}

//! Reads of the log for feeds and links; links that read from the same position share one page.
use super::Switchboard;
use super::feed::{Fetch, Stage};
use super::stats::Start;
use super::sub::{Mode, Post, Shown};
use std::collections::btree_map::Entry;
use turnway_core::id::{Cursor, Epoch, LinkId, Seq, SessionKey};
use turnway_core::limits;
use turnway_core::mutant::{Mutant, planted};
use turnway_core::shrink::Shrink;
use turnway_core::store::{Heard, Op};
use turnway_core::time::Now;

impl Switchboard {
    pub(super) fn read(&mut self, key: &SessionKey, after: Seq) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        if let Entry::Vacant(vacant) = feed.reads.entry(after) {
            vacant.insert(Fetch { since: feed.state.tail.seq, void: false });
            self.store(Op::Read { key: key.clone(), after, limit: limits::READ_FACTS_MAX });
        }
    }

    /// Reads the facts that the feed lacks, starting one fact back to check that its last one is still there.
    pub(super) fn catch_up(&mut self, key: &SessionKey) {
        let Some(feed) = self.feeds.get(key).filter(|feed| feed.stage == Stage::Live) else { return };
        let after = Seq(feed.head().seq.0.saturating_sub(1));
        self.read(key, after);
    }

    /// Handles a page of the log.
    pub(super) fn heard(&mut self, now: Now, key: &SessionKey, after: Seq, heard: &Heard) {
        self.rebuild_page(now, key, heard);
        let Some(feed) = self.feeds.get_mut(key) else { return };
        let Fetch { since, void } = feed.reads.remove(&after).unwrap_or_default();
        feed.reads.shrink_if_empty();
        if void {
            // The page contains facts that the store has lost since, so it is read again.
            return self.read(key, after);
        }
        if feed.stage != Stage::Live {
            return;
        }
        if heard.tail.seq < since && !planted(Mutant::CursorBare) {
            return self.regress(key);
        }
        feed.known = feed.known.max(heard.tail.seq);
        self.release_asks(now, &heard.facts);
        let Some(feed) = self.feeds.get(key) else { return };
        let readers = feed.subs.iter().filter(|(_, sub)| sub.mode == Mode::Reading { scan: after });
        for link in readers.map(|(link, _)| *link).collect::<Vec<_>>() {
            self.page(key, link, heard, since);
        }
        self.feed_page(now, key, heard);
    }

    /// Applies the part of a page that is new to the feed.
    fn feed_page(&mut self, now: Now, key: &SessionKey, heard: &Heard) {
        let Some(feed) = self.feeds.get(key) else { return };
        let head = feed.head();
        let end = heard.after.0 + heard.facts.len() as u64;
        if heard.floor > head.seq {
            // The facts that this node lacks have been trimmed, so the feed starts from the snapshot.
            return self.regress(key);
        }
        if heard.after > head.seq {
            return;
        }
        if end <= head.seq.0 {
            // The owner's message was faster; links that wait for this page need no other one.
            return self.join_all(key, None);
        }
        let overlap = usize::try_from(head.seq.0 - heard.after.0).unwrap_or(usize::MAX);
        let last = overlap.checked_sub(1).and_then(|n| heard.facts.get(n));
        if last.is_some_and(|(epoch, _)| *epoch != head.epoch) && !planted(Mutant::CursorBare) {
            return self.regress(key);
        }
        self.facts(now, key, head, heard.facts.get(overlap..).unwrap_or_default());
        let Some(feed) = self.feeds.get(key) else { return };
        if feed.head().seq < heard.tail.seq {
            self.catch_up(key);
        }
        self.join_all(key, None);
        // Text of a turn that was not known to run was skipped.
        self.lack_text(key);
    }

    /// Handles a page for one link.
    fn page(&mut self, key: &SessionKey, link: LinkId, heard: &Heard, since: Seq) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        let Some(sub) = feed.subs.get_mut(&link) else { return };
        let post = &mut Post { links: &mut self.links, outbox: &mut self.outbox, stats: &mut self.stats };
        if heard.tail.seq < sub.cursor.seq && since < sub.cursor.seq {
            // The page is older than the link's cursor and cannot disprove it.
            return self.read(key, heard.after);
        }
        // A slow link may lack text of a turn that has ended and been trimmed. Only the fact directly before the
        // first kept one may be missing, because a link's check needs no more than its epoch.
        let holed = matches!(sub.mode, Mode::Reading { scan } if scan.0 + 1 < heard.floor.0);
        let start = if sub.cursor.seq < heard.floor || holed {
            Start::Trimmed { floor: heard.floor }
        } else if heard.tail.seq < sub.cursor.seq
            || sub.verify.is_some_and(|at| at.0 > heard.floor && !has(heard, at))
        {
            Start::Regressed
        } else {
            Start::Behind
        };
        if start.reset().is_some() {
            sub.greet(post, link, key, &feed.state, start);
            sub.start_over(&feed.state);
            return self.go_on(key, link);
        }
        sub.verify = None;
        if !sub.greets.is_empty() {
            // Text before the cursor that the link lacks requires a read from further back.
            sub.greet(post, link, key, &feed.state, start);
            sub.follow_open_runs(&feed.state);
            if let Mode::Reading { scan } = sub.read_for_text(&feed.state)
                && scan < heard.after
            {
                sub.mode = Mode::Reading { scan };
                return self.go_on(key, link);
            }
        }
        let mut scan = heard.after;
        for (epoch, entry) in &heard.facts {
            let at = Cursor { seq: Seq(scan.0 + 1), epoch: *epoch };
            match sub.show(post, link, key, at, entry) {
                Shown::Yes => scan = at.seq,
                Shown::Full => {
                    sub.mode = Mode::Paused { scan };
                    post.stats.slow_links += 1;
                    return;
                }
                Shown::Hole(run_id) => {
                    sub.fill_hole(&feed.state, &run_id);
                    return self.go_on(key, link);
                }
            }
        }
        sub.mode = if scan >= feed.state.tail.seq { Mode::Live } else { Mode::Reading { scan } };
        sub.look_for_text(&feed.state);
        self.go_on(key, link);
    }
}

/// Returns whether a page has a fact of this epoch at this position.
fn has(heard: &Heard, (seq, epoch): (Seq, Epoch)) -> bool {
    let n = seq.0.checked_sub(heard.after.0 + 1).and_then(|n| usize::try_from(n).ok());
    n.and_then(|n| heard.facts.get(n)).is_some_and(|(there, _)| *there == epoch)
}

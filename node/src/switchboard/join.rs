//! Starts links on a feed: from the present, from a cursor, or from a reset.
use super::Switchboard;
use super::feed::FeedStage;
use super::stats::SubscriptionStart;
use super::subscription::SubscriptionMode;
use turnway_core::id::{Cursor, LinkId, Seq, SessionKey};
use turnway_core::mutant::{Mutant, planted};
use turnway_wire::channel::authority::{ClientOperation, authorize};

impl Switchboard {
    /// Starts every waiting link. `fresh` is the end of the log as just read, and the number of the view that read
    /// it.
    pub(super) fn start_links(&mut self, key: &SessionKey, fresh: Option<(Cursor, u64)>) {
        let Some(feed) = self.feeds.get(key).filter(|feed| feed.stage == FeedStage::Live) else { return };
        let joining = feed.subs.iter().filter(|(_, sub)| matches!(sub.mode, SubscriptionMode::Joining { .. }));
        let joining = joining.map(|(link, sub)| (*link, sub.view_number));
        for (link, view_number) in joining.collect::<Vec<_>>() {
            let fresh = fresh.filter(|(_, number)| view_number < *number).map(|(tail, _)| tail);
            self.start_link(key, link, fresh);
        }
    }

    /// Starts one link. `fresh` is the end of the log as just read.
    pub(super) fn start_link(&mut self, key: &SessionKey, link: LinkId, fresh: Option<Cursor>) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        let head = feed.head();
        let principal = self.sink.links.get(link).map(|there| there.principal.clone());
        let Some(sub) = feed.subs.get_mut(&link) else { return };
        let SubscriptionMode::Joining { requested_cursor } = sub.mode.clone() else { return };
        let Some(principal) = principal else { return };
        if let Err(refusal) = authorize(&principal, ClientOperation::Read, feed.user.as_ref())
            && !planted(Mutant::ReadUnchecked)
        {
            if fresh.is_none() {
                // The link's own view answers it, as late as one of an unknown session (S-06).
                return;
            }
            let greets = std::mem::take(&mut sub.pending_requests);
            self.unsubscribe(key, link);
            return self.refuse_subscription(link, key, greets, &refusal);
        }
        let sink = &mut self.sink;
        match requested_cursor {
            None => {
                sub.cursor = head;
                sub.send_subscribed(sink, link, key, &feed.state, SubscriptionStart::Present);
                sub.follow_open_runs(&feed.state);
                sub.mode = sub.read_for_text(&feed.state);
            }
            Some((seq, _)) if seq > head.seq && fresh.is_none() => {
                if !self.view_reads.contains_key(key) {
                    self.read_state(key);
                }
                return;
            }
            // The feed must catch up first: a link must not be shown an older state than it has seen.
            Some((seq, _)) if seq > head.seq && fresh.is_some_and(|tail| seq <= tail.seq) => {
                return self.catch_up(key);
            }
            Some((seq, _)) if fresh.is_some_and(|tail| seq > tail.seq) => {
                sub.send_subscribed(sink, link, key, &feed.state, SubscriptionStart::Regressed);
                sub.start_over(&feed.state);
            }
            Some((seq, epoch)) => {
                let epoch = epoch.filter(|_| seq > Seq(0) && !planted(Mutant::CursorBare));
                sub.cursor = Cursor { seq, epoch: epoch.unwrap_or_default() };
                if seq == head.seq && epoch.is_none_or(|epoch| epoch == head.epoch) {
                    sub.cursor = head;
                    sub.send_subscribed(sink, link, key, &feed.state, SubscriptionStart::UpToDate);
                    sub.follow_open_runs(&feed.state);
                    sub.mode = sub.read_for_text(&feed.state);
                } else {
                    // Reads one fact back, to check that it is still the fact that the link has seen.
                    sub.verify = epoch.map(|epoch| (seq, epoch));
                    let back = u64::from(sub.verify.is_some());
                    sub.mode = SubscriptionMode::Reading { scan: Seq(seq.0.saturating_sub(back)) };
                }
            }
        }
        self.continue_link(key, link);
    }

    /// Starts the read that a link in its present mode needs.
    pub(super) fn continue_link(&mut self, key: &SessionKey, link: LinkId) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        let Some(sub) = feed.subs.get(&link) else { return };
        match &sub.mode {
            SubscriptionMode::Reading { scan } => {
                let scan = *scan;
                self.read_log(key, scan);
            }
            SubscriptionMode::Live => self.schedule_text_fetch(key),
            SubscriptionMode::Joining { .. } | SubscriptionMode::Paused { .. } => {}
        }
    }

    /// Continues a link that was full from its cursor.
    pub(super) fn resume_link(&mut self, key: &SessionKey, link: LinkId) {
        let Some(feed) = self.feeds.get_mut(key) else { return };
        let head = feed.head().seq;
        let Some(sub) = feed.subs.get_mut(&link) else { return };
        let SubscriptionMode::Paused { scan } = sub.mode else { return };
        sub.mode = if scan >= head { SubscriptionMode::Live } else { SubscriptionMode::Reading { scan } };
        for pos in sub.texts.values_mut() {
            pos.is_current = false;
        }
        self.continue_link(key, link);
    }
}

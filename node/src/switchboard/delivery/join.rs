//! Starts a link on a feed: from the present, from a cursor, or from a reset.
use super::feed::{Feed, FeedStage};
use super::state_reads::StateReads;
use super::subscription::SubscriptionMode;
use crate::switchboard::sink::EffectSink;
use crate::switchboard::stats::SubscriptionStart;
use turnway_core::id::{Cursor, LinkId, RequestId, Seq, SessionKey};
use turnway_core::mutant::{Mutant, planted};
use turnway_core::protocol::refusal::Refusal;
use turnway_wire::channel::authority::{ClientOperation, authorize};

/// A subscription of a link whose user may not read the session.
#[derive(Debug)]
pub(super) struct DeniedSubscription {
    pub(super) link: LinkId,
    /// The requests to answer; without any, the link is told all the same.
    pub(super) requests: Vec<Option<RequestId>>,
    pub(super) refusal: Refusal,
}

impl Feed {
    /// Returns the links that wait for the feed's state, each with the number of its view.
    pub(super) fn joining_links(&self) -> Vec<(LinkId, u64)> {
        if self.stage != FeedStage::Live {
            return Vec::new();
        }
        let joining = self.subs.iter().filter(|(_, sub)| matches!(sub.mode, SubscriptionMode::Joining { .. }));
        joining.map(|(link, sub)| (*link, sub.view_number)).collect()
    }

    /// Starts one link. `fresh` is the end of the log as just read. Returns the refusal if the link's user may not
    /// read the session; the caller removes the subscription.
    pub(super) fn start_link(
        &mut self,
        key: &SessionKey,
        link: LinkId,
        fresh: Option<Cursor>,
        reads: &mut StateReads,
        sink: &mut EffectSink,
    ) -> Option<DeniedSubscription> {
        let head = self.head();
        let principal = sink.links.get(link).map(|there| there.principal.clone());
        let sub = self.subs.get_mut(&link)?;
        let SubscriptionMode::Joining { requested_cursor } = sub.mode.clone() else { return None };
        let principal = principal?;
        if let Err(refusal) = authorize(&principal, ClientOperation::Read, self.user.as_ref())
            && !planted(Mutant::ReadUnchecked)
        {
            // Without a fresh view the link's own view answers it, as late as one of an unknown session (S-06).
            fresh?;
            let requests = std::mem::take(&mut sub.pending_requests);
            return Some(DeniedSubscription { link, requests, refusal });
        }
        match requested_cursor {
            None => {
                sub.cursor = head;
                sub.send_subscribed(sink, link, key, &self.state, SubscriptionStart::Present);
                sub.follow_open_runs(&self.state);
                sub.mode = sub.read_for_text(&self.state);
            }
            Some((seq, _)) if seq > head.seq && fresh.is_none() => {
                if !reads.is_reading(key) {
                    reads.request(key, head.seq, sink);
                }
                return None;
            }
            // The feed must catch up first: a link must not be shown an older state than it has seen.
            Some((seq, _)) if seq > head.seq && fresh.is_some_and(|tail| seq <= tail.seq) => {
                self.catch_up(key, sink);
                return None;
            }
            Some((seq, _)) if fresh.is_some_and(|tail| seq > tail.seq) => {
                sub.send_subscribed(sink, link, key, &self.state, SubscriptionStart::Regressed);
                sub.start_over(&self.state);
            }
            Some((seq, epoch)) => {
                let epoch = epoch.filter(|_| seq > Seq(0) && !planted(Mutant::CursorBare));
                sub.cursor = Cursor { seq, epoch: epoch.unwrap_or_default() };
                if seq == head.seq && epoch.is_none_or(|epoch| epoch == head.epoch) {
                    sub.cursor = head;
                    sub.send_subscribed(sink, link, key, &self.state, SubscriptionStart::UpToDate);
                    sub.follow_open_runs(&self.state);
                    sub.mode = sub.read_for_text(&self.state);
                } else {
                    // Reads one fact back, to check that it is still the fact that the link has seen.
                    sub.verify = epoch.map(|epoch| (seq, epoch));
                    let back = u64::from(sub.verify.is_some());
                    sub.mode = SubscriptionMode::Reading { scan: Seq(seq.0.saturating_sub(back)) };
                }
            }
        }
        self.continue_link(key, link, sink);
        None
    }
}

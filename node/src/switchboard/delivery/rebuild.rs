//! Rebuilds a session's state from the log if this release cannot read its snapshot. A log is read once for all who wait, one
//! page at a time: in an upgrade every node of the earlier release may have to rebuild every session.
use super::state_reads::ReadTicket;
use crate::switchboard::effect::{DeliveryCommand, OwnershipCommand, PartEffect, PresentState};
use crate::switchboard::sink::EffectSink;
use std::collections::BTreeMap;
use turnway_core::id::{FenceToken, Seq, SessionKey};
use turnway_core::limits;
use turnway_core::session::State;
use turnway_core::store::{FactPage, Op, SessionView};

/// The rebuilds in progress, by session.
#[derive(Debug, Default)]
pub(super) struct Rebuilds(BTreeMap<SessionKey, Rebuild>);

/// The state of a session after the facts that were read so far, and who waits for it.
#[derive(Debug, Default)]
struct Rebuild {
    state: State,
    /// At most one for the feed and one for each claim: a later reading answers the earlier one, too.
    waiting: Vec<RebuildWaiter>,
}

/// A feed, or (with a token) an owner, that waits for the state at the end of its view.
#[derive(Debug)]
struct RebuildWaiter {
    owner_token: Option<FenceToken>,
    ticket: ReadTicket,
    view: SessionView,
}

impl Rebuilds {
    /// Starts a rebuild, for an owner if `owner_token` is given, or joins the one in progress.
    pub(super) fn start(
        &mut self,
        key: &SessionKey,
        owner_token: Option<FenceToken>,
        view: SessionView,
        ticket: ReadTicket,
        sink: &mut EffectSink,
    ) {
        sink.stats.snapshots_unreadable += 1;
        let waiter = RebuildWaiter { owner_token, ticket, view };
        if waiter.view.floor > Seq(0) {
            return waiter.give_up(key, sink);
        }
        if !self.0.contains_key(key) {
            read_page(key, Seq(0), sink);
        }
        let rebuild = self.0.entry(key.clone()).or_default();
        rebuild.waiting.retain(|other| other.owner_token != waiter.owner_token);
        rebuild.waiting.push(waiter);
        // The facts up to the end of the view may have been read for another waiter.
        self.finish(key, sink);
    }

    /// Drops the rebuilds of a session with damaged records.
    pub(super) fn drop_session(&mut self, key: &SessionKey) {
        self.0.remove(key);
    }

    /// Applies a page that was read after a position, if the rebuild waits for it.
    pub(super) fn apply_page(&mut self, key: &SessionKey, after: Seq, page: &FactPage, sink: &mut EffectSink) {
        let Some(rebuild) = self.0.get_mut(key).filter(|rebuild| rebuild.state.tail.seq == after) else { return };
        if page.after > after || page.facts.is_empty() {
            // Facts were trimmed meanwhile, or the log ends before the views: the store has lost writes.
            return self.start_over(key, page, sink);
        }
        for (epoch, entry) in &page.facts {
            rebuild.state.apply(*epoch, entry);
            rebuild.finish_waiters(key, sink);
        }
        if !self.finish(key, sink)
            && let Some(rebuild) = self.0.get(key)
        {
            read_page(key, rebuild.state.tail.seq, sink);
        }
    }

    /// Ends a rebuild that nobody waits for any more. Returns whether it has ended.
    fn finish(&mut self, key: &SessionKey, sink: &mut EffectSink) -> bool {
        let Some(rebuild) = self.0.get_mut(key) else { return true };
        rebuild.finish_waiters(key, sink);
        let is_over = rebuild.waiting.is_empty();
        if is_over {
            self.0.remove(key);
        }
        is_over
    }

    /// Ends a rebuild whose log is not as the views say: what they say is read again, unless the log has been trimmed.
    fn start_over(&mut self, key: &SessionKey, page: &FactPage, sink: &mut EffectSink) {
        for waiter in self.0.remove(key).into_iter().flat_map(|rebuild| rebuild.waiting) {
            match waiter.owner_token {
                _ if page.floor > Seq(0) => waiter.give_up(key, sink),
                Some(token) => sink.push(OwnershipCommand::Reload { key: key.clone(), token }),
                None => sink.push(DeliveryCommand::ReadState(key.clone())),
            }
        }
    }
}

impl Rebuild {
    /// Gives the state to the waiters whose views end at or before it. A feed takes a later state as well; the log of an
    /// owner does not grow until it has the state.
    fn finish_waiters(&mut self, key: &SessionKey, sink: &mut EffectSink) {
        let tail = self.state.tail;
        let (ready, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiter: &RebuildWaiter| waiter.view.tail.seq <= tail.seq);
        self.waiting = waiting;
        let ready: Vec<RebuildWaiter> = ready;
        for RebuildWaiter { owner_token, ticket, mut view } in ready {
            let key = key.clone();
            let state = self.state.clone();
            sink.push(match owner_token {
                Some(token) => OwnershipCommand::StartOwning { key, token, state: Box::new(state) }.into(),
                None => {
                    view.tail = tail;
                    PartEffect::PresentState(Box::new(PresentState { key, view, state, ticket }))
                }
            });
        }
    }
}

impl RebuildWaiter {
    /// Gives up: the facts behind the snapshot have been trimmed, and only a release that can read it can help.
    fn give_up(self, key: &SessionKey, sink: &mut EffectSink) {
        sink.stats.abandoned += 1;
        if self.owner_token.is_some() {
            sink.push(OwnershipCommand::Drop(key.clone()));
        }
    }
}

fn read_page(key: &SessionKey, after: Seq, sink: &mut EffectSink) {
    sink.store(Op::Read { key: key.clone(), after, limit: limits::READ_FACTS_MAX });
}

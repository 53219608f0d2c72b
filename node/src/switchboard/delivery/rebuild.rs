//! Rebuilds a session's state from the log if this release cannot read its snapshot.
use super::state_reads::ReadTicket;
use crate::switchboard::effect::{OwnershipCommand, PartEffect, PresentState};
use crate::switchboard::sink::EffectSink;
use std::collections::BTreeMap;
use turnway_core::id::{FenceToken, Seq, SessionKey};
use turnway_core::limits;
use turnway_core::session::State;
use turnway_core::store::{FactPage, Op, SessionView};

/// The rebuilds in progress, by session.
#[derive(Debug, Default)]
pub(super) struct Rebuilds(BTreeMap<SessionKey, Vec<Rebuild>>);

/// A rebuild in progress, for a feed or (with a token) for an owner.
#[derive(Debug)]
struct Rebuild {
    owner_token: Option<FenceToken>,
    ticket: ReadTicket,
    view: SessionView,
    state: State,
}

impl Rebuilds {
    /// Starts a rebuild, for an owner if `owner_token` is given.
    pub(super) fn start(
        &mut self,
        key: &SessionKey,
        owner_token: Option<FenceToken>,
        view: SessionView,
        ticket: ReadTicket,
        sink: &mut EffectSink,
    ) {
        sink.stats.snapshots_unreadable += 1;
        if view.floor > Seq(0) {
            // The facts behind the snapshot have been trimmed: only a release that can read the snapshot can help.
            sink.stats.abandoned += 1;
            if owner_token.is_some() {
                sink.push(OwnershipCommand::Drop(key.clone()));
            }
            return;
        }
        let rebuild = Rebuild { owner_token, ticket, view, state: State::default() };
        self.0.entry(key.clone()).or_default().push(rebuild);
        sink.store(Op::Read { key: key.clone(), after: Seq(0), limit: limits::READ_FACTS_MAX });
    }

    /// Drops the rebuilds of a session with damaged records.
    pub(super) fn drop_session(&mut self, key: &SessionKey) {
        self.0.remove(key);
    }

    /// Applies a page to the rebuilds that wait for it.
    pub(super) fn apply_page(&mut self, key: &SessionKey, page: &FactPage, sink: &mut EffectSink) {
        let Some(rebuilds) = self.0.remove(key) else { return };
        for mut rebuild in rebuilds {
            if rebuild.state.tail.seq == page.after {
                for (epoch, entry) in &page.facts {
                    if rebuild.state.tail.seq < rebuild.view.tail.seq {
                        rebuild.state.apply(*epoch, entry);
                    }
                }
            }
            if rebuild.state.tail.seq >= rebuild.view.tail.seq {
                let Rebuild { owner_token, ticket, view, state } = rebuild;
                let key = key.clone();
                sink.push(match owner_token {
                    Some(token) => OwnershipCommand::StartOwning { key, token, state: Box::new(state) }.into(),
                    None => PartEffect::PresentState(Box::new(PresentState { key, view, state, ticket })),
                });
            } else {
                let after = rebuild.state.tail.seq;
                self.0.entry(key.clone()).or_default().push(rebuild);
                sink.store(Op::Read { key: key.clone(), after, limit: limits::READ_FACTS_MAX });
            }
        }
    }
}

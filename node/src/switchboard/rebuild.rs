//! Rebuilds a session's state from the log if this release cannot read its snapshot.
use super::Switchboard;
use super::state_reads::ReadTicket;
use turnway_core::id::{FenceToken, Seq, SessionKey};
use turnway_core::limits;
use turnway_core::session::State;
use turnway_core::store::{FactPage, Op, SessionView};
use turnway_core::time::Now;

/// A rebuild in progress, for a feed or (with a token) for an owner.
#[derive(Debug)]
pub(super) struct Rebuild {
    owner_token: Option<FenceToken>,
    asked: ReadTicket,
    view: SessionView,
    state: State,
}

impl Switchboard {
    pub(super) fn start_rebuild(
        &mut self,
        key: &SessionKey,
        by: Option<FenceToken>,
        view: SessionView,
        ticket: ReadTicket,
    ) {
        self.sink.stats.snapshots_unreadable += 1;
        if view.floor > Seq(0) {
            // The facts behind the snapshot have been trimmed: only a release that can read the snapshot can help.
            self.sink.stats.abandoned += 1;
            if by.is_some() {
                self.drop_owned_session(key);
            }
            return;
        }
        let rebuild = Rebuild { owner_token: by, asked: ticket, view, state: State::default() };
        self.rebuilds.entry(key.clone()).or_default().push(rebuild);
        self.sink.store(Op::Read { key: key.clone(), after: Seq(0), limit: limits::READ_FACTS_MAX });
    }

    /// Applies a page to the rebuilds that wait for it.
    pub(super) fn apply_page_to_rebuilds(&mut self, now: Now, key: &SessionKey, page: &FactPage) {
        let Some(rebuilds) = self.rebuilds.remove(key) else { return };
        for mut rebuild in rebuilds {
            if rebuild.state.tail.seq == page.after {
                for (epoch, entry) in &page.facts {
                    if rebuild.state.tail.seq < rebuild.view.tail.seq {
                        rebuild.state.apply(*epoch, entry);
                    }
                }
            }
            if rebuild.state.tail.seq >= rebuild.view.tail.seq {
                match rebuild.owner_token {
                    Some(token) => self.start_owning(now, key, token, rebuild.state),
                    None => self.handle_state(now, key, &rebuild.view, rebuild.state, rebuild.asked),
                }
            } else {
                let after = rebuild.state.tail.seq;
                self.rebuilds.entry(key.clone()).or_default().push(rebuild);
                self.sink.store(Op::Read { key: key.clone(), after, limit: limits::READ_FACTS_MAX });
            }
        }
    }
}

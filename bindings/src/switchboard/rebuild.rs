//! Rebuilds a session's state from the log if this release cannot read its snapshot.
use super::Switchboard;
use super::view::Asked;
use turnway_core::id::{Seq, SessionKey, Token};
use turnway_core::limits;
use turnway_core::session::State;
use turnway_core::store::{Heard, Op, View};
use turnway_core::time::Now;

/// A rebuild in progress, for a feed or (with a token) for an owner.
#[derive(Debug)]
pub(super) struct Rebuild {
    by: Option<Token>,
    asked: Asked,
    view: View,
    state: State,
}

impl Switchboard {
    pub(super) fn rebuild(&mut self, key: &SessionKey, by: Option<Token>, view: View, asked: Asked) {
        self.stats.snapshots_unreadable += 1;
        if view.floor > Seq(0) {
            // The facts behind the snapshot have been trimmed: only a release that can read the snapshot can help.
            self.stats.abandoned += 1;
            if by.is_some() {
                self.drop_seat(key);
            }
            return;
        }
        let rebuild = Rebuild { by, asked, view, state: State::default() };
        self.rebuilds.entry(key.clone()).or_default().push(rebuild);
        self.store(Op::Read { key: key.clone(), after: Seq(0), limit: limits::READ_FACTS_MAX });
    }

    /// Applies a page to the rebuilds that wait for it.
    pub(super) fn rebuild_page(&mut self, now: Now, key: &SessionKey, heard: &Heard) {
        let Some(rebuilds) = self.rebuilds.remove(key) else { return };
        for mut rebuild in rebuilds {
            if rebuild.state.tail.seq == heard.after {
                for (epoch, entry) in &heard.facts {
                    if rebuild.state.tail.seq < rebuild.view.tail.seq {
                        rebuild.state.apply(*epoch, entry);
                    }
                }
            }
            if rebuild.state.tail.seq >= rebuild.view.tail.seq {
                match rebuild.by {
                    Some(token) => self.own(now, key, token, rebuild.state),
                    None => self.known(now, key, &rebuild.view, rebuild.state, rebuild.asked),
                }
            } else {
                let after = rebuild.state.tail.seq;
                self.rebuilds.entry(key.clone()).or_default().push(rebuild);
                self.store(Op::Read { key: key.clone(), after, limit: limits::READ_FACTS_MAX });
            }
        }
    }
}

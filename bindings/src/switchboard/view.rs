//! Reading a session's present state: one read at a time, so that no answer is older than its question.
use super::Switchboard;
use super::feed::state_of;
use turnway_core::id::{Seq, SessionKey};
use turnway_core::store::{Op, View};
use turnway_core::time::Now;

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Viewing {
    /// Where this node knew the log to end when it asked.
    since: Seq,
    /// Somebody has asked since.
    again: bool,
}

impl Switchboard {
    /// Asks for a session's present state, as it is from now on.
    pub(super) fn view(&mut self, key: &SessionKey) {
        if let Some(viewing) = self.viewing.get_mut(key) {
            viewing.again = true;
            return;
        }
        let since = self.feeds.get(key).map_or(Seq(0), |feed| feed.head().seq);
        self.viewing.insert(key.clone(), Viewing { since, again: false });
        self.store(Op::Open { key: key.clone(), reader: None });
    }

    /// A session's present state was read.
    pub(super) fn viewed(&mut self, now: Now, key: &SessionKey, view: View) {
        let Some(viewing) = self.viewing.remove(key) else { return };
        if viewing.again {
            return self.view(key);
        }
        match state_of(&view) {
            Some(state) => self.known(now, key, &view, state, viewing.since),
            None => self.rebuild(key, None, view),
        }
    }
}

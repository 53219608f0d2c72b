//! Reading a session's present state: one read at a time, so that no answer is older than its question.
use super::Switchboard;
use super::feed::state_of;
use turnway_core::id::{Seq, SessionKey};
use turnway_core::store::{Op, View};
use turnway_core::time::Now;

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Viewing {
    /// Its number: it answers those whose question has a lower one.
    pub(super) number: u64,
    /// Where this node knew the log to end when it asked.
    since: Seq,
    /// Somebody has asked since.
    again: bool,
}

/// When a state was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// It answers questions of lower numbers.
    pub(super) number: u64,
    /// Where this node knew the log to end then.
    pub(super) since: Seq,
}

impl Switchboard {
    /// What a question asked now is numbered: only a read that sets out later answers it.
    pub(super) fn view_number(&self, key: &SessionKey) -> u64 {
        self.viewing.get(key).map_or(self.views_made, |viewing| viewing.number)
    }

    /// Asks for a session's present state, as it is from now on.
    pub(super) fn view(&mut self, key: &SessionKey) {
        if let Some(viewing) = self.viewing.get_mut(key) {
            viewing.again = true;
            return;
        }
        let since = self.feeds.get(key).map_or(Seq(0), |feed| feed.head().seq);
        self.views_made += 1;
        self.viewing.insert(key.clone(), Viewing { number: self.views_made, since, again: false });
        self.store(Op::Open { key: key.clone() });
    }

    /// A session's present state was read.
    pub(super) fn viewed(&mut self, now: Now, key: &SessionKey, view: View) {
        let Some(viewing) = self.viewing.remove(key) else { return };
        if viewing.again {
            self.view(key);
        }
        let Viewing { number, since, .. } = viewing;
        match state_of(&view) {
            Some(state) => self.known(now, key, &view, state, Asked { number, since }),
            None => self.rebuild(key, None, view, Asked { number, since }),
        }
    }
}

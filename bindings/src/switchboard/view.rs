//! Reads of a session's present state: one at a time, so that no reply is older than its request.
use super::Switchboard;
use super::feed::state_of;
use turnway_core::id::{Seq, SessionKey};
use turnway_core::store::{Op, View};
use turnway_core::time::Now;

/// A read in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Viewing {
    /// The read's number; it answers requests with lower numbers.
    pub(super) number: u64,
    /// The known end of the log when the read started.
    since: Seq,
    /// Another request has arrived since.
    again: bool,
}

/// The time of a read, as a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The read answers requests with lower numbers.
    pub(super) number: u64,
    /// The known end of the log when the read started.
    pub(super) since: Seq,
}

impl Switchboard {
    /// Returns the number for a request made now; only a later read answers it.
    pub(super) fn view_number(&self, key: &SessionKey) -> u64 {
        self.viewing.get(key).map_or(self.views_made, |viewing| viewing.number)
    }

    /// Requests a session's present state, as of now or later.
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

    /// Handles the reply of a read.
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

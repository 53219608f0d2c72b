//! Reads of a session's present state: one at a time, so that no reply is older than its request.
use super::Switchboard;
use super::feed::state_of;
use turnway_core::id::{Seq, SessionKey};
use turnway_core::store::{Op, SessionView};
use turnway_core::time::Now;

/// A read in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateRead {
    /// The read's number; it answers requests with lower numbers.
    pub(super) number: u64,
    /// The known end of the log when the read started.
    known_end: Seq,
    /// Another request has arrived since.
    requested_again: bool,
}

/// The time of a read, as a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadTicket {
    /// The read answers requests with lower numbers.
    pub(super) number: u64,
    /// The known end of the log when the read started.
    pub(super) known_end: Seq,
}

impl Switchboard {
    /// Returns the number for a request made now; only a later read answers it.
    pub(super) fn view_number(&self, key: &SessionKey) -> u64 {
        self.view_reads.get(key).map_or(self.view_count, |viewing| viewing.number)
    }

    /// Requests a session's present state, as of now or later.
    pub(super) fn read_state(&mut self, key: &SessionKey) {
        if let Some(viewing) = self.view_reads.get_mut(key) {
            viewing.requested_again = true;
            return;
        }
        let since = self.feeds.get(key).map_or(Seq(0), |feed| feed.head().seq);
        self.view_count += 1;
        self.view_reads
            .insert(key.clone(), StateRead { number: self.view_count, known_end: since, requested_again: false });
        self.sink.store(Op::ReadView { key: key.clone() });
    }

    /// Handles the reply of a read.
    pub(super) fn handle_state_read(&mut self, now: Now, key: &SessionKey, view: SessionView) {
        let Some(viewing) = self.view_reads.remove(key) else { return };
        if viewing.requested_again {
            self.read_state(key);
        }
        let StateRead { number, known_end: since, .. } = viewing;
        match state_of(&view) {
            Some(state) => self.handle_state(now, key, &view, state, ReadTicket { number, known_end: since }),
            None => self.start_rebuild(key, None, view, ReadTicket { number, known_end: since }),
        }
    }
}

//! Reads of a session's present state: one at a time, so that no reply is older than its request.
use crate::switchboard::sink::EffectSink;
use std::collections::BTreeMap;
use turnway_core::id::{Seq, SessionKey};
use turnway_core::session::State;
use turnway_core::store::{Op, SessionView};

/// The reads of sessions' states that are in flight.
#[derive(Debug, Default)]
pub(in crate::switchboard) struct StateReads {
    reads: BTreeMap<SessionKey, StateRead>,
    /// Number of the last read.
    count: u64,
}

/// A read in flight.
#[derive(Clone, Copy, Debug)]
struct StateRead {
    ticket: ReadTicket,
    /// Another request has arrived since.
    requested_again: bool,
}

/// The time of a read, as a number.
#[derive(Clone, Copy, Debug)]
pub(in crate::switchboard) struct ReadTicket {
    /// The read answers requests with lower numbers.
    pub(in crate::switchboard) number: u64,
    /// The known end of the log when the read started.
    pub(in crate::switchboard) known_end: Seq,
}

impl StateReads {
    /// Returns the number for a request made now; only a later read answers it.
    pub(in crate::switchboard) fn number(&self, key: &SessionKey) -> u64 {
        self.reads.get(key).map_or(self.count, |read| read.ticket.number)
    }

    pub(in crate::switchboard) fn is_reading(&self, key: &SessionKey) -> bool {
        self.reads.contains_key(key)
    }

    /// Requests a session's present state, as of now or later.
    pub(in crate::switchboard) fn request(&mut self, key: &SessionKey, known_end: Seq, sink: &mut EffectSink) {
        if let Some(read) = self.reads.get_mut(key) {
            read.requested_again = true;
            return;
        }
        self.count += 1;
        let ticket = ReadTicket { number: self.count, known_end };
        self.reads.insert(key.clone(), StateRead { ticket, requested_again: false });
        sink.store(Op::ReadView { key: key.clone() });
    }

    /// Ends a read. Returns its ticket, and whether another read must follow.
    pub(in crate::switchboard) fn end(&mut self, key: &SessionKey) -> Option<(ReadTicket, bool)> {
        self.reads.remove(key).map(|read| (read.ticket, read.requested_again))
    }
}

/// Returns the state of a view; `None` if its snapshot cannot be read.
pub(in crate::switchboard) fn state_of(view: &SessionView) -> Option<State> {
    let mut state = match &view.snapshot {
        Some(snapshot) => State::from_snapshot(&snapshot.state).ok()?,
        None => State::default(),
    };
    for (epoch, entry) in &view.facts {
        state.apply(*epoch, entry);
    }
    Some(state)
}

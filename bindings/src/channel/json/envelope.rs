//! A fact as `GET …/events` shows it: the envelope it lies in the log in, a CloudEvents 1.0 shape.
use turnway_core::id::{Cursor, SessionId};
use turnway_core::protocol::entry::{Entry, Envelope};

/// One fact with its place, as compact JSON.
pub fn envelope(session: &SessionId, at: Cursor, entry: &Entry) -> String {
    let (specversion, session_id) = ("1.0".to_owned(), session.as_str().to_owned());
    let Cursor { seq, epoch } = at;
    // Facts have string keys and finite numbers only, so they always serialise.
    serde_json::to_string(&Envelope { specversion, session_id, seq, epoch, entry }).unwrap_or_default()
}

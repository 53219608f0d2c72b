//! A fact as `GET …/events` returns it: the stored envelope, in CloudEvents 1.0 shape.
use turnway_core::id::{Cursor, SessionId};
use turnway_core::protocol::entry::Entry;

/// Returns one fact with its log position as compact JSON.
pub fn envelope(session: &SessionId, at: Cursor, entry: &Entry) -> String {
    // Facts have string keys and finite numbers only, so they always serialise.
    serde_json::to_string(&entry.with_position(session, at.seq, at.epoch)).unwrap_or_default()
}

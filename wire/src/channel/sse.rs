//! Server-sent events for HTTP requests: a turn's messages ([`turn`]), or the facts of a log ([`log`]).
//! `data:` is the JSON of a link's message. `id:` is the reader's position ([`cursor`]); a reader that sends it
//! back receives the rest without repetition.
pub mod cursor;
pub mod log;
pub mod turn;

pub use cursor::TurnCursor;
pub use log::LogStream;
pub use turn::TurnStream;

/// A comment that keeps idle connections open through proxies.
pub const HEARTBEAT: &str = ":\n\n";

/// Appends an event with a name and without an `id:`, so the reader's position stays.
fn push_named_event(to: &mut String, name: &str, data: &str) {
    to.push_str("event: ");
    to.push_str(name);
    to.push('\n');
    push_event(to, None, data);
}

/// Appends one event. `data` is compact JSON, which has no line breaks.
pub fn push_event(to: &mut String, id: Option<&str>, data: &str) {
    if let Some(id) = id {
        to.push_str("id: ");
        to.push_str(id);
        to.push('\n');
    }
    to.push_str("data: ");
    to.push_str(data);
    to.push_str("\n\n");
}

//! What an HTTP request is shown of a session, as server-sent events.
//!
//! Of a turn it is shown the messages of `turnway.v1`, of a log its facts. A message is the same JSON as on a link, one `data:` line each. `id:` says how far a reader is; who
//! gives it back gets the rest and nothing twice.
//!
//! - [`turn`]: what of a session belongs to one turn, cut at where the reader is.
//! - [`log`]: the facts of a session, or of one turn, whose type is asked for.
//! - [`cursor`]: where a reader of a turn is.
pub mod cursor;
pub mod log;
pub mod turn;

pub use cursor::Cursor;
pub use log::Log;
pub use turn::Turn;

/// Something to say while there is nothing to say, so that nobody in between hangs up.
pub const HEARTBEAT: &str = ":\n\n";

/// Appends one event that has a name and moves no reader.
fn named(to: &mut String, name: &str, data: &str) {
    to.push_str("event: ");
    to.push_str(name);
    to.push('\n');
    event(to, None, data);
}

/// Appends one event. `data` is compact JSON, which has no line breaks.
pub fn event(to: &mut String, id: Option<&str>, data: &str) {
    if let Some(id) = id {
        to.push_str("id: ");
        to.push_str(id);
        to.push('\n');
    }
    to.push_str("data: ");
    to.push_str(data);
    to.push_str("\n\n");
}

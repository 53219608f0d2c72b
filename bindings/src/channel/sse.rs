//! `turnway.v1` as server-sent events: the messages of one turn, for one HTTP request.
//!
//! A message is the same JSON as on a link, one `data:` line each. `id:` says how far a reader is; who
//! gives it back gets the rest and nothing twice.
//!
//! - [`turn`]: what of a session belongs to one turn, cut at where the reader is.
//! - [`cursor`]: where a reader is.
pub mod cursor;
pub mod turn;

pub use cursor::Cursor;
pub use turn::Turn;

/// Something to say while there is nothing to say, so that nobody in between hangs up.
pub const HEARTBEAT: &str = ":\n\n";

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

//! What people and scripts read. A load does not fail because nobody does.
use std::io::Write;

/// Figures and addresses, on stdout.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Progress and trouble, on stderr.
pub fn complain(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

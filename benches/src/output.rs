//! Prints to stdout and stderr. A load does not fail because the reader has gone.
use std::io::Write;

/// Prints figures and addresses on stdout.
pub fn print_stdout(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints progress and errors on stderr.
pub fn print_stderr(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

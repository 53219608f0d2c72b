//! `turnway version`: which build this is.
use super::{Exit, say};

/// Prints it.
pub fn run() -> Exit {
    say(concat!("turnway ", env!("CARGO_PKG_VERSION"), "\n"));
    Exit::Fine
}

//! Lines that fit under each other.
use std::io::IsTerminal;

/// What others say must not move a person's cursor or rename their window. In a file or a pipe it is
/// left as it is.
pub(super) fn visible(text: &str) -> String {
    if std::io::stdout().is_terminal() { harmless(text) } else { text.to_owned() }
}

/// Without what commands a terminal.
pub(super) fn harmless(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}")
}

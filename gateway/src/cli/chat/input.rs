//! Reads lines from a terminal or a pipe. Called by the chat; does not interpret the lines.
use std::io::BufRead;
use tokio::sync::mpsc;
use turnway_core::limits::CHAT_LINES_MAX;

/// An input of the chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TerminalInput {
    /// A complete line.
    Line(String),
    /// Ctrl-C in the editor, where the terminal sends no signal.
    Interrupt {
        /// The user was typing a line, which is discarded.
        had_text: bool,
    },
    /// A message of the editor to the user.
    Remark(String),
}

/// Reads lines of the standard input, on a thread of its own: a blocking read that cannot be interrupted must
/// not keep the process from ending.
pub(super) fn read_lines() -> mpsc::Receiver<TerminalInput> {
    let (sender, lines) = mpsc::channel(CHAT_LINES_MAX);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.blocking_send(TerminalInput::Line(line)).is_err() {
                break;
            }
        }
    });
    lines
}

//! Where lines come from: a person's terminal or a pipe. Called by the chat; knows nothing of what they say.
use std::io::BufRead;
use tokio::sync::mpsc;
use turnway_core::limits::CHAT_LINES_MAX;

/// Something that a person does, or a pipe has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// A line.
    Line(String),
    /// Ctrl-C in the editor, where the terminal sends no signal for it.
    Interrupt {
        /// A line was being typed, and is dropped.
        had_text: bool,
    },
    /// A remark of the editor, for the person.
    Remark(String),
}

/// Reads lines of the standard input. A thread of its own: a read that nobody can interrupt must not keep the process
/// from ending.
pub(super) fn read_lines() -> mpsc::Receiver<Typed> {
    let (sender, lines) = mpsc::channel(CHAT_LINES_MAX);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.blocking_send(Typed::Line(line)).is_err() {
                break;
            }
        }
    });
    lines
}

//! What a chat shows, line by line.
use crate::cli::{complain, say};
use std::io::IsTerminal;

/// Where the cursor stands.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Start,
    Prompt,
    Answer(String),
}

/// A terminal, a file or a pipe.
#[derive(Debug)]
pub(super) struct Screen {
    /// Somebody looks at it.
    terminal: bool,
    line: Line,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { terminal: std::io::stdout().is_terminal(), line: Line::Start }
    }

    /// Somebody has pressed enter.
    pub(super) fn entered(&mut self) {
        self.line = Line::Start;
    }

    /// Goes to the start of a line.
    pub(super) fn fresh_line(&mut self) {
        match std::mem::replace(&mut self.line, Line::Start) {
            Line::Start => {}
            Line::Prompt | Line::Answer(_) => say("\n"),
        }
    }

    /// Invites to type.
    pub(super) fn prompt(&mut self) {
        if self.line == Line::Start {
            say("> ");
            self.line = Line::Prompt;
        }
    }

    /// A line of the conversation.
    pub(super) fn print(&mut self, text: &str) {
        self.fresh_line();
        say(&self.clean(text));
        say("\n");
    }

    /// About the conversation, not part of it: in a file or a pipe it breaks no answer in two.
    pub(super) fn aside(&mut self, text: &str) {
        if self.terminal {
            self.fresh_line();
        }
        complain(&format!("[{}]\n", self.clean(text)));
    }

    /// More of an answer.
    pub(super) fn stream(&mut self, run: &str, agent: &str, text: &str) {
        if !self.is_answer(run) {
            self.fresh_line();
            say(&format!("{agent}: "));
            self.line = Line::Answer(run.to_owned());
        }
        say(&self.clean(text));
    }

    /// What was shown of this answer does not count.
    pub(super) fn void(&mut self, run: &str) {
        if self.is_answer(run) {
            say(" [starts again]");
            self.fresh_line();
        }
    }

    fn is_answer(&self, run: &str) -> bool {
        matches!(&self.line, Line::Answer(answer) if answer == run)
    }

    /// What others say must not move a person's cursor or rename their window.
    fn clean(&self, text: &str) -> String {
        let harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
        if self.terminal { text.replace(harmful, "\u{fffd}") } else { text.to_owned() }
    }
}

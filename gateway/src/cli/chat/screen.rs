//! What a chat shows, line by line.
use crate::cli::table::harmless;
use crate::cli::{Trouble, complain, say};
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
    /// Why nothing can be shown any more.
    over: Option<Trouble>,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { terminal: std::io::stdout().is_terminal(), line: Line::Start, over: None }
    }

    /// Whether there is nobody to show anything to any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Why, in the end.
    pub(super) fn ended(&self) -> Result<(), Trouble> {
        self.over.clone().map_or(Ok(()), Err)
    }

    fn say(&mut self, text: &str) {
        if let Err(trouble) = say(text) {
            self.over.get_or_insert(trouble);
        }
    }

    /// Somebody has pressed enter.
    pub(super) fn entered(&mut self) {
        self.line = Line::Start;
    }

    /// Goes to the start of a line.
    pub(super) fn fresh_line(&mut self) {
        match std::mem::replace(&mut self.line, Line::Start) {
            Line::Start => {}
            Line::Prompt | Line::Answer(_) => self.say("\n"),
        }
    }

    /// Invites to type.
    pub(super) fn prompt(&mut self) {
        if self.line == Line::Start {
            self.say("> ");
            self.line = Line::Prompt;
        }
    }

    /// A line of the conversation.
    pub(super) fn print(&mut self, text: &str) {
        self.fresh_line();
        let text = self.clean(text);
        self.say(&text);
        self.say("\n");
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
            self.say(&format!("{agent}: "));
            self.line = Line::Answer(run.to_owned());
        }
        let text = self.clean(text);
        self.say(&text);
    }

    /// What was shown of this answer does not count.
    pub(super) fn void(&mut self, run: &str) {
        if self.is_answer(run) {
            self.say(" [starts again]");
            self.fresh_line();
        }
    }

    fn is_answer(&self, run: &str) -> bool {
        matches!(&self.line, Line::Answer(answer) if answer == run)
    }

    /// What others say must not move a person's cursor or rename their window.
    fn clean(&self, text: &str) -> String {
        if self.terminal { harmless(text) } else { text.to_owned() }
    }
}

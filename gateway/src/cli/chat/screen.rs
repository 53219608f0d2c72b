//! What a chat shows, line by line.
use super::input::{Typed, read_lines};
use super::terminal::{PROMPT, Terminal};
use crate::cli::table::harmless;
use crate::cli::{Trouble, complain, say};
use std::io::{self, IsTerminal};
use tokio::sync::mpsc;

/// Where the cursor stands.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Start,
    Prompt,
    Answer {
        /// Which.
        run: String,
        /// It ended with a line so far.
        is_fresh: bool,
    },
}

/// A terminal, a file or a pipe.
#[derive(Debug)]
pub(super) struct Screen {
    /// Somebody looks at it.
    terminal: bool,
    /// Lines are edited in it, below what is shown.
    editing: Option<Terminal>,
    line: Line,
    /// Why nothing can be shown any more.
    over: Option<Trouble>,
}

impl Screen {
    /// Takes the terminal, where there is one; these words are completed in it.
    pub(super) fn new(words: Vec<String>) -> Self {
        let (terminal, editing) = (io::stdout().is_terminal(), Terminal::open(words));
        Self { terminal, editing, line: Line::Start, over: None }
    }

    /// Begins to read lines: with an editor, or as they come.
    pub(super) fn read(&mut self) -> mpsc::Receiver<Typed> {
        let begun = self.editing.as_ref().map(Terminal::begin);
        if let Some(Ok(typed)) = begun {
            return typed;
        }
        if let Some(Err(error)) = begun {
            self.editing = None;
            self.aside(&format!("lines cannot be edited here: {error}"));
        }
        read_lines()
    }

    /// Gives the terminal back, with everything shown.
    pub(super) fn close(&mut self) {
        self.fresh_line();
        self.editing = None;
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
        let lost = |error: io::Error| Trouble::Failed(format!("cannot write to the terminal: {error}"));
        let shown = match &self.editing {
            Some(terminal) => terminal.write(text).map_err(lost),
            None => say(text),
        };
        if let Err(trouble) = shown {
            self.over.get_or_insert(trouble);
        }
    }

    /// Somebody has entered a line. One that was edited is shown like all text.
    pub(super) fn entered(&mut self, line: &str) {
        if self.editing.is_some() {
            self.print(&format!("{PROMPT}{line}"));
        }
        self.line = Line::Start;
    }

    /// Goes to the start of a line.
    pub(super) fn fresh_line(&mut self) {
        match std::mem::replace(&mut self.line, Line::Start) {
            Line::Start | Line::Answer { is_fresh: true, .. } => {}
            Line::Prompt | Line::Answer { is_fresh: false, .. } => self.say("\n"),
        }
    }

    /// Invites to type; an editor does so by itself.
    pub(super) fn prompt(&mut self) {
        if self.line == Line::Start && self.editing.is_none() {
            self.say(PROMPT);
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
        if self.editing.is_some() && io::stderr().is_terminal() {
            return self.print(&format!("[{text}]"));
        }
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
        }
        let text = self.clean(text);
        self.say(&text);
        self.line = Line::Answer { run: run.to_owned(), is_fresh: text.ends_with('\n') };
    }

    /// What was shown of this answer does not count.
    pub(super) fn void(&mut self, run: &str) {
        if self.is_answer(run) {
            self.say(" [starts again]");
            self.fresh_line();
        }
    }

    fn is_answer(&self, run: &str) -> bool {
        matches!(&self.line, Line::Answer { run: answer, .. } if answer == run)
    }

    /// What others say must not move a person's cursor or rename their window.
    fn clean(&self, text: &str) -> String {
        if self.terminal { harmless(text) } else { text.to_owned() }
    }
}

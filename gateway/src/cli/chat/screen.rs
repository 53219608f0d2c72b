//! Prints a chat to a terminal, a file or a pipe, and keeps track of the cursor's line.
use super::input::{Typed, read_lines};
use super::terminal::{PROMPT, Terminal};
use crate::cli::table::harmless;
use crate::cli::{Trouble, complain, say};
use std::io::{self, IsTerminal};
use tokio::sync::mpsc;

/// Position of the cursor: at the start of a line, behind the prompt, or in an answer.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Start,
    Prompt,
    Answer {
        /// Run id.
        run: String,
        /// The text so far ends with a newline.
        is_fresh: bool,
    },
}

/// The output of a chat.
#[derive(Debug)]
pub(super) struct Screen {
    /// Stdout is a terminal.
    terminal: bool,
    /// The line editor, if stdin and stdout allow one; output appears above the edited line.
    editing: Option<Terminal>,
    line: Line,
    /// The first error of writing; nothing is printed after it.
    over: Option<Trouble>,
}

impl Screen {
    /// Takes over the terminal, if there is one; the editor completes these words.
    pub(super) fn new(words: Vec<String>) -> Self {
        let (terminal, editing) = (io::stdout().is_terminal(), Terminal::open(words));
        Self { terminal, editing, line: Line::Start, over: None }
    }

    /// Starts reading lines, with the editor if there is one.
    pub(super) fn read(&mut self) -> mpsc::Receiver<Typed> {
        let begun = self.editing.as_ref().map(Terminal::begin);
        if let Some(Ok(typed)) = begun {
            return typed;
        }
        if let Some(Err(error)) = begun {
            self.editing = None;
            self.aside(&format!("line editing is not available: {error}"));
        }
        read_lines()
    }

    /// Finishes the last line and restores the terminal.
    pub(super) fn close(&mut self) {
        self.fresh_line();
        self.editing = None;
    }

    /// Returns whether writing has failed, so that the chat should end.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Returns the first error of writing.
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

    /// Records that a line was entered. The editor erases its line, so an edited line is printed like other
    /// text.
    pub(super) fn entered(&mut self, line: &str) {
        if self.editing.is_some() {
            self.print(&format!("{PROMPT}{line}"));
        }
        self.line = Line::Start;
    }

    /// Moves to the start of a line.
    pub(super) fn fresh_line(&mut self) {
        match std::mem::replace(&mut self.line, Line::Start) {
            Line::Start | Line::Answer { is_fresh: true, .. } => {}
            Line::Prompt | Line::Answer { is_fresh: false, .. } => self.say("\n"),
        }
    }

    /// Prints the prompt; the editor prints its own.
    pub(super) fn prompt(&mut self) {
        if self.line == Line::Start && self.editing.is_none() {
            self.say(PROMPT);
            self.line = Line::Prompt;
        }
    }

    /// Prints a line of the conversation.
    pub(super) fn print(&mut self, text: &str) {
        self.fresh_line();
        let text = self.clean(text);
        self.say(&text);
        self.say("\n");
    }

    /// Prints a remark about the conversation. In a file or a pipe the remark goes to stderr alone and does not
    /// split an answer.
    pub(super) fn aside(&mut self, text: &str) {
        if self.editing.is_some() && io::stderr().is_terminal() {
            return self.print(&format!("[{text}]"));
        }
        if self.terminal {
            self.fresh_line();
        }
        complain(&format!("[{}]\n", self.clean(text)));
    }

    /// Prints more text of an answer.
    pub(super) fn stream(&mut self, run: &str, agent: &str, text: &str) {
        if !self.is_answer(run) {
            self.fresh_line();
            self.say(&format!("{agent}: "));
        }
        let text = self.clean(text);
        self.say(&text);
        self.line = Line::Answer { run: run.to_owned(), is_fresh: text.ends_with('\n') };
    }

    /// Marks the answer's text so far as discarded.
    pub(super) fn void(&mut self, run: &str) {
        if self.is_answer(run) {
            self.say(" [restarted]");
            self.fresh_line();
        }
    }

    fn is_answer(&self, run: &str) -> bool {
        matches!(&self.line, Line::Answer { run: answer, .. } if answer == run)
    }

    /// Sanitises text of other people for a terminal, so that it cannot move the cursor or rename the window.
    fn clean(&self, text: &str) -> String {
        if self.terminal { harmless(text) } else { text.to_owned() }
    }
}

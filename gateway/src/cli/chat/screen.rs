//! Prints a chat to a terminal, a file or a pipe, and keeps track of the cursor's line.
use super::input::{TerminalInput, read_lines};
use super::terminal::{PROMPT, Terminal};
use crate::cli::table::replace_control_chars;
use crate::cli::{CliError, write_stderr, write_stdout};
use std::io::{self, IsTerminal};
use tokio::sync::mpsc;

/// Position of the cursor: at the start of a line, behind the prompt, or in an answer.
#[derive(Debug, PartialEq, Eq)]
enum CursorState {
    Start,
    Prompt,
    Answer {
        run: String,
        /// The text so far ends with a newline.
        is_fresh: bool,
    },
}

/// The output of a chat.
#[derive(Debug)]
pub(super) struct Screen {
    /// Stdout is a terminal.
    is_terminal: bool,
    /// The line editor, if stdin and stdout allow one; output appears above the edited line.
    editor: Option<Terminal>,
    cursor: CursorState,
    /// The first error of writing; nothing is printed after it.
    write_error: Option<CliError>,
}

impl Screen {
    /// Takes over the terminal, if there is one; the editor completes these words.
    pub(super) fn new(completions: Vec<String>) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let editor = Terminal::open(completions);
        Self { is_terminal, editor, cursor: CursorState::Start, write_error: None }
    }

    /// Starts reading lines, with the editor if there is one.
    pub(super) fn start_input(&mut self) -> mpsc::Receiver<TerminalInput> {
        let begun = self.editor.as_ref().map(Terminal::begin);
        if let Some(Ok(typed)) = begun {
            return typed;
        }
        if let Some(Err(error)) = begun {
            self.editor = None;
            self.print_remark(&format!("line editing is not available: {error}"));
        }
        read_lines()
    }

    /// Finishes the last line and restores the terminal.
    pub(super) fn close(&mut self) {
        self.start_line();
        self.editor = None;
    }

    /// Returns whether writing has failed, so that the chat should end.
    pub(super) fn has_failed(&self) -> bool {
        self.write_error.is_some()
    }

    /// Returns the first error of writing.
    pub(super) fn result(&self) -> Result<(), CliError> {
        self.write_error.clone().map_or(Ok(()), Err)
    }

    fn say(&mut self, text: &str) {
        let lost = |error: io::Error| CliError::Failed(format!("cannot write to the terminal: {error}"));
        let shown = match &self.editor {
            Some(terminal) => terminal.write(text).map_err(lost),
            None => write_stdout(text),
        };
        if let Err(write_error) = shown {
            self.write_error.get_or_insert(write_error);
        }
    }

    /// Records that a line was entered. The editor erases its line, so an edited line is printed like other
    /// text.
    pub(super) fn handle_entered(&mut self, line: &str) {
        if self.editor.is_some() {
            self.print(&format!("{PROMPT}{line}"));
        }
        self.cursor = CursorState::Start;
    }

    /// Moves to the start of a line.
    pub(super) fn start_line(&mut self) {
        match std::mem::replace(&mut self.cursor, CursorState::Start) {
            CursorState::Start | CursorState::Answer { is_fresh: true, .. } => {}
            CursorState::Prompt | CursorState::Answer { is_fresh: false, .. } => self.say("\n"),
        }
    }

    /// Prints the prompt; the editor prints its own.
    pub(super) fn prompt(&mut self) {
        if self.cursor == CursorState::Start && self.editor.is_none() {
            self.say(PROMPT);
            self.cursor = CursorState::Prompt;
        }
    }

    /// Prints a line of the conversation.
    pub(super) fn print(&mut self, text: &str) {
        self.start_line();
        let text = self.sanitise(text);
        self.say(&text);
        self.say("\n");
    }

    /// Prints a remark about the conversation. In a file or a pipe the remark goes to stderr alone and does not
    /// split an answer.
    pub(super) fn print_remark(&mut self, text: &str) {
        if self.editor.is_some() && io::stderr().is_terminal() {
            return self.print(&format!("[{text}]"));
        }
        if self.is_terminal {
            self.start_line();
        }
        write_stderr(&format!("[{}]\n", self.sanitise(text)));
    }

    /// Prints more text of an answer.
    pub(super) fn print_answer_text(&mut self, run: &str, agent: &str, text: &str) {
        if !self.is_answer(run) {
            self.start_line();
            self.say(&format!("{agent}: "));
        }
        let text = self.sanitise(text);
        self.say(&text);
        self.cursor = CursorState::Answer { run: run.to_owned(), is_fresh: text.ends_with('\n') };
    }

    /// Marks the answer's text so far as discarded.
    pub(super) fn discard_answer(&mut self, run: &str) {
        if self.is_answer(run) {
            self.say(" [restarted]");
            self.start_line();
        }
    }

    fn is_answer(&self, run: &str) -> bool {
        matches!(&self.cursor, CursorState::Answer { run: answer, .. } if answer == run)
    }

    /// Sanitises text of other people for a terminal, so that it cannot move the cursor or rename the window.
    fn sanitise(&self, text: &str) -> String {
        if self.is_terminal { replace_control_chars(text) } else { text.to_owned() }
    }
}

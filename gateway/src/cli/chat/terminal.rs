//! Edits a line in a terminal while other text is printed above it. Called by the screen; must not decide
//! anything about the conversation.
use super::history;
use super::input::TerminalInput;
use super::layout::{DEFAULT_COLUMNS, OutputTail, rows_below};
use crate::cli::table::terminal_width;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{
    Behavior, Cmd, CompletionType, ConditionalEventHandler, Config, Context, Editor, Event, EventContext, EventHandler,
    ExternalPrinter, Helper, KeyCode, KeyEvent, Modifiers, Prompt, RepeatCount,
};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use turnway_core::limits::{CHAT_HISTORY_LINES_MAX, CHAT_LINES_MAX, CHAT_PENDING_BYTES_MAX};

/// The prompt of the edited line.
pub(super) const PROMPT: &str = "> ";
/// Time that closing waits for the editor's threads; a key can hold them longer, such as a search in the
/// history.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time that a pressed key waits for a print in progress to reach the editor's queue.
const PRINT_HANDOVER_TIMEOUT: Duration = Duration::from_millis(20);
/// Moves the cursor up a row and down again: shows nothing, and the editor takes it only after earlier prints.
const NO_OP_OUTPUT: &str = "\x1b[A\n";

/// The state of the editor's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EditorPhase {
    /// Not started, or ended: text is written directly.
    Inactive,
    /// A line is about to begin.
    Starting,
    /// A line is being edited: text is printed above it.
    Editing,
    /// A line was left and is being erased.
    Leaving,
}

/// State shared by the chat and the editor's two threads.
#[derive(Debug)]
struct EditorState {
    phase: EditorPhase,
    /// The chat has ended; no further line is begun.
    is_over: bool,
    /// A print is on its way to the editor.
    is_printing: bool,
    /// The printing thread has ended, with everything before that shown.
    is_drained: bool,
    /// Text that has not been shown yet.
    pending_output: String,
    tail: OutputTail,
    /// Text of the edited line when it was left.
    left_line: String,
}

#[derive(Debug)]
struct SharedEditor {
    state: Mutex<EditorState>,
    changed: Condvar,
}

/// A terminal that a user types at. Dropping it restores the terminal's mode.
///
/// The editor reads keys on one thread, and prints text that another thread hands over above its line. Before
/// and after each print, the cursor is at the start of the row below all text. A line that is entered is
/// therefore erased by the editor's thread, and printed by the chat like other text: a print that crosses a
/// pressed key finds the cursor where it expects it.
pub(super) struct Terminal {
    shared: Arc<SharedEditor>,
    original_mode: Termios,
    /// Words that the editor completes.
    words: Vec<String>,
}

// === impl Terminal ===

impl Terminal {
    /// Takes over the terminal, if stdin and stdout are one and it can move its cursor.
    pub(super) fn open(words: Vec<String>) -> Option<Self> {
        let term = std::env::var("TERM").unwrap_or_default();
        let can_edit = !["", "dumb", "cons25", "emacs"].contains(&term.as_str());
        if !can_edit || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return None;
        }
        let before = tcgetattr(io::stdin()).ok()?;
        let mut quiet = before.clone();
        // Keys typed between two lines are kept without an echo, and shown when the next line begins.
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Now, &quiet).ok()?;
        Some(Self { shared: Arc::new(SharedEditor::new()), original_mode: before, words })
    }

    /// Starts reading lines. Fails if no editor can be made, and then no line is read.
    pub(super) fn begin(&self) -> Result<mpsc::Receiver<TerminalInput>, ReadlineError> {
        let (sender, typed) = mpsc::channel(CHAT_LINES_MAX);
        let mut editor = editor(&self.shared, self.words.clone())?;
        let printer = editor.create_external_printer()?;
        let shared = Arc::clone(&self.shared);
        let printing = Arc::clone(&self.shared);
        std::thread::spawn(move || run_printer(&printing, printer));
        std::thread::spawn(move || run_editor(&shared, editor, &sender));
        Ok(typed)
    }

    /// Prints text above the edited line. Blocks while too much text has not been shown.
    pub(super) fn write(&self, text: &str) -> io::Result<()> {
        let mut state = self.shared.lock();
        let is_full = |state: &EditorState| state.pending_output.len() > CHAT_PENDING_BYTES_MAX && !state.is_over;
        while state.phase != EditorPhase::Inactive && is_full(&state) {
            state = self.shared.wait(state);
        }
        state.pending_output.push_str(text);
        if state.phase == EditorPhase::Inactive {
            let unshown = std::mem::take(&mut state.pending_output);
            return write_stdout(&state.tail.render_append(&unshown, columns()));
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Ends the editing, prints the remaining text, and restores the terminal.
    pub(super) fn close(&self) {
        let mut state = self.shared.lock();
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        self.shared.changed.notify_all();
        let is_begun = state.phase != EditorPhase::Inactive;
        if is_begun {
            let is_between = |phase: EditorPhase| matches!(phase, EditorPhase::Starting | EditorPhase::Leaving);
            let unsettled = |state: &mut EditorState| is_between(state.phase) || !state.is_drained;
            let waited = self.shared.changed.wait_timeout_while(state, CLOSE_TIMEOUT, unsettled);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut out = String::new();
        if state.phase == EditorPhase::Editing {
            // Erases the line that is not going to be entered, and turns off bracketed paste.
            out.push_str("\r\x1b[J\x1b[?2004l");
        }
        let rest = std::mem::take(&mut state.pending_output);
        if !rest.is_empty() {
            out.push_str(&state.tail.render_append(&rest, columns()));
        }
        // Writing fails if the user has closed the terminal, which is no error here.
        let _ = write_stdout(&out);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.original_mode);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Terminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Terminal").field("shared", &self.shared).finish_non_exhaustive()
    }
}

// === impl Shared ===

impl SharedEditor {
    fn new() -> Self {
        let state = EditorState {
            phase: EditorPhase::Inactive,
            is_over: false,
            is_printing: false,
            is_drained: false,
            pending_output: String::new(),
            tail: OutputTail::default(),
            left_line: String::new(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Ignores poisoning: every change of the state is one assignment, so a panic leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, EditorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, EditorState>) -> MutexGuard<'a, EditorState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a phase; false if the chat has ended.
    fn enter(&self, phase: EditorPhase) -> bool {
        let mut state = self.lock();
        state.phase = phase;
        self.changed.notify_all();
        !state.is_over
    }

    /// Marks the line as left: nothing is printed until it has been erased.
    fn leave(&self, line: &str) {
        let mut state = self.lock();
        line.clone_into(&mut state.left_line);
        // A print that waits for room in the editor's queue appears with the next line, so it must not be
        // waited for without a limit.
        let waited = self.changed.wait_timeout_while(state, PRINT_HANDOVER_TIMEOUT, |state| state.is_printing);
        waited.unwrap_or_else(PoisonError::into_inner).0.phase = EditorPhase::Leaving;
    }
}

// --- the editor's thread ---

/// Reads line after line, until the user leaves or the receiver is dropped.
fn run_editor(
    shared: &Arc<SharedEditor>,
    mut editor: Editor<WordCompleter, FileHistory>,
    typed: &mpsc::Sender<TerminalInput>,
) {
    let mut file = load_history(&mut editor, typed);
    let begun = StartDetectingPrompt(Arc::clone(shared));
    while shared.enter(EditorPhase::Starting) {
        let read = editor.readline(&begun);
        let left_at = std::mem::take(&mut shared.lock().left_line);
        let event = match read {
            Ok(line) => {
                erase_line(&line);
                if let Err(error) = remember(&mut editor, &line, file.as_ref()) {
                    file = None;
                    let _ = typed.blocking_send(history_remark(&error));
                }
                TerminalInput::Line(line)
            }
            Err(ReadlineError::Interrupted) => {
                erase_line(&left_at);
                TerminalInput::Interrupt { had_text: !left_at.is_empty() }
            }
            // Ctrl-D, or the terminal is gone.
            Err(_) => {
                erase_line("");
                break;
            }
        };
        if typed.blocking_send(event).is_err() {
            break;
        }
    }
    shared.enter(EditorPhase::Inactive);
}

/// Erases the line that was just left; the chat prints its text like other text.
fn erase_line(line: &str) {
    let rows = 1 + rows_below(&format!("{PROMPT}{line}"), columns());
    // If the terminal is gone, the next read fails.
    let _ = write_stdout(&format!("\x1b[{rows}A\r\x1b[J"));
}

fn editor(shared: &Arc<SharedEditor>, words: Vec<String>) -> Result<Editor<WordCompleter, FileHistory>, ReadlineError> {
    let config = Config::builder()
        .behavior(Behavior::Stdio)
        .completion_type(CompletionType::List)
        .max_history_size(CHAT_HISTORY_LINES_MAX)?
        .history_ignore_dups(true)?
        .auto_add_history(false)
        .build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(WordCompleter(words)));
    for (key, leaving) in [
        (KeyEvent(KeyCode::Enter, Modifiers::NONE), LeaveReason::Entered),
        (KeyEvent::ctrl('J'), LeaveReason::Entered),
        (KeyEvent::ctrl('C'), LeaveReason::Interrupted),
        (KeyEvent::ctrl('D'), LeaveReason::Ended),
    ] {
        let left = Box::new(LeaveKeyHandler { shared: Arc::clone(shared), leaving });
        editor.bind_sequence(key, EventHandler::Conditional(left));
    }
    Ok(editor)
}

/// Loads the history, and returns the file to append to, or `None` if lines cannot be kept.
fn load_history(
    editor: &mut Editor<WordCompleter, FileHistory>,
    typed: &mpsc::Sender<TerminalInput>,
) -> Option<PathBuf> {
    let path = history::path()?;
    let read = history::prepare(&path).map_err(ReadlineError::from);
    match read.and_then(|is_there| if is_there { editor.load_history(&path) } else { Ok(()) }) {
        Ok(()) => Some(path),
        Err(error) => {
            let _ = typed.blocking_send(history_remark(&error));
            None
        }
    }
}

fn remember(
    editor: &mut Editor<WordCompleter, FileHistory>,
    line: &str,
    file: Option<&PathBuf>,
) -> Result<(), ReadlineError> {
    if history::is_kept(line) && editor.add_history_entry(line)? {
        return file.map_or(Ok(()), |file| editor.append_history(file));
    }
    Ok(())
}

fn history_remark(error: &ReadlineError) -> TerminalInput {
    TerminalInput::Remark(format!("lines are not kept for the next chat: {error}"))
}

// --- the printing thread ---

/// Hands text to the editor, all pending text at a time.
fn run_printer(shared: &SharedEditor, mut printer: impl ExternalPrinter) {
    let mut is_sound = true;
    while is_sound {
        let mut state = shared.lock();
        while !state.is_over && (state.pending_output.is_empty() || state.phase != EditorPhase::Editing) {
            state = shared.wait(state);
        }
        if state.phase != EditorPhase::Editing || state.pending_output.is_empty() {
            break;
        }
        let text = std::mem::take(&mut state.pending_output);
        let out = state.tail.render_append(&text, columns());
        state.is_printing = true;
        drop(state);
        shared.changed.notify_all();
        is_sound = printer.print(out).is_ok();
        shared.lock().is_printing = false;
        shared.changed.notify_all();
    }
    if shared.lock().phase == EditorPhase::Editing {
        // The editor's queue has room for one print: once it has taken two more, the last text has been shown.
        let _ = printer.print(NO_OP_OUTPUT.to_owned()).and_then(|()| printer.print(NO_OP_OUTPUT.to_owned()));
    }
    shared.lock().is_drained = true;
    shared.changed.notify_all();
}

// --- callbacks of the editor ---

/// The prompt. The editor reads it once it handles keys and accepts prints, so that read marks the begin of
/// editing.
struct StartDetectingPrompt(Arc<SharedEditor>);

impl Prompt for StartDetectingPrompt {
    fn raw(&self) -> &str {
        let mut state = self.0.lock();
        if state.phase == EditorPhase::Starting {
            state.phase = EditorPhase::Editing;
            self.0.changed.notify_all();
        }
        PROMPT
    }
}

/// The reason why a line was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaveReason {
    Entered,
    Interrupted,
    Ended,
}

/// A handler of a key that leaves the line.
struct LeaveKeyHandler {
    shared: Arc<SharedEditor>,
    leaving: LeaveReason,
}

impl ConditionalEventHandler for LeaveKeyHandler {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, at: &EventContext<'_>) -> Option<Cmd> {
        match self.leaving {
            LeaveReason::Entered => {
                self.shared.leave(at.line());
                Some(Cmd::AcceptLine)
            }
            LeaveReason::Interrupted => {
                self.shared.leave(at.line());
                Some(Cmd::Interrupt)
            }
            LeaveReason::Ended if at.line().is_empty() => {
                self.shared.leave("");
                Some(Cmd::EndOfFile)
            }
            // In a line that has text, Ctrl-D deletes a character.
            LeaveReason::Ended => None,
        }
    }
}

/// A completer of words at the start of a line.
struct WordCompleter(Vec<String>);

impl Helper for WordCompleter {}
impl Hinter for WordCompleter {
    type Hint = String;
}
impl Highlighter for WordCompleter {}
impl Validator for WordCompleter {}

impl Completer for WordCompleter {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let begun = line.get(..at).unwrap_or_default();
        let pair = |word: &String| Pair { display: word.trim_end().to_owned(), replacement: word.clone() };
        let fitting = self.0.iter().filter(|word| !begun.is_empty() && word.starts_with(begun));
        Ok((0, fitting.map(pair).collect()))
    }
}

// --- the terminal itself ---

fn columns() -> usize {
    terminal_width().unwrap_or(DEFAULT_COLUMNS)
}

fn write_stdout(out: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(out.as_bytes())?;
    stdout.flush()
}

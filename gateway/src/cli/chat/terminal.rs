//! Edits a line in a terminal while other text is printed above it. Called by the screen; must not decide
//! anything about the conversation.
use super::history;
use super::input::TerminalInput;
use super::layout::{DEFAULT_COLUMNS, OutputTail, rows_below};
use crate::cli::table::terminal_width;
use rustix::termios::{InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
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
use std::panic::AssertUnwindSafe;
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
/// Ends the update of the screen that the editor was stopped in.
const END_UPDATE: &str = "\x1b[?2026l";
/// Turns off bracketed paste.
const END_PASTE: &str = "\x1b[?2004l";
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
    /// No further line is read: the editor is stopped at its next print, which erases the line.
    Stopping,
}

/// The payload of the unwinding that takes the editor's thread out of a line. The editor has no other way out that
/// draws nothing, and its destructors give the terminal's mode and the signal handlers back.
struct EditorStopped;

/// State shared by the chat and the editor's two threads.
#[derive(Debug)]
struct EditorState {
    phase: EditorPhase,
    /// The user or the chat has ended the input: keys do nothing, and the editor is stopped once all text is shown.
    is_input_over: bool,
    /// The chat has ended.
    is_over: bool,
    /// The terminal has its original mode again.
    is_closed: bool,
    /// A print is on its way to the editor.
    is_printing: bool,
    /// Text that has not been shown yet.
    pending_output: String,
    tail: OutputTail,
    /// Text of the edited line when it was left.
    left_line: String,
}

impl EditorState {
    /// Takes the text that has not been shown, with the moves of the cursor that append it to the text before.
    fn take_output(&mut self) -> String {
        let text = std::mem::take(&mut self.pending_output);
        if text.is_empty() { text } else { self.tail.render_append(&text, columns()) }
    }
}

#[derive(Debug)]
struct SharedEditor {
    state: Mutex<EditorState>,
    changed: Condvar,
    /// The mode of the terminal before the chat.
    original_mode: Termios,
}

/// A terminal that a user types at. Dropping it restores the terminal's mode.
///
/// The editor reads keys on one thread, and prints text that another thread hands over above its line. Before
/// and after each print, the cursor is at the start of the row below all text. A line that is entered is
/// therefore erased by the editor's thread, and printed by the chat like other text: a print that crosses a
/// pressed key finds the cursor where it expects it.
pub(super) struct Terminal {
    shared: Arc<SharedEditor>,
    /// Words that the editor completes.
    words: Vec<String>,
}

// === impl Terminal ===

impl Terminal {
    /// Takes over the terminal, if stdin and stdout are one and it can move its cursor.
    pub(super) fn open(completions: Vec<String>) -> Option<Self> {
        let term = std::env::var("TERM").unwrap_or_default();
        let can_edit = !["", "dumb", "cons25", "emacs"].contains(&term.as_str());
        if !can_edit || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return None;
        }
        let before = tcgetattr(io::stdin()).ok()?;
        tcsetattr(io::stdin(), OptionalActions::Now, &mode_between_lines(before.clone())).ok()?;
        Some(Self { shared: Arc::new(SharedEditor::new(before)), words: completions })
    }

    /// Starts reading lines. Fails if no editor can be made, and then no line is read.
    pub(super) fn begin(&self) -> Result<mpsc::Receiver<TerminalInput>, ReadlineError> {
        let (sender, typed) = mpsc::channel(CHAT_LINES_MAX);
        let mut editor = editor(&self.shared, self.words.clone())?;
        let printer = editor.create_external_printer()?;
        let shared = Arc::clone(&self.shared);
        let printing = Arc::clone(&self.shared);
        // Before the threads, because the printing thread ends with the editor's.
        self.shared.begin_line();
        std::thread::spawn(move || run_printer(&printing, printer));
        std::thread::spawn(move || run_editor(&shared, editor, sender));
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
        state.is_input_over = true;
        self.shared.changed.notify_all();
        if state.phase != EditorPhase::Inactive {
            let unsettled = |state: &mut EditorState| state.phase != EditorPhase::Inactive;
            let waited = self.shared.changed.wait_timeout_while(state, CLOSE_TIMEOUT, unsettled);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut out = String::new();
        if state.phase != EditorPhase::Inactive {
            // A key holds the editor: erases the row of the line that is not going to be entered.
            out.push_str("\r\x1b[J");
            out.push_str(END_UPDATE);
            out.push_str(END_PASTE);
        }
        out.push_str(&state.take_output());
        // Writing fails if the user has closed the terminal, which is no error here.
        let _ = write_stdout(&out);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.shared.original_mode);
        state.is_closed = true;
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

// === impl SharedEditor ===

impl SharedEditor {
    fn new(original_mode: Termios) -> Self {
        let state = EditorState {
            phase: EditorPhase::Inactive,
            is_input_over: false,
            is_over: false,
            is_closed: false,
            is_printing: false,
            pending_output: String::new(),
            tail: OutputTail::default(),
            left_line: String::new(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), original_mode }
    }

    /// Ignores poisoning: every change of the state is one assignment, so a panic leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, EditorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, EditorState>) -> MutexGuard<'a, EditorState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a line; false if the terminal is the user's again.
    fn begin_line(&self) -> bool {
        let mut state = self.lock();
        state.phase = EditorPhase::Starting;
        self.changed.notify_all();
        !state.is_closed
    }

    /// Ends the editing: shows the text that has not been shown. The editor may have given the terminal its mode
    /// between two lines after the chat gave it the original one.
    fn end_editing(&self) {
        let mut state = self.lock();
        state.phase = EditorPhase::Inactive;
        if state.is_closed {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.original_mode);
        } else {
            let out = format!("{END_UPDATE}{}", state.take_output());
            // Writing fails if the user has closed the terminal, which is no error here.
            let _ = write_stdout(&out);
        }
        self.changed.notify_all();
    }

    fn is_input_over(&self) -> bool {
        self.lock().is_input_over
    }

    /// Ends the input; returns whether it had ended before.
    fn end_input(&self) -> bool {
        let had_ended = std::mem::replace(&mut self.lock().is_input_over, true);
        self.changed.notify_all();
        had_ended
    }

    /// Marks the line as left: nothing is printed until it has been erased. Returns false once the input has
    /// ended, when the line stays until the editor is stopped.
    fn leave(&self, line: &str) -> bool {
        let state = self.lock();
        // A print that waits for room in the editor's queue appears with the next line, so it must not be
        // waited for without a limit.
        let waited = self.changed.wait_timeout_while(state, PRINT_HANDOVER_TIMEOUT, |state| state.is_printing);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.is_input_over {
            return false;
        }
        line.clone_into(&mut state.left_line);
        state.phase = EditorPhase::Leaving;
        true
    }

    /// Marks a line as begun, or takes the editor's thread out of the line by unwinding. Called by the editor before it
    /// draws its line.
    fn before_drawing(&self) {
        let mut state = self.lock();
        if state.phase == EditorPhase::Starting {
            state.phase = EditorPhase::Editing;
            self.changed.notify_all();
        } else if state.phase == EditorPhase::Stopping {
            drop(state);
            std::panic::resume_unwind(Box::new(EditorStopped));
        }
    }
}

// --- the editor's thread ---

/// Reads line after line, until the terminal is gone or the printing thread stops this thread in a line.
fn run_editor(
    shared: &Arc<SharedEditor>,
    mut editor: Editor<WordCompleter, FileHistory>,
    typed: mpsc::Sender<TerminalInput>,
) {
    let mut typed = Some(typed);
    let mut file = load_history(&mut editor, &mut typed);
    let prompt = ObservingPrompt(Arc::clone(shared));
    while shared.begin_line() {
        let Some(read) = read_line(&mut editor, &prompt) else { break };
        let left_at = std::mem::take(&mut shared.lock().left_line);
        match read {
            Ok(line) => {
                erase_line(&line);
                if let Err(error) = remember(&mut editor, &line, file.as_ref()) {
                    file = None;
                    send(&mut typed, history_remark(&error));
                }
                send(&mut typed, TerminalInput::Line(line));
            }
            Err(ReadlineError::Interrupted) if !shared.is_input_over() => {
                erase_line(&left_at);
                send(&mut typed, TerminalInput::Interrupt { had_text: !left_at.is_empty() });
            }
            // Ctrl-D, or the terminal is gone: then the next line ends so too.
            Err(_) => {
                erase_line("");
                typed = None;
                if shared.end_input() {
                    break;
                }
            }
        }
    }
    shared.end_editing();
}

/// Reads a line; `None` if the thread was stopped in it.
fn read_line(
    editor: &mut Editor<WordCompleter, FileHistory>,
    prompt: &ObservingPrompt,
) -> Option<Result<String, ReadlineError>> {
    // The editor is dropped if it was stopped, so that nothing sees what the unwinding left half done.
    match std::panic::catch_unwind(AssertUnwindSafe(|| editor.readline(prompt))) {
        Ok(read) => Some(read),
        Err(payload) if payload.is::<EditorStopped>() => None,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

/// Passes input to the chat, until the chat has ended.
fn send(typed: &mut Option<mpsc::Sender<TerminalInput>>, event: TerminalInput) {
    if typed.as_ref().is_some_and(|sender| sender.blocking_send(event).is_err()) {
        *typed = None;
    }
}

/// Erases the line that was just left; the chat prints its text like other text.
fn erase_line(line: &str) {
    let rows = 1 + rows_below(&format!("{PROMPT}{line}"), columns());
    // If the terminal is gone, the next read fails.
    let _ = write_stdout(&format!("\x1b[{rows}A\r\x1b[J"));
}

fn editor(
    shared: &Arc<SharedEditor>,
    completions: Vec<String>,
) -> Result<Editor<WordCompleter, FileHistory>, ReadlineError> {
    let config = Config::builder()
        .behavior(Behavior::Stdio)
        .completion_type(CompletionType::List)
        .max_history_size(CHAT_HISTORY_LINES_MAX)?
        .history_ignore_dups(true)?
        .auto_add_history(false)
        .build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(WordCompleter(completions)));
    for (key, leaving) in [
        (KeyEvent(KeyCode::Enter, Modifiers::NONE), LeaveReason::Entered),
        (KeyEvent::ctrl('J'), LeaveReason::Entered),
        (KeyEvent::ctrl('C'), LeaveReason::Interrupted),
        (KeyEvent::ctrl('D'), LeaveReason::Ended),
    ] {
        let left = Box::new(LeaveKeyHandler { shared: Arc::clone(shared), leaving });
        editor.bind_sequence(key, EventHandler::Conditional(left));
    }
    let other = Box::new(OtherKeyHandler { shared: Arc::clone(shared) });
    editor.bind_sequence(Event::Any, EventHandler::Conditional(other));
    Ok(editor)
}

/// Loads the history, and returns the file to append to, or `None` if lines cannot be kept.
fn load_history(
    editor: &mut Editor<WordCompleter, FileHistory>,
    typed: &mut Option<mpsc::Sender<TerminalInput>>,
) -> Option<PathBuf> {
    let path = history::path()?;
    let read = history::prepare(&path).map_err(ReadlineError::from);
    match read.and_then(|is_there| if is_there { editor.load_history(&path) } else { Ok(()) }) {
        Ok(()) => Some(path),
        Err(error) => {
            send(typed, history_remark(&error));
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
    TerminalInput::Remark(format!("the history is not saved: {error}"))
}

// --- the printing thread ---

/// Hands text to the editor, all pending text at a time.
fn run_printer(shared: &SharedEditor, mut printer: impl ExternalPrinter) {
    let mut is_sound = true;
    while is_sound {
        let mut state = shared.lock();
        while state.phase != EditorPhase::Editing || (state.pending_output.is_empty() && !state.is_input_over) {
            if state.phase == EditorPhase::Inactive {
                return;
            }
            state = shared.wait(state);
        }
        if state.pending_output.is_empty() {
            break;
        }
        let out = state.take_output();
        state.is_printing = true;
        drop(state);
        shared.changed.notify_all();
        is_sound = printer.print(out).is_ok();
        shared.lock().is_printing = false;
        shared.changed.notify_all();
    }
    stop_editor(shared, &mut printer);
}

/// Stops the editor in the middle of its line, with all text shown and the line erased.
///
/// The editor takes one print at a time, erases its line, shows the text, and asks for the prompt to draw the
/// line again; it is stopped there. A key asks for the prompt before it erases, so the editor must not be stopped
/// by one: keys do nothing once the input has ended, and an earlier key has been handled when the editor takes the
/// first print of these.
fn stop_editor(shared: &SharedEditor, printer: &mut impl ExternalPrinter) {
    // The queue has room for one print: once it has room for the second, the editor has taken the first.
    if printer.print(NO_OP_OUTPUT.to_owned()).and_then(|()| printer.print(NO_OP_OUTPUT.to_owned())).is_err() {
        return;
    }
    let mut state = shared.lock();
    if state.phase != EditorPhase::Editing {
        return;
    }
    state.phase = EditorPhase::Stopping;
    drop(state);
    // The two prints may have been shown already. Fails if the editor has been stopped at one.
    let _ = printer.print(NO_OP_OUTPUT.to_owned());
}

// --- callbacks of the editor ---

/// The prompt. The editor reads it first when it handles keys and accepts prints, so that read marks the begin of
/// editing, and again before each drawing of the line.
struct ObservingPrompt(Arc<SharedEditor>);

impl Prompt for ObservingPrompt {
    fn raw(&self) -> &str {
        self.0.before_drawing();
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
        let leave = |command| Some(if self.shared.leave(at.line()) { command } else { Cmd::Noop });
        match self.leaving {
            LeaveReason::Entered => leave(Cmd::AcceptLine),
            LeaveReason::Interrupted => leave(Cmd::Interrupt),
            LeaveReason::Ended if at.line().is_empty() => leave(Cmd::EndOfFile),
            // In a line that has text, Ctrl-D deletes a character.
            LeaveReason::Ended => self.shared.lock().is_input_over.then_some(Cmd::Noop),
        }
    }
}

/// A handler of all other keys, which do nothing once the input has ended.
struct OtherKeyHandler {
    shared: Arc<SharedEditor>,
}

impl ConditionalEventHandler for OtherKeyHandler {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.shared.lock().is_input_over.then_some(Cmd::Noop)
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

/// Returns the mode of the terminal between two lines: keys are kept as they are typed, without an echo, for the
/// next line. The editor's own mode differs in signals alone, because a change of line buffering would lose keys
/// (Linux drops an end of file, and a line being erased takes the keys before it along). Ctrl-C is a signal, for
/// the chat may be so far behind that no next line begins.
fn mode_between_lines(mut mode: Termios) -> Termios {
    mode.input_modes.remove(InputModes::BRKINT | InputModes::ICRNL | InputModes::ISTRIP | InputModes::IXON);
    mode.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::IEXTEN);
    // A signal does not discard the keys before it.
    mode.local_modes.insert(LocalModes::ISIG | LocalModes::NOFLSH);
    mode.special_codes[SpecialCodeIndex::VMIN] = 1;
    mode.special_codes[SpecialCodeIndex::VTIME] = 0;
    mode
}

fn columns() -> usize {
    terminal_width().unwrap_or(DEFAULT_COLUMNS)
}

fn write_stdout(out: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(out.as_bytes())?;
    stdout.flush()
}

//! Runs the `turnway` binary at a pseudo-terminal: sends keys, and interprets the output as a screen.
use super::PATIENCE;
use super::node::binary;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Time between two presses of a key that ends the command.
const AGAIN: Duration = Duration::from_millis(500);

/// A command that runs at a terminal. Killed when dropped.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keys: File,
    output: mpsc::Receiver<Vec<u8>>,
    seat: File,
    screen: Screen,
}

/// Content of a terminal, with all rows that have scrolled away. Only the escape sequences of the chat and its
/// editor are known.
#[derive(Debug)]
struct Screen {
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    columns: usize,
    /// Incomplete escape sequence.
    sequence: String,
    /// Incomplete UTF-8 character.
    bytes: Vec<u8>,
}

// === impl Terminal ===

impl Terminal {
    /// Starts the binary in a directory, which is also its `HOME`, at a terminal of this many columns.
    pub fn start(dir: &Path, args: &[&str], env: &[(&str, &str)], columns: u16) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&keys).expect("it is ours");
        unlockpt(&keys).expect("it is ours");
        let name = ptsname(&keys, Vec::new()).expect("a name").into_string().expect("UTF-8");
        let noctty = i32::try_from(rustix::fs::OFlags::NOCTTY.bits()).expect("a flag");
        let seat = File::options().read(true).write(true).custom_flags(noctty).open(name).expect("a seat");
        let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&seat, size).expect("a size");
        let at_seat = || seat.try_clone().expect("a seat");
        // As a shell does it: the terminal controls the command, and sends it signals.
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(binary())
            .args(args)
            .current_dir(dir)
            .env("TERM", "xterm")
            .env("HOME", dir)
            .kill_on_drop(true);
        command.env_remove("XDG_STATE_HOME").envs(env.iter().copied().filter(|(_, value)| !value.is_empty()));
        for (name, _) in env.iter().filter(|(_, value)| value.is_empty()) {
            command.env_remove(name);
        }
        let child = command.stdin(at_seat()).stdout(at_seat()).stderr(at_seat()).spawn().expect("it runs");
        let keys = File::from(keys);
        let output = read_all(keys.try_clone().expect("an end"));
        Self { child, keys, output, seat, screen: Screen::new(columns.into()) }
    }

    /// Sends key presses.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("keys");
    }

    /// Sends a signal, by the name that `kill` uses.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it runs").to_string();
        assert!(Command::new("kill").args([name, &pid]).status().await.expect("kill runs").success());
    }

    /// Waits until the visible rows fit, and returns them without trailing spaces and trailing empty rows.
    pub async fn until(&mut self, what: &str, fits: impl Fn(&[String]) -> bool) -> Vec<String> {
        loop {
            let rows = self.screen.shown();
            if fits(&rows) {
                return rows;
            }
            match timeout(PATIENCE, self.output.recv()).await {
                Ok(Some(bytes)) => self.screen.take(&bytes),
                Ok(None) | Err(_) => panic!("{what} is not shown:\n{}", rows.join("\n")),
            }
        }
    }

    /// Waits for a row that begins with this text.
    pub async fn sees(&mut self, start: &str) -> Vec<String> {
        self.until(start, |rows| rows.iter().any(|row| row.starts_with(start))).await
    }

    /// Waits until the last row, the line being edited, is this one.
    pub async fn edits(&mut self, line: &str) -> Vec<String> {
        let line = format!("> {line}");
        self.until(&line, |rows| rows.last().is_some_and(|row| *row == line.trim_end())).await
    }

    /// Presses a key repeatedly until the command ends, for the first presses may cancel what is open. Returns the
    /// exit code and the final rows.
    pub async fn leaves(&mut self, key: &str) -> (Option<i32>, Vec<String>) {
        let begun = Instant::now();
        self.press(key);
        while timeout(AGAIN, self.child.wait()).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "it does not end:\n{}", self.screen.shown().join("\n"));
            self.press(key);
        }
        self.ended().await
    }

    /// Waits for the end of the command; returns the exit code and the final rows.
    pub async fn ended(&mut self) -> (Option<i32>, Vec<String>) {
        let ended = timeout(PATIENCE, self.child.wait()).await.expect("it ends").expect("it ran");
        // The mark follows all output of the command.
        self.seat.write_all("\u{4}".as_bytes()).expect("a mark");
        while !self.screen.shown().last().is_some_and(|row| row.ends_with('\u{4}')) {
            let bytes = timeout(PATIENCE, self.output.recv()).await.expect("in time").expect("the mark");
            self.screen.take(&bytes);
        }
        let mut rows = self.screen.shown();
        let last = rows.pop().map(|row| row.trim_end_matches('\u{4}').trim_end().to_owned());
        rows.extend(last.filter(|row| !row.is_empty()));
        (ended.code(), rows)
    }

    /// Returns whether echo and line mode are on, as before the command.
    pub fn is_as_before(&self) -> bool {
        let modes = tcgetattr(&self.seat).expect("modes").local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }
}

/// Reads on a thread, because not every system can poll a terminal.
fn read_all(mut from: File) -> mpsc::Receiver<Vec<u8>> {
    let (sender, output) = mpsc::channel(1024);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if sender.blocking_send(buffer[..read].to_vec()).is_err() {
                break;
            }
        }
    });
    output
}

// === impl Screen ===

impl Screen {
    fn new(columns: usize) -> Self {
        let sequence = String::new();
        let bytes = Vec::new();
        Self { rows: vec![Vec::new()], row: 0, column: 0, columns, sequence, bytes }
    }

    fn shown(&self) -> Vec<String> {
        let text = |row: &Vec<char>| row.iter().filter(|c| **c != '\0').collect::<String>().trim_end().to_owned();
        let mut rows: Vec<String> = self.rows.iter().map(text).collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.bytes.push(*byte);
            let c = match std::str::from_utf8(&self.bytes) {
                Ok(text) => text.chars().next(),
                Err(error) if error.error_len().is_none() => continue,
                Err(error) => panic!("{error}: {:?}", self.bytes),
            };
            self.bytes.clear();
            self.put(c.expect("one character"));
        }
    }

    fn put(&mut self, c: char) {
        if !self.sequence.is_empty() {
            self.sequence.push(c);
            let is_begun = self.sequence.len() == 2 && c == '[';
            if !is_begun && c.is_ascii_alphabetic() {
                let sequence = std::mem::take(&mut self.sequence);
                self.obey(&sequence[2..]);
            }
            return;
        }
        match c {
            '\x1b' => self.sequence.push(c),
            '\r' => self.column = 0,
            '\n' => self.go_down(),
            '\x07' => {}
            c => self.show(c),
        }
    }

    fn go_down(&mut self) {
        self.row += 1;
        if self.row == self.rows.len() {
            self.rows.push(Vec::new());
        }
    }

    fn show(&mut self, c: char) {
        // East Asian wide characters; the tests use no other wide ones.
        let width = if c > '\u{2e7f}' { 2 } else { 1 };
        if self.column + width > self.columns {
            self.column = 0;
            self.go_down();
        }
        let row = &mut self.rows[self.row];
        row.resize(row.len().max(self.column + width), ' ');
        row[self.column] = c;
        row[self.column + 1..self.column + width].fill('\0');
        self.column += width;
    }

    fn obey(&mut self, sequence: &str) {
        let (numbers, name) = sequence.split_at(sequence.len() - 1);
        let number = || numbers.parse::<usize>().unwrap_or(1);
        match name {
            "A" => self.row = self.row.saturating_sub(number()),
            "B" => (0..number()).for_each(|_| self.go_down()),
            "C" => self.column = (self.column + number()).min(self.columns - 1),
            "D" => self.column = self.column.min(self.columns - 1).saturating_sub(number()),
            "K" => self.rows[self.row].truncate(self.column),
            "J" => {
                self.rows.truncate(self.row + 1);
                self.rows[self.row].truncate(self.column);
            }
            // Bracketed paste, synchronised output, and colours.
            "h" | "l" | "m" => {}
            other => panic!("the terminal of the tests does not know {other:?} of {sequence:?}"),
        }
    }
}

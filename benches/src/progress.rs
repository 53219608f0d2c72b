//! Shows the progress of a load: a bar on a terminal, otherwise a line now and then.
use crate::output::print_stderr;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Interval between two lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The progress display on stderr.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    last_line: RefCell<Option<Instant>>,
}

impl Progress {
    /// Creates a display, with a bar if stderr is a terminal.
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:32.cyan/dim} {prefix} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, last_line: RefCell::new(None) }
    }

    /// Shows that `done` of `of` is done.
    pub fn show(&self, done: u64, of: u64, what: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(of);
                bar.set_position(done.min(of));
                bar.set_message(what.to_owned());
            }
            None => {
                let now = Instant::now();
                let mut said = self.last_line.borrow_mut();
                if said.get_or_insert(now).elapsed() >= LINE_INTERVAL {
                    *said = Some(now);
                    print_stderr(&format!("{what}\n"));
                }
            }
        }
    }

    /// Removes the bar before the figures are printed.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

//! Prints a load's figures as a table, and writes them as JSON, HdrHistogram text or SVG. Called by every mode.
pub mod hgrm;
pub mod json;
pub mod plot;
pub mod table;

use crate::cli::{Load, Outputs};
use crate::print::say;
use crate::process::Watch;
use crate::record::{Count, Measure, Record};
use crate::run::Run;
use crate::trouble::Trouble;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use turnway::cli::Exit;

/// Delay at the 99th percentile from which the generator counts as behind its schedule.
const LATE_MAX: Duration = Duration::from_millis(1);

/// Description of a closed loop in which every connection is independent.
pub const ONE_EACH: Option<&str> = Some("closed loop, one outstanding for each connection");

/// The part of the figures that only the mode knows.
#[derive(Debug)]
pub struct Story {
    /// Counted things, in the plural.
    pub unit: &'static str,
    /// Number of counted things.
    pub count: u64,
    /// Description of the closed loop, which applies without a rate; `None` if the mode has no such loop.
    pub closed: Option<&'static str>,
    /// Further JSON, under the mode's name.
    pub more: Value,
    /// Further lines of the table.
    pub lines: Vec<(&'static str, String)>,
}

/// All data that the writers of figures use.
#[derive(Clone, Copy)]
pub struct Sheet<'a> {
    pub mode: &'static str,
    /// URL of the server, if there was one.
    pub url: Option<&'a str>,
    /// Requested load.
    pub load: Option<&'a Load>,
    /// Actual duration.
    pub lasted: Duration,
    pub record: &'a Record,
    /// Part of the mode.
    pub story: &'a Story,
    /// Process of the server, if it was watched.
    pub server: Option<&'a Watch>,
    /// This process.
    pub own: &'a Watch,
}

/// Prints a run's figures and writes its files. Returns whether all went well.
pub fn finish(run: &Run, story: &Story) -> Result<Exit, Trouble> {
    run.progress().clear();
    let record = run.record().borrow();
    let sheet = Sheet {
        mode: run.mode(),
        url: Some(&run.target().url),
        load: Some(run.load()),
        lasted: run.lasted(),
        record: &record,
        story,
        server: run.server(),
        own: run.own(),
    };
    publish(&sheet, run.outputs())
}

/// Prints figures and writes files. Returns whether all went well.
pub fn publish(sheet: &Sheet<'_>, outputs: &Outputs) -> Result<Exit, Trouble> {
    say(&table::of(sheet));
    if let Some(path) = &outputs.json {
        write(path, &json::of(sheet))?;
    }
    if let Some(path) = &outputs.hdr {
        for measure in Measure::ALL {
            let Some(histogram) = sheet.record.histogram(measure) else { continue };
            let is_first = measure == sheet.record.primary();
            let path = if is_first { path.clone() } else { beside(path, measure.key()) };
            write(&path, &hgrm::of(histogram))?;
        }
    }
    if let Some(path) = &outputs.plot {
        write(path, &plot::of(sheet))?;
    }
    Ok(if sheet.is_good() { Exit::Fine } else { Exit::Failed })
}

fn write(path: &Path, text: &str) -> Result<(), Trouble> {
    let failed = |error| Trouble::Failed(format!("cannot write {}: {error}", path.display()));
    std::fs::write(path, text).map_err(failed)
}

/// Inserts a name into a file name: `out.hgrm` and `accepted` give `out-accepted.hgrm`.
fn beside(path: &Path, name: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let end = path.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{name}{end}"))
}

// === impl Sheet ===

impl Sheet<'_> {
    /// Returns whether something was measured, nothing was lost or wrong, and everything was answered.
    pub fn is_good(&self) -> bool {
        let bad = [Count::Gaps, Count::Mismatches, Count::Unanswered];
        self.story.count > 0 && bad.iter().all(|count| self.record.counted(*count) == 0)
    }

    /// Returns whether the generator was late, so that latency includes its own delay.
    pub fn is_behind(&self) -> bool {
        let late = self.record.histogram(Measure::Late).map(|late| late.value_at_quantile(0.99));
        late.is_some_and(|late| u128::from(late) > LATE_MAX.as_nanos())
    }

    /// Returns a count per second.
    pub fn per_second(&self, count: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a load has fewer than 2^53 of anything")]
        let count = count as f64;
        count / self.lasted.as_secs_f64().max(1e-9)
    }

    /// Returns the server's CPU time for each counted thing, in microseconds.
    pub fn cpu_micros_each(&self) -> Option<f64> {
        let cpu = self.server?.cpu().total();
        #[expect(clippy::cast_precision_loss, reason = "a load has fewer than 2^53 of anything")]
        let count = self.story.count as f64;
        (self.story.count > 0).then(|| cpu.as_secs_f64() * 1e6 / count)
    }

    /// Returns whether requests are due by a schedule.
    pub fn is_open_loop(&self) -> bool {
        self.load.is_some_and(|load| load.rate.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_histograms_lie_beside_the_first() {
        assert_eq!(beside(Path::new("a/b.hgrm"), "done"), Path::new("a/b-done.hgrm"));
        assert_eq!(beside(Path::new("b"), "done"), Path::new("b-done"));
    }
}

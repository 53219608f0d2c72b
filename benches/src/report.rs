//! Prints a load's figures as a table, and writes them as JSON, HdrHistogram text or SVG. Called by every mode.
pub mod hgrm;
pub mod json;
pub mod plot;
pub mod table;

use crate::cli::{Load, Outputs};
use crate::error::BenchError;
use crate::output::print_stdout;
use crate::process::ProcessMonitor;
use crate::record::{Count, Measure, Record};
use crate::run::Run;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use turnway::cli::CliExit;

/// Delay at the 99th percentile from which the generator counts as behind its schedule.
const LATE_MAX: Duration = Duration::from_millis(1);

/// Description of a closed loop in which every connection is independent.
pub const CLOSED_LOOP_EACH: Option<&str> = Some("closed loop, one outstanding for each connection");

/// The part of the figures that only the mode knows.
#[derive(Debug)]
pub struct ModeFigures {
    /// Counted things, in the plural.
    pub unit: &'static str,
    /// Number of counted things.
    pub count: u64,
    /// Description of the closed loop, which applies without a rate; `None` if the mode has no such loop.
    pub closed_loop: Option<&'static str>,
    /// Further JSON, under the mode's name.
    pub extra_json: Value,
    /// Further lines of the table.
    pub extra_lines: Vec<(&'static str, String)>,
}

/// All data that the writers of figures use.
#[derive(Clone, Copy)]
pub struct ReportData<'a> {
    pub mode: &'static str,
    /// URL of the server, if there was one.
    pub url: Option<&'a str>,
    /// Requested load.
    pub load: Option<&'a Load>,
    /// Actual duration.
    pub duration: Duration,
    pub record: &'a Record,
    /// Part of the mode.
    pub mode_figures: &'a ModeFigures,
    /// Process of the server, if it was watched.
    pub server: Option<&'a ProcessMonitor>,
    /// This process.
    pub own: &'a ProcessMonitor,
}

/// Prints a run's figures and writes its files. Returns whether all went well.
pub fn finish(run: &Run, figures: &ModeFigures) -> Result<CliExit, BenchError> {
    run.progress().clear();
    let record = run.record().borrow();
    let sheet = ReportData {
        mode: run.mode(),
        url: Some(&run.target().url),
        load: Some(run.load()),
        duration: run.duration(),
        record: &record,
        mode_figures: figures,
        server: run.server(),
        own: run.own(),
    };
    publish(&sheet, run.outputs())
}

/// Prints figures and writes files. Returns whether all went well.
pub fn publish(sheet: &ReportData<'_>, outputs: &Outputs) -> Result<CliExit, BenchError> {
    print_stdout(&table::render(sheet));
    if let Some(path) = &outputs.json {
        write(path, &json::render(sheet))?;
    }
    if let Some(path) = &outputs.hdr {
        for measure in Measure::ALL {
            let Some(histogram) = sheet.record.histogram(measure) else { continue };
            let is_first = measure == sheet.record.primary();
            let path = if is_first { path.clone() } else { sibling_path(path, measure.key()) };
            write(&path, &hgrm::render(histogram))?;
        }
    }
    if let Some(path) = &outputs.plot {
        write(path, &plot::render(sheet))?;
    }
    Ok(if sheet.is_ok() { CliExit::Success } else { CliExit::Failed })
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    let failed = |error| BenchError::Failed(format!("cannot write {}: {error}", path.display()));
    std::fs::write(path, text).map_err(failed)
}

/// Inserts a name into a file name: `out.hgrm` and `accepted` give `out-accepted.hgrm`.
fn sibling_path(path: &Path, name: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let end = path.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{name}{end}"))
}

// === impl ReportData ===

impl ReportData<'_> {
    /// Returns whether something was measured, nothing was lost or wrong, and everything was answered.
    pub fn is_ok(&self) -> bool {
        let bad = [Count::Gaps, Count::Mismatches, Count::Unanswered];
        self.mode_figures.count > 0 && bad.iter().all(|count| self.record.counted(*count) == 0)
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
        count / self.duration.as_secs_f64().max(1e-9)
    }

    /// Returns the server's CPU time for each counted thing, in microseconds.
    pub fn cpu_micros_each(&self) -> Option<f64> {
        let cpu = self.server?.cpu().total();
        #[expect(clippy::cast_precision_loss, reason = "a load has fewer than 2^53 of anything")]
        let count = self.mode_figures.count as f64;
        (self.mode_figures.count > 0).then(|| cpu.as_secs_f64() * 1e6 / count)
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
        assert_eq!(sibling_path(Path::new("a/b.hgrm"), "done"), Path::new("a/b-done.hgrm"));
        assert_eq!(sibling_path(Path::new("b"), "done"), Path::new("b-done"));
    }
}

//! Renders the comparison as a Markdown table: medians, ranges and the conditions of the measurement.
use super::rows::figure_units as units;
use crate::cli::{Row, System};
use crate::error::BenchError;
use crate::process::Machine;
use clap::ValueEnum;
use std::fmt::Write;

/// The measurements of a system.
pub struct Column {
    pub system: System,
    /// Version, or the reason why the system is left out.
    pub version: Result<String, String>,
    /// One cell for each row.
    pub cells: Vec<Cell>,
}

/// One row of one system, with all its runs.
#[derive(Default)]
pub struct Cell {
    /// Figures of the successful runs.
    runs: Vec<Vec<f64>>,
    /// Errors of the failed runs.
    errors: Vec<String>,
}

/// A column with its heading.
pub struct NamedColumn {
    /// Heading in the table.
    pub name: &'static str,
    pub column: Column,
}

// === impl Cell ===

impl Cell {
    /// Adds the result of a run.
    pub fn add_run(&mut self, measured: Result<Vec<f64>, BenchError>) {
        match measured {
            Ok(figures) => self.runs.push(figures),
            Err(error) => self.errors.push(error.to_string()),
        }
    }

    /// Returns whether every run gave figures.
    pub fn is_measured(&self) -> bool {
        !self.runs.is_empty() && self.errors.is_empty()
    }

    /// Returns median, minimum and maximum of the n-th figure.
    pub fn spread(&self, n: usize) -> Option<(f64, f64, f64)> {
        let mut values: Vec<f64> = self.runs.iter().filter_map(|run| run.get(n).copied()).collect();
        values.sort_by(f64::total_cmp);
        Some((*values.get(values.len() / 2)?, *values.first()?, *values.last()?))
    }

    /// Formats medians and ranges, and the last error if any.
    fn text(&self, row: Row) -> String {
        let spreads: Vec<_> = (0..units(row).len()).filter_map(|n| self.spread(n)).collect();
        let join = |pick: &dyn Fn(&(f64, f64, f64)) -> String| spreads.iter().map(pick).collect::<Vec<_>>().join(" / ");
        let mut text = String::new();
        if !spreads.is_empty() {
            text = format!("**{}**", join(&|(median, _, _)| format_number(*median)));
            if self.runs.len() > 1 {
                let _ = write!(text, " ({})", join(&|(_, least, most)| format_range(*least, *most)));
            }
        }
        if let Some(error) = self.errors.last() {
            let line: String = error.lines().next().unwrap_or_default().chars().take(160).collect();
            let runs = self.errors.len();
            let _ = write!(text, "{}no figure in {runs}: {}", if text.is_empty() { "" } else { "; " }, line);
        }
        text.replace('|', "\\|")
    }
}

/// Returns the row's name on the command line.
pub fn row_name(row: Row) -> String {
    row.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

/// Formats a run's figures on one line.
pub fn figures_text(measured: &Result<Vec<f64>, BenchError>) -> String {
    match measured {
        Ok(figures) => figures.iter().map(|figure| format_number(*figure)).collect::<Vec<_>>().join(" / "),
        Err(error) => error.to_string(),
    }
}

/// Returns the row's title in the table.
pub fn row_title(row: Row) -> &'static str {
    match row {
        Row::Idle => "resident memory of an idle connection",
        Row::Latency => "one node: publish to receive at 1,000/s",
        Row::Max => "one node: most messages a second, 512 outstanding",
        Row::Fanout => "one channel, many subscribers: most deliveries a second",
        Row::Across => "two nodes: publish to receive at 1,000/s",
        Row::AcrossMax => "two nodes: most messages a second, 512 outstanding",
        Row::Drop => "a subscriber is gone for a while in mid-stream",
        Row::Kill => "its node is killed, and it is back elsewhere after 0.1 s",
        Row::Stall => "subscribers that read nothing for a while",
    }
}

/// Returns the whole page.
pub fn render(rows: &[Row], columns: &[NamedColumn], runs: u8, is_quick: bool) -> String {
    let mut text = String::from("# Turnway beside others\n\n");
    let measured: Vec<&NamedColumn> = columns.iter().filter(|named| named.column.version.is_ok()).collect();
    // Writing to a string cannot fail.
    if is_quick {
        text.push_str("Made with `--quick`, which only checks that everything works; the figures are meaningless.\n\n");
    }
    let heads: Vec<&str> = measured.iter().map(|named| named.name).collect();
    let _ = writeln!(text, "| | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for (n, row) in rows.iter().enumerate() {
        let cells: Vec<String> = measured.iter().map(|named| named.column.cells[n].text(*row)).collect();
        let units = units(*row).join(" / ");
        let _ = writeln!(text, "| {} ({units}) | {} |", row_title(*row), cells.join(" | "));
    }
    let times = if runs == 1 { "one run".to_owned() } else { format!("medians of {runs} runs (least–most)") };
    let machine = Machine::read();
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let memory = machine.memory_bytes as f64 / f64::from(1 << 30);
    let _ = writeln!(
        text,
        "\nMessages of 128 bytes over plain loopback WebSocket, times one way, publish to receive, by one clock; \
         {times}; systems in turns, servers and load on the same cores. {}; {} cores ({}), {memory:.0} GiB, \
         Linux {}, load average {} at the end. Identical runs can differ by a factor: no difference below 2 × \
         says anything.\n",
        jiff::Timestamp::now().strftime("%F %H:%M UTC"),
        machine.cores,
        machine.cpu,
        machine.kernel,
        machine.load_1m
    );
    for named in columns {
        let _ = match &named.column.version {
            Ok(version) => writeln!(text, "- {}: {version}", named.name),
            Err(why) => writeln!(text, "- {} is skipped: {why}", named.name),
        };
    }
    text
}

fn format_range(least: f64, most: f64) -> String {
    let least = format_number(least);
    let most = format_number(most);
    if least == most { least } else { format!("{least}–{most}") }
}

/// Formats small numbers with one decimal, and large ones with groups of three digits.
pub fn format_number(value: f64) -> String {
    if value.abs() < 100.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::from(if value <= -0.5 { "-" } else { "" });
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

// === impl Column ===

impl Column {
    /// Adds a heading.
    pub fn with_name(self, name: &'static str) -> NamedColumn {
        NamedColumn { name, column: self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_people() {
        for (value, text) in [(0.0, "0"), (3.94, "3.9"), (1_330_000.4, "1,330,000"), (-12.0, "-12")] {
            assert_eq!(format_number(value), text);
        }
    }

    #[test]
    fn a_cell_tells_median_spread_and_trouble() {
        let mut cell = Cell::default();
        for figures in [[31.0, 120.0], [30.0, 400.0], [33.0, 110.0]] {
            cell.add_run(Ok(figures.to_vec()));
        }
        assert_eq!(cell.text(Row::Latency), "**31 / 120** (30–33 / 110–400)");
        assert!(cell.is_measured());
        cell.add_run(Err(BenchError::Failed("stuck\nand more".to_owned())));
        assert_eq!(cell.text(Row::Latency), "**31 / 120** (30–33 / 110–400); no figure in 1: stuck");
        assert!(!cell.is_measured() && !Cell::default().is_measured());
    }
}

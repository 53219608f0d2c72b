//! Prints aligned tables, and sanitises text for terminals. Used by the commands that list things.
use std::io::IsTerminal;

/// A table with a header. Cells are never cut, because names are meant to be copied; a long cell wraps on a
/// narrow terminal. The output in a file or a pipe is the same, so programs can rely on it.
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// A column: its header and its alignment.
#[derive(Clone, Copy)]
pub(super) enum Column {
    /// Left-aligned, for text.
    Left(&'static str),
    /// Right-aligned, for numbers.
    Right(&'static str),
}

/// Returns whether stdout is a terminal.
pub(super) fn stdout_is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns the terminal's width in columns, or `None` if stdout is not a terminal.
pub(super) fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    stdout_is_terminal().then_some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Sanitises text of other people for a terminal, so that it cannot move the cursor or rename the window. Text
/// for a file or a pipe is left unchanged.
pub(super) fn sanitise_for_terminal(text: &str) -> String {
    if stdout_is_terminal() { replace_control_chars(text) } else { text.to_owned() }
}

/// Replaces control characters other than newline and tab, which could command a terminal.
pub(super) fn replace_control_chars(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}")
}

// === impl Table ===

impl Table {
    pub(super) fn new(columns: Vec<Column>) -> Self {
        let header = columns.iter().map(|column| column.name().to_owned()).collect();
        Self { columns, rows: vec![header] }
    }

    /// Appends a row. Control characters in cells are replaced, so that a cell has one line.
    pub(super) fn push_row(&mut self, cells: impl IntoIterator<Item = String>) {
        let one_line = |cell: String| cell.replace(char::is_control, "\u{fffd}");
        self.rows.push(cells.into_iter().map(one_line).collect());
    }

    /// Renders the whole table, one line a row.
    pub(super) fn render(&self) -> String {
        let width =
            |n: usize| self.rows.iter().filter_map(|row| Some(row.get(n)?.chars().count())).max().unwrap_or_default();
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.columns).zip(&widths);
            let cells: Vec<String> = cells.map(|((cell, column), width)| column.pad(cell, *width)).collect();
            format!("{}\n", cells.join("  ").trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

// === impl Column ===

impl Column {
    fn name(self) -> &'static str {
        match self {
            Self::Left(name) | Self::Right(name) => name,
        }
    }

    fn pad(self, cell: &str, width: usize) -> String {
        match self {
            Self::Left(_) => format!("{cell:<width$}"),
            Self::Right(_) => format!("{cell:>width$}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_aligned() {
        let mut table = Table::new(vec![Column::Left("NAME"), Column::Right("N"), Column::Left("MORE")]);
        table.push_row(["é".to_owned(), "100".to_owned(), String::new()]);
        table.push_row(["longer\n".to_owned(), "1".to_owned(), "x".to_owned()]);
        assert_eq!(table.render(), "NAME       N  MORE\né        100\nlonger\u{fffd}    1  x\n");
    }
}

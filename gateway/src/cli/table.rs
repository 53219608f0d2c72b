//! Lines that fit under each other.
use std::io::IsTerminal;

/// Rows under a header. Nothing is ever cut: names are for copying, and on a narrow terminal a long one
/// wraps. In a file or a pipe it looks the same, so what reads it can rely on it.
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// One column.
#[derive(Clone, Copy)]
pub(super) enum Column {
    /// Text, from the left.
    Left(&'static str),
    /// Numbers, to the right.
    Right(&'static str),
}

/// Whether a person looks at what is printed.
pub(super) fn is_seen() -> bool {
    std::io::stdout().is_terminal()
}

/// Columns of the terminal a person looks at; none where nobody does.
pub(super) fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    is_seen().then_some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// What others say must not move a person's cursor or rename their window. In a file or a pipe it is
/// left as it is.
pub(super) fn visible(text: &str) -> String {
    if is_seen() { harmless(text) } else { text.to_owned() }
}

/// Without what commands a terminal.
pub(super) fn harmless(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}")
}

// === impl Table ===

impl Table {
    pub(super) fn new(columns: Vec<Column>) -> Self {
        let header = columns.iter().map(|column| column.name().to_owned()).collect();
        Self { columns, rows: vec![header] }
    }

    /// Adds a row; a cell has one line.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let one_line = |cell: String| cell.replace(char::is_control, "\u{fffd}");
        self.rows.push(cells.into_iter().map(one_line).collect());
    }

    /// All of it, a line each.
    pub(super) fn text(&self) -> String {
        let width = |n: usize| {
            self.rows.iter().filter_map(|row| Some(row.get(n)?.chars().count())).max().unwrap_or_default()
        };
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
    fn columns_stand_under_each_other() {
        let mut table = Table::new(vec![Column::Left("NAME"), Column::Right("N"), Column::Left("MORE")]);
        table.row(["é".to_owned(), "100".to_owned(), String::new()]);
        table.row(["longer\n".to_owned(), "1".to_owned(), "x".to_owned()]);
        assert_eq!(table.text(), "NAME       N  MORE\né        100\nlonger\u{fffd}    1  x\n");
    }
}

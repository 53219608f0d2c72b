//! Computes the rows and columns that text takes in a terminal. Pure; called by the terminal.
use rustyline::GraphemeClusterMode;

/// Columns between two tab stops.
const TAB: usize = 8;
/// Width assumed for a terminal that does not report its size.
pub(super) const DEFAULT_COLUMNS: usize = 80;

/// The end of the text above the edited line; further text of an unfinished line continues there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OutputTail {
    /// The last line has no newline yet.
    is_open: bool,
    /// Columns used in the last row.
    column: usize,
}

// === impl OutputTail ===

impl OutputTail {
    /// Returns the output that appends text. Before and after that output, the cursor is at the start of the
    /// row below all text.
    pub(super) fn render_append(&mut self, text: &str, columns: usize) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        // After a full row the text continues in the next row, where the cursor already is.
        if self.is_open && self.column < columns {
            out.push_str("\x1b[A");
            if self.column > 0 {
                out.push_str(&format!("\x1b[{}C", self.column));
            }
        }
        out.push_str(text);
        let from = if self.is_open { self.column } else { 0 };
        self.column = end_position(text, from, columns).1;
        self.is_open = if text.is_empty() { self.is_open } else { !text.ends_with('\n') };
        if !out.ends_with('\n') {
            out.push('\n');
        }
        out
    }
}

/// Returns the rows below the first that the editor uses for a line; a full row is followed by an empty one.
pub(super) fn rows_below(line: &str, columns: usize) -> usize {
    let (rows, column) = end_position(line, 0, columns);
    rows + usize::from(column >= columns)
}

/// Returns the rows below the first one, and the columns used in the last row.
fn end_position(text: &str, mut column: usize, columns: usize) -> (usize, usize) {
    let mode = GraphemeClusterMode::from_env();
    let mut rows = 0;
    for c in text.chars() {
        let width = match c {
            '\n' => {
                (rows, column) = (rows + 1, 0);
                continue;
            }
            '\t' => TAB - column % TAB,
            c => usize::from(mode.width(c.encode_utf8(&mut [0; 4]))),
        };
        if c == '\t' {
            // A tab does not leave its row.
            column = (column + width).min(columns.saturating_sub(1).max(column));
        } else if column + width > columns {
            (rows, column) = (rows + 1, width);
        } else {
            column += width;
        }
    }
    (rows, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_pieces_are_appended_to_the_same_line() {
        let mut tail = OutputTail::default();
        assert_eq!(tail.render_append("echo: a", 20), "echo: a\n");
        assert_eq!(tail.render_append(" b", 20), "\x1b[A\x1b[7C b\n");
        assert_eq!(tail.render_append("\nnext\n", 20), "\x1b[A\x1b[9C\nnext\n");
        assert_eq!(tail.render_append("x", 20), "x\n", "the line before has ended");
    }

    #[test]
    fn full_row_wraps_to_the_next_one() {
        let mut tail = OutputTail::default();
        assert_eq!(tail.render_append("12345678", 8), "12345678\n");
        assert_eq!(tail.render_append("9", 8), "9\n");
        assert_eq!(tail.render_append("0", 8), "\x1b[A\x1b[1C0\n");
        let mut tail = OutputTail::default();
        tail.render_append("1234567", 8);
        // A wide character does not fit into the last column.
        assert_eq!(tail.render_append("日", 8), "\x1b[A\x1b[7C日\n");
        assert_eq!(tail.render_append("!", 8), "\x1b[A\x1b[2C!\n");
    }

    #[test]
    fn row_count_matches_the_editor() {
        for (line, rows) in [("> ", 0), ("> 12345", 0), ("> 123456", 1), ("> a\nb", 1), ("> 日日日日", 1)] {
            assert_eq!(rows_below(line, 8), rows, "{line:?}");
        }
    }
}

//! Renders a row as SVG: a bar for each system's median, with a line from minimum to maximum.
use super::page::{Cell, NamedColumn, format_number, row_title};
use super::rows::figure_units as units;
use crate::cli::Row;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 110.0;
/// Space for the figure behind a bar.
const RIGHT: f64 = 190.0;
const TOP: f64 = 56.0;
const BAR: f64 = 22.0;
const STEP: f64 = 34.0;
/// Turnway's colour, and that of all other systems.
const COLOURS: [&str; 2] = ["#d55e00", "#0072b2"];

/// Renders the n-th row. If a row has several figures, the first one has bars.
pub fn render(row: Row, n: usize, columns: &[NamedColumn]) -> String {
    let spread = |cell: &Cell| cell.spread(0);
    let bars: Vec<_> =
        columns.iter().filter_map(|named| Some((named, named.column.cells.get(n).and_then(spread)?))).collect();
    let most = bars.iter().map(|(_, (_, _, most))| *most).fold(1e-9, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / most;
    let height = TOP + STEP * f64::from(u32::try_from(bars.len()).unwrap_or(0)) + 12.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"13\" \
         fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let unit = units(row).first().copied().unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "<text x=\"16\" y=\"24\" font-size=\"16\">{}</text>", row_title(row));
    let _ = writeln!(text, "<text x=\"16\" y=\"43\" fill=\"#666\">{unit}; median, least to most</text>");
    let mut y = TOP;
    for (named, (median, least, most)) in &bars {
        let colour = COLOURS[usize::from(named.name != "Turnway")];
        let middle = y + BAR / 2.0;
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"#222\" \
             stroke-width=\"2\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 8.0,
            middle + 4.5,
            named.name,
            (median * scale).max(0.0),
            LEFT + (least * scale).max(0.0),
            LEFT + (most * scale).max(0.0),
            LEFT + (most * scale).max(0.0) + 8.0,
            middle + 4.5,
            format_number(*median)
        );
        y += STEP;
    }
    text.push_str("</svg>\n");
    text
}

//! Renders a load as SVG: latency by percentile, and throughput, latency and memory over time.
mod panel;

use crate::record::{Measure, Tick, micros};
use crate::report::{ReportData, table};
use hdrhistogram::Histogram;
use panel::{Axis, Curve, HEIGHT, Panel, WIDTH, escape};
use std::fmt::Write;

const HEADER_HEIGHT: f64 = 64.0;
/// Steps of the percentile curve in each halving of the remaining distance to 100 %.
const STEPS: u32 = 8;

/// Returns the whole SVG file.
pub fn render(sheet: &ReportData<'_>) -> String {
    let panels: Vec<Panel> = [percentiles(sheet), throughput(sheet), latency_over_time(sheet), memory(sheet)]
        .into_iter()
        .flatten()
        .collect();
    #[expect(clippy::cast_precision_loss, reason = "four at most")]
    let height = HEADER_HEIGHT + HEIGHT * panels.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"13\" \
         fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let (title, below) = titles(sheet);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "<text x=\"24\" y=\"30\" font-size=\"18\">{}</text>", escape(&title));
    let _ = writeln!(text, "<text x=\"24\" y=\"50\" fill=\"#666\">{}</text>", escape(&below));
    for (n, panel) in panels.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "four at most")]
        let top = HEADER_HEIGHT + HEIGHT * n as f64;
        text.push_str(&panel.draw(top));
    }
    text.push_str("</svg>\n");
    text
}

fn titles(sheet: &ReportData<'_>) -> (String, String) {
    let rate = sheet.per_second(sheet.mode_figures.count);
    let title = format!("turnway-bench {}: {rate:.0} {}/s", sheet.mode, sheet.mode_figures.unit);
    let how = match sheet.load.map(|load| (load.connections, load.rate)) {
        Some((count, Some(rate))) => format!("{count} connections, open loop at {rate}/s, "),
        Some((count, None)) if sheet.mode_figures.closed_loop.is_some() => {
            format!("{count} connections, closed loop, ")
        }
        Some((count, None)) => format!("{count} connections, "),
        None => String::new(),
    };
    let date = jiff::Timestamp::now().strftime("%F %H:%M UTC").to_string();
    (title, format!("{how}{:.0} s, {date}", sheet.duration.as_secs_f64()))
}

/// Plots every measured duration against its percentile.
fn percentiles(sheet: &ReportData<'_>) -> Option<Panel> {
    let curves: Vec<Curve> = Measure::ALL
        .into_iter()
        .filter_map(|measure| Some((measure, sheet.record.histogram(measure)?)))
        .map(|(measure, histogram)| Curve::new(measure.key().replace('_', " "), percentile_points(histogram)))
        .collect();
    let x = percentile_axis(curves.iter().filter_map(|curve| curve.points.last()).map(|(x, _)| *x).fold(1.0, f64::max));
    Some(Panel { title: "Latency by percentile", x, y: latency_axis(&curves)?, curves })
}

/// Returns a point for each percentile, on a scale of nines: 0 is 0 %, 1 is 90 %, 2 is 99 %.
fn percentile_points(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    #[expect(clippy::cast_precision_loss, reason = "a load has fewer than 2^53 of anything")]
    let last = (histogram.len() as f64).log10().max(0.3);
    let point = |rank: f64, value: u64| {
        let nines = if rank < 1.0 { -(1.0 - rank).log10() } else { last };
        (nines.min(last), micros(value).max(0.001).log10())
    };
    let steps = histogram.iter_quantiles(STEPS);
    steps.map(|step| point(step.quantile_iterated_to(), step.value_iterated_to())).collect()
}

fn percentile_axis(last: f64) -> Axis {
    let names = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"];
    let ticks = (0_u8..).zip(names).map(|(n, name)| (f64::from(n), name.to_owned()));
    let ticks = ticks.filter(|(n, _)| *n <= last).chain([(std::f64::consts::LOG10_2, "50 %".to_owned())]).collect();
    Axis { title: "percentile", from: 0.0, to: last, ticks }
}

/// Returns an axis with decades of microseconds that covers all curves.
fn latency_axis(curves: &[Curve]) -> Option<Axis> {
    let values = || curves.iter().flat_map(|curve| &curve.points).map(|(_, y)| *y);
    let low = values().reduce(f64::min)?;
    let high = values().reduce(f64::max)?;
    let from = low.floor();
    let to = high.ceil().max(low.floor() + 1.0);
    let decades = std::iter::successors(Some(from), |at| (at + 1.0 <= to).then_some(at + 1.0));
    let ticks = decades.map(|at| (at, decade(at))).collect();
    Some(Axis { title: "latency", from, to, ticks })
}

/// Formats a power of ten of microseconds, such as `1 µs` or `10 ms`.
fn decade(exponent: f64) -> String {
    let text = table::format_micros(10_f64.powf(exponent));
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {unit}")
}

fn throughput(sheet: &ReportData<'_>) -> Option<Panel> {
    let points = over_time(sheet, |tick| Some(tick.rate));
    let y = Axis::linear("per second", points.iter().map(|(_, y)| *y).fold(1.0, f64::max), |n| format!("{n}"));
    let curves = vec![Curve::new(sheet.mode_figures.unit.to_owned(), points)];
    Panel { title: "Throughput", x: time_axis(sheet), y, curves }.unless_empty()
}

fn latency_over_time(sheet: &ReportData<'_>) -> Option<Panel> {
    let of =
        |pick: fn(&Tick) -> Option<f64>| over_time(sheet, |tick| pick(tick).map(|micros| micros.max(0.001).log10()));
    let name = sheet.record.primary().key().replace('_', " ");
    let curves = vec![
        Curve::new(format!("{name}, p50"), of(|tick| tick.p50)),
        Curve::new(format!("{name}, p99"), of(|tick| tick.p99)),
    ];
    let y = latency_axis(&curves)?;
    Panel { title: "Latency, second by second", x: time_axis(sheet), y, curves }.unless_empty()
}

fn memory(sheet: &ReportData<'_>) -> Option<Panel> {
    #[expect(clippy::cast_precision_loss, reason = "for a picture")]
    let points = over_time(sheet, |tick| tick.rss.map(|rss| rss as f64 / (1024.0 * 1024.0)));
    let y = Axis::linear("MiB", points.iter().map(|(_, y)| *y).fold(1.0, f64::max), |n| format!("{n}"));
    let curves = vec![Curve::new("resident memory of the server".to_owned(), points)];
    Panel { title: "Memory", x: time_axis(sheet), y, curves }.unless_empty()
}

fn time_axis(sheet: &ReportData<'_>) -> Axis {
    let last = sheet.record.ticks().last().map_or(1.0, |tick| tick.at);
    Axis { to: last, ..Axis::linear("seconds", last, |n| format!("{n}")) }
}

fn over_time(sheet: &ReportData<'_>, pick: impl Fn(&Tick) -> Option<f64>) -> Vec<(f64, f64)> {
    sheet.record.ticks().iter().filter_map(|tick| Some((tick.at, pick(tick)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decades_have_round_names() {
        assert_eq!([0.0, 1.0, 3.0, 5.0, 6.0].map(decade), ["1 µs", "10 µs", "1 ms", "100 ms", "1 s"]);
    }

    #[test]
    fn a_tail_ends_with_the_rarest_case() {
        let mut histogram = Histogram::new(3).expect("digits");
        (1..=1000_u64).for_each(|n| histogram.record(n * 1000).expect("in range"));
        let tail = percentile_points(&histogram);
        assert!(tail.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
        let (x, y) = tail.last().copied().expect("points");
        assert!((x - 3.0).abs() < 1e-9 && (y - 3.0).abs() < 1e-3, "{x} {y}");
    }
}

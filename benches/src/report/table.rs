//! Renders figures as a text table for people.
use crate::process::ProcessMonitor;
use crate::record::{Count, Measure, micros};
use crate::report::ReportData;
use hdrhistogram::Histogram;
use std::fmt::Write;

const RANKS: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// Returns the whole table.
pub fn render(sheet: &ReportData<'_>) -> String {
    let mut text = format!("\n{}: {}\n\n", sheet.mode, conditions(sheet));
    latencies(&mut text, sheet);
    text.push('\n');
    for (name, value) in rows(sheet) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<16}{value}");
    }
    for remark in remarks(sheet) {
        let _ = writeln!(text, "! {remark}");
    }
    text
}

fn conditions(sheet: &ReportData<'_>) -> String {
    let seconds = sheet.duration.as_secs_f64();
    let Some(load) = sheet.load else { return format!("{seconds:.1} s") };
    let how = match load.rate {
        Some(rate) => format!("open loop at {rate}/s, latency from when each was due"),
        None => sheet.mode_figures.closed_loop.unwrap_or_default().to_owned(),
    };
    let how = if how.is_empty() { how } else { format!("{how}, ") };
    format!("{} connections, {how}{seconds:.1} s", load.connections)
}

fn latencies(text: &mut String, sheet: &ReportData<'_>) {
    let _ = write!(text, "{:<16}", "");
    for name in RANKS.iter().map(|(name, _)| *name).chain(["max", "count"]) {
        let _ = write!(text, "{name:>11}");
    }
    text.push('\n');
    for measure in Measure::ALL {
        let Some(histogram) = sheet.record.histogram(measure) else { continue };
        let _ = write!(text, "{:<16}", measure.key().replace('_', " "));
        for value in ranks(histogram) {
            let _ = write!(text, "{value:>11}");
        }
        let _ = writeln!(text, "{:>11}", histogram.len());
    }
}

fn ranks(histogram: &Histogram<u64>) -> impl Iterator<Item = String> + use<'_> {
    #[expect(clippy::cast_precision_loss, reason = "a load has fewer than 2^53 of anything")]
    let count = histogram.len() as f64;
    // A percentile needs enough values: the 99.9th is not known after a hundred.
    let known = move |rank: f64| count * (1.0 - rank) >= 1.0;
    let at = RANKS.iter().map(move |(_, rank)| known(*rank).then(|| histogram.value_at_quantile(*rank)));
    at.chain([Some(histogram.max())])
        .map(|nanos| nanos.map_or_else(|| "–".to_owned(), |nanos| format_micros(micros(nanos))))
}

fn rows(sheet: &ReportData<'_>) -> Vec<(&'static str, String)> {
    let of = |count| sheet.record.counted(count);
    let mut rows = Vec::new();
    let count = sheet.mode_figures.count;
    let unit = sheet.mode_figures.unit;
    rows.push(("throughput", format!("{:.0} {unit}/s ({count} {unit})", sheet.per_second(count))));
    let in_load = |count| sheet.record.counted_in_load(count);
    if in_load(Count::Deltas) > 0 {
        let deltas = in_load(Count::Deltas);
        let bytes = in_load(Count::TextBytes);
        let each = sheet.per_second(deltas);
        let all = sheet.per_second(bytes);
        rows.push(("text", format!("{each:.0} deltas/s, {}/s ({deltas} deltas)", format_bytes(all))));
    }
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let traffic = |messages, bytes| format!("{} messages, {}", of(messages), format_bytes(of(bytes) as f64));
    if of(Count::MessagesOut) > 0 {
        rows.push(("received", traffic(Count::MessagesIn, Count::BytesIn)));
        rows.push(("sent", traffic(Count::MessagesOut, Count::BytesOut)));
    }
    for (name, count) in [
        ("failed", Count::Failed),
        ("cancelled", Count::Cancelled),
        ("refused", Count::Refused),
        ("unanswered", Count::Unanswered),
        ("resumed", Count::Resumed),
        ("lost links", Count::Lost),
    ] {
        if of(count) > 0 {
            rows.push((name, of(count).to_string()));
        }
    }
    let errors: Vec<String> = sheet.record.errors().iter().map(|(code, times)| format!("{code} {times}")).collect();
    rows.push(("errors", if errors.is_empty() { "none".to_owned() } else { errors.join(", ") }));
    rows.extend(sheet.mode_figures.extra_lines.iter().map(|(name, value)| (*name, value.clone())));
    rows.extend(sheet.server.map(|server| ("server", process(server, sheet))));
    let own = sheet.own.cpu().total().as_secs_f64();
    let share = own * 100.0 / sheet.duration.as_secs_f64().max(1e-9);
    rows.push(("generator", format!("{own:.2} s of CPU time, {share:.0} % of a core")));
    rows
}

fn process(server: &ProcessMonitor, sheet: &ReportData<'_>) -> String {
    let cpu = server.cpu();
    let each = sheet.cpu_micros_each().map(|each| format!(", {} each", format_micros(each))).unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let memory = [server.rss_before, server.process.rss().unwrap_or(0), server.rss_peak()]
        .map(|bytes| format_bytes(bytes as f64));
    let [before, now, peak] = memory;
    format!(
        "{:.2} s of CPU time ({:.2} s in the kernel){each}; memory {before}, then {now}, at most {peak}",
        cpu.total().as_secs_f64(),
        cpu.system.as_secs_f64(),
    )
}

fn remarks(sheet: &ReportData<'_>) -> Vec<String> {
    let of = |count| sheet.record.counted(count);
    let mut remarks = Vec::new();
    if sheet.is_behind() {
        let late = "the generator fell behind its schedule (see `late`): a part of each latency is its own";
        remarks.push(late.to_owned());
    }
    for (count, what) in [
        (of(Count::Gaps), "pieces were missing, repeated or out of order"),
        (of(Count::Mismatches), "answers differ from the expected ones"),
        (of(Count::Unanswered), "were not answered in time"),
    ] {
        if count > 0 {
            remarks.push(format!("{count} {what}"));
        }
    }
    if sheet.mode_figures.count == 0 {
        remarks.push(format!("no {} were measured", sheet.mode_figures.unit));
    }
    remarks
}

/// Formats microseconds in a readable unit.
pub fn format_micros(micros: f64) -> String {
    if micros < 1000.0 {
        format!("{micros:.1} µs")
    } else if micros < 1e6 {
        format!("{:.2} ms", micros / 1e3)
    } else {
        format!("{:.2} s", micros / 1e6)
    }
}

/// Formats bytes in a readable unit.
pub fn format_bytes(bytes: f64) -> String {
    let mut value = bytes;
    let mut units = ["KiB", "MiB", "GiB", "TiB"].iter();
    let mut unit = "B";
    while value >= 1024.0
        && let Some(next) = units.next()
    {
        (value, unit) = (value / 1024.0, next);
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_read_well() {
        assert_eq!(
            [format_micros(12.34), format_micros(1234.0), format_micros(2.5e6)],
            ["12.3 µs", "1.23 ms", "2.50 s"]
        );
        assert_eq!([format_bytes(512.0), format_bytes(2048.0), format_bytes(3.5e9)], ["512.0 B", "2.0 KiB", "3.3 GiB"]);
    }
}

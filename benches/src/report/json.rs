//! Renders figures as JSON for programs. The names are documented in docs/benchmarks.md and stay stable.
use crate::process::{Machine, ProcessMonitor};
use crate::record::{Count, Measure, micros};
use crate::report::ReportData;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// Returns all figures as one JSON object.
pub fn render(sheet: &ReportData<'_>) -> String {
    let machine = Machine::read();
    let mut all = json!({
        "mode": sheet.mode,
        "version": env!("CARGO_PKG_VERSION"),
        "command": std::env::args().collect::<Vec<_>>(),
        "date": jiff::Timestamp::now().to_string(),
        "machine": {
            "cores": machine.cores, "cpu": machine.cpu, "kernel": machine.kernel,
            "memory_bytes": machine.memory_bytes, "load_1m": machine.load_1m,
        },
        "url": sheet.url,
        "connections": sheet.load.map(|load| load.connections),
        "rate": sheet.load.and_then(|load| load.rate),
        "loop": sheet.mode_figures.closed_loop.map(|_| if sheet.is_open_loop() { "open" } else { "closed" }),
        "duration_s": sheet.duration.as_secs_f64(),
        "throughput": {
            "unit": sheet.mode_figures.unit, "count": sheet.mode_figures.count,
            "per_second": sheet.per_second(sheet.mode_figures.count),
        },
        "counts": counts(sheet),
        "latency_us": latencies(sheet),
        "errors": sheet.record.errors(),
        "generator": {
            "behind": sheet.is_behind(), "cpu_s": sheet.own.cpu().total().as_secs_f64(),
            "rss_bytes": sheet.own.process.rss(),
        },
        "server": sheet.server.map(|server| process(server, sheet)),
        "timeline": timeline(sheet),
        "ok": sheet.is_ok(),
    });
    all[sheet.mode.replace('-', "_")] = sheet.mode_figures.extra_json.clone();
    format!("{all:#}\n")
}

fn counts(sheet: &ReportData<'_>) -> Map<String, Value> {
    let count = |count: Count| (count.key().to_owned(), sheet.record.counted(count).into());
    Count::ALL.into_iter().map(count).collect()
}

fn latencies(sheet: &ReportData<'_>) -> Map<String, Value> {
    let measured = Measure::ALL.into_iter().filter_map(|measure| {
        let histogram = sheet.record.histogram(measure)?;
        Some((measure.key().to_owned(), latency(histogram)))
    });
    measured.collect()
}

fn latency(histogram: &Histogram<u64>) -> Value {
    let at = |rank| micros(histogram.value_at_quantile(rank));
    json!({
        "count": histogram.len(), "mean": histogram.mean() / 1000.0, "min": micros(histogram.min()),
        "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p99_9": at(0.999), "p99_99": at(0.9999),
        "max": micros(histogram.max()),
    })
}

fn process(server: &ProcessMonitor, sheet: &ReportData<'_>) -> Value {
    let cpu = server.cpu();
    json!({
        "pid": server.process.pid(), "rss_before_bytes": server.rss_before,
        "rss_peak_bytes": server.rss_peak(), "rss_after_bytes": server.process.rss(),
        "cpu_user_s": cpu.user.as_secs_f64(), "cpu_system_s": cpu.system.as_secs_f64(),
        "cpu_us_each": sheet.cpu_micros_each(),
    })
}

fn timeline(sheet: &ReportData<'_>) -> Vec<Value> {
    let tick = |tick: &crate::record::Tick| {
        json!({
            "t_s": tick.at, "per_second": tick.rate, "p50_us": tick.p50, "p99_us": tick.p99,
            "rss_bytes": tick.rss,
        })
    };
    sheet.record.ticks().iter().map(tick).collect()
}

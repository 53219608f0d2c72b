//! Renders docs/metrics.md from the registered families; a test keeps the file up to date.
use super::{FamilySpec, MetricKind, Metrics};
use prometheus::Registry;
use prometheus::proto::MetricType;
use std::fmt::Write;

/// The text before the tables.
const INTRODUCTION: &str = "# Metrics

<!-- Made from the registry: `./test bless` writes it. -->

`GET /metrics` on the operators' listener, in Prometheus' text format. Names are
`turnway_<area>_<what>_<unit or total>`. Labels have small fixed sets of values, all of them below; none is
an id or holds content. Every series exists from the start, except those with the label `op` or `route`, which
exist from the first event of their kind. Durations at the owner restart when another owner takes a turn over.
[operations.md](operations.md) says what to watch, and `deploy/prometheus/rules.yml` has the alerts.
";

/// Areas with their titles, in the order of the document.
const AREAS: [(&str, &str); 20] = [
    ("build", "The build"),
    ("node", "The node"),
    ("link", "Connections of clients"),
    ("tls", "TLS with clients"),
    ("auth", "Credentials"),
    ("http", "HTTP requests"),
    ("request", "Requests of clients"),
    ("turn", "Turns"),
    ("inbox", "Inboxes"),
    ("session", "Sessions"),
    ("delivery", "Delivery to clients"),
    ("log", "Logs"),
    ("agent", "Agents"),
    ("model", "Calls of models"),
    ("ownership", "Ownership"),
    ("store", "The store"),
    ("blob", "The store of files"),
    ("bus", "Other nodes"),
    ("switchboard", "The switchboard"),
    ("driver", "The task that drives the switchboard"),
];

/// Returns the document, built from a fresh registration of all families.
pub fn document() -> prometheus::Result<String> {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry)?;
    let mut text = INTRODUCTION.to_owned();
    for (area, title) in AREAS {
        let ours: Vec<&FamilySpec> = metrics.families().iter().filter(|family| family.area() == area).collect();
        push_section(&mut text, title, ours.into_iter().map(family_row));
    }
    let rest = metrics.families().iter().filter(|family| AREAS.iter().all(|(area, _)| family.area() != *area));
    push_section(&mut text, "Other", rest.map(family_row));
    let gathered = registry.gather();
    let process = gathered.iter().filter(|family| family.name().starts_with("process_"));
    let process = process.map(|family| {
        let kind = if family.get_field_type() == MetricType::COUNTER { "counter" } else { "gauge" };
        format!("| `{}` | {kind} | {} | | {} |", family.name(), unit_of(family.name()), family.help())
    });
    push_section(&mut text, "The process", process);
    Ok(text)
}

fn push_section(text: &mut String, title: &str, rows: impl Iterator<Item = String>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = write!(text, "\n## {title}\n\n| name | type | unit | labels | what |\n|---|---|---|---|---|\n");
    rows.for_each(|row| *text += &(row + "\n"));
}

fn family_row(family: &FamilySpec) -> String {
    let kind = match family.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
    };
    let labels = family.labels.iter().map(|(name, values)| {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        format!("`{name}`: {}", values.join(" "))
    });
    let labels = labels.collect::<Vec<_>>().join("; ");
    format!("| `{}` | {kind} | {} | {labels} | {} |", family.name, unit_of(family.name), family.help)
}

/// Returns the unit that a family's name ends with, or `count`.
fn unit_of(name: &str) -> &'static str {
    let name = name.trim_end_matches("_total");
    ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit)).unwrap_or("count")
}

// === impl FamilySpec ===

impl FamilySpec {
    fn area(&self) -> &str {
        self.name.split('_').nth(1).unwrap_or_default()
    }
}

//! Logs to stderr, one event a line. Content of conversations and control characters must not be logged. Called by
//! `node`.
use std::ffi::OsStr;
use std::fmt::{self, Debug};
use std::io::IsTerminal;
use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The gateway's own crates. Other crates log only warnings and errors, because some of them would log the data they
/// carry.
const OWN_CRATES: [&str; 7] = [
    "turnway",
    "turnway_core",
    "turnway_wire",
    "turnway_node",
    "turnway_tool_executor",
    "turnway_bindings",
    "turnway_client",
];

/// Starts logging. `level` is the text of `RUST_LOG`, if set: a single level, for the gateway's own crates.
pub fn start(shape: LogShape, level: Option<&str>) {
    let level = level.and_then(|text| text.parse().ok()).unwrap_or(LevelFilter::INFO);
    let targets = Targets::new().with_default(LevelFilter::WARN).with_targets(OWN_CRATES.map(|ours| (ours, level)));
    let registry = tracing_subscriber::registry().with(targets);
    let stderr = std::io::stderr;
    let is_colored = uses_color(stderr().is_terminal(), std::env::var_os("NO_COLOR").as_deref());
    let started = match shape {
        LogShape::Pretty => registry
            .with(layer().with_ansi(is_colored).with_writer(stderr).fmt_fields(debug_fn(escaped).delimited(" ")))
            .try_init(),
        LogShape::Json => registry.with(layer().json().flatten_event(true).with_writer(stderr)).try_init(),
    };
    if started.is_err() {
        tracing::debug!("a logger is already installed");
    }
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, why = panic_message(panic.payload()), "panic");
    }));
}

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogShape {
    /// Text for people.
    Pretty,
    /// JSON for machines.
    Json,
}

/// Returns whether a log for people is colored: on a terminal, unless `NO_COLOR` is set and not empty (no-color.org).
fn uses_color(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

/// Returns the message of a panic on a broken invariant. Other panics are not quoted: those of the standard library, of
/// a slice out of bounds for example, quote the very text that was sliced (S-38).
fn panic_message(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
    if text.starts_with("invariant: ") { text } else { "message withheld: it may quote content" }
}

/// Writes a field so that it cannot forge a line or send control sequences to a terminal (S-39). JSON escapes by
/// itself.
fn escaped(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    if field.name() != "message" {
        write!(writer, "{field}=")?;
    }
    writer.write_str(&escape_controls(value))
}

/// Formats a value with its control characters escaped.
fn escape_controls(value: &dyn Debug) -> String {
    let mut text = String::new();
    for c in format!("{value:?}").chars() {
        if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_without_no_color_gets_colors() {
        for (value, is_colored) in [(None, true), (Some(""), true), (Some("1"), false), (Some("0"), false)] {
            let value = value.map(OsStr::new);
            assert_eq!(uses_color(true, value), is_colored, "{value:?}");
            assert!(!uses_color(false, value), "a file or a pipe: {value:?}");
        }
    }

    /// Covers: S-39.
    #[test]
    fn log_field_cannot_forge_a_line() {
        assert_eq!(escape_controls(&format_args!("a\n\u{1b}[31mERROR\u{85}")), "a\\n\\u{1b}[31mERROR\\u{85}");
    }

    /// Covers: S-38.
    #[test]
    fn only_panics_of_own_code_are_quoted() {
        assert_eq!(panic_message(&"invariant: the log never shrinks"), "invariant: the log never shrinks");
        assert!(!panic_message(&"byte index 1 is inside 'é' of `canary`".to_owned()).contains("canary"));
    }
}

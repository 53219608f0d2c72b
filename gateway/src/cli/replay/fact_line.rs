//! Formats one fact of a replay as a line of text or as JSON. Called by the replay.
use crate::cli::render::{ending_text, speaker_name};
use crate::cli::table::sanitise_for_terminal;
use crate::cli::time_format::format_date;
use serde_json::{Map, Value, json};
use turnway_client::{Done, FactPosition};
use turnway_core::protocol::entry::{Fact, FactKind};

/// Maximum characters of a fact's data on one line, if the output is not a terminal.
const DATA_CHARS_MAX: usize = 100;
/// Minimum characters of a fact's data, however narrow the terminal is.
const DATA_CHARS_MIN: usize = 20;
/// Fields that every message has, and fields that have a column of their own; left out of a fact's data.
const ENVELOPE_KEYS: [&str; 9] =
    ["type", "ts", "session_id", "seq", "epoch", "request_id", "run_id", "name", "message"];

/// A fact as it is shown to a client.
pub(super) struct FactLine<'a> {
    pub(super) position: FactPosition,
    pub(super) body: &'a Map<String, Value>,
    /// The whole answer of a `done` fact.
    pub(super) done: Option<&'a Done>,
}

pub(super) fn kind(body: &Map<String, Value>) -> &str {
    body.get("type").and_then(Value::as_str).unwrap_or_default()
}

// === impl FactLine ===

impl FactLine<'_> {
    /// Returns the fact's type, derived from the message that shows it (the table of docs/protocol.md §4,
    /// reversed).
    pub(super) fn fact_type(&self) -> &str {
        let word = |key: &str| self.body.get(key).and_then(Value::as_str).unwrap_or_default();
        match (kind(self.body), word("name")) {
            ("message", _) => "user.message",
            ("handover_prompt", _) => "handover.requested",
            ("tool_event", name) => name,
            ("run_started", _) => "run.started",
            ("state", _) => "run.state",
            ("session_opened", _) => "session.opened",
            ("session_closed", _) => "session.closed",
            ("done", _) => match word("status") {
                "failed" => "run.failed",
                "cancelled" => "run.cancelled",
                _ => "run.done",
            },
            ("error", _) => match word("code") {
                "ADD_AGENT_FAILED" => "agent.add_failed",
                "REMOVE_AGENT_FAILED" => "agent.remove_failed",
                // A request that had no effect.
                _ => "session.notice",
            },
            // A fact that is shown only on request carries its own type as the event's name.
            ("event", name) if name.contains('.') => name,
            ("event", name) => {
                let shows = |kind: &&FactKind| kind.messages.strip_prefix("event ") == Some(name);
                Fact::kinds().find(shows).map_or("session.notice", |kind| kind.name)
            }
            (kind, _) => kind,
        }
    }

    /// Returns the fact for programs, with the whole answer of a `done`.
    pub(super) fn json(&self) -> Value {
        let mut body = self.body.clone();
        if let Some(done) = self.done {
            body.insert("text".to_owned(), done.text.clone().into());
            if let Some(error) = &done.error {
                let error = json!({"code": error.code, "message": error.message, "retryable": error.retryable});
                body.insert("error".to_owned(), error);
            }
        }
        Value::Object(body)
    }

    /// Returns the fact for people: time, sequence number, type and data. On a terminal the date is left out,
    /// and data that is not part of a message is cut to the width; elsewhere lines are whole.
    pub(super) fn text(&self, width: Option<usize>) -> String {
        let name = match kind(self.body) {
            "event" => self.body.get("name").and_then(Value::as_str).unwrap_or("event"),
            kind => kind,
        };
        let time = self.position.ts.map(format_date).unwrap_or_default();
        let head = match (width, time.split_once('T')) {
            (Some(_), Some((_, of_day))) => {
                format!("{}  {:>4}  {name:<18}  ", of_day.trim_end_matches('Z'), self.position.seq)
            }
            (_, _) => format!("{time}  {:>6}  {name:<20}  ", self.position.seq),
        };
        let data = match (kind(self.body), self.done) {
            ("done", Some(done)) => answer_text(done),
            ("message", _) => message_text(self.body),
            (_, _) => {
                let max = width.map_or(DATA_CHARS_MAX, |width| width.saturating_sub(head.chars().count()));
                data_text(self.body, max.max(DATA_CHARS_MIN))
            }
        };
        sanitise_for_terminal(&format!("{head}{data}")).trim_end().to_owned()
    }
}

fn answer_text(done: &Done) -> String {
    let text = (!done.text.is_empty()).then(|| done.text.clone());
    let parts: Vec<String> = text.into_iter().chain(ending_text(done)).collect();
    format!("{}: {}", speaker_name(done.agent.as_deref()), parts.join(" "))
}

fn message_text(body: &Map<String, Value>) -> String {
    let who = body.get("user_id").or_else(|| body.get("role")).and_then(Value::as_str);
    let text = match body.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => String::new(),
    };
    format!("{}: {text}", who.unwrap_or("user"))
}

/// Formats the remaining fields, cut to `chars_max` characters.
fn data_text(body: &Map<String, Value>, chars_max: usize) -> String {
    // A fact that is shown only on request has its fields in `data`.
    let inner = body.get("data").and_then(Value::as_object).unwrap_or(body);
    let fields = inner.iter().filter(|(key, _)| !ENVELOPE_KEYS.contains(&key.as_str()));
    let words = fields.map(|(key, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{key}={value}")
    });
    let line = words.collect::<Vec<_>>().join(" ").replace(char::is_control, " ");
    if line.chars().count() <= chars_max {
        return line;
    }
    line.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::protocol::entry::Fact;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(body) = value else { panic!("an object") };
        body
    }

    #[test]
    fn event_data_is_shortened_to_one_line() {
        let body = json!({"type": "event", "seq": 3, "strategy": "run", "note": "a\nb"});
        assert_eq!(data_text(&object(body), DATA_CHARS_MAX), "note=a b strategy=run");
        let long = json!({"x": "é".repeat(200)});
        assert_eq!(data_text(&object(long), DATA_CHARS_MAX).chars().count(), DATA_CHARS_MAX);
        let data = json!({"type": "event", "name": "agent.stream.delta", "data": {"offset": 3, "text": "hi"}});
        assert_eq!(data_text(&object(data), 12), "offset=3 te…");
    }

    #[test]
    fn lines_are_shortened_to_the_terminal_width() {
        let body = object(json!({"type": "event", "name": "RUN_RESTARTED", "reason": "x".repeat(100)}));
        let line = FactLine {
            position: FactPosition { seq: 12, epoch: None, ts: Some(1_764_000_000_123) },
            body: &body,
            done: None,
        };
        let narrow = line.text(Some(80));
        assert!(narrow.starts_with("16:00:00.123    12  RUN_RESTARTED       reason=xxx"), "{narrow}");
        assert!(narrow.ends_with('…') && narrow.chars().count() == 80, "{narrow}");
        let piped = line.text(None);
        assert!(piped.starts_with("2025-11-24T16:00:00.123Z      12  RUN_RESTARTED         reason=x"), "{piped}");
    }

    #[test]
    fn message_is_labelled_with_its_fact() {
        for kind in Fact::kinds() {
            let fact = kind.name;
            let shown = kind.messages;
            let last = shown.split(", ").last().unwrap_or_default();
            let body = match last.split_once(' ').unwrap_or((last, "")) {
                ("", _) => json!({"type": "event", "name": fact}),
                ("event", "<its name>") => json!({"type": "event", "name": "NO_ACTIVE_SPEAKING"}),
                ("done", _) => {
                    let status = fact.rsplit('.').next().unwrap_or_default();
                    json!({"type": "done", "status": status.replace("done", "completed")})
                }
                ("error", _) => {
                    let change = fact.trim_start_matches("agent.").trim_end_matches("_failed");
                    json!({"type": "error", "code": format!("{}_AGENT_FAILED", change.to_uppercase())})
                }
                (kind, name) => json!({"type": kind, "name": name}),
            };
            let body = object(body);
            let position = FactPosition { seq: 1, epoch: None, ts: None };
            assert_eq!(FactLine { position, body: &body, done: None }.fact_type(), fact, "{shown}");
        }
    }
}

//! `turnway replay`: a session's log, fact by fact.
use super::{Exit, complain, say};
use clap::Args;
use serde_json::{Map, Value};
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::timeout;
use turnway_client::{Client, ClientError, Done, Event, Failure, Message, Options, Place, Start, Subscribe};

/// A log that is not shown to its end within this of its last fact will not be.
const QUIET_MAX: Duration = Duration::from_secs(10);
/// Characters of a fact's data on one line.
const DATA_CHARS_MAX: usize = 100;
/// What every message has, and what has a column of its own.
const FRAME: [&str; 9] =
    ["type", "ts", "session_id", "seq", "epoch", "request_id", "run_id", "name", "message"];

/// What to replay.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// The session.
    pub session: String,
    /// The gateway.
    #[arg(long, env = "TURNWAY_URL", default_value = "ws://127.0.0.1:8080")]
    pub url: String,
    /// One JSON object a line: each fact as a link is shown it, `done` with its `text`.
    #[arg(long)]
    pub json: bool,
    /// As this user; without it as the operator, who may see everything.
    #[arg(long)]
    pub user: Option<String>,
}

/// Prints the log from its first fact to the one that was the last when the command began.
pub async fn run(args: ReplayArgs) -> ExitCode {
    replay(&args).await.into()
}

/// How to connect, as the commands that talk to a gateway do.
pub(super) fn options(url: &str, user: Option<&str>) -> Options {
    let mut options = Options::new(url);
    options.user_id = user.map(str::to_owned);
    options.client_meta = Some(serde_json::json!({ "app": "turnway" }));
    options
}

/// Says why there is no connection, and which exit that is.
pub(super) fn refused(error: &ClientError) -> Exit {
    complain(&format!("turnway: {error}\n"));
    let usage = matches!(error, ClientError::BadUrl { .. } | ClientError::BadName { .. });
    if usage { Exit::Usage } else { Exit::Unavailable }
}

/// A message as people read it; the same in a chat and in a replay.
pub(super) fn said(message: &Message) -> String {
    format!("{}: {}", message.sender.as_deref().unwrap_or(&message.role), message.text)
}

/// An agent's name before its answer.
pub(super) fn answerer(agent: Option<&str>) -> &str {
    agent.filter(|agent| !agent.is_empty()).unwrap_or("agent")
}

/// How a turn ended, where it is not the usual way.
pub(super) fn ending(done: &Done) -> Option<String> {
    let short = (!done.complete).then(|| format!("[{} of {} bytes]", done.text.len(), done.text_bytes));
    let how = match (done.status.as_str(), &done.error) {
        ("completed", _) => None,
        (status, Some(error)) => Some(format!("[{status}: {} {}]", error.code, error.message)),
        (status, None) => Some(format!("[{status}]")),
    };
    match (short, how) {
        (Some(short), Some(how)) => Some(format!("{short} {how}")),
        (short, how) => short.or(how),
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "newer clients tell of more")]
async fn replay(args: &ReplayArgs) -> Exit {
    let mut client = match Client::connect(options(&args.url, args.user.as_deref())).await {
        Ok(client) => client,
        Err(error) => return refused(&error),
    };
    let wish = Subscribe::from(Start::Beginning).with_types([">"]).with_facts();
    if let Err(error) = client.session(args.session.clone()).subscribe(wish).await {
        return refused(&error);
    }
    let mut end = None;
    loop {
        let Ok(event) = timeout(QUIET_MAX, client.next_event()).await else {
            complain("turnway: the gateway shows no more of this log, and it is not at its end\n");
            return Exit::Failed;
        };
        match event {
            Some(Event::Fact { place, body, .. }) if kind(&body) == "done" => end = Some((place, body)),
            Some(Event::Fact { place, body, .. }) => show(args.json, place, &body, None),
            Some(Event::Done(done)) => {
                if let Some((place, body)) = end.take() {
                    show(args.json, place, &body, Some(&done));
                }
            }
            Some(Event::CaughtUp { .. }) => break,
            Some(Event::Error(failure)) => return failed(&args.session, &failure),
            Some(Event::Reset { reason, .. }) => {
                complain(&format!("turnway: what lies before is gone ({reason})\n"));
                return Exit::Failed;
            }
            Some(Event::Disconnected { reason, retry_in, .. }) => {
                complain(&format!("turnway: {reason}\n"));
                if retry_in.is_none() {
                    return Exit::Unavailable;
                }
            }
            Some(_) => {}
            None => return Exit::Unavailable,
        }
    }
    client.close().await;
    Exit::Fine
}

fn failed(session: &str, failure: &Failure) -> Exit {
    match failure.code.as_str() {
        "not_found" => complain(&format!("turnway: no session {session}\n")),
        code => complain(&format!("turnway: {code}: {}\n", failure.message)),
    }
    Exit::Failed
}

fn kind(body: &Map<String, Value>) -> &str {
    body.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn show(json: bool, place: Place, body: &Map<String, Value>, done: Option<&Done>) {
    if json {
        let mut body = body.clone();
        if let Some(done) = done {
            body.insert("text".to_owned(), done.text.clone().into());
        }
        return say(&format!("{}\n", Value::Object(body)));
    }
    let name = match kind(body) {
        "event" => body.get("name").and_then(Value::as_str).unwrap_or("event"),
        kind => kind,
    };
    let data = match (kind(body), done) {
        ("done", Some(done)) => answer(done),
        ("message", _) => words(body),
        (_, _) => short(body),
    };
    let time = place.ts.map(clock).unwrap_or_default();
    say(format!("{time}  {:>6}  {name:<20}  {data}", place.seq).trim_end());
    say("\n");
}

fn answer(done: &Done) -> String {
    let ending = ending(done).map(|ending| format!(" {ending}")).unwrap_or_default();
    format!("{}: {}{ending}", answerer(done.agent.as_deref()), done.text)
}

fn words(body: &Map<String, Value>) -> String {
    let who = body.get("user_id").or_else(|| body.get("role")).and_then(Value::as_str);
    let text = match body.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => String::new(),
    };
    format!("{}: {text}", who.unwrap_or("user"))
}

/// What else a fact says, as far as it fits on a line.
fn short(body: &Map<String, Value>) -> String {
    let fields = body.iter().filter(|(key, _)| !FRAME.contains(&key.as_str()));
    let words = fields.map(|(key, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{key}={value}")
    });
    let line = words.collect::<Vec<_>>().join(" ").replace(char::is_control, " ");
    match line.char_indices().nth(DATA_CHARS_MAX) {
        Some((at, _)) => format!("{}…", line.get(..at).unwrap_or_default()),
        None => line,
    }
}

/// Unix milliseconds as a date and a time of day, UTC.
fn clock(ms: u64) -> String {
    let (days, of_day) = (ms / 86_400_000, ms % 86_400_000);
    // Howard Hinnant's days_to_civil, for dates after 1970: years that begin in March.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_off_the_calendar() {
        assert_eq!(clock(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(clock(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(clock(1_764_000_000_123), "2025-11-24T16:00:00.123Z");
        assert_eq!(clock(1_735_689_599_999), "2024-12-31T23:59:59.999Z");
    }

    #[test]
    fn data_is_cut_to_a_line() {
        let body = serde_json::json!({"type": "event", "seq": 3, "strategy": "run", "note": "a\nb"});
        let Value::Object(body) = body else { panic!("an object") };
        assert_eq!(short(&body), "note=a b strategy=run");
        let long = serde_json::json!({"x": "é".repeat(200)});
        let Value::Object(long) = long else { panic!("an object") };
        assert_eq!(short(&long).chars().count(), DATA_CHARS_MAX + 1);
    }
}

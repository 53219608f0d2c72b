//! `turnway replay`: prints a session's log, one fact a line. Called by `main`.
mod fact_line;

use self::fact_line::FactLine;
use super::gateway::{self, GatewayArgs};
use super::http_client::{ANSWER_TIMEOUT, ApiClient, ApiRequest};
use super::table::terminal_width;
use super::{CliError, CliExit, write_json, write_stderr, write_stdout};
use clap::Args;
use http::Method;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use turnway_client::{Client, Event, FactPosition, Failure, LogCursor, Session, Start, Subscribe};
use turnway_core::protocol::pattern::Pattern;

/// A log that shows no further fact for this long, and is not at its end, is given up.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

const AFTER_HELP: &str = "With --json, one object a line: each fact as clients receive it (docs/protocol.md), but \
                     `done` also has the answer's whole `text`, and the `error` of a turn that failed. Where \
                     history is missing in between, a line of `type` \"reset\" says so.";

/// Arguments of `turnway replay`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ReplayArgs {
    /// Id of the session
    pub session: String,
    /// Keep printing new facts, also across restarts of the node, until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,
    /// Only facts after this sequence number
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// Only facts of these types, such as user.message,run.*; `*` is one segment, `>` the rest
    #[arg(long, value_name = "PATTERN", value_delimiter = ',', value_parser = parse_pattern)]
    pub types: Vec<Pattern>,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Progress of showing the log.
#[derive(PartialEq, Eq)]
enum ReplayProgress {
    Continue,
    /// The log has been shown up to its last fact.
    CaughtUp,
}

/// A replay in progress.
struct Replay<'a> {
    args: &'a ReplayArgs,
    json: bool,
    session: Session,
    /// Sequence number of the last fact received.
    last_seq: u64,
    /// A `done` fact that waits for its text, which follows as the next event.
    pending_done: Option<(FactPosition, Map<String, Value>)>,
    /// A new subscription has been requested: facts until its answer belong to the previous one and are
    /// ignored.
    awaiting_subscription: bool,
    is_disconnected: bool,
}

/// Prints the log from its first fact to the last one at the time of the call, or on without end with
/// `--follow`.
pub async fn run(args: ReplayArgs, json: bool) -> Result<CliExit, CliError> {
    // One signal handler for the whole run: a Ctrl-C between two handlers would be lost.
    let mut stop = signal(SignalKind::interrupt()).map_err(|error| CliError::Unavailable(error.to_string()))?;
    let mut client = Client::connect(args.gateway.options()).await.map_err(|error| gateway::connect_error(&error))?;
    let session = client.session(args.session.clone());
    let seen = args.after.unwrap_or_default();
    let mut replay = Replay {
        args: &args,
        json,
        session,
        last_seq: seen,
        pending_done: None,
        awaiting_subscription: false,
        is_disconnected: false,
    };
    replay.subscribe().await?;
    loop {
        let event = tokio::select! {
            _ = stop.recv() => break,
            event = next(&mut client, args.follow) => event?,
        };
        if replay.handle_event(event).await? == ReplayProgress::CaughtUp && !args.follow {
            break;
        }
    }
    client.close().await;
    Ok(CliExit::Success)
}

fn parse_pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text).map_err(|bad| bad.to_string())
}

/// Waits for the next event; only with `--follow` without a timeout.
async fn next(client: &mut Client, follow: bool) -> Result<Event, CliError> {
    let event = match follow {
        true => client.next_event().await,
        false => timeout(IDLE_TIMEOUT, client.next_event()).await.map_err(|_| {
            let seconds = IDLE_TIMEOUT.as_secs();
            CliError::Failed(format!("the gateway sent no further fact for {seconds} s, and the log is not at its end"))
        })?,
    };
    event.ok_or_else(|| CliError::Unavailable("the connection was closed".to_owned()))
}

// === impl Replay ===

impl Replay<'_> {
    /// Subscribes to the facts after the last one received.
    async fn subscribe(&mut self) -> Result<(), CliError> {
        let start = match self.last_seq {
            0 => Start::Beginning,
            seq => Start::After(LogCursor { seq, epoch: None }),
        };
        // Subscribes to every type, so that the log's last fact is recognised; unwanted types are filtered
        // here.
        let subscription = Subscribe::from(start).with_types([">"]).with_facts();
        self.awaiting_subscription = true;
        self.session.subscribe(subscription).await.map_err(|error| gateway::connect_error(&error))
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "newer clients tell of more")]
    async fn handle_event(&mut self, event: Event) -> Result<ReplayProgress, CliError> {
        match event {
            Event::Subscribed { .. } => self.awaiting_subscription = false,
            Event::Reset { reason, snapshot, .. } => {
                self.awaiting_subscription = false;
                self.reset(&reason, snapshot.map_or(0, |snapshot| snapshot.seq)).await?;
            }
            Event::Error(failure) => return Err(self.refusal_error(*failure)),
            Event::Fact { .. } | Event::Done(_) | Event::CaughtUp { .. } if self.awaiting_subscription => {}
            Event::Fact { position, body, .. } => {
                self.last_seq = position.seq;
                match fact_line::kind(&body) {
                    "done" => self.pending_done = Some((position, body)),
                    _ => self.show(&FactLine { position, body: &body, done: None })?,
                }
            }
            Event::Done(done) => {
                if let Some((position, body)) = self.pending_done.take() {
                    self.show(&FactLine { position, body: &body, done: Some(&done) })?;
                }
            }
            Event::CaughtUp { .. } => return Ok(ReplayProgress::CaughtUp),
            Event::Disconnected { reason, retry_in: None, .. } => return Err(CliError::Unavailable(reason)),
            Event::Disconnected { reason, .. } => self.handle_disconnected(&reason),
            Event::Connected { .. } => self.handle_reconnected(),
            _ => {}
        }
        Ok(ReplayProgress::Continue)
    }

    fn handle_disconnected(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.is_disconnected, true) {
            self.print_remark(&format!("connection lost ({reason}); reconnecting"));
        }
    }

    fn handle_reconnected(&mut self) {
        if std::mem::take(&mut self.is_disconnected) {
            self.print_remark("reconnected");
        }
    }

    fn show(&self, line: &FactLine<'_>) -> Result<(), CliError> {
        let kind = line.fact_type();
        if !self.args.types.is_empty() && !self.args.types.iter().any(|pattern| pattern.matches(kind)) {
            return Ok(());
        }
        if self.json { write_json(&line.json()) } else { write_stdout(&format!("{}\n", line.text(terminal_width()))) }
    }

    /// Handles missing history: continues at the first fact that the store still has.
    async fn reset(&mut self, reason: &str, end: u64) -> Result<(), CliError> {
        let floor = if reason == "trimmed" { self.fetch_floor().await } else { None };
        let shown = self.last_seq > self.args.after.unwrap_or_default();
        let seq = floor.unwrap_or(end);
        let text = match reason {
            "trimmed" => format!("facts up to {seq} were trimmed (store.retention)"),
            "regressed" if shown => {
                format!("the store has lost facts after {seq}, or also earlier ones; was it restored from a backup?")
            }
            "regressed" => format!("the log ends at fact {seq}"),
            _ => format!("facts up to {seq} are missing"),
        };
        if floor.is_none() && !self.args.follow {
            return Err(CliError::Failed(text));
        }
        self.last_seq = seq;
        if self.json {
            write_json(&json!({"type": "reset", "reason": reason, "seq": seq}))?;
        }
        self.print_remark(&text);
        match floor {
            Some(_) => self.subscribe().await,
            // The client continues from the end by itself.
            None => Ok(()),
        }
    }

    /// Fetches the sequence number up to which facts have been forgotten.
    async fn fetch_floor(&self) -> Option<u64> {
        let server = ApiClient::parse(&self.args.gateway.url).ok()?;
        let path = format!("/v1/sessions/{}/events?after_seq={}&limit=1", self.args.session, self.last_seq);
        let who = Some(&self.args.gateway);
        let ask =
            ApiRequest { method: Method::GET, path: &path, credentials: who, body: None, timeout: ANSWER_TIMEOUT };
        server.request_json(ask).await.ok()?.get("floor")?.as_u64()
    }

    fn refusal_error(&self, failure: Failure) -> CliError {
        let message = match failure.code.as_str() {
            "not_found" => format!("no session {}", self.args.session),
            _ => failure.message,
        };
        CliError::Refused { code: failure.code, message }
    }

    /// Prints a remark about the replay on stderr; a remark is not part of the log.
    fn print_remark(&self, text: &str) {
        if !self.json {
            write_stderr(&format!("[{text}]\n"));
        }
    }
}

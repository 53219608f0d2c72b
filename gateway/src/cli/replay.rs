//! `turnway replay`: prints a session's log, one fact a line. Called by `main`.
mod line;

use self::line::Line;
use super::gateway::{self, Gateway};
use super::http::{Ask, PATIENCE, Server};
use super::table::width;
use super::{Exit, Trouble, complain, say, say_json};
use clap::Args;
use http::Method;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use turnway_client::{Client, Cursor, Event, Failure, Place, Session, Start, Subscribe};
use turnway_core::protocol::pattern::Pattern;

/// A log that shows no further fact for this long, and is not at its end, is given up.
const QUIET_MAX: Duration = Duration::from_secs(10);

const AFTER: &str = "With --json, one object a line: each fact as clients receive it (docs/protocol.md), but \
                     `done` also has the answer's whole `text`, and the `error` of a turn that failed. Where \
                     history is missing in between, a line of `type` \"reset\" says so.";

/// Arguments of `turnway replay`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER)]
pub struct ReplayArgs {
    /// The session
    pub session: String,
    /// Keep printing new facts, also across restarts of the node, until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,
    /// Only facts after this sequence number
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// Only facts of these types, such as user.message,run.*; `*` is one segment, `>` the rest
    #[arg(long, value_name = "PATTERN", value_delimiter = ',', value_parser = pattern)]
    pub types: Vec<Pattern>,
    /// The gateway and the credentials.
    #[command(flatten)]
    pub gateway: Gateway,
}

/// Whether the log has been shown to its end.
#[derive(PartialEq, Eq)]
enum Next {
    Go,
    /// The log has been shown up to its last fact.
    End,
}

/// A replay in progress.
struct Replay<'a> {
    args: &'a ReplayArgs,
    json: bool,
    session: Session,
    /// Sequence number of the last fact received.
    seen: u64,
    /// A `done` fact that waits for its text, which follows as the next event.
    end: Option<(Place, Map<String, Value>)>,
    /// A new subscription has been requested: facts until its answer belong to the previous one and are
    /// ignored.
    deaf: bool,
    away: bool,
}

/// Prints the log from its first fact to the last one at the time of the call, or on without end with
/// `--follow`.
pub async fn run(args: ReplayArgs, json: bool) -> Result<Exit, Trouble> {
    // One signal handler for the whole run: a Ctrl-C between two handlers would be lost.
    let mut stop =
        signal(SignalKind::interrupt()).map_err(|error| Trouble::Unavailable(error.to_string()))?;
    let mut client =
        Client::connect(args.gateway.options()).await.map_err(|error| gateway::refused(&error))?;
    let (session, seen) = (client.session(args.session.clone()), args.after.unwrap_or_default());
    let mut replay = Replay { args: &args, json, session, seen, end: None, deaf: false, away: false };
    replay.subscribe().await?;
    loop {
        let event = tokio::select! {
            _ = stop.recv() => break,
            event = next(&mut client, args.follow) => event?,
        };
        if replay.hear(event).await? == Next::End && !args.follow {
            break;
        }
    }
    client.close().await;
    Ok(Exit::Fine)
}

fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text).map_err(|bad| bad.to_string())
}

/// Waits for the next event; only with `--follow` without a timeout.
async fn next(client: &mut Client, follow: bool) -> Result<Event, Trouble> {
    let event = match follow {
        true => client.next_event().await,
        false => timeout(QUIET_MAX, client.next_event()).await.map_err(|_| {
            Trouble::Failed("the gateway sent no further fact for 10 s, and the log is not at its end".to_owned())
        })?,
    };
    event.ok_or_else(|| Trouble::Unavailable("the connection was closed".to_owned()))
}

// === impl Replay ===

impl Replay<'_> {
    /// Subscribes to the facts after the last one received.
    async fn subscribe(&mut self) -> Result<(), Trouble> {
        let start = match self.seen {
            0 => Start::Beginning,
            seq => Start::After(Cursor { seq, epoch: None }),
        };
        // Subscribes to every type, so that the log's last fact is recognised; unwanted types are filtered
        // here.
        let wish = Subscribe::from(start).with_types([">"]).with_facts();
        self.deaf = true;
        self.session.subscribe(wish).await.map_err(|error| gateway::refused(&error))
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "newer clients tell of more")]
    async fn hear(&mut self, event: Event) -> Result<Next, Trouble> {
        match event {
            Event::Subscribed { .. } => self.deaf = false,
            Event::Reset { reason, snapshot, .. } => {
                self.deaf = false;
                self.reset(&reason, snapshot.map_or(0, |snapshot| snapshot.seq)).await?;
            }
            Event::Error(failure) => return Err(self.refused(*failure)),
            Event::Fact { .. } | Event::Done(_) | Event::CaughtUp { .. } if self.deaf => {}
            Event::Fact { place, body, .. } => {
                self.seen = place.seq;
                match line::kind(&body) {
                    "done" => self.end = Some((place, body)),
                    _ => self.show(&Line { place, body: &body, done: None })?,
                }
            }
            Event::Done(done) => {
                if let Some((place, body)) = self.end.take() {
                    self.show(&Line { place, body: &body, done: Some(&done) })?;
                }
            }
            Event::CaughtUp { .. } => return Ok(Next::End),
            Event::Disconnected { reason, retry_in: None, .. } => return Err(Trouble::Unavailable(reason)),
            Event::Disconnected { reason, .. } => self.lost(&reason),
            Event::Connected { .. } => self.found(),
            _ => {}
        }
        Ok(Next::Go)
    }

    fn lost(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.away, true) {
            self.aside(&format!("connection lost ({reason}); reconnecting"));
        }
    }

    fn found(&mut self) {
        if std::mem::take(&mut self.away) {
            self.aside("reconnected");
        }
    }

    fn show(&self, line: &Line<'_>) -> Result<(), Trouble> {
        let kind = line.fact();
        if !self.args.types.is_empty() && !self.args.types.iter().any(|pattern| pattern.matches(kind)) {
            return Ok(());
        }
        if self.json { say_json(&line.json()) } else { say(&format!("{}\n", line.text(width()))) }
    }

    /// Handles missing history: continues at the first fact that the store still has.
    async fn reset(&mut self, reason: &str, end: u64) -> Result<(), Trouble> {
        let floor = if reason == "trimmed" { self.floor().await } else { None };
        let shown = self.seen > self.args.after.unwrap_or_default();
        let seq = floor.unwrap_or(end);
        let told = match reason {
            "trimmed" => format!("facts up to {seq} were deleted (store.retention)"),
            "regressed" if shown => {
                format!("the store has lost facts from about {seq} on; was it restored from a backup?")
            }
            "regressed" => format!("the log ends at fact {seq}"),
            _ => format!("facts up to {seq} are missing"),
        };
        if floor.is_none() && !self.args.follow {
            return Err(Trouble::Failed(told));
        }
        self.seen = seq;
        if self.json {
            say_json(&json!({"type": "reset", "reason": reason, "seq": seq}))?;
        }
        self.aside(&told);
        match floor {
            Some(_) => self.subscribe().await,
            // The client continues from the end by itself.
            None => Ok(()),
        }
    }

    /// Fetches the sequence number up to which facts have been forgotten.
    async fn floor(&self) -> Option<u64> {
        let server = Server::parse(&self.args.gateway.url).ok()?;
        let path = format!("/v1/sessions/{}/events?after_seq={}&limit=1", self.args.session, self.seen);
        let who = Some(&self.args.gateway);
        let ask = Ask { method: Method::GET, path: &path, who, body: None, patience: PATIENCE };
        server.ask(ask).await.ok()?.get("floor")?.as_u64()
    }

    fn refused(&self, failure: Failure) -> Trouble {
        let message = match failure.code.as_str() {
            "not_found" => format!("no session {}", self.args.session),
            _ => failure.message,
        };
        Trouble::Refused { code: failure.code, message }
    }

    /// Prints a remark about the replay on stderr; a remark is not part of the log.
    fn aside(&self, text: &str) {
        if !self.json {
            complain(&format!("[{text}]\n"));
        }
    }
}

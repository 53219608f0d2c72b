//! Mode `history`: gives sessions a long history, turn by turn.
use crate::cli::History;
use crate::connection::ServerConnection;
use crate::error::{BenchError, ConnectionFailure};
use crate::record::{Count, Measure};
use crate::report::{self, ModeFigures};
use crate::run::Run;
use crate::wire::{self, Invoke, ServerMessage};
use serde_json::json;
use std::rc::Rc;
use std::time::Instant;
use turnway::cli::CliExit;

/// Bytes of a turn's input: many small facts make a longer history than few large ones.
const INPUT_BYTES: usize = 16;

/// Runs the mode.
pub async fn run(args: History) -> Result<CliExit, BenchError> {
    let run = Run::unpaced("history", Measure::Done, &args.common)?;
    run.begin();
    let until = run.started_at() + run.load().duration;
    let grow = |n| grow_history(Rc::clone(&run), &args, n, until);
    let facts = run.make_all(run.load().connections, grow).await?;
    run.end();
    let least = facts.iter().copied().min().unwrap_or(0);
    let turns = run.record().borrow().counted(Count::Completed);
    let more = json!({ "name": args.name, "facts_least": least, "turns": turns });
    let lines = vec![("history", format!("at least {least} facts in each session"))];
    report::finish(
        &run,
        &ModeFigures { unit: "turns", count: turns, closed_loop: None, extra_json: more, extra_lines: lines },
    )
}

/// The two sessions of the n-th client, and their user.
#[derive(Debug)]
pub(super) struct SessionPair {
    /// Session with a long history.
    pub(super) long: String,
    /// Session with one turn, for comparison.
    pub(super) short: String,
    pub(super) user: String,
}

impl SessionPair {
    pub(super) fn new(name: &str, n: usize) -> Self {
        Self { long: format!("{name}-{n}"), short: format!("{name}-short-{n}"), user: format!("bench-{name}-{n}") }
    }
}

async fn grow_history(run: Rc<Run>, args: &History, n: usize, until: Instant) -> Result<u64, BenchError> {
    let pair = SessionPair::new(&args.name, n);
    let (mut line, _) = ServerConnection::connect_as(&run, n, &pair.user, "").await?;
    run_turn(&run, &mut line, &invoke(&run, &pair.short, args), 0).await?;
    let invoke = invoke(&run, &pair.long, args);
    let mut facts = 0;
    for number in 0.. {
        if facts >= args.facts {
            break;
        }
        if Instant::now() > until {
            return Err(BenchError::Failed(format!("{} has {facts} facts, and the time is over", pair.long)));
        }
        facts = run_turn(&run, &mut line, &invoke, number).await?;
    }
    line.close().await;
    Ok(facts)
}

fn invoke(run: &Run, session: &str, args: &History) -> Invoke {
    Invoke::new(run.tag(), session, &args.agent, &wire::filler_text(INPUT_BYTES))
}

/// Runs one turn, and returns the log's length after it.
async fn run_turn(run: &Run, line: &mut ServerConnection, invoke: &Invoke, number: u64) -> Result<u64, BenchError> {
    let since = Instant::now();
    run.count(Count::Asked, 1);
    line.queue(invoke.render(number)).await?;
    line.flush().await?;
    let facts = until_done(line).await?;
    run.record_duration(Measure::Done, since.elapsed());
    run.count(Count::Completed, 1);
    Ok(facts)
}

/// Reads to the end of a turn, and returns its sequence number in the log.
pub(super) async fn until_done(line: &mut ServerConnection) -> Result<u64, BenchError> {
    loop {
        let text = line.next_in_time().await?;
        if !matches!(wire::message_type(&text), "done" | "error" | "") {
            continue;
        }
        let message =
            ServerMessage::parse(&text).ok_or_else(|| ConnectionFailure::Broken("not a message".to_owned()))?;
        match (&*message.kind, message.status.as_deref()) {
            ("done", Some("completed")) => return Ok(message.seq.unwrap_or(0)),
            ("done" | "error", _) => {
                return Err(BenchError::Failed(format!("a turn failed: {}", message.error_text())));
            }
            (_, _) => {}
        }
    }
}

//! Mode `history`: gives sessions a long history, turn by turn.
use crate::cli::History;
use crate::connection::Line;
use crate::record::{Count, Measure};
use crate::report::{self, Story};
use crate::run::Run;
use crate::trouble::{Lost, Trouble};
use crate::wire::{self, Heard, Invoke};
use serde_json::json;
use std::rc::Rc;
use std::time::Instant;
use turnway::cli::Exit;

/// Bytes of a turn's input: many small facts make a longer history than few large ones.
const SIZE: usize = 16;

/// Runs the mode.
pub async fn run(args: History) -> Result<Exit, Trouble> {
    let run = Run::unpaced("history", Measure::Done, &args.common)?;
    run.begin();
    let until = run.begun() + run.load().duration;
    let grow = |n| grow(Rc::clone(&run), &args, n, until);
    let facts = run.gather(run.load().connections, grow).await?;
    run.end();
    let least = facts.iter().copied().min().unwrap_or(0);
    let turns = run.record().borrow().counted(Count::Completed);
    let more = json!({ "name": args.name, "facts_least": least, "turns": turns });
    let lines = vec![("history", format!("at least {least} facts in each session"))];
    report::finish(&run, &Story { unit: "turns", count: turns, closed: None, more, lines })
}

/// The two sessions of the n-th client, and their user.
#[derive(Debug)]
pub(super) struct Pair {
    /// Session with a long history.
    pub(super) long: String,
    /// Session with one turn, for comparison.
    pub(super) short: String,
    pub(super) user: String,
}

impl Pair {
    pub(super) fn new(name: &str, n: usize) -> Self {
        Self {
            long: format!("{name}-{n}"),
            short: format!("{name}-short-{n}"),
            user: format!("bench-{name}-{n}"),
        }
    }
}

async fn grow(run: Rc<Run>, args: &History, n: usize, until: Instant) -> Result<u64, Trouble> {
    let pair = Pair::new(&args.name, n);
    let (mut line, _) = Line::hello(&run, n, &pair.user, "").await?;
    turn(&run, &mut line, &invoke(&run, &pair.short, args), 0).await?;
    let invoke = invoke(&run, &pair.long, args);
    let mut facts = 0;
    for number in 0.. {
        if facts >= args.facts {
            break;
        }
        if Instant::now() > until {
            return Err(Trouble::Failed(format!("{} has {facts} facts, and the time is over", pair.long)));
        }
        facts = turn(&run, &mut line, &invoke, number).await?;
    }
    line.close().await;
    Ok(facts)
}

fn invoke(run: &Run, session: &str, args: &History) -> Invoke {
    Invoke::new(run.tag(), session, &args.agent, &wire::words(SIZE))
}

/// Runs one turn, and returns the log's length after it.
async fn turn(run: &Run, line: &mut Line, invoke: &Invoke, number: u64) -> Result<u64, Trouble> {
    let since = Instant::now();
    run.count(Count::Asked, 1);
    line.feed(invoke.say(number)).await?;
    line.flush().await?;
    let facts = until_done(line).await?;
    run.took(Measure::Done, since.elapsed());
    run.count(Count::Completed, 1);
    Ok(facts)
}

/// Reads to the end of a turn, and returns its sequence number in the log.
pub(super) async fn until_done(line: &mut Line) -> Result<u64, Trouble> {
    loop {
        let text = line.answer().await?;
        if !matches!(wire::kind(&text), "done" | "error" | "") {
            continue;
        }
        let heard = Heard::parse(&text).ok_or_else(|| Lost::Broken("not a message".to_owned()))?;
        match (&*heard.kind, heard.status.as_deref()) {
            ("done", Some("completed")) => return Ok(heard.seq.unwrap_or(0)),
            ("done" | "error", _) => return Err(Trouble::Failed(format!("a turn failed: {}", heard.why()))),
            (_, _) => {}
        }
    }
}

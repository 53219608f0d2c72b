//! Sessions with a long history, made turn by turn.
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

/// Words of a turn: many small facts make a longer history than few large ones.
const SIZE: usize = 16;

/// Runs it.
pub async fn run(args: History) -> Result<Exit, Trouble> {
    let run = Run::new("history", Measure::Done, &args.common)?;
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

/// The n-th session of a name, and whose it is.
pub(super) fn session(name: &str, n: usize) -> (String, String) {
    (format!("{name}-{n}"), format!("bench-{name}-{n}"))
}

async fn grow(run: Rc<Run>, args: &History, n: usize, until: Instant) -> Result<u64, Trouble> {
    let (session, user) = session(&args.name, n);
    let (mut line, _) = Line::hello(&run, n, &user, "").await?;
    let invoke = Invoke::new(run.tag(), &session, &args.agent, &wire::words(SIZE));
    let mut facts = 0;
    for turn in 0.. {
        if facts >= args.facts {
            break;
        }
        let since = Instant::now();
        if since > until {
            return Err(Trouble::Failed(format!("{session} has {facts} facts, and the time is over")));
        }
        run.count(Count::Asked, 1);
        line.feed(invoke.say(turn)).await?;
        line.flush().await?;
        facts = until_done(&mut line).await?;
        run.took(Measure::Done, since.elapsed());
        run.count(Count::Completed, 1);
    }
    line.close().await;
    Ok(facts)
}

/// Reads to the end of a turn; its place in the log.
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

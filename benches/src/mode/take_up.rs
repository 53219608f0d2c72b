//! Mode `take-up`: from an input to its turn's admission, in sessions that no node has in memory: with a long
//! history, with a short one, and new.
use crate::cli::TakeUp;
use crate::connection::Line;
use crate::mode::history::{Pair, until_done};
use crate::record::{Count, Measure, Record, micros};
use crate::report::table::time;
use crate::report::{self, Story};
use crate::run::Run;
use crate::trouble::{Lost, Trouble};
use crate::wire::{self, Heard, Invoke};
use serde_json::json;
use std::time::Instant;
use turnway::cli::Exit;

const SIZE: usize = 16;

/// Runs the mode: one session after the other, each kind in turn.
pub async fn run(args: TakeUp) -> Result<Exit, Trouble> {
    let run = Run::unpaced("take-up", Measure::AdmittedLong, &args.common)?;
    run.begin();
    for n in 0..run.load().connections {
        let Pair { long, short, user } = Pair::new(&args.name, n);
        let (mut line, _) = Line::hello(&run, n, &user, "").await?;
        let mut kinds = [
            (long, Measure::AdmittedLong),
            (short, Measure::AdmittedShort),
            (format!("b{}-{n}", run.tag()), Measure::AdmittedNew),
        ];
        // Rotates the order, so that no kind is always first on its connection.
        kinds.rotate_left(n % 3);
        for (session, measure) in kinds {
            let invoke = Invoke::new(run.tag(), &session, &args.agent, &wire::words(SIZE));
            run.count(Count::Asked, 1);
            let since = Instant::now();
            line.feed(invoke.say(0)).await?;
            line.flush().await?;
            admitted(&mut line).await?;
            run.took(measure, since.elapsed());
            until_done(&mut line).await?;
            run.count(Count::Completed, 1);
        }
        line.close().await;
        if run.begun().elapsed() > run.load().duration {
            break;
        }
    }
    run.end();
    let story = story(&run.record().borrow());
    report::finish(&run, &story)
}

async fn admitted(line: &mut Line) -> Result<(), Trouble> {
    loop {
        let text = line.answer().await?;
        if !matches!(wire::kind(&text), "event" | "error" | "") {
            continue;
        }
        let heard = Heard::parse(&text).ok_or_else(|| Lost::Broken("not a message".to_owned()))?;
        if heard.kind == "error" {
            return Err(Trouble::Failed(format!("a turn was refused: {}", heard.why())));
        }
        if heard.name.as_deref() == Some("TURN_ADMITTED") {
            return Ok(());
        }
    }
}

fn story(record: &Record) -> Story {
    let at = |measure, rank| record.histogram(measure).map_or(0, |times| times.value_at_quantile(rank));
    let more_at = |rank| micros(at(Measure::AdmittedLong, rank)) - micros(at(Measure::AdmittedShort, rank));
    let (p50, max) = (more_at(0.5), more_at(1.0));
    let count = record.histogram(Measure::AdmittedLong).map_or(0, |times| times.len());
    let lines = vec![("history costs", format!("{} at p50, {} at most", time(p50), time(max)))];
    Story {
        unit: "sessions",
        count,
        closed: None,
        more: json!({ "more_us": { "p50": p50, "max": max } }),
        lines,
    }
}

//! Mode `take-up`: from an input to its turn's admission, in sessions that no node has in memory: with a long
//! history, with a short one, and new.
use crate::cli::TakeUp;
use crate::connection::ServerConnection;
use crate::error::{BenchError, ConnectionFailure};
use crate::mode::history::{SessionPair, until_done};
use crate::record::{Count, Measure, Record, micros};
use crate::report::table::format_micros;
use crate::report::{self, ModeFigures};
use crate::run::Run;
use crate::wire::{self, Invoke, ServerMessage};
use serde_json::json;
use std::time::Instant;
use turnway::cli::CliExit;

const SIZE: usize = 16;

/// Runs the mode: one session after the other, each kind in turn.
pub async fn run(args: TakeUp) -> Result<CliExit, BenchError> {
    let run = Run::unpaced("take-up", Measure::AdmittedLong, &args.common)?;
    run.begin();
    for n in 0..run.load().connections {
        let SessionPair { long, short, user } = SessionPair::new(&args.name, n);
        let (mut line, _) = ServerConnection::connect_as(&run, n, &user, "").await?;
        let mut kinds = [
            (long, Measure::AdmittedLong),
            (short, Measure::AdmittedShort),
            (format!("b{}-{n}", run.tag()), Measure::AdmittedNew),
        ];
        // Rotates the order, so that no kind is always first on its connection.
        kinds.rotate_left(n % 3);
        for (session, measure) in kinds {
            let invoke = Invoke::new(run.tag(), &session, &args.agent, &wire::filler_text(SIZE));
            run.count(Count::Asked, 1);
            let since = Instant::now();
            line.queue(invoke.render(0)).await?;
            line.flush().await?;
            wait_until_admitted(&mut line).await?;
            run.record_duration(measure, since.elapsed());
            until_done(&mut line).await?;
            run.count(Count::Completed, 1);
        }
        line.close().await;
        if run.started_at().elapsed() > run.load().duration {
            break;
        }
    }
    run.end();
    let story = figures(&run.record().borrow());
    report::finish(&run, &story)
}

async fn wait_until_admitted(line: &mut ServerConnection) -> Result<(), BenchError> {
    loop {
        let text = line.next_in_time().await?;
        if !matches!(wire::message_type(&text), "event" | "error" | "") {
            continue;
        }
        let message =
            ServerMessage::parse(&text).ok_or_else(|| ConnectionFailure::Broken("not a message".to_owned()))?;
        if message.kind == "error" {
            return Err(BenchError::Failed(format!("a turn was refused: {}", message.error_text())));
        }
        if message.name.as_deref() == Some("TURN_ADMITTED") {
            return Ok(());
        }
    }
}

fn figures(record: &Record) -> ModeFigures {
    let at = |measure, rank| record.histogram(measure).map_or(0, |times| times.value_at_quantile(rank));
    let more_at = |rank| micros(at(Measure::AdmittedLong, rank)) - micros(at(Measure::AdmittedShort, rank));
    let p50 = more_at(0.5);
    let max = more_at(1.0);
    let count = record.histogram(Measure::AdmittedLong).map_or(0, |times| times.len());
    let lines = vec![("history costs", format!("{} at p50, {} at most", format_micros(p50), format_micros(max)))];
    ModeFigures {
        unit: "sessions",
        count,
        closed_loop: None,
        extra_json: json!({ "more_us": { "p50": p50, "max": max } }),
        extra_lines: lines,
    }
}

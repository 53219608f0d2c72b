//! Mode `stream`: throughput and regularity of long answers.
use crate::cli::{Stream, Streaming};
use crate::error::BenchError;
use crate::mode::session_client::Workload;
use crate::mode::{open_session_clients, turns};
use crate::record::{Count, Measure};
use crate::report::{self, CLOSED_LOOP_EACH, ModeFigures};
use crate::run::Run;
use serde_json::json;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;
use turnway::cli::CliExit;

/// Runs the mode.
pub async fn run(args: Stream) -> Result<CliExit, BenchError> {
    let streaming = &args.streaming;
    let about = if streaming.stamped { Measure::Relay } else { Measure::BetweenDeltas };
    let run = Run::new("stream", about, &args.common)?;
    let job = Rc::new(workload(streaming, true));
    let talks = open_session_clients(&run, &job, &args.owner, run.load().connections).await?;
    turns::run_load(&run, talks).await?;
    let count = run.record().borrow().counted_in_load(Count::Deltas);
    let more = json!({
        "agent": streaming.agent, "tokens": streaming.tokens,
        "pace_ms": streaming.pace.as_secs_f64() * 1000.0, "stamped": streaming.stamped,
    });
    let turns = run.record().borrow().counted(Count::Completed);
    let lines = vec![("answers", format!("{turns} whole ones, byte for byte"))];
    report::finish(
        &run,
        &ModeFigures { unit: "deltas", count, closed_loop: CLOSED_LOOP_EACH, extra_json: more, extra_lines: lines },
    )
}

/// Builds the input, in words that the agent understands.
pub(super) fn workload(streaming: &Streaming, asks_again: bool) -> Workload {
    let Streaming { agent, tokens, pace, stamped } = streaming.clone();
    let is_echo = agent == "echo";
    let text = if is_echo { echo_text(tokens) } else { count_request(tokens, pace) };
    let answer = is_echo.then(|| text.clone());
    Workload { agent, text, answer, is_stamped: stamped, is_closed_loop: asks_again }
}

/// Returns text that `echo` answers in this many tokens.
fn echo_text(tokens: u32) -> String {
    let mut text = String::new();
    for n in 0..tokens {
        // Writing to a string cannot fail.
        let _ = write!(text, "tok{n} ");
    }
    text
}

/// Returns an input for agents that count. The pace is in milliseconds, or in microseconds below one
/// millisecond.
pub(super) fn count_request(tokens: u32, pace: Duration) -> String {
    match pace.as_millis() {
        0 if pace.is_zero() => format!("count to {tokens}"),
        0 => format!("count to {tokens} every {}us", pace.as_micros()),
        millis => format!("count to {tokens} every {millis}ms"),
    }
}

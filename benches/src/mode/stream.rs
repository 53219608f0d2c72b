//! Mode `stream`: throughput and regularity of long answers.
use crate::cli::{Stream, Streaming};
use crate::mode::talk::Job;
use crate::mode::{talks, turns};
use crate::record::{Count, Measure};
use crate::report::{self, ONE_EACH, Story};
use crate::run::Run;
use crate::trouble::Trouble;
use serde_json::json;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;
use turnway::cli::Exit;

/// Runs the mode.
pub async fn run(args: Stream) -> Result<Exit, Trouble> {
    let streaming = &args.streaming;
    let about = if streaming.stamped { Measure::Relay } else { Measure::BetweenDeltas };
    let run = Run::new("stream", about, &args.common)?;
    let job = Rc::new(job(streaming, true));
    let talks = talks(&run, &job, &args.owner, run.load().connections).await?;
    turns::load(&run, talks).await?;
    let count = run.record().borrow().counted_in_load(Count::Deltas);
    let more = json!({
        "agent": streaming.agent, "tokens": streaming.tokens,
        "pace_ms": streaming.pace.as_secs_f64() * 1000.0, "stamped": streaming.stamped,
    });
    let turns = run.record().borrow().counted(Count::Completed);
    let lines = vec![("answers", format!("{turns} whole ones, byte for byte"))];
    report::finish(&run, &Story { unit: "deltas", count, closed: ONE_EACH, more, lines })
}

/// Builds the input, in words that the agent understands.
pub(super) fn job(streaming: &Streaming, asks_again: bool) -> Job {
    let Streaming { agent, tokens, pace, stamped } = streaming.clone();
    let is_echo = agent == "echo";
    let text = if is_echo { echoed(tokens) } else { sentence(tokens, pace) };
    let answer = is_echo.then(|| text.clone());
    Job { agent, text, answer, is_stamped: stamped, asks_again }
}

/// Returns text that `echo` answers in this many tokens.
fn echoed(tokens: u32) -> String {
    let mut text = String::new();
    for n in 0..tokens {
        // Writing to a string cannot fail.
        let _ = write!(text, "tok{n} ");
    }
    text
}

/// Returns an input for agents that count. The pace is in milliseconds, or in microseconds below one
/// millisecond.
pub(super) fn sentence(tokens: u32, pace: Duration) -> String {
    match pace.as_millis() {
        0 if pace.is_zero() => format!("count to {tokens}"),
        0 => format!("count to {tokens} every {}us", pace.as_micros()),
        millis => format!("count to {tokens} every {millis}ms"),
    }
}

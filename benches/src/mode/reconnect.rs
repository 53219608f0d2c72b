//! Mode `reconnect`: drops every connection at once, resumes with cursors, and checks that nothing is missing.
mod session_view;
mod subscriber;

use crate::cli::Reconnect;
use crate::error::BenchError;
use crate::mode::stream::count_request;
use crate::record::{Count, Measure};
use crate::report::{self, ModeFigures};
use crate::run::Run;
use futures_util::future::join_all;
use serde_json::json;
use std::rc::Rc;
use std::time::{Duration, Instant};
use subscriber::{ReconnectPlan, Subscriber};
use tokio::task::JoinSet;
use turnway::cli::CliExit;

/// Runs the mode.
pub async fn run(args: Reconnect) -> Result<CliExit, BenchError> {
    let run = Run::unpaced("reconnect", Measure::Resumed, &args.common)?;
    let streaming = &args.streaming;
    let plan = Rc::new(ReconnectPlan {
        agent: streaming.agent.clone(),
        short: count_request(1, Duration::from_millis(1)),
        long: count_request(streaming.tokens, streaming.pace),
        open_percent: args.open,
        answer_wait: streaming.pace * streaming.tokens,
    });
    let count = run.load().connections;
    let mut subscribers = run.make_all(count, |n| Subscriber::open(&run, &plan, n)).await?;
    run.begin();
    let mut rounds = Vec::new();
    for round in 1..=args.rounds {
        if run.started_at().elapsed() > run.load().duration {
            break;
        }
        run.progress().show(u64::from(round), args.rounds.into(), &format!("round {round} of {}", args.rounds));
        rounds.push(self::round(&run, &mut subscribers, round).await);
    }
    run.end();
    let verified = join_all(subscribers.into_iter().map(Subscriber::verify)).await;
    let verified = verified.into_iter().filter(|is_same| *is_same).count();
    run.drain(JoinSet::new()).await;
    report::finish(&run, &figures(&run, &args, &rounds, verified))
}

/// Drops all connections, resumes them and reads open answers to their end. Returns the time until the last had
/// resumed.
async fn round(run: &Run, subscribers: &mut [Subscriber], round: u32) -> Duration {
    join_all(subscribers.iter_mut().map(|subscriber| subscriber.prepare(round))).await;
    let dropped = Instant::now();
    subscribers.iter_mut().for_each(Subscriber::drop_line);
    let resumed = join_all(subscribers.iter_mut().map(|subscriber| subscriber.resume(dropped))).await;
    let last = resumed.into_iter().flatten().max().unwrap_or_default();
    join_all(subscribers.iter_mut().map(Subscriber::read_to_end)).await;
    run.record().borrow_mut().end_second(Instant::now(), run.started_at(), None);
    last
}

fn figures(run: &Run, args: &Reconnect, rounds: &[Duration], verified: usize) -> ModeFigures {
    let millis: Vec<f64> = rounds.iter().map(|round| round.as_secs_f64() * 1e3).collect();
    let said: Vec<String> = millis.iter().map(|millis| format!("{millis:.1} ms")).collect();
    let record = run.record().borrow();
    let resumed = record.counted(Count::Resumed);
    let gaps = record.counted(Count::Gaps);
    let more = json!({
        "rounds": rounds.len(), "all_resumed_ms": millis, "gaps": gaps, "verified": verified,
        "open_percent": args.open, "agent": args.streaming.agent, "tokens": args.streaming.tokens,
    });
    let lines = vec![
        ("all resumed", said.join(", ")),
        ("gaps", format!("{gaps}; {verified} sessions read again whole, and the same")),
    ];
    ModeFigures { unit: "resumes", count: resumed, closed_loop: None, extra_json: more, extra_lines: lines }
}

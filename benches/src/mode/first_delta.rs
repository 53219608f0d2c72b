//! Mode `first-delta`: the time that a node adds to an answer's first text; turns and direct requests
//! alternate.
use crate::cli::FirstDelta;
use crate::error::BenchError;
use crate::mode::direct::DirectClient;
use crate::mode::open_session_clients;
use crate::mode::session_client::{SessionClient, Workload};
use crate::record::{Measure, Record, micros};
use crate::report::table::format_micros;
use crate::report::{self, CLOSED_LOOP_EACH, ModeFigures};
use crate::run::Run;
use crate::target::Target;
use crate::wire;
use serde_json::json;
use std::rc::Rc;
use tokio::task::JoinSet;
use turnway::cli::CliExit;

/// Runs the mode.
pub async fn run(args: FirstDelta) -> Result<CliExit, BenchError> {
    if args.common.load.rate.is_none() {
        return Err(BenchError::Usage("first-delta needs a --rate: the two ways take turns by the clock".to_owned()));
    }
    let aim = &args.common.aim;
    let target = Target::find(&args.direct, "http", None, aim.i_own_this_target)?;
    let run = Run::new("first-delta", Measure::FirstDelta, &args.common)?;
    let text = wire::filler_text(args.size);
    let job = Workload { agent: args.agent, text, answer: None, is_stamped: false, is_closed_loop: false };
    let job = Rc::new(job);
    let count = run.load().connections;
    let talks = open_session_clients(&run, &job, &args.owner, count).await?;
    let directs = run.make_all(count, |_| DirectClient::open(&run, &target, &job.text)).await?;
    let bells = talks.iter().map(SessionClient::due_queue).zip(directs.iter().map(DirectClient::due_queue));
    let bells = bells.flat_map(|(turn, direct)| [turn, direct]).collect();
    let mut tasks = JoinSet::new();
    run.begin();
    for (talk, direct) in talks.into_iter().zip(directs) {
        tasks.spawn_local(talk.run());
        tasks.spawn_local(direct.run());
    }
    run.dispatch(bells).await?;
    run.drain(tasks).await;
    let story = figures(&run.record().borrow());
    report::finish(&run, &story)
}

/// Compares percentiles of both distributions; single turns have no counterpart to be compared with.
fn figures(record: &Record) -> ModeFigures {
    let at = |measure, rank| record.histogram(measure).map_or(0, |times| times.value_at_quantile(rank));
    let added = |rank| micros(at(Measure::FirstDelta, rank)) - micros(at(Measure::Direct, rank));
    let p50 = added(0.5);
    let p99 = added(0.99);
    let count = record.histogram(Measure::FirstDelta).map_or(0, |times| times.len());
    let lines = vec![("added", format!("{} at p50, {} at p99", format_micros(p50), format_micros(p99)))];
    ModeFigures {
        unit: "turns",
        count,
        closed_loop: CLOSED_LOOP_EACH,
        extra_json: json!({ "added_us": { "p50": p50, "p99": p99 } }),
        extra_lines: lines,
    }
}

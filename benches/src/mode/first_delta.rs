//! Mode `first-delta`: the time that a node adds to an answer's first text; turns and direct requests
//! alternate.
use crate::cli::FirstDelta;
use crate::mode::direct::Direct;
use crate::mode::talk::{Job, Talk};
use crate::mode::talks;
use crate::record::{Measure, Record, micros};
use crate::report::table::time;
use crate::report::{self, ONE_EACH, Story};
use crate::run::Run;
use crate::target::Target;
use crate::trouble::Trouble;
use crate::wire;
use serde_json::json;
use std::rc::Rc;
use tokio::task::JoinSet;
use turnway::cli::Exit;

/// Runs the mode.
pub async fn run(args: FirstDelta) -> Result<Exit, Trouble> {
    if args.common.load.rate.is_none() {
        return Err(Trouble::Usage(
            "first-delta needs a --rate: the two ways take turns by the clock".to_owned(),
        ));
    }
    let aim = &args.common.aim;
    let target = Target::find(&args.direct, "http", None, aim.i_own_this_target)?;
    let run = Run::new("first-delta", Measure::FirstDelta, &args.common)?;
    let text = wire::words(args.size);
    let job = Job { agent: args.agent, text, answer: None, is_stamped: false, asks_again: false };
    let job = Rc::new(job);
    let count = run.load().connections;
    let talks = talks(&run, &job, &args.owner, count).await?;
    let directs = run.gather(count, |_| Direct::open(&run, &target, &job.text)).await?;
    let bells = talks.iter().map(Talk::bell).zip(directs.iter().map(Direct::bell));
    let bells = bells.flat_map(|(turn, direct)| [turn, direct]).collect();
    let mut tasks = JoinSet::new();
    run.begin();
    for (talk, direct) in talks.into_iter().zip(directs) {
        tasks.spawn_local(talk.run());
        tasks.spawn_local(direct.run());
    }
    run.ring(bells).await?;
    run.drain(tasks).await;
    let story = story(&run.record().borrow());
    report::finish(&run, &story)
}

/// Compares percentiles of both distributions; single turns have no counterpart to be compared with.
fn story(record: &Record) -> Story {
    let at = |measure, rank| record.histogram(measure).map_or(0, |times| times.value_at_quantile(rank));
    let added = |rank| micros(at(Measure::FirstDelta, rank)) - micros(at(Measure::Direct, rank));
    let (p50, p99) = (added(0.5), added(0.99));
    let count = record.histogram(Measure::FirstDelta).map_or(0, |times| times.len());
    let lines = vec![("added", format!("{} at p50, {} at p99", time(p50), time(p99)))];
    Story {
        unit: "turns",
        count,
        closed: ONE_EACH,
        more: json!({ "added_us": { "p50": p50, "p99": p99 } }),
        lines,
    }
}

//! Mode `turns`: whole turns, with a session for each connection.
use crate::cli::Turns;
use crate::mode::talk::{Job, Talk};
use crate::mode::talks;
use crate::record::{Count, Measure};
use crate::report::{self, ONE_EACH, Story};
use crate::run::Run;
use crate::trouble::Trouble;
use crate::wire;
use serde_json::json;
use std::rc::Rc;
use tokio::task::JoinSet;
use turnway::cli::Exit;

/// Runs the mode.
pub async fn run(args: Turns) -> Result<Exit, Trouble> {
    let run = Run::new("turns", Measure::Done, &args.common)?;
    let text = wire::words(args.size);
    let answer = (args.agent == "echo").then(|| text.clone());
    let job = Rc::new(Job { agent: args.agent, text, answer, is_stamped: false, asks_again: true });
    let talks = talks(&run, &job, &args.owner, run.load().connections).await?;
    let warm_up = talks.len();
    load(&run, talks).await?;
    let count = run.record().borrow().counted(Count::InTime);
    let more = json!({ "agent": job.agent, "size": args.size, "warm_up_turns": warm_up });
    report::finish(&run, &Story { unit: "turns", count, closed: ONE_EACH, more, lines: Vec::new() })
}

/// Runs the clients until the load is over, and waits for the last answers.
pub(super) async fn load(run: &Rc<Run>, talks: Vec<Talk>) -> Result<(), Trouble> {
    let bells = talks.iter().map(Talk::bell).collect();
    let mut tasks = JoinSet::new();
    run.begin();
    for talk in talks {
        tasks.spawn_local(talk.run());
    }
    run.ring(bells).await?;
    run.drain(tasks).await;
    Ok(())
}

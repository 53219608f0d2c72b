//! Mode `turns`: whole turns, with a session for each connection.
use crate::cli::Turns;
use crate::error::BenchError;
use crate::mode::open_session_clients;
use crate::mode::session_client::{SessionClient, Workload};
use crate::record::{Count, Measure};
use crate::report::{self, CLOSED_LOOP_EACH, ModeFigures};
use crate::run::Run;
use crate::wire;
use serde_json::json;
use std::rc::Rc;
use tokio::task::JoinSet;
use turnway::cli::CliExit;

/// Runs the mode.
pub async fn run(args: Turns) -> Result<CliExit, BenchError> {
    let run = Run::new("turns", Measure::Done, &args.common)?;
    let text = wire::filler_text(args.size);
    let answer = (args.agent == "echo").then(|| text.clone());
    let job = Rc::new(Workload { agent: args.agent, text, answer, is_stamped: false, is_closed_loop: true });
    let talks = open_session_clients(&run, &job, &args.owner, run.load().connections).await?;
    let warm_up = talks.len();
    run_load(&run, talks).await?;
    let count = run.record().borrow().counted(Count::InTime);
    let more = json!({ "agent": job.agent, "size": args.size, "warm_up_turns": warm_up });
    report::finish(
        &run,
        &ModeFigures { unit: "turns", count, closed_loop: CLOSED_LOOP_EACH, extra_json: more, extra_lines: Vec::new() },
    )
}

/// Runs the clients until the load is over, and waits for the last answers.
pub(super) async fn run_load(run: &Rc<Run>, talks: Vec<SessionClient>) -> Result<(), BenchError> {
    let bells = talks.iter().map(SessionClient::due_queue).collect();
    let mut tasks = JoinSet::new();
    run.begin();
    for talk in talks {
        tasks.spawn_local(talk.run());
    }
    run.dispatch(bells).await?;
    run.drain(tasks).await;
    Ok(())
}

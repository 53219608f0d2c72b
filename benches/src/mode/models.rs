//! Mode `models`: chat completions at a models route, or directly at their upstream: the times of the first byte and
//! of the whole call, calls a second, and memory with open streams.
pub mod answer;
mod caller;

use crate::cli::Models;
use crate::error::BenchError;
use crate::record::{Count, Measure};
use crate::report::table::format_bytes;
use crate::report::{self, CLOSED_LOOP_EACH, ModeFigures};
use crate::run::Run;
use caller::{CallPlan, HeldStream, ModelCaller};
use serde_json::{Value, json};
use std::rc::Rc;
use tokio::task::JoinSet;
use turnway::cli::CliExit;

/// Runs the mode.
pub async fn run(args: Models) -> Result<CliExit, BenchError> {
    let run = Run::over_http("models", Measure::WholeCall, &args.common)?;
    let plan = CallPlan::new(&run, &args)?;
    let figures = if args.hold { hold(&run, &plan, &args).await? } else { call(&run, &plan, &args).await? };
    report::finish(&run, &figures)
}

/// Calls until the time is over or all requested calls have ended.
async fn call(run: &Rc<Run>, plan: &Rc<CallPlan>, args: &Models) -> Result<ModeFigures, BenchError> {
    let callers = run.make_all(run.load().connections, |_| ModelCaller::open(plan)).await?;
    let due_queues = callers.iter().map(ModelCaller::due_queue).collect();
    let warm_up = callers.len();
    let mut tasks = JoinSet::new();
    run.begin();
    for caller in callers {
        tasks.spawn_local(caller.run());
    }
    tokio::select! {
        dispatched = run.dispatch(due_queues) => dispatched?,
        () = plan.wait_for_last_call() => run.end(),
    }
    run.drain(tasks).await;
    let count = run.record().borrow().counted(Count::InTime);
    let mut extra_json = request_json(args);
    extra_json["warm_up_calls"] = warm_up.into();
    extra_json["reconnects"] = plan.reconnects().into();
    let extra_lines = vec![("connections", format!("opened again {} times", plan.reconnects()))];
    Ok(ModeFigures { unit: "calls", count, closed_loop: CLOSED_LOOP_EACH, extra_json, extra_lines })
}

/// Opens all streams, keeps them open, and reads the server's memory.
async fn hold(run: &Rc<Run>, plan: &Rc<CallPlan>, args: &Models) -> Result<ModeFigures, BenchError> {
    let Some(server) = run.server() else {
        return Err(BenchError::Usage("--hold needs --server-pid: it is about that process's memory".to_owned()));
    };
    run.begin();
    let open = async |_| {
        run.count(Count::Asked, 1);
        HeldStream::open(plan).await
    };
    let mut streams = run.make_all(run.load().connections, open).await?;
    let opened_s = run.duration().as_secs_f64();
    run.pause(run.load().duration).await;
    let rss_held = server.process.rss().unwrap_or(0);
    let held = streams.iter_mut().map(HeldStream::is_open).filter(|is_open| *is_open).count() as u64;
    run.count(Count::Completed, held);
    run.end();
    run.drain(JoinSet::new()).await;
    let mut extra_json = request_json(args);
    let more = [
        ("held", Value::from(held)),
        ("opened_s", opened_s.into()),
        ("rss_before_bytes", server.rss_before.into()),
        ("rss_held_bytes", rss_held.into()),
    ];
    for (key, value) in more {
        extra_json[key] = value;
    }
    #[expect(clippy::cast_precision_loss, reason = "bytes of one machine")]
    let memory = [server.rss_before, rss_held].map(|bytes| format_bytes(bytes as f64));
    let extra_lines = vec![("memory", format!("{} before, {} with {held} open streams", memory[0], memory[1]))];
    Ok(ModeFigures { unit: "streams", count: held, closed_loop: None, extra_json, extra_lines })
}

/// Returns the part of the figures that describes the request.
fn request_json(args: &Models) -> Value {
    json!({ "model": args.model, "streamed": args.stream, "chunks": args.chunks })
}

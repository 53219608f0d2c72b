//! Mode `idle`: memory and CPU time of idle connections, whether all of them still work afterwards, and the
//! memory that remains after they are closed.
mod client;

use crate::cli::Idle;
use crate::error::BenchError;
use crate::process::Cpu;
use crate::record::{Count, Measure};
use crate::report::table::format_bytes;
use crate::report::{self, ModeFigures};
use crate::run::Run;
use client::IdlePlan;
use serde_json::json;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use turnway::cli::CliExit;

/// Longest time that the server has to return memory; not longer than it was idle.
const RETURN_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of requests while memory is returned, because allocators return memory while they are used.
const TRAFFIC_EVERY: Duration = Duration::from_millis(250);

/// Samples of the server's process: resident memory in bytes, and CPU time.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessSamples {
    before: u64,
    opened: u64,
    idle: u64,
    closed: u64,
    peak: u64,
    opening: Cpu,
    idling: Cpu,
}

/// The outcome of the connections.
#[derive(Clone, Copy, Debug)]
struct IdleOutcome {
    /// Connections still open at the end.
    held: u64,
    /// Of these, connections that answered at the end.
    answered: u64,
    opening: Duration,
    idling: Duration,
}

/// Runs the mode.
pub async fn run(mut args: Idle) -> Result<CliExit, BenchError> {
    args.common.aim.sources.get_or_insert(8);
    let run = Run::unpaced("idle", Measure::Connect, &args.common)?;
    let Some(server) = run.server() else {
        return Err(BenchError::Usage("idle needs --server-pid: it is about that process's memory".to_owned()));
    };
    let process = server.process;
    let plan = IdlePlan::new(&run, &args);
    let rss = || process.rss().unwrap_or(0);
    let cpu = || process.cpu().unwrap_or_default();
    let mut seen = ProcessSamples { before: server.rss_before, ..ProcessSamples::default() };
    run.begin();
    let count = run.load().connections;
    let began = cpu();
    let (over, watched) = watch::channel(false);
    let tasks = RefCell::new(JoinSet::new());
    // Each connection answers pings from the start: opening all may take longer than a node waits for a pong.
    let progress = async |n| {
        let line = plan.open_idle(n).await?;
        tasks.borrow_mut().spawn_local(Rc::clone(&plan).stay_idle(line, watched.clone()));
        Ok(())
    };
    run.make_all(count, progress).await?;
    let opening = run.started_at().elapsed();
    (seen.opened, seen.opening) = (rss(), cpu().since(began));
    run.pause(args.rest).await;
    let since = Instant::now();
    let from = cpu();
    run.pause(run.load().duration).await;
    (seen.idle, seen.idling) = (rss(), cpu().since(from));
    let idling = since.elapsed();
    let left = run.record().borrow().counted(Count::Lost);
    over.send_replace(true);
    run.drain(tasks.into_inner()).await;
    let went =
        IdleOutcome { held: (count as u64).saturating_sub(left), answered: plan.answered_count(), opening, idling };
    seen.closed = minimum_memory(&plan, rss, count, RETURN_TIMEOUT.min(idling)).await?;
    run.end();
    // A reading between two samples of the monitor may be the highest.
    seen.peak = [seen.opened, seen.idle, seen.closed].into_iter().fold(server.rss_peak(), u64::max);
    report::finish(&run, &figures(&args, seen, went))
}

/// Sends a little traffic after all connections were closed, until no more memory is returned. Returns the
/// minimum.
async fn minimum_memory(plan: &IdlePlan, rss: impl Fn() -> u64, n: usize, wait: Duration) -> Result<u64, BenchError> {
    let mut client = plan.open(n).await?;
    let mut least = rss();
    let mut ticks = interval(TRAFFIC_EVERY);
    let traffic = async {
        loop {
            ticks.tick().await;
            client.run_turn().await?;
            least = least.min(rss());
        }
    };
    let ended: Result<Result<(), BenchError>, _> = timeout(wait, traffic).await;
    if let Ok(Err(trouble)) = ended {
        return Err(trouble);
    }
    // Closes in order: a stopping node would wait for a client that vanished.
    client.into_line().close().await;
    Ok(least)
}

fn figures(args: &Idle, seen: ProcessSamples, went: IdleOutcome) -> ModeFigures {
    let IdleOutcome { held, answered, opening, idling } = went;
    #[expect(clippy::cast_precision_loss, reason = "bytes of one machine")]
    let each = |rss: u64| rss.saturating_sub(seen.before) as f64 / held.max(1) as f64;
    #[expect(clippy::cast_precision_loss, reason = "bytes of one machine")]
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let of_peak = share(seen.closed, seen.peak);
    let of_growth = share(seen.closed.saturating_sub(seen.before), seen.peak.saturating_sub(seen.before));
    let of_core = seen.idling.total().as_secs_f64() / idling.as_secs_f64().max(1e-9);
    let more = json!({
        "held": held, "answered": answered, "big": args.big,
        "opened_s": opening.as_secs_f64(), "opening_cpu_s": seen.opening.total().as_secs_f64(),
        "idle_s": idling.as_secs_f64(), "idle_cpu_user_s": seen.idling.user.as_secs_f64(),
        "idle_cpu_system_s": seen.idling.system.as_secs_f64(), "idle_cpu_share": of_core,
        "rss_before_bytes": seen.before, "rss_opened_bytes": seen.opened,
        "rss_idle_bytes": seen.idle, "rss_closed_bytes": seen.closed, "rss_peak_bytes": seen.peak,
        "bytes_per_connection_opened": each(seen.opened), "bytes_per_connection": each(seen.idle),
        "closed_share_of_peak": of_peak, "closed_share_of_growth": of_growth,
    });
    let lines = vec![
        ("still there", format!("{held}, of which {answered} answered when they were spoken to again")),
        (
            "each",
            format!("{} when opened, {} when idle", format_bytes(each(seen.opened)), format_bytes(each(seen.idle))),
        ),
        ("CPU while idle", format!("{:.2} % of a core over {:.0} s", of_core * 1e2, idling.as_secs_f64())),
        (
            "after closing",
            format!("{:.0} % of the most there was, {:.0} % of what it had grown", of_peak * 1e2, of_growth * 1e2),
        ),
    ];
    ModeFigures { unit: "connections", count: held, closed_loop: None, extra_json: more, extra_lines: lines }
}

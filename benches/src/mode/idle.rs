//! Connections that do nothing: what each of them costs the server's memory, and what is left after them.
use crate::cli::Idle;
use crate::connection::Line;
use crate::mode::talk::{Job, Talk};
use crate::record::{Count, Measure};
use crate::report::table::size;
use crate::report::{self, Story};
use crate::run::Run;
use crate::trouble::Trouble;
use crate::wire;
use serde_json::json;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use turnway::cli::Exit;

/// Words of a small turn.
const SIZE: usize = 64;
/// What a message holds beside its text, at the most: ids and names.
const BESIDE: usize = 512;
/// A server is given so long to hand its memory back.
const SETTLE: Duration = Duration::from_secs(10);
/// Allocators hand memory back while they are used.
const TRAFFIC_EVERY: Duration = Duration::from_millis(250);

/// Bytes of resident memory of the server, at the moments that matter.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    before: u64,
    opened: u64,
    idle: u64,
    closed: u64,
}

/// Runs it.
pub async fn run(mut args: Idle) -> Result<Exit, Trouble> {
    args.common.aim.sources.get_or_insert(8);
    let run = Run::unpaced("idle", Measure::Connect, &args.common)?;
    let Some(server) = run.server() else {
        return Err(Trouble::Usage("idle needs --server-pid: it is about that process's memory".to_owned()));
    };
    let rss = || server.process.rss().unwrap_or(0);
    let mut memory = Memory { before: server.rss_before, ..Memory::default() };
    run.begin();
    let count = run.load().connections;
    let (small, large) = jobs(&args);
    let open = |n| {
        let job = if n < args.big { &large } else { &small };
        connect(&run, job, n, args.hello_only)
    };
    let lines = run.gather(count, open).await?;
    let opened = run.begun().elapsed();
    memory.opened = rss();
    let (over, watched) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for line in lines {
        tasks.spawn_local(hold(Rc::clone(&run), line, watched.clone()));
    }
    run.pause(run.load().duration).await;
    memory.idle = rss();
    let left = run.record().borrow().counted(Count::Lost);
    over.send_replace(true);
    run.drain(tasks).await;
    memory.closed = settle(&run, &small, count).await?;
    run.end();
    let held = (count as u64).saturating_sub(left);
    report::finish(&run, &story(&args, memory, held, opened, server.rss_peak()))
}

fn jobs(args: &Idle) -> (Rc<Job>, Rc<Job>) {
    let job = |bytes| {
        let text = wire::words(bytes);
        let answer = (args.agent == "echo").then(|| text.clone());
        Rc::new(Job { agent: args.agent.clone(), text, answer, is_stamped: false, asks_again: false })
    };
    (job(SIZE), job(turnway_core::limits::MESSAGE_BYTES_MAX - BESIDE))
}

/// A connection that has had its turn, if it is to have one.
async fn connect(run: &Rc<Run>, job: &Rc<Job>, n: usize, hello_only: bool) -> Result<Line, Trouble> {
    let mut talk = Talk::open(run, job, n).await?;
    if hello_only {
        return Ok(talk.into_line());
    }
    run.count(Count::Asked, 1);
    talk.one_turn().await?;
    Ok(talk.into_line())
}

/// Answers pings, and otherwise does nothing.
async fn hold(run: Rc<Run>, mut line: Line, mut over: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            heard = line.next() => if let Err(lost) = heard {
                return run.lost(&lost);
            },
            _ = over.wait_for(|over| *over) => return line.close().await,
        }
    }
}

/// A little traffic after everybody has left, until no more memory comes back; the least there was.
async fn settle(run: &Rc<Run>, job: &Rc<Job>, n: usize) -> Result<u64, Trouble> {
    let Some(server) = run.server() else { return Ok(0) };
    let mut talk = Talk::open(run, job, n).await?;
    let mut least = server.process.rss().unwrap_or(0);
    let mut ticks = interval(TRAFFIC_EVERY);
    let traffic = async {
        loop {
            ticks.tick().await;
            talk.one_turn().await?;
            least = least.min(server.process.rss().unwrap_or(least));
        }
    };
    let ended: Result<Result<(), Trouble>, _> = timeout(SETTLE, traffic).await;
    match ended {
        Ok(Err(trouble)) => Err(trouble),
        Ok(Ok(())) | Err(_) => Ok(least),
    }
}

fn story(args: &Idle, memory: Memory, held: u64, opened: Duration, peak: u64) -> Story {
    #[expect(clippy::cast_precision_loss, reason = "bytes of one machine")]
    let each = |rss: u64| rss.saturating_sub(memory.before) as f64 / held.max(1) as f64;
    #[expect(clippy::cast_precision_loss, reason = "bytes of one machine")]
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let of_peak = share(memory.closed, peak);
    let of_growth = share(memory.closed.saturating_sub(memory.before), peak.saturating_sub(memory.before));
    let more = json!({
        "held": held, "big": args.big, "opened_s": opened.as_secs_f64(),
        "rss_before_bytes": memory.before, "rss_opened_bytes": memory.opened,
        "rss_idle_bytes": memory.idle, "rss_closed_bytes": memory.closed, "rss_peak_bytes": peak,
        "bytes_per_connection_opened": each(memory.opened), "bytes_per_connection": each(memory.idle),
        "closed_share_of_peak": of_peak, "closed_share_of_growth": of_growth,
    });
    let lines = vec![
        ("each", format!("{} when opened, {} when idle", size(each(memory.opened)), size(each(memory.idle)))),
        (
            "after closing",
            format!(
                "{:.0} % of the most there was, {:.0} % of what it had grown",
                of_peak * 1e2,
                of_growth * 1e2
            ),
        ),
    ];
    Story { unit: "connections", count: held, closed: None, more, lines }
}

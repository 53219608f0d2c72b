//! Mode `echo`: round trips of bare messages, the basic cost of every connection.
use crate::cli::Common;
use crate::connection::ServerConnection;
use crate::due_queue::DueQueue;
use crate::error::{BenchError, ConnectionFailure};
use crate::record::{Count, Measure};
use crate::report::{self, CLOSED_LOOP_EACH, ModeFigures};
use crate::run::Run;
use crate::wire;
use serde_json::json;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;
use tokio::task::JoinSet;
use turnway::cli::CliExit;

/// Maximum messages in flight on one connection.
const OPEN_MAX: usize = 16;

/// A connection and the due times of its messages in flight.
struct EchoClient {
    run: Rc<Run>,
    line: ServerConnection,
    due_queue: Rc<DueQueue>,
    text: Rc<str>,
    open: VecDeque<Instant>,
}

/// Runs the mode.
pub async fn run(common: &Common, size: usize) -> Result<CliExit, BenchError> {
    let run = Run::new("echo", Measure::RoundTrip, common)?;
    let text: Rc<str> = wire::filler_text(size).into();
    let open = |n| {
        let run = Rc::clone(&run);
        let text = Rc::clone(&text);
        async move {
            let mut line = ServerConnection::connect_bare(&run, n).await?;
            line.queue(text.to_string()).await?;
            line.flush().await?;
            if *line.next_in_time().await? != *text {
                return Err(BenchError::Failed("this is no echo server".to_owned()));
            }
            Ok(EchoClient { run, line, due_queue: Rc::default(), text, open: VecDeque::new() })
        }
    };
    let listeners = run.make_all(run.load().connections, open).await?;
    let bells = listeners.iter().map(|echoes| Rc::clone(&echoes.due_queue)).collect();
    let mut tasks = JoinSet::new();
    run.begin();
    for echoes in listeners {
        tasks.spawn_local(echoes.run());
    }
    run.dispatch(bells).await?;
    run.drain(tasks).await;
    let count = run.record().borrow().counted(Count::InTime);
    report::finish(
        &run,
        &ModeFigures {
            unit: "messages",
            count,
            closed_loop: CLOSED_LOOP_EACH,
            extra_json: json!({ "size": size }),
            extra_lines: Vec::new(),
        },
    )
}

// === impl EchoClient ===

impl EchoClient {
    async fn run(mut self) {
        if let Err(lost) = self.run_load().await {
            self.run.count_lost(&lost);
        } else {
            self.line.close().await;
        }
    }

    async fn run_load(&mut self) -> Result<(), ConnectionFailure> {
        loop {
            let mut is_fed = false;
            while self.open.len() < OPEN_MAX
                && let Some(due) = self.due_queue.pop()
            {
                if self.run.is_open_loop() && self.open.len() + 1 < OPEN_MAX {
                    self.run.record_duration(Measure::Late, due.elapsed());
                }
                self.open.push_back(due);
                self.line.queue(self.text.to_string()).await?;
                is_fed = true;
            }
            if is_fed {
                self.line.flush().await?;
            }
            if self.run.is_over() && self.open.is_empty() && self.due_queue.is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                text = self.line.next() => self.handle_message(&text?),
                () = self.due_queue.notified() => {}
            }
            while let Some(text) = self.line.next_now() {
                self.handle_message(&text?);
            }
        }
    }

    fn handle_message(&mut self, text: &str) {
        let Some(due) = self.open.pop_front() else { return self.run.count(Count::Gaps, 1) };
        self.run.record_duration(Measure::RoundTrip, due.elapsed());
        self.run.count(Count::Completed, 1);
        self.run.count(Count::InTime, u64::from(self.run.is_running()));
        self.run.count(Count::Mismatches, u64::from(*text != *self.text));
        self.run.make_due_again(&self.due_queue, false);
    }
}

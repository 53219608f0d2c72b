//! Mode `echo`: round trips of bare messages, the basic cost of every connection.
use crate::bell::Bell;
use crate::cli::Common;
use crate::connection::Line;
use crate::record::{Count, Measure};
use crate::report::{self, ONE_EACH, Story};
use crate::run::Run;
use crate::trouble::{Lost, Trouble};
use crate::wire;
use serde_json::json;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;
use tokio::task::JoinSet;
use turnway::cli::Exit;

/// Maximum messages in flight on one connection.
const OPEN_MAX: usize = 16;

/// A connection and the due times of its messages in flight.
struct Echoes {
    run: Rc<Run>,
    line: Line,
    bell: Rc<Bell>,
    text: Rc<str>,
    open: VecDeque<Instant>,
}

/// Runs the mode.
pub async fn run(common: &Common, size: usize) -> Result<Exit, Trouble> {
    let run = Run::new("echo", Measure::RoundTrip, common)?;
    let text: Rc<str> = wire::words(size).into();
    let open = |n| {
        let (run, text) = (Rc::clone(&run), Rc::clone(&text));
        async move {
            let mut line = Line::open(&run, n).await?;
            line.feed(text.to_string()).await?;
            line.flush().await?;
            if *line.answer().await? != *text {
                return Err(Trouble::Failed("this is no echo server".to_owned()));
            }
            Ok(Echoes { run, line, bell: Rc::default(), text, open: VecDeque::new() })
        }
    };
    let crowd = run.gather(run.load().connections, open).await?;
    let bells = crowd.iter().map(|echoes| Rc::clone(&echoes.bell)).collect();
    let mut tasks = JoinSet::new();
    run.begin();
    for echoes in crowd {
        tasks.spawn_local(echoes.run());
    }
    run.ring(bells).await?;
    run.drain(tasks).await;
    let count = run.record().borrow().counted(Count::InTime);
    report::finish(
        &run,
        &Story {
            unit: "messages",
            count,
            closed: ONE_EACH,
            more: json!({ "size": size }),
            lines: Vec::new(),
        },
    )
}

// === impl Echoes ===

impl Echoes {
    async fn run(mut self) {
        if let Err(lost) = self.talk().await {
            self.run.lost(&lost);
        } else {
            self.line.close().await;
        }
    }

    async fn talk(&mut self) -> Result<(), Lost> {
        loop {
            let mut is_fed = false;
            while self.open.len() < OPEN_MAX
                && let Some(due) = self.bell.take()
            {
                if self.run.is_open_loop() && self.open.len() + 1 < OPEN_MAX {
                    self.run.took(Measure::Late, due.elapsed());
                }
                self.open.push_back(due);
                self.line.feed(self.text.to_string()).await?;
                is_fed = true;
            }
            if is_fed {
                self.line.flush().await?;
            }
            if self.run.is_over() && self.open.is_empty() && self.bell.is_silent() {
                return Ok(());
            }
            tokio::select! {
                biased;
                text = self.line.next() => self.hear(&text?),
                () = self.bell.rung() => {}
            }
            while let Some(text) = self.line.next_now() {
                self.hear(&text?);
            }
        }
    }

    fn hear(&mut self, text: &str) {
        let Some(due) = self.open.pop_front() else { return self.run.count(Count::Gaps, 1) };
        self.run.took(Measure::RoundTrip, due.elapsed());
        self.run.count(Count::Completed, 1);
        self.run.count(Count::InTime, u64::from(self.run.is_on()));
        self.run.count(Count::Mismatches, u64::from(*text != *self.text));
        self.run.ask_again(&self.bell, false);
    }
}

//! A client with a session whose connection is dropped repeatedly.
use super::view::View;
use crate::connection::Line;
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::trouble::{Lost, PATIENCE, Trouble};
use crate::wire::{self, Heard, Invoke};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::time::{sleep_until, timeout};

/// Pause before the next attempt to reconnect.
const RETRY: Duration = Duration::from_millis(50);

/// The behaviour of all clients.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) agent: String,
    /// Input with a short answer.
    pub(super) short: String,
    /// Input whose answer is still in progress when the connection is dropped.
    pub(super) long: String,
    /// Percentage of clients that have such an answer.
    pub(super) open_percent: u8,
    /// Duration of such an answer.
    pub(super) answer_wait: Duration,
}

#[derive(Debug)]
pub(super) struct Subscriber {
    run: Rc<Run>,
    plan: Rc<Plan>,
    n: usize,
    session: String,
    line: Option<Line>,
    view: View,
    /// End of the session's log at the time of resuming.
    tail: u64,
    /// A turn was sent whose end has not arrived.
    is_asked: bool,
}

// === impl Subscriber ===

impl Subscriber {
    /// Opens the n-th client, whose session has had one turn.
    pub(super) async fn open(run: &Rc<Run>, plan: &Rc<Plan>, n: usize) -> Result<Self, Trouble> {
        let (line, _) = Line::hello(run, n, &user(n), "").await?;
        let mut subscriber = Self {
            run: Rc::clone(run),
            plan: Rc::clone(plan),
            n,
            session: format!("b{}-{n}", run.tag()),
            line: Some(line),
            view: View::default(),
            tail: 0,
            is_asked: false,
        };
        let short = subscriber.plan.short.clone();
        subscriber.ask(&short, 0).await?;
        let heard = timeout(PATIENCE, subscriber.until(|this| !this.is_asked)).await;
        heard.map_err(|_| Lost::Silent)??;
        Ok(subscriber)
    }

    /// Starts a long answer at some of the clients, and waits until the answer has begun.
    pub(super) async fn prepare(&mut self, round: u32) {
        self.run.count(Count::Asked, 1);
        // Neighbours differ, so that any number of clients is a fair mixture.
        if self.n * 37 % 100 >= usize::from(self.plan.open_percent) {
            return;
        }
        let long = self.plan.long.clone();
        let begun = async {
            self.ask(&long, round.into()).await?;
            self.until(|this| this.view.is_open() || !this.is_asked).await
        };
        let begun = begun_in(PATIENCE, begun).await;
        self.settle(begun);
    }

    /// Drops the connection without closing it, as a network failure does.
    pub(super) fn drop_line(&mut self) {
        self.line = None;
    }

    /// Resumes with a cursor. Returns the time from the drop until the session was resumed, or `None` on
    /// failure.
    pub(super) async fn resume(&mut self, dropped: Instant) -> Option<Duration> {
        let resumed = begun_in(PATIENCE, self.come_back(dropped)).await;
        match resumed {
            Ok(after) => Some(after),
            Err(lost) => {
                self.settle(Err(lost));
                None
            }
        }
    }

    async fn come_back(&mut self, dropped: Instant) -> Result<Duration, Lost> {
        let cursor = self.view.cursor(&self.session);
        let line = loop {
            match Line::hello(&self.run, self.n, &user(self.n), &cursor).await {
                Ok((line, _)) => break line,
                Err(Lost::Unreachable(_) | Lost::Broken(_) | Lost::Closed(_)) => {
                    sleep_until((Instant::now() + RETRY).into()).await;
                }
                Err(lost @ (Lost::Silent | Lost::Denied(_))) => return Err(lost),
            }
        };
        let line = self.line.insert(line);
        let text = line.next().await?;
        let heard = Heard::parse(&text).unwrap_or_default();
        if heard.kind != "subscribed" {
            return Err(Lost::Denied(heard.why()));
        }
        let after = dropped.elapsed();
        self.run.took(Measure::Resumed, after);
        self.run.count(Count::Resumed, 1);
        self.run.count(Count::Gaps, u64::from(heard.reset));
        self.tail = heard.seq.unwrap_or(0);
        self.until(|this| this.view.last() >= this.tail).await?;
        self.run.took(Measure::CaughtUp, dropped.elapsed());
        Ok(after)
    }

    /// Reads to the end of the open turn.
    pub(super) async fn hear_out(&mut self) {
        if self.line.is_none() {
            return;
        }
        let wait = PATIENCE + self.plan.answer_wait;
        let heard = begun_in(wait, self.until(|this| !this.is_asked)).await;
        if heard.is_ok() {
            self.run.count(Count::Completed, 1);
        }
        self.settle(heard);
    }

    /// Reads the whole log once more, and returns whether it matches what was received.
    pub(super) async fn verify(mut self) -> bool {
        let whole = begun_in(PATIENCE, self.read_again()).await;
        let is_same = whole.is_ok_and(|whole| self.view.is_within(&whole));
        if !is_same {
            self.run.count(Count::Gaps, 1);
        }
        if let Some(line) = self.line {
            line.close().await;
        }
        is_same
    }

    async fn read_again(&mut self) -> Result<View, Lost> {
        let line = self.line.as_mut().ok_or(Lost::Silent)?;
        let session = wire::quoted(&self.session);
        line.feed(format!("{{\"type\":\"subscribe\",\"session_id\":{session},\"after_seq\":0}}")).await?;
        line.flush().await?;
        let mut whole = View::default();
        let mut is_begun = false;
        while !is_begun || whole.last() < self.view.last() {
            let text = line.next().await?;
            let heard = Heard::parse(&text).ok_or_else(|| Lost::Broken("not a message".to_owned()))?;
            is_begun |= heard.kind == "subscribed";
            if is_begun && whole.take(&heard).is_err() {
                return Err(Lost::Broken("the log itself has a gap".to_owned()));
            }
        }
        Ok(whole)
    }

    async fn ask(&mut self, text: &str, number: u64) -> Result<(), Lost> {
        let invoke = Invoke::new(self.run.tag(), &self.session, &self.plan.agent, text);
        let line = self.line.as_mut().ok_or(Lost::Silent)?;
        line.feed(invoke.say(number)).await?;
        line.flush().await?;
        self.is_asked = true;
        Ok(())
    }

    /// Reads messages until the condition holds.
    async fn until(&mut self, is_so: impl Fn(&Self) -> bool) -> Result<(), Lost> {
        while !is_so(self) {
            let text = self.line.as_mut().ok_or(Lost::Silent)?.next().await?;
            let heard = Heard::parse(&text).ok_or_else(|| Lost::Broken("not a message".to_owned()))?;
            if self.view.take(&heard).is_err() {
                self.run.count(Count::Gaps, 1);
            }
            let is_refused = heard.kind == "error" && heard.request_id.is_some() && heard.run_id.is_none();
            if heard.kind == "error" {
                self.run.error(heard.code.as_deref().unwrap_or("no_code"));
            }
            if heard.kind == "done" || is_refused {
                self.is_asked = false;
            }
        }
        Ok(())
    }

    /// Drops a connection that failed; its open turn counts as unanswered.
    fn settle(&mut self, ended: Result<(), Lost>) {
        if let Err(lost) = ended {
            self.run.lost(&lost);
            self.line = None;
        }
    }
}

fn user(n: usize) -> String {
    format!("bench-{n}")
}

async fn begun_in<T>(wait: Duration, work: impl Future<Output = Result<T, Lost>>) -> Result<T, Lost> {
    timeout(wait, work).await.map_err(|_| Lost::Silent)?
}

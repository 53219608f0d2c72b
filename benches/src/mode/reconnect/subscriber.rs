//! One client with a session, whose connection is taken away again and again.
use super::view::View;
use crate::connection::Line;
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::trouble::{Lost, PATIENCE, Trouble};
use crate::wire::{self, Heard, Invoke};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::time::{sleep_until, timeout};

/// Before the next try to come back.
const RETRY: Duration = Duration::from_millis(50);

/// What the clients do.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) agent: String,
    /// An input with a short answer.
    pub(super) short: String,
    /// An input whose answer is still under way when the connection is dropped.
    pub(super) long: String,
    /// How many of a hundred have such an answer.
    pub(super) open_percent: u8,
    /// How long such an answer takes by itself.
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
    /// The session's log, when it was resumed.
    tail: u64,
    /// A turn was asked whose end has not come.
    is_asked: bool,
}

// === impl Subscriber ===

impl Subscriber {
    /// The n-th, with a session that has had one turn.
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

    /// Some of them are in the middle of an answer when they are dropped.
    pub(super) async fn prepare(&mut self, round: u32) {
        self.run.count(Count::Asked, 1);
        // Neighbours are different, so that any number of them is a fair mixture.
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

    /// Without a word, as a network does it.
    pub(super) fn drop_line(&mut self) {
        self.line = None;
    }

    /// Comes back with a cursor; how long after the drop it had resumed, if it did.
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

    /// Reads on to the end of what was asked.
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

    /// Reads the whole log once more; whether it says what was seen.
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

    /// Reads until it is so.
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

    /// A connection that went wrong is gone; what was asked on it counts as unanswered.
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

//! A client with a session whose connection is dropped repeatedly.
use super::session_view::SessionView;
use crate::connection::ServerConnection;
use crate::error::{ANSWER_TIMEOUT, BenchError, ConnectionFailure};
use crate::record::{Count, Measure};
use crate::run::Run;
use crate::wire::{self, Invoke, ServerMessage};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::time::{sleep_until, timeout};

/// Pause before the next attempt to reconnect.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The behaviour of all clients.
#[derive(Debug)]
pub(super) struct ReconnectPlan {
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
    plan: Rc<ReconnectPlan>,
    n: usize,
    session: String,
    line: Option<ServerConnection>,
    view: SessionView,
    /// End of the session's log at the time of resuming.
    log_end: u64,
    /// A turn was sent whose end has not arrived.
    has_open_turn: bool,
}

// === impl Subscriber ===

impl Subscriber {
    /// Opens the n-th client, whose session has had one turn.
    pub(super) async fn open(run: &Rc<Run>, plan: &Rc<ReconnectPlan>, n: usize) -> Result<Self, BenchError> {
        let (line, _) = ServerConnection::connect_as(run, n, &user(n), "").await?;
        let mut subscriber = Self {
            run: Rc::clone(run),
            plan: Rc::clone(plan),
            n,
            session: format!("b{}-{n}", run.tag()),
            line: Some(line),
            view: SessionView::default(),
            log_end: 0,
            has_open_turn: false,
        };
        let short = subscriber.plan.short.clone();
        subscriber.ask(&short, 0).await?;
        let heard = timeout(ANSWER_TIMEOUT, subscriber.until(|this| !this.has_open_turn)).await;
        heard.map_err(|_| ConnectionFailure::TimedOut)??;
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
            self.until(|this| this.view.is_open() || !this.has_open_turn).await
        };
        let begun = within(ANSWER_TIMEOUT, begun).await;
        self.handle_result(begun);
    }

    /// Drops the connection without closing it, as a network failure does.
    pub(super) fn drop_line(&mut self) {
        self.line = None;
    }

    /// Resumes with a cursor. Returns the time from the drop until the session was resumed, or `None` on
    /// failure.
    pub(super) async fn resume(&mut self, dropped: Instant) -> Option<Duration> {
        let resumed = within(ANSWER_TIMEOUT, self.reconnect(dropped)).await;
        match resumed {
            Ok(after) => Some(after),
            Err(lost) => {
                self.handle_result(Err(lost));
                None
            }
        }
    }

    async fn reconnect(&mut self, dropped: Instant) -> Result<Duration, ConnectionFailure> {
        let cursor = self.view.cursor(&self.session);
        let line = loop {
            match ServerConnection::connect_as(&self.run, self.n, &user(self.n), &cursor).await {
                Ok((line, _)) => break line,
                Err(
                    ConnectionFailure::Unreachable(_) | ConnectionFailure::Broken(_) | ConnectionFailure::Closed(_),
                ) => {
                    sleep_until((Instant::now() + RETRY_PAUSE).into()).await;
                }
                Err(lost @ (ConnectionFailure::TimedOut | ConnectionFailure::Denied(_))) => return Err(lost),
            }
        };
        let line = self.line.insert(line);
        let text = line.next().await?;
        let message = ServerMessage::parse(&text).unwrap_or_default();
        if message.kind != "subscribed" {
            return Err(ConnectionFailure::Denied(message.error_text()));
        }
        let after = dropped.elapsed();
        self.run.record_duration(Measure::Resumed, after);
        self.run.count(Count::Resumed, 1);
        self.run.count(Count::Gaps, u64::from(message.reset));
        self.log_end = message.seq.unwrap_or(0);
        self.until(|this| this.view.last_seq() >= this.log_end).await?;
        self.run.record_duration(Measure::CaughtUp, dropped.elapsed());
        Ok(after)
    }

    /// Reads to the end of the open turn.
    pub(super) async fn read_to_end(&mut self) {
        if self.line.is_none() {
            return;
        }
        let wait = ANSWER_TIMEOUT + self.plan.answer_wait;
        let heard = within(wait, self.until(|this| !this.has_open_turn)).await;
        if heard.is_ok() {
            self.run.count(Count::Completed, 1);
        }
        self.handle_result(heard);
    }

    /// Reads the whole log once more, and returns whether it matches what was received.
    pub(super) async fn verify(mut self) -> bool {
        let whole = within(ANSWER_TIMEOUT, self.read_again()).await;
        let is_same = whole.is_ok_and(|whole| self.view.is_within(&whole));
        if !is_same {
            self.run.count(Count::Gaps, 1);
        }
        if let Some(line) = self.line {
            line.close().await;
        }
        is_same
    }

    async fn read_again(&mut self) -> Result<SessionView, ConnectionFailure> {
        let line = self.line.as_mut().ok_or(ConnectionFailure::TimedOut)?;
        let session = wire::json_string(&self.session);
        line.queue(format!("{{\"type\":\"subscribe\",\"session_id\":{session},\"after_seq\":0}}")).await?;
        line.flush().await?;
        let mut whole = SessionView::default();
        let mut is_begun = false;
        while !is_begun || whole.last_seq() < self.view.last_seq() {
            let text = line.next().await?;
            let heard =
                ServerMessage::parse(&text).ok_or_else(|| ConnectionFailure::Broken("not a message".to_owned()))?;
            is_begun |= heard.kind == "subscribed";
            if is_begun && whole.apply(&heard).is_err() {
                return Err(ConnectionFailure::Broken("the log itself has a gap".to_owned()));
            }
        }
        Ok(whole)
    }

    async fn ask(&mut self, text: &str, number: u64) -> Result<(), ConnectionFailure> {
        let invoke = Invoke::new(self.run.tag(), &self.session, &self.plan.agent, text);
        let line = self.line.as_mut().ok_or(ConnectionFailure::TimedOut)?;
        line.queue(invoke.render(number)).await?;
        line.flush().await?;
        self.has_open_turn = true;
        Ok(())
    }

    /// Reads messages until the condition holds.
    async fn until(&mut self, is_so: impl Fn(&Self) -> bool) -> Result<(), ConnectionFailure> {
        while !is_so(self) {
            let text = self.line.as_mut().ok_or(ConnectionFailure::TimedOut)?.next().await?;
            let heard =
                ServerMessage::parse(&text).ok_or_else(|| ConnectionFailure::Broken("not a message".to_owned()))?;
            if self.view.apply(&heard).is_err() {
                self.run.count(Count::Gaps, 1);
            }
            let is_refused = heard.kind == "error" && heard.request_id.is_some() && heard.run_id.is_none();
            if heard.kind == "error" {
                self.run.count_error(heard.code.as_deref().unwrap_or("no_code"));
            }
            if heard.kind == "done" || is_refused {
                self.has_open_turn = false;
            }
        }
        Ok(())
    }

    /// Drops a connection that failed; its open turn counts as unanswered.
    fn handle_result(&mut self, ended: Result<(), ConnectionFailure>) {
        if let Err(lost) = ended {
            self.run.count_lost(&lost);
            self.line = None;
        }
    }
}

fn user(n: usize) -> String {
    format!("bench-{n}")
}

async fn within<T>(
    wait: Duration,
    work: impl Future<Output = Result<T, ConnectionFailure>>,
) -> Result<T, ConnectionFailure> {
    timeout(wait, work).await.map_err(|_| ConnectionFailure::TimedOut)?
}

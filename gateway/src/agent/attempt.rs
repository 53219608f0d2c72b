//! One running attempt: sends its reports in order, and passes orders to its task. Called by the agent implementations.
use crate::agent::AttemptReport;
use crate::agent::pipeline_bridge::PieceSender;
use crate::clock::Clock;
use crate::metrics::Metrics;
use futures_util::FutureExt;
use http::HeaderValue;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use turnway_core::id::{AgentEventId, Epoch, RunId, SessionKey};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::private::Private;
use turnway_core::protocol::action::FactDelivery;
use turnway_core::protocol::agent::{AgentEvent, Invoke, Resume, TextKind};
use turnway_core::protocol::steer::Steer;
use turnway_core::time::Mono;

/// Maximum text of one [`AgentEvent::Delta`] in bytes: one checkpoint, so that no report exceeds the size of a fact.
pub const DELTA_TEXT_BYTES_MAX: usize = limits::CHECKPOINT_BYTES;

/// Orders on the way to a running attempt. At most one task waits on each of the notifications at a time.
#[derive(Debug, Default)]
pub(super) struct AttemptControl {
    cancelled: AtomicBool,
    /// Byte offset up to which the text is checkpointed.
    credit: AtomicU64,
    cancel_notify: Notify,
    credit_notify: Notify,
    /// Further inputs for a builtin or dial-in agent; bounded by the size of one inbox.
    steers: Mutex<VecDeque<Steer>>,
    steer_notify: Notify,
    /// Results of actions and subscribed facts that the agent has not been sent yet.
    news: Mutex<VecDeque<FactDelivery>>,
    news_notify: Notify,
    /// The header with the token of the run, once an HTTP agent is asked.
    credential: OnceLock<HeaderValue>,
    /// A task is sending them to an HTTP agent, one after the other.
    is_delivering: AtomicBool,
    is_ended: AtomicBool,
    ended_notify: Notify,
}

/// The sender of an attempt's reports to the switchboard.
#[derive(Clone, Debug)]
pub(super) struct AttemptReporter {
    key: SessionKey,
    run_id: RunId,
    attempt: u32,
    epoch: Epoch,
    control: Arc<AttemptControl>,
    reports: Sender<AttemptReport>,
    /// Byte offset in the attempt's text at which the next report starts.
    reported: u64,
}

/// The state of an attempt that its task owns.
#[derive(Debug)]
pub(super) struct AttemptTask {
    pub(super) invoke: Invoke,
    reporter: AttemptReporter,
    /// The pipeline, which gets the agent's output first if plugins are in use.
    pipeline: Option<PieceSender>,
    timer: AttemptTimer,
}

impl Drop for AttemptTask {
    fn drop(&mut self) {
        self.reporter.control.is_ended.store(true, Ordering::Release);
        self.reporter.control.ended_notify.notify_one();
    }
}

/// The times of one attempt, for metrics and for liveness reports.
#[derive(Debug)]
pub(super) struct AttemptTimer {
    clock: Clock,
    metrics: Arc<Metrics>,
    started_at: Mono,
    has_text: bool,
    /// Minimum time between two liveness reports.
    alive_interval: Duration,
    /// Time from which the next liveness report is due.
    alive_at: Mono,
}

// === impl AttemptControl ===

impl AttemptControl {
    /// Creates the control of an attempt of whose text `recorded` bytes are checkpointed.
    pub(super) fn new(recorded: u64) -> Self {
        Self { credit: AtomicU64::new(recorded), ..Self::default() }
    }

    /// Sets the credential of the requests that go on with the attempt.
    pub(super) fn set_credential(&self, credential: HeaderValue) {
        let _ = self.credential.set(credential);
    }

    /// Returns the credential, if the agent is an HTTP agent and is asked.
    pub(super) fn credential(&self) -> Option<HeaderValue> {
        self.credential.get().cloned()
    }

    /// Asks the attempt to stop.
    pub(super) fn cancel(&self) {
        // Set before the waiters are woken: each waiter checks the flag again before it waits.
        self.cancelled.store(true, Ordering::Release);
        self.cancel_notify.notify_one();
        self.credit_notify.notify_one();
    }

    /// Raises the offset up to which text is checkpointed. The offset never goes back, because orders may arrive late.
    pub(super) fn raise_credit(&self, upto: u64) {
        self.credit.fetch_max(upto, Ordering::AcqRel);
        self.credit_notify.notify_one();
    }

    /// Passes another input to the attempt.
    pub(super) fn steer(&self, steer: Steer) {
        self.steers().push_back(steer);
        self.steer_notify.notify_one();
    }

    /// Returns the next input that the attempt has not handled.
    pub(super) fn pop_steer(&self) -> Option<Steer> {
        self.steers().pop_front()
    }

    /// Waits for the next input.
    pub(super) async fn recv_steer(&self) -> Steer {
        loop {
            if let Some(steer) = self.pop_steer() {
                return steer;
            }
            self.steer_notify.notified().await;
        }
    }

    /// Queues a notification for the agent. Returns `false` if the queue is full: the agent then gets the notification
    /// with its next turn.
    pub(super) fn push_news(&self, delivery: FactDelivery) -> bool {
        let mut waiting = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= limits::FACT_DELIVERIES_MAX {
            return false;
        }
        waiting.push_back(delivery);
        drop(waiting);
        self.news_notify.notify_one();
        true
    }

    /// Waits until the attempt has ended.
    pub(super) async fn wait_ended(&self) {
        while !self.is_ended.load(Ordering::Acquire) {
            self.ended_notify.notified().await;
        }
    }

    /// Returns whether no task was sending notifications yet. The caller must then send them.
    pub(super) fn begin_delivery(&self) -> bool {
        !self.is_delivering.swap(true, Ordering::AcqRel)
    }

    /// Waits for the next notification.
    pub(super) async fn recv_news(&self) -> FactDelivery {
        loop {
            let next = self.news.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if let Some(delivery) = next {
                return delivery;
            }
            self.news_notify.notified().await;
        }
    }

    fn steers(&self) -> MutexGuard<'_, VecDeque<Steer>> {
        self.steers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the attempt was asked to stop.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Waits until the attempt is asked to stop.
    pub(super) async fn wait_cancelled(&self) {
        while !self.is_cancelled() {
            self.cancel_notify.notified().await;
        }
    }

    fn has_credit(&self, upto: u64) -> bool {
        let credit_end = self.credit.load(Ordering::Acquire).saturating_add(limits::UNSAVED_TEXT_BYTES_MAX as u64);
        upto <= credit_end || planted(Planted::UnsavedTextUnbounded)
    }

    /// Waits until text up to this offset may be reported. Returns `false` if it may not and the attempt was asked to
    /// stop.
    async fn wait_for_credit(&self, upto: u64) -> bool {
        loop {
            if self.has_credit(upto) {
                return true;
            }
            if self.is_cancelled() {
                return false;
            }
            self.credit_notify.notified().await;
        }
    }
}

// === impl AttemptTimer ===

impl AttemptTimer {
    /// Starts timing an attempt. A resumed attempt (`goes_on`) records no time to first text, because another owner
    /// received that text. `silence` is the time that the agent may stay silent.
    pub(super) fn start(clock: &Clock, metrics: &Arc<Metrics>, goes_on: bool, silence: Duration) -> Self {
        let started_at = clock.mono();
        let alive_interval = (silence / limits::AGENT_ALIVE_SHARE).min(limits::AGENT_ALIVE_WAIT);
        let clock = clock.clone();
        let metrics = Arc::clone(metrics);
        Self { clock, metrics, started_at, has_text: goes_on, alive_interval, alive_at: started_at + alive_interval }
    }

    /// Returns whether the last liveness report is old enough for another one.
    fn take_alive_due(&mut self) -> bool {
        let now = self.clock.mono();
        let is_due = self.alive_at <= now && !planted(Planted::AliveNotReported);
        if is_due {
            self.alive_at = now + self.alive_interval;
        }
        is_due
    }

    fn elapsed(&self) -> Duration {
        self.clock.mono() - self.started_at
    }

    fn record_text(&mut self) {
        if !std::mem::replace(&mut self.has_text, true) {
            self.metrics.agents.record_first_token(self.elapsed());
        }
    }
}

// === impl AttemptReporter ===

impl AttemptReporter {
    /// Creates the reporter of the attempt that this order starts.
    fn new(invoke: &Invoke, control: Arc<AttemptControl>, reports: Sender<AttemptReport>) -> Self {
        let reported = invoke.resume.as_ref().map_or(0, Resume::text_offset);
        let Invoke { key, run_id, attempt, epoch, .. } = invoke;
        let key = key.clone();
        let run_id = run_id.clone();
        Self { key, run_id, attempt: *attempt, epoch: *epoch, control, reports, reported }
    }

    /// Returns whether no text was reported.
    pub(super) fn is_silent(&self) -> bool {
        self.reported == 0
    }

    /// Sends a report; waits while the switchboard's queue is full.
    pub(super) fn report(&self, event: AgentEvent) -> impl Future<Output = ()> {
        let key = self.key.clone();
        let run_id = self.run_id.clone();
        let report = AttemptReport { key, run_id, attempt: self.attempt, epoch: self.epoch, event };
        // The send fails only while the node shuts down.
        self.reports.send(report).map(drop)
    }

    /// Reports text in pieces of at most [`DELTA_TEXT_BYTES_MAX`]. Waits while too much text is not checkpointed
    /// (ownership.md §2.4). If the attempt was asked to stop, the rest is dropped instead: the end of the stream must
    /// still be read, and late text is never shown.
    ///
    /// The id of an event goes with its last piece, because only then the whole event was reported.
    pub(super) async fn report_text(&mut self, kind: TextKind, mut text: String, mut id: Option<AgentEventId>) {
        while !text.is_empty() {
            let rest = text.split_off(text.floor_char_boundary(DELTA_TEXT_BYTES_MAX));
            if kind == TextKind::Text {
                let upto = self.reported.saturating_add(text.len() as u64);
                if !self.control.wait_for_credit(upto).await {
                    return;
                }
                self.reported = upto;
            }
            let id = if planted(Planted::MarkOnEveryStretch) { id.clone() } else { id.take_if(|_| rest.is_empty()) };
            self.report(AgentEvent::Delta { kind, text: Private(text), id }).await;
            text = rest;
        }
    }
}

// === impl AttemptTask ===

impl AttemptTask {
    pub(super) fn new(
        invoke: Invoke,
        line: Arc<AttemptControl>,
        reports: Sender<AttemptReport>,
        timer: AttemptTimer,
    ) -> Self {
        let reporter = AttemptReporter::new(&invoke, line, reports);
        Self { invoke, reporter, pipeline: None, timer }
    }

    /// Records in the metrics that the agent has ended its answer.
    pub(super) fn record_end(&self) {
        self.timer.metrics.agents.record_call_end(self.timer.elapsed());
    }

    /// Returns the side of the attempt that takes orders.
    pub(super) fn control(&self) -> Arc<AttemptControl> {
        Arc::clone(&self.reporter.control)
    }

    /// Returns whether the attempt was asked to stop.
    pub(super) fn is_cancelled(&self) -> bool {
        self.reporter.control.is_cancelled()
    }

    /// Returns the reporter of the attempt.
    pub(super) fn reporter(&self) -> &AttemptReporter {
        &self.reporter
    }

    /// Sends the agent's output to this pipeline from now on, or with `None` straight to the switchboard. Returns the
    /// previous one.
    pub(super) fn replace_pipeline(&mut self, tap: Option<PieceSender>) -> Option<PieceSender> {
        std::mem::replace(&mut self.pipeline, tap)
    }

    /// Reports that bytes of the agent arrived that contain no event to report. Bypasses the plugins: a plugin may hold
    /// back output while the agent is alive.
    pub(super) async fn report_alive(&mut self) {
        if self.timer.take_alive_due() {
            self.reporter.report(AgentEvent::Alive).await;
        }
    }

    /// Reports an event of the agent other than text.
    pub(super) async fn report(&mut self, event: AgentEvent) {
        match self.pipeline {
            None => self.reporter.report(event).await,
            // Boxed: few attempts pass through plugins, and otherwise every task would have the size of this future.
            Some(_) => Box::pin(self.send_event_to_pipeline(event)).await,
        }
    }

    async fn send_event_to_pipeline(&mut self, event: AgentEvent) {
        self.report_alive().await;
        let Some(tap) = &self.pipeline else { return };
        match event {
            AgentEvent::State { state, detail, id } => tap.state(state, detail, id).await,
            AgentEvent::Acked
            | AgentEvent::Delta { .. }
            | AgentEvent::Done { .. }
            | AgentEvent::Steered { .. }
            | AgentEvent::Handover { .. }
            | AgentEvent::Subscribed(_)
            | AgentEvent::Alive
            | AgentEvent::Action { .. }
            | AgentEvent::CancelAcked
            | AgentEvent::Failed(_) => self.reporter.report(event).await,
        }
    }

    /// Reports text of the agent.
    pub(super) async fn report_text(&mut self, kind: TextKind, text: String, id: Option<AgentEventId>) {
        if !text.is_empty() {
            self.timer.record_text();
        }
        match self.pipeline {
            None if text.is_empty() => Box::pin(self.report_alive()).await,
            None => self.reporter.report_text(kind, text, id).await,
            Some(_) => Box::pin(self.send_text_to_pipeline(kind, text, id)).await,
        }
    }

    async fn send_text_to_pipeline(&mut self, kind: TextKind, text: String, id: Option<AgentEventId>) {
        self.report_alive().await;
        let Some(tap) = &self.pipeline else { return };
        tap.text(kind, text, id).await;
    }
}

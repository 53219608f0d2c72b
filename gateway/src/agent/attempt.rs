//! One running attempt: its reports go out in order, and orders reach it on the way.
use crate::agent::Report;
use crate::agent::desk::Tap;
use crate::clock::Clock;
use crate::metrics::Metrics;
use futures_util::FutureExt;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use turnway_core::id::{Epoch, RunId, SaidId, SessionKey};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::private::Private;
use turnway_core::protocol::action::News;
use turnway_core::protocol::agent::{AgentEvent, Invoke, Resume, TextKind};
use turnway_core::protocol::steer::Steer;
use turnway_core::time::Mono;

/// Text of one [`AgentEvent::Delta`]: a checkpoint's worth, so that no single report outgrows a fact.
pub const DELTA_TEXT_BYTES_MAX: usize = limits::CHECKPOINT_BYTES;

/// What orders say to a running attempt. One task waits on each half at a time.
#[derive(Debug, Default)]
pub(super) struct Line {
    cancelled: AtomicBool,
    /// Bytes of text that are checkpointed.
    credit: AtomicU64,
    cancel: Notify,
    more: Notify,
    /// Further inputs for a built-in agent; no more than lie in one inbox.
    steers: Mutex<VecDeque<Steer>>,
    steered: Notify,
    /// What its agent is told of.
    news: Mutex<VecDeque<News>>,
    newly: Notify,
    /// Somebody is telling an HTTP agent of it, one after the other.
    telling: AtomicBool,
    is_over: AtomicBool,
    ended: Notify,
}

/// Who speaks for an attempt: all that the switchboard hears of it.
#[derive(Clone, Debug)]
pub(super) struct Voice {
    key: SessionKey,
    run_id: RunId,
    attempt: u32,
    epoch: Epoch,
    line: Arc<Line>,
    reports: Sender<Report>,
    /// Bytes of text up to what is reported next.
    reported: u64,
}

/// The task's side of an attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    /// What it is asked.
    pub(super) invoke: Invoke,
    voice: Voice,
    /// Where its agent's words go first, where plugins stand between.
    tap: Option<Tap>,
    watch: Watch,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.voice.line.is_over.store(true, Ordering::Release);
        self.voice.line.ended.notify_one();
    }
}

/// How long an attempt takes, for metrics.
#[derive(Debug)]
pub(super) struct Watch {
    clock: Clock,
    metrics: Arc<Metrics>,
    began: Mono,
    spoke: bool,
    /// Between two reports of a sign of life.
    alive_wait: Duration,
    /// When the next one is worth a report.
    alive_at: Mono,
}

// === impl Line ===

impl Line {
    /// Of an attempt of whose text so much is recorded.
    pub(super) fn new(recorded: u64) -> Self {
        Self { credit: AtomicU64::new(recorded), ..Self::default() }
    }

    /// Asks it to stop.
    pub(super) fn cancel(&self) {
        // Set before the waiters are woken: each looks at the state again and only then waits.
        self.cancelled.store(true, Ordering::Release);
        self.cancel.notify_one();
        self.more.notify_one();
    }

    /// Text up to here is safe; never goes back, orders may come late.
    pub(super) fn credit(&self, upto: u64) {
        self.credit.fetch_max(upto, Ordering::AcqRel);
        self.more.notify_one();
    }

    /// Hands it another input.
    pub(super) fn steer(&self, steer: Steer) {
        self.steers().push_back(steer);
        self.steered.notify_one();
    }

    /// The next input that it was handed and has not looked at.
    pub(super) fn next_steer(&self) -> Option<Steer> {
        self.steers().pop_front()
    }

    /// Until it is handed another input.
    pub(super) async fn steer_ordered(&self) -> Steer {
        loop {
            if let Some(steer) = self.next_steer() {
                return steer;
            }
            self.steered.notified().await;
        }
    }

    /// Something has become of what its agent has asked for; false: it has more of that than it takes, and is told with
    /// its next turn.
    pub(super) fn tell(&self, news: News) -> bool {
        let mut waiting = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= limits::NEWS_MAX {
            return false;
        }
        waiting.push_back(news);
        drop(waiting);
        self.newly.notify_one();
        true
    }

    /// Until its attempt is over.
    pub(super) async fn over(&self) {
        while !self.is_over.load(Ordering::Acquire) {
            self.ended.notified().await;
        }
    }

    /// Whether nobody was telling of it before: whoever asks has to.
    pub(super) fn begin_telling(&self) -> bool {
        !self.telling.swap(true, Ordering::AcqRel)
    }

    /// Until there is more of it.
    pub(super) async fn news(&self) -> News {
        loop {
            let next = self.news.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if let Some(news) = next {
                return news;
            }
            self.newly.notified().await;
        }
    }

    fn steers(&self) -> MutexGuard<'_, VecDeque<Steer>> {
        self.steers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was asked to stop.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Until it is asked to stop.
    pub(super) async fn cancel_ordered(&self) {
        while !self.is_cancelled() {
            self.cancel.notified().await;
        }
    }

    fn has_room(&self, upto: u64) -> bool {
        let room = self.credit.load(Ordering::Acquire).saturating_add(limits::UNSAVED_TEXT_BYTES_MAX as u64);
        upto <= room || planted(Planted::UnsavedTextUnbounded)
    }

    /// Until text up to here may be reported. False: it may not, and the attempt was asked to stop.
    async fn room(&self, upto: u64) -> bool {
        loop {
            if self.has_room(upto) {
                return true;
            }
            if self.is_cancelled() {
                return false;
            }
            self.more.notified().await;
        }
    }
}

// === impl Watch ===

impl Watch {
    /// From now on; of an attempt that goes on the first piece was another owner's. `silence`: how long its agent may say
    /// nothing.
    pub(super) fn start(clock: &Clock, metrics: &Arc<Metrics>, goes_on: bool, silence: Duration) -> Self {
        let began = clock.mono();
        let alive_wait = (silence / limits::AGENT_ALIVE_SHARE).min(limits::AGENT_ALIVE_WAIT);
        let (clock, metrics) = (clock.clone(), Arc::clone(metrics));
        Self { clock, metrics, began, spoke: goes_on, alive_wait, alive_at: began + alive_wait }
    }

    /// Whether the last report of a sign of life is long enough ago for another one.
    fn takes_alive(&mut self) -> bool {
        let now = self.clock.mono();
        let is_due = self.alive_at <= now && !planted(Planted::AliveNotReported);
        if is_due {
            self.alive_at = now + self.alive_wait;
        }
        is_due
    }

    fn passed(&self) -> Duration {
        self.clock.mono() - self.began
    }

    fn spoke(&mut self) {
        if !std::mem::replace(&mut self.spoke, true) {
            self.metrics.agents.spoke(self.passed());
        }
    }
}

// === impl Voice ===

impl Voice {
    /// Of an attempt that is asked this.
    fn of(invoke: &Invoke, line: Arc<Line>, reports: Sender<Report>) -> Self {
        let reported = invoke.resume.as_ref().map_or(0, Resume::from);
        let Invoke { key, run_id, attempt, epoch, .. } = invoke;
        let (key, run_id) = (key.clone(), run_id.clone());
        Self { key, run_id, attempt: *attempt, epoch: *epoch, line, reports, reported }
    }

    /// Whether nothing was said.
    pub(super) fn is_silent(&self) -> bool {
        self.reported == 0
    }

    /// Reports; waits while the switchboard has more than it can take.
    pub(super) fn report(&self, event: AgentEvent) -> impl Future<Output = ()> {
        let (key, run_id) = (self.key.clone(), self.run_id.clone());
        let report = Report { key, run_id, attempt: self.attempt, epoch: self.epoch, event };
        // Nobody listens any more: the node is going down.
        self.reports.send(report).map(drop)
    }

    /// Reports text in pieces of at most [`DELTA_TEXT_BYTES_MAX`]. Waits while too much of it is not
    /// checkpointed (ownership.md §2.4), unless it was asked to stop: then the rest is left out, since the
    /// end of the stream must still be seen and late text is never shown.
    ///
    /// An event's name goes with its last piece: only then all of it was told.
    pub(super) async fn say(&mut self, kind: TextKind, mut text: String, mut id: Option<SaidId>) {
        while !text.is_empty() {
            let rest = text.split_off(text.floor_char_boundary(DELTA_TEXT_BYTES_MAX));
            if kind == TextKind::Text {
                let upto = self.reported.saturating_add(text.len() as u64);
                if !self.line.room(upto).await {
                    return;
                }
                self.reported = upto;
            }
            let id = if planted(Planted::MarkOnEveryStretch) {
                id.clone()
            } else {
                id.take_if(|_| rest.is_empty())
            };
            self.report(AgentEvent::Delta { kind, text: Private(text), id }).await;
            text = rest;
        }
    }
}

// === impl Attempt ===

impl Attempt {
    pub(super) fn new(invoke: Invoke, line: Arc<Line>, reports: Sender<Report>, watch: Watch) -> Self {
        let voice = Voice::of(&invoke, line, reports);
        Self { invoke, voice, tap: None, watch }
    }

    /// Its agent has said the last of it.
    pub(super) fn ended(&self) {
        self.watch.metrics.agents.ended(self.watch.passed());
    }

    /// The orders' side.
    pub(super) fn line(&self) -> Arc<Line> {
        Arc::clone(&self.voice.line)
    }

    /// Whether it was asked to stop.
    pub(super) fn is_cancelled(&self) -> bool {
        self.voice.line.is_cancelled()
    }

    /// Who speaks for it.
    pub(super) fn voice(&self) -> &Voice {
        &self.voice
    }

    /// From now on its agent's words go there first; `None`: straight to the switchboard.
    pub(super) fn turn_to(&mut self, tap: Option<Tap>) -> Option<Tap> {
        std::mem::replace(&mut self.tap, tap)
    }

    /// Reports that something has come of its agent that is no event to report. Plugins are not asked: they may keep
    /// back what an agent says, and their agent is alive all the same.
    pub(super) async fn alive(&mut self) {
        if self.watch.takes_alive() {
            self.voice.report(AgentEvent::Alive).await;
        }
    }

    /// Reports what its agent tells besides text.
    pub(super) async fn report(&mut self, event: AgentEvent) {
        match self.tap {
            None => self.voice.report(event).await,
            // In a box: few attempts go through plugins, and all tasks would have the size for it.
            Some(_) => Box::pin(self.report_to_tap(event)).await,
        }
    }

    async fn report_to_tap(&mut self, event: AgentEvent) {
        self.alive().await;
        let Some(tap) = &self.tap else { return };
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
            | AgentEvent::Failed(_) => self.voice.report(event).await,
        }
    }

    /// Says what its agent says.
    pub(super) async fn say(&mut self, kind: TextKind, text: String, id: Option<SaidId>) {
        if !text.is_empty() {
            self.watch.spoke();
        }
        match self.tap {
            None if text.is_empty() => Box::pin(self.alive()).await,
            None => self.voice.say(kind, text, id).await,
            Some(_) => Box::pin(self.say_to_tap(kind, text, id)).await,
        }
    }

    async fn say_to_tap(&mut self, kind: TextKind, text: String, id: Option<SaidId>) {
        self.alive().await;
        let Some(tap) = &self.tap else { return };
        tap.text(kind, text, id).await;
    }
}

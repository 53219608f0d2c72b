//! The task that owns the switchboard: takes inputs from the other parts of the node ([`inbox`]), calls the
//! switchboard, and carries out its outputs ([`effects`]); `timer` wakes it at the next deadline. After every
//! `handle_*` call the outputs must be drained before the next call, as each machine requires. Started by `app::run`.
pub mod effects;
pub mod inbox;
mod timer;

pub use effects::Effects;
pub use inbox::{AnswerQueue, DriverInbox};

use crate::clock::Clock;
use crate::driver::timer::DriverTimer;
use crate::links::Pool;
use crate::metrics::Metrics;
use crate::phase::{Lifecycle, NodePhase, UnreadyReason};
use effects::EffectOutcome;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::SessionKey;
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::store::{Op, Reply};
use turnway_core::time::{Mono, Now};
use turnway_node::switchboard::{Input, Output, Switchboard};

/// Panics of the switchboard within [`PANICS_WINDOW`] after which the driver gives up.
const PANICS_MAX: usize = 3;
/// The time window of [`PANICS_MAX`].
const PANICS_WINDOW: Duration = Duration::from_secs(60);
/// Pause between two readings of the switchboard's statistics, which cost a pass over every session that the node owns.
const STATS_EVERY: Duration = Duration::from_millis(250);

/// Inputs that share one reading of the clocks, which costs as much as a small input. Together these inputs take less
/// than a millisecond, the resolution of the wall time.
const INPUTS_PER_READING: usize = 16;

/// The driver of one switchboard.
pub struct Driver {
    switchboard: Switchboard,
    inbox: DriverInbox,
    effects: Effects,
    clock: Clock,
    life: Lifecycle,
    metrics: Arc<Metrics>,
    draining: bool,
    panics: PanicWindow,
    stats_at: Option<Mono>,
    timer: DriverTimer,
    batch: Vec<Input>,
    outputs: Vec<Output>,
}

/// The times of recent panics.
#[derive(Debug, Default)]
struct PanicWindow(VecDeque<Mono>);

/// The way in which a driver ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverExit {
    /// The switchboard has nothing left to do.
    Finished,
    /// The switchboard panicked too often.
    Broken,
}

/// One call of the machine.
#[expect(clippy::large_enum_variant, reason = "it is made and taken apart at once, and a box would cost more")]
enum MachineCall {
    /// Passes an input.
    Input(Input),
    /// Passes a reached deadline.
    Timeout,
    /// Gives up a session, because a panic happened over it.
    GiveUp(SessionKey),
}

impl MachineCall {
    fn key(&self) -> Option<&SessionKey> {
        match self {
            Self::Input(input) => input.key(),
            Self::Timeout | Self::GiveUp(_) => None,
        }
    }
}

// === impl Driver ===

impl Driver {
    /// Creates a driver that has not started.
    pub fn new(
        switchboard: Switchboard,
        inbox: DriverInbox,
        effects: Effects,
        clock: Clock,
        life: Lifecycle,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            switchboard,
            inbox,
            effects,
            clock,
            life,
            metrics,
            draining: false,
            panics: PanicWindow::default(),
            stats_at: None,
            timer: DriverTimer::default(),
            batch: Vec::with_capacity(limits::DRIVER_BATCH_MAX),
            outputs: Vec::new(),
        }
    }

    /// Runs until the switchboard exits or breaks: waits, takes a batch, passes the time, and records metrics.
    pub async fn run(mut self) -> DriverExit {
        loop {
            self.wait().await;
            let began = self.clock.mono();
            if let Some(ended) = self.round() {
                return ended;
            }
            let now = self.clock.mono();
            self.metrics.driver.record_round(now - began, self.inbox.waiting());
            self.record_stats(now);
            // A switchboard that always has work must not keep a worker thread to itself.
            tokio::task::consume_budget().await;
        }
    }

    /// Waits for an input, the drain, or the next deadline.
    async fn wait(&mut self) {
        let now = self.clock.mono();
        let deadline = self.switchboard.poll_timeout();
        if deadline.as_ref().is_some_and(|deadline| deadline.at <= now) {
            return;
        }
        self.timer.set(now, deadline.map(|deadline| deadline.at));
        tokio::select! {
            () = self.inbox.wait() => {}
            () = self.life.wait_for_phase(NodePhase::Draining), if !self.draining => {}
            () = self.timer.wait() => {}
        }
    }

    fn round(&mut self) -> Option<DriverExit> {
        if !self.draining && self.life.phase() >= NodePhase::Draining {
            self.draining = true;
            self.inbox.push(Input::Drain);
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.inbox.take(&mut batch, &self.metrics.driver);
        let mut ended = None;
        let mut now = self.clock.now();
        for (n, input) in batch.drain(..).enumerate() {
            if n % INPUTS_PER_READING == INPUTS_PER_READING - 1 {
                now = self.clock.now();
            }
            self.effects.record_input(&input, now.mono);
            if let Input::Stored { op: Op::Renew { sent, .. }, result: Ok(Reply::Renewed { clock, .. }) } = &input {
                self.clock.observe_store_time(*clock, *sent, now.mono);
            }
            ended = ended.or(self.step(now, MachineCall::Input(input)));
        }
        self.batch = batch;
        let due = self.switchboard.poll_timeout().is_some_and(|deadline| deadline.at <= now.mono);
        let ended = if due { ended.or(self.step(now, MachineCall::Timeout)) } else { ended };
        self.life.report(UnreadyReason::LeaseMissing, !self.switchboard.is_leased(now));
        self.effects.flush_messages();
        ended
    }

    /// Calls the machine once, and carries out all its outputs. After a panic, the session that the call was about is
    /// given up; other sessions are not affected.
    fn step(&mut self, now: Now, act: MachineCall) -> Option<DriverExit> {
        let about = act.key().cloned();
        let switchboard = &mut self.switchboard;
        let outputs = &mut self.outputs;
        // The state after a panic is no worse than the state after a crash: every fact is fenced, and every operation
        // may be repeated (S-52).
        let sound = catch_unwind(AssertUnwindSafe(|| {
            match act {
                MachineCall::Input(input) => switchboard.handle_input(now, input),
                MachineCall::Timeout => switchboard.handle_timeout(now),
                MachineCall::GiveUp(key) => switchboard.reset_session(now, &key),
            }
            outputs.extend(std::iter::from_fn(|| switchboard.poll_output()));
        }));
        let mut ended = sound.is_err().then(|| self.record_panic(now.mono)).flatten();
        for output in self.outputs.drain(..) {
            match self.effects.perform(output, now.mono) {
                EffectOutcome::Continue => {}
                EffectOutcome::Exit => ended = ended.or(Some(DriverExit::Finished)),
            }
        }
        match about.filter(|_| sound.is_err()) {
            Some(key) => ended.or(self.step(now, MachineCall::GiveUp(key))),
            None => ended,
        }
    }

    fn record_panic(&mut self, now: Mono) -> Option<DriverExit> {
        self.metrics.driver.count_panic();
        tracing::error!("the switchboard panicked");
        self.panics.add(now).then_some(DriverExit::Broken)
    }

    fn record_stats(&mut self, now: Mono) {
        if self.stats_at.is_none_or(|at| now - at >= STATS_EVERY) {
            self.stats_at = Some(now);
            let remaining = self.switchboard.drain_progress().unwrap_or_default();
            self.life.set_drain_remaining(remaining as u64);
            self.metrics.links.set_usage(Pool::ALL.map(|pool| self.effects.links.held(pool)));
            self.metrics.switchboard.set_stats(&self.switchboard.stats(self.clock.now()));
        }
    }
}

// === impl PanicWindow ===

impl PanicWindow {
    /// Records a panic; returns whether there were too many.
    fn add(&mut self, now: Mono) -> bool {
        self.0.push_back(now);
        self.0.retain(|at| now - *at < PANICS_WINDOW);
        self.0.len() >= PANICS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-52.
    #[test]
    fn third_panic_within_a_minute_is_fatal() {
        let mut panics = PanicWindow::default();
        let broken: Vec<bool> = [0, 50, 70, 100, 105].map(|at| panics.add(Mono(Duration::from_secs(at)))).to_vec();
        assert_eq!(broken, [false, false, false, true, true]);
    }
}

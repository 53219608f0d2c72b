//! The task that owns the switchboard: takes inputs from the other parts of the node ([`event`]), calls the
//! switchboard, and carries out its outputs ([`perform`]); [`alarm`] wakes it at the next deadline. After every
//! `handle_*` call the outputs must be drained before the next call, as each machine requires. Started by `app::run`.
mod alarm;
pub mod event;
pub mod perform;

pub use event::{AnswerQueue, Inbox};
pub use perform::Hands;

use crate::clock::Clock;
use crate::driver::alarm::Alarm;
use crate::links::Pool;
use crate::metrics::Metrics;
use crate::phase::{Life, Phase, Reason};
use perform::Done;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use turnway_bindings::switchboard::{Input, Output, Switchboard};
use turnway_core::id::SessionKey;
use turnway_core::limits;
use turnway_core::machine::Machine;
use turnway_core::store::{Op, Reply};
use turnway_core::time::{Mono, Now};

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
    inbox: Inbox,
    hands: Hands,
    clock: Clock,
    life: Life,
    metrics: Arc<Metrics>,
    draining: bool,
    panics: Panics,
    counted: Option<Mono>,
    alarm: Alarm,
    batch: Vec<Input>,
    outputs: Vec<Output>,
}

/// The times of recent panics.
#[derive(Debug, Default)]
struct Panics(VecDeque<Mono>);

/// The way in which a driver ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The switchboard has nothing left to do.
    Exit,
    /// The switchboard panicked too often.
    Broken,
}

/// One call of the machine.
#[expect(
    clippy::large_enum_variant,
    reason = "it is made and taken apart at once, and a box would cost more"
)]
enum Act {
    /// Passes an input.
    Take(Input),
    /// Passes a reached deadline.
    Wake,
    /// Gives up a session, because a panic happened over it.
    GiveUp(SessionKey),
}

impl Act {
    fn key(&self) -> Option<&SessionKey> {
        match self {
            Self::Take(input) => input.key(),
            Self::Wake | Self::GiveUp(_) => None,
        }
    }
}

// === impl Driver ===

impl Driver {
    /// Creates a driver that has not started.
    pub fn new(
        switchboard: Switchboard,
        inbox: Inbox,
        hands: Hands,
        clock: Clock,
        life: Life,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            switchboard,
            inbox,
            hands,
            clock,
            life,
            metrics,
            draining: false,
            panics: Panics::default(),
            counted: None,
            alarm: Alarm::default(),
            batch: Vec::with_capacity(limits::DRIVER_BATCH_MAX),
            outputs: Vec::new(),
        }
    }

    /// Runs until the switchboard exits or breaks: waits, takes a batch, passes the time, and records metrics.
    pub async fn run(mut self) -> Ended {
        loop {
            self.wait().await;
            let began = self.clock.mono();
            if let Some(ended) = self.round() {
                return ended;
            }
            let now = self.clock.mono();
            self.metrics.driver.round(now - began, self.inbox.waiting());
            self.count(now);
            // A switchboard that always has work must not keep a worker thread to itself.
            tokio::task::consume_budget().await;
        }
    }

    /// Waits for an input, the drain, or the next deadline.
    async fn wait(&mut self) {
        let (now, deadline) = (self.clock.mono(), self.switchboard.poll_timeout());
        if deadline.as_ref().is_some_and(|deadline| deadline.at <= now) {
            return;
        }
        self.alarm.set(now, deadline.map(|deadline| deadline.at));
        tokio::select! {
            () = self.inbox.wait() => {}
            () = self.life.reached(Phase::Draining), if !self.draining => {}
            () = self.alarm.rings() => {}
        }
    }

    fn round(&mut self) -> Option<Ended> {
        if !self.draining && self.life.phase() >= Phase::Draining {
            self.draining = true;
            self.inbox.echo(Input::Drain);
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.inbox.take(&mut batch, &self.metrics.driver);
        let mut ended = None;
        let mut now = self.clock.now();
        for (n, input) in batch.drain(..).enumerate() {
            if n % INPUTS_PER_READING == INPUTS_PER_READING - 1 {
                now = self.clock.now();
            }
            self.hands.count(&input, now.mono);
            if let Input::Stored { op: Op::Renew { sent, .. }, result: Ok(Reply::Renewed { clock, .. }) } =
                &input
            {
                self.clock.told(*clock, *sent, now.mono);
            }
            ended = ended.or(self.step(now, Act::Take(input)));
        }
        self.batch = batch;
        let due = self.switchboard.poll_timeout().is_some_and(|deadline| deadline.at <= now.mono);
        let ended = if due { ended.or(self.step(now, Act::Wake)) } else { ended };
        self.life.report(Reason::LeaseMissing, !self.switchboard.is_leased(now));
        self.hands.post();
        ended
    }

    /// Calls the machine once, and carries out all its outputs. After a panic, the session that the call was about is
    /// given up; other sessions are not affected.
    fn step(&mut self, now: Now, act: Act) -> Option<Ended> {
        let about = act.key().cloned();
        let (switchboard, outputs) = (&mut self.switchboard, &mut self.outputs);
        // The state after a panic is no worse than the state after a crash: every fact is fenced, and every operation
        // may be repeated (S-52).
        let sound = catch_unwind(AssertUnwindSafe(|| {
            match act {
                Act::Take(input) => switchboard.handle_input(now, input),
                Act::Wake => switchboard.handle_timeout(now),
                Act::GiveUp(key) => switchboard.give_up(now, &key),
            }
            outputs.extend(std::iter::from_fn(|| switchboard.poll_output()));
        }));
        let mut ended = sound.is_err().then(|| self.panicked(now.mono)).flatten();
        for output in self.outputs.drain(..) {
            match self.hands.perform(output, now.mono) {
                Done::Nothing => {}
                Done::Exit => ended = ended.or(Some(Ended::Exit)),
            }
        }
        match about.filter(|_| sound.is_err()) {
            Some(key) => ended.or(self.step(now, Act::GiveUp(key))),
            None => ended,
        }
    }

    fn panicked(&mut self, now: Mono) -> Option<Ended> {
        self.metrics.driver.panicked();
        tracing::error!("the switchboard panicked");
        self.panics.add(now).then_some(Ended::Broken)
    }

    fn count(&mut self, now: Mono) {
        if self.counted.is_none_or(|at| now - at >= STATS_EVERY) {
            self.counted = Some(now);
            let remaining = self.switchboard.drain_progress().unwrap_or_default();
            self.life.drain_remaining(remaining as u64);
            self.metrics.links.hold(Pool::ALL.map(|pool| self.hands.links.held(pool)));
            self.metrics.switchboard.tell(&self.switchboard.stats(self.clock.now()));
        }
    }
}

// === impl Panics ===

impl Panics {
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
        let mut panics = Panics::default();
        let broken: Vec<bool> =
            [0, 50, 70, 100, 105].map(|at| panics.add(Mono(Duration::from_secs(at)))).to_vec();
        assert_eq!(broken, [false, false, false, true, true]);
    }
}

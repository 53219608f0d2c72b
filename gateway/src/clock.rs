//! The only source of time in the gateway. The wall time follows the rules of [`WallClock`]: anchored once, then
//! advanced by the monotonic clock. A node with a store of its own follows the system's clock; a node of a fleet
//! follows the store's clock, and reads the system's only to measure its skew.
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use turnway_core::clock::{ClockEvent, ClockReading, TimeSegment, WallClock};
use turnway_core::time::{Millis, Mono, Now};

/// The clocks of a node. Clones share their readings.
#[derive(Clone, Debug)]
pub struct Clock(Arc<ClockInner>);

#[derive(Debug)]
struct ClockInner {
    /// The monotonic clock's reading at the start of the node.
    start: Duration,
    /// The current segment of the time line, for readers.
    line: RwLock<TimeSegment>,
    /// Number of jumps of the wall time; see [`WallClock::jumps`].
    steps: AtomicU32,
    clocks: Mutex<Clocks>,
}

#[derive(Debug)]
struct Clocks {
    /// The node's time.
    time: WallClock,
    /// The system's clock by the same rules; set on a node that follows the store's clock.
    system: Option<WallClock>,
}

/// The difference of the system's clock from the node's time; positive if the system's clock is ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skew {
    /// By the last reading, in milliseconds.
    pub now_ms: i64,
    /// Without steps that have not lasted long enough to be believed, in milliseconds.
    pub lasting_ms: i64,
}

// === impl Clock ===

impl Clock {
    /// Starts a clock that follows the system's clock.
    pub fn start() -> Self {
        Self::new(|reading| Clocks { time: WallClock::anchored(reading), system: None })
    }

    /// Starts a clock that follows the store's clock. Until the first reading of the store's clock, the time is
    /// provisional.
    pub fn following_store() -> Self {
        Self::new(|reading| Clocks {
            time: WallClock::provisional(reading),
            system: Some(WallClock::anchored(reading)),
        })
    }

    fn new(clocks: impl FnOnce(ClockReading) -> Clocks) -> Self {
        let start = boot_time();
        let clocks = clocks(system_time(start));
        let line = RwLock::new(clocks.time.segment());
        Self(Arc::new(ClockInner { start, line, steps: AtomicU32::new(0), clocks: Mutex::new(clocks) }))
    }

    /// Takes a reading of the store's clock, requested at `sent` and received at `now`. Ignored on a node with a store
    /// of its own, where the system's clock is the store's.
    pub fn observe_store_time(&self, store: Millis, sent: Mono, now: Mono) {
        let mut clocks = self.clocks();
        if clocks.system.is_some() {
            let change = self.correct(&mut clocks.time, ClockReading { time: store, after: sent, before: now });
            log_change(change, "store");
        }
    }

    /// Reads the system's clock. To be called every [`turnway_core::limits::CLOCK_READ_INTERVAL`].
    pub fn check_skew(&self) -> Skew {
        self.observe(system_time(self.0.start))
    }

    fn observe(&self, reading: ClockReading) -> Skew {
        let mut clocks = self.clocks();
        let Clocks { time, system } = &mut *clocks;
        let change = match system {
            Some(system) => system.observe(reading),
            None => self.correct(time, reading),
        };
        log_change(change, "system");
        if time.is_provisional() {
            return Skew::default();
        }
        let ours = time.at(reading.before);
        let lasting = system.as_ref().map_or(ours, |system| system.at(reading.before));
        Skew { now_ms: difference(reading.time, ours), lasting_ms: difference(lasting, ours) }
    }

    /// Returns the time by both clocks. The monotonic time never goes back; the wall time goes back only if the clock
    /// it follows has gone back far and for long.
    pub fn now(&self) -> Now {
        let segment = self.0.line.read().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that no time by an earlier segment is later than one by the next segment.
        let mono = self.mono();
        Now { mono, store: segment.at(mono) }
    }

    /// Returns the time since the node started, including time in which the machine was suspended.
    pub fn mono(&self) -> Mono {
        Mono(boot_time().saturating_sub(self.0.start))
    }

    /// Returns the number of jumps of the wall time so far: a value computed before a jump may be stale.
    pub fn steps(&self) -> u32 {
        self.0.steps.load(Ordering::Relaxed)
    }

    /// Makes the store's clock step and stay there, for tests.
    #[cfg(test)]
    pub(crate) fn step(&self, by: Duration, is_back: bool) {
        let steps = self.steps();
        let from = self.now();
        for seconds in 0.. {
            let wait = Duration::from_secs(seconds);
            let at = from.mono + wait;
            let time = from.store.after(wait);
            let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
            let time = Millis(if is_back { time.0.saturating_sub(by) } else { time.0.saturating_add(by) });
            self.observe_store_time(time, at, at);
            if self.steps() != steps {
                break;
            }
        }
    }

    /// Corrects the time by a reading. The correction starts under the lock, so that no reader has seen a later time.
    fn correct(&self, time: &mut WallClock, reading: ClockReading) -> Option<ClockEvent> {
        let mut segment = self.0.line.write().unwrap_or_else(PoisonError::into_inner);
        let change = time.observe(ClockReading { before: reading.before.max(self.mono()), ..reading });
        *segment = time.segment();
        self.0.steps.store(time.jumps(), Ordering::Relaxed);
        change
    }

    fn clocks(&self) -> MutexGuard<'_, Clocks> {
        self.0.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs a step of a clock.
fn log_change(change: Option<ClockEvent>, clock: &'static str) {
    match change {
        None => {}
        Some(ClockEvent::StepDetected(by_ms)) => {
            tracing::warn!(clock, by_ms, "a clock stepped; the step is believed if it lasts for 30 s");
        }
        Some(ClockEvent::StepAccepted(by_ms)) => {
            tracing::warn!(clock, by_ms, "a clock stepped and stayed there; the step is believed");
        }
        Some(ClockEvent::Recovered) => tracing::info!(clock, "a clock is right again"),
    }
}

fn difference(one: Millis, other: Millis) -> i64 {
    i64::try_from(i128::from(one.0) - i128::from(other.0)).unwrap_or(if one > other { i64::MAX } else { i64::MIN })
}

/// Reads the system's clock between two readings of the monotonic clock, because the process may be stopped in between.
#[expect(clippy::disallowed_methods, reason = "this is where time comes from")]
fn system_time(start: Duration) -> ClockReading {
    let after = Mono(boot_time().saturating_sub(start));
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let before = Mono(boot_time().saturating_sub(start));
    ClockReading { time: Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)), after, before }
}

/// Returns the time since the machine booted, including suspension: a node that was suspended must know that its lease
/// expired meanwhile, and `CLOCK_MONOTONIC`, which `Instant` reads, stands still during suspension.
fn boot_time() -> Duration {
    let read = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(read.tv_sec).unwrap_or(0), u32::try_from(read.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnway_core::limits;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns the reading, after `seconds`, of a clock that is `by` ahead of the node's time.
    fn ahead(clock: &Clock, seconds: u64, by: Duration) -> ClockReading {
        let at = clock.mono() + Duration::from_secs(seconds);
        let time = clock.0.line.read().expect("unpoisoned").at(at).after(by);
        ClockReading { time, after: at, before: at }
    }

    fn is_near(one: Millis, other: Millis) -> bool {
        difference(one, other).abs() < 10_000
    }

    #[test]
    fn system_clock_step_is_ignored_until_it_lasts() {
        let clock = Clock::start();
        let before = clock.now().store;
        let step = ahead(&clock, 1, HOUR);
        assert!(clock.observe(step).now_ms >= 3_599_000);
        assert!(is_near(clock.now().store, before), "a glitch is not followed");
        for seconds in 1..=30 {
            let wait = Duration::from_secs(seconds);
            let later = Mono(step.before.0 + wait);
            clock.observe(ClockReading { time: step.time.after(wait), after: later, before: later });
        }
        assert!(is_near(clock.now().store, before.after(HOUR)), "a lasting step is");
        assert_eq!(clock.steps(), 1);
    }

    #[test]
    fn fleet_clock_adopts_the_first_store_time_at_once() {
        for (forwards, back) in [(HOUR, Duration::ZERO), (Duration::ZERO, HOUR)] {
            let clock = Clock::following_store();
            let own = clock.now();
            assert_eq!(clock.check_skew(), Skew::default(), "there is nothing to compare with yet");
            let store = Millis(own.store.after(forwards).0 - u64::try_from(back.as_millis()).expect("small"));
            clock.observe_store_time(store, own.mono, own.mono);
            assert!(is_near(clock.now().store, store) && is_near(clock.clone().now().store, store));
            let skew = clock.check_skew();
            assert!((skew.now_ms.unsigned_abs()).abs_diff(3_600_000) < 10_000, "{skew:?}");
            assert!((skew.lasting_ms - skew.now_ms).abs() < 10_000);
        }
    }

    #[test]
    fn fleet_clock_ignores_a_system_clock_step() {
        let clock = Clock::following_store();
        let own = clock.now();
        clock.observe_store_time(own.store, own.mono, own.mono);
        let skew = clock.observe(ahead(&clock, 1, HOUR));
        assert!(skew.now_ms >= 3_599_000 && skew.lasting_ms < 1000, "{skew:?}");
        for seconds in 2..100 {
            clock.observe(ahead(&clock, seconds, HOUR));
        }
        assert!(is_near(clock.now().store, own.store));
        assert!(clock.observe(ahead(&clock, 100, HOUR)).lasting_ms >= 3_599_000, "a lasting skew is told");
    }

    #[test]
    fn store_clock_step_is_accepted_once_it_lasts() {
        let clock = Clock::following_store();
        let own = clock.now();
        clock.observe_store_time(own.store, own.mono, own.mono);
        let belief = limits::CLOCK_STEP_CONFIRM.as_secs();
        for seconds in 1..=belief {
            let at = own.mono + Duration::from_secs(seconds);
            clock.observe_store_time(own.store.after(HOUR + Duration::from_secs(seconds)), at, at);
        }
        assert!(is_near(clock.now().store, own.store));
        let at = own.mono + Duration::from_secs(belief + 1);
        clock.observe_store_time(own.store.after(HOUR + Duration::from_secs(belief + 1)), at, at);
        assert!(is_near(clock.now().store, own.store.after(HOUR)));
    }

    #[test]
    fn single_node_clock_ignores_the_store() {
        let clock = Clock::start();
        let own = clock.now();
        clock.observe_store_time(own.store.after(HOUR), own.mono, own.mono);
        assert!(is_near(clock.now().store, own.store));
    }
}

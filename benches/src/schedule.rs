//! The schedule of an open loop: due times come from the clock alone, never from earlier answers.
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// A shorter wait is not worth a timer: setting the timer takes as long.
const WAIT_MIN: Duration = Duration::from_micros(20);

/// A schedule of one turn each `1/rate` seconds.
#[derive(Clone, Debug)]
pub struct Schedule {
    from: Instant,
    rate: f64,
    next: u64,
    count: u64,
}

/// A turn that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Number of the turn, from 0.
    pub number: u64,
    /// Due time; latency is measured from here, however late the turn is sent.
    pub at: Instant,
}

/// A timer with a precision of microseconds; the runtime's own timers have one of milliseconds.
#[derive(Debug)]
pub struct PreciseTimer(AsyncFd<OwnedFd>);

// === impl Schedule ===

impl Schedule {
    /// Creates a schedule of `rate` turns a second for this duration.
    pub fn new(from: Instant, rate: f64, duration: Duration) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, below 2^36")]
        let count = (rate * duration.as_secs_f64()).floor().max(1.0) as u64;
        Self { from, rate, next: 0, count }
    }

    /// Takes the next turn if it is due. A late caller gets all overdue turns, one by one.
    pub fn take(&mut self, now: Instant) -> Option<Due> {
        let due = self.peek().filter(|due| due.at <= now)?;
        self.next += 1;
        Some(due)
    }

    /// Returns the next turn, due or not, or `None` after the last.
    pub fn peek(&self) -> Option<Due> {
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 turns")]
        let after = self.next as f64 / self.rate;
        let due = Due { number: self.next, at: self.from + Duration::from_secs_f64(after) };
        (self.next < self.count).then_some(due)
    }

    /// Calls `each` for every turn when it is due, until the last.
    pub async fn run(mut self, mut each: impl FnMut(Due)) -> io::Result<()> {
        let alarm = PreciseTimer::new()?;
        while let Some(next) = self.peek() {
            alarm.wait(next.at).await?;
            let now = Instant::now();
            while let Some(due) = self.take(now) {
                each(due);
            }
        }
        Ok(())
    }
}

// === impl PreciseTimer ===

impl PreciseTimer {
    /// Creates a timer that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(deprecated, reason = "unsound where a file could be closed or replaced meanwhile; this one is owned")]
        let timer = AsyncFd::new(timer)?;
        Ok(Self(timer))
    }

    /// Waits until the given time. If that is at once, other tasks run first.
    pub async fn wait(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left < WAIT_MIN {
            tokio::task::yield_now().await;
            return Ok(());
        }
        let value =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            let mut count = [0; 8];
            if let Ok(read) = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut count)?)) {
                return read.map(|_| ());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator that stalls for a second sends the turns that were due meanwhile, each measured from its own
    /// due time.
    #[test]
    fn what_is_overdue_keeps_its_time() {
        let from = Instant::now();
        let mut schedule = Schedule::new(from, 100.0, Duration::from_secs(10));
        assert_eq!(schedule.take(from), Some(Due { number: 0, at: from }));
        assert_eq!(schedule.take(from), None, "the second is due after 10 ms");
        let late = from + Duration::from_secs(1);
        let overdue: Vec<Due> = std::iter::from_fn(|| schedule.take(late)).collect();
        assert_eq!(overdue.len(), 100);
        let waits: Vec<u128> = overdue.iter().map(|due| (late - due.at).as_millis()).collect();
        assert_eq!((waits[0], waits[49], waits[99]), (990, 500, 0), "latency grows by the wait");
    }

    #[test]
    fn it_ends_with_the_last_one() {
        let from = Instant::now();
        let mut schedule = Schedule::new(from, 50.0, Duration::from_secs(2));
        let all = std::iter::from_fn(|| schedule.take(from + Duration::from_secs(60))).count();
        assert_eq!((all, schedule.peek()), (100, None));
    }

    /// The due time of the next turn does not depend on any answer.
    #[tokio::test]
    async fn each_is_called_at_its_time_and_not_before() {
        let from = Instant::now();
        let mut called = Vec::new();
        let schedule = Schedule::new(from, 200.0, Duration::from_millis(50));
        schedule.run(|due| called.push((due, Instant::now()))).await.expect("an alarm");
        assert_eq!(called.len(), 10);
        assert!(called.iter().all(|(due, at)| at >= &due.at));
        assert!(called.iter().enumerate().all(|(n, (due, _))| due.number == n as u64));
    }
}

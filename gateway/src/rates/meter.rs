//! A rate and its buckets: of one connection, of a credential, of a tenant; and where those that nodes share are
//! told of.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use turnway_bindings::channel::command::Command;
use turnway_core::planted::{Planted, planted};
use turnway_core::rate::Rate;
use turnway_core::rate::share::Share;
use turnway_core::time::Mono;

/// Whoever tells the store takes these from its other end.
pub type Teller = mpsc::Sender<Due>;

/// A rate and its buckets.
#[derive(Debug)]
pub(super) struct Meter {
    rate: Rate,
    work: Bucket,
    reading: Bucket,
    stopping: Bucket,
    talking: Bucket,
    /// Where nodes share it: how it is called among them, and who tells them.
    shared: Option<(Arc<str>, Teller)>,
}

/// When a bucket is full again.
#[derive(Debug)]
enum Bucket {
    /// Of this node: in nanoseconds of [`Mono`].
    Own(AtomicU64),
    /// Of all nodes of a fleet.
    Shared(Mutex<Share>),
}

/// What is counted by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Work,
    /// What begins to follow a session, or goes on, or ends it.
    Reading,
    /// What ends work. Each node has it for itself: it must not wait for what others do.
    Stopping,
    /// What is answered without anybody being asked: pings, and messages of types that nobody knows.
    Talking,
}

/// A bucket of several nodes, of which the others are to be told.
#[derive(Debug)]
pub struct Due {
    meter: Arc<Meter>,
    lane: Lane,
}

// === impl Meter ===

impl Meter {
    pub(super) fn new(rate: Rate) -> Self {
        let own = || Bucket::Own(AtomicU64::default());
        Self { rate, work: own(), reading: own(), stopping: own(), talking: own(), shared: None }
    }

    /// One that all nodes of a fleet have together.
    pub(super) fn shared(rate: Rate, name: &str, teller: Teller) -> Self {
        let all = || Bucket::Shared(Mutex::default());
        Self { work: all(), reading: all(), shared: Some((name.into(), teller)), ..Self::new(rate) }
    }

    pub(super) fn take(self: &Arc<Self>, lane: Lane, now: Mono) -> Result<(), Duration> {
        let share = match self.bucket(lane) {
            Bucket::Own(full) => return take(full, self.rate, now),
            Bucket::Shared(share) => share,
        };
        let is_due = locked(share).take(self.rate, now)?;
        if let Some((_, teller)) = self.shared.as_ref().filter(|_| is_due) {
            let due = Due { meter: Arc::clone(self), lane };
            // Nobody takes more of them just now: this node goes on by what it knows.
            if teller.try_send(due).is_err() {
                locked(share).unanswered(now);
            }
        }
        Ok(())
    }

    pub(super) fn is_full(&self, now: Mono) -> bool {
        let all = [&self.work, &self.reading, &self.stopping, &self.talking];
        all.iter().all(|bucket| match bucket {
            Bucket::Own(full) => mono(full.load(Ordering::Relaxed)) <= now,
            Bucket::Shared(share) => locked(share).full() <= now,
        })
    }

    fn bucket(&self, lane: Lane) -> &Bucket {
        match lane {
            Lane::Work => &self.work,
            Lane::Reading => &self.reading,
            Lane::Stopping => &self.stopping,
            Lane::Talking => &self.talking,
        }
    }
}

fn take(full: &AtomicU64, rate: Rate, now: Mono) -> Result<(), Duration> {
    let mut refused = Duration::ZERO;
    let taken = full.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full| {
        let next = rate.next(mono(full), now).map_err(|wait| refused = wait).ok()?;
        u64::try_from(next.0.as_nanos()).ok()
    });
    taken.map(drop).map_err(|_| refused)
}

fn mono(nanos: u64) -> Mono {
    Mono(Duration::from_nanos(nanos))
}

fn locked(share: &Mutex<Share>) -> MutexGuard<'_, Share> {
    share.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Due ===

impl Due {
    /// Which bucket it is, by the same name on every node.
    pub fn bucket(&self) -> (&str, &'static str) {
        let lane = match self.lane {
            Lane::Work => "work",
            Lane::Reading => "reading",
            Lane::Stopping => "stopping",
            Lane::Talking => "talking",
        };
        (self.meter.shared.as_ref().map_or("", |(name, _)| name), lane)
    }

    /// What is told now: how much later it is full, and how far ahead it may get at the most.
    pub fn tell(&self, now: Mono) -> (Duration, Duration) {
        let rate = self.meter.rate;
        (self.with(|share| share.tell(rate, now)).unwrap_or_default(), rate.debt_max())
    }

    /// It is full after so long, the store says. Back where there is more to be told at once.
    pub fn answered(self, ahead: Duration, now: Mono) -> Option<Self> {
        let rate = self.meter.rate;
        let is_due = self.with(|share| share.answered(rate, ahead, now)) == Some(true);
        is_due.then_some(self)
    }

    /// The store has not answered.
    pub fn unanswered(&self, now: Mono) {
        self.with(|share| share.unanswered(now));
    }

    fn with<T>(&self, act: impl FnOnce(&mut Share) -> T) -> Option<T> {
        match self.meter.bucket(self.lane) {
            Bucket::Own(_) => None,
            Bucket::Shared(share) => Some(act(&mut locked(share))),
        }
    }
}

// === impl Lane ===

impl Lane {
    pub(super) fn of(command: &Command) -> Self {
        match command {
            _ if planted(Planted::CancelTakesWork) => Self::Work,
            Command::Cancel { .. } | Command::Close { .. } => Self::Stopping,
            Command::Subscribe(_) | Command::Unsubscribe { .. } => Self::Reading,
            Command::Open { .. }
            | Command::Invoke(_)
            | Command::Members { .. }
            | Command::Decide { .. }
            | Command::Look { .. }
            | Command::Delete { .. }
            | Command::List { .. }
            | Command::Find { .. } => Self::Work,
        }
    }
}

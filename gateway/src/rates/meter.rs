//! A rate and its buckets, of a connection, a credential or a tenant, and reports of usage to the other nodes that
//! share the buckets. Used by `rates`; reports are sent by `store::redis::rate_reporter`.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use turnway_core::rate::Rate;
use turnway_core::rate::shared::SharedRate;
use turnway_core::time::Mono;
use turnway_wire::channel::command::RateClass;

/// The sending end of usage reports; the store's task receives them.
pub type UsageSender = mpsc::Sender<UsageReport>;

/// A rate and its buckets.
#[derive(Debug)]
pub(super) struct RateMeter {
    rate: Rate,
    work: Bucket,
    reading: Bucket,
    stopping: Bucket,
    control: Bucket,
    /// The name of the meter among nodes and the sender of reports; set if nodes share the meter.
    shared: Option<(Arc<str>, UsageSender)>,
}

/// A bucket, as the time at which it will be full again.
#[derive(Debug)]
enum Bucket {
    /// A bucket of this node only, in nanoseconds of [`Mono`].
    Own(AtomicU64),
    /// Shared by all nodes of a fleet.
    Shared(Mutex<SharedRate>),
}

/// A report of a shared bucket's usage that is due.
#[derive(Debug)]
pub struct UsageReport {
    meter: Arc<RateMeter>,
    class: RateClass,
}

// === impl RateMeter ===

impl RateMeter {
    pub(super) fn new(rate: Rate) -> Self {
        let own = || Bucket::Own(AtomicU64::default());
        Self { rate, work: own(), reading: own(), stopping: own(), control: own(), shared: None }
    }

    /// Creates a meter that all nodes of a fleet share.
    pub(super) fn shared(rate: Rate, name: &str, teller: UsageSender) -> Self {
        let all = || Bucket::Shared(Mutex::default());
        Self { work: all(), reading: all(), shared: Some((name.into(), teller)), ..Self::new(rate) }
    }

    pub(super) fn take(self: &Arc<Self>, lane: RateClass, now: Mono) -> Result<(), Duration> {
        let share = match self.bucket(lane) {
            Bucket::Own(full) => return take(full, self.rate, now),
            Bucket::Shared(share) => share,
        };
        let is_due = locked(share).take(self.rate, now)?;
        if let Some((_, teller)) = self.shared.as_ref().filter(|_| is_due) {
            let due = UsageReport { meter: Arc::clone(self), class: lane };
            // The queue is full: this node continues with what it knows.
            if teller.try_send(due).is_err() {
                locked(share).handle_no_answer(now);
            }
        }
        Ok(())
    }

    pub(super) fn is_full(&self, now: Mono) -> bool {
        let all = [&self.work, &self.reading, &self.stopping, &self.control];
        all.iter().all(|bucket| match bucket {
            Bucket::Own(full) => mono(full.load(Ordering::Relaxed)) <= now,
            Bucket::Shared(share) => locked(share).full_at() <= now,
        })
    }

    fn bucket(&self, lane: RateClass) -> &Bucket {
        match lane {
            RateClass::Work => &self.work,
            RateClass::Reading => &self.reading,
            RateClass::Stopping => &self.stopping,
            RateClass::Control => &self.control,
        }
    }
}

fn take(full: &AtomicU64, rate: Rate, now: Mono) -> Result<(), Duration> {
    let mut refused = Duration::ZERO;
    let updated = full.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full| {
        let next = rate.try_take(mono(full), now).map_err(|wait| refused = wait).ok()?;
        u64::try_from(next.0.as_nanos()).ok()
    });
    updated.map(drop).map_err(|_| refused)
}

fn mono(nanos: u64) -> Mono {
    Mono(Duration::from_nanos(nanos))
}

fn locked(share: &Mutex<SharedRate>) -> MutexGuard<'_, SharedRate> {
    share.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl UsageReport ===

impl UsageReport {
    /// Returns the name of the bucket, the same on every node.
    pub fn bucket(&self) -> (&str, &'static str) {
        let lane = match self.class {
            RateClass::Work => "work",
            RateClass::Reading => "reading",
            RateClass::Stopping => "stopping",
            RateClass::Control => "talking",
        };
        (self.meter.shared.as_ref().map_or("", |(name, _)| name), lane)
    }

    /// Returns what to report now: by how much the bucket's full time moves, and how far ahead that time may get.
    pub fn take_usage(&self, now: Mono) -> (Duration, Duration) {
        let rate = self.meter.rate;
        (self.with(|share| share.start_report(rate, now)).unwrap_or_default(), rate.debt_max())
    }

    /// Records the store's answer that the bucket is full after `ahead`. Returns the report again if more usage is due
    /// at once.
    pub fn handle_answer(self, ahead: Duration, now: Mono) -> Option<Self> {
        let rate = self.meter.rate;
        let is_due = self.with(|share| share.handle_answer(rate, ahead, now)) == Some(true);
        is_due.then_some(self)
    }

    /// Records that the store has not answered.
    pub fn handle_no_answer(&self, now: Mono) {
        self.with(|share| share.handle_no_answer(now));
    }

    fn with<T>(&self, act: impl FnOnce(&mut SharedRate) -> T) -> Option<T> {
        match self.meter.bucket(self.class) {
            Bucket::Own(_) => None,
            Bucket::Shared(share) => Some(act(&mut locked(share))),
        }
    }
}

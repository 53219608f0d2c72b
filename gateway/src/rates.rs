//! How often connections, credentials and tenants may ask (S-17).
//!
//! Every connection has a [`Pass`]: buckets of its own, and those it shares with others of its credential and of
//! its tenant. What stops work, what goes on with an answer after a cut, and everything else have buckets of their
//! own: a flood of one starves none of the others.
use crate::config::Rates;
use crate::metrics::{Limited, Metrics};
use dashmap::DashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use turnway_bindings::channel::command::{Command, Target};
use turnway_bindings::channel::note::Note;
use turnway_core::id::{RunId, SessionId, TenantId};
use turnway_core::limits;
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::rate::Rate;
use turnway_core::time::Mono;

/// The buckets that connections share.
#[derive(Debug)]
pub struct Meters {
    rates: Rates,
    shared: DashMap<Arc<str>, Arc<Meter>>,
    metrics: Arc<Metrics>,
}

/// What a connection may still ask; nothing is kept for one that may ask as often as it likes.
#[derive(Debug, Default)]
pub struct Pass(Option<Box<Held>>);

#[derive(Debug)]
struct Held {
    meters: Vec<(Limited, Arc<Meter>)>,
    metrics: Arc<Metrics>,
}

/// A rate and its buckets.
#[derive(Debug)]
struct Meter {
    rate: Rate,
    work: Bucket,
    reading: Bucket,
    stopping: Bucket,
}

/// When a bucket is full again, in nanoseconds of [`Mono`].
#[derive(Debug, Default)]
struct Bucket(AtomicU64);

/// What is counted by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Work,
    /// What begins to follow a session, or goes on, or ends it.
    Reading,
    /// What ends work.
    Stopping,
}

// === impl Meters ===

impl Meters {
    /// Buckets for these rates.
    pub fn new(rates: Rates, metrics: Arc<Metrics>) -> Self {
        Self { rates, shared: DashMap::new(), metrics }
    }

    /// For a connection of somebody of this tenant, with the credential of this name.
    pub fn pass(&self, tenant: &TenantId, credential: Option<&str>, now: Mono) -> Pass {
        let rates = self.rates;
        let own = rates.connection.map(|rate| (Limited::Connection, Arc::new(Meter::new(rate))));
        let shared = |whose, name: String, rate| (whose, self.meter(&name, rate, now));
        let key = credential.zip(rates.key);
        let key = key.map(|(id, rate)| shared(Limited::Key, format!("key {id}"), rate));
        let tenant =
            rates.tenant.map(|rate| shared(Limited::Tenant, format!("tenant {}", tenant.as_str()), rate));
        let meters: Vec<_> = [own, key, tenant].into_iter().flatten().collect();
        let metrics = Arc::clone(&self.metrics);
        Pass((!meters.is_empty()).then(|| Box::new(Held { meters, metrics })))
    }

    fn meter(&self, name: &str, rate: Rate, now: Mono) -> Arc<Meter> {
        if let Some(meter) = self.shared.get(name) {
            return Arc::clone(&meter);
        }
        if self.shared.len() >= limits::RATES_MAX {
            self.shared.retain(|_, meter| Arc::strong_count(meter) > 1 || !meter.is_full(now));
        }
        Arc::clone(&self.shared.entry(name.into()).or_insert_with(|| Arc::new(Meter::new(rate))))
    }
}

// === impl Pass ===

impl Pass {
    /// Whether the next credential may be looked at now: that costs as much as a request, and is counted as one.
    pub fn may_renew(&self, now: Mono) -> bool {
        let late = |held: &Held| held.meters.iter().find_map(|(_, meter)| meter.take(Lane::Work, now).err());
        self.0.as_deref().is_none_or(|held| late(held).is_none())
    }

    /// What a request is answered with that comes too early; none: it may go on. One that is refused has been
    /// counted wherever there was room for it.
    pub fn refusal(&self, command: &Command, now: Mono) -> Option<Note> {
        let held = self.0.as_ref()?;
        let lane = Lane::of(command);
        let late = held.meters.iter().find_map(|(whose, meter)| Some((*whose, meter.take(lane, now).err()?)));
        let (whose, wait) = late?;
        held.metrics.auth.limited(whose);
        let why = match whose {
            Limited::Connection => "too many requests on this connection",
            Limited::Key => "too many requests with this credential",
            Limited::Tenant => "too many requests of this tenant",
        };
        // In whole milliseconds, and none too few.
        let wait = wait + Duration::from_nanos(999_999);
        let (session, run_id) = place(command);
        let refusal = Refusal::new(Code::RateLimited, why).retry_after(wait);
        Some(Note::Refused { request_id: command.request_id().cloned(), session, run_id, refusal })
    }
}

/// What a request names.
fn place(command: &Command) -> (Option<SessionId>, Option<RunId>) {
    match command {
        Command::Open { session, .. } => (session.clone(), None),
        Command::Invoke(invoke) => (invoke.session.clone(), None),
        Command::Subscribe(subscribe) => (Some(subscribe.session.clone()), None),
        Command::Close { session, .. }
        | Command::Unsubscribe { session, .. }
        | Command::Look { session, .. }
        | Command::Cancel { target: Target::Session(session), .. } => (Some(session.clone()), None),
        Command::Cancel { target: Target::Run(run_id), .. } | Command::Find { run_id } => {
            (None, Some(run_id.clone()))
        }
        Command::List { .. } => (None, None),
    }
}

// === impl Meter ===

impl Meter {
    fn new(rate: Rate) -> Self {
        Self { rate, work: Bucket::default(), reading: Bucket::default(), stopping: Bucket::default() }
    }

    fn take(&self, lane: Lane, now: Mono) -> Result<(), Duration> {
        match lane {
            Lane::Work => self.work.take(self.rate, now),
            Lane::Reading => self.reading.take(self.rate, now),
            Lane::Stopping => self.stopping.take(self.rate, now),
        }
    }

    fn is_full(&self, now: Mono) -> bool {
        [&self.work, &self.reading, &self.stopping].iter().all(|bucket| bucket.full() <= now)
    }
}

// === impl Bucket ===

impl Bucket {
    fn take(&self, rate: Rate, now: Mono) -> Result<(), Duration> {
        let mut refused = Duration::ZERO;
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full| {
            let next =
                rate.next(Mono(Duration::from_nanos(full)), now).map_err(|wait| refused = wait).ok()?;
            u64::try_from(next.0.as_nanos()).ok()
        });
        taken.map(drop).map_err(|_| refused)
    }

    fn full(&self) -> Mono {
        Mono(Duration::from_nanos(self.0.load(Ordering::Relaxed)))
    }
}

// === impl Lane ===

impl Lane {
    fn of(command: &Command) -> Self {
        match command {
            Command::Cancel { .. } | Command::Close { .. } => Self::Stopping,
            Command::Subscribe(_) | Command::Unsubscribe { .. } => Self::Reading,
            Command::Open { .. }
            | Command::Invoke(_)
            | Command::Look { .. }
            | Command::List { .. }
            | Command::Find { .. } => Self::Work,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Registry;

    const NOW: Mono = Mono(Duration::from_secs(1));

    fn enter(meters: &Meters) -> Pass {
        meters.pass(&TenantId::default_tenant(), None, NOW)
    }

    fn session() -> SessionId {
        SessionId::parse("s1").expect("a name")
    }

    fn look() -> Command {
        Command::Look { request_id: None, session: session() }
    }

    fn cancel() -> Command {
        Command::Cancel { request_id: None, target: Target::Session(session()), receipt: false }
    }

    fn meters(rates: Rates) -> Meters {
        Meters::new(rates, Arc::new(Metrics::register(&Registry::new()).expect("metrics")))
    }

    fn rate(count: u32) -> Option<Rate> {
        Rate::new(count, Duration::from_secs(1))
    }

    fn taken(pass: &Pass, command: &Command, of: usize) -> usize {
        (0..of).filter(|_| pass.refusal(command, NOW).is_none()).count()
    }

    /// Covers: S-17.
    #[test]
    fn what_is_asked_too_often_is_told_when_to_ask_again_and_starves_no_cancel() {
        let meters = meters(Rates { connection: rate(10), ..Rates::default() });
        let (pass, other) = (enter(&meters), enter(&meters));
        assert_eq!(taken(&pass, &look(), 30), 20);
        let Some(Note::Refused { session: named, refusal, .. }) = pass.refusal(&look(), NOW) else {
            panic!("too many")
        };
        assert_eq!((refusal.code, refusal.retry_after_ms), (Code::RateLimited, Some(100)));
        assert_eq!(named, Some(session()));
        assert_eq!(taken(&pass, &cancel(), 10), 10, "a cancel has its own bucket");
        assert_eq!(taken(&other, &look(), 10), 10, "and so has another connection");
        assert!(pass.refusal(&look(), NOW + Duration::from_millis(100)).is_none());
    }

    /// Covers: S-17.
    #[test]
    fn connections_of_one_tenant_share_what_it_may() {
        let meters = meters(Rates { connection: rate(10), tenant: rate(15), ..Rates::default() });
        let (one, two) = (enter(&meters), enter(&meters));
        assert_eq!(taken(&one, &look(), 30), 20);
        assert_eq!(taken(&two, &look(), 30), 10, "thirty of the tenant's");
        drop((one, two));
        let again = enter(&meters);
        assert_eq!(taken(&again, &look(), 30), 0, "who comes back finds what was left");
    }

    /// Covers: S-17.
    #[test]
    fn a_credential_has_its_rate_wherever_it_is_used() {
        let meters = meters(Rates { key: rate(10), ..Rates::default() });
        let with = |name| meters.pass(&TenantId::default_tenant(), Some(name), NOW);
        let (one, two, other) = (with("a"), with("a"), with("b"));
        assert_eq!(taken(&one, &look(), 15) + taken(&two, &look(), 15), 20);
        assert_eq!(taken(&other, &look(), 15), 15);
    }

    #[test]
    fn without_rates_nothing_is_counted() {
        let pass = enter(&meters(Rates::default()));
        assert!(pass.0.is_none() && taken(&pass, &look(), 1000) == 1000);
    }
}

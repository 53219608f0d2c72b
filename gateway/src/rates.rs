//! Rate limits of connections, credentials and tenants (S-17). A connection's [`Pass`] has its own buckets ([`meter`])
//! and those of its credential and tenant, one for each kind of request. Nodes with one store share them
//! ([`turnway_core::rate::share`]), except those for cancels. Used by `auth` and the links.
mod meter;

pub use meter::{Due, Teller};

use crate::config::Rates;
use crate::metrics::{Limited, Metrics};
use dashmap::DashMap;
use meter::{Lane, Meter};
use std::sync::Arc;
use std::time::Duration;
use turnway_bindings::channel::command::{Command, Target};
use turnway_bindings::channel::note::Note;
use turnway_core::id::{RunId, SessionId, TenantId};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::rate::Rate;
use turnway_core::time::Mono;

/// The buckets that connections of a credential or tenant share.
#[derive(Debug)]
pub struct Meters {
    rates: Rates,
    shared: DashMap<Arc<str>, Arc<Meter>>,
    /// Reports usage to other nodes; present if nodes share their rates.
    teller: Option<Teller>,
    metrics: Arc<Metrics>,
}

/// The rate limits of one connection; empty if no rate is configured.
#[derive(Debug, Default)]
pub struct Pass(Option<Box<Held>>);

#[derive(Debug)]
struct Held {
    meters: Vec<(Limited, Arc<Meter>)>,
    metrics: Arc<Metrics>,
}

// === impl Meters ===

impl Meters {
    /// Creates the buckets for these rates, shared with other nodes if `teller` is set.
    pub fn new(rates: Rates, teller: Option<Teller>, metrics: Arc<Metrics>) -> Self {
        Self { rates, shared: DashMap::new(), teller, metrics }
    }

    /// Returns the rate limits of a connection of this tenant with this credential.
    pub fn pass(&self, tenant: &TenantId, credential: Option<&str>, now: Mono) -> Pass {
        let rates = self.rates;
        let own = rates.connection.map(|rate| (Limited::Connection, Arc::new(Meter::new(rate))));
        let shared = |whose, name: String, rate| (whose, self.meter(&name, rate, now));
        let key = credential.zip(rates.key);
        let key = key.map(|(id, rate)| shared(Limited::Key, format!("key {id}"), rate));
        let tenant =
            rates.tenant.map(|rate| match credential.filter(|_| planted(Planted::TenantRateByKey)) {
                Some(id) => shared(Limited::Tenant, format!("tenant of {id}"), rate),
                None => shared(Limited::Tenant, format!("tenant {}", tenant.as_str()), rate),
            });
        let meters: Vec<_> = [own, key, tenant].into_iter().flatten().collect();
        let metrics = Arc::clone(&self.metrics);
        Pass((!meters.is_empty()).then(|| Box::new(Held { meters, metrics })))
    }

    fn meter(&self, name: &str, rate: Rate, now: Mono) -> Arc<Meter> {
        if let Some(meter) = self.shared.get(name) {
            return Arc::clone(&meter);
        }
        if self.shared.len() >= limits::RATES_MAX && !planted(Planted::RatesNeverForgotten) {
            self.shared.retain(|_, meter| Arc::strong_count(meter) > 1 || !meter.is_full(now));
        }
        Arc::clone(&self.shared.entry(name.into()).or_insert_with(|| {
            Arc::new(match &self.teller {
                None => Meter::new(rate),
                Some(teller) => Meter::shared(rate, name, teller.clone()),
            })
        }))
    }
}

// === impl Pass ===

impl Pass {
    /// Returns whether the next credential may be verified now: the check costs as much as a request, and is counted as
    /// one.
    pub fn may_renew(&self, now: Mono) -> bool {
        if planted(Planted::RefreshUnlimited) {
            return true;
        }
        let late = |held: &Held| held.meters.iter().find_map(|(_, meter)| meter.take(Lane::Work, now).err());
        self.0.as_deref().is_none_or(|held| late(held).is_none())
    }

    /// Returns whether one more message is allowed that the link answers by itself. Only the connection's own rate
    /// counts: messages of other connections with the same credential must not close this one.
    pub fn may_talk(&self, now: Mono) -> bool {
        let own = |(whose, _): &&(Limited, Arc<Meter>)| *whose == Limited::Connection;
        let Some((held, meter)) =
            self.0.as_deref().and_then(|held| Some((held, &held.meters.iter().find(own)?.1)))
        else {
            return true;
        };
        let may = meter.take(Lane::Talking, now).is_ok();
        if !may {
            held.metrics.auth.limited(Limited::Connection);
        }
        may
    }

    /// Returns the refusal of a request that comes too early; `None` if the request may proceed. A refused request has
    /// still been counted in every bucket that had space.
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
        // Rounded up to whole milliseconds.
        let more = if planted(Planted::RateWaitRoundedDown) { 0 } else { 999_999 };
        let wait = wait + Duration::from_nanos(more);
        let (session, run_id) = place(command);
        let refusal = Refusal::new(Code::RateLimited, why).retry_after(wait);
        Some(Note::Refused { request_id: command.request_id().cloned(), session, run_id, refusal })
    }
}

/// Returns the session or the run that a request names.
fn place(command: &Command) -> (Option<SessionId>, Option<RunId>) {
    match command {
        Command::Open { session, .. } => (session.clone(), None),
        Command::Invoke(invoke) => (invoke.session.clone(), None),
        Command::Subscribe(subscribe) => (Some(subscribe.session.clone()), None),
        Command::Close { session, .. }
        | Command::Delete { session }
        | Command::Members { session, .. }
        | Command::Decide { session, .. }
        | Command::Unsubscribe { session, .. }
        | Command::Look { session, .. }
        | Command::Cancel { target: Target::Session(session), .. } => (Some(session.clone()), None),
        Command::Cancel { target: Target::Run(run_id), .. } | Command::Find { run_id } => {
            (None, Some(run_id.clone()))
        }
        Command::List { .. } => (None, None),
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
        Meters::new(rates, None, Arc::new(Metrics::register(&Registry::new()).expect("metrics")))
    }

    fn rate(count: u32) -> Option<Rate> {
        Rate::new(count, Duration::from_secs(1))
    }

    fn taken(pass: &Pass, command: &Command, of: usize) -> usize {
        (0..of).filter(|_| pass.refusal(command, NOW).is_none()).count()
    }

    /// Covers: S-17.
    #[test]
    fn rate_limited_request_gets_retry_after_and_cancel_passes() {
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
    fn small_messages_have_a_bucket_per_connection() {
        let meters = meters(Rates { connection: rate(10), key: rate(5), ..Rates::default() });
        let pass = || meters.pass(&TenantId::default_tenant(), Some("a"), NOW);
        let (one, two) = (pass(), pass());
        let talked = |pass: &Pass| (0..50).filter(|_| pass.may_talk(NOW)).count();
        assert_eq!((talked(&one), talked(&two)), (20, 20), "not less for what others say");
        assert_eq!(taken(&one, &look(), 30), 10, "work is counted apart");
        assert!(Pass::default().may_talk(NOW));
    }

    /// Covers: S-17.
    #[test]
    fn tenant_rate_is_shared_by_its_connections() {
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
    fn credential_rate_applies_across_connections() {
        let meters = meters(Rates { key: rate(10), ..Rates::default() });
        let with = |name| meters.pass(&TenantId::default_tenant(), Some(name), NOW);
        let (one, two, other) = (with("a"), with("a"), with("b"));
        assert_eq!(taken(&one, &look(), 15) + taken(&two, &look(), 15), 20);
        assert_eq!(taken(&other, &look(), 15), 15);
    }

    /// Simulates two nodes that exchange usage by hand: usage on one node limits the other, except for cancels.
    ///
    /// Covers: S-17.
    #[test]
    fn credential_usage_is_shared_between_nodes() {
        let (teller, mut dues) = tokio::sync::mpsc::channel(16);
        let rates = Rates { connection: rate(1000), key: rate(10), ..Rates::default() };
        let metrics = Arc::new(Metrics::register(&Registry::new()).expect("metrics"));
        let node = || Meters::new(rates, Some(teller.clone()), Arc::clone(&metrics));
        let (one, two) = (node(), node());
        let pass = |node: &Meters, name| node.pass(&TenantId::default_tenant(), Some(name), NOW);
        let (here, there, other) = (pass(&one, "a"), pass(&two, "a"), pass(&two, "b"));
        assert_eq!(taken(&here, &look(), 15), 15);
        let due = dues.try_recv().expect("it is to be told");
        assert_eq!(due.bucket(), ("key a", "work"));
        let (first, most) = due.tell(NOW);
        assert_eq!((first, most), (Duration::from_millis(1500), Duration::from_secs(32)));
        assert!(due.answered(first, NOW).is_none(), "nothing came meanwhile");
        assert!(dues.try_recv().is_err());

        assert_eq!(taken(&there, &look(), 1), 1);
        let due = dues.try_recv().expect("it is to be told");
        let ahead = first + due.tell(NOW).0;
        assert!(due.answered(ahead, NOW).is_none());
        assert_eq!(taken(&there, &look(), 30), 4, "what is left of twenty");
        assert_eq!((taken(&there, &cancel(), 30), taken(&here, &cancel(), 30)), (20, 20));
        assert_eq!(taken(&other, &look(), 30), 20, "another credential is not concerned");
        // Nobody receives reports, so each node counts on its own.
        drop(dues);
        let later = NOW + Duration::from_secs(10);
        let more = (0..30).filter(|_| here.refusal(&look(), later).is_none()).count();
        assert_eq!(more, 20);
    }

    /// Covers: S-17.
    #[test]
    fn request_after_the_retry_time_is_served() {
        let meters = meters(Rates { connection: rate(7), ..Rates::default() });
        let pass = enter(&meters);
        assert_eq!(taken(&pass, &look(), 30), 14);
        let Some(Note::Refused { refusal, .. }) = pass.refusal(&look(), NOW) else { panic!("too many") };
        let wait = Duration::from_millis(refusal.retry_after_ms.expect("a time"));
        assert!(pass.refusal(&look(), NOW + wait).is_none(), "{wait:?} is too short");
    }

    /// Covers: S-17, G8.
    #[test]
    fn unused_credentials_are_evicted_first() {
        let meters = meters(Rates { key: rate(10), ..Rates::default() });
        let pass = |name: &str| meters.pass(&TenantId::default_tenant(), Some(name), NOW);
        let (in_use, owing) = (pass("in use"), pass("owing"));
        assert_eq!((taken(&in_use, &look(), 20), taken(&owing, &look(), 20)), (20, 20));
        drop(owing);
        for n in 0..2 * limits::RATES_MAX {
            drop(pass(&n.to_string()));
            assert!(meters.shared.len() <= limits::RATES_MAX, "{n}");
        }
        assert_eq!((taken(&pass("in use"), &look(), 1), taken(&pass("owing"), &look(), 1)), (0, 0));
    }

    #[test]
    fn no_rates_means_no_counting() {
        let pass = enter(&meters(Rates::default()));
        assert!(pass.0.is_none() && taken(&pass, &look(), 1000) == 1000);
    }
}

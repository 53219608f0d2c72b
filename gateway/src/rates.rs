//! Rate limits of connections, credentials and tenants (S-17). A connection's [`RateLimiter`] has its own buckets
//! (`meter`) and those of its credential and tenant, one for each kind of request. Nodes with one store share them
//! ([`turnway_core::rate::shared`]), except those for cancels. Used by `auth` and the links.
mod meter;

pub use meter::{UsageReport, UsageSender};

use crate::config::RateSettings;
use crate::metrics::{Metrics, RateScope};
use dashmap::DashMap;
use meter::RateMeter;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::TenantId;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};
use turnway_core::protocol::refusal::{Code, Refusal};
use turnway_core::rate::Rate;
use turnway_core::time::Mono;
use turnway_wire::channel::command::{CommandTarget, LinkCommand, RateClass};
use turnway_wire::channel::notification::{CommandReply, Notification};

/// The buckets that connections of a credential or tenant share.
#[derive(Debug)]
pub struct RateLimits {
    rates: RateSettings,
    shared: DashMap<Arc<str>, Arc<RateMeter>>,
    /// Reports usage to other nodes; present if nodes share their rates.
    usage_sender: Option<UsageSender>,
    metrics: Arc<Metrics>,
}

/// The rate limits of one connection; empty if no rate is configured.
#[derive(Debug, Default)]
pub struct RateLimiter(Option<Box<RateLimiterInner>>);

#[derive(Debug)]
struct RateLimiterInner {
    meters: Vec<(RateScope, Arc<RateMeter>)>,
    metrics: Arc<Metrics>,
}

// === impl RateLimits ===

impl RateLimits {
    /// Creates the buckets for these rates, shared with other nodes if `teller` is set.
    pub fn new(rates: RateSettings, usage_sender: Option<UsageSender>, metrics: Arc<Metrics>) -> Self {
        Self { rates, shared: DashMap::new(), usage_sender, metrics }
    }

    /// Returns the rate limits of a connection of this tenant with this credential.
    pub fn limiter(&self, tenant: &TenantId, credential: Option<&str>, now: Mono) -> RateLimiter {
        let rates = self.rates;
        let own = rates.connection.map(|rate| (RateScope::Connection, Arc::new(RateMeter::new(rate))));
        let shared = |whose, name: String, rate| (whose, self.meter(&name, rate, now));
        let key = credential.zip(rates.key);
        let key = key.map(|(id, rate)| shared(RateScope::Key, format!("key {id}"), rate));
        let tenant = rates.tenant.map(|rate| match credential.filter(|_| planted(Planted::TenantRateByKey)) {
            Some(id) => shared(RateScope::Tenant, format!("tenant of {id}"), rate),
            None => shared(RateScope::Tenant, format!("tenant {}", tenant.as_str()), rate),
        });
        let meters: Vec<_> = [own, key, tenant].into_iter().flatten().collect();
        let metrics = Arc::clone(&self.metrics);
        RateLimiter((!meters.is_empty()).then(|| Box::new(RateLimiterInner { meters, metrics })))
    }

    fn meter(&self, name: &str, rate: Rate, now: Mono) -> Arc<RateMeter> {
        if let Some(meter) = self.shared.get(name) {
            return Arc::clone(&meter);
        }
        if self.shared.len() >= limits::RATES_MAX && !planted(Planted::RatesNeverForgotten) {
            self.shared.retain(|_, meter| Arc::strong_count(meter) > 1 || !meter.is_full(now));
        }
        Arc::clone(&self.shared.entry(name.into()).or_insert_with(|| {
            Arc::new(match &self.usage_sender {
                None => RateMeter::new(rate),
                Some(teller) => RateMeter::shared(rate, name, teller.clone()),
            })
        }))
    }
}

// === impl RateLimiter ===

impl RateLimiter {
    /// Returns whether the next credential may be verified now: the check costs as much as a request, and is counted as
    /// one.
    pub fn may_renew(&self, now: Mono) -> bool {
        if planted(Planted::RefreshUnlimited) {
            return true;
        }
        self.take(RateClass::Work, now).is_none()
    }

    /// Takes one request from every bucket, up to the first that is empty: that one is counted as a refusal and
    /// returned, with the time until it has space again.
    fn take(&self, class: RateClass, now: Mono) -> Option<(RateScope, Duration)> {
        let held = self.0.as_deref()?;
        let late = held.meters.iter().find_map(|(whose, meter)| Some((*whose, meter.take(class, now).err()?)));
        late.inspect(|(whose, _)| held.metrics.auth.count_rate_limited(*whose))
    }

    /// Returns whether one more message is allowed that the link answers by itself. Only the connection's own rate
    /// counts: messages of other connections with the same credential must not close this one.
    pub fn may_send_control(&self, now: Mono) -> bool {
        let own = |(whose, _): &&(RateScope, Arc<RateMeter>)| *whose == RateScope::Connection;
        let Some((held, meter)) = self.0.as_deref().and_then(|held| Some((held, &held.meters.iter().find(own)?.1)))
        else {
            return true;
        };
        let may = meter.take(RateClass::Control, now).is_ok();
        if !may {
            held.metrics.auth.count_rate_limited(RateScope::Connection);
        }
        may
    }

    /// Returns the refusal of a request that comes too early; `None` if the request may proceed. A refused request has
    /// still been counted in every bucket that had space.
    pub fn check_command(&self, command: &LinkCommand, now: Mono) -> Option<Notification> {
        let refusal = self.check_request(rate_class(command), now)?;
        let (session, run_id) = match command.target() {
            CommandTarget::Session(session) => (Some(session.clone()), None),
            CommandTarget::Run(run_id) => (None, Some(run_id.clone())),
            CommandTarget::None => (None, None),
        };
        Some(Notification::Reply(CommandReply::Refused {
            request_id: command.request_id().cloned(),
            session,
            run_id,
            refusal,
        }))
    }

    /// Returns the refusal of a request that comes too early and becomes no command; see [`Self::check_command`].
    pub fn check_request(&self, class: RateClass, now: Mono) -> Option<Refusal> {
        let (whose, wait) = self.take(class, now)?;
        let why = match whose {
            RateScope::Connection => "too many requests on this connection",
            RateScope::Key => "too many requests with this credential",
            RateScope::Tenant => "too many requests of this tenant",
        };
        // Rounded up to whole milliseconds.
        let more = if planted(Planted::RateWaitRoundedDown) { 0 } else { 999_999 };
        let wait = wait + Duration::from_nanos(more);
        Some(Refusal::new(Code::RateLimited, why).retry_after(wait))
    }
}

/// Returns the bucket that a request is counted in.
fn rate_class(command: &LinkCommand) -> RateClass {
    if planted(Planted::CancelTakesWork) { RateClass::Work } else { command.kind().rate }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Registry, TextEncoder};
    use turnway_core::id::SessionId;
    use turnway_wire::channel::command::CancelTarget;

    const NOW: Mono = Mono(Duration::from_secs(1));

    fn enter(meters: &RateLimits) -> RateLimiter {
        meters.limiter(&TenantId::default_tenant(), None, NOW)
    }

    fn session() -> SessionId {
        SessionId::parse("s1").expect("a name")
    }

    fn look() -> LinkCommand {
        LinkCommand::GetSnapshot { request_id: None, session: session() }
    }

    fn cancel() -> LinkCommand {
        LinkCommand::Cancel { request_id: None, target: CancelTarget::Session(session()), wants_receipt: false }
    }

    fn meters(rates: RateSettings) -> RateLimits {
        RateLimits::new(rates, None, Arc::new(Metrics::register(&Registry::new()).expect("metrics")))
    }

    fn rate(count: u32) -> Option<Rate> {
        Rate::new(count, Duration::from_secs(1))
    }

    fn taken(pass: &RateLimiter, command: &LinkCommand, of: usize) -> usize {
        (0..of).filter(|_| pass.check_command(command, NOW).is_none()).count()
    }

    /// Covers: S-17.
    #[test]
    fn rate_limited_request_gets_retry_after_and_cancel_passes() {
        let meters = meters(RateSettings { connection: rate(10), ..RateSettings::default() });
        let pass = enter(&meters);
        let other = enter(&meters);
        assert_eq!(taken(&pass, &look(), 30), 20);
        let Some(Notification::Reply(CommandReply::Refused { session: named, refusal, .. })) =
            pass.check_command(&look(), NOW)
        else {
            panic!("too many")
        };
        assert_eq!((refusal.code, refusal.retry_after_ms), (Code::RateLimited, Some(100)));
        assert_eq!(named, Some(session()));
        assert_eq!(taken(&pass, &cancel(), 10), 10, "a cancel has its own bucket");
        assert_eq!(taken(&other, &look(), 10), 10, "and so has another connection");
        assert!(pass.check_command(&look(), NOW + Duration::from_millis(100)).is_none());
    }

    /// Covers: S-17.
    #[test]
    fn small_messages_have_a_bucket_per_connection() {
        let meters = meters(RateSettings { connection: rate(10), key: rate(5), ..RateSettings::default() });
        let pass = || meters.limiter(&TenantId::default_tenant(), Some("a"), NOW);
        let one = pass();
        let two = pass();
        let talked = |pass: &RateLimiter| (0..50).filter(|_| pass.may_send_control(NOW)).count();
        assert_eq!((talked(&one), talked(&two)), (20, 20), "not less for what others say");
        assert_eq!(taken(&one, &look(), 30), 10, "work is counted apart");
        assert!(RateLimiter::default().may_send_control(NOW));
    }

    /// Covers: S-17.
    #[test]
    fn tenant_rate_is_shared_by_its_connections() {
        let meters = meters(RateSettings { connection: rate(10), tenant: rate(15), ..RateSettings::default() });
        let one = enter(&meters);
        let two = enter(&meters);
        assert_eq!(taken(&one, &look(), 30), 20);
        assert_eq!(taken(&two, &look(), 30), 10, "thirty of the tenant's");
        drop((one, two));
        let again = enter(&meters);
        assert_eq!(taken(&again, &look(), 30), 0, "who comes back finds what was left");
    }

    /// Covers: S-17.
    #[test]
    fn refused_credential_refresh_is_counted() {
        let registry = Registry::new();
        let metrics = Arc::new(Metrics::register(&registry).expect("metrics"));
        let rates = RateSettings { connection: rate(1), ..RateSettings::default() };
        let limiter = enter(&RateLimits::new(rates, None, metrics));
        while limiter.may_renew(NOW) {}
        let mut text = String::new();
        TextEncoder::new().encode_utf8(&registry.gather(), &mut text).expect("text");
        assert!(text.contains("turnway_rate_limited_total{whose=\"connection\"} 1"), "{text}");
    }

    /// Covers: S-17.
    #[test]
    fn credential_rate_applies_across_connections() {
        let meters = meters(RateSettings { key: rate(10), ..RateSettings::default() });
        let with = |name| meters.limiter(&TenantId::default_tenant(), Some(name), NOW);
        let one = with("a");
        let two = with("a");
        let other = with("b");
        assert_eq!(taken(&one, &look(), 15) + taken(&two, &look(), 15), 20);
        assert_eq!(taken(&other, &look(), 15), 15);
    }

    /// Simulates two nodes that exchange usage by hand: usage on one node limits the other, except for cancels.
    ///
    /// Covers: S-17.
    #[test]
    fn credential_usage_is_shared_between_nodes() {
        let (teller, mut dues) = tokio::sync::mpsc::channel(16);
        let rates = RateSettings { connection: rate(1000), key: rate(10), ..RateSettings::default() };
        let metrics = Arc::new(Metrics::register(&Registry::new()).expect("metrics"));
        let node = || RateLimits::new(rates, Some(teller.clone()), Arc::clone(&metrics));
        let one = node();
        let two = node();
        let pass = |node: &RateLimits, name| node.limiter(&TenantId::default_tenant(), Some(name), NOW);
        let here = pass(&one, "a");
        let there = pass(&two, "a");
        let other = pass(&two, "b");
        assert_eq!(taken(&here, &look(), 15), 15);
        let due = dues.try_recv().expect("it is to be told");
        assert_eq!(due.bucket(), ("key a", "work"));
        let (first, most) = due.take_usage(NOW);
        assert_eq!((first, most), (Duration::from_millis(1500), Duration::from_secs(32)));
        assert!(due.handle_answer(first, NOW).is_none(), "nothing came meanwhile");
        assert!(dues.try_recv().is_err());

        assert_eq!(taken(&there, &look(), 1), 1);
        let due = dues.try_recv().expect("it is to be told");
        let ahead = first + due.take_usage(NOW).0;
        assert!(due.handle_answer(ahead, NOW).is_none());
        assert_eq!(taken(&there, &look(), 30), 4, "what is left of twenty");
        assert_eq!((taken(&there, &cancel(), 30), taken(&here, &cancel(), 30)), (20, 20));
        assert_eq!(taken(&other, &look(), 30), 20, "another credential is not concerned");
        // Nobody receives reports, so each node counts on its own.
        drop(dues);
        let later = NOW + Duration::from_secs(10);
        let more = (0..30).filter(|_| here.check_command(&look(), later).is_none()).count();
        assert_eq!(more, 20);
    }

    /// Covers: S-17.
    #[test]
    fn request_after_the_retry_time_is_served() {
        let meters = meters(RateSettings { connection: rate(7), ..RateSettings::default() });
        let pass = enter(&meters);
        assert_eq!(taken(&pass, &look(), 30), 14);
        let Some(Notification::Reply(CommandReply::Refused { refusal, .. })) = pass.check_command(&look(), NOW) else {
            panic!("too many")
        };
        let wait = Duration::from_millis(refusal.retry_after_ms.expect("a time"));
        assert!(pass.check_command(&look(), NOW + wait).is_none(), "{wait:?} is too short");
    }

    /// Covers: S-17, G8.
    #[test]
    fn unused_credentials_are_evicted_first() {
        let meters = meters(RateSettings { key: rate(10), ..RateSettings::default() });
        let pass = |name: &str| meters.limiter(&TenantId::default_tenant(), Some(name), NOW);
        let in_use = pass("in use");
        let owing = pass("owing");
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
        let pass = enter(&meters(RateSettings::default()));
        assert!(pass.0.is_none() && taken(&pass, &look(), 1000) == 1000);
    }
}

//! Addresses from which credentials come that are not good (S-05): whoever tries one after the other is not heard for a
//! while.
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use turnway_core::limits;

/// What has come from each address of late.
#[derive(Debug, Default)]
pub(super) struct Lockout(Mutex<BTreeMap<IpAddr, Failures>>);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// When these are forgotten, or the address is heard again.
    until: Instant,
}

// === impl Lockout ===

impl Lockout {
    /// How long nothing is heard from this address.
    pub(super) fn locked(&self, from: IpAddr, now: Instant) -> Option<Duration> {
        let failures = *self.lock().get(&from)?;
        let rest = failures.until.saturating_duration_since(now);
        (failures.count >= limits::AUTH_FAILURES_MAX && !rest.is_zero()).then_some(rest)
    }

    /// A credential came from there that is not good; whether that was one too many.
    pub(super) fn failed(&self, from: IpAddr, now: Instant) -> bool {
        let mut all = self.lock();
        if !all.contains_key(&from) && all.len() >= limits::AUTH_FAILURES_ADDRESSES_MAX {
            all.retain(|_, failures| failures.until > now);
            if all.len() >= limits::AUTH_FAILURES_ADDRESSES_MAX {
                return false;
            }
        }
        let fresh = Failures { count: 0, until: now + limits::AUTH_FAILURES_WINDOW };
        let failures = all.entry(from).or_insert(fresh);
        if failures.until <= now {
            *failures = fresh;
        }
        failures.count += 1;
        let is_over = failures.count == limits::AUTH_FAILURES_MAX;
        if is_over {
            failures.until = now + limits::AUTH_LOCK;
        }
        is_over
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Failures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Covers: S-05.
    #[test]
    fn ten_in_a_minute_are_too_many_for_five() {
        let (lockout, from, begun) = (Lockout::default(), ip("192.0.2.7"), Instant::now());
        let mut is_over = false;
        for _ in 0..limits::AUTH_FAILURES_MAX {
            assert_eq!(lockout.locked(from, begun), None);
            is_over = lockout.failed(from, begun);
        }
        assert!(is_over);
        assert_eq!(lockout.locked(from, begun), Some(limits::AUTH_LOCK));
        assert_eq!(lockout.locked(ip("192.0.2.8"), begun), None);
        // What had been under way when it was locked does not lock it for longer.
        lockout.failed(from, begun);
        let end = begun + limits::AUTH_LOCK;
        assert_eq!(lockout.locked(from, end - Duration::from_secs(1)), Some(Duration::from_secs(1)));
        assert_eq!(lockout.locked(from, end), None);
        lockout.failed(from, end);
        assert_eq!(lockout.locked(from, end), None, "it begins anew");
    }

    /// Covers: S-05.
    #[test]
    fn now_and_then_one_is_no_attack() {
        let (lockout, from, mut now) = (Lockout::default(), ip("192.0.2.7"), Instant::now());
        for _ in 0..50 {
            lockout.failed(from, now);
            assert_eq!(lockout.locked(from, now), None);
            now += limits::AUTH_FAILURES_WINDOW / 5;
        }
    }

    /// Covers: S-05.
    #[test]
    fn it_remembers_so_many_addresses() {
        let (lockout, now) = (Lockout::default(), Instant::now());
        let six = |n: usize| ip(&format!("2001:db8:{:x}:{:x}::", n >> 16, n & 0xffff));
        for n in 0..limits::AUTH_FAILURES_ADDRESSES_MAX + 10 {
            lockout.failed(six(n), now);
        }
        assert_eq!(lockout.lock().len(), limits::AUTH_FAILURES_ADDRESSES_MAX);
        lockout.failed(ip("192.0.2.7"), now + limits::AUTH_FAILURES_WINDOW);
        assert_eq!(lockout.lock().len(), 1, "what is over is forgotten");
    }
}

//! Locks out addresses that send many bad credentials (S-05): their requests and connections are refused for a while.
//! Called by the address limiter.
use super::address_prefix::AddressPrefix;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};

/// Recent authentication failures of each address and network.
#[derive(Debug, Default)]
pub(super) struct Lockout(Mutex<BTreeMap<AddressPrefix, Failures>>);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// When the count resets, or the lockout ends.
    until: Instant,
}

// === impl Lockout ===

impl Lockout {
    /// Returns how long the address is still locked out, if it is.
    pub(super) fn remaining(&self, from: IpAddr, now: Instant) -> Option<Duration> {
        let all = self.lock();
        let locked = |(home, times)| {
            let failures = all.get(&home)?;
            let rest = failures.until.saturating_duration_since(now);
            (failures.count >= failure_limit(times) && !rest.is_zero()).then_some(rest)
        };
        AddressPrefix::containing(from).filter_map(locked).max()
    }

    /// Records a bad credential from an address. Returns the network that is locked out by it, if one is.
    pub(super) fn record_failure(&self, from: IpAddr, now: Instant) -> Option<AddressPrefix> {
        let mut all = self.lock();
        let mut over = None;
        for (home, times) in AddressPrefix::containing(from) {
            if count_failure(&mut all, home, failure_limit(times), now) {
                over = Some(home);
            }
        }
        over
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<AddressPrefix, Failures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of failures that locks out a network with this allowance, a multiple of one address's.
fn failure_limit(times: usize) -> u32 {
    limits::AUTH_FAILURES_MAX.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX))
}

/// Records one failure of a network; returns true if it locks the network out.
fn count_failure(all: &mut BTreeMap<AddressPrefix, Failures>, home: AddressPrefix, most: u32, now: Instant) -> bool {
    let is_full = all.len() >= limits::AUTH_FAILURES_ADDRESSES_MAX && !planted(Planted::LockoutTableUnbounded);
    if !all.contains_key(&home) && is_full {
        all.retain(|_, failures| failures.until > now);
        if all.len() >= limits::AUTH_FAILURES_ADDRESSES_MAX {
            return false;
        }
    }
    let fresh = Failures { count: 0, until: now + limits::AUTH_FAILURES_WINDOW };
    let failures = all.entry(home).or_insert(fresh);
    if failures.until <= now {
        *failures = fresh;
    }
    failures.count += 1;
    let most = if planted(Planted::LockoutDoubled) { most * 2 } else { most };
    let is_over = failures.count == most;
    if is_over {
        failures.until = now + limits::AUTH_LOCK;
    }
    is_over
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Covers: S-05.
    #[test]
    fn ten_failures_in_a_minute_lock_out_for_five() {
        let lockout = Lockout::default();
        let from = ip("192.0.2.7");
        let begun = Instant::now();
        let mut is_over = false;
        for _ in 0..limits::AUTH_FAILURES_MAX {
            assert_eq!(lockout.remaining(from, begun), None);
            is_over = lockout.record_failure(from, begun).is_some();
        }
        assert!(is_over);
        assert_eq!(lockout.remaining(from, begun), Some(limits::AUTH_LOCK));
        assert_eq!(lockout.remaining(ip("192.0.2.8"), begun), None);
        // A failure that was in flight when the lockout began does not extend it.
        lockout.record_failure(from, begun);
        let end = begun + limits::AUTH_LOCK;
        assert_eq!(lockout.remaining(from, end - Duration::from_secs(1)), Some(Duration::from_secs(1)));
        assert_eq!(lockout.remaining(from, end), None);
        lockout.record_failure(from, end);
        assert_eq!(lockout.remaining(from, end), None, "it begins anew");
    }

    /// Covers: S-05.
    #[test]
    fn occasional_failures_do_not_lock_out() {
        let lockout = Lockout::default();
        let from = ip("192.0.2.7");
        let mut now = Instant::now();
        for _ in 0..50 {
            lockout.record_failure(from, now);
            assert_eq!(lockout.remaining(from, now), None);
            now += limits::AUTH_FAILURES_WINDOW / 5;
        }
    }

    /// Covers: S-05.
    #[test]
    fn lockout_covers_the_larger_ipv6_prefixes() {
        let lockout = Lockout::default();
        let now = Instant::now();
        let at = |site: usize, n: usize| ip(&format!("2001:db8:{site:x}:{n:x}::1"));
        let guesses = |next: &dyn Fn(usize) -> IpAddr| {
            let mut count = 0;
            while lockout.remaining(next(count), now).is_none() {
                lockout.record_failure(next(count), now);
                count += 1;
            }
            count
        };
        // A new /64 each time within one /56, then a new /56 each time within one /48.
        assert_eq!(guesses(&|n| at(1, n % 256)), 40);
        assert_eq!(guesses(&|n| at(1, n << 8 & 0xff00 | 0x10000 >> 8)), 120);
        assert!(lockout.remaining(at(1, 0xabcd), now).is_some());
        assert_eq!(lockout.remaining(at(2, 0), now), None, "others are not concerned");
    }

    /// Covers: S-05.
    #[test]
    fn lockout_table_is_bounded() {
        let lockout = Lockout::default();
        let now = Instant::now();
        let four = |n: usize| ip(&format!("10.0.{}.{}", n >> 8, n & 0xff));
        for n in 0..limits::AUTH_FAILURES_ADDRESSES_MAX + 10 {
            lockout.record_failure(four(n), now);
        }
        assert_eq!(lockout.lock().len(), limits::AUTH_FAILURES_ADDRESSES_MAX);
        lockout.record_failure(ip("192.0.2.7"), now + limits::AUTH_FAILURES_WINDOW);
        assert_eq!(lockout.lock().len(), 1, "what is over is forgotten");
    }
}

//! Locks out addresses that send many bad credentials (S-05): their requests and connections are refused for a while.
//! Called by the address limiter.
use super::address_prefix::AddressPrefix;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};

/// Recent authentication failures of each address and network.
#[derive(Debug, Default)]
pub(super) struct Lockout(Mutex<FailureTable>);

/// The failures of each network. The index finds the entry that ends first: an attacker with many addresses fills the
/// table, and a scan for ended entries would then delay every failure of every address.
#[derive(Debug, Default)]
struct FailureTable {
    by_network: BTreeMap<AddressPrefix, Failures>,
    /// Each entry of `by_network` once.
    by_end: BTreeSet<(Instant, AddressPrefix)>,
}

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
            let failures = all.by_network.get(&home)?;
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
            if all.count_failure(home, failure_limit(times), now) {
                over = Some(home);
            }
        }
        over
    }

    fn lock(&self) -> MutexGuard<'_, FailureTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl FailureTable ===

impl FailureTable {
    /// Records one failure of a network; returns true if it locks the network out.
    fn count_failure(&mut self, home: AddressPrefix, most: u32, now: Instant) -> bool {
        let known = self.by_network.get(&home).copied();
        if known.is_none() && !self.make_room(now) {
            return false;
        }
        let fresh = Failures { count: 0, until: now + limits::AUTH_FAILURES_WINDOW };
        let mut failures = known.filter(|known| known.until > now).unwrap_or(fresh);
        failures.count += 1;
        let most = if planted(Planted::LockoutDoubled) { most * 2 } else { most };
        let is_over = failures.count == most;
        if is_over {
            failures.until = now + limits::AUTH_LOCK;
        }
        if let Some(before) = self.by_network.insert(home, failures) {
            self.by_end.remove(&(before.until, home));
        }
        self.by_end.insert((failures.until, home));
        is_over
    }

    /// Returns whether the table has room for another network. A full table drops the entry that ends first, if it has
    /// ended: never more than one, so that the cost of a failure does not grow with the number of ended entries.
    fn make_room(&mut self, now: Instant) -> bool {
        let is_full = self.by_network.len() >= limits::AUTH_FAILURES_ADDRESSES_MAX;
        if !is_full || planted(Planted::LockoutTableUnbounded) {
            return true;
        }
        let Some(first) = self.by_end.first().copied().filter(|(until, _)| *until <= now) else { return false };
        self.by_end.remove(&first);
        self.by_network.remove(&first.1);
        true
    }
}

/// Returns the number of failures that locks out a network with this allowance, a multiple of one address's.
fn failure_limit(times: usize) -> u32 {
    limits::AUTH_FAILURES_MAX.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Returns the number of entries of the table and of its index.
    fn sizes(lockout: &Lockout) -> [usize; 2] {
        let all = lockout.lock();
        [all.by_network.len(), all.by_end.len()]
    }

    /// Returns the address with this number.
    fn numbered(n: usize) -> IpAddr {
        ip(&format!("10.0.{}.{}", n >> 8, n & 0xff))
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
        for n in 0..limits::AUTH_FAILURES_ADDRESSES_MAX + 10 {
            lockout.record_failure(numbered(n), now);
        }
        assert_eq!(sizes(&lockout), [limits::AUTH_FAILURES_ADDRESSES_MAX; 2]);
    }

    /// A scan of the full table would drop all ended entries at once.
    ///
    /// Covers: S-05.
    #[test]
    fn failure_at_a_full_table_drops_one_ended_entry() {
        let lockout = Lockout::default();
        let now = Instant::now();
        for n in 0..limits::AUTH_FAILURES_ADDRESSES_MAX {
            lockout.record_failure(numbered(n), now);
        }
        let from = ip("192.0.2.7");
        let later = now + limits::AUTH_FAILURES_WINDOW;
        for count in 1..=limits::AUTH_FAILURES_MAX {
            let over = lockout.record_failure(from, later);
            assert_eq!(over.is_some(), count == limits::AUTH_FAILURES_MAX, "the failure of a new address is counted");
            assert_eq!(sizes(&lockout), [limits::AUTH_FAILURES_ADDRESSES_MAX; 2]);
        }
    }

    /// Covers: S-05.
    #[test]
    fn full_table_drops_the_entry_that_ends_first() {
        let lockout = Lockout::default();
        let now = Instant::now();
        let locked = numbered(0);
        for _ in 0..limits::AUTH_FAILURES_MAX {
            lockout.record_failure(locked, now);
        }
        for n in 1..limits::AUTH_FAILURES_ADDRESSES_MAX {
            lockout.record_failure(numbered(n), now + Duration::from_secs(1));
        }
        let later = now + limits::AUTH_FAILURES_WINDOW;
        lockout.record_failure(ip("192.0.2.7"), later);
        let homes = |all: &FailureTable| {
            [ip("192.0.2.7"), locked, numbered(1)]
                .map(|of| AddressPrefix::containing(of).all(|(home, _)| all.by_network.contains_key(&home)))
        };
        assert_eq!(homes(&lockout.lock()), [false, true, true], "nothing has ended");
        lockout.record_failure(ip("192.0.2.7"), later + Duration::from_secs(1));
        assert_eq!(homes(&lockout.lock()), [true, true, false], "the lockout outlasts the older count");
        assert!(lockout.remaining(locked, later + Duration::from_secs(1)).is_some());
    }
}

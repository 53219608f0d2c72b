//! Limits the connections from each address (S-16), because one address could otherwise take all connection slots, and
//! applies the lockout of addresses that send bad credentials (S-05). Called by the listeners.
use super::address_prefix::AddressPrefix;
use super::lockout::Lockout;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};

/// Connections by network. A network without connections has no entry.
type ConnectionCounts = Mutex<BTreeMap<AddressPrefix, usize>>;

/// A limiter of connections by address.
#[derive(Clone, Debug, Default)]
pub struct AddressLimiter {
    /// Maximum connections of one address; `None` is unlimited.
    limit: Option<usize>,
    /// True if loopback addresses are counted too.
    counts_local: bool,
    counts: Arc<ConnectionCounts>,
    lockout: Arc<Lockout>,
    lockout_policy: LockoutPolicy,
}

/// The origins whose bad credentials are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockoutPolicy {
    /// Not counted: many clients share one address.
    #[default]
    Off,
    /// Other machines, and web pages in browsers of this machine.
    RemoteAndPages,
    /// Other machines only. Loopback connections come from a proxy and may be any client.
    Remote,
    /// Every origin, loopback included.
    All,
}

/// A counted connection; dropping it releases its count.
#[derive(Debug)]
pub struct AddressPermit {
    address: IpAddr,
    /// `None` if the connection is not counted.
    counts: Option<Arc<ConnectionCounts>>,
    /// The lockout that its failures count towards.
    lockout: (LockoutPolicy, Arc<Lockout>),
}

// === impl AddressLimiter ===

impl AddressLimiter {
    /// Creates a limiter without connections.
    pub fn new(limit: Option<usize>, counts_local: bool, lockout_policy: LockoutPolicy) -> Self {
        Self { limit, counts_local, counts: Arc::default(), lockout: Arc::default(), lockout_policy }
    }

    /// Counts a connection from this address, or returns `None` if the address has too many.
    pub fn try_acquire(&self, from: IpAddr) -> Option<AddressPermit> {
        let from = AddressPrefix::narrowest(from);
        let lockout = (self.lockout_policy, Arc::clone(&self.lockout));
        let Some(most) = self.limit.filter(|_| self.counts_local || !from.is_loopback()) else {
            return Some(AddressPermit { address: from, counts: None, lockout });
        };
        let mut inside = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let most = if planted(Planted::AddressBoundDoubled) { most * 2 } else { most };
        let is_full = |(home, times)| inside.get(&home).is_some_and(|count| *count >= most.saturating_mul(times));
        if AddressPrefix::containing(from).any(is_full) {
            return None;
        }
        for (home, _) in AddressPrefix::containing(from) {
            *inside.entry(home).or_default() += 1;
        }
        Some(AddressPermit { address: from, counts: Some(Arc::clone(&self.counts)), lockout })
    }

    /// Admits a connection through a proxy that does not name its clients. Neither the connection nor its failures
    /// count.
    pub fn acquire_uncounted(&self, from: IpAddr) -> AddressPermit {
        AddressPermit {
            address: AddressPrefix::narrowest(from),
            counts: None,
            lockout: (LockoutPolicy::Off, Arc::clone(&self.lockout)),
        }
    }
}

// === impl AddressPermit ===

impl AddressPermit {
    /// Returns how long credentials from this address are still refused, if they are.
    pub fn lockout_remaining(&self, is_page: bool) -> Option<Duration> {
        self.lockout(is_page)?.remaining(self.address, Instant::now())
    }

    /// Records a bad credential.
    pub fn record_failure(&self, is_page: bool) {
        let over = self.lockout(is_page).and_then(|lockout| lockout.record_failure(self.address, Instant::now()));
        if let Some(address) = over {
            let minutes = limits::AUTH_LOCK.as_secs() / 60;
            tracing::warn!(%address, minutes, "too many invalid credentials from this address: it is locked out");
        }
    }

    /// Returns true if bad credentials of this connection are counted.
    pub fn counts_failures(&self, is_page: bool) -> bool {
        self.lockout(is_page).is_some()
    }

    fn lockout(&self, is_page: bool) -> Option<&Lockout> {
        let (locks, lockout) = &self.lockout;
        let is_watched = match locks {
            LockoutPolicy::Off => false,
            LockoutPolicy::RemoteAndPages => is_page || !self.address.is_loopback(),
            LockoutPolicy::Remote => !self.address.is_loopback(),
            LockoutPolicy::All => true,
        };
        is_watched.then_some(lockout)
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let Some(inside) = &self.counts else { return };
        if planted(Planted::AddressNeverReleased) {
            return;
        }
        let mut inside = inside.lock().unwrap_or_else(PoisonError::into_inner);
        for (home, _) in AddressPrefix::containing(self.address) {
            match inside.get_mut(&home) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) | None => _ = inside.remove(&home),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Covers: S-16.
    #[test]
    fn connections_per_address_are_limited_until_one_closes() {
        let limiter = AddressLimiter::new(Some(2), false, LockoutPolicy::Off);
        let first = limiter.try_acquire(ip("192.0.2.7")).expect("room");
        let second = limiter.try_acquire(ip("::ffff:192.0.2.7")).expect("room");
        assert!(limiter.try_acquire(ip("192.0.2.7")).is_none());
        let other = limiter.try_acquire(ip("192.0.2.8")).expect("others are not concerned");
        drop(first);
        let third = limiter.try_acquire(ip("192.0.2.7")).expect("room again");
        drop((second, third, other));
        assert!(limiter.counts.lock().expect("sound").is_empty(), "nothing is kept of who has left");
    }

    /// Covers: S-16.
    #[test]
    fn ipv6_network_counts_as_one_address() {
        let limiter = AddressLimiter::new(Some(1), false, LockoutPolicy::Off);
        let _one = limiter.try_acquire(ip("2001:db8:1:2::1")).expect("room");
        assert!(limiter.try_acquire(ip("2001:db8:1:2:ffff::9")).is_none());
        assert!(limiter.try_acquire(ip("2001:db8:1:3::1")).is_some());
    }

    /// Covers: S-16.
    #[test]
    fn larger_ipv6_prefixes_have_sublinear_limits() {
        let limiter = AddressLimiter::new(Some(2), false, LockoutPolicy::Off);
        let at = |site: u32, n: u32| ip(&format!("2001:db8:{site:x}:{n:x}::1"));
        let fill = |all: &mut dyn Iterator<Item = IpAddr>| all.filter_map(|from| limiter.try_acquire(from)).collect();
        // From 256 networks within one /56, then from 65,536 within one /48.
        let one: Vec<_> = fill(&mut (0..256).map(|n| at(1, n)));
        assert_eq!(one.len(), 8);
        let more: Vec<_> = fill(&mut (0..65_536).map(|n| at(1, n)));
        assert_eq!(one.len() + more.len(), 32);
        assert!(limiter.try_acquire(at(2, 0)).is_some(), "others are not concerned");
        drop(one);
        assert!(limiter.try_acquire(at(1, 7)).is_some(), "who leaves makes room");
        drop(more);
        assert!(limiter.counts.lock().expect("sound").is_empty());
    }

    /// Covers: S-16.
    #[test]
    fn loopback_addresses_are_counted_only_if_configured() {
        let spares = AddressLimiter::new(Some(1), false, LockoutPolicy::Off);
        let counts = AddressLimiter::new(Some(1), true, LockoutPolicy::Off);
        let _inside = ["127.0.0.1", "127.0.0.1", "::1", "::1"].map(|own| spares.try_acquire(ip(own)).expect("room"));
        let _one = counts.try_acquire(ip("127.0.0.1")).expect("room");
        assert!(counts.try_acquire(ip("127.0.0.1")).is_none());
        assert!(AddressLimiter::new(None, true, LockoutPolicy::Off).try_acquire(ip("192.0.2.7")).is_some());
    }
}

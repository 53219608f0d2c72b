//! Decides which clients must prove their address before a handshake (S-18). The proof costs a real client one round
//! trip, and a client with a forged source address cannot give it; so it is required where many clients arrive.
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use turnway_core::time::Mono;

/// Maximum unfinished handshakes, each of which may have a forged source address.
const HALF_OPEN_MAX: usize = 1000;
/// Maximum new connections from one prefix within [`WINDOW`].
const PREFIX_MAX: u32 = 50;
/// Period over which connections are counted.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum counted prefixes; above it every new prefix must prove its address.
const PREFIXES_MAX: usize = 4096;
/// Bits of an IPv4 prefix, about an office or a house.
const IPV4_PREFIX_BITS: u32 = 24;
const IPV6_PREFIX_BITS: u32 = 56;

/// A counter of new connections.
#[derive(Debug, Default)]
pub(super) struct AddressValidation {
    half_open: Arc<()>,
    since: Mono,
    prefixes: BTreeMap<IpAddr, u32>,
}

/// An unfinished handshake; counted until dropped.
#[derive(Debug)]
pub(super) struct HalfOpen(#[expect(dead_code, reason = "it is counted as long as it lives")] Arc<()>);

// === impl AddressValidation ===

impl AddressValidation {
    /// Counts a connection from this address; returns true if the client must prove its address.
    pub(super) fn record_connection(&mut self, from: IpAddr, now: Mono) -> bool {
        if now - self.since >= WINDOW {
            self.since = now;
            self.prefixes.clear();
        }
        let prefix = prefix(from);
        if !self.prefixes.contains_key(&prefix) && self.prefixes.len() >= PREFIXES_MAX {
            return true;
        }
        let count = self.prefixes.entry(prefix).or_default();
        *count = count.saturating_add(1);
        *count > PREFIX_MAX || Arc::strong_count(&self.half_open) > HALF_OPEN_MAX
    }

    /// Counts an unfinished handshake.
    pub(super) fn start_handshake(&self) -> HalfOpen {
        HalfOpen(Arc::clone(&self.half_open))
    }
}

fn prefix(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(four) => {
            Ipv4Addr::from_bits(four.to_bits() >> (32 - IPV4_PREFIX_BITS) << (32 - IPV4_PREFIX_BITS)).into()
        }
        IpAddr::V6(six) => {
            Ipv6Addr::from_bits(six.to_bits() >> (128 - IPV6_PREFIX_BITS) << (128 - IPV6_PREFIX_BITS)).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Covers: S-18.
    #[test]
    fn crowded_prefix_needs_address_validation_for_a_second() {
        let mut pace = AddressValidation::default();
        let now = Mono::default() + Duration::from_secs(9);
        for n in 0..PREFIX_MAX {
            assert!(!pace.record_connection(ip(&format!("192.0.2.{n}")), now));
        }
        assert!(pace.record_connection(ip("192.0.2.200"), now));
        assert!(!pace.record_connection(ip("192.0.3.200"), now));
        assert!(!pace.record_connection(ip("192.0.2.200"), now + WINDOW));
        for n in 0..PREFIX_MAX {
            assert!(!pace.record_connection(ip(&format!("2001:db8:1:1::{n:x}")), now + WINDOW));
        }
        assert!(pace.record_connection(ip("2001:db8:1:2::"), now + WINDOW));
    }

    /// Covers: S-18.
    #[test]
    fn many_open_handshakes_require_address_validation() {
        let mut pace = AddressValidation::default();
        let now = Mono::default() + Duration::from_secs(9);
        let mut open: Vec<HalfOpen> = (0..HALF_OPEN_MAX).map(|_| pace.start_handshake()).collect();
        assert!(pace.record_connection(ip("192.0.2.1"), now));
        open.pop();
        assert!(!pace.record_connection(ip("192.0.3.1"), now));
    }

    /// Covers: S-18.
    #[test]
    fn counted_prefixes_are_bounded() {
        let mut pace = AddressValidation::default();
        let now = Mono::default() + Duration::from_secs(9);
        let six = |n: usize| ip(&format!("2001:db8:{n:x}::1"));
        assert!((0..PREFIXES_MAX).all(|n| !pace.record_connection(six(n), now)));
        assert!(pace.record_connection(six(PREFIXES_MAX), now) && !pace.record_connection(six(1), now));
        assert_eq!(pace.prefixes.len(), PREFIXES_MAX);
    }
}

//! Maps an address to the networks in which it is counted, since one owner may have many addresses. Called by the
//! address limiter and the lockout.
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use turnway_core::planted::{Planted, planted};

/// IPv6 prefix lengths, each with its allowance as a multiple of one address's. Providers give a customer a /64, a /56
/// or a /48 (RFC 6177), so that the owner of a /48 would otherwise count as 65,536 addresses. Strangers share wider
/// prefixes, and sometimes these too; so the allowance grows, but more slowly than the number of addresses.
const IPV6_PREFIXES: [(u8, usize); 3] = [(64, 1), (56, 4), (48, 16)];
/// The prefix length of a single address.
const ADDRESS_BITS: u8 = 128;

/// A network, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AddressPrefix {
    address: IpAddr,
    bits: u8,
}

// === impl AddressPrefix ===

impl AddressPrefix {
    /// Returns each network in which an address is counted, the widest first, with its allowance as a multiple of the
    /// usual one.
    pub(super) fn containing(address: IpAddr) -> impl Iterator<Item = (Self, usize)> {
        let address = address.to_canonical();
        let is_six = address.is_ipv6() && !address.is_loopback();
        let wide = IPV6_PREFIXES
            .iter()
            .rev()
            .filter(move |(bits, _)| is_six && (*bits == 64 || !planted(Planted::WideNetsUncounted)))
            .map(move |(bits, times)| (Self::truncate(address, *bits), *times));
        let whole = (!is_six).then_some((Self { address, bits: ADDRESS_BITS }, 1));
        wide.chain(whole)
    }

    /// Returns the narrowest of these networks, as an address.
    pub(super) fn narrowest(address: IpAddr) -> IpAddr {
        let last = Self::containing(address).last();
        last.map_or(address, |(home, _)| home.address)
    }

    fn truncate(address: IpAddr, bits: u8) -> Self {
        let address = match address {
            IpAddr::V4(four) => four.into(),
            IpAddr::V6(six) => {
                let rest = u32::from(ADDRESS_BITS - bits);
                Ipv6Addr::from_bits(six.to_bits() >> rest << rest).into()
            }
        };
        Self { address, bits }
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            ADDRESS_BITS => write!(f, "{}", self.address),
            bits => write!(f, "{}/{bits}", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-05, S-16.
    #[test]
    fn address_is_counted_under_each_of_its_prefixes() {
        let all = |text: &str| {
            let homes = AddressPrefix::containing(text.parse().expect("an address"));
            homes.map(|(home, times)| format!("{home} {times}")).collect::<Vec<_>>()
        };
        let six = ["2001:db8:1::/48 16", "2001:db8:1:ab00::/56 4", "2001:db8:1:abcd::/64 1"];
        assert_eq!(all("2001:db8:1:abcd:1:2:3:4"), six);
        assert_eq!(all("192.0.2.7"), ["192.0.2.7 1"]);
        assert_eq!(all("::ffff:192.0.2.7"), ["192.0.2.7 1"]);
        assert_eq!(all("::1"), ["::1 1"]);
    }
}

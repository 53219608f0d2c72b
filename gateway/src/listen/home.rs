//! What counts as one address, and as several of one owner.
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use turnway_core::planted::{Planted, planted};

/// Prefixes of version 6, and how many times what one address may they may: what providers give to one customer is
/// a /64, a /56 or a /48 (RFC 6177), so whoever has a /48 would else be 65,536. Wider ones are shared by strangers, and
/// so may these be now and then: hence the allowance, which grows more slowly than they do.
const SIX: [(u8, usize); 3] = [(64, 1), (56, 4), (48, 16)];
/// One address and no more.
const WHOLE: u8 = 128;

/// A network, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Home {
    address: IpAddr,
    bits: u8,
}

// === impl Home ===

impl Home {
    /// Everything that an address is counted in, and how many times the usual allowance that has; the widest first.
    pub(super) fn all(address: IpAddr) -> impl Iterator<Item = (Self, usize)> {
        let address = address.to_canonical();
        let is_six = address.is_ipv6() && !address.is_loopback();
        let wide = SIX
            .iter()
            .rev()
            .filter(move |(bits, _)| is_six && (*bits == 64 || !planted(Planted::WideNetsUncounted)))
            .map(move |(bits, times)| (Self::of(address, *bits), *times));
        let whole = (!is_six).then_some((Self { address, bits: WHOLE }, 1));
        wide.chain(whole)
    }

    /// The narrowest of them.
    pub(super) fn own(address: IpAddr) -> IpAddr {
        let last = Self::all(address).last();
        last.map_or(address, |(home, _)| home.address)
    }

    fn of(address: IpAddr, bits: u8) -> Self {
        let address = match address {
            IpAddr::V4(four) => four.into(),
            IpAddr::V6(six) => {
                let rest = u32::from(WHOLE - bits);
                Ipv6Addr::from_bits(six.to_bits() >> rest << rest).into()
            }
        };
        Self { address, bits }
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            WHOLE => write!(f, "{}", self.address),
            bits => write!(f, "{}/{bits}", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-05, S-16.
    #[test]
    fn an_address_is_counted_in_what_its_owner_may_have() {
        let all = |text: &str| {
            let homes = Home::all(text.parse().expect("an address"));
            homes.map(|(home, times)| format!("{home} {times}")).collect::<Vec<_>>()
        };
        let six = ["2001:db8:1::/48 16", "2001:db8:1:ab00::/56 4", "2001:db8:1:abcd::/64 1"];
        assert_eq!(all("2001:db8:1:abcd:1:2:3:4"), six);
        assert_eq!(all("192.0.2.7"), ["192.0.2.7 1"]);
        assert_eq!(all("::ffff:192.0.2.7"), ["192.0.2.7 1"]);
        assert_eq!(all("::1"), ["::1 1"]);
    }
}

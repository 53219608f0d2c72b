//! IP networks as operators write them: `10.0.0.0/8, 2001:db8::/32, 127.0.0.1`.
use std::net::IpAddr;

/// Maximum entries of a list; lists are typed by people.
const LIST_MAX: usize = 64;

/// A range of addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    bits: u32,
}

/// A list of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<Network>);

// === impl Networks ===

impl Networks {
    /// Parses addresses and networks with commas between them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = "expected addresses or networks with commas between them, such as 10.0.0.0/8,2001:db8::7";
        let all: Option<Vec<Network>> = text.split(',').map(|item| Network::parse(item.trim())).collect();
        let all = all.ok_or(bad)?;
        if all.len() > LIST_MAX { Err(format!("expected at most {LIST_MAX} of them")) } else { Ok(Self(all)) }
    }

    /// Returns whether the address is in one of the networks.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address))
    }
}

// === impl Network ===

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                (address, Some(bits.parse().ok()?))
            }
            Some(_) => return None,
            None => (text, None),
        };
        let first: IpAddr = address.parse().ok()?;
        let most = address_width(first);
        let bits: u32 = bits.unwrap_or(most);
        // An IPv4-mapped address would never match, because peers' addresses are compared as IPv4.
        let is_sound = bits <= most && first.to_canonical() == first;
        // A bit that is set behind the prefix is a mistake.
        (is_sound && address_bits(first) & host_mask(bits, most) == 0).then_some(Self { first, bits })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let most = address_width(address);
        most == address_width(self.first)
            && (address_bits(self.first) ^ address_bits(address)) & !host_mask(self.bits, most) == 0
    }
}

fn address_width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(four) => four.to_bits().into(),
        IpAddr::V6(six) => six.to_bits(),
    }
}

/// Returns a mask of the bits behind the prefix.
fn host_mask(bits: u32, most: u32) -> u128 {
    1u128.checked_shl(most - bits).map_or(u128::MAX, |one| one - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: S-49.
    #[test]
    fn network_contains_addresses_with_its_prefix() {
        let some = Networks::parse("10.0.0.0/8, 192.0.2.7,2001:db8::/32,::1").expect("networks");
        for inside in ["10.0.0.0", "10.255.255.255", "192.0.2.7", "2001:db8:ffff::1", "::1", "::ffff:10.1.2.3"] {
            assert!(some.contains(inside.parse().expect("an address")), "{inside}");
        }
        for outside in ["9.255.255.255", "11.0.0.0", "192.0.2.6", "2001:db9::", "::2", "::a00:1", "127.0.0.1"] {
            assert!(!some.contains(outside.parse().expect("an address")), "{outside}");
        }
        let all = Networks::parse("0.0.0.0/0,::/0").expect("networks");
        assert!(all.contains(IpAddr::from([1, 2, 3, 4])) && all.contains(IpAddr::from([7; 16])));
        assert!(!Networks::default().contains(IpAddr::from([127, 0, 0, 1])));
    }

    #[test]
    fn invalid_network_is_rejected() {
        let many = ["10.0.0.1"; LIST_MAX + 1].join(",");
        for bad in [
            "",
            ",",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10/8",
            "::/129",
            "2001:db8::1/32",
            "::ffff:10.0.0.1",
            "localhost",
            "10.0.0.1:80",
            "10.0.0.0/8 10.0.0.1",
            &many,
        ] {
            assert!(Networks::parse(bad).is_err(), "{bad}");
        }
    }
}

//! Which addresses may be called.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// A range of addresses, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    bits: u8,
}

/// The text is not a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no range of addresses such as 10.0.0.0/8 or fd00::/8")]
pub struct NetworkError(String);

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (base, bits) = text.split_once('/').ok_or_else(wrong)?;
        let base: IpAddr = base.parse().map_err(|_| wrong())?;
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        let bits_max = if base.is_ipv4() { 32 } else { 128 };
        (bits <= bits_max)
            .then_some(Self { base, bits })
            .ok_or_else(wrong)
    }
}

impl Network {
    /// Returns whether an address is in the range. An IPv4 address in the form of IPv6 is the IPv4
    /// address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                (base.to_bits() ^ address.to_bits()) & mask == 0
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.bits))
                    .unwrap_or(0);
                (base.to_bits() ^ address.to_bits()) & mask == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

/// What the operator lets planes call beside the public Internet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// The addresses of a range, or one address.
    Network(Network),
    /// The server of this name, in small letters, whatever its addresses are.
    Host(String),
}

/// The text names neither addresses nor a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither a range of addresses such as 10.0.0.0/8, nor an address, nor the name of a host"
)]
pub struct AllowedError(String);

impl FromStr for Allowed {
    type Err = AllowedError;

    fn from_str(text: &str) -> Result<Self, AllowedError> {
        if let Ok(network) = text.parse() {
            return Ok(Self::Network(network));
        }
        if let Ok(base) = text.parse::<IpAddr>() {
            let bits = if base.is_ipv4() { 32 } else { 128 };
            return Ok(Self::Network(Network { base, bits }));
        }
        let is_part = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        // A text of numbers alone would be an address with a mistake.
        let is_name =
            text.split('.').all(is_part) && text.bytes().any(|byte| byte.is_ascii_alphabetic());
        match is_name {
            true => Ok(Self::Host(text.to_ascii_lowercase())),
            false => Err(AllowedError(text.to_owned())),
        }
    }
}

/// Which addresses a plane's targets may have.
#[derive(Clone, Debug)]
pub enum Reach {
    /// All: the operator has named the targets.
    Anywhere,
    /// Global unicast addresses, and the ranges that the operator allows.
    Public(Arc<[Network]>),
}

impl Reach {
    /// Returns whether an address may be called.
    #[must_use]
    pub fn allows(&self, address: IpAddr) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Public(allowed) => {
                is_global_unicast(address) || allowed.iter().any(|one| one.contains(address))
            }
        }
    }
}

/// Returns whether an address belongs to one machine of the public Internet. Addresses that stand for
/// an IPv4 address (mapped, translated, 6to4, Teredo) could lead to any IPv4 address, so only the
/// first kind is looked into, and the others are refused.
#[must_use]
pub fn is_global_unicast(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_global_v4(address),
        IpAddr::V6(address) => is_global_v6(address),
    }
}

/// Ranges of IPv4 that are no machine's of the public Internet, by RFC 6890 and its successors.
const SPECIAL_V4: [([u8; 4], u8); 15] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    // Multicast, reserved, broadcast.
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

fn is_global_v4(address: Ipv4Addr) -> bool {
    SPECIAL_V4.iter().all(|(base, bits)| {
        let special = Network {
            base: IpAddr::V4(Ipv4Addr::from(*base)),
            bits: *bits,
        };
        !special.contains(IpAddr::V4(address))
    })
}

fn is_global_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let is_assigned = first & 0xe000 == 0x2000;
    // 2001::/23 has Teredo and other protocols, 2001:db8::/32 and 3fff::/20 documentation, 2002::/16
    // 6to4.
    let is_special = match first {
        0x2001 => second < 0x0200 || second == 0x0db8,
        0x2002 => true,
        0x3fff => second < 0x1000,
        _ => false,
    };
    is_assigned && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn only_addresses_of_the_public_internet_are_global_unicast() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_global_unicast(address(text)), "{text}");
        }
        for text in [
            "0.0.0.0",
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.100.100.200",
            "0.1.2.3",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "203.0.113.1",
            "240.0.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::7f00:1",
            "64:ff9b::a00:1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
        ] {
            assert!(!is_global_unicast(address(text)), "{text}");
        }
    }

    #[test]
    fn what_is_allowed_is_a_range_an_address_or_a_host() {
        let network = |text: &str| Ok(Allowed::Network(text.parse().expect(text)));
        let host = |text: &str| Ok(Allowed::Host(text.to_owned()));
        for (text, allowed) in [
            ("10.0.0.0/8", network("10.0.0.0/8")),
            ("10.1.2.3", network("10.1.2.3/32")),
            ("::1", network("::1/128")),
            ("Issuer.Corp.example", host("issuer.corp.example")),
            ("localhost", host("localhost")),
        ] {
            assert_eq!(text.parse(), allowed, "{text}");
        }
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0",
            "a..b",
            "https://h",
            "h:443",
            "*.h",
            "a b",
        ] {
            assert!(text.parse::<Allowed>().is_err(), "{text}");
        }
    }

    #[test]
    fn allowed_ranges_add_to_the_public_internet() {
        let ranges = ["10.1.0.0/16", "fd00::/8", "127.0.0.1/32"];
        let ranges: Arc<[Network]> = ranges.map(|text| text.parse().expect(text)).into();
        let reach = Reach::Public(ranges);
        for (text, allowed) in [
            ("10.1.255.1", true),
            ("10.2.0.1", false),
            ("fd12::1", true),
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("127.0.0.2", false),
            ("8.8.8.8", true),
        ] {
            assert_eq!(reach.allows(address(text)), allowed, "{text}");
        }
        assert!(Reach::Anywhere.allows(address("127.0.0.2")));
        for text in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "a/8", "10.0.0.0/x"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        let all: Network = "0.0.0.0/0".parse().expect("all of IPv4");
        assert!(all.contains(address("9.9.9.9")));
    }
}

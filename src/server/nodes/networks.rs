//! Which addresses may be connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The networks that may be reached beside public addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<Network>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    base: IpAddr,
    bits: u8,
}

/// An error: a text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network: give an address and the length of its prefix, such as 10.0.0.0/8")]
pub struct NetworkError(String);

impl Networks {
    /// Reads networks such as `10.0.0.0/8` and `fd00::/8`.
    ///
    /// # Errors
    /// Returns an error for the first text that is not a network.
    pub fn parse(texts: &[String]) -> Result<Self, NetworkError> {
        let all = texts.iter().map(|text| text.parse());
        all.collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether this server may connect to an address.
    pub(super) fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address)) || is_public(address)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let parsed = text.split_once('/').and_then(|(base, bits)| {
            let base: IpAddr = base.parse().ok()?;
            let bits: u8 = bits.parse().ok()?;
            let most = if base.is_ipv4() { 32 } else { 128 };
            (bits <= most).then_some(Self { base, bits })
        });
        parsed.ok_or_else(|| NetworkError(text.to_owned()))
    }
}

impl Network {
    fn contains(self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let differs = base.to_bits() ^ address.to_bits();
                differs.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let differs = base.to_bits() ^ address.to_bits();
                differs.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// Returns whether an address belongs to a host on the public internet, as far as its form says.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_of_protocols = (a, b, c) == (192, 0, 0);
    let is_for_benchmarks = a == 198 && (b == 18 || b == 19);
    let is_relay = (a, b, c) == (192, 88, 99);
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || address.is_multicast();
    !(is_special || is_shared || is_of_protocols || is_for_benchmarks || is_relay)
        && (1..240).contains(&a)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    // Only this eighth of the space is assigned. Left out are parts of it that contain an IPv4 address
    // or belong to protocols and to documentation.
    let is_global = first & 0xe000 == 0x2000;
    let is_documentation = (first, second) == (0x2001, 0xdb8) || first == 0x3fff && second < 0x1000;
    let is_of_protocols = first == 0x2001 && second < 0x200;
    is_global && !is_documentation && !is_of_protocols && first != 0x2002
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn without_a_list_only_public_addresses_are_reached() {
        let none = Networks::default();
        for text in [
            "8.8.8.8",
            "1.1.1.1",
            "203.0.114.1",
            "2606:4700::1111",
            "2a00::1",
        ] {
            assert!(none.allows(ip(text)), "{text}");
        }
        for text in [
            "127.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "100.100.100.200",
            "169.254.169.254",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!none.allows(ip(text)), "{text}");
        }
    }

    #[test]
    fn a_listed_network_is_reached_and_no_other() {
        let texts = ["10.1.0.0/16", "127.0.0.1/32", "fd00::/8", "0.0.0.0/0"].map(str::to_owned);
        let listed = Networks::parse(&texts[..3]).expect("networks");
        for text in ["10.1.2.3", "::ffff:10.1.2.3", "127.0.0.1", "fd12::1"] {
            assert!(listed.allows(ip(text)), "{text}");
        }
        for text in ["10.2.0.1", "127.0.0.2", "fc00::1", "::1"] {
            assert!(!listed.allows(ip(text)), "{text}");
        }
        let every = Networks::parse(&texts[3..]).expect("networks");
        assert!(every.allows(ip("127.9.9.9")) && !every.allows(ip("::1")));
        for text in ["10.0.0.0", "10.0.0.0/33", "::/129", "a/8", ""] {
            let error = Networks::parse(&[text.to_owned()]);
            assert_eq!(error, Err(NetworkError(text.to_owned())));
        }
    }
}

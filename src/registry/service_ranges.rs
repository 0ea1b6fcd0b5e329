//! The ranges from which the Services of a plane get addresses: one range, or one of each family of
//! addresses. All arithmetic with addresses of either family is here.

use polyplane_apimachinery::names::cidr_sloppy;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// Addresses of 32 bits.
    V4,
    /// Addresses of 128 bits.
    V6,
}

impl IpFamily {
    /// Returns the family of an address. A mapped IPv4 address is one of IPv4.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Returns the other family.
    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    /// Returns the name that fields and labels have for the family.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Returns the number of bits of an address.
    pub fn width(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRange {
    /// The address of the network: all other bits are 0.
    base: IpAddr,
    /// The number of bits of the network prefix.
    bits: u8,
}

impl ServiceRange {
    /// Creates the range of an address whose first `bits` bits are those of the network. More bits than
    /// an address has count as all of them.
    pub fn new(address: impl Into<IpAddr>, bits: u8) -> Self {
        let address = address.into();
        let width = IpFamily::of(address).width();
        let bits = bits.min(width);
        let range = Self {
            base: address.to_canonical(),
            bits,
        };
        let host_bits = range.last_offset();
        Self {
            base: address_of(range.family(), number_of(range.base) & !host_bits),
            ..range
        }
    }

    /// Parses a range as upstream does: leading zeros of IPv4 are ignored, and so are the bits behind the
    /// prefix.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = cidr_sloppy(text)?;
        // The prefix of a mapped IPv4 address is counted in bits of IPv6.
        let mapped = address.is_ipv6() && address.to_canonical().is_ipv4();
        (!mapped).then(|| Self::new(address, bits))
    }

    /// Returns the family of the addresses.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.base)
    }

    /// Returns the number of bits of the network prefix.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Returns the distance of the last address of the range from the first.
    pub fn last_offset(&self) -> u128 {
        let host_bits = u32::from(self.family().width() - self.bits);
        u128::MAX.checked_shr(128 - host_bits).unwrap_or(0)
    }

    /// Returns the address at a distance from the network's own; beyond the end, the last one.
    pub fn address(&self, offset: u128) -> IpAddr {
        let offset = offset.min(self.last_offset());
        address_of(self.family(), number_of(self.base) | offset)
    }

    /// Returns the distance of an address from the network's own; `None` if the range does not have it.
    pub fn offset(&self, address: IpAddr) -> Option<u128> {
        let of_family = IpFamily::of(address) == self.family();
        let offset = number_of(address.to_canonical()).checked_sub(number_of(self.base))?;
        (of_family && offset <= self.last_offset()).then_some(offset)
    }
}

impl fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

fn number_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address_of(family: IpFamily, number: u128) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpFamily::V6 => Ipv6Addr::from_bits(number).into(),
    }
}

/// The range or the two ranges of a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRanges {
    primary: ServiceRange,
    secondary: Option<ServiceRange>,
}

impl ServiceRanges {
    /// Creates the ranges of a plane; `None` if both are of one family. Services that name no family get
    /// an address of the primary range.
    pub fn new(primary: ServiceRange, secondary: Option<ServiceRange>) -> Option<Self> {
        let same = secondary.is_some_and(|other| other.family() == primary.family());
        (!same).then_some(Self { primary, secondary })
    }

    /// Returns the range of the family that Services have unless they name another.
    pub fn primary(&self) -> ServiceRange {
        self.primary
    }

    /// Returns whether there are ranges of both families.
    pub fn are_dual(&self) -> bool {
        self.secondary.is_some()
    }

    /// Returns the ranges, the primary one first.
    pub fn iter(&self) -> impl Iterator<Item = ServiceRange> {
        std::iter::once(self.primary).chain(self.secondary)
    }
}

impl From<ServiceRange> for ServiceRanges {
    fn from(primary: ServiceRange) -> Self {
        Self {
            primary,
            secondary: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_both_families_know_their_addresses() {
        for (text, shown, last) in [
            ("010.1.2.3/24", "10.1.2.0/24", "10.1.2.255"),
            ("0.0.0.0/0", "0.0.0.0/0", "255.255.255.255"),
            ("10.0.0.1/32", "10.0.0.1/32", "10.0.0.1"),
            ("2001:db8:0:0::5/108", "2001:db8::/108", "2001:db8::f:ffff"),
            (
                "2001:DB8::/64",
                "2001:db8::/64",
                "2001:db8::ffff:ffff:ffff:ffff",
            ),
            ("::/0", "::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let range = ServiceRange::parse(text).expect("a range");
            assert_eq!(range.to_string(), shown);
            let end: IpAddr = last.parse().expect("an address");
            assert_eq!(range.address(u128::MAX), end);
            assert_eq!(range.offset(end), Some(range.last_offset()));
        }
        let range = ServiceRange::parse("10.1.2.0/24").expect("a range");
        for outside in ["10.1.1.255", "10.1.3.0", "::a01:203"] {
            assert_eq!(range.offset(outside.parse().expect("an address")), None);
        }
        let mapped = "::ffff:10.1.2.3".parse().expect("an address");
        assert_eq!(range.offset(mapped), Some(3));
        assert_eq!(ServiceRange::parse("::ffff:10.1.2.0/120"), None);
    }

    #[test]
    fn two_ranges_are_of_two_families() {
        let of = |text: &str| ServiceRange::parse(text).expect("a range");
        let (four, six) = (of("10.0.0.0/16"), of("2001:db8::/108"));
        assert_eq!(ServiceRanges::new(four, Some(of("10.1.0.0/16"))), None);
        let both = ServiceRanges::new(six, Some(four)).expect("two families");
        assert!(both.are_dual());
        assert_eq!(both.iter().collect::<Vec<_>>(), [six, four]);
        assert_eq!(both.primary(), six);
        let one = ServiceRanges::from(four);
        assert!(!one.are_dual());
        assert_eq!(one.iter().collect::<Vec<_>>(), [four]);
    }
}

//! Addresses and networks.

mod address;

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use polyplane_strconv::quote::quote;

use crate::library::{Context, Library};
use crate::value::{Fault, Opaque, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        string_to_ip: ip(string) -> net.IP
        cidr_ip: ip:(net.CIDR) -> net.IP
        ip_family: family:(net.IP) -> int
        ip_is_canonical: ip.isCanonical(string) -> bool
        ip_is_unspecified: isUnspecified:(net.IP) -> bool
        ip_is_loopback: isLoopback:(net.IP) -> bool
        ip_is_link_local_multicast: isLinkLocalMulticast:(net.IP) -> bool
        ip_is_link_local_unicast: isLinkLocalUnicast:(net.IP) -> bool
        ip_is_global_unicast: isGlobalUnicast:(net.IP) -> bool
        is_ip: isIP(string) -> bool
        ip_to_string: string(net.IP) -> string
        string_to_cidr: cidr(string) -> net.CIDR
        cidr_contains_ip_string: containsIP:(net.CIDR, string) -> bool
        cidr_contains_ip_ip: containsIP:(net.CIDR, net.IP) -> bool
        cidr_contains_cidr_string: containsCIDR:(net.CIDR, string) -> bool
        cidr_contains_cidr: containsCIDR:(net.CIDR, net.CIDR) -> bool
        cidr_prefix_length: prefixLength:(net.CIDR) -> int
        cidr_masked: masked:(net.CIDR) -> net.CIDR
        is_cidr: isCIDR(string) -> bool
        cidr_to_string: string(net.CIDR) -> string",
    runs: &[
        ("ip", to_ip),
        ("family", |_, args| {
            let family = if ip(args.first())?.is_ipv4() { 4 } else { 6 };
            Ok(Value::Int(family))
        }),
        ("ip.isCanonical", |_, args| match args {
            [Value::String(text)] => {
                let canonical = parse_ip(text)?.to_string();
                Ok(Value::Bool(*canonical == **text))
            }
            _ => Err(Fault::no_overload()),
        }),
        ("isUnspecified", |_, args| {
            test(args, IpAddr::is_unspecified)
        }),
        ("isLoopback", |_, args| test(args, IpAddr::is_loopback)),
        ("isLinkLocalMulticast", |_, args| {
            test(args, is_link_local_multicast)
        }),
        ("isLinkLocalUnicast", |_, args| {
            test(args, is_link_local_unicast)
        }),
        ("isGlobalUnicast", |_, args| test(args, is_global_unicast)),
        ("isIP", |_, args| match args {
            [Value::String(text)] => Ok(Value::Bool(parse_ip(text).is_ok())),
            _ => Err(Fault::no_overload()),
        }),
        ("cidr", |_, args| match args {
            [Value::String(text)] => parse_cidr(text).map(made_cidr),
            _ => Err(Fault::no_overload()),
        }),
        ("containsIP", contains_ip),
        ("containsCIDR", contains_cidr),
        ("prefixLength", |_, args| {
            cidr(args.first()).map(|it| Value::Int(i64::from(it.bits)))
        }),
        ("masked", |_, args| {
            cidr(args.first()).map(|it| made_cidr(it.masked()))
        }),
        ("isCIDR", |_, args| match args {
            [Value::String(text)] => Ok(Value::Bool(parse_cidr(text).is_ok())),
            _ => Err(Fault::no_overload()),
        }),
    ],
    types: &["net.IP", "net.CIDR"],
};

#[derive(Debug)]
struct Ip(IpAddr);

impl Opaque for Ip {
    fn type_name(&self) -> &'static str {
        "net.IP"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        let other: Option<&Self> = other.as_any().downcast_ref();
        other.is_some_and(|other| other.0 == self.0)
    }

    fn text(&self) -> Option<String> {
        Some(self.0.to_string())
    }

    fn cost_size(&self) -> u64 {
        if self.0.is_ipv4() { 4 } else { 16 }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cidr {
    address: IpAddr,
    bits: u8,
}

impl Cidr {
    fn width(self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Returns the bits of an address that a prefix of `bits` keeps.
    fn kept(self, address: IpAddr, bits: u8) -> u128 {
        let number = match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        let dropped = u32::from(self.width() - bits.min(self.width()));
        let high = number.checked_shr(dropped).unwrap_or(0);
        high.checked_shl(dropped).unwrap_or(0)
    }

    fn masked(self) -> Self {
        let kept = self.kept(self.address, self.bits);
        let address = match self.address {
            IpAddr::V4(_) => Ipv4Addr::from_bits(u32::try_from(kept).unwrap_or(0)).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(kept).into(),
        };
        Self { address, ..self }
    }

    fn contains(self, address: IpAddr, bits: u8) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && self.bits <= bits
            && self.kept(address, self.bits) == self.kept(self.address, self.bits)
    }
}

impl Opaque for Cidr {
    fn type_name(&self) -> &'static str {
        "net.CIDR"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref() == Some(self)
    }

    fn text(&self) -> Option<String> {
        Some(format!("{}/{}", self.address, self.bits))
    }

    fn cost_size(&self) -> u64 {
        u64::from(self.bits.div_ceil(8))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn made_ip<'a>(address: IpAddr) -> Value<'a> {
    Value::Opaque(Arc::new(Ip(address)))
}

fn made_cidr<'a>(cidr: Cidr) -> Value<'a> {
    Value::Opaque(Arc::new(cidr))
}

fn ip(value: Option<&Value<'_>>) -> Result<IpAddr, Fault> {
    let found = match value {
        Some(Value::Opaque(value)) => value.as_any().downcast_ref::<Ip>(),
        _ => None,
    };
    found.map(|found| found.0).ok_or_else(Fault::no_overload)
}

fn cidr(value: Option<&Value<'_>>) -> Result<Cidr, Fault> {
    let found = match value {
        Some(Value::Opaque(value)) => value.as_any().downcast_ref::<Cidr>(),
        _ => None,
    };
    found.copied().ok_or_else(Fault::no_overload)
}

fn parse_ip(text: &str) -> Result<IpAddr, Fault> {
    let parsed = address::parse(text).map_err(|why| {
        Fault::error(format!(
            "IP Address {} parse error during conversion from string: {why}",
            quote(text)
        ))
    })?;
    if parsed.has_zone {
        return Err(Fault::error(format!(
            "IP address {} with zone value is not allowed",
            quote(text)
        )));
    }
    refuse_mapped(parsed.address, text)?;
    Ok(parsed.address)
}

fn refuse_mapped(address: IpAddr, text: &str) -> Result<(), Fault> {
    match address {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => Err(Fault::error(format!(
            "IPv4-mapped IPv6 address {} is not allowed",
            quote(text)
        ))),
        _ => Ok(()),
    }
}

fn parse_cidr(text: &str) -> Result<Cidr, Fault> {
    let begin = "network address parse error during conversion from string: ";
    let bad = |why: &str| {
        let shown = quote(text);
        Fault::error(format!("{begin}{begin}netip.ParsePrefix({shown}): {why}"))
    };
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| bad("no '/'"))?;
    let parsed = address::parse(address).map_err(|why| bad(&why))?;
    if parsed.has_zone {
        return Err(bad("IPv6 zones cannot be present in a prefix"));
    }
    let digits = bits.bytes().all(|digit| digit.is_ascii_digit());
    let padded = bits.len() > 1 && bits.starts_with('0');
    let number = match digits && !padded {
        true => bits.parse::<i64>().ok(),
        false => None,
    };
    let number = number.ok_or_else(|| bad(&format!("bad bits after slash: {}", quote(bits))))?;
    let width = if parsed.address.is_ipv4() { 32 } else { 128 };
    let bits = u8::try_from(number).ok().filter(|bits| *bits <= width);
    let bits = bits.ok_or_else(|| bad("prefix length out of range"))?;
    refuse_mapped(parsed.address, text).map_err(|fault| Fault::error(format!("{begin}{fault}")))?;
    Ok(Cidr {
        address: parsed.address,
        bits,
    })
}

fn to_ip<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text)] => parse_ip(text).map(made_ip),
        [network] => cidr(Some(network)).map(|network| made_ip(network.address)),
        _ => Err(Fault::no_overload()),
    }
}

fn test<'a>(args: &[Value<'a>], of: fn(&IpAddr) -> bool) -> Outcome<'a> {
    ip(args.first()).map(|address| Value::Bool(of(&address)))
}

fn is_link_local_multicast(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => matches!(address.octets(), [224, 0, 0, _]),
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_link_local_unicast(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_global_unicast(address: &IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !broadcast
        && !address.is_unspecified()
        && !address.is_loopback()
        && !address.is_multicast()
        && !is_link_local_unicast(address)
}

fn contains_ip<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [network, address] = args else {
        return Err(Fault::no_overload());
    };
    let network = cidr(Some(network))?;
    let address = match address {
        // Upstream complains about the types and forgets what is wrong with the text.
        Value::String(text) => parse_ip(text).map_err(|_| Fault::no_overload())?,
        other => ip(Some(other))?,
    };
    Ok(Value::Bool(network.contains(address, u8::MAX)))
}

fn contains_cidr<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [network, part] = args else {
        return Err(Fault::no_overload());
    };
    let network = cidr(Some(network))?;
    let part = match part {
        Value::String(text) => parse_cidr(text)?,
        other => cidr(Some(other))?,
    };
    Ok(Value::Bool(network.contains(part.address, part.bits)))
}

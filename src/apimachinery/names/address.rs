//! IP addresses and ranges, parsed loosely for old fields and strictly for new ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::quote::quote;

/// Parses an address as old fields do: leading zeros in IPv4 parts are ignored.
pub fn ip_sloppy(value: &str) -> Option<IpAddr> {
    if !value.contains(':') {
        return ipv4_sloppy(value).map(IpAddr::V4);
    }
    if let Ok(address) = value.parse::<Ipv6Addr>() {
        return Some(IpAddr::V6(address));
    }
    // The last part may be an IPv4 address, in which leading zeros are ignored too.
    let (head, tail) = value.rsplit_once(':')?;
    if !tail.contains('.') {
        return None;
    }
    let tail = ipv4_sloppy(tail)?;
    format!("{head}:{tail}")
        .parse::<Ipv6Addr>()
        .ok()
        .map(IpAddr::V6)
}

fn ipv4_sloppy(value: &str) -> Option<Ipv4Addr> {
    let mut parts = [0u8; 4];
    let mut given = value.split('.');
    for part in &mut parts {
        let text = given.next()?;
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let text = text.trim_start_matches('0');
        *part = if text.is_empty() {
            0
        } else {
            text.parse().ok()?
        };
    }
    given.next().is_none().then(|| Ipv4Addr::from(parts))
}

/// Returns the address as Go prints it: as IPv4 even if it is a mapped address.
pub fn ip_text(address: IpAddr) -> String {
    address.to_canonical().to_string()
}

/// Returns complaints about an address in a new field: it must be canonical.
pub fn ip_complaints(value: &str) -> Vec<String> {
    let complaints = legacy_ip_complaints(value, Strictness::Strict);
    if !complaints.is_empty() {
        return complaints;
    }
    let canonical = ip_sloppy(value).map(ip_text).unwrap_or_default();
    if value == canonical {
        return Vec::new();
    }
    vec![format!("must be in canonical form ({})", quote(&canonical))]
}

/// The strictness with which an old field is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Leading zeros and mapped addresses are accepted.
    Sloppy,
    /// Leading zeros and mapped addresses are refused.
    Strict,
}

/// Returns complaints about an address in an old field.
pub fn legacy_ip_complaints(value: &str, strictness: Strictness) -> Vec<String> {
    let Some(address) = ip_sloppy(value) else {
        return vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()];
    };
    let mut complaints = Vec::new();
    if strictness == Strictness::Strict {
        if value.parse::<IpAddr>().is_err() {
            complaints.push("must not have leading 0s".to_owned());
        } else if is_mapped(address) {
            complaints.push("must not be an IPv4-mapped IPv6 address".to_owned());
        }
    }
    complaints
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// Parses a range as old fields do. Returns the address as it was written and the length of the
/// prefix.
pub fn cidr_sloppy(value: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = value.split_once('/')?;
    let address = ip_sloppy(address)?;
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let length = length.trim_start_matches('0');
    let length: u8 = if length.is_empty() {
        0
    } else {
        length.parse().ok()?
    };
    (length <= width(address)).then_some((address, length))
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Returns the address with all bits beyond the prefix cleared.
fn network(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

/// Returns complaints about a range in a new field: it must be canonical.
pub fn cidr_complaints(value: &str) -> Vec<String> {
    let complaints = legacy_cidr_complaints(value, Strictness::Strict);
    if !complaints.is_empty() {
        return complaints;
    }
    let Some((address, length)) = cidr_sloppy(value) else {
        return Vec::new();
    };
    let canonical = format!("{}/{length}", ip_text(network(address, length)));
    if value == canonical {
        return Vec::new();
    }
    vec![format!("must be in canonical form ({})", quote(&canonical))]
}

/// Returns complaints about a range in an old field.
pub fn legacy_cidr_complaints(value: &str, strictness: Strictness) -> Vec<String> {
    let Some((address, length)) = cidr_sloppy(value) else {
        return vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()];
    };
    if strictness == Strictness::Sloppy {
        return Vec::new();
    }
    let (text, digits) = value.split_once('/').unwrap_or((value, ""));
    let complaint =
        if text.parse::<IpAddr>().is_err() || (digits.len() > 1 && digits.starts_with('0')) {
            "must not have leading 0s in IP or prefix length"
        } else if is_mapped(address) {
            "must not have an IPv4-mapped IPv6 address"
        } else if network(address, length) != address {
            "must not have bits set beyond the prefix length"
        } else {
            return Vec::new();
        };
    vec![complaint.to_owned()]
}

//! Validates addresses and ranges in fields that are older than the strict rules for them.

use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{
    Strictness, cidr_sloppy, ip_sloppy, ip_text, legacy_cidr_complaints, legacy_ip_complaints,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Validates an address; one that was stored before is accepted.
pub fn validate_ip(path: &Path<'_>, value: &str, before: &[&str]) -> Complaints {
    if before.contains(&value) {
        return Complaints::default();
    }
    let complaints = legacy_ip_complaints(value, Strictness::Strict).into_iter();
    complaints
        .map(|detail| FieldError::invalid(path, value, detail))
        .collect()
}

/// Validates a range; one that was stored before is accepted.
pub fn validate_cidr(path: &Path<'_>, value: &str, before: &[&str]) -> Complaints {
    if before.contains(&value) {
        return Complaints::default();
    }
    let complaints = legacy_cidr_complaints(value, Strictness::Strict).into_iter();
    complaints
        .map(|detail| FieldError::invalid(path, value, detail))
        .collect()
}

/// Validates an address to which traffic is sent.
pub fn validate_endpoint_ip(path: &Path<'_>, value: &str) -> Complaints {
    let Some(address) = ip_sloppy(value).map(|address| address.to_canonical()) else {
        return Complaints::from([FieldError::invalid(
            path,
            value,
            "must be a valid IP address",
        )]);
    };
    let mut errors = Complaints::default();
    let mut complain = |detail: String| errors.push(FieldError::invalid(path, value, detail));
    if address.is_unspecified() {
        complain(format!("may not be unspecified ({value})"));
    }
    if address.is_loopback() {
        complain("may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned());
    }
    let (unicast, multicast) = match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            (address.is_link_local(), (a, b, c) == (224, 0, 0))
        }
        IpAddr::V6(address) => {
            let first = address.segments()[0];
            (first & 0xffc0 == 0xfe80, first & 0xff0f == 0xff02)
        }
    };
    if unicast {
        complain("may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned());
    }
    if multicast {
        complain(
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned(),
        );
    }
    errors
}

/// Returns true for an IPv6 address that is not a mapped IPv4 address.
pub fn is_ipv6(value: &str) -> bool {
    ip_sloppy(value).is_some_and(|address| address.to_canonical().is_ipv6())
}

/// Returns true if both families occur among addresses; `None` if one text is not an address.
pub fn is_dual_stack(values: &[&str]) -> Option<bool> {
    let mut families = Vec::new();
    for value in values {
        families.push(ip_sloppy(value)?.to_canonical().is_ipv6());
    }
    Some(families.contains(&true) && families.contains(&false))
}

/// Returns warnings for the client about an address that is accepted.
pub fn ip_warnings(path: &Path<'_>, value: &str) -> Vec<String> {
    let Some(address) = ip_sloppy(value) else {
        return Vec::new();
    };
    let standard = value
        .parse::<IpAddr>()
        .ok()
        .filter(|address| !is_mapped(*address));
    match standard {
        None => {
            let text = ip_text(address);
            vec![format!(
                "{path}: non-standard IP address {value:?} is invalid: use {text:?}"
            )]
        }
        Some(IpAddr::V6(address)) if address.to_string() != value => {
            let text = address.to_string();
            vec![format!(
                "{path}: IPv6 address {value:?} should be in RFC 5952 canonical format ({text:?})"
            )]
        }
        Some(_) => Vec::new(),
    }
}

/// Returns warnings for the client about a range that is accepted.
pub fn cidr_warnings(path: &Path<'_>, value: &str) -> Vec<String> {
    let Some((address, bits)) = cidr_sloppy(value) else {
        return Vec::new();
    };
    let network = network_of(address, bits);
    let range = format!("{}/{bits}", ip_text(network));
    let mut warnings = Vec::new();
    if network != address {
        let width = if address.is_ipv4() { 32 } else { 128 };
        let single = format!("{}/{width}", ip_text(address));
        warnings.push(format!(
            "{path}: CIDR value {value:?} is ambiguous in this context (should be {range:?} or {single:?}?)"
        ));
    }
    let (text, digits) = value.split_once('/').unwrap_or((value, ""));
    let strict = text.parse::<IpAddr>().ok();
    let padded = digits.len() > 1 && digits.starts_with('0');
    match strict.filter(|address| !padded && !is_mapped(*address)) {
        None => warnings.push(format!(
            "{path}: non-standard CIDR value {value:?} is invalid: use {range:?}"
        )),
        Some(IpAddr::V6(address)) if warnings.is_empty() => {
            let text = format!("{address}/{bits}");
            if text != value {
                warnings.push(format!(
                    "{path}: IPv6 CIDR value {value:?} should be in RFC 5952 canonical format ({text:?})"
                ));
            }
        }
        Some(_) => {}
    }
    warnings
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

fn network_of(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_endpoint_has_are_told_apart() {
        let path = Path::new("ip");
        let count = |value: &str| validate_endpoint_ip(&path, value).len();
        assert_eq!(count("10.0.0.1"), 0);
        for bad in [
            "0.0.0.0",
            "127.0.0.1",
            "169.254.1.1",
            "224.0.0.5",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "x",
        ] {
            assert_eq!(count(bad), 1, "{bad}");
        }
    }

    #[test]
    fn warnings_name_the_better_form() {
        let path = Path::new("x");
        assert!(ip_warnings(&path, "10.0.0.1").is_empty());
        assert_eq!(
            ip_warnings(&path, "010.0.0.1"),
            [r#"x: non-standard IP address "010.0.0.1" is invalid: use "10.0.0.1""#]
        );
        assert_eq!(
            cidr_warnings(&path, "10.0.0.1/8"),
            [
                r#"x: CIDR value "10.0.0.1/8" is ambiguous in this context (should be "10.0.0.0/8" or "10.0.0.1/32"?)"#
            ]
        );
        assert!(cidr_warnings(&path, "2001:db8::/64").is_empty());
    }
}

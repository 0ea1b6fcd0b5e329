//! Reads addresses as Go does, with its complaints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use polyplane_strconv::quote::quote;

/// Bytes of the longer kind of address.
const BYTES: usize = 16;

/// An address that was read.
pub(super) struct Parsed {
    pub address: IpAddr,
    /// Whether the name of a zone stands behind it.
    pub has_zone: bool,
}

/// What is wrong with an address, and the part of it that could not be read; empty for none in particular.
struct Bad<'t>(&'static str, &'t str);

/// Reads an address.
///
/// # Errors
/// Returns Go's text.
pub(super) fn parse(text: &str) -> Result<Parsed, String> {
    let found = match text.bytes().find(|byte| b".:%".contains(byte)) {
        Some(b'.') => octets(text).map(|octets| Parsed {
            address: Ipv4Addr::from(octets).into(),
            has_zone: false,
        }),
        Some(b':') => parse_v6(text),
        Some(_) => Err(Bad("missing IPv6 address", "")),
        None => Err(Bad("unable to parse IP", "")),
    };
    found.map_err(|Bad(why, at)| {
        let at = match at {
            "" => String::new(),
            at => format!(" (at {})", quote(at)),
        };
        format!("ParseAddr({}): {why}{at}", quote(text))
    })
}

/// Reads four numbers between dots.
fn octets(text: &str) -> Result<[u8; 4], Bad<'_>> {
    let bytes = text.as_bytes();
    let (mut octets, mut place) = ([0; 4], 0);
    let (mut value, mut digits) = (0_u16, 0);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                if digits == 1 && value == 0 {
                    return Err(Bad("IPv4 field has octet with leading zero", ""));
                }
                value = value * 10 + u16::from(byte - b'0');
                digits += 1;
                let octet = u8::try_from(value);
                octets[place] = octet.map_err(|_| Bad("IPv4 field has value >255", ""))?;
            }
            b'.' => {
                let is_edge = at == 0 || at + 1 == bytes.len() || bytes[at - 1] == b'.';
                if is_edge {
                    let rest = &text[at..];
                    return Err(Bad("IPv4 field must have at least one digit", rest));
                }
                if place == 3 {
                    return Err(Bad("IPv4 address too long", ""));
                }
                place += 1;
                (value, digits) = (0, 0);
            }
            _ => return Err(Bad("unexpected character", &text[at..])),
        }
    }
    match place {
        3 => Ok(octets),
        _ => Err(Bad("IPv4 address too short", "")),
    }
}

fn parse_v6(text: &str) -> Result<Parsed, Bad<'_>> {
    let (groups, has_zone) = match text.split_once('%') {
        None => (text, false),
        Some((_, "")) => return Err(Bad("zone must be a non-empty string", "")),
        Some((groups, _)) => (groups, true),
    };
    Ok(Parsed {
        address: Ipv6Addr::from(groups_of(groups)?).into(),
        has_zone,
    })
}

/// Reads groups of hexadecimal digits between colons, perhaps with the shorter kind of address at the end.
fn groups_of(text: &str) -> Result<[u8; BYTES], Bad<'_>> {
    let mut bytes = [0; BYTES];
    let (mut rest, mut filled) = (text, 0);
    // Where the zeros are that are left out.
    let mut gap = None;
    if let Some(after) = rest.strip_prefix("::") {
        (rest, gap) = (after, Some(0));
    }
    while filled < BYTES && !(rest.is_empty() && gap == Some(filled)) {
        let (group, length) = group(rest)?;
        if rest[length..].starts_with('.') {
            if gap.is_none() && filled != 12 {
                let why = "embedded IPv4 address must replace the final 2 fields of the address";
                return Err(Bad(why, rest));
            }
            if filled + 4 > BYTES {
                let why = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return Err(Bad(why, rest));
            }
            bytes[filled..filled + 4].copy_from_slice(&octets(rest)?);
            (rest, filled) = ("", filled + 4);
            break;
        }
        bytes[filled..filled + 2].copy_from_slice(&group.to_be_bytes());
        filled += 2;
        rest = &rest[length..];
        if rest.is_empty() {
            break;
        }
        let Some(after) = rest.strip_prefix(':') else {
            return Err(Bad("unexpected character, want colon", rest));
        };
        if after.is_empty() {
            return Err(Bad("colon must be followed by more characters", rest));
        }
        rest = after;
        if let Some(after) = rest.strip_prefix(':') {
            if gap.is_some() {
                return Err(Bad("multiple :: in address", rest));
            }
            (rest, gap) = (after, Some(filled));
        }
    }
    if !rest.is_empty() {
        return Err(Bad("trailing garbage after address", rest));
    }
    spread(bytes, filled, gap)
}

/// Reads a group of digits; returns it with its length.
fn group(text: &str) -> Result<(u16, usize), Bad<'_>> {
    let digits = text.bytes().take_while(u8::is_ascii_hexdigit).count();
    if digits > 4 {
        return Err(Bad("each group must have 4 or less digits", text));
    }
    match u16::from_str_radix(&text[..digits], 16) {
        Ok(group) => Ok((group, digits)),
        Err(_) => Err(Bad(
            "each colon-separated field must have at least one digit",
            text,
        )),
    }
}

/// Puts the zeros that were left out into their place.
fn spread(
    mut bytes: [u8; BYTES],
    filled: usize,
    gap: Option<usize>,
) -> Result<[u8; BYTES], Bad<'static>> {
    let missing = BYTES - filled;
    match gap {
        Some(_) if missing == 0 => {
            Err(Bad("the :: must expand to at least one field of zeros", ""))
        }
        None if missing > 0 => Err(Bad("address string too short", "")),
        None => Ok(bytes),
        Some(gap) => {
            bytes.copy_within(gap..filled, gap + missing);
            bytes[gap..gap + missing].fill(0);
            Ok(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_go() {
        for (text, shown) in [
            ("1.2.3.4", "1.2.3.4"),
            ("::", "::"),
            ("::1", "::1"),
            ("1::", "1::"),
            ("2001:DB8::8:800:200c:417a", "2001:db8::8:800:200c:417a"),
            ("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8"),
            ("64:ff9b::192.0.2.33", "64:ff9b::c000:221"),
            ("fe80::1%eth0", "fe80::1"),
        ] {
            let parsed = parse(text).map(|parsed| parsed.address.to_string());
            assert_eq!(parsed.as_deref(), Ok(shown), "{text}");
        }
    }

    #[test]
    fn complaints_are_those_of_go() {
        for (text, why) in [
            ("", "unable to parse IP"),
            ("localhost", "unable to parse IP"),
            ("%eth0", "missing IPv6 address"),
            ("1.2.3.4.5", "IPv4 address too long"),
            ("1.2.3", "IPv4 address too short"),
            ("1.02.3.4", "IPv4 field has octet with leading zero"),
            ("1.256.3.4", "IPv4 field has value >255"),
            (
                "1..3.4",
                r#"IPv4 field must have at least one digit (at ".3.4")"#,
            ),
            ("1.2.3.é", r#"unexpected character (at "é")"#),
            ("::1%", "zone must be a non-empty string"),
            (
                "12345::",
                r#"each group must have 4 or less digits (at "12345::")"#,
            ),
            (
                "1:::2",
                r#"each colon-separated field must have at least one digit (at ":2")"#,
            ),
            ("1::2::3", r#"multiple :: in address (at ":3")"#),
            (
                "1:2:3:4:5:6:7:8:9",
                r#"trailing garbage after address (at "9")"#,
            ),
            ("1:2", "address string too short"),
            (
                "1:2:3:4:5:6:7::8",
                "the :: must expand to at least one field of zeros",
            ),
            (
                "1:",
                r#"colon must be followed by more characters (at ":")"#,
            ),
            ("::1g", r#"unexpected character, want colon (at "g")"#),
        ] {
            let found = parse(text).err();
            let expected = format!("ParseAddr({text:?}): {why}");
            assert_eq!(found, Some(expected), "{text}");
        }
    }
}

//! The format of URIs: what Go's `url.ParseRequestURI` reads.

use std::net::Ipv6Addr;

pub(super) fn is_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|byte| byte.is_ascii_control()) {
        return false;
    }
    let Some((scheme, rest)) = scheme_of(text) else {
        return false;
    };
    let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
    if !rest.starts_with('/') {
        // A scheme with something that is no path is opaque.
        return text == "*" || !scheme.is_empty();
    }
    let authority = rest.strip_prefix("//").filter(|_| !scheme.is_empty());
    let Some(authority) = authority else {
        return escapes_fit(rest, |_| true);
    };
    let end = authority.find('/').unwrap_or(authority.len());
    let (authority, path) = authority.split_at(end);
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    is_user(user) && is_host(scheme, host) && escapes_fit(path, |_| true)
}

/// Splits the scheme off; it is empty if there is none. Returns nothing if only its colon is there.
fn scheme_of(text: &str) -> Option<(&str, &str)> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    let end = text.find(|letter: char| !is_part(letter));
    let (scheme, rest) = text.split_at(end.unwrap_or(text.len()));
    match rest.strip_prefix(':') {
        Some(_) if scheme.is_empty() => None,
        Some(rest) if scheme.starts_with(|first: char| first.is_ascii_alphabetic()) => {
            Some((scheme, rest))
        }
        _ => Some(("", text)),
    }
}

fn is_user(user: &str) -> bool {
    let fits =
        |letter: char| letter.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(letter);
    user.chars().all(fits) && escapes_fit(user, |_| true)
}

fn is_host(scheme: &str, host: &str) -> bool {
    match host.rfind('[') {
        Some(0) => {
            let parts = host[1..].rsplit_once(']');
            return parts.is_some_and(|(name, port)| is_port(port) && is_literal(name));
        }
        Some(_) => return false,
        None => {}
    }
    // Further colons are tolerated for the sake of lists of hosts, which those of the web are not.
    let is_web = ["http", "https"]
        .iter()
        .any(|name| scheme.eq_ignore_ascii_case(name));
    let colon = if is_web {
        host.find(':')
    } else {
        host.rfind(':')
    };
    is_port(colon.map_or("", |at| &host[at..])) && is_name(host)
}

/// Returns whether a text is a name of a host, in which only the sign of escapes and what is not
/// ASCII may be escaped.
fn is_name(text: &str) -> bool {
    text.bytes().all(is_plain) && escapes_fit(text, |byte| byte >= 0x80 || byte == b'%')
}

/// Returns whether a text is an address of the sixth version, which may have a zone.
fn is_literal(text: &str) -> bool {
    let (address, zone) = match text.split_once("%25") {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    let zone_fits = zone.is_none_or(|zone| {
        let fits = |byte: u8| byte == b' ' || byte.is_ascii() && is_plain(byte);
        !zone.is_empty() && zone.bytes().all(is_plain) && escapes_fit(zone, fits)
    });
    zone_fits && address.parse::<Ipv6Addr>().is_ok()
}

/// Returns whether a byte may stand in a host as it is, or begins an escape.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii() || b"-._~!$&'()*+,;=:[]<>\"%".contains(&byte)
}

fn is_port(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns whether all escapes are whole and stand for bytes that fit.
fn escapes_fit(text: &str, fits: impl Fn(u8) -> bool) -> bool {
    text.split('%').skip(1).all(|escape| {
        let byte = escape.get(..2).filter(|digits| {
            let mut digits = digits.bytes();
            digits.all(|digit| digit.is_ascii_hexdigit())
        });
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        byte.is_some_and(&fits)
    })
}

//! URLs, read as Go reads those of requests.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use polyplane_strconv::quote::quote;

use crate::library::{Context, Library};
use crate::value::{Fault, Key, Opaque, Outcome, Text, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        string_to_url: url(string) -> kubernetes.URL
        url_get_scheme: getScheme:(kubernetes.URL) -> string
        url_get_host: getHost:(kubernetes.URL) -> string
        url_get_hostname: getHostname:(kubernetes.URL) -> string
        url_get_port: getPort:(kubernetes.URL) -> string
        url_get_escaped_path: getEscapedPath:(kubernetes.URL) -> string
        url_get_query: getQuery:(kubernetes.URL) -> map(string, list(string))
        is_url_string: isURL(string) -> bool",
    runs: &[
        ("url", |_, args| match args {
            [Value::String(text)] => match parse(text) {
                Ok(url) => Ok(Value::Opaque(Arc::new(url))),
                Err(why) => Err(Fault::error(format!(
                    "URL parse error during conversion from string: {why}"
                ))),
            },
            _ => Err(Fault::no_overload()),
        }),
        ("isURL", |_, args| match args {
            [Value::String(text)] => Ok(Value::Bool(is_request_uri(text))),
            _ => Err(Fault::no_overload()),
        }),
        ("getScheme", |_, args| {
            of(args).map(|url| Value::text(&*url.scheme))
        }),
        ("getHost", |_, args| {
            of(args).map(|url| Value::text(&*url.host))
        }),
        ("getHostname", |_, args| {
            of(args).map(|url| Value::text(split_host(&url.host).0))
        }),
        ("getPort", |_, args| {
            of(args).map(|url| Value::text(split_host(&url.host).1))
        }),
        ("getEscapedPath", |_, args| {
            of(args).map(|url| Value::text(escaped(&url.path)))
        }),
        ("getQuery", query),
    ],
    types: &[],
};

#[derive(Debug, PartialEq, Eq)]
struct Url {
    scheme: String,
    /// The host and the port, without escapes.
    host: String,
    path: String,
    query: String,
    text: String,
}

impl Opaque for Url {
    fn type_name(&self) -> &'static str {
        "kubernetes.URL"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        let other: Option<&Self> = other.as_any().downcast_ref();
        other.is_some_and(|other| other.written() == self.written())
    }

    fn bytes(&self) -> usize {
        2 * self.text.len() + 128
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Url {
    /// Returns what Go writes of it: the scheme in small letters, and no mark of an empty fragment.
    fn written(&self) -> (&str, &str) {
        let rest = &self.text[self.scheme.len()..];
        (&self.scheme, rest.strip_suffix('#').unwrap_or(rest))
    }
}

fn of<'v>(args: &'v [Value<'_>]) -> Result<&'v Url, Fault> {
    let found = match args {
        [Value::Opaque(value)] => value.as_any().downcast_ref(),
        _ => None,
    };
    found.ok_or_else(Fault::no_overload)
}

/// Returns whether Go reads a text as the URI of a request: an absolute URL or an absolute path. A fragment is
/// no part of one, so its letters count as those of what stands before it.
#[must_use]
pub fn is_request_uri(text: &str) -> bool {
    read(text, Form::Request).is_ok()
}

/// Returns what is wrong with the URI of a request.
pub(crate) fn complaint(text: &str) -> Option<String> {
    read(text, Form::Request)
        .err()
        .map(|why| refusal(text, &why))
}

fn refusal(text: &str, why: &str) -> String {
    format!("parse {}: {why}", quote(text))
}

/// Reads a URL as upstream does: it must be the URI of a request, and is then read again without its fragment.
fn parse(text: &str) -> Result<Url, String> {
    read(text, Form::Request).map_err(|why| refusal(text, &why))?;
    let (before, fragment) = text.split_once('#').unwrap_or((text, ""));
    let parts = read(before, Form::Reference).map_err(|why| refusal(before, &why))?;
    check_escapes(fragment).map_err(|why| refusal(text, &why))?;
    Ok(Url {
        scheme: parts.scheme.to_ascii_lowercase(),
        host: parts.host,
        path: parts.path.to_owned(),
        query: parts.query.to_owned(),
        text: text.to_owned(),
    })
}

/// The ways in which Go reads a URL.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The URI of a request.
    Request,
    /// A URL without its fragment, whose host may stand behind two slashes without a scheme.
    Reference,
}

/// The parts of a URL.
#[derive(Default)]
struct Parts<'t> {
    scheme: &'t str,
    /// The host and the port, without escapes.
    host: String,
    path: &'t str,
    query: &'t str,
}

fn read(text: &str, form: Form) -> Result<Parts<'_>, String> {
    if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    if text.is_empty() {
        return Err("empty url".to_owned());
    }
    if text == "*" {
        return Ok(Parts {
            path: text,
            ..Parts::default()
        });
    }
    let (scheme, rest) = scheme(text)?;
    let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !before.starts_with('/') {
        if scheme.is_empty() {
            return Err("invalid URI for request".to_owned());
        }
        // Opaque: without a host or a path.
        return Ok(Parts {
            scheme,
            query,
            ..Parts::default()
        });
    }
    let may_have_host = !scheme.is_empty() || form == Form::Reference && !before.starts_with("///");
    let (authority, path) = match before.strip_prefix("//") {
        Some(behind) if may_have_host => behind.split_at(behind.find('/').unwrap_or(behind.len())),
        _ => ("", before),
    };
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let host = read_host(scheme, host)?;
    if let Some(user) = user {
        check_user(user)?;
    }
    check_escapes(path)?;
    Ok(Parts {
        scheme,
        host,
        path,
        query,
    })
}

fn scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, letter) in text.char_indices() {
        match letter {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn check_escapes(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        if escape_at(text, at).is_none() {
            return Err(bad_escape(text, at));
        }
    }
    Ok(())
}

/// Returns the byte that the escape at a place stands for.
fn escape_at(text: &str, at: usize) -> Option<u8> {
    let digits = text.get(at + 1..at + 3);
    let digits = digits.filter(|it| it.bytes().all(|digit| digit.is_ascii_hexdigit()));
    u8::from_str_radix(digits?, 16).ok()
}

fn bad_escape(text: &str, at: usize) -> String {
    let end = text.len().min(at + 3);
    let whole = text.floor_char_boundary(end);
    let mut shown = quote(&text[at..whole]);
    // Go cuts a letter of several bytes.
    for byte in &text.as_bytes()[whole..end] {
        shown.insert_str(shown.len() - 1, &format!("\\x{byte:02x}"));
    }
    format!("invalid URL escape {shown}")
}

/// Checks a user and a password as Go does: neither may need an escape that it does not have.
fn check_user(user: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    if !user.bytes().all(fits) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    // Apart, so that an escape cut off by the colon is shown without what follows it.
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    check_escapes(name)?;
    check_escapes(password)
}

/// Returns a host and its port without escapes.
fn read_host(scheme: &str, host: &str) -> Result<String, String> {
    match host.rfind('[') {
        Some(0) => return read_literal(host),
        Some(_) => return Err("invalid IP-literal".to_owned()),
        None => {}
    }
    // Hosts of databases may be several, each with a port.
    let is_web = ["http", "https"]
        .iter()
        .any(|web| scheme.eq_ignore_ascii_case(web));
    let colon = match is_web {
        true => host.find(':'),
        false => host.rfind(':'),
    };
    check_port(colon.map_or("", |at| &host[at..]))?;
    unescaped_host(host, HostPart::Name)
}

/// Reads a host in brackets: an IPv6 address, with or without a zone, and a port.
fn read_literal(host: &str) -> Result<String, String> {
    let end = host
        .rfind(']')
        .ok_or_else(|| "missing ']' in host".to_owned())?;
    let port = &host[end + 1..];
    check_port(port)?;
    let inner = &host[1..end];
    let (address, zone) = inner.split_at(inner.find("%25").unwrap_or(inner.len()));
    let address = unescaped_host(address, HostPart::Name)?;
    let literal = address + &unescaped_host(zone, HostPart::Zone)?;
    let (address, zone) = match literal.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (literal.as_str(), None),
    };
    let why = match (address.parse::<IpAddr>(), zone) {
        (Ok(IpAddr::V6(_)), Some("")) => "zone must be a non-empty string",
        (Ok(IpAddr::V6(_)), _) => return Ok(format!("[{literal}]{port}")),
        (Ok(IpAddr::V4(_)), None) => return Err("invalid IP-literal".to_owned()),
        (Ok(IpAddr::V4(_)), Some(_)) | (Err(_), _) => "unable to parse IP",
    };
    let shown = quote(&literal);
    Err(format!("invalid host: ParseAddr({shown}): {why}"))
}

/// A part of a host, which decides what may be escaped in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostPart {
    Name,
    /// The zone of an IPv6 address, with the percent sign before it.
    Zone,
}

/// Returns a part of a host without escapes.
fn unescaped_host(text: &str, part: HostPart) -> Result<String, String> {
    for (at, letter) in text.char_indices() {
        if letter != '%' {
            if !is_host_letter(letter) {
                let shown = quote(letter.encode_utf8(&mut [0; 4]));
                return Err(format!("invalid character {shown} in host name"));
            }
            continue;
        }
        let code = escape_at(text, at).ok_or_else(|| bad_escape(text, at))?;
        let fits = match part {
            // Of ASCII a name has only the percent sign itself escaped.
            HostPart::Name => !code.is_ascii(),
            // A zone escapes what it may have as it is, and spaces.
            HostPart::Zone => code == b' ' || code.is_ascii() && is_host_letter(code.into()),
        };
        if !fits && code != b'%' {
            return Err(bad_escape(text, at));
        }
    }
    Ok(String::from_utf8_lossy(&unescaped(text, false)).into_owned())
}

/// Returns whether a letter may stand in a host without an escape.
fn is_host_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric()
        || !letter.is_ascii()
        || matches!(
            letter,
            '-' | '.' | '_' | '~' | '!' | '$' | '&' | '\'' | '(' | ')' | '*' | '+'
        )
        || matches!(letter, ',' | ';' | '=' | ':' | '[' | ']' | '<' | '>' | '"')
}

/// Checks what follows a host: nothing, or a colon and digits.
fn check_port(port: &str) -> Result<(), String> {
    let digits = port
        .strip_prefix(':')
        .map(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
    if port.is_empty() || digits == Some(true) {
        Ok(())
    } else {
        Err(format!("invalid port {} after host", quote(port)))
    }
}

/// Splits a host into its name without brackets and its port.
fn split_host(host: &str) -> (&str, &str) {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => (name, port),
        _ => (host, ""),
    };
    let inner = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    (inner.unwrap_or(name), port)
}

fn is_path_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*%[]".contains(&byte)
}

/// Writes a path with escapes where a path needs them.
fn escaped(path: &str) -> String {
    if path.bytes().all(is_path_letter) {
        return path.to_owned();
    }
    let mut made = String::new();
    for byte in unescaped(path, false) {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte) {
            made.push(char::from(byte));
        } else {
            made.push_str(&format!("%{byte:02X}"));
        }
    }
    made
}

fn unescaped(text: &str, plus_is_space: bool) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut made, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let escape = (*byte == b'%').then(|| escape_at(text, at)).flatten();
        if let Some(code) = escape {
            made.push(code);
            at += 3;
            continue;
        }
        made.push(match byte {
            b'+' if plus_is_space => b' ',
            byte => *byte,
        });
        at += 1;
    }
    made
}

fn query<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let url = of(args)?;
    let mut found: BTreeMap<String, Vec<Value<'a>>> = BTreeMap::new();
    for pair in url.query.split('&') {
        context.budget.elements(3)?;
        context.budget.make(2 * pair.len())?;
        if pair.is_empty() || pair.contains(';') || check_escapes(pair).is_err() {
            continue;
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let text = |part: &str| String::from_utf8_lossy(&unescaped(part, true)).into_owned();
        found
            .entry(text(name))
            .or_default()
            .push(Value::text(text(value)));
    }
    let entries = found
        .into_iter()
        .map(|(name, values)| (Key::String(Text::from(name)), Value::list(values)));
    Ok(Value::map(entries.collect()))
}

#[cfg(test)]
mod tests {
    use super::{Form, is_request_uri, parse, read, split_host};

    fn complaint(text: &str) -> Option<String> {
        read(text, Form::Request).err()
    }

    #[test]
    fn the_uri_of_a_request_has_no_fragment() {
        for good in ["*", "http://a/b#c", "http://a?b#%zz", "mailto:a#b", "//a b"] {
            assert_eq!(complaint(good), None, "{good}");
            assert!(is_request_uri(good), "{good}");
        }
        for (bad, why) in [
            ("http://a#b", "invalid character \"#\" in host name"),
            ("http://a:80#b", "invalid port \":80#b\" after host"),
            ("http://a#b@c", "net/url: invalid userinfo"),
            ("/a#%zz", "invalid URL escape \"%zz\""),
            ("/%2é", "invalid URL escape \"%2\\xc3\""),
            ("/%éx", "invalid URL escape \"%é\""),
            ("*#a", "invalid URI for request"),
            ("", "empty url"),
        ] {
            assert_eq!(complaint(bad).as_deref(), Some(why), "{bad}");
            assert!(!is_request_uri(bad), "{bad}");
        }
    }

    #[test]
    fn urls_are_equal_if_go_writes_them_alike() {
        let is_equal = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| parse(text).expect("a URL"));
            super::Opaque::equals(&one, &other)
        };
        assert!(is_equal("HTTP://a", "http://a"));
        assert!(is_equal("http://a/#", "http://a/"));
        assert!(!is_equal("http://a/#b", "http://a/"));
        assert!(!is_equal("http://A/", "http://a/"));
    }

    #[test]
    fn a_url_is_the_uri_of_a_request_without_the_fragment() {
        for (text, host, path, query) in [
            ("*", "", "*", ""),
            ("http://a/b?c#d", "a", "/b", "c"),
            ("/b#c?d", "", "/b", ""),
            ("//a/b", "a", "/b", ""),
            ("///a/b", "", "///a/b", ""),
            ("http:///b#", "", "/b", ""),
            ("mailto:b?c#d", "", "", "c"),
        ] {
            let url = parse(text).expect("a URL");
            assert_eq!((&*url.host, &*url.path, &*url.query), (host, path, query));
        }
        for (text, why) in [
            (
                "http://a#b",
                "parse \"http://a#b\": invalid character \"#\" in host name",
            ),
            (
                "//a b/c#d",
                "parse \"//a b/c\": invalid character \" \" in host name",
            ),
            ("/a?b#%zz", "parse \"/a?b#%zz\": invalid URL escape \"%zz\""),
        ] {
            assert_eq!(parse(text).err().as_deref(), Some(why));
        }
    }

    #[test]
    fn brackets_of_a_host_enclose_all_of_an_address_of_ipv6() {
        for good in [
            "https://[::1]",
            "https://[::1]:80/p",
            "https://[fe80::1%25en0]",
        ] {
            assert_eq!(complaint(good), None, "{good}");
        }
        for (bad, why) in [
            ("https://example.c[om:80/p", "invalid IP-literal"),
            ("https://[::1][::2]", "invalid IP-literal"),
            ("https://[192.0.2.1]", "invalid IP-literal"),
            ("https://[::1", "missing ']' in host"),
            ("https://[::1]x", "invalid port \"x\" after host"),
            (
                "https://[a]",
                "invalid host: ParseAddr(\"a\"): unable to parse IP",
            ),
        ] {
            assert_eq!(complaint(bad).as_deref(), Some(why), "{bad}");
        }
    }

    #[test]
    fn a_host_has_one_colon_in_urls_of_the_web_and_no_escaped_ascii() {
        for good in ["db://a:1,b:2", "https://%25", "https://%C3%A9"] {
            assert_eq!(complaint(good), None, "{good}");
        }
        for (bad, why) in [
            ("HTTP://a:1,b:2", "invalid port \":1,b:2\" after host"),
            ("https://a%20b", "invalid URL escape \"%20\""),
        ] {
            assert_eq!(complaint(bad).as_deref(), Some(why), "{bad}");
        }
    }

    #[test]
    fn letters_of_a_host_and_of_its_zone_are_those_that_go_reads() {
        for good in [
            "http://a<b>/",
            "http://a\"b/",
            "http://\u{e9}%C3%A9/",
            "http://[fe80::1%25a%20b]/",
            "http://[fe80::1%25%61%25]/",
        ] {
            assert_eq!(complaint(good), None, "{good}");
        }
        for (bad, why) in [
            ("http://a b/", "invalid character \" \" in host name"),
            ("http://a^b%zz/", "invalid character \"^\" in host name"),
            ("http://%zz^/", "invalid URL escape \"%zz\""),
            (
                "http://[fe80::1%25a b]/",
                "invalid character \" \" in host name",
            ),
            ("http://[::1%25%00]/", "invalid URL escape \"%00\""),
            ("http://[::1%25%C3%A9]/", "invalid URL escape \"%C3\""),
            (
                "http://[::1%25]/",
                "invalid host: ParseAddr(\"::1%\"): zone must be a non-empty string",
            ),
        ] {
            assert_eq!(complaint(bad).as_deref(), Some(why), "{bad}");
        }
    }

    #[test]
    fn a_host_is_returned_without_escapes() {
        for (text, host, name, port) in [
            ("https://%C3%A9", "\u{e9}", "\u{e9}", ""),
            ("https://a%25b:80/%20", "a%b:80", "a%b", "80"),
            (
                "https://[fe80::1%25en%20o]:1/",
                "[fe80::1%en o]:1",
                "fe80::1%en o",
                "1",
            ),
        ] {
            let url = parse(text).expect("a URL");
            assert_eq!(url.host, host);
            assert_eq!(split_host(&url.host), (name, port));
        }
    }

    #[test]
    fn a_user_with_letters_that_need_an_escape_makes_no_url() {
        for good in [
            "https://user:pw@h/p",
            "https://u@er:p@w@h/p",
            "https://a%5Db@h",
            "https://:@h",
        ] {
            assert_eq!(complaint(good), None, "{good}");
        }
        for bad in ["https://use]r:pw@h/p", "https://a b@h", "https://\u{e9}@h"] {
            let why = complaint(bad);
            assert_eq!(why.as_deref(), Some("net/url: invalid userinfo"), "{bad}");
        }
        for bad in ["https://%a:pw@h", "https://user:%a@h"] {
            let why = complaint(bad).expect("the escape is cut off");
            assert_eq!(why, "invalid URL escape \"%a\"", "{bad}");
        }
    }
}

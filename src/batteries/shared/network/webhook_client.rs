//! The address of a webhook: a URL, or a service of the plane.

use crate::shared::validation::members::present;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names;
use polyplane_apimachinery::quote::quote;

const FORM: &str = "; desired format: https://host[/path]";

/// Checks that a webhook has exactly one of URL and service.
pub fn validate_client(errors: &mut Complaints, client: &Value, path: &Path<'_>) {
    match (client["url"].as_str(), present(&client["service"])) {
        (Some(url), false) => validate_url(errors, url, &path.child("url")),
        (None, true) => validate_service(errors, &client["service"], &path.child("service")),
        _ => errors.push(FieldError::required(
            path,
            "exactly one of url or service is required",
        )),
    }
}

fn validate_url(errors: &mut Complaints, text: &str, path: &Path<'_>) {
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(reason) => {
            let detail = format!(
                "url must be a valid URL: parse {}: {reason}{FORM}",
                quote(text)
            );
            errors.push(FieldError::required(path, detail));
            return;
        }
    };
    if url.scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(FieldError::invalid(path, url.scheme.as_str(), detail));
    }
    if url.host.is_empty() {
        errors.push(FieldError::invalid(
            path,
            "",
            format!("host must be specified{FORM}"),
        ));
    }
    if let Some(user) = url.user {
        errors.push(FieldError::invalid(
            path,
            user,
            "user information is not permitted in the URL",
        ));
    }
    if !url.fragment.is_empty() {
        errors.push(FieldError::invalid(
            path,
            url.fragment,
            "fragments are not permitted in the URL",
        ));
    }
    if !url.query.is_empty() {
        errors.push(FieldError::invalid(
            path,
            url.query,
            "query parameters are not permitted in the URL",
        ));
    }
}

/// Validates the service of a webhook. Upstream confuses its name and namespace: the error about a
/// missing one names the other.
fn validate_service(errors: &mut Complaints, service: &Value, path: &Path<'_>) {
    for (field, named) in [("namespace", "name"), ("name", "namespace")] {
        if service.str_at(&[field]).is_empty() {
            errors.push(FieldError::required(&path.child(named), ""));
        }
    }
    let port = service.int_at(&["port"]).unwrap_or(0);
    let complaints = names::port_number(port);
    if !complaints.is_empty() {
        let detail = format!("port is not valid: {}", complaints.join(", "));
        errors.push(FieldError::invalid(&path.child("port"), port, detail));
    }
    if let Some(text) = service["path"].as_str() {
        validate_path(errors, text, &path.child("path"));
    }
}

fn validate_path(errors: &mut Complaints, text: &str, path: &Path<'_>) {
    match text {
        "" | "/" => return,
        "//" => {
            errors.push(FieldError::invalid(
                path,
                text,
                "segment[0] may not be empty",
            ));
            return;
        }
        _ => {}
    }
    if !text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must start with a '/'"));
    }
    // The first byte is treated as the slash, whatever it is.
    let rest = String::from_utf8_lossy(&text.as_bytes()[1..]);
    let rest = rest.strip_suffix('/').unwrap_or(&rest);
    for (at, step) in rest.split('/').enumerate() {
        if step.is_empty() {
            errors.push(FieldError::invalid(
                path,
                text,
                format!("segment[{at}] may not be empty"),
            ));
            continue;
        }
        for complaint in names::dns1123_subdomain(step) {
            errors.push(FieldError::invalid(
                path,
                text,
                format!("segment[{at}]: {complaint}"),
            ));
        }
    }
}

/// Returns true for a URL with scheme and host.
pub fn is_absolute_url(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| !url.scheme.is_empty() && !url.host.is_empty())
}

/// The parts of a URL that are checked.
#[derive(Debug, Default, PartialEq, Eq)]
struct Url {
    scheme: String,
    user: Option<String>,
    host: String,
    query: String,
    fragment: String,
}

impl Url {
    /// Parses a URL as Go does, with Go's error texts.
    fn parse(text: &str) -> Result<Self, String> {
        let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
        if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let mut url = Self {
            fragment: fragment.to_owned(),
            ..Self::default()
        };
        check_escapes(fragment)?;
        let (scheme, rest) = split_scheme(text)?;
        url.scheme = scheme.to_lowercase();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        url.query = query.to_owned();
        if !rest.starts_with('/') {
            if url.scheme.is_empty()
                && rest
                    .split('/')
                    .next()
                    .is_some_and(|first| first.contains(':'))
            {
                return Err("first path segment in URL cannot contain colon".to_owned());
            }
            if !url.scheme.is_empty() {
                return Ok(url);
            }
        }
        let mut path = rest;
        if let Some(after) = rest.strip_prefix("//")
            && (!url.scheme.is_empty() || !rest.starts_with("///"))
        {
            let end = after.find('/').unwrap_or(after.len());
            path = &after[end..];
            let (user, host) = match after[..end].rsplit_once('@') {
                Some((user, host)) => (Some(user), host),
                None => (None, &after[..end]),
            };
            url.host = check_host(host)?;
            url.user = user.map(check_user).transpose()?;
        }
        check_escapes(path)?;
        Ok(url)
    }
}

fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            b':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn check_escapes(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices('%') {
        let digits = bytes.get(at + 1..at + 3).unwrap_or_default();
        if digits.len() < 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
            let shown = String::from_utf8_lossy(&bytes[at..bytes.len().min(at + 3)]);
            return Err(format!("invalid URL escape {}", quote(&shown)));
        }
    }
    Ok(())
}

fn check_host(host: &str) -> Result<String, String> {
    let port = if host.starts_with('[') {
        let end = host
            .rfind(']')
            .ok_or_else(|| "missing ']' in host".to_owned())?;
        &host[end + 1..]
    } else {
        host.rfind(':').map_or("", |at| &host[at..])
    };
    let digits = port.strip_prefix(':');
    let fine = port.is_empty()
        || digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    if !fine {
        return Err(format!("invalid port {} after host", quote(port)));
    }
    check_escapes(host)?;
    const ALLOWED: &str = "!$&'()*+,;=:[]<>\"-_.~%";
    let bad = |letter: &char| {
        letter.is_ascii() && !letter.is_ascii_alphanumeric() && !ALLOWED.contains(*letter)
    };
    match host.chars().find(bad) {
        Some(letter) => Err(format!(
            "invalid character {} in host name",
            quote(&letter.to_string())
        )),
        None => Ok(host.to_owned()),
    }
}

fn check_user(user: &str) -> Result<String, String> {
    const ALLOWED: &str = "-._:~!$&'()*+,;=%@";
    let fine = |letter: char| letter.is_ascii_alphanumeric() || ALLOWED.contains(letter);
    if !user.chars().all(fine) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    check_escapes(user)?;
    Ok(user.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_come_apart() {
        let url = Url::parse("HTTPS://me:pw@host.example:8443/x?a=b#c").expect("a URL");
        assert_eq!(
            (url.scheme.as_str(), url.host.as_str()),
            ("https", "host.example:8443")
        );
        assert_eq!(url.user.as_deref(), Some("me:pw"));
        assert_eq!((url.query.as_str(), url.fragment.as_str()), ("a=b", "c"));
        assert_eq!(Url::parse("web").expect("a path").host, "");
        assert_eq!(Url::parse("mailto:x").expect("opaque").scheme, "mailto");
    }

    #[test]
    fn bad_urls_are_refused() {
        for (text, reason) in [
            ("://x", "missing protocol scheme"),
            ("1:2", "first path segment in URL cannot contain colon"),
            ("https://h:x/", "invalid port \":x\" after host"),
            ("https://h/%zz", "invalid URL escape \"%zz\""),
            ("https://a b/", "invalid character \" \" in host name"),
            ("https://[::1", "missing ']' in host"),
            ("https://h\n", "net/url: invalid control character in URL"),
        ] {
            assert_eq!(Url::parse(text), Err(reason.to_owned()), "{text}");
        }
    }
}

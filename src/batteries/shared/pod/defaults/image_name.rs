//! The grammar of image references, as far as defaults depend on it.

/// Returns the tag of an image reference: `latest` if neither tag nor digest is given, empty if
/// there is only a digest. Returns `None` if the text is not a reference.
pub fn tag(image: &str) -> Option<String> {
    if image.len() == 64
        && image
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    {
        return None;
    }
    let (domain, rest) = split_domain(image);
    let (named, digest) = match rest.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (rest, None),
    };
    let (path, tag) = match named.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (named, None),
    };
    let known_domain = domain.is_none_or(is_domain);
    let length = domain.map_or("docker.io".len(), str::len) + 1 + path.len();
    if !known_domain || length > 255 || !path.split('/').all(is_component) {
        return None;
    }
    if !tag.is_none_or(is_tag) || !digest.is_none_or(is_digest) {
        return None;
    }
    match (tag, digest) {
        (Some(tag), _) => Some(tag.to_owned()),
        (None, Some(_)) => Some(String::new()),
        (None, None) => Some("latest".to_owned()),
    }
}

/// Returns the registry before the first slash, if that text looks like one.
fn split_domain(image: &str) -> (Option<&str>, &str) {
    match image.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.to_lowercase() != first =>
        {
            (Some(first), rest)
        }
        _ => (None, image),
    }
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.strip_prefix('[') {
        Some(address) => {
            let Some((address, after)) = address.split_once(']') else {
                return false;
            };
            if address.is_empty()
                || !address
                    .bytes()
                    .all(|byte| byte.is_ascii_hexdigit() || byte == b':')
            {
                return false;
            }
            match after.strip_prefix(':') {
                Some(port) => ("", Some(port)),
                None if after.is_empty() => ("", None),
                None => return false,
            }
        }
        None => match domain.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (domain, None),
        },
    };
    let bracketed = domain.starts_with('[');
    let label = |label: &str| {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(inside)
    };
    (bracketed || host.split('.').all(label))
        && port
            .is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns true for lower-case words joined by one of `.`, `_`, `__` or any number of `-`.
fn is_component(component: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    if !is_word(*first) || !is_word(*last) {
        return false;
    }
    component
        .split(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit())
        .filter(|separator| !separator.is_empty())
        .all(|separator| {
            matches!(separator, "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
        })
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag
            .bytes()
            .all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let length = match digest.split_once(':') {
        Some(("sha256", _)) => 64,
        Some(("sha384", _)) => 96,
        Some(("sha512", _)) => 128,
        _ => return false,
    };
    let (_, hex) = digest.split_at("sha256:".len());
    hex.len() == length
        && hex
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::tag;

    #[test]
    fn the_tag_decides_what_latest_means() {
        let digest = format!("a/b@sha256:{}", "0".repeat(64));
        let tagged = format!("a/b:v1@sha256:{}", "0".repeat(64));
        let cases = [
            ("nginx", Some("latest")),
            ("nginx:1.27", Some("1.27")),
            ("registry.example.com:5000/app/web:latest", Some("latest")),
            ("localhost/x", Some("latest")),
            ("[::1]:5000/x", Some("latest")),
            ("UPPER/x", Some("latest")),
            (digest.as_str(), Some("")),
            (tagged.as_str(), Some("v1")),
            ("UPPER", None),
            ("", None),
            ("a___b", None),
            ("a--b", Some("latest")),
            ("with space", None),
            ("x@sha256:00", None),
        ];
        for (image, wanted) in cases {
            assert_eq!(tag(image).as_deref(), wanted, "{image}");
        }
    }
}

//! The id under which logs of client and server name a request.

use http::{HeaderMap, HeaderValue};

use crate::answer::respond::AUDIT_ID;

/// Returns the id that the client sent, or a new one.
///
/// The value is marked as sensitive. It is not secret, but the mark keeps it out of HTTP/2's table
/// of header values: ids differ for each request and would displace the other values.
pub(crate) fn of(headers: &HeaderMap) -> HeaderValue {
    let mut id = match headers.get(AUDIT_ID) {
        Some(given) if !given.is_empty() => given.clone(),
        _ => new(),
    };
    id.set_sensitive(true);
    id
}

fn new() -> HeaderValue {
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let text = polyplane_registry::environment::random_uuid()
        .hyphenated()
        .encode_lower(&mut text);
    HeaderValue::from_str(text).expect("an id is ASCII")
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_are_distinct_and_well_formed() {
        let ids: std::collections::BTreeSet<String> = (0..200)
            .map(|_| super::new().to_str().expect("ASCII").to_owned())
            .collect();
        assert_eq!(ids.len(), 200);
        for id in ids {
            let parsed = uuid::Uuid::parse_str(&id).expect("an id");
            assert_eq!(parsed.get_version_num(), 4);
        }
    }
}

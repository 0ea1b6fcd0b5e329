//! Splits the raw path of a request into the plane and the path inside it.
//!
//! Invariant: the plane is read from the first segments of the *raw* path, before anything is
//! decoded, and exactly once. The rest is decoded afterwards and can never name another plane.

use std::borrow::Cow;

/// Longest name or path of planes, in bytes. Longer ones would cost a lookup of text that no plane
/// has.
const REFERENCE_BYTES_MAX: usize = 512;

/// The plane that a request names, not looked up yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneReference<'a> {
    /// The root plane, which holds the ControlPlanes.
    Root,
    /// A plane by its name; a path of names such as `root:team:dev` is reserved for later.
    Named(&'a str),
    /// A plane by its immutable id.
    Id(&'a str),
}

impl<'a> PlaneReference<'a> {
    /// Returns the name or id that the request contains.
    pub(crate) fn name(&self) -> &'a str {
        match self {
            Self::Root => "root",
            Self::Named(name) | Self::Id(name) => name,
        }
    }
}

/// A routed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route<'a> {
    /// The plane that the path names.
    pub plane: PlaneReference<'a>,
    /// The decoded path inside the plane; begins with `/`.
    pub path: Cow<'a, str>,
}

/// The reason why a path cannot be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RouteError {
    /// No plane can have this name.
    #[error("no plane can have this name")]
    NoPlane,
    /// The path is not UTF-8 once decoded.
    #[error("the path is badly encoded")]
    Encoding,
}

const PREFIX: &str = "/clusters/";
const BY_ID: &str = "/control-plane";

impl<'a> Route<'a> {
    /// Returns the route of a path whose plane cannot exist.
    pub(crate) const fn nowhere() -> Self {
        Self {
            plane: PlaneReference::Root,
            path: Cow::Borrowed(""),
        }
    }

    /// Routes the raw path of a request to a server that has the root plane alone.
    ///
    /// # Errors
    /// Returns an error if the path is not UTF-8 once decoded.
    pub(crate) fn of_root(raw: &'a str) -> Result<Self, RouteError> {
        Ok(Self {
            plane: PlaneReference::Root,
            path: decode(raw)?,
        })
    }

    /// Routes the raw path of a request.
    ///
    /// # Errors
    /// Returns an error if the path names a plane that cannot exist, or is not UTF-8 once decoded.
    pub(crate) fn parse(raw: &'a str) -> Result<Self, RouteError> {
        let Some(rest) = raw.strip_prefix(PREFIX) else {
            return Self::of_root(raw);
        };
        let (name, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if !may_name_a_plane(name) {
            return Err(RouteError::NoPlane);
        }
        let (plane, path) = match path.strip_prefix(BY_ID) {
            Some(inner) if inner.is_empty() || inner.starts_with('/') => {
                (PlaneReference::Id(name), inner)
            }
            _ if name == "root" => (PlaneReference::Root, path),
            _ => (PlaneReference::Named(name), path),
        };
        let path = if path.is_empty() {
            Cow::Borrowed("/")
        } else {
            decode(path)?
        };
        Ok(Self { plane, path })
    }
}

/// Returns whether a plane can have this name. Names are lower-case labels, joined by dots; paths
/// join names by colons.
fn may_name_a_plane(name: &str) -> bool {
    let sound = |label: &str| {
        let bytes = label.as_bytes();
        let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        !bytes.is_empty()
            && bytes.iter().all(inner)
            && bytes[0] != b'-'
            && bytes[bytes.len() - 1] != b'-'
    };
    name.len() <= REFERENCE_BYTES_MAX && name.split([':', '.']).all(sound)
}

/// Decodes percent escapes. A malformed escape is an error, as in Go's `net/url`.
pub(crate) fn decode(raw: &str) -> Result<Cow<'_, str>, RouteError> {
    if !raw.contains('%') {
        return Ok(Cow::Borrowed(raw));
    }
    decode_escapes(raw, Plus::Literal)
        .map(Cow::Owned)
        .ok_or(RouteError::Encoding)
}

/// The meaning of a plus sign.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    Literal,
    Space,
}

fn decode_escapes(raw: &str, plus: Plus) -> Option<String> {
    let hex = |byte: u8| char::from(byte).to_digit(16);
    let bytes = raw.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'%' => {
                let high = hex(*bytes.get(at + 1)?)?;
                let low = hex(*bytes.get(at + 2)?)?;
                out.push(u8::try_from(high * 16 + low).ok()?);
                at += 3;
                continue;
            }
            b'+' if plus == Plus::Space => out.push(b' '),
            other => out.push(other),
        }
        at += 1;
    }
    String::from_utf8(out).ok()
}

/// Decodes the key of a pair as [`parse_query`] does; `None` if an escape is malformed.
pub(crate) fn decode_key(raw: &str) -> Option<String> {
    decode_escapes(raw, Plus::Space)
}

/// Returns the parameters of a query in their order. As in upstream, pairs that are badly encoded
/// are left out.
pub(crate) fn parse_query(raw: Option<&str>) -> Vec<(String, String)> {
    let Some(raw) = raw.filter(|raw| !raw.is_empty()) else {
        return Vec::new();
    };
    raw.split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';'))
        .filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((
                decode_escapes(key, Plus::Space)?,
                decode_escapes(value, Plus::Space)?,
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(raw: &str) -> Result<(PlaneReference<'_>, String), RouteError> {
        Route::parse(raw).map(|route| (route.plane, route.path.into_owned()))
    }

    #[test]
    fn the_plane_is_cut_off_once() {
        use PlaneReference::{Id, Named, Root};
        let cases = [
            ("/api", Root, "/api"),
            ("/clusters", Root, "/clusters"),
            ("/clusters/root", Root, "/"),
            ("/clusters/root/api/v1", Root, "/api/v1"),
            ("/clusters/team-a/api/v1", Named("team-a"), "/api/v1"),
            ("/clusters/team-a", Named("team-a"), "/"),
            (
                "/clusters/root:team:dev/api",
                Named("root:team:dev"),
                "/api",
            ),
            ("/clusters/abc/control-plane/api", Id("abc"), "/api"),
            ("/clusters/abc/control-plane", Id("abc"), "/"),
            (
                "/clusters/abc/control-planes",
                Named("abc"),
                "/control-planes",
            ),
            ("/clusters/a/clusters/b/api", Named("a"), "/clusters/b/api"),
            ("/clusters/a/../b/api", Named("a"), "/../b/api"),
            ("/clusters/a/%2e%2e/b/api", Named("a"), "/../b/api"),
            (
                "/clusters/a/api/v1/namespaces/x%2Fy",
                Named("a"),
                "/api/v1/namespaces/x/y",
            ),
            ("/%63lusters/a/api", Root, "/clusters/a/api"),
            ("//clusters/a/api", Root, "//clusters/a/api"),
            ("/clusters%2Fa/api", Root, "/clusters/a/api"),
            ("/./clusters/a/api", Root, "/./clusters/a/api"),
        ];
        for (raw, plane, path) in cases {
            assert_eq!(parse(raw), Ok((plane, path.to_owned())), "{raw}");
        }
    }

    #[test]
    fn what_no_plane_can_be_called_is_refused() {
        for raw in [
            "/clusters/",
            "/clusters//api",
            "/clusters/../api",
            "/clusters/./api",
            "/clusters/a%2Fb/api",
            "/clusters/%61/api",
            "/clusters/A/api",
            "/clusters/-a/api",
            "/clusters/a:/api",
            "/clusters/a b/api",
        ] {
            assert_eq!(parse(raw), Err(RouteError::NoPlane), "{raw}");
        }
        assert_eq!(parse("/api/%zz"), Err(RouteError::Encoding));
        assert_eq!(parse("/api/%ff"), Err(RouteError::Encoding));
        assert_eq!(parse("/api/%f"), Err(RouteError::Encoding));
    }

    #[test]
    fn queries_keep_order_and_drop_what_is_badly_encoded() {
        let parsed = parse_query(Some("a=1&b=x%20y+z&&c&a=2&bad=%zz&d;e=1"));
        let expected = [("a", "1"), ("b", "x y z"), ("c", ""), ("a", "2")];
        let expected: Vec<_> = expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        assert_eq!(parsed, expected);
        assert!(parse_query(None).is_empty());
    }

    /// Generates paths from segments that attackers combine.
    fn hostile() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("clusters"),
            Just("root"),
            Just("team-a"),
            Just("team-b"),
            Just(".."),
            Just("."),
            Just(""),
            Just("%2e%2e"),
            Just("%2F"),
            Just("%2f.."),
            Just("api"),
            Just("v1"),
            Just("namespaces"),
            Just("control-plane"),
            Just("%63lusters"),
            Just("team-a%2F..%2Fteam-b"),
            Just("a%00"),
            Just("%25"),
            Just("..;"),
            Just("\\..\\"),
        ];
        proptest::collection::vec(piece, 0..9).prop_map(|pieces| format!("/{}", pieces.join("/")))
    }

    proptest! {
        /// The plane is the one that the second raw segment names, character by character, or the
        /// root.
        #[test]
        fn no_path_reaches_another_plane(raw in hostile()) {
            let mut segments = raw[1..].split('/');
            let (first, second) = (segments.next(), segments.next());
            match Route::parse(&raw) {
                Ok(Route { plane: PlaneReference::Named(name) | PlaneReference::Id(name), .. }) => {
                    prop_assert_eq!(first, Some("clusters"));
                    prop_assert_eq!(second, Some(name));
                }
                Ok(Route { plane: PlaneReference::Root, .. }) => {
                    let named = first == Some("clusters") && second.is_some();
                    prop_assert!(!named || second == Some("root"));
                }
                Err(_) => {}
            }
        }

        #[test]
        fn anything_at_all_is_routed_or_refused(raw in "/.{0,64}") {
            if let Ok(route) = Route::parse(&raw) {
                prop_assert!(route.path.starts_with('/'));
            }
        }

        #[test]
        fn a_path_survives_the_prefix(path in "(/[a-z0-9.%~-]{0,8}){1,5}") {
            let prefixed = format!("/clusters/team-a{path}");
            let (own, root) = (Route::parse(&prefixed), Route::parse(&path));
            if path.starts_with("/control-plane") || path.starts_with("/clusters/") {
                return Ok(());
            }
            match (own, root) {
                (Ok(own), Ok(root)) => {
                    prop_assert_eq!(own.plane, PlaneReference::Named("team-a"));
                    prop_assert_eq!(own.path, root.path);
                }
                (own, root) => prop_assert_eq!(own.is_err(), root.is_err()),
            }
        }
    }
}

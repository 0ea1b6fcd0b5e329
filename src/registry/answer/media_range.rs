//! The ranges of an Accept header, as upstream reads and orders them.

/// One range of an Accept header.
#[derive(Clone, Debug, PartialEq)]
pub struct MediaRange<'a> {
    /// What stands before the slash: `application` or `*`.
    kind: &'a str,
    /// What stands after it: `json` or `*`.
    subkind: &'a str,
    /// The parameters other than `q`, in order.
    params: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl<'a> MediaRange<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';');
        let essence = match trimmed(parts.next()?) {
            "*" | "*/" => "*/*",
            essence => essence,
        };
        let (kind, subkind) = essence.split_once('/')?;
        // Go splits at each slash, and passes over nothing at the end.
        let subkind = subkind.strip_suffix('/').unwrap_or(subkind);
        if subkind.is_empty() || subkind.contains('/') {
            return None;
        }
        let mut range = Self {
            kind: trimmed(kind),
            subkind: trimmed(subkind),
            params: Vec::new(),
            quality: 1.0,
        };
        for part in parts {
            let Some((key, value)) = part.split_once('=') else {
                continue;
            };
            let value = value.strip_suffix('=').unwrap_or(value);
            if value.is_empty() || value.contains('=') {
                continue;
            }
            match trimmed(key) {
                // What is no number is none of it.
                "q" => range.quality = value.parse().unwrap_or(0.0),
                key => range.params.push((key, trimmed(value))),
            }
        }
        Some(range)
    }

    /// Returns the last value of a parameter, or an empty text if it is absent.
    pub fn param(&self, name: &str) -> &'a str {
        let found = self.params.iter().rfind(|(key, _)| *key == name);
        found.map_or("", |(_, value)| value)
    }

    /// Returns whether the range has one of these parameters.
    pub fn has_any(&self, names: &[&str]) -> bool {
        self.params.iter().any(|(key, _)| names.contains(key))
    }

    /// Returns true if this range accepts `essence`.
    pub fn takes(&self, essence: &str) -> bool {
        let (kind, subkind) = essence.split_once('/').unwrap_or((essence, ""));
        let is_kind = self.kind == kind && (self.subkind == "*" || self.subkind == subkind);
        is_kind || (self.kind == "*" && self.subkind == "*")
    }

    /// Returns whether this range comes before another one: if its quality is higher, or if it is not as
    /// general. Of two ranges each may come before the other.
    fn is_before(&self, other: &Self) -> bool {
        self.quality > other.quality
            || self.kind != "*" && other.kind == "*"
            || self.subkind != "*" && other.subkind == "*"
    }
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(' ')
}

/// Ranges up to which they are put into exactly upstream's order. More are sorted in a time that does not
/// grow with the square of their number.
const ORDERED_MAX: usize = 12;

/// Returns the ranges of an Accept header, most preferred first. Without the header every type is
/// accepted.
///
/// As upstream, a quality of 0 refuses nothing: such a range is the last one.
pub fn ranges(accept: &str) -> Vec<MediaRange<'_>> {
    let accept = if accept.is_empty() { "*/*" } else { accept };
    let mut ranges: Vec<_> = accept.split(',').filter_map(MediaRange::parse).collect();
    if ranges.len() > ORDERED_MAX {
        let general = |range: &MediaRange<'_>| (range.kind == "*", range.subkind == "*");
        ranges.sort_by(|a, b| {
            let by_quality = b.quality.total_cmp(&a.quality);
            by_quality.then_with(|| general(a).cmp(&general(b)))
        });
        return ranges;
    }
    // By insertion, because the order in which two ranges are compared decides where each may come before
    // the other.
    for end in 1..ranges.len() {
        for at in (1..=end).rev() {
            if !ranges[at].is_before(&ranges[at - 1]) {
                break;
            }
            ranges.swap(at, at - 1);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stand_in_upstreams_order() {
        let order = |accept: &str| {
            let sorted = ranges(accept);
            let names: Vec<&str> = sorted.iter().map(|range| range.subkind).collect();
            names.join(" ")
        };
        for (accept, expected) in [
            ("a/x, a/y, a/z", "x y z"),
            ("a/x;q=0.1, a/y;q=0.5, a/z", "z y x"),
            ("a/x;q=x, a/y;q=0.1", "y x"),
            ("*/*, a/x", "x *"),
            // Each of the two may come before the other: the later one does.
            ("*/*, a/x;q=0.5", "x *"),
            ("a/x;q=0.5, */*", "* x"),
        ] {
            assert_eq!(order(accept), expected, "{accept}");
        }
    }

    /// Each of so many ranges must not be compared with each other one.
    #[test]
    fn very_many_ranges_are_sorted() {
        let mut accept: String = (0..50_000).map(|at| format!("a/{at},")).collect();
        accept.push_str("*/*,b/c;q=0.5,*/*;q=1.5");
        let sorted = ranges(&accept);
        let at = |index: usize| sorted[index].subkind;
        assert_eq!([at(0), at(1), at(50_000)], ["*", "0", "49999"]);
        assert_eq!([at(50_001), at(50_002)], ["*", "c"]);
    }
}

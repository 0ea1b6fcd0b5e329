//! Semantic versions, in the order of <https://semver.org>.

use std::cmp::Ordering;

/// A semantic version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SemanticVersion {
    numbers: [u64; 3],
    /// The identifiers after the dash.
    pre: Vec<Identifier>,
}

/// An identifier of a version that is not released. Numbers come before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Word(String),
}

impl SemanticVersion {
    /// Reads a version; `None` if the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let (major, minor) = (number(parts.next()?)?, number(parts.next()?)?);
        let rest = parts.next()?;
        let (rest, build) = match rest.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (rest, None),
        };
        let is_word = |word: &str| {
            let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            !word.is_empty() && word.bytes().all(is_good)
        };
        if build.is_some_and(|build| !build.split('.').all(is_word)) {
            return None;
        }
        let (patch, pre) = match rest.split_once('-') {
            Some((patch, pre)) => (patch, Some(pre)),
            None => (rest, None),
        };
        let identifier = |word: &str| match word.bytes().all(|byte| byte.is_ascii_digit()) {
            true => number(word).map(Identifier::Number),
            false => is_word(word).then(|| Identifier::Word(word.to_owned())),
        };
        let pre = pre.map_or_else(
            || Some(Vec::new()),
            |pre| pre.split('.').map(identifier).collect(),
        );
        Some(Self {
            numbers: [major, minor, number(patch)?],
            pre: pre?,
        })
    }
}

impl Ord for SemanticVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = self.numbers.cmp(&other.numbers);
        numbers.then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.pre.cmp(&other.pre),
        })
    }
}

impl PartialOrd for SemanticVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Reads a number without zeros in front.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = text.len() == 1 || !text.starts_with('0');
    (is_number && is_short).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_and_others_refused() {
        let ordered = [
            "0.9.10",
            "1.0.0-2",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-rc.1",
            "1.0.0",
            "1.0.1+b",
        ];
        let ordered = ordered.map(|text| SemanticVersion::parse(text).expect(text));
        assert!(ordered.is_sorted_by(|left, right| left < right));
        for text in [
            "", "1", "1.2", "1.2.x", "01.2.3", "1.2.3-", "1.2.3+", "1.2.3-01", "v1.2.3", "1.2.3.4",
        ] {
            assert_eq!(SemanticVersion::parse(text), None, "{text}");
        }
    }
}

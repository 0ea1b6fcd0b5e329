//! The check which etcd versions may be used.
//!
//! Answers rest on linearizable reads. Before 3.4.42, 3.5.28 and 3.6.9 such a read could be stale
//! after a pause of the member's process or a change of leader, so older members are refused.

use std::fmt;

/// An etcd version as a member reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The first sound version of each release line; lines after the last one are sound.
const SOUND: [Version; 3] = [version(3, 4, 42), version(3, 5, 28), version(3, 6, 9)];

const fn version(major: u32, minor: u32, patch: u32) -> Version {
    Version {
        major,
        minor,
        patch,
    }
}

impl Version {
    /// Parses `3.6.9`, also with a pre-release or build suffix. A pre-release counts as the version
    /// before it, so that `3.6.9-rc.0` is not taken for `3.6.9`.
    fn parse(text: &str) -> Option<(Self, bool)> {
        let (numbers, pre_release) = match text.split_once(['-', '+']) {
            Some((numbers, _)) => (numbers, text[numbers.len()..].starts_with('-')),
            None => (text, false),
        };
        let mut parts = numbers.split('.').map(str::parse::<u32>);
        let mut next = || parts.next()?.ok();
        let found = version(next()?, next()?, next()?);
        parts.next().is_none().then_some((found, pre_release))
    }
}

/// Returns the reason, for an operator, why a member of this version is refused; `None` if it is
/// not.
pub(super) fn refusal(text: &str) -> Option<String> {
    let Some((found, pre_release)) = Version::parse(text) else {
        return Some(format!("its version {text:?} cannot be read"));
    };
    let line = (found.major, found.minor);
    let sound = SOUND
        .iter()
        .find(|sound| (sound.major, sound.minor) == line);
    let wanted = match sound {
        Some(sound) if found > *sound || found == *sound && !pre_release => return None,
        Some(sound) => *sound,
        None if found > SOUND[SOUND.len() - 1] => return None,
        None => SOUND[0],
    };
    Some(format!(
        "it runs etcd {text}, whose linearizable reads can be stale; upgrade it to {wanted} or newer"
    ))
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn versions_with_stale_reads_are_refused() {
        let refused = [
            "3.4.41",
            "3.5.27",
            "3.6.8",
            "3.5.0",
            "3.3.27",
            "2.3.8",
            "3.6.9-rc.0",
            "3.5",
            "",
            "x",
            "3.6.9.1",
        ];
        for text in refused {
            assert!(refusal(text).is_some(), "{text}");
        }
        let refusal_text = refusal("3.5.27").expect("refused");
        assert!(
            refusal_text.contains("3.5.27") && refusal_text.contains("3.5.28"),
            "{refusal_text}"
        );
    }

    #[test]
    fn versions_without_are_taken() {
        let taken = [
            "3.4.42",
            "3.5.28",
            "3.6.9",
            "3.6.10",
            "3.5.30",
            "3.7.0",
            "3.7.3",
            "4.0.0",
            "3.6.9+build",
            "3.6.10-rc.0",
            "3.7.0-rc.1",
        ];
        for text in taken {
            assert_eq!(refusal(text), None, "{text}");
        }
    }
}

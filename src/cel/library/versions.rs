//! Semantic versions.

use std::any::Any;
use std::cmp::Ordering;
use std::sync::Arc;

use polyplane_strconv::number;
use polyplane_strconv::quote::quote;

use crate::library::{Context, Library};
use crate::value::{Fault, Opaque, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        string_to_semver: semver(string) -> kubernetes.Semver
        string_bool_to_semver: semver(string, bool) -> kubernetes.Semver
        is_semver_string: isSemver(string) -> bool
        is_semver_string_bool: isSemver(string, bool) -> bool
        semver_major: major:(kubernetes.Semver) -> int
        semver_minor: minor:(kubernetes.Semver) -> int
        semver_patch: patch:(kubernetes.Semver) -> int",
    runs: &[
        ("semver", |env, args| {
            parse(env, args)?
                .map(|version| Value::Opaque(Arc::new(version)))
                .map_err(Fault::error)
        }),
        ("isSemver", |env, args| {
            parse(env, args).map(|parsed| Value::Bool(parsed.is_ok()))
        }),
        ("major", |_, args| part(args, 0)),
        ("minor", |_, args| part(args, 1)),
        ("patch", |_, args| part(args, 2)),
    ],
    types: &[],
};

/// A part of a prerelease. Numbers come before names.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Name(String),
}

#[derive(Debug)]
struct Version {
    numbers: [u64; 3],
    prerelease: Vec<Identifier>,
}

impl Version {
    fn order(&self, other: &Self) -> Ordering {
        let numbers = self.numbers.cmp(&other.numbers);
        numbers.then_with(|| {
            // A release comes after its prereleases.
            let is_release = |version: &Self| version.prerelease.is_empty();
            is_release(self)
                .cmp(&is_release(other))
                .then_with(|| self.prerelease.cmp(&other.prerelease))
        })
    }
}

impl Opaque for Version {
    fn type_name(&self) -> &'static str {
        "kubernetes.Semver"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        self.compare(other) == Some(Ordering::Equal)
    }

    fn compare(&self, other: &dyn Opaque) -> Option<Ordering> {
        other.as_any().downcast_ref().map(|other| self.order(other))
    }

    fn bytes(&self) -> usize {
        let name = |part: &Identifier| match part {
            Identifier::Number(_) => 0,
            Identifier::Name(name) => name.len(),
        };
        let names: usize = self.prerelease.iter().map(name).sum();
        64 + self.prerelease.len() * size_of::<Identifier>() + names
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn part<'a>(args: &[Value<'a>], at: usize) -> Outcome<'a> {
    let found = match args {
        [Value::Opaque(value)] => value.as_any().downcast_ref::<Version>(),
        _ => None,
    };
    let version = found.ok_or_else(Fault::no_overload)?;
    let number = version.numbers.get(at).copied().unwrap_or(0);
    // Go converts the unsigned number, so a large one becomes negative.
    Ok(Value::Int(number.cast_signed()))
}

fn parse(_: Context<'_>, args: &[Value<'_>]) -> Result<Result<Version, String>, Fault> {
    match args {
        [Value::String(text)] | [Value::String(text), Value::Bool(false)] => Ok(strict(text)),
        [Value::String(text), Value::Bool(true)] => {
            Ok(normalized(text).and_then(|text| strict(&text)))
        }
        _ => Err(Fault::no_overload()),
    }
}

/// Takes a leading `v` and leading zeros away and adds missing numbers.
fn normalized(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
    for part in &mut parts {
        if part.len() > 1 {
            let trimmed = part.trim_start_matches('0');
            let digit = trimmed.starts_with(|letter: char| letter.is_ascii_digit());
            *part = if digit {
                trimmed.to_owned()
            } else {
                format!("0{trimmed}")
            };
        }
    }
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".to_owned());
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

fn strict(text: &str) -> Result<Version, String> {
    if text.is_empty() {
        return Err("Version string empty".to_owned());
    }
    let parts: Vec<&str> = text.splitn(3, '.').collect();
    let [major, minor, rest] = parts.as_slice() else {
        return Err("No Major.Minor.Patch elements found".to_owned());
    };
    let (rest, build) = match rest.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (*rest, None),
    };
    let (patch, prerelease) = match rest.split_once('-') {
        Some((patch, prerelease)) => (patch, Some(prerelease)),
        None => (rest, None),
    };
    let numbers = [
        number(major, "Major")?,
        number(minor, "Minor")?,
        number(patch, "Patch")?,
    ];
    let prerelease = prerelease.map_or(Ok(Vec::new()), |text| {
        text.split('.').map(identifier).collect()
    })?;
    for part in build.into_iter().flat_map(|build| build.split('.')) {
        if part.is_empty() {
            return Err("Build meta data is empty".to_owned());
        }
        if !is_plain(part) {
            return Err(format!(
                "Invalid character(s) found in build meta data {}",
                quote(part)
            ));
        }
    }
    Ok(Version {
        numbers,
        prerelease,
    })
}

fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|letter| letter.is_ascii_alphanumeric() || letter == b'-')
}

fn number(text: &str, name: &str) -> Result<u64, String> {
    if !is_digits(text) {
        return Err(format!(
            "Invalid character(s) found in {} number {}",
            name.to_lowercase(),
            quote(text)
        ));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!(
            "{name} number must not contain leading zeroes {}",
            quote(text)
        ));
    }
    unsigned(text)
}

/// Returns true if a text has only digits, or nothing.
fn is_digits(text: &str) -> bool {
    text.bytes().all(|digit| digit.is_ascii_digit())
}

/// Reads digits.
fn unsigned(text: &str) -> Result<u64, String> {
    number::parse_uint(text).map_err(|error| error.to_string())
}

fn identifier(text: &str) -> Result<Identifier, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    if is_digits(text) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(format!(
                "Numeric PreRelease version must not contain leading zeroes {}",
                quote(text)
            ));
        }
        return unsigned(text).map(Identifier::Number);
    }
    if !is_plain(text) {
        let shown = quote(text);
        return Err(format!("Invalid character(s) found in prerelease {shown}"));
    }
    Ok(Identifier::Name(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_those_of_upstreams_library() {
        for (text, why) in [
            ("", "Version string empty"),
            ("1.2", "No Major.Minor.Patch elements found"),
            ("é.2.3", r#"Invalid character(s) found in major number "é""#),
            (
                "1.\n.3",
                r#"Invalid character(s) found in minor number "\n""#,
            ),
            (".2.3", r#"strconv.ParseUint: parsing "": invalid syntax"#),
            (
                "99999999999999999999.2.3",
                r#"strconv.ParseUint: parsing "99999999999999999999": value out of range"#,
            ),
            (
                "1.02.3",
                r#"Minor number must not contain leading zeroes "02""#,
            ),
            ("1.2.3-", "Prerelease is empty"),
            (
                "1.2.3-01",
                r#"Numeric PreRelease version must not contain leading zeroes "01""#,
            ),
            (
                "1.2.3+a_b",
                r#"Invalid character(s) found in build meta data "a_b""#,
            ),
        ] {
            assert_eq!(strict(text).err().as_deref(), Some(why), "{text}");
        }
    }
}

//! The levels that the labels of a namespace name.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::{FieldError, Path};
use std::fmt;

/// How much pods may see of their node, from all to least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Privileged,
    Baseline,
    Restricted,
}

/// The release of Kubernetes whose checks a level means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// 1.x, by its minor number.
    Minor(u64),
    /// The newest one.
    Latest,
}

/// A level with its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelVersion {
    pub(super) level: Level,
    pub(super) version: Version,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
            Version::Latest => write!(f, "{level}:latest"),
        }
    }
}

/// The levels of a namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// The level that pods may not violate.
    pub(super) enforce: LevelVersion,
    /// The level of which the metrics say how often it was violated.
    pub(super) audit: LevelVersion,
    /// The level of which clients are warned.
    pub(super) warn: LevelVersion,
}

impl Policy {
    /// Returns whether nothing violates the policy.
    pub(super) fn is_privileged(&self) -> bool {
        self.enforce.level == Level::Privileged && self.asks_for_nothing_else()
    }

    /// Returns whether nothing violates the levels that are not enforced.
    pub(super) fn asks_for_nothing_else(&self) -> bool {
        self.audit.level == Level::Privileged && self.warn.level == Level::Privileged
    }
}

const PREFIX: &str = "pod-security.kubernetes.io";
/// The level of a mode without a label.
const DEFAULT: LevelVersion = LevelVersion {
    level: Level::Privileged,
    version: Version::Latest,
};

/// Returns the policy that labels name, and what is wrong with them. An enforced level that cannot
/// be read is `restricted`.
pub(super) fn of_labels(labels: &Value) -> (Policy, Vec<FieldError>) {
    let mut errors = Vec::new();
    let enforce = mode(labels, "enforce", Level::Restricted, &mut errors);
    let audit = mode(labels, "audit", Level::Privileged, &mut errors);
    let warn = mode(labels, "warn", Level::Privileged, &mut errors);
    let mut policy = Policy {
        enforce: enforce.resolve(),
        audit: audit.resolve(),
        warn: warn.resolve(),
    };
    let is_enforced = matches!(enforce.level, Given::Valid(_));
    if is_enforced && warn.level == Given::Nothing && policy.enforce.level > policy.warn.level {
        policy.warn.level = policy.enforce.level;
        if warn.version.is_none() {
            policy.warn.version = policy.enforce.version;
        }
    }
    (policy, errors)
}

/// What a label says about a level.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    Nothing,
    Valid(Level),
    /// Nothing that can be read; it counts as this level.
    Invalid(Level),
}

struct Mode {
    level: Given,
    version: Option<Version>,
}

impl Mode {
    fn resolve(&self) -> LevelVersion {
        LevelVersion {
            level: match self.level {
                Given::Nothing => DEFAULT.level,
                Given::Valid(level) | Given::Invalid(level) => level,
            },
            version: self.version.unwrap_or(DEFAULT.version),
        }
    }
}

/// Reads the two labels of a mode.
fn mode(labels: &Value, name: &str, if_invalid: Level, errors: &mut Vec<FieldError>) -> Mode {
    let mut refuse = |label: &str, text: &str, detail: &str| {
        let metadata = Path::new("metadata");
        let path = metadata.child("labels");
        errors.push(FieldError::invalid(&path.key(label), text, detail));
    };
    let label = format!("{PREFIX}/{name}");
    let level = match labels.get(&label).and_then(Value::as_str) {
        None => Given::Nothing,
        Some("privileged") => Given::Valid(Level::Privileged),
        Some("baseline") => Given::Valid(Level::Baseline),
        Some("restricted") => Given::Valid(Level::Restricted),
        Some(other) => {
            let detail = "must be one of privileged, baseline, restricted";
            refuse(&label, other, detail);
            Given::Invalid(if_invalid)
        }
    };
    let label = format!("{PREFIX}/{name}-version");
    let version = labels.get(&label).and_then(Value::as_str).map(|text| {
        parse_version(text).unwrap_or_else(|| {
            refuse(&label, text, r#"must be "latest" or "v1.x""#);
            Version::Latest
        })
    });
    Mode { level, version }
}

fn parse_version(text: &str) -> Option<Version> {
    if text == "latest" {
        return Some(Version::Latest);
    }
    let minor = text.strip_prefix("v1.")?;
    let is_number = minor.bytes().all(|byte| byte.is_ascii_digit());
    let is_padded = minor.len() > 1 && minor.starts_with('0');
    if !is_number || is_padded {
        return None;
    }
    // Upstream's integers are signed.
    let minor: i64 = minor.parse().ok()?;
    Some(Version::Minor(minor.unsigned_abs()))
}

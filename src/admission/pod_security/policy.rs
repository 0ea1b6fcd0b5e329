//! The levels that the labels of a namespace name.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::status::ApiError;
use polyplane_registry::request::call::tree_of;
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

impl LevelVersion {
    const PRIVILEGED: Self = Self {
        level: Level::Privileged,
        version: Version::Latest,
    };
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// The level that pods may not violate.
    pub(super) enforce: LevelVersion,
    /// The level of which the metrics say how often it was violated.
    pub(super) audit: LevelVersion,
    /// The level of which clients are warned.
    pub(super) warn: LevelVersion,
}

impl Policy {
    /// The policy of a namespace without labels, unless a configuration has another one.
    pub(super) const PRIVILEGED: Self = Self {
        enforce: LevelVersion::PRIVILEGED,
        audit: LevelVersion::PRIVILEGED,
        warn: LevelVersion::PRIVILEGED,
    };

    /// Returns whether the same pods violate both policies.
    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
        let pairs = [
            (self.enforce, other.enforce),
            (self.audit, other.audit),
            (self.warn, other.warn),
        ];
        let is_privileged = |one: LevelVersion| one.level == Level::Privileged;
        pairs
            .into_iter()
            .all(|(own, other)| own == other || (is_privileged(own) && is_privileged(other)))
    }

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
/// What a level has to be.
pub(super) const LEVELS_WANTED: &str = "must be one of privileged, baseline, restricted";
/// What a version has to be.
pub(super) const VERSION_WANTED: &str = r#"must be "latest" or "v1.x""#;

/// Works as [`of_labels`] on the JSON text of labels, which is not parsed if it names no mode: those of
/// most namespaces do not.
///
/// # Errors
/// Returns 500 if the text cannot be read.
pub(super) fn of_labels_text(
    labels: &[u8],
    defaults: &Policy,
) -> Result<(Policy, Complaints), ApiError> {
    let prefix = PREFIX.as_bytes();
    if !labels.windows(prefix.len()).any(|part| part == prefix) {
        return Ok((*defaults, Complaints::default()));
    }
    Ok(of_labels(&tree_of(labels)?, defaults))
}

/// Returns the policy that labels name, and what is wrong with them. A mode that they do not name is that of
/// `defaults`. An enforced level that cannot be read is `restricted`.
pub(super) fn of_labels(labels: &Value, defaults: &Policy) -> (Policy, Complaints) {
    let mut errors = Complaints::default();
    let enforce = mode(labels, "enforce", Level::Restricted, &mut errors);
    let audit = mode(labels, "audit", Level::Privileged, &mut errors);
    let warn = mode(labels, "warn", Level::Privileged, &mut errors);
    let mut policy = Policy {
        enforce: enforce.or(defaults.enforce),
        audit: audit.or(defaults.audit),
        warn: warn.or(defaults.warn),
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

/// Returns the levels of a policy that labels name, for a message: those that something can violate.
pub(super) fn named(labels: &Value, policy: &Policy) -> String {
    let is_named = |mode: &str| {
        let names = [
            format!("{PREFIX}/{mode}"),
            format!("{PREFIX}/{mode}-version"),
        ];
        names.iter().any(|name| labels.get(name).is_some())
    };
    let modes = [
        ("enforce", policy.enforce),
        ("audit", policy.audit),
        ("warn", policy.warn),
    ];
    let shown: Vec<String> = modes
        .into_iter()
        .filter(|(mode, one)| one.level != Level::Privileged && is_named(mode))
        .map(|(mode, one)| format!("{mode}={one}"))
        .collect();
    shown.join(", ")
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
    fn or(&self, default: LevelVersion) -> LevelVersion {
        LevelVersion {
            level: match self.level {
                Given::Nothing => default.level,
                Given::Valid(level) | Given::Invalid(level) => level,
            },
            version: self.version.unwrap_or(default.version),
        }
    }
}

/// Reads the two labels of a mode.
fn mode(labels: &Value, name: &str, if_invalid: Level, errors: &mut Complaints) -> Mode {
    let mut refuse = |label: &str, text: &str, detail: &str| {
        let metadata = Path::new("metadata");
        let path = metadata.child("labels");
        errors.push(FieldError::invalid(&path.key(label), text, detail));
    };
    let label = format!("{PREFIX}/{name}");
    let level = match labels.get(&label).and_then(Value::as_str) {
        None => Given::Nothing,
        Some(text) => match parse_level(text) {
            Some(level) => Given::Valid(level),
            None => {
                refuse(&label, text, LEVELS_WANTED);
                Given::Invalid(if_invalid)
            }
        },
    };
    let label = format!("{PREFIX}/{name}-version");
    let version = labels.get(&label).and_then(Value::as_str).map(|text| {
        parse_version(text).unwrap_or_else(|| {
            refuse(&label, text, VERSION_WANTED);
            Version::Latest
        })
    });
    Mode { level, version }
}

/// Returns the level of this name, if there is one.
pub(super) fn parse_level(text: &str) -> Option<Level> {
    match text {
        "privileged" => Some(Level::Privileged),
        "baseline" => Some(Level::Baseline),
        "restricted" => Some(Level::Restricted),
        _ => None,
    }
}

/// Returns the version of this name, if it is one.
pub(super) fn parse_version(text: &str) -> Option<Version> {
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

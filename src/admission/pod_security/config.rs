//! The file `PodSecurityConfiguration`: the levels of namespaces without labels, and who is exempt.

use super::policy::{LEVELS_WANTED, VERSION_WANTED};
use super::policy::{Level, LevelVersion, Policy, Version, parse_level, parse_version};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::config::{ConfigError, Section, finished};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Str, Value, names};
use std::collections::BTreeSet;

/// The group-versions of the kind, which have the same fields.
const KINDS: [(&str, &str); 3] = [
    (
        "PodSecurityConfiguration",
        "pod-security.admission.config.k8s.io/v1",
    ),
    (
        "PodSecurityConfiguration",
        "pod-security.admission.config.k8s.io/v1beta1",
    ),
    (
        "PodSecurityConfiguration",
        "pod-security.admission.config.k8s.io/v1alpha1",
    ),
];
const WANTED: &str = "PodSecurityConfiguration of pod-security.admission.config.k8s.io/v1";

/// What a `PodSecurityConfiguration` says.
#[derive(Clone, Debug)]
pub(crate) struct PodSecurityConfig {
    /// The levels of a namespace whose labels name none.
    pub(super) defaults: Policy,
    usernames: BTreeSet<Str>,
    namespaces: BTreeSet<Str>,
    runtime_classes: BTreeSet<Str>,
}

impl Default for PodSecurityConfig {
    fn default() -> Self {
        Self {
            defaults: Policy::PRIVILEGED,
            usernames: BTreeSet::new(),
            namespaces: BTreeSet::new(),
            runtime_classes: BTreeSet::new(),
        }
    }
}

impl PodSecurityConfig {
    /// Reads a document.
    ///
    /// # Errors
    /// Returns everything that is wrong with it.
    pub(crate) fn of(document: &Value) -> Result<Self, ConfigError> {
        let root = Section::of_kind(document, &KINDS, WANTED)?;
        let mut errors = Complaints::default();
        let known = ["apiVersion", "kind", "defaults", "exemptions"];
        root.only(&known, &mut errors);
        let defaults = read_defaults(&document["defaults"], &mut errors);
        let path = Path::new("exemptions");
        let exempt = Section {
            value: &document["exemptions"],
            path: &path,
        };
        let known = ["usernames", "namespaces", "runtimeClasses"];
        exempt.only(&known, &mut errors);
        let namespaces = exemptions(&exempt, "namespaces", names::dns1123_label, &mut errors);
        let runtime_classes = exemptions(
            &exempt,
            "runtimeClasses",
            names::dns1123_subdomain,
            &mut errors,
        );
        let complaints = |name: &str| match name {
            "" => vec!["username must not be empty".to_owned()],
            _ => Vec::new(),
        };
        let usernames = exemptions(&exempt, "usernames", complaints, &mut errors);
        let config = Self {
            defaults,
            usernames,
            namespaces,
            runtime_classes,
        };
        finished(config, errors)
    }

    /// Returns whether no pod of a namespace is evaluated.
    pub(crate) fn exempts_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    /// Returns whether no pod that a user writes is evaluated.
    pub(crate) fn exempts_user(&self, name: &str) -> bool {
        self.usernames.contains(name)
    }

    /// Returns whether no pod with a runtime class is evaluated. The name is empty for a pod without one.
    pub(crate) fn exempts_runtime_class(&self, name: &str) -> bool {
        self.runtime_classes.contains(name)
    }

    /// Returns whether any runtime class is exempt.
    pub(super) fn has_runtime_classes(&self) -> bool {
        !self.runtime_classes.is_empty()
    }
}

fn read_defaults(value: &Value, errors: &mut Complaints) -> Policy {
    let path = Path::new("defaults");
    let section = Section { value, path: &path };
    let known = [
        "enforce",
        "enforce-version",
        "audit",
        "audit-version",
        "warn",
        "warn-version",
    ];
    section.only(&known, errors);
    let mut mode = |level: &str, version: &str| LevelVersion {
        level: match section.text(level, errors).as_str() {
            "" => Level::Privileged,
            text => parse_level(text).unwrap_or_else(|| {
                let path = path.child(level);
                errors.push(FieldError::invalid(&path, text, LEVELS_WANTED));
                Level::Restricted
            }),
        },
        version: match section.text(version, errors).as_str() {
            "" => Version::Latest,
            text => parse_version(text).unwrap_or_else(|| {
                let path = path.child(version);
                errors.push(FieldError::invalid(&path, text, VERSION_WANTED));
                Version::Latest
            }),
        },
    };
    let (enforce, warn) = (
        mode("enforce", "enforce-version"),
        mode("warn", "warn-version"),
    );
    Policy {
        enforce,
        audit: mode("audit", "audit-version"),
        warn,
    }
}

/// Reads a list of names, of which `complaints` says what is wrong with one.
fn exemptions(
    section: &Section<'_>,
    list: &str,
    complaints: impl Fn(&str) -> Vec<String>,
    errors: &mut Complaints,
) -> BTreeSet<Str> {
    let path = section.path.child(list);
    let mut names = BTreeSet::new();
    for (at, name) in section.texts(list, errors).iter().enumerate() {
        let complaints = complaints(name);
        let path = path.index(at);
        if !complaints.is_empty() {
            let why = complaints.join(", ");
            errors.push(FieldError::invalid(&path, name.as_str(), why));
        } else if !names.insert(Str::from(name.as_str())) {
            errors.push(FieldError::duplicate(&path, name.as_str()));
        }
    }
    names
}

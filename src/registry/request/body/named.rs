//! How a body names its kind.

use super::{BodyError, Expected};
use crate::kinds::table::api_version;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::{Str, Value};

/// The kind that a body names.
pub(super) struct Named {
    pub(super) group: Str,
    pub(super) version: Str,
    pub(super) kind: Str,
}

impl Named {
    /// Fills in what the body leaves out.
    pub(super) fn or(mut self, expected: Expected<'_>) -> Self {
        if self.kind.is_empty() {
            self.kind = expected.kind.into();
        }
        if self.version.is_empty() && self.group.is_empty() {
            self.version = expected.version.into();
            self.group = expected.group.into();
        }
        self
    }

    /// Returns whether this is the `expected` kind in the expected version.
    pub(super) fn is(&self, expected: Expected<'_>) -> bool {
        self.kind == expected.kind
            && self.group == expected.group
            && self.version == expected.version
    }

    /// Reports that the kind is not known in `scheme`.
    pub(super) fn unregistered(&self, scheme: &str) -> String {
        let Self {
            group,
            version,
            kind,
        } = self;
        if *version == "__internal" {
            return format!(
                "no kind {kind:?} is registered for the internal version of group {group:?} in scheme {scheme:?}"
            );
        }
        let api = api_version(group, version);
        format!("no kind {kind:?} is registered for version {api:?} in scheme {scheme:?}")
    }

    /// Reports that the kind is known but is not the `expected` one.
    pub(super) fn unconvertible(&self, expected: Expected<'_>) -> String {
        let package = match expected.group.split('.').next() {
            None | Some("") => "core",
            Some(first) => first,
        };
        self.unconvertible_to(&format!("{package}.{}", expected.kind))
    }

    /// Reports that the kind is known but is not that of a type in Go.
    pub(super) fn unconvertible_to(&self, go_type: &str) -> String {
        format!(
            "converting ({}.{}) to ({go_type}): unknown conversion",
            self.version, self.kind
        )
    }
}

/// Returns the kind that a tree names. If a name occurs more than once, the last member counts.
pub(super) fn named_kind(tree: &Value) -> Result<Named, BodyError> {
    match tree {
        Value::Object(members) => named_by(members.iter()),
        Value::Null => named_by(std::iter::empty()),
        other => Err(BodyError::NoObject(type_name(other))),
    }
}

/// Returns the kind that JSON text names. Members whose names differ only in case count too; the
/// last of them all counts.
pub(super) fn named_in_text(tree: &Value, text: &[u8]) -> Result<Named, BodyError> {
    let respelled = |name: &str| meta_member(name).is_some_and(|member| member != name);
    match tree {
        Value::Object(members) if members.keys().any(respelled) => {
            let text = String::from_utf8_lossy(text);
            let members: Vec<(String, Value)> = json::document::members(&text)
                .filter(|(name, _)| meta_member(name).is_some())
                .filter_map(|(name, value)| {
                    let parsed = json::parse(value.as_bytes(), &Limits::default());
                    Some((name.into_owned(), parsed.ok()?.value))
                })
                .collect();
            named_by(members.iter().map(|(name, value)| (name.as_str(), value)))
        }
        _ => named_kind(tree),
    }
}

/// Returns which of kind and version Go would take a member of this `name` for, ignoring case.
fn meta_member(name: &str) -> Option<&'static str> {
    let folds = |member: &str| {
        let mut rest = member.chars();
        let same = name.chars().all(|found| {
            let found = if found == '\u{212a}' { 'k' } else { found };
            rest.next().is_some_and(|wanted| {
                wanted.eq_ignore_ascii_case(&found) || wanted == 's' && found == '\u{17f}'
            })
        });
        same && rest.next().is_none()
    };
    ["kind", "apiVersion"]
        .into_iter()
        .find(|member| folds(member))
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Int(_) | Value::Float(_) | Value::Null => "number",
    }
}

pub(super) fn named_by<'v>(
    members: impl Iterator<Item = (&'v str, &'v Value)>,
) -> Result<Named, BodyError> {
    let (mut kind, mut api_version) = (Str::default(), Str::default());
    let mut wrong = None;
    for (name, value) in members {
        let Some(member) = meta_member(name) else {
            continue;
        };
        match value {
            Value::Null => {}
            Value::String(text) if member == "kind" => kind = text.clone(),
            Value::String(text) => api_version = text.clone(),
            other => {
                let found = type_name(other);
                wrong.get_or_insert(BodyError::NoText { member, found });
            }
        }
    }
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    if api_version.matches('/').count() > 1 {
        return Err(BodyError::GroupVersion(api_version));
    }
    let (group, version) = match api_version.split_once('/') {
        Some((group, version)) => (Str::from(group), Str::from(version)),
        None => (Str::default(), api_version),
    };
    Ok(Named {
        group,
        version,
        kind,
    })
}

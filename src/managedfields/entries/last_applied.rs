//! The way from client-side to server-side apply. `kubectl` alone may take what its annotation
//! explains without a conflict.

use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::value::Value;

use super::Apply;
use crate::conversion::Versions;
use crate::managers::{Conflict, Conflicts};
use crate::set::FieldSet;
use crate::walk::compare::compare;
use crate::walk::field_set::field_set;
use crate::walk::validate::{Duplicates, validate};

const KUBECTL: &str = "kubectl";
/// The annotation in which client-side apply keeps the object that it has applied.
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
const PATH: [&str; 3] = ["metadata", "annotations", ANNOTATION];

/// Returns the conflicts that the annotation of the live object does not explain; `None` if it
/// explains all.
pub(super) fn left<'s, V: Versions<'s>>(
    request: &Apply<'_, V>,
    conflicts: Conflicts,
) -> Option<Conflicts> {
    if request.writer.name != KUBECTL {
        return Some(conflicts);
    }
    let Some(explained) = explained(request) else {
        return Some(conflicts);
    };
    let left = conflicts.0.into_iter().filter_map(|conflict| {
        let fields = conflict.fields.difference(&explained);
        let manager = conflict.manager;
        (!fields.is_empty()).then_some(Conflict { manager, fields })
    });
    let left: Vec<Conflict> = left.collect();
    (!left.is_empty()).then_some(Conflicts(left))
}

/// Returns the fields that the live object still has as client-side apply has set them.
fn explained<'s, V: Versions<'s>>(request: &Apply<'_, V>) -> Option<FieldSet> {
    let text = request.live.str_at(&PATH);
    let applied = json::parse(text.as_bytes(), &Limits::default()).ok()?.value;
    if applied.str_at(&["apiVersion"]) != request.version {
        return None;
    }
    let position = request.versions.position(request.version)?;
    validate(position, request.live, Duplicates::Refused).ok()?;
    validate(position, &applied, Duplicates::Refused).ok()?;
    let differences = compare(position, &applied, request.live).ok()?;
    let fields = field_set(position, &applied);
    Some(
        fields
            .difference(&differences.modified)
            .difference(&differences.added)
            .difference(&differences.removed),
    )
}

impl<V> Apply<'_, V> {
    /// Brings the annotation of client-side apply up to date, if the result has it: it gets `sent`,
    /// the object as the client has sent it. `bytes_max` is the limit of all annotations together,
    /// beyond which it is dropped.
    pub fn sync_last_applied(&self, result: &mut Value, sent: &Value, bytes_max: usize) {
        if self.writer.name != KUBECTL || result.str_at(&PATH).is_empty() {
            return;
        }
        let mut applied = sent.clone();
        drop(applied.remove(&PATH));
        let mut text = json::to_string(&applied);
        text.push('\n');
        result.set(&PATH, text);
        let annotations = result.at(&PATH[..2]).and_then(Value::as_object);
        let bytes = annotations.map_or(0, |all| {
            let sizes = all.iter();
            let sizes = sizes.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len));
            sizes.sum()
        });
        if bytes > bytes_max {
            drop(result.remove(&PATH));
        }
    }
}

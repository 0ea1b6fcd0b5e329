//! Server-side apply: merges what the client applies into the live object.

use super::versions::ManagedKind;
use super::{ROUNDS_MAX, managed_of, put_managed, take_managed};
use crate::metadata::ANNOTATION_BYTES_MAX;
use crate::plan::{Interrupted, Run};
use crate::request::body;
use polyplane_apimachinery::status::{ApiError, Cause, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, error_chain};
use polyplane_managedfields::{
    Answers, Apply, ApplyError, Conflicts, Entries, Force, Step, UnknownVersion, Versions, Writer,
};

/// The object that a client applies.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The object as it was sent.
    pub(crate) object: &'a Value,
    /// The name of the manager.
    pub(crate) manager: &'a str,
    /// The treatment of conflicts.
    pub(crate) force: Force,
}

/// Returns the object after a client has applied to it, in canonical form and with its managed
/// fields. `live` is in the version of the request.
///
/// # Errors
/// Returns 400 for an object of another kind or with managed fields, 409 with the conflicts, 500 if
/// it does not fit the schema, or requests the reply of a converter that is needed first.
pub(crate) fn apply(
    run: &mut Run<'_>,
    kind: &mut ManagedKind,
    live: Option<&Value>,
    wanted: Wanted<'_>,
) -> Result<Value, Interrupted> {
    let named = Named::of(wanted.object);
    if !named.is(kind) {
        return Err(ApiError::bad_request(format!("invalid object type: {}", named.text())).into());
    }
    let present = live.map_or(&Value::Null, managed_of);
    let before = Entries::decode(present).map_err(|error| {
        let why = error_chain(&error);
        ApiError::new(
            Reason::Unknown,
            format!("failed to decode managed fields: {why}"),
        )
    })?;
    if kind.is_custom_scale && before.is_empty() {
        // Upstream's converter of custom kinds knows no version of Scale, and an object whose
        // fields have no owners is converted first.
        let named = named.text();
        let text = format!(
            "failed to create manager for existing fields: failed to convert live object (/; {named}) to proper version: {}",
            UnknownVersion(kind.api_version.clone())
        );
        return Err(ApiError::new(Reason::Unknown, text).into());
    }
    if manages(wanted.object) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil").into());
    }
    kind.find(before.versions());
    // Objects here have no kind and version, and a difference in them would be a change.
    let mut bare = wanted.object.clone();
    drop(bare.remove(&["apiVersion"]));
    drop(bare.remove(&["kind"]));
    let now = run.time();
    let mut answers = Answers::default();
    for _ in 0..ROUNDS_MAX {
        let mut entries = before.clone();
        let attempt = Attempt {
            kind,
            now: &now,
            live,
            bare: &bare,
            wanted,
        };
        let step = match kind.custom() {
            None => attempt.step(&&*kind, &mut entries, &answers),
            Some(custom) => attempt.step(&custom, &mut entries, &answers),
        };
        let objects = (live.unwrap_or(kind.empty()), wanted.object);
        match step.map_err(|error| refusal(&error, objects, &named))? {
            Step::Need(needs) => kind.answer(run, needs, &mut answers)?,
            Step::Done(mut tree) => {
                drop(take_managed(&mut tree));
                run.says_empties = kind
                    .decode(&mut tree)
                    .map_err(|why| malformed(&why, wanted.object, &named))?;
                if let Some(why) = body::unconvertible(run.call, named.kind, &tree) {
                    return Err(not_unversioned(&why, wanted.object, &named).into());
                }
                put_managed(&mut tree, entries.encode().unwrap_or_default());
                return Ok(tree);
            }
        }
    }
    Err(ApiError::internal("applying needs ever more conversions").into())
}

/// One attempt to apply, with the conversions known so far.
struct Attempt<'a> {
    kind: &'a ManagedKind,
    now: &'a str,
    live: Option<&'a Value>,
    /// The applied object without kind and version.
    bare: &'a Value,
    wanted: Wanted<'a>,
}

impl<'a> Attempt<'a> {
    fn step<'s, V: Versions<'s>>(
        &self,
        versions: &V,
        entries: &mut Entries,
        answers: &Answers,
    ) -> Result<Step<Value>, ApplyError> {
        let request = Apply {
            versions,
            version: &self.kind.api_version,
            writer: Writer {
                name: self.wanted.manager,
                subresource: &self.kind.subresource,
                now: self.now,
            },
            empty: self.kind.empty(),
            live: self.live.unwrap_or(self.kind.empty()),
            wanted: self.bare,
            force: self.wanted.force,
        };
        Ok(match entries.apply(request, answers)? {
            Step::Need(needs) => Step::Need(needs),
            Step::Done(Some(_)) if self.kind.is_custom_scale => {
                let named = Named::of(self.wanted.object);
                return Err(ApplyError::Convert(unconvertible(
                    self.wanted.object,
                    &named,
                )));
            }
            Step::Done(merged) => {
                let mut tree = merged.unwrap_or_else(|| request.live.clone());
                request.sync_last_applied(&mut tree, self.wanted.object, ANNOTATION_BYTES_MAX);
                Step::Done(tree)
            }
        })
    }
}

/// The kind that an applied object names.
struct Named<'a> {
    api_version: &'a str,
    kind: &'a str,
}

impl<'a> Named<'a> {
    fn of(object: &'a Value) -> Self {
        Self {
            api_version: object.str_at(&["apiVersion"]),
            kind: object.str_at(&["kind"]),
        }
    }

    fn is(&self, kind: &ManagedKind) -> bool {
        self.api_version == kind.api_version && self.kind == kind.kind
    }

    /// Returns group, version and kind as upstream prints them.
    fn text(&self) -> String {
        let (group, version) = match self.api_version.split_once('/') {
            Some((_, rest)) if rest.contains('/') => ("", ""),
            Some(parts) => parts,
            None => ("", self.api_version),
        };
        format!("{group}/{version}, Kind={}", self.kind)
    }
}

/// Returns whether an applied object has managed fields of its own.
fn manages(object: &Value) -> bool {
    let list = managed_of(object).as_array();
    list.is_some_and(|list| list.iter().all(is_entry))
}

/// Returns true if a value can be read as an entry of managed fields. Upstream takes a list with others for none, and
/// then refuses what does not fit the schema.
fn is_entry(entry: &Value) -> bool {
    const TEXTS: [&str; 5] = [
        "manager",
        "operation",
        "apiVersion",
        "fieldsType",
        "subresource",
    ];
    entry.as_object().is_some()
        && TEXTS.iter().all(|field| is_text(entry, field, |_| true))
        && is_text(entry, "time", |text| Timestamp::parse(text).is_ok())
}

fn is_text(entry: &Value, field: &str, is_right: impl Fn(&str) -> bool) -> bool {
    match entry.get(field) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => is_right(text),
        Some(_) => false,
    }
}

fn place(object: &Value, named: &Named<'_>) -> String {
    let namespace = object.str_at(&["metadata", "namespace"]);
    let name = object.str_at(&["metadata", "name"]);
    format!("{namespace}/{name}; {}", named.text())
}

/// Returns upstream's text about the Scale of a custom kind that an apply changes: its converter of
/// custom kinds knows no version of Scale.
fn unconvertible(object: &Value, named: &Named<'_>) -> String {
    format!(
        "failed to convert new object ({}) to proper version: {}",
        place(object, named),
        UnknownVersion(named.api_version.into())
    )
}

fn malformed(why: &str, object: &Value, named: &Named<'_>) -> ApiError {
    let decoder = match why.starts_with("illegal base64") {
        true => "error decoding from json: ",
        false => "",
    };
    let text = format!(
        "failed to convert new object ({}) to proper version: unable to convert unstructured object to {}: {decoder}{why}",
        place(object, named),
        named.text()
    );
    ApiError::new(Reason::Unknown, text)
}

fn not_unversioned(why: &str, object: &Value, named: &Named<'_>) -> ApiError {
    let place = place(object, named);
    let text = format!("failed to convert to unversioned ({place}): {why}");
    ApiError::new(Reason::Unknown, text)
}

fn refusal(error: &ApplyError, (live, wanted): (&Value, &Value), named: &Named<'_>) -> ApiError {
    let untyped = |what, object, faults| {
        let place = place(object, named);
        let text = format!("failed to create typed {what} object ({place}): {faults}");
        ApiError::new(Reason::Unknown, text)
    };
    match error {
        ApplyError::Conflicts(conflicts) => conflict(conflicts),
        ApplyError::Object(faults) => untyped("patch", wanted, faults),
        ApplyError::Live(faults) => untyped("live", live, faults),
        ApplyError::Existing(faults) => {
            let place = place(live, named);
            let text = format!(
                "failed to create manager for existing fields: failed to convert new object ({place}) to smd typed: {faults}"
            );
            ApiError::new(Reason::Unknown, text)
        }
        ApplyError::Merge(_)
        | ApplyError::Compare(_)
        | ApplyError::Convert(_)
        | ApplyError::Version(_)
        | ApplyError::UnknownVersion(_) => ApiError::new(Reason::Unknown, error.to_string()),
    }
}

fn conflict(conflicts: &Conflicts) -> ApiError {
    let causes = conflicts.texts().into_iter().map(|text| Cause {
        reason: "FieldManagerConflict".into(),
        message: text.message,
        field: text.field,
    });
    ApiError::apply_conflict(causes.collect(), conflicts.message())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn only_what_can_be_read_as_managed_fields_is_refused_as_such() {
        let sent = |list: Value| manages(&json!({"metadata": {"managedFields": list}}));
        for list in [
            json!([]),
            json!([{}]),
            json!([{"manager": "a", "time": "2026-01-02T03:04:05Z", "fieldsV1": {"f:data": {}}}]),
            json!([{"time": null, "more": 1i64}]),
        ] {
            assert!(sent(list));
        }
        for list in [
            Value::Null,
            json!({}),
            json!(["a"]),
            json!([{}, {"fieldsType": (-1i64)}]),
            json!([{"time": "now"}]),
        ] {
            assert!(!sent(list));
        }
    }
}

//! Field management: the ownership of an object's fields.
//!
//! After defaults and merge, before mutating admission, in the version of the request: fields that
//! admission adds have no owner.

mod apply;
mod scale;
mod versions;

use super::ObjectChange;
use super::call_outs::Interrupted;
use super::defaulted::Defaulted;
use super::run::Run;
use super::stages::Target;
use crate::request::body;
use crate::request::body::Expected;
use crate::request::call::Call;
use crate::request::options::FIELD_MANAGER_MAX;
use polyplane_apimachinery::quote::is_print;
use polyplane_apimachinery::schema::decode::Beyond;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, error_chain};
use polyplane_managedfields::{
    Answers, Entries, Step, Writer, differ_in_times_only, repeats, resets,
};
use std::borrow::Cow;

pub(crate) use apply::{Wanted, apply};
pub(crate) use scale::{live_scale, put_scale};
pub(crate) use versions::ManagedKind;

/// Rounds of conversions of one step. A step that needs more has a defect.
const ROUNDS_MAX: usize = 8;

/// Says who brings the owners of an object's fields up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The plan does: whoever writes owns what the write changes.
    OfChanges,
    /// The verb has done it, or its subject has no owners.
    OfVerb,
}

/// The object that the client wants, with the owners of its fields, in the version of the request.
pub(super) struct Managed(Value);

impl Managed {
    pub(super) fn into_tree(self) -> Value {
        self.0
    }
}

/// Brings `metadata.managedFields` up to date.
pub(super) fn manage<C: ObjectChange>(
    run: &mut Run<'_>,
    change: &C,
    defaulted: Defaulted,
    target: &Target,
) -> Result<Managed, Interrupted> {
    let beyond = defaulted.beyond();
    run.lacks_labels = defaulted.lacks_labels();
    let mut tree = defaulted.into_tree();
    normalize(run, change, &mut tree);
    if change.ownership() == Ownership::OfChanges {
        if run.drops_owners() {
            drop(take_managed(&mut tree));
        } else {
            own_changes(run, change, target, &mut tree, beyond)?;
        }
    }
    if beyond != Beyond::Nothing {
        run.says_empties = body::to_stored_form(change.subject(), &mut tree)?;
    }
    Ok(Managed(tree))
}

fn own_changes<C: ObjectChange>(
    run: &mut Run<'_>,
    change: &C,
    target: &Target,
    tree: &mut Value,
    beyond: Beyond,
) -> Result<(), Interrupted> {
    let mut kind = ManagedKind::of_row(run.call);
    let name = manager_name(run.call, &change.request().options.field_manager);
    let live = match target {
        Target::New => None,
        Target::Present(present) => Some(run.call.as_served(present.tree())),
    };
    let shown = match beyond {
        Beyond::Said => Some(body::as_shown(change.subject(), tree)?),
        Beyond::Nothing | Beyond::Compared => None,
    };
    let strategy = &run.call.row.strategy;
    let converted = strategy.converted_at_once(shown.as_ref().unwrap_or(tree));
    match converted.or(shown) {
        None => update(run, &mut kind, &name, live.as_deref(), tree),
        Some(mut shown) => {
            update(run, &mut kind, &name, live.as_deref(), &mut shown)?;
            put_managed(tree, take_managed(&mut shown).unwrap_or_default());
            Ok(())
        }
    }
}

/// Makes the changes of the kind's [`normalize`](crate::strategy::Strategy::normalize), unless the
/// subject is of a subresource's own kind.
pub(super) fn normalize<C: ObjectChange>(run: &Run<'_>, change: &C, tree: &mut Value) {
    let row = change.row();
    if change.subject().kind == row.kind {
        row.strategy.normalize(tree, run.now);
    }
}

/// Returns the name of the manager that writes: the one that the client gives, or the beginning of
/// its user agent.
pub(crate) fn manager_name<'n>(call: &'n Call<'_>, given: &'n str) -> Cow<'n, str> {
    if !given.is_empty() {
        return Cow::Borrowed(given);
    }
    manager_of(&call.request.user_agent)
}

/// Returns the manager that a user agent names: what stands before its first slash, without what cannot be shown.
fn manager_of(user_agent: &str) -> Cow<'_, str> {
    let agent = user_agent.split('/').next().unwrap_or("");
    if agent.len() <= FIELD_MANAGER_MAX && agent.chars().all(is_print) {
        return Cow::Borrowed(agent);
    }
    let mut name = String::new();
    for letter in agent.chars().filter(|letter| is_print(*letter)) {
        if name.len() + letter.len_utf8() > FIELD_MANAGER_MAX {
            break;
        }
        name.push(letter);
    }
    Cow::Owned(name)
}

/// Brings the managed fields of `tree` up to date, which replaces `live` or, without one, is new.
/// Both are in the version of the request. If that fails, those of the live object stay.
///
/// # Errors
/// Requests the reply of a converter that is needed first.
pub(crate) fn update(
    run: &mut Run<'_>,
    kind: &mut ManagedKind,
    name: &str,
    live: Option<&Value>,
    tree: &mut Value,
) -> Result<(), Interrupted> {
    let taken = take_managed(tree);
    let present = live.map_or(&Value::Null, managed_of);
    let is_present = taken.as_ref().is_none_or(|taken| taken == present);
    // A subresource cannot set them.
    let keeps = is_present || !kind.subresource.is_empty();
    if let Some(live) = live
        && keeps
        && same_content(tree, live)
        && knows_all(kind, present)
        && !repeats(present)
    {
        put_managed(tree, present.clone());
        return Ok(());
    }
    let now = run.time();
    let mut wished = taken;
    if keeps {
        // A copy only if the request did not come with one, as a patch does.
        let list = wished.take().filter(|_| is_present);
        let list = list.unwrap_or_else(|| present.clone());
        match kind.update_at_once((name, &now), live, tree, list) {
            Ok(list) => {
                run.note_owners();
                put_managed(tree, list);
                return Ok(());
            }
            Err(list) => wished = Some(list).filter(|list| !list.is_null()),
        }
    }
    update_entries(run, kind, (name, &now), live, tree, wished)
}

/// Does what [`update`] does for writes that change owners. `wished` is the list that the write
/// starts from, if it is not that of the live object.
fn update_entries(
    run: &mut Run<'_>,
    kind: &mut ManagedKind,
    (name, now): (&str, &str),
    live: Option<&Value>,
    tree: &mut Value,
    wished: Option<Value>,
) -> Result<(), Interrupted> {
    let present = live.map_or(&Value::Null, managed_of);
    let mut entries = base(wished, present);
    if entries.is_empty() && live.is_some() {
        // Nobody is tracked until somebody applies.
        return Ok(());
    }
    kind.find(entries.versions());
    let writer = Writer {
        name,
        subresource: &kind.subresource,
        now,
    };
    let mut answers = Answers::default();
    for _ in 0..ROUNDS_MAX {
        let objects = (live.unwrap_or(kind.empty()), &*tree);
        let version = &kind.api_version;
        let step = match kind.custom() {
            None => entries.update(&&*kind, version, writer, objects, &answers),
            Some(custom) => entries.update(&custom, version, writer, objects, &answers),
        };
        match step {
            Ok(Step::Done(())) => {
                run.note_owners();
                put_managed(tree, entries.encode().unwrap_or_default());
                return Ok(());
            }
            Ok(Step::Need(needs)) => match kind.answer(run, needs, &mut answers) {
                Err(Interrupted::Failed(_)) => break,
                answered => answered?,
            },
            Err(error) => {
                tracing::debug!(%error, kind = %kind.kind, "the owners of fields stay as they are");
                break;
            }
        }
    }
    put_managed(tree, present.clone());
    Ok(())
}

/// Gives the object of a request that is answered and not stored its managed fields, which belong to
/// `name`.
pub(crate) fn manage_unstored(call: &Call<'_>, name: &str, tree: &mut Value) {
    manage_as(call, &ManagedKind::of_row(call), name, tree);
}

/// Does the same for an object of the kind of a subresource.
pub(crate) fn manage_unstored_subresource(
    call: &Call<'_>,
    kind: Expected<'_>,
    name: &str,
    tree: &mut Value,
) {
    manage_as(call, &ManagedKind::of_subresource(call, kind), name, tree);
}

fn manage_as(call: &Call<'_>, kind: &ManagedKind, name: &str, tree: &mut Value) {
    drop(take_managed(tree));
    let now = Timestamp::from_seconds(call.environment.now()).to_rfc3339();
    let writer = Writer {
        name,
        subresource: &kind.subresource,
        now: &now,
    };
    let mut entries = Entries::default();
    let objects = (kind.empty(), &*tree);
    let answers = Answers::default();
    // Without entries nothing is converted, so it is one step.
    let step = entries.update(&kind, &kind.api_version, writer, objects, &answers);
    if matches!(step, Ok(Step::Done(()))) {
        put_managed(tree, entries.encode().unwrap_or_default());
    }
}

/// Returns the entries that a write starts from: those that the client has sent, if they can be
/// read, else those of the live object.
fn base(wished: Option<Value>, present: &Value) -> Entries {
    let read = |list: &Value| Entries::decode(list).unwrap_or_default();
    match wished {
        Some(wished) if resets(&wished) => Entries::default(),
        Some(wished) => {
            let entries = Entries::read(wished).unwrap_or_default();
            if entries.is_empty() {
                read(present)
            } else {
                entries
            }
        }
        None => read(present),
    }
}

/// Returns whether all versions exist that a list of entries names.
fn knows_all(kind: &mut ManagedKind, list: &Value) -> bool {
    let entries = || list.as_array().unwrap_or_default().iter();
    let versions = || entries().map(|entry| entry.str_at(&["apiVersion"]));
    kind.find(versions());
    versions().all(|version| kind.has(version))
}

fn managed_of(object: &Value) -> &Value {
    &object["metadata"]["managedFields"]
}

fn take_managed(object: &mut Value) -> Option<Value> {
    object.remove(&["metadata", "managedFields"])
}

fn put_managed(object: &mut Value, list: Value) {
    match list {
        Value::Null => drop(take_managed(object)),
        list => object.set(&["metadata", "managedFields"], list),
    }
}

/// Returns a copy of an object without its managed fields.
pub(crate) fn without_owners(object: &Value) -> Value {
    let Value::Object(members) = object else {
        return object.clone();
    };
    let members = members.iter().map(|(name, value)| match value {
        Value::Object(meta) if name == "metadata" => {
            let kept = meta.iter().filter(|(name, _)| *name != "managedFields");
            let kept = kept.map(|(name, value)| (name, value.clone()));
            (name, Value::Object(kept.collect()))
        }
        value => (name, value.clone()),
    });
    Value::Object(members.collect())
}

/// Returns an object with the version and the managed fields of another one.
pub(crate) fn with_owners_of(object: &Value, other: &Value) -> Value {
    let mut object = object.clone();
    for name in ["managedFields", "resourceVersion"] {
        match other.at(&["metadata", name]) {
            Some(value) => object.set(&["metadata", name], value.clone()),
            None => drop(object.remove(&["metadata", name])),
        }
    }
    object
}

/// Returns true if two objects are equal but for their versions and managed fields.
pub(crate) fn same_content(left: &Value, right: &Value) -> bool {
    let members = |object: &'_ Value| -> usize { object.as_object().map_or(0, |all| all.len()) };
    let relevant = |name: &&str| !matches!(*name, "managedFields" | "resourceVersion");
    let (Some(one), Some(other)) = (left.as_object(), right.as_object()) else {
        return left == right;
    };
    if members(left) != members(right) {
        return false;
    }
    one.iter().all(|(name, value)| {
        let Some(known) = other.get(name) else {
            return false;
        };
        let (Some(meta), Some(before)) = (value.as_object(), known.as_object()) else {
            return value == known;
        };
        if name != "metadata" {
            return value == known;
        }
        let count = |meta: &polyplane_apimachinery::Map| meta.keys().filter(relevant).count();
        count(meta) == count(before)
            && meta
                .iter()
                .filter(|(name, _)| relevant(name))
                .all(|(name, value)| before.get(name) == Some(value))
    })
}

/// Returns true if a write of `tree` would change nothing in the present object but its version and
/// the times of its managers.
pub(super) fn is_same(tree: &Value, present: &Value) -> bool {
    let (new, old) = (managed_of(tree), managed_of(present));
    same_content(tree, present) && (new == old || differ_in_times_only(new, old))
}

/// Marks that the client wants to reset the managers. Decoding would drop an empty list, as upstream
/// does of custom objects.
pub(crate) fn keep_reset(tree: &mut Value) {
    if let Some(Value::Array(list)) = tree.at_mut(&["metadata", "managedFields"])
        && list.is_empty()
    {
        list.push(Value::object());
    }
}

/// Returns the managed fields that an object has after mutating admission: those before it, if a
/// plug-in has made them invalid. Then the client is warned.
pub(super) fn after_admission(run: &Run<'_>, before: Value, tree: &mut Value) {
    if *managed_of(tree) == before {
        return;
    }
    if let Err(error) = Entries::decode(managed_of(tree)) {
        run.call.warn(format!(
            ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {}",
            error_chain(&error)
        ));
        put_managed(tree, before);
    }
}

/// Returns the managed fields of an object, for [`after_admission`].
pub(super) fn before_admission(tree: &Value) -> Value {
    managed_of(tree).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_agent_names_a_manager_by_what_can_be_shown_of_it() {
        assert_eq!(manager_of("kubectl/v1.37.0 (linux/amd64)"), "kubectl");
        // A tab, a soft hyphen, a space that is not ASCII's, and one of no width.
        let hidden = "a\tb\u{ad}c\u{a0}d e\u{200b}é/1";
        assert_eq!(manager_of(hidden), "abcd eé");
        let long = "é".repeat(FIELD_MANAGER_MAX);
        assert_eq!(manager_of(&long), "é".repeat(FIELD_MANAGER_MAX / 2));
    }
}

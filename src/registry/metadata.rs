//! The `metadata` that every kind shares: the fields that the server fills in, those that an update
//! may not change, and their validation.
//!
//! The checks follow upstream's object metadata validation; kinds differ only in their rule for
//! names, which they pass in.

use crate::kinds::table::Scope;
use crate::request::options::{FIELD_MANAGER_MAX, check_field_manager};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::json;
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Map, Str, Value};
use std::collections::{BTreeSet, HashSet};

/// Most bytes that the keys and values of all annotations may have together, as upstream limits
/// them.
pub const ANNOTATION_BYTES_MAX: usize = 256 * 1024;

/// Most bytes that the name of a subresource in managed fields may have, as upstream limits it.
const SUBRESOURCE_BYTES_MAX: usize = 256;

/// Owner references up to which each is compared with all before it, which is faster for few.
const OWNERS_FEW: usize = 16;

/// The members of metadata that only the server sets on a new object.
const SYSTEM_FIELDS: [&str; 5] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "selfLink",
    "uid",
];

/// Removes the members that a client may not set on a new object.
pub fn wipe_system_fields(object: &mut Value) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in SYSTEM_FIELDS {
            meta.remove(field);
        }
    }
}

/// Fills in the uid and the creation time of a new object.
pub fn fill_system_fields(object: &mut Value, uid: Str, now: &str) {
    object.set(&["metadata", "uid"], uid);
    object.set(&["metadata", "creationTimestamp"], now);
}

/// Replaces a written object by `kept`, but for its managed fields: field management has brought those up to date, and
/// an object of which nobody owns anything has none.
pub fn keep_all_but_managers(object: &mut Value, mut kept: Value) {
    let managers = ["metadata", "managedFields"];
    match object.remove(&managers) {
        Some(entries) => kept.set(&managers, entries),
        None => drop(kept.remove(&managers)),
    }
    *object = kept;
}

/// Copies the members that an update may not change from the old object: uid, times of creation and
/// deletion.
pub fn keep_system_fields(object: &mut Value, old: &Value) {
    let meta = object["metadata"].make_object();
    meta.remove("selfLink");
    let Some(before) = old.get("metadata").and_then(Value::as_object) else {
        return;
    };
    let empty_uid = meta
        .get("uid")
        .and_then(Value::as_str)
        .unwrap_or("")
        .is_empty();
    if empty_uid {
        copy(before, meta, "uid");
    }
    if before.contains_key("creationTimestamp") {
        copy(before, meta, "creationTimestamp");
    }
    if before.contains_key("deletionTimestamp") {
        copy(before, meta, "deletionTimestamp");
    }
    if before.contains_key("deletionGracePeriodSeconds")
        && !meta.contains_key("deletionGracePeriodSeconds")
    {
        copy(before, meta, "deletionGracePeriodSeconds");
    }
}

fn copy(from: &Map, to: &mut Map, field: &str) {
    match from.get(field) {
        Some(value) => drop(to.insert(field, value.clone())),
        None => drop(to.remove(field)),
    }
}

/// Drops owner references that equal an earlier one, and returns the uids concerned.
pub fn dedup_owner_references(object: &mut Value) -> Vec<Str> {
    let mut duplicates = Vec::new();
    if let Some(owners) = object
        .at_mut(&["metadata", "ownerReferences"])
        .and_then(Value::as_array_mut)
    {
        let are_few = owners.len() <= OWNERS_FEW;
        let mut kept: Vec<Value> = Vec::with_capacity(owners.len());
        // The texts of those that are kept, if they are many. Metadata is decoded, so references
        // have texts and booleans only, and those with one text are equal.
        let mut texts: HashSet<String> = HashSet::new();
        for owner in owners.drain(..) {
            let is_new = match are_few {
                true => !kept.contains(&owner),
                false => texts.insert(json::to_string(&owner)),
            };
            if is_new {
                kept.push(owner);
            } else {
                duplicates.push(owner.str_at(&["uid"]).into());
            }
        }
        *owners = kept;
    }
    duplicates
}

/// Validates the metadata of a new object.
pub fn validate(object: &Value, scope: Scope, rule: NameRule) -> Complaints {
    let path = Path::new("metadata");
    let meta = &object["metadata"];
    let mut errors = Complaints::default();
    let generate = meta.str_at(&["generateName"]);
    if !generate.is_empty() {
        for detail in rule.prefix(generate) {
            errors.push(FieldError::invalid(
                &path.child("generateName"),
                generate,
                detail,
            ));
        }
    }
    let name = meta.str_at(&["name"]);
    if name.is_empty() {
        let detail = "name or generateName is required";
        errors.push(FieldError::required(&path.child("name"), detail));
    } else {
        for detail in rule.name(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, detail));
        }
    }
    validate_namespace(meta, scope, &path, &mut errors);
    validate_generation(meta, &path, &mut errors);
    validate_maps_and_owners(meta, &path, &mut errors);
    validate_finalizers(&meta["finalizers"], &path.child("finalizers"), &mut errors);
    validate_managers(&meta["managedFields"], &path, &mut errors);
    errors
}

fn validate_namespace(meta: &Value, scope: Scope, path: &Path, errors: &mut Complaints) {
    let namespace = meta.str_at(&["namespace"]);
    match (scope, namespace) {
        (Scope::Namespaced, "") => errors.push(FieldError::required(&path.child("namespace"), "")),
        (Scope::Namespaced, name) => {
            for detail in names::dns1123_label(name) {
                errors.push(FieldError::invalid(&path.child("namespace"), name, detail));
            }
        }
        (Scope::Cluster, "") => {}
        (Scope::Cluster, _) => {
            errors.push(FieldError::forbidden(
                &path.child("namespace"),
                "not allowed on this type",
            ));
        }
    }
}

fn validate_generation(meta: &Value, path: &Path, errors: &mut Complaints) {
    let generation = meta.int_at(&["generation"]).unwrap_or(0);
    if generation < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(
            &path.child("generation"),
            generation,
            detail,
        ));
    }
}

fn validate_maps_and_owners(meta: &Value, path: &Path, errors: &mut Complaints) {
    validate_labels(&meta["labels"], &path.child("labels"), errors);
    validate_annotations(&meta["annotations"], &path.child("annotations"), errors);
    validate_owners(
        &meta["ownerReferences"],
        &path.child("ownerReferences"),
        errors,
    );
}

/// Validates a map of labels. The errors name the map, not the label, as upstream's do.
pub fn validate_labels(labels: &Value, path: &Path, errors: &mut Complaints) {
    for (key, value) in labels.as_object().into_iter().flat_map(Map::iter) {
        if errors.is_full() {
            return;
        }
        for detail in names::qualified_name(key) {
            errors.push(FieldError::invalid(path, key, detail));
        }
        let value = value.as_str().unwrap_or("");
        for detail in names::label_value(value) {
            errors.push(FieldError::invalid(path, value, detail));
        }
    }
}

/// Validates a map of annotations.
pub fn validate_annotations(annotations: &Value, path: &Path, errors: &mut Complaints) {
    let mut bytes = 0;
    for (key, value) in annotations.as_object().into_iter().flat_map(Map::iter) {
        bytes += key.len() + value.as_str().map_or(0, str::len);
        if !errors.is_full() {
            for detail in names::qualified_name(&key.to_lowercase()) {
                errors.push(FieldError::invalid(path, key, detail));
            }
        }
    }
    if bytes > ANNOTATION_BYTES_MAX {
        errors.push(FieldError::too_long(path, ANNOTATION_BYTES_MAX));
    }
}

fn validate_owners(owners: &Value, path: &Path, errors: &mut Complaints) {
    let mut controller: Option<String> = None;
    let mut shown: Option<Box<str>> = None;
    for (at, owner) in owners.as_array().unwrap_or(&[]).iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let place = path.index(at);
        let version = owner.str_at(&["apiVersion"]);
        if version.is_empty() {
            errors.push(FieldError::required(
                &place.child("apiVersion"),
                "must not be empty",
            ));
        } else if version.matches('/').count() > 1 || version.ends_with('/') {
            let detail = "must be <group>/<version> or <version>";
            errors.push(FieldError::invalid(
                &place.child("apiVersion"),
                version,
                detail,
            ));
        }
        for field in ["kind", "name", "uid"] {
            if owner.str_at(&[field]).is_empty() {
                errors.push(FieldError::required(
                    &place.child(field),
                    "must not be empty",
                ));
            }
        }
        if version == "v1" && owner.str_at(&["kind"]) == "Event" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(&place, owner.clone(), detail));
        }
        if owner.bool_at(&["controller"]) {
            let this = format!("{}/{}", owner.str_at(&["kind"]), owner.str_at(&["name"]));
            match &controller {
                Some(first) => {
                    let shown = shown.get_or_insert_with(|| shown_owners(owners).into());
                    // Each of them shows all owners, and names the first.
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    errors.push(FieldError::invalid(path, Bad::Shown(shown.clone()), detail));
                }
                None => controller = Some(this),
            }
        }
    }
}

/// Returns owner references as JSON in the order of their fields.
fn shown_owners(owners: &Value) -> String {
    const FIELDS: [&str; 6] = [
        "apiVersion",
        "kind",
        "name",
        "uid",
        "controller",
        "blockOwnerDeletion",
    ];
    let shown = owners.as_array().unwrap_or(&[]).iter().map(|owner| {
        let members = FIELDS
            .iter()
            .filter_map(|field| owner.get(field).map(|value| (field, value)));
        let members: Vec<String> = members
            .map(|(field, value)| format!("\"{field}\":{}", json::to_string(value)))
            .collect();
        format!("{{{}}}", members.join(","))
    });
    format!("[{}]", shown.collect::<Vec<_>>().join(","))
}

fn validate_finalizers(finalizers: &Value, path: &Path, errors: &mut Complaints) {
    let names = strings(finalizers);
    for name in &names {
        if errors.is_full() {
            return;
        }
        for detail in names::qualified_name(name) {
            errors.push(FieldError::invalid(path, *name, detail));
        }
    }
    if names.contains(&"orphan") && names.contains(&"foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, finalizers.clone(), detail));
    }
}

/// Validates the names in managed fields, which a client may have sent. Field management has made
/// everything else of them.
fn validate_managers(list: &Value, path: &Path, errors: &mut Complaints) {
    for (at, entry) in list.as_array().unwrap_or(&[]).iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let manager = entry.str_at(&["manager"]);
        let subresource = entry.str_at(&["subresource"]);
        if manager.is_ascii() && manager.len() <= FIELD_MANAGER_MAX && subresource.is_empty() {
            // Nearly all names, so that the path is rarely made.
            if !manager.bytes().any(|byte| byte.is_ascii_control()) {
                continue;
            }
        }
        let list = path.child("managedFields");
        let place = list.index(at);
        check_field_manager(manager, &place.child("manager"), errors);
        if subresource.len() > SUBRESOURCE_BYTES_MAX {
            let place = place.child("subresource");
            errors.push(FieldError::too_long(&place, SUBRESOURCE_BYTES_MAX));
        }
    }
}

/// Returns the strings of a list, in order.
pub fn strings(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap_or(&[])
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

/// Validates the metadata of a changed object. `version_given` is true if the object names the
/// version it replaces, and false if the server has filled it in.
pub fn validate_update(object: &Value, old: &Value) -> Complaints {
    let path = Path::new("metadata");
    let (meta, before) = (&object["metadata"], &old["metadata"]);
    let mut errors = Complaints::default();
    if !before.str_at(&["deletionTimestamp"]).is_empty() {
        let had: BTreeSet<&str> = strings(&before["finalizers"]).into_iter().collect();
        let has: BTreeSet<&str> = strings(&meta["finalizers"]).into_iter().collect();
        let new: Vec<String> = has
            .difference(&had)
            .map(|name| format!("{name:?}"))
            .collect();
        if !new.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                new.join(", ")
            );
            errors.push(FieldError::forbidden(&path.child("finalizers"), detail));
        }
    }
    validate_generation(meta, &path, &mut errors);
    let (now, then) = (meta.int_at(&["generation"]), before.int_at(&["generation"]));
    if now.unwrap_or(0) < then.unwrap_or(0) {
        let bad = now.unwrap_or(0);
        errors.push(FieldError::invalid(
            &path.child("generation"),
            bad,
            "must not be decremented",
        ));
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        // A time of deletion that is null is there, and is Go's zero time.
        let is_set = |meta: &Value| field == "deletionTimestamp" && meta.get(field).is_some();
        if meta[field] != before[field] || is_set(meta) != is_set(before) {
            let bad = match &meta[field] {
                Value::Null if field.starts_with("deletion") || field.starts_with("creation") => {
                    Value::Null
                }
                Value::Null => Value::string(""),
                other => other.clone(),
            };
            errors.push(FieldError::invalid(
                &path.child(field),
                bad,
                "field is immutable",
            ));
        }
    }
    validate_maps_and_owners(meta, &path, &mut errors);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_shown_in_the_order_of_their_fields() {
        let owners = polyplane_apimachinery::json!([
            {"controller": true, "uid": "1", "apiVersion": "v1", "name": "a", "kind": "X"}
        ]);
        let shown = r#"[{"apiVersion":"v1","kind":"X","name":"a","uid":"1","controller":true}]"#;
        assert_eq!(shown_owners(&owners), shown);
    }

    #[test]
    fn an_object_that_nobody_manages_does_not_get_the_managers_of_the_one_in_its_place() {
        let object = |managers: &[&str]| {
            let mut object = polyplane_apimachinery::json!({"metadata": {"name": "a"}});
            if !managers.is_empty() {
                let managers: Vec<Value> = managers.iter().map(|name| (*name).into()).collect();
                object.set(&["metadata", "managedFields"], managers);
            }
            object
        };
        let cases: [(&[&str], &[&str]); 4] =
            [(&[], &["m"]), (&["n"], &["m"]), (&["n"], &[]), (&[], &[])];
        for (new, old) in cases {
            let mut written = object(new);
            keep_all_but_managers(&mut written, object(old));
            assert_eq!(written, object(new));
        }
    }

    #[test]
    fn a_deletion_time_that_is_set_to_none_is_a_change() {
        let object = |text: &str| {
            let parsed = json::parse(text.as_bytes(), &json::Limits::default());
            parsed.expect("it is JSON").value
        };
        let old = object(r#"{"metadata":{"name":"a"}}"#);
        let new = object(r#"{"metadata":{"name":"a","deletionTimestamp":null}}"#);
        let errors = validate_update(&new, &old);
        let texts: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        assert_eq!(
            texts,
            ["metadata.deletionTimestamp: Invalid value: null: field is immutable"]
        );
        assert!(validate_update(&old, &old).is_empty());
    }

    #[test]
    fn the_complaints_about_many_controllers_are_bounded() {
        let complaints = |count: usize, first: &str| {
            let owner = |at: usize| {
                let uid = at.to_string();
                let name = match at {
                    0 => first.to_owned(),
                    at => at.to_string(),
                };
                polyplane_apimachinery::json!({
                    "apiVersion": "v1", "kind": "X", "name": name, "uid": uid, "controller": true
                })
            };
            let owners: Vec<Value> = (0..count).map(owner).collect();
            let mut errors = Complaints::default();
            validate_owners(&owners.into(), &Path::new("owners"), &mut errors);
            errors
        };
        let errors = complaints(3, "0");
        let details: Vec<&str> = errors.iter().map(|error| error.detail.as_str()).collect();
        assert_eq!(details.len(), 2);
        assert!(details[1].ends_with("for X/0 and X/2"), "{details:?}");
        let bytes = |errors: Complaints| -> usize {
            errors.iter().map(|error| error.to_string().len()).sum()
        };
        let (some, more) = (complaints(2_000, "0"), complaints(4_000, "0"));
        assert!(!some.is_empty() && some.len() < 100, "{}", some.len());
        assert!(more.len() < some.len(), "{}", more.len());
        assert!(bytes(more) < 2 << 20);
        // The first one, of a megabyte, would be copied for each of the others.
        assert_eq!(complaints(20_000, &"x".repeat(1 << 20)).len(), 1);
    }

    #[test]
    fn complaints_about_metadata_are_bounded_in_number() {
        use polyplane_apimachinery::complaints::COUNT_MAX;
        use polyplane_apimachinery::json;
        let many = 4 * COUNT_MAX;
        let empty = || vec![Value::object(); many];
        let names = |bad: &str| -> Map {
            let names = (0..many).map(|at| (format!("{bad}{at}"), Value::from("v")));
            names.collect()
        };
        for metadata in [
            json!({"finalizers": (vec![Value::from(""); many])}),
            json!({"ownerReferences": (empty())}),
            json!({"labels": (names("-"))}),
            json!({"annotations": (names("-"))}),
            json!({"managedFields": (vec![json!({"manager": "\n"}); many])}),
        ] {
            let object = json!({"metadata": (metadata)});
            let errors = validate(&object, Scope::Cluster, NameRule::DnsSubdomain);
            assert!(errors.is_full() && errors.len() <= COUNT_MAX);
        }
    }

    #[test]
    fn repeated_owners_are_dropped_among_few_and_among_many() {
        for count in [3, OWNERS_FEW, OWNERS_FEW + 1, 50] {
            let owner = |at: usize| {
                let uid = (at % 9).to_string();
                polyplane_apimachinery::json!({"uid": uid, "controller": (at.is_multiple_of(2))})
            };
            let owners: Vec<Value> = (0..count).map(owner).collect();
            let mut object = Value::object();
            object.set(&["metadata", "ownerReferences"], owners.clone());
            let duplicates = dedup_owner_references(&mut object);
            // They repeat after 18.
            let (first, repeated) = owners.split_at(count.min(18));
            assert_eq!(object.items_at(&["metadata", "ownerReferences"]), first);
            let uids = repeated.iter().map(|owner| owner.str_at(&["uid"]));
            assert_eq!(duplicates, uids.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_changed_object_loses_what_only_the_server_says() {
        let old =
            polyplane_apimachinery::json!({"metadata": {"uid": "u", "creationTimestamp": "t"}});
        let mut new = polyplane_apimachinery::json!({"metadata": {"selfLink": "/x", "creationTimestamp": "other"}});
        keep_system_fields(&mut new, &old);
        assert_eq!(new, old);
    }
}

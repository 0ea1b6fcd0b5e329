//! CustomResourceDefinitions: the kinds that clients define.

pub mod internal_form;
pub mod ratchet;
pub mod schema;
#[cfg(test)]
mod schema_tests;
pub mod spec;
pub mod status;
pub mod structural_schema;
pub mod version;
pub mod warnings;

use crate::networking::ingress::keep_spec;
use crate::shared::network::webhook_client::is_absolute_url;
use crate::shared::table_cells::{created_cell, name_cell};
use crate::shared::validation::complaints::{IMMUTABLE, named};
use crate::shared::validation::members::{present, texts};
use crate::shared::validation::object_names::own_name_rule;
use polyplane_apiextensions::defaults;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::{Value, json};
use polyplane_plane::{Claim, Snapshot};
use polyplane_registry::metadata;
use polyplane_registry::strategy::{Context, Strategy};
use ratchet::Ratchet;
use std::collections::BTreeSet;

const APPROVAL: &str = "api-approved.kubernetes.io";
const APPROVAL_HELP: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// Behaviour of CustomResourceDefinitions.
#[derive(Debug)]
pub struct CustomResourceDefinition;

impl Strategy for CustomResourceDefinition {
    fn default(&self, object: &mut Value) {
        let kind = object.str_at(&["spec", "names", "kind"]).to_owned();
        if object.str_at(&["spec", "names", "singular"]).is_empty() && !kind.is_empty() {
            object.set(&["spec", "names", "singular"], kind.to_lowercase());
        }
        if object.str_at(&["spec", "names", "listKind"]).is_empty() && !kind.is_empty() {
            object.set(&["spec", "names", "listKind"], format!("{kind}List"));
        }
        if !present(&object["spec"]["conversion"]) {
            object.set(&["spec", "conversion"], json!({"strategy": "None"}));
        }
        if object.items_at(&["status", "storedVersions"]).is_empty() {
            store_version(object);
        }
    }

    fn prepare_create(&self, context: &Context<'_>, object: &mut Value) {
        settle_defaults(context, object);
        drop_empty_webhook(object);
        store_version(object);
    }

    fn prepare_update(&self, context: &Context<'_>, object: &mut Value, _: &Value) {
        settle_defaults(context, object);
        drop_empty_webhook(object);
        store_version(object);
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        keep_spec(object, old);
    }

    fn server_manager(&self) -> Option<&'static str> {
        Some("kube-apiserver")
    }

    fn settle(&self, context: &Context<'_>, cut: &Snapshot, object: &mut Value) -> Vec<Claim> {
        // Also while the definition is being deleted, as upstream's controllers do.
        status::settle(object, cut, context.now)
    }

    fn awaits(&self, object: &Value) -> bool {
        object.str_at(&["metadata", "deletionTimestamp"]).is_empty()
    }

    fn is_deleted_without_propagation(&self) -> bool {
        true
    }

    fn prepare_deletion(&self, object: &mut Value) {
        status::terminate(object);
    }

    fn name_rule(&self) -> Option<NameRule> {
        Some(NameRule::DnsSubdomain)
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        let spec = &object["spec"];
        let wanted = format!(
            "{}.{}",
            spec.str_at(&["names", "plural"]),
            spec.str_at(&["group"])
        );
        let detail = "must be spec.names.plural+\".\"+spec.group";
        let mut errors = own_name_rule(object, |name, _| match name == wanted {
            true => Vec::new(),
            false => vec![detail.to_owned()],
        });
        spec::validate(context.schemas, &mut errors, spec, &Ratchet::default());
        validate_rest(&mut errors, object, None);
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = metadata::validate_update(object, old);
        let (spec, before) = (&object["spec"], &old["spec"]);
        let ratchet = Ratchet::of_update(object, old);
        // One that is being deleted has to lose its finalizers, whatever is said of its rules by now.
        let is_leaving = !old["metadata"]["deletionTimestamp"].is_null() && spec == before;
        if !is_leaving {
            spec::validate(context.schemas, &mut errors, spec, &ratchet);
        }
        let path = Path::new("spec");
        let names = path.child("names");
        let mut fixed = |field: &[&str], place: &Path<'_>, bad: fn(&str) -> Bad| {
            let text = spec.str_at(field);
            if text != before.str_at(field) {
                errors.push(FieldError::invalid(place, bad(text), IMMUTABLE));
            }
        };
        if is_established(old) {
            fixed(&["scope"], &path.child("scope"), named);
            fixed(&["names", "kind"], &names.child("kind"), plain);
        }
        fixed(&["group"], &path.child("group"), plain);
        fixed(&["names", "plural"], &names.child("plural"), plain);
        validate_rest(&mut errors, object, Some(old));
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = metadata::validate_update(object, old);
        validate_accepted(&mut errors, object);
        errors
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        if !context.subresource.is_empty() {
            return Vec::new();
        }
        warnings::warnings(&object["spec"], old.map(|old| &old["spec"]))
    }

    fn cells(&self, object: &Value, _: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let served = spec
            .items_at(&["versions"])
            .iter()
            .filter(|version| version.bool_at(&["served"]));
        let mut versions: Vec<String> = served
            .map(|version| {
                let mark = if version.bool_at(&["storage"]) {
                    "(storage)"
                } else {
                    ""
                };
                format!("{}{mark}", version.str_at(&["name"]))
            })
            .collect();
        versions.sort();
        vec![
            name_cell(object),
            spec.str_at(&["scope"]).into(),
            versions.join(",").into(),
            created_cell(object),
            spec.str_at(&["group"]).into(),
            spec.str_at(&["names", "kind"]).into(),
            texts(&spec["names"]["shortNames"]).join(",").into(),
            is_established(object).into(),
        ]
    }
}

fn plain(text: &str) -> Bad {
    Bad::from(text)
}

fn is_established(object: &Value) -> bool {
    object
        .items_at(&["status", "conditions"])
        .iter()
        .any(|condition| {
            condition.str_at(&["type"]) == "Established" && condition.str_at(&["status"]) == "True"
        })
}

/// Brings the defaults of all schemas into the form in which upstream stores them.
fn settle_defaults(context: &Context<'_>, object: &mut Value) {
    let versions = object
        .get_mut("spec")
        .and_then(|spec| spec.get_mut("versions"));
    let Some(Value::Array(versions)) = versions else {
        return;
    };
    for version in versions.iter_mut() {
        let schema = version.get_mut("schema");
        if let Some(schema) = schema.and_then(|schema| schema.get_mut("openAPIV3Schema")) {
            defaults::settle(context.schemas, schema);
        }
    }
}

/// Drops an empty webhook section, as upstream does.
fn drop_empty_webhook(object: &mut Value) {
    let webhook = &object["spec"]["conversion"]["webhook"];
    if present(webhook)
        && !["clientConfig", "conversionReviewVersions"]
            .iter()
            .any(|field| present(&webhook[*field]))
    {
        drop(object.remove(&["spec", "conversion", "webhook"]));
    }
}

/// Adds the version that is stored today to the versions that were ever stored.
fn store_version(object: &mut Value) {
    let mut versions = object.items_at(&["spec", "versions"]).iter();
    let Some(stored) = versions.find(|version| version.bool_at(&["storage"])) else {
        return;
    };
    let name = Value::string(stored.str_at(&["name"]));
    let mut known = object.items_at(&["status", "storedVersions"]).to_vec();
    if !known.contains(&name) {
        known.push(name);
        object.set(&["status", "storedVersions"], known);
    }
}

fn validate_accepted(errors: &mut Complaints, object: &Value) {
    let status = Path::new("status");
    version::validate_names(
        errors,
        &object["status"]["acceptedNames"],
        &status.child("acceptedNames"),
    );
}

fn validate_rest(errors: &mut Complaints, object: &Value, old: Option<&Value>) {
    // The names that a write itself has brought here are those of its spec, which has its own check.
    if let Some(old) = old {
        validate_accepted(errors, old);
    }
    validate_stored(errors, object);
    validate_approval(errors, object, old);
    let preserves = |object: &Value| object.bool_at(&["spec", "preserveUnknownFields"]);
    if preserves(object) && !old.is_some_and(preserves) {
        let path = Path::new("spec");
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid(
            &path.child("preserveUnknownFields"),
            true,
            detail,
        ));
    }
}

fn validate_stored(errors: &mut Complaints, object: &Value) {
    let status = Path::new("status");
    let list = status.child("storedVersions");
    let stored = &object["status"]["storedVersions"];
    let bad = || Bad::Json(stored.clone());
    let versions = object.items_at(&["spec", "versions"]);
    let known = texts(stored);
    if known.is_empty() {
        errors.push(FieldError::invalid(
            &list,
            bad(),
            "must have at least one stored version",
        ));
        return;
    }
    // A name counts once: a second version with the same name is not added.
    let mut unseen: BTreeSet<&str> = known.iter().copied().collect();
    let mut names = BTreeSet::new();
    for version in versions {
        let name = version.str_at(&["name"]);
        names.insert(name);
        // Each of them shows all stored versions.
        if !unseen.remove(name) && version.bool_at(&["storage"]) && !errors.is_full() {
            let detail = format!("must have the storage version {name}");
            errors.push(FieldError::invalid(&list, bad(), detail));
        }
    }
    for (at, name) in known.into_iter().enumerate() {
        if !names.contains(name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.push(FieldError::invalid(&list.index(at), name, detail));
        }
    }
}

/// The state of approval of a kind in a group of the Kubernetes project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Approval {
    Missing,
    Invalid,
    Bypassed,
    Given,
}

/// Returns whether kinds of a group need an approval.
fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        let rest = group.strip_suffix(domain);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

fn approval(object: &Value) -> Approval {
    match object.str_at(&["metadata", "annotations", APPROVAL]) {
        "" => Approval::Missing,
        text if text.starts_with("unapproved") => Approval::Bypassed,
        text if is_absolute_url(text) => Approval::Given,
        _ => Approval::Invalid,
    }
}

fn validate_approval(errors: &mut Complaints, object: &Value, old: Option<&Value>) {
    let state = approval(object);
    if !is_protected(object.str_at(&["spec", "group"]))
        || old.is_some_and(|old| approval(old) == state)
    {
        return;
    }
    let metadata = Path::new("metadata");
    let annotations = metadata.child("annotations");
    let place = annotations.key(APPROVAL);
    let intro = format!("protected groups must have approval annotation {APPROVAL:?}");
    match state {
        Approval::Missing => {
            errors.push(FieldError::required(
                &place,
                format!("{intro}, {APPROVAL_HELP}"),
            ));
        }
        Approval::Invalid => {
            let text = object.str_at(&["metadata", "annotations", APPROVAL]);
            let detail = format!(
                "{intro} with either a URL or a reason starting with \"unapproved\", {APPROVAL_HELP}"
            );
            errors.push(FieldError::invalid(&place, text, detail));
        }
        Approval::Bypassed | Approval::Given => {}
    }
}

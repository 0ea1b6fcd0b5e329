//! Definitions of kinds, as upstream's own tests of apiextensions have them: what a server answers to
//! a write of each, and what its controllers make of it.
//!
//! `src/apiextensions/testdata` has the tables and `different.txt`, which names what differs: the test,
//! the case, the first difference, and at the beginning of its part of the list the reason. The list
//! may only shrink. `RECORD=1 cargo test -p polyplane-batteries --test kinds -- definition_tables`
//! writes it anew, without reasons.

use crate::shared::plane;
use crate::shared::recorded;
use crate::site::{self, settings};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::FieldError;
use polyplane_apimachinery::schema::decode::Numbers;
use polyplane_apimachinery::{Value, json};
use polyplane_auth::UserInfo;
use polyplane_batteries::kind_tables::{features, tenant_kinds};
use polyplane_plane::Snapshot;
use polyplane_registry::metadata;
use polyplane_registry::plan::prepare;
use polyplane_registry::request::options::Persistence;
use polyplane_registry::request::warnings::Warnings;
use polyplane_registry::strategy::Context;
use polyplane_registry::{KindTable, Resource};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const GROUP: &str = "apiextensions.k8s.io";
const RESOURCE: &str = "customresourcedefinitions";
const TIME: &str = "2024-05-06T07:08:09Z";

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../apiextensions/testdata")
}

/// Calls `run` with the row of definitions and a context for it.
fn with_row<T>(run: impl FnOnce(&Resource, &Context<'_>) -> T) -> T {
    let kinds: Arc<KindTable> = tenant_kinds();
    let row = kinds.stored(GROUP, RESOURCE).expect("it is built in");
    let user = UserInfo::new("admin", &["system:masters"]);
    run(
        row,
        &Context {
            now: 1_715_000_000,
            user: &user,
            subresource: "",
            persistence: Persistence::Store,
            lacks_labels: false,
            metadata_blocks_rules: false,
            plane: "p",
            settings: &settings(),
            schemas: kinds.schemas(),
            features: &features(),
            kinds: &kinds,
            warnings: &Warnings::default(),
        },
    )
}

/// Returns a definition as the server has it after decoding it.
fn arrived(row: &Resource, sent: &Value) -> Result<Value, String> {
    let mut tree = sent.clone();
    let decode = |tree: &mut Value| {
        let (schemas, kind) = (&row.schemas, row.definition);
        let decoded = schemas.decode_unless_said(kind, tree, Numbers::AsWritten);
        decoded.map(drop).map_err(|error| error.to_string())
    };
    decode(&mut tree)?;
    prepare::default(row, row.definition, &mut tree).expect("they are small");
    decode(&mut tree)?;
    Ok(tree)
}

/// The complaints about a write, sorted, and the warnings.
pub type Answer = (Vec<String>, Vec<String>);

fn written(row: &Resource, context: &Context<'_>, case: &Value) -> Result<Answer, String> {
    let mut tree = arrived(row, &case["in"])?;
    let (errors, old) = match case.get("old") {
        None => {
            metadata::wipe_system_fields(&mut tree);
            metadata::fill_system_fields(&mut tree, "uid".into(), TIME);
            prepare::create(row, context, &mut tree);
            let canonical = prepare::canonical(row, &mut tree);
            canonical.map_err(|error| error.to_string())?;
            (prepare::validate_create(row, context, &tree), None)
        }
        Some(old) => {
            let mut old = arrived(row, old)?;
            // A request names its object, unlike a test of one function.
            let name = match old.str_at(&["metadata", "name"]) {
                "" => "unnamed".to_owned(),
                name => name.to_owned(),
            };
            for object in [&mut tree, &mut old] {
                object.set(&["metadata", "name"], name.as_str());
                object.set(&["metadata", "uid"], "uid");
                object.set(&["metadata", "creationTimestamp"], TIME);
                object.set(&["metadata", "resourceVersion"], "1");
            }
            prepare::update(row, context, &mut tree, &old);
            let canonical = prepare::canonical(row, &mut tree);
            canonical.map_err(|error| error.to_string())?;
            let errors = prepare::validate_update(row, context, &tree, &old);
            (errors, Some(old))
        }
    };
    let mut warnings = row.strategy.warnings(context, &tree, old.as_ref());
    warnings.sort();
    Ok((complaints(&errors), warnings))
}

pub fn complaints(errors: &[FieldError]) -> Vec<String> {
    let texts = errors
        .iter()
        .map(|error| format!("{} {}: {}", error.kind.reason(), error.field, error.body()));
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    texts
}

pub fn theirs(case: &Value) -> Answer {
    let errors = case.items_at(&["errors"]).iter().map(|error| {
        let text = |name: &str| error.str_at(&[name]);
        format!("{} {}: {}", text("type"), text("field"), text("message"))
    });
    let warnings = case.items_at(&["warnings"]).iter();
    let warnings = warnings.filter_map(|text| text.as_str().map(str::to_owned));
    let (mut errors, mut warnings): (Vec<String>, Vec<String>) =
        (errors.collect(), warnings.collect());
    errors.sort();
    warnings.sort();
    (errors, warnings)
}

/// Returns what differs; `None` if nothing does.
pub fn difference(ours: &impl std::fmt::Debug, theirs: &impl std::fmt::Debug) -> Option<String> {
    let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
    (ours != theirs).then(|| format!("{ours}, upstream {theirs}"))
}

/// Compares the answers to a write, of which the texts of both that are equal are left out.
fn definition(row: &Resource, context: &Context<'_>, case: &Value) -> Option<String> {
    let (mut theirs, their_warnings) = theirs(case);
    let (mut ours, warnings) = match written(row, context, case) {
        Ok(answer) => answer,
        Err(refused) => (vec![refused], Vec::new()),
    };
    let both: BTreeSet<String> = ours
        .iter()
        .filter(|text| theirs.contains(text))
        .cloned()
        .collect();
    let equal = ours == theirs;
    if !equal {
        ours.retain(|text| !both.contains(text));
        theirs.retain(|text| !both.contains(text));
        return Some(format!("{ours:?}, upstream {theirs:?}"));
    }
    difference(&warnings, &their_warnings)
}

/// Returns the cut of a plane with these definitions.
fn cut_of(row: &Resource, existing: &[Value]) -> Snapshot {
    let existing = existing.iter().map(|object| site::put(row, object.clone()));
    plane::with(existing.collect())
}

fn conditions(status: &Value) -> Vec<String> {
    let conditions = status.items_at(&["conditions"]).iter().map(|condition| {
        let text = |name: &str| condition.str_at(&[name]);
        let (kind, status) = (text("type"), text("status"));
        format!("{kind}={status} {}: {}", text("reason"), text("message"))
    });
    conditions.collect()
}

/// Compares the names and conditions that a definition gets beside others.
fn names(row: &Resource, context: &Context<'_>, case: &Value) -> Option<String> {
    let cut = cut_of(row, case.items_at(&["existing"]));
    let mut object = case["in"].clone();
    row.strategy.settle(context, &cut, &mut object);
    let shown = |status: &Value| {
        let names = &status["acceptedNames"];
        let fields = ["plural", "singular", "kind", "listKind"].map(|name| names.str_at(&[name]));
        let short = json::to_string(&names["shortNames"]);
        format!("{fields:?} {short} {:?}", conditions(status))
    };
    difference(&shown(&object["status"]), &shown(&case["status"]))
}

/// Compares the condition that one of upstream's controllers sets.
fn condition(row: &Resource, context: &Context<'_>, case: &Value) -> Option<String> {
    let mut object = case["in"].clone();
    row.strategy.settle(context, &plane::empty(), &mut object);
    let kind = match case.str_at(&["from"]).split('/').next() {
        Some("apiapproval") => "KubernetesAPIApprovalPolicyConformant",
        _ => "NonStructuralSchema",
    };
    let ours = conditions(&object["status"]);
    let ours: Vec<&String> = ours.iter().filter(|text| text.starts_with(kind)).collect();
    let theirs = match &case["condition"] {
        Value::Null => Vec::new(),
        condition => conditions(&json!({"conditions": [(condition.clone())]})),
    };
    difference(&ours, &theirs)
}

#[test]
fn definition_tables_agree_but_for_a_list_that_only_shrinks() {
    let mut found = Vec::new();
    for file in ["definitions", "names"] {
        let (mut total, mut equal, mut left_out) = (0, 0, 0);
        for case in recorded::cases(&folder().join(format!("{file}.jsonl.gz"))) {
            total += 1;
            let difference = match case.str_at(&["op"]) {
                _ if case.get("skipped").is_some() => {
                    left_out += 1;
                    continue;
                }
                "definition" => with_row(|row, context| definition(row, context, &case)),
                "names" => with_row(|row, context| names(row, context, &case)),
                "condition" => with_row(|row, context| condition(row, context, &case)),
                other => panic!("nothing is known of {other}"),
            };
            match difference {
                None => equal += 1,
                Some(difference) => {
                    let name = format!("{} {}", case.str_at(&["from"]), case.str_at(&["case"]));
                    found.push((name, difference.replace('\n', " ")));
                }
            }
        }
        println!("{file}: {equal} of {total} agree, {left_out} left out");
    }
    check_list(&found);
}

/// Compares what differs with the list, or writes it.
fn check_list(found: &[(String, String)]) {
    let list = folder().join("different.txt");
    if std::env::var_os("RECORD").is_some() {
        let text = found.iter().map(|(name, what)| format!("{name}\t{what}\n"));
        std::fs::write(&list, text.collect::<String>()).expect("the list can be written");
    }
    let listed = std::fs::read_to_string(&list).unwrap_or_default();
    let names = listed.lines().filter(|line| !line.starts_with('#'));
    let listed: BTreeSet<&str> = names
        .filter_map(|line| Some(line.split_once('\t')?.0))
        .collect();
    let new: Vec<_> = found
        .iter()
        .filter(|(name, _)| !listed.contains(name.as_str()))
        .collect();
    assert!(new.is_empty(), "differ, but are not listed: {new:#?}");
    let found: BTreeSet<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    let repaired: Vec<_> = listed.difference(&found).collect();
    assert!(repaired.is_empty(), "agree, but are listed: {repaired:#?}");
}

#[test]
fn a_definition_that_is_deleted_loses_its_finalizers_whatever_its_rules_are() {
    let complaints = |deleted: Option<&str>| {
        let definition = |finalizers: Value| {
            let rules = json!([{"rule": "{0: 1}[dyn(b'')] == 1 || true"}]);
            let schema = json!({"type": "object", "x-kubernetes-validations": rules});
            let mut definition = json!({
                "metadata": {"name": "things.example.com", "finalizers": finalizers},
                "spec": {
                    "group": "example.com",
                    "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                    "scope": "Namespaced",
                    "versions": [{
                        "name": "v1",
                        "served": true,
                        "storage": true,
                        "schema": {"openAPIV3Schema": schema}
                    }]
                },
                "status": {
                    "acceptedNames": {"plural": "things", "kind": "Thing"},
                    "conditions": [],
                    "storedVersions": ["v1"]
                }
            });
            if let Some(time) = deleted {
                definition.set(&["metadata", "deletionTimestamp"], time);
                definition.set(&["metadata", "deletionGracePeriodSeconds"], 0i64);
            }
            definition
        };
        let (old, new) = (
            definition(json!(["example.com/hold"])),
            definition(json!([])),
        );
        let case = json!({"in": new, "old": old});
        let found = with_row(|row, context| written(row, context, &case));
        found.expect("it can be read").0
    };
    assert_eq!(complaints(Some(TIME)), Vec::<String>::new());
    let present = complaints(None);
    assert!(
        present
            .iter()
            .any(|text| text.contains("invalid qualifier type")),
        "{present:?}"
    );
}

#[test]
fn a_wrong_name_is_complained_about_once_though_the_status_has_it_by_then() {
    let definition = |plural: &str, singular: &str| {
        json!({
            "metadata": {"name": "gadgets.example.com"},
            "spec": {
                "group": "example.com",
                "names": {"plural": (plural), "singular": (singular), "kind": "Gadget", "listKind": "GadgetList"},
                "scope": "Namespaced",
                "versions": [{
                    "name": "v1",
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}
                }]
            },
            "status": {"storedVersions": ["v1"]}
        })
    };
    let fields = |errors: Complaints| {
        let mut fields: Vec<String> = errors.into_iter().map(|error| error.field).collect();
        fields.sort();
        fields
    };
    with_row(|row, context| {
        let settled = |sent: Value| {
            let mut object = arrived(row, &sent).expect("it can be read");
            row.strategy.settle(context, &plane::empty(), &mut object);
            object
        };
        let new = settled(definition("Gadgets", "gadget"));
        let accepted = new.str_at(&["status", "acceptedNames", "plural"]);
        assert_eq!(accepted, "Gadgets");
        let found = fields(row.strategy.validate_create(context, &new));
        assert_eq!(found, ["metadata.name", "spec.names.plural"]);
        let old = settled(definition("gadgets", "gadget"));
        let mut new = definition("gadgets", "Gadget_");
        new.set(&["status"], old["status"].clone());
        let found = fields(row.strategy.validate_update(context, &settled(new), &old));
        assert_eq!(found, ["spec.names.singular"]);
    });
}

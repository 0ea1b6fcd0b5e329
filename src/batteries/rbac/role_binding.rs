//! RoleBindings and ClusterRoleBindings: the subjects of each role.

use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{IMMUTABLE, complain};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

const GROUP: &str = "rbac.authorization.k8s.io";
const ROLE_REF: &str = "io.k8s.api.rbac.v1.RoleRef";

/// Behaviour of RoleBindings and ClusterRoleBindings.
#[derive(Debug)]
pub struct RoleBinding {
    /// The scope in which the binding applies.
    pub scope: Scope,
}

impl Strategy for RoleBinding {
    fn default(&self, object: &mut Value) {
        if object.str_at(&["roleRef", "apiGroup"]).is_empty() {
            object.set(&["roleRef", "apiGroup"], GROUP);
        }
        for subject in object
            .at_mut(&["subjects"])
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let person = matches!(subject.str_at(&["kind"]), "User" | "Group");
            if person && subject.str_at(&["apiGroup"]).is_empty() {
                subject.set(&["apiGroup"], GROUP);
            }
        }
    }

    fn name_rule(&self) -> Option<NameRule> {
        Some(NameRule::WholePathSegment)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        self.validate(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, self.scope, NameRule::WholePathSegment);
        self.validate(&mut errors, object);
        errors.extend(object_metadata::validate_update(object, old));
        let differs = |name: &&str| {
            let path = ["roleRef", *name];
            object.str_at(&path) != old.str_at(&path)
        };
        if ["apiGroup", "kind", "name"].iter().any(differs) {
            let bad = bad_value::typed(ROLE_REF, &object["roleRef"]);
            errors.push(FieldError::invalid(&Path::new("roleRef"), bad, IMMUTABLE));
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let role = &object["roleRef"];
        let subjects = |kind: &str| -> Value {
            let found = object
                .items_at(&["subjects"])
                .iter()
                .filter(|subject| subject.str_at(&["kind"]) == kind);
            let names: Vec<String> = found.map(subject_text).collect();
            names.join(", ").into()
        };
        vec![
            name_cell(object),
            format!("{}/{}", role.str_at(&["kind"]), role.str_at(&["name"])).into(),
            age_cell(object, now),
            subjects("User"),
            subjects("Group"),
            subjects("ServiceAccount"),
        ]
    }
}

fn subject_text(subject: &Value) -> String {
    let name = subject.str_at(&["name"]);
    match subject.str_at(&["kind"]) {
        "ServiceAccount" => format!("{}/{name}", subject.str_at(&["namespace"])),
        _ => name.to_owned(),
    }
}

impl RoleBinding {
    fn validate(&self, errors: &mut Complaints, object: &Value) {
        let (path, role) = (Path::new("roleRef"), &object["roleRef"]);
        let group = role.str_at(&["apiGroup"]);
        if group != GROUP {
            errors.push(FieldError::not_supported(
                &path.child("apiGroup"),
                group,
                &[GROUP],
            ));
        }
        let kinds: &[&str] = match self.scope {
            Scope::Namespaced => &["Role", "ClusterRole"],
            Scope::Cluster => &["ClusterRole"],
        };
        let kind = role.str_at(&["kind"]);
        if !kinds.contains(&kind) {
            errors.push(FieldError::not_supported(&path.child("kind"), kind, kinds));
        }
        let name = role.str_at(&["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), "").covered());
        }
        complain(
            errors,
            &path.child("name"),
            name,
            names::path_segment_name(name),
        );
        let list = Path::new("subjects");
        for (at, subject) in object.items_at(&["subjects"]).iter().enumerate() {
            self.validate_subject(errors, subject, &list.index(at));
        }
    }

    fn validate_subject(&self, errors: &mut Complaints, subject: &Value, path: &Path<'_>) {
        let name = subject.str_at(&["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), "").covered());
        }
        let (group, place) = (subject.str_at(&["apiGroup"]), path.child("apiGroup"));
        match subject.str_at(&["kind"]) {
            "ServiceAccount" => {
                if !name.is_empty() {
                    complain(
                        errors,
                        &path.child("name"),
                        name,
                        names::dns1123_subdomain(name),
                    );
                }
                if !group.is_empty() {
                    errors.push(FieldError::not_supported(&place, group, &[""]));
                }
                if self.scope == Scope::Cluster && subject.str_at(&["namespace"]).is_empty() {
                    errors.push(FieldError::required(&path.child("namespace"), ""));
                }
            }
            "User" | "Group" => {
                if group != GROUP {
                    errors.push(FieldError::not_supported(&place, group, &[GROUP]));
                }
            }
            other => {
                let known = ["ServiceAccount", "User", "Group"];
                errors.push(FieldError::not_supported(
                    &path.child("kind"),
                    other,
                    &known,
                ));
            }
        }
    }
}

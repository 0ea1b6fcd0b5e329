//! Roles and ClusterRoles: rules that allow requests.

use crate::shared::object_metadata;
use crate::shared::table_cells::{created_cell, name_cell};
use crate::shared::validation::members::present;
use crate::shared::validation::selectors::{SelectorValues, selector, selector_values};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::names::NameRule;
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of Roles and ClusterRoles.
#[derive(Debug)]
pub struct Role {
    /// The scope in which the rules apply.
    pub scope: Scope,
}

impl Strategy for Role {
    fn name_rule(&self) -> Option<NameRule> {
        Some(NameRule::WholePathSegment)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        self.validate(&mut errors, object, SelectorValues::Checked);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, self.scope, NameRule::WholePathSegment);
        let selectors = old.items_at(&["aggregationRule", "clusterRoleSelectors"]);
        let free = selectors
            .iter()
            .any(|selector| selector_values(selector) == SelectorValues::Free);
        let values = if free {
            SelectorValues::Free
        } else {
            SelectorValues::Checked
        };
        self.validate(&mut errors, object, values);
        errors.extend(object_metadata::validate_update(object, old));
        errors
    }

    fn cells(&self, object: &Value, _: i64) -> Vec<Value> {
        vec![name_cell(object), created_cell(object)]
    }
}

impl Role {
    fn validate(&self, errors: &mut Complaints, object: &Value, values: SelectorValues) {
        let list = Path::new("rules");
        for (at, rule) in object.items_at(&["rules"]).iter().enumerate() {
            validate_rule(errors, rule, self.scope, &list.index(at));
        }
        let aggregation = &object["aggregationRule"];
        if self.scope == Scope::Namespaced || !present(aggregation) {
            return;
        }
        let path = Path::new("aggregationRule");
        let list = path.child("clusterRoleSelectors");
        let selectors = aggregation.items_at(&["clusterRoleSelectors"]);
        if selectors.is_empty() {
            let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(FieldError::required(&list, detail));
        }
        for (at, value) in selectors.iter().enumerate() {
            selector(errors, &list.index(at), value, values);
            if Selector::from_label_selector(Some(value)).is_err() {
                let bad = Bad::Plain(Value::Null);
                errors.push(FieldError::invalid(
                    &list.index(at),
                    bad,
                    "invalid label selector.",
                ));
            }
        }
    }
}

fn validate_rule(errors: &mut Complaints, rule: &Value, scope: Scope, path: &Path<'_>) {
    let is_empty = |field: &str| rule.items_at(&[field]).is_empty();
    if !is_empty("nonResourceURLs") {
        let place = path.child("nonResourceURLs");
        let bad = || Bad::Json(rule["nonResourceURLs"].clone());
        if scope == Scope::Namespaced {
            let detail = "namespaced rules cannot apply to non-resource URLs";
            errors.push(FieldError::invalid(&place, bad(), detail));
        }
        if !(is_empty("apiGroups") && is_empty("resources") && is_empty("resourceNames")) {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(FieldError::invalid(&place, bad(), detail));
        }
        return;
    }
    if is_empty("apiGroups") {
        let detail = "resource rules must supply at least one api group";
        errors.push(FieldError::required(&path.child("apiGroups"), detail));
    }
    if is_empty("resources") {
        let detail = "resource rules must supply at least one resource";
        errors.push(FieldError::required(&path.child("resources"), detail));
    }
}

//! Admission policies: expressions that check or change written objects.

use super::expressions::{Compiler, Makes, Uses};
use super::match_rules;
use super::match_rules::{
    FAILURE_POLICIES, REINVOCATION_POLICIES, param_kind_cell, validate_match_conditions,
    validate_match_resources, validate_mutating_operations, validate_param_kind,
};
use crate::shared::table_cells::{age_cell, count_cell, name_cell};
use crate::shared::validation::complaints::{complain, named, one_of, one_of_if_set};
use crate::shared::validation::conditions::conditions;
use crate::shared::validation::members::present;
use polyplane_apiextensions::rules::is_reserved;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Bad;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Value, json};
use polyplane_registry::strategy::{Context, Strategy};
use polyplane_registry::{Scope, metadata};
use std::collections::BTreeSet;

const ANNOTATIONS_MAX: usize = 20;
const ANNOTATION_BYTES_MAX: usize = 5 * 1024;
const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
const PATCH_TYPES: [&str; 2] = ["ApplyConfiguration", "JSONPatch"];

/// Behaviour of admission policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionPolicy {
    /// Policies that refuse requests.
    Validating,
    /// Policies that change objects.
    Mutating,
}

impl Strategy for AdmissionPolicy {
    fn status_creates(&self) -> bool {
        *self == Self::Validating
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = Complaints::default();
        self.validate(&mut errors, object, None);
        match_rules::validate_name(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        self.validate(&mut errors, object, Some(old));
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        let mut errors = Complaints::default();
        let (status, checking) = (Path::new("status"), &object["status"]["typeChecking"]);
        let place = status.child("typeChecking");
        let list = place.child("expressionWarnings");
        for (at, warning) in checking
            .items_at(&["expressionWarnings"])
            .iter()
            .enumerate()
        {
            for field in ["warning", "fieldRef"] {
                let text = warning.str_at(&[field]);
                let text = if field == "fieldRef" {
                    text.trim()
                } else {
                    text
                };
                if text.is_empty() {
                    errors.push(FieldError::required(&list.index(at).child(field), ""));
                }
            }
        }
        conditions(
            &mut errors,
            &status.child("conditions"),
            &object["status"]["conditions"],
        );
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        match_rules::name_warnings(object)
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let list = match self {
            Self::Validating => &spec["validations"],
            Self::Mutating => &spec["mutations"],
        };
        vec![
            name_cell(object),
            count_cell(list),
            param_kind_cell(&spec["paramKind"]),
            age_cell(object, now),
        ]
    }
}

impl AdmissionPolicy {
    fn validate(self, errors: &mut Complaints, object: &Value, old: Option<&Value>) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        let place = path.child("failurePolicy");
        if spec["failurePolicy"].is_null() {
            errors.push(FieldError::required(&place, ""));
        }
        one_of_if_set(errors, &place, &spec["failurePolicy"], &FAILURE_POLICIES);
        let params = present(&spec["paramKind"]);
        if params {
            validate_param_kind(errors, &spec["paramKind"], &path.child("paramKind"));
        }
        let (constraints, place) = (&spec["matchConstraints"], path.child("matchConstraints"));
        if constraints.is_null() {
            errors.push(FieldError::required(&place, ""));
        } else {
            validate_match_resources(errors, constraints, &place);
            if constraints.items_at(&["resourceRules"]).is_empty() {
                errors.push(FieldError::required(&place.child("resourceRules"), ""));
            }
            if self == Self::Mutating {
                validate_mutating_operations(errors, constraints, &place);
            }
        }
        let unchanged = |old: &Value| {
            let fields = ["paramKind", "matchConditions"];
            fields
                .iter()
                .all(|field| spec[*field] == old["spec"][*field])
        };
        if !old.is_some_and(unchanged) {
            let place = path.child("matchConditions");
            let conditions = spec.items_at(&["matchConditions"]);
            validate_match_conditions(errors, conditions, &place, params);
        }
        let variables = spec.items_at(&["variables"]);
        let mut expressions = Expressions {
            compiler: match self == Self::Mutating || !variables.is_empty() {
                true => Compiler::with_variables(),
                false => Compiler::default(),
            },
            uses: Uses::with_params(params),
        };
        expressions.define(errors, variables, &path.child("variables"));
        match self {
            Self::Validating => validate_validations(errors, object, &path, &mut expressions),
            Self::Mutating => validate_mutations(errors, spec, &path, &mut expressions),
        }
    }
}

/// The expressions of one policy.
struct Expressions {
    compiler: Compiler,
    uses: Uses,
}

impl Expressions {
    /// Checks the variables, and lets the other expressions use them.
    fn define(&mut self, errors: &mut Complaints, variables: &[Value], list: &Path<'_>) {
        for (at, variable) in variables.iter().enumerate() {
            let path = list.index(at);
            let (name, place) = (variable.str_at(&["name"]), path.child("name"));
            if name.trim().is_empty() {
                errors.push(FieldError::required(&place, "name is not specified"));
            } else if !is_identifier(name) {
                let detail = "must be a valid CEL identifier";
                errors.push(FieldError::invalid(&place, name, detail));
            }
            let (text, place) = (variable.str_at(&["expression"]), path.child("expression"));
            if text.trim().is_empty() {
                errors.push(FieldError::required(&place, "expression is not specified"));
            } else if let Err(why) = self.compiler.define(name, text, self.uses) {
                errors.push(why.complaint(&place, text));
            }
        }
    }

    /// Checks one expression. `shown` is what the complaint shows of it.
    fn check(
        &mut self,
        errors: &mut Complaints,
        place: &Path<'_>,
        (text, shown): (&str, &str),
        makes: Makes,
    ) {
        let uses = match makes {
            Makes::Text => Uses {
                authorizer: false,
                ..self.uses
            },
            Makes::Object | Makes::Patch => Uses {
                patches: true,
                ..self.uses
            },
            Makes::Bool | Makes::TextOrNull | Makes::Anything => self.uses,
        };
        if let Err(why) = self.compiler.compile(text, uses, makes) {
            errors.push(why.complaint(place, shown));
        }
    }
}

fn is_identifier(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let digit_first = name.as_bytes().first().is_none_or(u8::is_ascii_digit);
    name.bytes().all(letter) && !digit_first && !is_reserved(name)
}

fn validate_validations(
    errors: &mut Complaints,
    object: &Value,
    path: &Path<'_>,
    expressions: &mut Expressions,
) {
    let spec = &object["spec"];
    let (validations, annotations) = (
        spec.items_at(&["validations"]),
        spec.items_at(&["auditAnnotations"]),
    );
    if validations.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        for field in ["validations", "auditAnnotations"] {
            errors.push(FieldError::required(&path.child(field), detail));
        }
        return;
    }
    for (at, validation) in validations.iter().enumerate() {
        let place = path.child("validations");
        validate_validation(errors, validation, &place.index(at), expressions);
    }
    let list = path.child("auditAnnotations");
    if annotations.len() > ANNOTATIONS_MAX {
        let detail = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        errors.push(FieldError::invalid(
            &list,
            shown_annotations(annotations),
            detail,
        ));
    }
    let mut seen = BTreeSet::new();
    for (at, annotation) in annotations.iter().enumerate() {
        let place = list.index(at);
        let name = object.str_at(&["metadata", "name"]);
        validate_annotation(errors, name, annotation, &place, expressions);
        let key = annotation.str_at(&["key"]);
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(&place.child("key"), key));
        }
    }
}

fn shown_annotations(annotations: &[Value]) -> Bad {
    let shown: Vec<String> = annotations
        .iter()
        .map(|annotation| {
            let text = |field: &str| json::to_string(&annotation.str_at(&[field]).into());
            format!(
                "{{\"Key\":{},\"ValueExpression\":{}}}",
                text("key"),
                text("valueExpression")
            )
        })
        .collect();
    Bad::Shown(format!("[{}]", shown.join(",")).into())
}

fn validate_validation(
    errors: &mut Complaints,
    validation: &Value,
    path: &Path<'_>,
    expressions: &mut Expressions,
) {
    let (text, place) = (validation.str_at(&["expression"]), path.child("expression"));
    if text.trim().is_empty() {
        errors.push(FieldError::required(&place, "expression is not specified"));
    } else {
        expressions.check(errors, &place, (text, text), Makes::Bool);
    }
    for field in ["messageExpression", "message"] {
        let text = validation.str_at(&[field]);
        if !text.is_empty() && text.trim().is_empty() {
            errors.push(FieldError::invalid(
                &path.child(field),
                text,
                "must be non-empty if specified",
            ));
        } else if field == "messageExpression" && !text.is_empty() {
            expressions.check(errors, &path.child(field), (text, text), Makes::Text);
        } else if field == "message" && text.trim().contains(['\n', '\r']) {
            errors.push(FieldError::invalid(
                &path.child(field),
                text,
                "must not contain line breaks",
            ));
        }
    }
    one_of_if_set(
        errors,
        &path.child("reason"),
        &validation["reason"],
        &REASONS,
    );
}

fn validate_annotation(
    errors: &mut Complaints,
    name: &str,
    annotation: &Value,
    path: &Path<'_>,
    expressions: &mut Expressions,
) {
    let (key, place) = (annotation.str_at(&["key"]), path.child("key"));
    if name.is_empty() {
        errors.push(FieldError::invalid(
            &place,
            key,
            "requires metadata.name be non-empty",
        ));
    } else {
        let full = format!("{name}/{key}");
        complain(errors, &place, full.as_str(), names::qualified_name(&full));
    }
    let (shown, place) = (
        annotation.str_at(&["valueExpression"]),
        path.child("valueExpression"),
    );
    let expression = shown.trim();
    if expression.is_empty() {
        errors.push(FieldError::required(
            &place,
            "valueExpression is not specified",
        ));
    } else if expression.len() > ANNOTATION_BYTES_MAX {
        let detail = format!("must not exceed {ANNOTATION_BYTES_MAX} bytes in length");
        errors.push(FieldError::required(&place, detail));
    } else {
        expressions.check(errors, &place, (expression, shown), Makes::TextOrNull);
    }
}

fn validate_mutations(
    errors: &mut Complaints,
    spec: &Value,
    path: &Path<'_>,
    expressions: &mut Expressions,
) {
    let (list, mutations) = (path.child("mutations"), spec.items_at(&["mutations"]));
    if mutations.is_empty() {
        errors.push(FieldError::required(
            &list,
            "mutations must contain at least one item",
        ));
    }
    for (at, mutation) in mutations.iter().enumerate() {
        validate_mutation(errors, mutation, &list.index(at), expressions);
    }
    let (policy, place) = (
        spec.str_at(&["reinvocationPolicy"]),
        path.child("reinvocationPolicy"),
    );
    if policy.is_empty() {
        errors.push(FieldError::required(&place, ""));
    } else {
        one_of(errors, &place, policy, &REINVOCATION_POLICIES);
    }
}

fn validate_mutation(
    errors: &mut Complaints,
    mutation: &Value,
    path: &Path<'_>,
    expressions: &mut Expressions,
) {
    let kind = mutation.str_at(&["patchType"]);
    let (own, other, makes) = match kind {
        "JSONPatch" => ("jsonPatch", "applyConfiguration", Makes::Patch),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Makes::Object),
        "" => {
            errors.push(FieldError::required(&path.child("patchType"), ""));
            return;
        }
        unknown => {
            let place = path.child("patchType");
            errors.push(FieldError::not_supported(
                &place,
                named(unknown),
                &PATCH_TYPES,
            ));
            return;
        }
    };
    let (text, place) = (
        mutation.str_at(&[own, "expression"]).trim(),
        path.child(own),
    );
    if mutation[own].is_null() {
        let detail = format!("must be specified when patchType is {kind}");
        errors.push(FieldError::required(&place, detail));
    } else if text.is_empty() {
        errors.push(FieldError::required(&place.child("expression"), ""));
    } else {
        expressions.check(errors, &place.child("expression"), (text, text), makes);
    }
    if present(&mutation[other]) {
        let detail = format!("must not be specified when patchType is {kind}");
        errors.push(FieldError::invalid(
            &path.child(other),
            format!("{{{other}}}"),
            detail,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_words_of_expressions() {
        for good in ["a", "_x1", "Foo"] {
            assert!(is_identifier(good), "{good}");
        }
        for bad in ["", "1a", "a-b", "in", "while", "ä"] {
            assert!(!is_identifier(bad), "{bad}");
        }
    }
}

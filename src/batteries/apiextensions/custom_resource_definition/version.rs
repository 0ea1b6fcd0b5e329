//! The parts of a version of a CustomResourceDefinition beside its schema: names, columns, paths.

use super::internal_form;
use super::ratchet::SELECTABLE_FIELDS_MAX;
use crate::shared::validation::members::{present, texts};
use polyplane_apiextensions::rules::{Steps, find_field};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::quote::is_print;
use polyplane_apimachinery::{Value, names};
use std::collections::BTreeSet;

const AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";
/// Members that the root of a schema with a status subresource may not have. The first three are
/// checked before the type.
const NOT_AT_ROOT: [&str; 22] = [
    "id",
    "$schema",
    "$ref",
    "nullable",
    "default",
    "enum",
    "maxProperties",
    "minProperties",
    "allOf",
    "oneOf",
    "anyOf",
    "not",
    "additionalProperties",
    "patternProperties",
    "dependencies",
    "additionalItems",
    "definitions",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
];
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = [
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
];
const WARNING_CHARACTERS_MAX: usize = 256;

/// Checks the warning that users of a version see.
pub fn validate_deprecation(errors: &mut Complaints, version: &Value, path: &Path<'_>) {
    let Some(warning) = version["deprecationWarning"].as_str() else {
        return;
    };
    // A pointer to a text is shown as JSON, not quoted.
    let bad = || Bad::Json(warning.into());
    let mut invalid = |detail: String| errors.push(FieldError::invalid(path, bad(), detail));
    if !version.bool_at(&["deprecated"]) {
        invalid("can only be set for deprecated versions".to_owned());
        return;
    }
    if warning.len() > WARNING_CHARACTERS_MAX {
        invalid(format!(
            "must be <= {WARNING_CHARACTERS_MAX} characters long"
        ));
    }
    if warning.is_empty() {
        invalid("must not be an empty string".to_owned());
    }
    if let Some((at, _)) = warning
        .char_indices()
        .find(|(_, letter)| !is_print(*letter))
    {
        invalid(format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        ));
    }
}

/// Checks names: those of a spec, or accepted ones.
pub fn validate_names(errors: &mut Complaints, given: &Value, path: &Path<'_>) {
    let mut label = |text: &str, checked: &str, intro: &str, place: &Path<'_>| {
        let complaints = names::dns1035_label(checked);
        if !complaints.is_empty() {
            let detail = format!("{intro}{}", complaints.join(","));
            errors.push(FieldError::invalid(place, text, detail));
        }
    };
    for (field, intro) in [
        ("plural", ""),
        ("singular", ""),
        ("kind", "may have mixed case, but should otherwise match: "),
        (
            "listKind",
            "may have mixed case, but should otherwise match: ",
        ),
    ] {
        let text = given.str_at(&[field]);
        let checked = if intro.is_empty() {
            text.to_owned()
        } else {
            text.to_lowercase()
        };
        if !text.is_empty() {
            label(text, &checked, intro, &path.child(field));
        }
    }
    for (at, name) in texts(&given["shortNames"]).into_iter().enumerate() {
        label(name, name, "", &path.child("shortNames").index(at));
    }
    let (kind, list_kind) = (given.str_at(&["kind"]), given.str_at(&["listKind"]));
    if !kind.is_empty() && kind == list_kind {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(
            &path.child("listKind"),
            list_kind,
            detail,
        ));
    }
    let list = path.child("categories");
    for (at, name) in texts(&given["categories"]).into_iter().enumerate() {
        let complaints = names::dns1035_label(name);
        if !complaints.is_empty() {
            errors.push(FieldError::invalid(
                &list.index(at),
                name,
                complaints.join(","),
            ));
        }
    }
}

/// Checks that the root of a schema with a status subresource is an object with few other keywords.
pub fn validate_root(errors: &mut Complaints, schema: &Value, path: &Path<'_>) {
    let set = |name: &&str| match *name {
        name @ ("nullable" | "x-kubernetes-embedded-resource" | "x-kubernetes-int-or-string") => {
            schema.bool_at(&[name])
        }
        name @ ("id" | "$schema") => !schema.str_at(&[name]).is_empty(),
        // Of the others, also an empty or false one is set.
        name => present(&schema[name]),
    };
    let kind = schema.str_at(&["type"]);
    let early = NOT_AT_ROOT[..3].iter().any(set);
    if !early && !kind.is_empty() && kind != "object" {
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(FieldError::invalid(&path.child("type"), kind, detail));
    } else if NOT_AT_ROOT.iter().any(set) {
        let detail = format!(
            "only {AT_ROOT} fields are allowed at the root of the schema if the status subresource is enabled"
        );
        let shown = Bad::Shown(internal_form::schema(schema).into());
        errors.push(FieldError::invalid(path, shown, detail));
    }
}

/// Checks the paths at which the scale subresource finds its numbers.
pub fn validate_scale(errors: &mut Complaints, scale: &Value, path: &Path<'_>) {
    if !present(scale) {
        return;
    }
    for (field, place, roots) in [
        (
            "specReplicasPath",
            "scale.specReplicasPath",
            &[".spec."][..],
        ),
        (
            "statusReplicasPath",
            "scale.statusReplicasPath",
            &[".status."],
        ),
        (
            "labelSelectorPath",
            "scale.labelSelectorPath",
            &[".spec.", ".status."],
        ),
    ] {
        let (text, place) = (scale.str_at(&[field]), path.child(place));
        if text.is_empty() {
            if field != "labelSelectorPath" {
                errors.push(FieldError::required(&place, ""));
            }
        } else if !text.starts_with('.') {
            errors.push(FieldError::invalid(
                &place,
                text,
                "must be a simple json path starting with .",
            ));
        } else if !roots.iter().any(|root| text.starts_with(root)) {
            let detail = match roots {
                [root] => format!("should be a json path under {}", root.trim_end_matches('.')),
                _ => "should be a json path under either .spec or .status".to_owned(),
            };
            let bad = match roots {
                [_] => Bad::from(text),
                _ => Bad::Json(text.into()),
            };
            errors.push(FieldError::invalid(&place, bad, detail));
        }
    }
}

/// Checks the columns of tables.
pub fn validate_columns(errors: &mut Complaints, version: &Value, list: &Path<'_>) {
    for (at, column) in version
        .items_at(&["additionalPrinterColumns"])
        .iter()
        .enumerate()
    {
        let path = list.index(at);
        let text = |field: &str| column.str_at(&[field]);
        if text("name").is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        let detail = format!("must be one of {}", COLUMN_TYPES.join(","));
        let place = path.child("type");
        if text("type").is_empty() {
            errors.push(FieldError::required(&place, detail));
        } else if !COLUMN_TYPES.contains(&text("type")) {
            errors.push(FieldError::invalid(&place, text("type"), detail));
        }
        if !text("format").is_empty() && !COLUMN_FORMATS.contains(&text("format")) {
            let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.push(FieldError::invalid(
                &path.child("format"),
                text("format"),
                detail,
            ));
        }
        let place = path.child("JSONPath");
        if text("jsonPath").is_empty() {
            errors.push(FieldError::required(&place, ""));
        } else if !text("jsonPath").starts_with('.') {
            let detail = "must be a simple json path starting with .";
            errors.push(FieldError::invalid(&place, text("jsonPath"), detail));
        }
    }
}

/// Checks the fields by which lists can be filtered. `is_crowded` is whether there may be too many of them.
pub fn validate_selectable(
    errors: &mut Complaints,
    version: &Value,
    is_crowded: bool,
    list: &Path<'_>,
) {
    let schema = &version["schema"]["openAPIV3Schema"];
    let mut seen = BTreeSet::new();
    for (at, field) in version.items_at(&["selectableFields"]).iter().enumerate() {
        let path = list.index(at);
        let (text, place) = (field.str_at(&["jsonPath"]), path.child("jsonPath"));
        if text.is_empty() {
            errors.push(FieldError::required(&place, ""));
            continue;
        }
        let found = match find_field(text, schema, Steps::Names) {
            Ok(found) => found,
            Err(why) => {
                let detail = format!("is an invalid path: {why}");
                errors.push(FieldError::invalid(&place, text, detail));
                continue;
            }
        };
        if found.root == "metadata" {
            errors.push(FieldError::invalid(
                &place,
                text,
                "must not point to fields in metadata",
            ));
        }
        if !matches!(
            found.schema.str_at(&["type"]),
            "string" | "boolean" | "integer"
        ) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(&place, text, detail));
        }
        if !seen.insert(found.shown) {
            errors.push(FieldError::duplicate(&place, text));
        }
    }
    if seen.len() > SELECTABLE_FIELDS_MAX && !is_crowded {
        errors.push(FieldError::too_many(
            list,
            seen.len(),
            SELECTABLE_FIELDS_MAX,
        ));
    }
}

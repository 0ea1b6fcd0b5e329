//! Which reviews of access are refused, and which parts of their selectors are not looked at.

use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::field_selector::{FieldSelector, escape_value};
use polyplane_apimachinery::labels::{self, Selector, UnknownOperators};
use polyplane_apimachinery::{Map, Value, json};

const ONE_OF: &str = "exactly one of nonResourceAttributes or resourceAttributes must be specified";

/// The kinds of access reviews.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of the caller.
    OfSelf,
    /// Of anybody.
    OfAnybody,
    /// Of anybody, in the namespace of the review alone.
    Local,
}

/// Checks a review.
pub(super) fn check(tree: &Value, kind: Kind) -> Complaints {
    let spec = &tree["spec"];
    let path = Path::new("spec");
    let resource = spec.get("resourceAttributes");
    let other = spec.get("nonResourceAttributes");
    let mut errors = Complaints::default();
    if resource.is_some() == other.is_some() {
        errors.push(FieldError::invalid(&path, of_path(other), ONE_OF));
    }
    let names_nobody = spec.str_at(&["user"]).is_empty() && spec.items_at(&["groups"]).is_empty();
    if kind != Kind::OfSelf && names_nobody {
        let detail = "at least one of user or group must be specified";
        errors.push(FieldError::invalid(&path.child("user"), "", detail));
    }
    let resource_path = path.child("resourceAttributes");
    if let Some(resource) = resource {
        check_selectors(resource, &resource_path, &mut errors);
    }
    check_metadata(tree, kind, &mut errors);
    if kind == Kind::Local {
        let named = resource.map(|resource| resource.str_at(&["namespace"]));
        if let Some(named) = named
            && named != tree.str_at(&["metadata", "namespace"])
        {
            let detail = "must match metadata.namespace";
            let path = resource_path.child("namespace");
            errors.push(FieldError::invalid(&path, named, detail));
        }
        if other.is_some() {
            let detail = "disallowed on this kind of request";
            let path = path.child("nonResourceAttributes");
            errors.push(FieldError::invalid(&path, of_path(other), detail));
        }
    }
    errors
}

/// Returns the attributes of a path as upstream shows them: by the names of Go's fields, because the type has
/// none for JSON.
fn of_path(attributes: Option<&Value>) -> Bad {
    let shown = attributes.map(|attributes| {
        let part = |name: &str| Value::from(attributes.str_at(&[name]));
        json!({"Path": (part("path")), "Verb": (part("verb"))})
    });
    Bad::Json(shown.unwrap_or_default())
}

/// Reviews are stored nowhere, so all that they may have is a namespace, and owners of fields.
fn check_metadata(tree: &Value, kind: Kind, errors: &mut Complaints) {
    let metadata = &tree["metadata"];
    let is_local = kind == Kind::Local;
    let may_be = |name: &str| name == "managedFields" || (is_local && name == "namespace");
    let members = metadata.as_object().into_iter().flat_map(Map::iter);
    let has_more = members
        .filter(|(name, _)| !may_be(name))
        .any(|(_, value)| !is_empty(value));
    if has_more {
        let detail = match is_local {
            true => "must be empty except for namespace",
            false => "must be empty",
        };
        let path = Path::new("metadata");
        let shown = Bad::Typed {
            definition: "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
            value: metadata.clone(),
        };
        errors.push(FieldError::invalid(&path, shown, detail));
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Int(number) => *number == 0,
        _ => false,
    }
}

fn check_selectors(resource: &Value, path: &Path<'_>, errors: &mut Complaints) {
    for name in ["fieldSelector", "labelSelector"] {
        let Some(selector) = resource.get(name) else {
            continue;
        };
        let path = path.child(name);
        let raw = selector.str_at(&["rawSelector"]);
        let requirements = selector.items_at(&["requirements"]);
        if !raw.is_empty() && !requirements.is_empty() {
            let detail = "may not specified at the same time as requirements";
            errors.push(FieldError::invalid(&path.child("rawSelector"), raw, detail));
        }
        let listed = path.child("requirements");
        if raw.is_empty() && requirements.is_empty() {
            let detail =
                format!("when {path} is specified, requirements or rawSelector is required");
            errors.push(FieldError::required(&listed, detail));
        }
        for (index, requirement) in requirements.iter().enumerate() {
            let path = listed.index(index);
            if name == "labelSelector" {
                let unknown = UnknownOperators::Allowed;
                labels::validate_requirement(requirement, &path, unknown, errors);
                continue;
            }
            if requirement.str_at(&["key"]).is_empty() {
                errors.push(FieldError::required(
                    &path.child("key"),
                    "must be specified",
                ));
            }
            labels::validate_operator(requirement, &path, UnknownOperators::Allowed, errors);
        }
    }
}

/// The selectors of a review, as far as authorizers can look at them.
pub(super) struct Selectors {
    /// The field selector as text. What it lacks would select less.
    pub(super) fields: String,
    /// What was left out; empty for nothing.
    pub(super) left_out: String,
}

impl Selectors {
    /// Reads the selectors of a question about a resource.
    pub(super) fn of(resource: &Value) -> Self {
        let (fields, fields_left) = fields_of(&resource["fieldSelector"]);
        let labels_left = labels_left(&resource["labelSelector"]);
        let told = [
            ("fieldSelector", fields_left),
            ("labelSelector", labels_left),
        ];
        let told = told.into_iter().filter_map(|(name, left)| {
            let how = match left {
                LeftOut::Nothing => return None,
                LeftOut::Some => "partially ignored",
                LeftOut::All => "ignored",
            };
            Some(format!(
                "spec.resourceAttributes.{name} {how} due to parse error"
            ))
        });
        let left_out = told.collect::<Vec<_>>().join("; ");
        Self { fields, left_out }
    }
}

#[derive(Clone, Copy)]
enum LeftOut {
    Nothing,
    Some,
    All,
}

impl LeftOut {
    fn of(all: usize, kept: usize) -> Self {
        match kept {
            kept if kept == all => Self::Nothing,
            0 => Self::All,
            _ => Self::Some,
        }
    }
}

fn fields_of(selector: &Value) -> (String, LeftOut) {
    let requirements = selector.items_at(&["requirements"]);
    if requirements.is_empty() {
        let raw = selector.str_at(&["rawSelector"]);
        return match FieldSelector::parse(raw) {
            Ok(_) => (raw.to_owned(), LeftOut::Nothing),
            Err(_) => (String::new(), LeftOut::All),
        };
    }
    let terms = requirements.iter().filter_map(|requirement| {
        let sign = match requirement.str_at(&["operator"]) {
            "In" => "=",
            "NotIn" => "!=",
            _ => return None,
        };
        let [value] = requirement.items_at(&["values"]) else {
            return None;
        };
        let value = escape_value(value.as_str()?);
        Some(format!("{}{sign}{value}", requirement.str_at(&["key"])))
    });
    let terms: Vec<String> = terms.collect();
    let left = LeftOut::of(requirements.len(), terms.len());
    (terms.join(","), left)
}

/// Returns how much of a label selector upstream would leave out. Authorizers here look at no labels.
fn labels_left(selector: &Value) -> LeftOut {
    let requirements = selector.items_at(&["requirements"]);
    if requirements.is_empty() {
        return match Selector::parse(selector.str_at(&["rawSelector"])) {
            Ok(_) => LeftOut::Nothing,
            Err(_) => LeftOut::All,
        };
    }
    let is_known = |requirement: &&Value| {
        let operator = requirement.str_at(&["operator"]);
        ["In", "NotIn", "Exists", "DoesNotExist"].contains(&operator)
    };
    LeftOut::of(
        requirements.len(),
        requirements.iter().filter(is_known).count(),
    )
}

//! The behaviour of all custom kinds.

use crate::definition::Version;
use crate::embedded;
use crate::json_path::JsonPath;
use crate::table::Columns;
use crate::units::Unit;
use crate::validation::{self, Change};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::names::qualified_name;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::shape::lists;
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_cel::WorkBudget;
use polyplane_registry::kinds::conversion::PreparedIn;
use polyplane_registry::kinds::custom::ScalePaths;
use polyplane_registry::metadata;
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The greatest number of replicas.
const REPLICAS_MAX: i64 = 2_147_483_647;
/// Finalizers that upstream's own controllers use without a domain.
const STANDARD_FINALIZERS: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];

/// The behaviour of one version of a custom kind.
#[derive(Debug)]
pub(crate) struct CustomObject {
    unit: Arc<Unit>,
    api_version: Str,
    kind: Str,
    columns: Columns,
    scale: Option<ScalePaths>,
    selectable: Vec<(Str, JsonPath)>,
}

impl CustomObject {
    /// Creates the behaviour. `api_version` and `kind` are those of its objects.
    pub fn new(
        version: &Version,
        unit: Arc<Unit>,
        columns: Columns,
        (api_version, kind): (&str, &str),
    ) -> Self {
        let selectable = version.selectable.iter().filter_map(|path| {
            let name = path.strip_prefix('.').unwrap_or(path);
            Some((name.into(), JsonPath::parse(path).ok()?))
        });
        Self {
            unit,
            api_version: api_version.into(),
            kind: kind.into(),
            columns,
            scale: version.scale.clone(),
            selectable: selectable.collect(),
        }
    }

    /// Returns the object with kind and version, as schemas and expressions see it.
    fn whole(&self, object: &Value) -> Value {
        let mut whole = object.clone();
        whole.set(&["apiVersion"], self.api_version.as_str());
        whole.set(&["kind"], self.kind.as_str());
        whole
    }

    /// Checks an object, whole or as far as a write of its status changes it.
    fn check(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: Option<&Value>,
        part: Part,
    ) -> Complaints {
        let compiled = self.unit.compiled();
        if let Some(why) = &compiled.broken {
            let text = format!("the schema of this version cannot be used: {why}");
            return Complaints::from([FieldError::internal(&Path::NIL, text)]);
        }
        let (new, old) = (self.whole(object), old.map(|old| self.whole(old)));
        let budget = WorkBudget::default();
        let mut errors: Complaints = match part {
            Part::Whole => {
                let change = change(&new, old.as_ref());
                let found = validation::validate(&compiled.schema, change, None, &budget);
                found.into_iter().collect()
            }
            Part::Status => self.check_status(&new, old.as_ref(), &budget),
        };
        if let Some(scale) = &self.scale {
            if part == Part::Whole {
                replicas(&mut errors, &new, &scale.spec_replicas);
            }
            replicas(&mut errors, &new, &scale.status_replicas);
            if let Some(path) = &scale.selector {
                selector(&mut errors, &new, path);
            }
        }
        if part == Part::Whole {
            let root = compiled.structural.root();
            errors.extend(embedded::validate(root, &new, &Path::NIL));
        }
        let root = compiled.structural.root();
        let repeated = lists::validate(root, &new, &Path::NIL);
        let was_good = |old: &Value| lists::validate(root, old, &Path::NIL).is_empty();
        if !repeated.is_empty() && old.as_ref().is_none_or(was_good) {
            errors.extend(repeated);
        }
        if compiled.rules.is_empty() {
            return errors;
        }
        if context.metadata_blocks_rules || errors.block_rules() {
            say_unchecked(&mut errors);
            return errors;
        }
        let rules = &compiled.rules;
        let found = rules.check(&compiled.schema, &new, old.as_ref(), &budget);
        errors.extend(found.errors);
        for warning in found.warnings {
            context.warnings.add(warning);
        }
        errors
    }

    fn check_status(&self, new: &Value, old: Option<&Value>, budget: &WorkBudget) -> Complaints {
        let compiled = self.unit.compiled();
        let (Some(status), Some(schema)) = (new.get("status"), compiled.schema.property("status"))
        else {
            return Complaints::default();
        };
        let old = old.and_then(|old| old.get("status"));
        let found = validation::validate(schema, change(status, old), Some("status"), budget);
        found.into_iter().collect()
    }
}

/// The part of an object that a write changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    Status,
}

fn change<'v>(new: &'v Value, old: Option<&'v Value>) -> Change<'v> {
    match old {
        None => Change::Created(new),
        Some(old) => Change::Updated(new, old),
    }
}

/// Adds the complaint that rules were not checked.
fn say_unchecked(errors: &mut Complaints) {
    let text = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
    let note = FieldError::invalid(&Path::NIL, Value::Null, text);
    match errors.is_full() {
        true => errors.push_front(note),
        false => errors.push(note),
    }
}

/// Returns the value at a path of names with periods between them.
///
/// # Errors
/// Returns upstream's text if a value before the end of the path is no object.
fn at<'v>(object: &'v Value, path: &str) -> Result<Option<&'v Value>, String> {
    let mut value = object;
    let mut walked = String::new();
    for name in path.split('.') {
        walked.push('.');
        walked.push_str(name);
        value = match value {
            Value::Null => return Ok(None),
            Value::Object(members) => match members.get(name) {
                Some(member) => member,
                None => return Ok(None),
            },
            other => return Err(accessor_error(&walked, other, "map[string]interface{}")),
        };
    }
    Ok(Some(value))
}

fn replicas(errors: &mut Complaints, object: &Value, path: &str) {
    let shown = format!(".{path}");
    let place = Path::new(&shown);
    let (number, complaint) = match at(object, path) {
        Ok(None) => return,
        Ok(Some(Value::Int(number))) if *number < 0 => {
            (*number, "should be a non-negative integer".to_owned())
        }
        Ok(Some(Value::Int(number))) if *number > REPLICAS_MAX => {
            let text = format!("should be less than or equal to {REPLICAS_MAX}");
            (*number, text)
        }
        Ok(Some(Value::Int(_))) => return,
        Ok(Some(other)) => (0, accessor_error(&shown, other, "int64")),
        Err(text) => (0, text),
    };
    errors.push(FieldError::invalid(&place, number, complaint));
}

fn selector(errors: &mut Complaints, object: &Value, path: &str) {
    let shown = format!(".{path}");
    let text = match at(object, path) {
        Ok(None | Some(Value::String(_))) => return,
        Ok(Some(other)) => accessor_error(&shown, other, "string"),
        Err(text) => text,
    };
    errors.push(FieldError::invalid(&Path::new(&shown), "", text));
}

/// Returns upstream's text about a value of another type than the wanted one.
fn accessor_error(path: &str, value: &Value, wanted: &str) -> String {
    format!(
        "{path} accessor error: {} is of the type {}, expected {wanted}",
        value.go_text(),
        value.go_type()
    )
}

/// Returns the warnings about finalizers that were not there before.
fn finalizer_warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    /// A set: an object may have a hundred thousand, before and after.
    fn names(object: &Value) -> BTreeSet<&str> {
        let names = metadata::strings(&object["metadata"]["finalizers"]);
        names.into_iter().collect()
    }
    let known = old.map(names).unwrap_or_default();
    let field = "metadata.finalizers";
    let mut warnings = Vec::new();
    for name in names(object).difference(&known).copied() {
        let shown = quote(name);
        let complaints = qualified_name(name).into_iter();
        warnings.extend(complaints.map(|complaint| format!("{field}: {shown}: {complaint}")));
        if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            let path = match name.contains('.') {
                true => " including a path (/)",
                false => "",
            };
            warnings.push(format!(
                "{field}: {shown}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
            ));
        }
    }
    warnings
}

impl Strategy for CustomObject {
    fn counts_generation(&self, object: &Value, old: &Value) -> Option<bool> {
        fn content(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
            let members = value.as_object().into_iter().flat_map(Map::iter);
            members.filter(|(name, _)| *name != "metadata")
        }
        Some(!content(object).eq(content(old)))
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        self.check(context, object, None, Part::Whole)
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        self.check(context, object, Some(old), Part::Whole)
    }

    fn validate_subresource(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> Complaints {
        self.check(context, object, Some(old), Part::Status)
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        match context.subresource {
            "" => finalizer_warnings(object, old),
            _ => Vec::new(),
        }
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        self.columns.cells(object, now)
    }

    fn field(&self, object: Scanned<'_>, name: &str) -> Option<Str> {
        let (_, path) = self.selectable.iter().find(|(known, _)| known == name)?;
        let object = json::parse(object.0, &Limits::default()).ok()?.value;
        let found = path.find(&object);
        Some(match found.first() {
            None | Some(Value::Null) => Str::default(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => json::to_string(value).into(),
        })
    }

    fn prepared_in(&self) -> PreparedIn {
        PreparedIn::Request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn finalizers_are_warned_about_once_and_not_again() {
        let object = |names: &[&str]| {
            let names = names.iter().map(|name| Value::string(*name));
            let mut object = Value::object();
            let names = Value::Array(names.collect());
            object.set(&["metadata", "finalizers"], names);
            object
        };
        let old = object(&["old", "orphan"]);
        let new = object(&["b.c", "old", "a", "a", "x.io/y"]);
        let prefers = |name: &str, path: &str| {
            format!(
                "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
            )
        };
        let wanted = [prefers("a", ""), prefers("b.c", " including a path (/)")];
        assert_eq!(finalizer_warnings(&new, Some(&old)), wanted);
        let odd = finalizer_warnings(&object(&["a\u{7f}/b"]), None);
        let beginning = r#"metadata.finalizers: "a\x7f/b": prefix part "#;
        assert!(odd[0].starts_with(beginning), "{odd:?}");
    }

    /// To compare each with all would take minutes.
    #[test]
    fn very_many_finalizers_are_looked_up() {
        let names = (0..200_000).map(|at| Value::from(format!("x.io/{at:06}")));
        let mut object = Value::object();
        let names = Value::Array(names.collect());
        object.set(&["metadata", "finalizers"], names);
        assert!(finalizer_warnings(&object, Some(&object)).is_empty());
    }

    #[test]
    fn a_full_list_says_in_front_that_rules_were_not_checked() {
        let invalid = || FieldError::invalid(&Path::NIL, Value::Null, "wrong");
        let said = |error: Option<&FieldError>| {
            error.is_some_and(|error| error.detail.contains("rules were not checked"))
        };
        let mut errors = Complaints::from([invalid()]);
        say_unchecked(&mut errors);
        assert!(said(errors.last()));
        let mut full: Complaints = std::iter::repeat_with(invalid).collect();
        say_unchecked(&mut full);
        assert!(said(full.first()));
    }

    #[test]
    fn a_number_of_replicas_that_is_no_integer_is_shown_as_go_prints_it() {
        let mut errors = Complaints::default();
        replicas(&mut errors, &json!({"spec": {"size": 1e20}}), "spec.size");
        let details: Vec<&str> = errors.iter().map(|error| error.detail.as_str()).collect();
        let text = ".spec.size accessor error: 1e+20 is of the type float64, expected int64";
        assert_eq!(details, [text]);
    }
}

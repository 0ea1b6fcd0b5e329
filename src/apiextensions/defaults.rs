//! The check whether the defaults of a schema fit the schema that has them.

use crate::complaints;
use crate::derivation::metadata_of;
use crate::embedded;
use crate::rules::definition::TOO_MUCH_WORK;
use crate::rules::{Limits, Rules, Write, count_schemas};
use crate::validation::{Change, Schema, validate as validate_value};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::schema::{DefId, Schemas};
use polyplane_apimachinery::shape::Shape as _;
use polyplane_apimachinery::shape::prune::{META_FIELDS, Report, Root, prune};
use polyplane_apimachinery::structural::{Custom, SchemaNode, Structural};
use polyplane_apimachinery::{Map, Value};
use polyplane_cel::WorkBudget;

/// Depth of nested schemas. Each level is a stack frame of a recursive walk.
const DEPTH_MAX: usize = 128;
/// Units of work of a schema in the schema of a default, which is compiled for its check: about two microseconds.
/// Defaults of objects in objects compile the inner schemas again and again.
const SCHEMA_WORK: u64 = 400;

/// What is said of a schema about whose defaults there is too much to say.
const TOO_MANY_ERRORS: &str = "there are too many complaints about the defaults of this schema, so not all of them were checked: correct these and try again";

/// Whether defaults may have members that their schema does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownMembers {
    /// They are refused.
    Refused,
    /// They are kept, because the stored definition has some.
    Kept,
}

/// Returns the complaints about all defaults of a structural schema. `schemas` are those of built-in
/// types, of which metadata is one; `budget` is that of the definition.
///
/// # Panics
/// Panics if the schemas have no metadata, which all built-in kinds have.
pub fn validate(
    schemas: &Schemas,
    schema: &Value,
    path: &Path<'_>,
    unknown: UnknownMembers,
    budget: &WorkBudget,
) -> Complaints {
    let mut walk = Walk {
        schemas,
        unknown,
        metadata: metadata_of(schemas),
        left: Limits::default().object,
        budget,
        steps: Vec::new(),
        errors: Complaints::default(),
    };
    let root = Place {
        is_root: true,
        object: schema,
        above: 0,
        in_meta: false,
        depth: 0,
    };
    // The end of the budget is in the errors.
    let _ = walk.node(schema, root, path);
    // In front: an answer that is full ends before its last complaint.
    if walk.budget.is_spent() {
        let error = FieldError::forbidden(path, TOO_MUCH_WORK);
        walk.errors.push_front(error);
    } else if walk.errors.is_full() {
        let error = FieldError::forbidden(path, TOO_MANY_ERRORS);
        walk.errors.push_front(error);
    }
    walk.errors
}

/// Returns whether a default in a schema has members that its schema does not have. Upstream's first releases stored
/// such defaults.
pub fn have_unknown_members(schema: &Value) -> bool {
    Structural::parse(schema).is_ok_and(|mut structural| structural.prune_defaults())
}

/// Brings the metadata of objects in the defaults of a schema into canonical form: upstream stores a
/// definition without the members that metadata does not have. Malformed metadata is left as it is, and so is a schema
/// that is not structural.
///
/// # Panics
/// Panics if the schemas have no metadata, which all built-in kinds have.
pub fn settle(schemas: &Schemas, schema: &mut Value) {
    if !has_object_default(schema, 0) {
        return;
    }
    // Once for all defaults: what is below one may be below a hundred others.
    let Ok(structural) = Structural::parse_object(schema) else {
        return;
    };
    let custom = Custom::new(&structural, schemas, metadata_of(schemas));
    settle_below(&custom, structural.root(), schema);
}

/// Returns whether a default in a schema may hold objects with metadata.
fn has_object_default(schema: &Value, depth: usize) -> bool {
    let Value::Object(members) = schema else {
        return false;
    };
    if depth > DEPTH_MAX {
        return false;
    }
    let is_below = |schema: &Value| has_object_default(schema, depth + 1);
    matches!(schema["default"], Value::Object(_) | Value::Array(_))
        || members.get("items").is_some_and(is_below)
        || schema["properties"]
            .as_object()
            .is_some_and(|properties| properties.iter().any(|(_, inner)| is_below(inner)))
}

/// Settles the defaults of a schema and of those below it. It stands at `place` of the parsed one, whose depth has a
/// limit.
fn settle_below(custom: &Custom<'_>, place: SchemaNode<'_>, schema: &mut Value) {
    let default = &schema["default"];
    if default.as_object().is_some() || default.as_array().is_some() {
        let mut default = default.clone();
        let coerced = custom.coerce_at(place, &mut default, &Path::NIL);
        if coerced.is_ok() && default != schema["default"] {
            schema.set(&["default"], default);
        }
    }
    let is_embedded = place.is_embedded();
    if let (Some(inner), Some(items)) = (place.item(), schema.get_mut("items")) {
        settle_below(custom, inner, items);
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            // A default inside the metadata of an object is checked in a copy.
            let is_meta = is_embedded && META_FIELDS.contains(&name);
            if let Some(inner) = place.child(name).filter(|_| !is_meta) {
                settle_below(custom, inner, property);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Place<'v> {
    /// Whether the schema is that of an object with kind and metadata.
    is_root: bool,
    /// The schema of the nearest object with kind and metadata, and the number of steps to it.
    object: &'v Value,
    above: usize,
    /// Whether the place is a part of the kind or the metadata of an embedded object.
    in_meta: bool,
    depth: usize,
}

/// A step from a schema to one below it.
#[derive(Clone, Copy)]
enum Step<'v> {
    Item,
    Property(&'v str),
}

/// The defaults or their rules have used up their budget.
struct Stopped;

struct Walk<'v> {
    schemas: &'v Schemas,
    unknown: UnknownMembers,
    metadata: DefId,
    /// Cost that the rules of all further defaults may have.
    left: u64,
    /// The work that the checks of all further defaults may take.
    budget: &'v WorkBudget,
    /// The way from the whole schema.
    steps: Vec<Step<'v>>,
    errors: Complaints,
}

impl<'v> Walk<'v> {
    fn add(&mut self, error: FieldError) {
        let field = complaints::path(error.field);
        let error = FieldError { field, ..error };
        self.errors.push(error);
    }

    fn node(
        &mut self,
        schema: &'v Value,
        place: Place<'v>,
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        if schema.as_object().is_none() || place.depth > DEPTH_MAX {
            return Ok(());
        }
        let is_embedded = schema.bool_at(&["x-kubernetes-embedded-resource"]);
        let mut place = place;
        if is_embedded {
            place.is_root = true;
            place.in_meta = false;
            (place.object, place.above) = (schema, self.steps.len());
        }
        if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
            self.default(schema, default, place, &path.child("default"))?;
        }
        let below = Place {
            is_root: false,
            depth: place.depth + 1,
            ..place
        };
        self.steps.push(Step::Item);
        self.node(&schema["items"], below, &path.child("items"))?;
        self.steps.pop();
        let properties = schema["properties"].as_object().into_iter();
        for (name, property) in properties.flat_map(Map::iter) {
            let below = Place {
                in_meta: below.in_meta || place.is_root && META_FIELDS.contains(&name),
                ..below
            };
            self.steps.push(Step::Property(name));
            let step = complaints::step(name);
            self.node(property, below, &path.child("properties").key(&step))?;
            self.steps.pop();
        }
        Ok(())
    }

    fn default(
        &mut self,
        schema: &Value,
        default: &Value,
        place: Place<'_>,
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        if self.errors.is_full() {
            return Err(Stopped);
        }
        // A part of the metadata is checked with the whole object around it.
        let checked = match place.in_meta {
            true => place.object,
            false => schema,
        };
        let schemas = count_schemas(checked, 0) as u64;
        let work = self.budget.work(SCHEMA_WORK.saturating_mul(schemas));
        work.map_err(|_| Stopped)?;
        let Ok(known) = Schema::compile_for_defaults(schema) else {
            return Ok(());
        };
        let before = self.errors.len();
        let mut default = default.clone();
        let is_sound = match place.in_meta {
            true => self.is_good_metadata(&default, place, path),
            false => self.has_good_metadata(schema, &mut default, place, path),
        };
        if !is_sound {
            return Ok(());
        }
        let default = &default;
        let unknown = self.errors.len() - before;
        let field = complaints::path(path.to_string());
        let found = validate_value(&known, Change::Created(default), Some(&field), self.budget);
        found.into_iter().for_each(|error| self.add(error));
        // Of a full list, its length does not say whether something was found.
        if self.budget.is_spent() || self.errors.is_full() {
            return Err(Stopped);
        }
        if self.errors.len() > before + unknown {
            return Ok(());
        }
        let rules = Rules::compile_part(schema, place.is_root, self.budget);
        if self.budget.is_spent() {
            return Err(Stopped);
        }
        if rules.is_empty() {
            return Ok(());
        }
        self.rules(&rules, &known, default, path)
    }

    /// Checks a part of the kind or metadata of an embedded object in an object that has no other.
    fn is_good_metadata(&mut self, default: &Value, place: Place<'_>, path: &Path<'_>) -> bool {
        let Ok(structural) = Structural::parse_object(place.object) else {
            return true;
        };
        let steps = self.steps[place.above..].iter().rev();
        let mut object = steps.fold(default.clone(), |inner, step| match step {
            Step::Item => Value::Array([inner].into()),
            Step::Property(name) => Value::Object([(*name, inner)].into_iter().collect()),
        });
        for (name, text) in [("kind", "Validation"), ("apiVersion", "validation/v1")] {
            if object.get(name).is_none() {
                object.set(&[name], text);
            }
        }
        let custom = Custom::new(&structural, self.schemas, self.metadata);
        let why = match custom.coerce(&mut object, &Path::NIL) {
            Err(error) => error.to_string(),
            Ok(()) => {
                let errors = embedded::validate(structural.root(), &object, &Path::NIL);
                let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
                match texts.as_slice() {
                    [] => return true,
                    [only] => only.clone(),
                    several => format!("[{}]", several.join(", ")),
                }
            }
        };
        let text = format!("must result in valid metadata: {why}");
        self.add(FieldError::invalid(path, default.clone(), text));
        false
    }

    /// Checks that a default has no unknown members, and the kinds and metadata of the objects in it, of which it
    /// may be one. It brings them into canonical form.
    fn has_good_metadata(
        &mut self,
        schema: &Value,
        default: &mut Value,
        place: Place<'_>,
        path: &Path<'_>,
    ) -> bool {
        let structural = match place.is_root {
            true => Structural::parse_object(schema),
            false => Structural::parse(schema),
        };
        // Which members a schema has is not known if its types are not.
        let Ok(structural) = structural else {
            return true;
        };
        let is_known = self.unknown == UnknownMembers::Kept || {
            let mut pruned = default.clone();
            prune(structural.root(), &mut pruned, Root::Value, Report::Nothing);
            pruned == *default
        };
        let custom = Custom::new(&structural, self.schemas, self.metadata);
        let coerced = custom.coerce(default, path);
        if !is_known {
            let text = "must not have unknown fields";
            self.add(FieldError::invalid(path, default.clone(), text));
        }
        let errors = match coerced {
            Err(error) => Complaints::from([error]),
            Ok(()) => embedded::validate(structural.root(), default, path),
        };
        let is_good = errors.is_empty();
        errors.into_iter().for_each(|error| self.add(error));
        is_good
    }

    /// Evaluates the rules as if the default had been there before, and as if it were new: rules
    /// may say different things about the two.
    fn rules(
        &mut self,
        rules: &Rules,
        schema: &Schema,
        default: &Value,
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        let limits = Limits {
            object: self.left,
            ..Limits::default()
        };
        let mut left = Some(self.left);
        for old in [Some(default), None] {
            let write = Write {
                new: default,
                old,
                keeps_unchanged: false,
            };
            let found = rules.check_within(schema, write, limits, path, self.budget);
            left = left.zip(found.left).map(|(one, two)| one.min(two));
            let is_broken = !found.errors.is_empty();
            found.errors.into_iter().for_each(|error| self.add(error));
            if is_broken {
                break;
            }
        }
        self.left = left.ok_or(Stopped)?;
        Ok(())
    }
}

//! The check whether the defaults of a schema fit the schema that has them.

use crate::embedded;
use crate::rules::{Limits, Rules, Write};
use crate::validation::{Change, Schema, validate as validate_value};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::shape::prune::{META_FIELDS, Report, Root, prune};
use polyplane_apimachinery::structural::Structural;
use polyplane_apimachinery::{Map, Value};

/// Depth of nested schemas. Each level is a stack frame of a recursive walk.
const DEPTH_MAX: usize = 128;

/// Returns the complaints about all defaults of a structural schema.
pub fn validate(schema: &Value, path: &Path<'_>) -> Vec<FieldError> {
    let mut walk = Walk {
        left: Limits::default().object,
        errors: Vec::new(),
    };
    let root = Place {
        is_root: true,
        in_meta: false,
        depth: 0,
    };
    // The end of the budget is in the errors.
    let _ = walk.node(schema, root, path);
    walk.errors
}

#[derive(Clone, Copy)]
struct Place {
    /// Whether the schema is that of an object with kind and metadata.
    is_root: bool,
    /// Whether it is a part of the kind or the metadata of an embedded object.
    in_meta: bool,
    depth: usize,
}

/// The rules of the defaults have used up their budget.
struct Stopped;

struct Walk {
    /// Cost that the rules of all further defaults may have.
    left: u64,
    errors: Vec<FieldError>,
}

impl Walk {
    fn node(&mut self, schema: &Value, place: Place, path: &Path<'_>) -> Result<(), Stopped> {
        if schema.as_object().is_none() || place.depth > DEPTH_MAX {
            return Ok(());
        }
        let is_embedded = schema.bool_at(&["x-kubernetes-embedded-resource"]);
        let place = Place {
            is_root: place.is_root || is_embedded,
            in_meta: place.in_meta && !is_embedded,
            depth: place.depth,
        };
        if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
            self.default(schema, default, place, &path.child("default"))?;
        }
        let below = Place {
            is_root: false,
            in_meta: place.in_meta,
            depth: place.depth + 1,
        };
        self.node(&schema["items"], below, &path.child("items"))?;
        let properties = schema["properties"].as_object().into_iter();
        for (name, property) in properties.flat_map(Map::iter) {
            let below = Place {
                in_meta: below.in_meta || place.is_root && META_FIELDS.contains(&name),
                ..below
            };
            self.node(property, below, &path.child("properties").key(name))?;
        }
        Ok(())
    }

    fn default(
        &mut self,
        schema: &Value,
        default: &Value,
        place: Place,
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        let Ok(known) = Schema::compile(schema) else {
            return Ok(());
        };
        let before = self.errors.len();
        // Which members a schema has is not known if its types are not.
        let structural = Structural::parse(schema).ok();
        if let (false, Some(structural)) = (place.in_meta, &structural) {
            let mut pruned = default.clone();
            prune(structural.root(), &mut pruned, Root::Value, Report::Nothing);
            if pruned != *default {
                let text = "must not have unknown fields";
                self.errors
                    .push(FieldError::invalid(path, default.clone(), text));
            }
            let embedded = embedded::validate(structural.root(), default, path);
            if !embedded.is_empty() {
                self.errors.extend(embedded);
                return Ok(());
            }
        }
        let unknown = self.errors.len() - before;
        let field = path.to_string();
        let found = validate_value(&known, Change::Created(default), Some(&field));
        self.errors.extend(found);
        if self.errors.len() > before + unknown {
            return Ok(());
        }
        let rules = Rules::compile_part(schema, place.is_root);
        if rules.is_empty() {
            return Ok(());
        }
        self.rules(&rules, &known, default, path)
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
            let found = rules.check_within(schema, write, limits, path);
            left = left.zip(found.left).map(|(one, two)| one.min(two));
            let is_broken = !found.errors.is_empty();
            self.errors.extend(found.errors);
            if is_broken {
                break;
            }
        }
        self.left = left.ok_or(Stopped)?;
        Ok(())
    }
}

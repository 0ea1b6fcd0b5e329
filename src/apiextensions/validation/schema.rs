//! Schemas, compiled from the JSON of a definition.

use super::ByKeys;
use super::formats::{self, Format};
use crate::complaints::value_bytes;
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_cel::Pattern;

/// Depth of nested schemas. Each level is a stack frame of a recursive check.
const DEPTH_MAX: usize = 256;

/// The reason why a schema cannot be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// Schemas are nested too deeply.
    #[error("a schema has more than {DEPTH_MAX} levels")]
    TooDeep,
}

/// A schema, with everything that restricts values.
#[derive(Debug, Default)]
pub struct Schema {
    /// The allowed types, joined by commas as error texts show them; empty if all are allowed.
    pub(super) types: Str,
    pub(super) nullable: bool,
    pub(super) format: Option<Format>,
    pub(super) bounds: Option<Box<Bounds>>,
    pub(super) allowed: Box<[Value]>,
    pub(super) required: Box<[Str]>,
    pub(super) properties: Box<[(Str, Schema)]>,
    pub(super) additional: Additional,
    pub(super) items: Option<Box<Schema>>,
    pub(super) junctors: Option<Box<Junctors>>,
    /// The members by which items of a list are correlated with those of an older one; `None` if
    /// they are not.
    pub(super) keys: Option<Box<[Str]>>,
}

/// The members that are not properties.
#[derive(Debug, Default)]
pub(super) enum Additional {
    #[default]
    Allowed,
    Refused,
    Of(Box<Schema>),
}

/// Limits of numbers and sizes, and the pattern of texts.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    pub maximum: Option<(f64, bool)>,
    pub minimum: Option<(f64, bool)>,
    pub multiple_of: Option<f64>,
    pub length: Range,
    pub items: Range,
    pub properties: Range,
    pub pattern: Option<Pattern>,
    /// A format that values of these types are not checked by: the check of their types alone knows it.
    pub other_format: Option<Str>,
}

/// The least and the greatest allowed size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Range {
    pub min: Option<i64>,
    pub max: Option<i64>,
}

/// Schemas that have to hold together with the one that has them.
#[derive(Debug, Default)]
pub(super) struct Junctors {
    pub all: Vec<Schema>,
    pub any: Vec<Schema>,
    pub one: Vec<Schema>,
    pub not: Option<Schema>,
}

impl Schema {
    /// Compiles the JSON of a schema.
    ///
    /// # Errors
    /// Returns an error if it is too deep.
    pub fn compile(json: &Value) -> Result<Self, SchemaError> {
        compile(json, Mixed::Typed, 0)
    }

    /// Compiles the JSON of a schema for the check of its defaults, in which values that may be
    /// integers or texts have no type: upstream looks at their junctors alone then. It does not drop
    /// formats that do not suit the types either.
    ///
    /// # Errors
    /// Returns an error if it is too deep.
    pub fn compile_for_defaults(json: &Value) -> Result<Self, SchemaError> {
        compile(json, Mixed::Untyped, 0)
    }

    /// Returns the bytes of memory that the schema takes, approximately.
    pub fn bytes(&self) -> usize {
        let list = |schemas: &[Schema]| schemas.iter().map(Self::bytes).sum::<usize>();
        let junctors = self.junctors.as_ref().map_or(0, |junctors| {
            let not = junctors.not.iter().map(Self::bytes).sum::<usize>();
            list(&junctors.all) + list(&junctors.any) + list(&junctors.one) + not
        });
        let bounds = self.bounds.as_ref().map_or(0, |bounds| {
            let pattern = bounds
                .pattern
                .as_ref()
                .map_or(0, |pattern| pattern.text().len());
            let format = bounds.other_format.as_ref().map_or(0, Str::len);
            size_of::<Bounds>() + pattern + format
        });
        let properties = self.properties.iter();
        let properties: usize = properties
            .map(|(name, schema)| size_of::<Str>() + name.len() + schema.bytes())
            .sum();
        let below = self.items.as_ref().map_or(0, |items| items.bytes());
        let values = match &self.additional {
            Additional::Of(schema) => schema.bytes(),
            Additional::Allowed | Additional::Refused => 0,
        };
        let keys = self.keys.iter().flat_map(|keys| keys.iter());
        let names = self.required.iter().chain(keys);
        let names: usize = names.map(|name| size_of::<Str>() + name.len()).sum();
        let allowed = self.allowed.iter();
        let allowed: usize = allowed.map(|value| value_bytes(value, usize::MAX)).sum();
        let own = size_of::<Self>() + self.types.len() + names + allowed;
        own + junctors + bounds + properties + below + values
    }

    /// Returns the schema of a property.
    pub fn property(&self, name: &str) -> Option<&Self> {
        let found = self
            .properties
            .binary_search_by(|(known, _)| known.as_str().cmp(name));
        found.ok().map(|at| &self.properties[at].1)
    }

    /// Returns the schema of a member, whether it is a property or not.
    pub fn member(&self, name: &str) -> Option<&Self> {
        let below = match &self.additional {
            Additional::Of(schema) => Some(&**schema),
            Additional::Allowed | Additional::Refused => None,
        };
        self.property(name).or(below)
    }

    /// Returns the items of an older list for which items of a newer one may look.
    pub(crate) fn counterparts<'v>(&'v self, olds: &'v [Value]) -> Option<Counterparts<'v>> {
        let (keys, of) = (self.keys.as_deref()?, self.items.as_deref()?);
        (!keys.is_empty()).then(|| Counterparts {
            keys,
            of,
            olds: ByKeys::new(keys, olds),
        })
    }

    /// Returns whether a value is what it was, as far as upstream can tell: objects that correspond
    /// by keys may stand in another order, and what the schema does not know counts as changed.
    pub fn is_unchanged(&self, new: &Value, old: &Value) -> bool {
        match (new, old) {
            (Value::Array(items), Value::Array(olds)) => {
                if items.len() != olds.len() || self.keys.is_none() {
                    return items == olds;
                }
                let counterparts = self.counterparts(olds);
                items.iter().all(|item| {
                    let pair = counterparts.as_ref().and_then(|olds| olds.of(item));
                    pair.is_some_and(|(old, schema)| schema.is_unchanged(item, old))
                })
            }
            (Value::Object(members), Value::Object(olds)) => {
                let mut members_kept = members.iter().map(|(name, value)| {
                    let pair = olds.get(name).zip(self.member(name));
                    pair.is_some_and(|(old, schema)| schema.is_unchanged(value, old))
                });
                members.len() == olds.len() && members_kept.all(|kept| kept)
            }
            _ => new == old,
        }
    }

    /// Returns the name of the format that the check of types knows.
    pub(super) fn named_format(&self) -> Option<&str> {
        let other = || self.bounds.as_ref()?.other_format.as_deref();
        self.format.map(Format::name).or_else(other)
    }

    pub(super) fn has_type(&self, name: &str) -> bool {
        self.types.split(',').any(|known| known == name)
    }
}

/// The choice whether values that may be integers or texts have these types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mixed {
    Typed,
    Untyped,
}

fn compile(json: &Value, mixed: Mixed, depth: usize) -> Result<Schema, SchemaError> {
    if depth > DEPTH_MAX {
        return Err(SchemaError::TooDeep);
    }
    let list = |name: &str| -> Result<Vec<Schema>, SchemaError> {
        let nested = json.items_at(&[name]).iter();
        nested
            .map(|nested| compile(nested, mixed, depth + 1))
            .collect()
    };
    let one = |name: &str| -> Result<Option<Schema>, SchemaError> {
        let nested = json.get(name).filter(|nested| nested.as_object().is_some());
        nested
            .map(|nested| compile(nested, mixed, depth + 1))
            .transpose()
    };
    let types: Str = match json.bool_at(&["x-kubernetes-int-or-string"]) {
        true if mixed == Mixed::Typed => "integer,string".into(),
        _ => json.str_at(&["type"]).into(),
    };
    let properties = json["properties"]
        .as_object()
        .into_iter()
        .flat_map(Map::iter);
    let properties =
        properties.map(|(name, nested)| Ok((name.into(), compile(nested, mixed, depth + 1)?)));
    let junctors = Junctors {
        all: list("allOf")?,
        any: list("anyOf")?,
        one: list("oneOf")?,
        not: one("not")?,
    };
    let has_junctors = !junctors.all.is_empty()
        || !junctors.any.is_empty()
        || !junctors.one.is_empty()
        || junctors.not.is_some();
    let texts = |name: &str| {
        let texts = json.items_at(&[name]).iter().filter_map(Value::as_str);
        texts.map(Str::from).collect::<Box<[Str]>>()
    };
    let is_map = json.str_at(&["x-kubernetes-list-type"]) == "map";
    let named = json.str_at(&["format"]);
    let format = formats::of(named, &types);
    let is_other = mixed == Mixed::Untyped && format.is_none() && !named.is_empty();
    let other_format = is_other.then(|| Str::from(named));
    Ok(Schema {
        format,
        types,
        nullable: json.bool_at(&["nullable"]),
        bounds: bounds(json, other_format).map(Box::new),
        allowed: json.items_at(&["enum"]).into(),
        required: texts("required"),
        properties: properties.collect::<Result<_, _>>()?,
        additional: match json.get("additionalProperties") {
            Some(Value::Bool(false)) => Additional::Refused,
            Some(nested @ Value::Object(_)) => {
                Additional::Of(Box::new(compile(nested, mixed, depth + 1)?))
            }
            _ => Additional::Allowed,
        },
        items: one("items")?.map(Box::new),
        junctors: has_junctors.then(|| Box::new(junctors)),
        keys: is_map.then(|| texts("x-kubernetes-list-map-keys")),
    })
}

fn bounds(json: &Value, other_format: Option<Str>) -> Option<Bounds> {
    let number = |name: &str| match &json[name] {
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    };
    let range = |min: &str, max: &str| Range {
        min: json.int_at(&[min]),
        max: json.int_at(&[max]),
    };
    let limit = |name: &str, exclusive: &str| Some((number(name)?, json.bool_at(&[exclusive])));
    let pattern = json.str_at(&["pattern"]);
    let bounds = Bounds {
        maximum: limit("maximum", "exclusiveMaximum"),
        minimum: limit("minimum", "exclusiveMinimum"),
        multiple_of: number("multipleOf"),
        length: range("minLength", "maxLength"),
        items: range("minItems", "maxItems"),
        properties: range("minProperties", "maxProperties"),
        pattern: (!pattern.is_empty()).then(|| Pattern::new(pattern)),
        other_format,
    };
    let is_set = bounds.maximum.is_some()
        || bounds.minimum.is_some()
        || bounds.multiple_of.is_some()
        || bounds.pattern.is_some()
        || bounds.other_format.is_some()
        || [bounds.length, bounds.items, bounds.properties] != [Range::default(); 3];
    is_set.then_some(bounds)
}

/// The items of an older list to which items of a newer one correspond: in lists of objects with keys.
#[derive(Debug)]
pub(crate) struct Counterparts<'v> {
    keys: &'v [Str],
    of: &'v Schema,
    olds: ByKeys<'v>,
}

impl<'v> Counterparts<'v> {
    /// Returns the item to which an item corresponds, and the schema of items.
    pub(crate) fn of(&self, item: &Value) -> Option<(&'v Value, &'v Schema)> {
        let is_key = |key: &Value| !matches!(key, Value::Null | Value::Array(_) | Value::Object(_));
        let mut keys = self.keys.iter().map(|name| item.get(name));
        let has_keys = keys.all(|key| key.is_some_and(is_key));
        Some((self.olds.find(item).filter(|_| has_keys)?, self.of))
    }
}

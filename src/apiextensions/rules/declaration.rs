//! What expressions may say about the values of a schema: their types, and how large they can be.

use polyplane_apimachinery::{Map, Value};
use polyplane_cel::{Environment, Range, Relation, Sizes, Type, is_reserved};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Bytes of the largest request, from which upstream estimates the size of what has no limit.
pub(crate) const REQUEST_BYTES_MAX: i64 = 3 << 20;
/// Characters of the longest name of an object.
const NAME_LENGTH_MAX: i64 = 253;
/// Bytes of a time in JSON.
const TIME_BYTES_MAX: i64 = 32;
const DATE_BYTES: i64 = 12;
/// Bytes of the name of a type up to which it is the path of its values. Names of types contain those of the types
/// around them, so a few long names of members would take gigabytes.
const TYPE_NAME_BYTES_MAX: usize = 512;

/// The declaration of the values of a schema.
#[derive(Debug, Clone)]
pub(crate) struct Declaration {
    pub of: Type,
    pub form: Form,
    /// Bytes of the smallest value in JSON.
    pub min_bytes: i64,
    /// Elements, members or characters of the largest value.
    pub max_elements: i64,
}

/// How values are read.
#[derive(Debug, Clone)]
pub(crate) enum Form {
    IntOrString,
    /// An object with fields, by their names in expressions.
    Object(BTreeMap<String, Field>),
    /// An object with any keys.
    Map(Box<Declaration>),
    List(Box<Declaration>, Relation),
    String,
    Bytes,
    Duration,
    Date,
    DateTime,
    Double,
    Int,
    Bool,
}

/// A field of an object.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// The name in objects.
    pub name: String,
    pub declaration: Declaration,
}

impl Declaration {
    /// Returns the declaration of a schema; `None` if expressions cannot see its values. A root is
    /// an object with a kind, whose name can be seen even if the schema does not have it. `name` is
    /// that of the type.
    pub fn of(schema: &Value, is_root: bool, name: &str) -> Option<Self> {
        if schema.bool_at(&["x-kubernetes-int-or-string"]) {
            let length = limit(schema, "maxLength").map(|length| length * 4);
            return Some(Self {
                of: Type::Dyn,
                form: Form::IntOrString,
                min_bytes: 1,
                max_elements: length.unwrap_or(REQUEST_BYTES_MAX - 2),
            });
        }
        let plain = |of: Type, form: Form, min_bytes: i64| Self {
            of,
            form,
            min_bytes,
            max_elements: 0,
        };
        match schema.str_at(&["type"]) {
            "array" => Self::list(schema, name),
            "object" => Self::object(schema, is_root, name),
            "string" => Some(Self::string(schema)),
            "boolean" => Some(plain(Type::Bool, Form::Bool, 4)),
            "number" => Some(plain(Type::Double, Form::Double, 1)),
            "integer" => Some(plain(Type::Int, Form::Int, 1)),
            _ => None,
        }
    }

    fn list(schema: &Value, name: &str) -> Option<Self> {
        let items = &schema["items"];
        let embedded = is_embedded(items);
        let item = Self::of(items, embedded, &type_name(name, "@idx", 0))?;
        let unlimited = (REQUEST_BYTES_MAX - 2) / (item.min_bytes + 1);
        Some(Self {
            of: Type::list(item.of.clone()),
            max_elements: limit(schema, "maxItems").unwrap_or(unlimited),
            form: Form::List(Box::new(item), relation(schema)),
            min_bytes: 2,
        })
    }

    fn object(schema: &Value, is_root: bool, name: &str) -> Option<Self> {
        let values = &schema["additionalProperties"];
        if values.as_object().is_some() {
            let of_value = type_name(name, "@elem", 0);
            let value = Self::of(values, is_embedded(values), &of_value)?;
            let unlimited = (REQUEST_BYTES_MAX - 2) / (value.min_bytes + 6);
            return Some(Self {
                of: Type::map(Type::String, value.of.clone()),
                max_elements: limit(schema, "maxProperties").unwrap_or(unlimited),
                form: Form::Map(Box::new(value)),
                min_bytes: 2,
            });
        }
        let added = (is_root && !has_metadata(schema)).then(|| metadata_of(schema));
        let added = added.as_ref().and_then(Value::as_object);
        let required = schema.items_at(&["required"]).iter();
        let required: HashSet<&str> = required.filter_map(Value::as_str).collect();
        let mut fields = BTreeMap::new();
        let mut min_bytes = 2;
        let properties = schema["properties"].as_object().into_iter();
        let properties = properties
            .flat_map(Map::iter)
            .filter(|(name, _)| added.is_none_or(|added| !added.contains_key(name)))
            .chain(added.into_iter().flat_map(Map::iter));
        for (at, (own, property)) in properties.enumerate() {
            let escaped = escape(own);
            let of_field = type_name(name, escaped.as_deref().unwrap_or(own), at);
            let Some(declaration) = Self::of(property, is_embedded(property), &of_field) else {
                continue;
            };
            if required.contains(own) && property.get("default").is_none() {
                let length = i64::try_from(own.len()).unwrap_or(0);
                min_bytes += length + declaration.min_bytes + 4;
            }
            if let Some(escaped) = escaped {
                let name = own.to_owned();
                fields.insert(escaped, Field { name, declaration });
            }
        }
        Some(Self {
            of: Type::Struct(name.into()),
            form: Form::Object(fields),
            min_bytes,
            max_elements: 0,
        })
    }

    fn string(schema: &Value) -> Self {
        let length = limit(schema, "maxLength");
        let unlimited = REQUEST_BYTES_MAX - 2;
        let (of, form, min_bytes, max_elements) = match schema.str_at(&["format"]) {
            "byte" => (Type::Bytes, Form::Bytes, 2, length.unwrap_or(unlimited)),
            "duration" => (Type::Duration, Form::Duration, 3, TIME_BYTES_MAX),
            "date" => (Type::Timestamp, Form::Date, DATE_BYTES, DATE_BYTES),
            "date-time" => (Type::Timestamp, Form::DateTime, 21, TIME_BYTES_MAX),
            _ => {
                let allowed = schema.items_at(&["enum"]).iter().filter_map(Value::as_str);
                let longest = allowed
                    .map(|text| i64::try_from(text.len()).unwrap_or(0))
                    .max();
                let length = length.map(|length| length * 4).or(longest);
                (Type::String, Form::String, 2, length.unwrap_or(unlimited))
            }
        };
        Self {
            of,
            form,
            min_bytes,
            max_elements,
        }
    }

    /// Declares the types of all objects.
    pub fn declare(&self, environment: &mut Environment) {
        match &self.form {
            Form::Object(fields) => {
                if let Type::Struct(name) = &self.of {
                    // Fields can also be selected by names that are words of the language.
                    let types = fields.iter().flat_map(|(name, field)| {
                        let word = word_of(name);
                        let names = [Some(name.as_str()), word].into_iter().flatten();
                        names.map(|name| (Arc::from(name), field.declaration.of.clone()))
                    });
                    environment.declare_struct(Arc::clone(name), types);
                }
                fields
                    .values()
                    .for_each(|field| field.declaration.declare(environment));
            }
            Form::Map(below) | Form::List(below, _) => below.declare(environment),
            _ => {}
        }
    }

    /// Returns the bytes of memory that the declaration takes, approximately.
    pub fn bytes(&self) -> usize {
        let name = match &self.of {
            Type::Struct(name) => name.len(),
            _ => 0,
        };
        let parts = match &self.form {
            Form::Object(fields) => {
                let fields = fields.iter().map(|(name, field)| {
                    let names = name.len() + field.name.len();
                    size_of::<(String, Field)>() + names + field.declaration.bytes()
                });
                fields.sum::<usize>()
            }
            Form::Map(below) => below.bytes(),
            Form::List(below, relation) => match relation {
                Relation::Keyed(keys) => {
                    below.bytes() + keys.iter().map(|key| key.len()).sum::<usize>()
                }
                Relation::Ordered | Relation::Set => below.bytes(),
            },
            _ => 0,
        };
        size_of::<Self>() + name + parts
    }

    /// Returns the declaration of a property, by its name in objects.
    pub fn property(&self, name: &str) -> Option<&Self> {
        match &self.form {
            Form::Object(fields) => fields.get(&escape(name)?).map(|field| &field.declaration),
            _ => None,
        }
    }

    /// Returns the declaration of the items of a list or the values of a map.
    pub fn element(&self) -> Option<&Self> {
        match &self.form {
            Form::Map(below) | Form::List(below, _) => Some(below),
            _ => None,
        }
    }
}

impl Sizes for Declaration {
    fn size(&self, path: &[Arc<str>], _: &Type) -> Option<Range> {
        let mut here = self;
        for name in path.get(1..)? {
            here = match &**name {
                "@items" | "@values" => here.element()?,
                // Keys have no schema, so upstream takes them for empty.
                "@keys" => {
                    let is_map = matches!(here.form, Form::Map(_));
                    return is_map.then_some(Range { min: 0, max: 0 });
                }
                name => match &here.form {
                    Form::Object(fields) => &fields.get(name)?.declaration,
                    _ => return None,
                },
            };
        }
        Some(Range {
            min: 0,
            max: u64::try_from(here.max_elements).unwrap_or(0),
        })
    }
}

fn relation(schema: &Value) -> Relation {
    let keys = schema.items_at(&["x-kubernetes-list-map-keys"]).iter();
    let keys = keys.filter_map(Value::as_str);
    match schema.str_at(&["x-kubernetes-list-type"]) {
        "set" => Relation::Set,
        "map" => Relation::Keyed(
            keys.map(|key| escape(key).unwrap_or_else(|| key.to_owned()).into())
                .collect(),
        ),
        _ => Relation::Ordered,
    }
}

fn is_embedded(schema: &Value) -> bool {
    schema.bool_at(&["x-kubernetes-embedded-resource"])
}

fn limit(schema: &Value, name: &str) -> Option<i64> {
    schema.int_at(&[name]).map(|limit| limit.max(0))
}

/// Returns whether a schema has kind, version and names, and perhaps more of the metadata.
fn has_metadata(schema: &Value) -> bool {
    let of = |path: &[&str]| {
        let found = path
            .iter()
            .try_fold(schema, |found, name| found["properties"].get(name));
        found.map_or("", |found| found.str_at(&["type"]))
    };
    let texts: [&[&str]; 4] = [
        &["kind"],
        &["apiVersion"],
        &["metadata", "name"],
        &["metadata", "generateName"],
    ];
    of(&["metadata"]) == "object" && texts.iter().all(|path| of(path) == "string")
}

/// Returns the properties of kind, version and names that a whole object has, whatever its schema says. The rest of
/// the schema is not copied: objects in objects would copy it again and again.
fn metadata_of(schema: &Value) -> Value {
    let known = &schema["properties"]["metadata"]["properties"];
    let text = |name: &str, max: i64| {
        let length = known[name].int_at(&["maxLength"]).unwrap_or(max).min(max);
        polyplane_apimachinery::json!({"type": "string", "maxLength": (length)})
    };
    let plain = || polyplane_apimachinery::json!({"type": "string"});
    let names = polyplane_apimachinery::json!({
        "type": "object",
        "properties": {
            "name": (text("name", NAME_LENGTH_MAX)),
            "generateName": (text("generateName", NAME_LENGTH_MAX - 1))
        }
    });
    let mut properties = Value::object();
    properties.set(&["kind"], plain());
    properties.set(&["apiVersion"], plain());
    properties.set(&["metadata"], names);
    properties
}

/// Returns the name of the type of a member, which is the `at`th of its type: the path, as upstream names it, or the
/// beginning of one that is too long, with a number that tells it from the other members.
pub(super) fn type_name(of: &str, member: &str, at: usize) -> String {
    if of.len() > TYPE_NAME_BYTES_MAX {
        // It ends with a number itself.
        return format!("{of}…{at}");
    }
    let whole = of.len() + 1 + member.len();
    if whole <= TYPE_NAME_BYTES_MAX {
        return format!("{of}.{member}");
    }
    let room = TYPE_NAME_BYTES_MAX.saturating_sub(of.len() + 1);
    format!("{of}.{}…{at}", &member[..member.floor_char_boundary(room)])
}

/// Returns the word of the language that a name in expressions stands for, if it does.
fn word_of(escaped: &str) -> Option<&str> {
    let word = escaped.strip_prefix("__")?.strip_suffix("__")?;
    is_reserved(word).then_some(word)
}

/// Returns the name of a property in expressions; `None` if it has none.
pub(crate) fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let mut escaped = String::with_capacity(name.len());
    let mut letters = name.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '_' if letters.peek() == Some(&'_') => {
                letters.next();
                escaped.push_str("__underscores__");
            }
            '.' => escaped.push_str("__dot__"),
            '-' => escaped.push_str("__dash__"),
            '/' => escaped.push_str("__slash__"),
            letter if letter.is_ascii_alphanumeric() || letter == '_' => escaped.push(letter),
            _ => return None,
        }
    }
    Some(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_upstream_escapes_them() {
        for (name, escaped) in [
            ("a", Some("a")),
            ("a-b", Some("a__dash__b")),
            ("a.b/c", Some("a__dot__b__slash__c")),
            ("a__b", Some("a__underscores__b")),
            ("a_b", Some("a_b")),
            ("namespace", Some("__namespace__")),
            ("namespaces", Some("namespaces")),
            ("1a", None),
            ("a b", None),
            ("", None),
        ] {
            assert_eq!(escape(name).as_deref(), escaped, "{name}");
        }
    }

    fn longest_name(declaration: &Declaration) -> usize {
        let own = match &declaration.of {
            Type::Struct(name) => name.len(),
            _ => 0,
        };
        let below = match &declaration.form {
            Form::Object(fields) => {
                let fields = fields.values();
                fields.map(|field| longest_name(&field.declaration)).max()
            }
            _ => declaration.element().map(longest_name),
        };
        own.max(below.unwrap_or(0))
    }

    #[test]
    fn names_of_types_do_not_multiply_long_names_of_members() {
        let mut schema = polyplane_apimachinery::json!({"type": "object"});
        for _ in 0..100 {
            let [one, two] = ["a", "b"].map(|letter| letter.repeat(10_000));
            let mut above = polyplane_apimachinery::json!({"type": "object"});
            let plain = polyplane_apimachinery::json!({"type": "object"});
            above.set(&["properties", one.as_str()], plain);
            above.set(&["properties", two.as_str()], schema);
            schema = above;
        }
        let declaration = Declaration::of(&schema, false, "selfType").expect("it is an object");
        let longest = longest_name(&declaration);
        // Each level adds a mark and a number.
        assert!(
            longest < TYPE_NAME_BYTES_MAX + 100 * "…99".len(),
            "{longest}"
        );
    }

    #[test]
    fn whole_objects_have_kind_and_name_beside_their_other_properties() {
        let schema = polyplane_apimachinery::json!({
            "type": "object",
            "required": ["spec"],
            "properties": {
                "spec": {"type": "string"},
                "kind": {"type": "integer"},
                "metadata": {"type": "object", "properties": {"labels": {"type": "string"}}}
            }
        });
        let seen = |is_root: bool, name: &str| {
            let whole = Declaration::of(&schema, is_root, "selfType").expect("it is an object");
            let found = whole.property(name).map(|property| property.of.clone());
            (found, whole.min_bytes)
        };
        assert_eq!(seen(true, "kind"), (Some(Type::String), 12));
        assert_eq!(seen(true, "apiVersion"), (Some(Type::String), 12));
        assert_eq!(seen(true, "spec"), (Some(Type::String), 12));
        assert_eq!(seen(false, "kind"), (Some(Type::Int), 12));
        assert_eq!(seen(false, "apiVersion"), (None, 12));
        let whole = Declaration::of(&schema, true, "selfType").expect("it is an object");
        let metadata = whole.property("metadata").expect("it has metadata");
        assert!(metadata.property("name").is_some() && metadata.property("labels").is_none());
    }

    #[test]
    fn types_are_named_by_their_path_and_long_ones_differ_by_a_number() {
        assert_eq!(
            type_name("selfType.spec", "a__dot__b", 3),
            "selfType.spec.a__dot__b"
        );
        let long = "é".repeat(TYPE_NAME_BYTES_MAX);
        let names = [0, 1].map(|at| type_name("selfType", &long, at));
        assert_ne!(names[0], names[1]);
        assert!(names[0].starts_with("selfType.éé") && names[0].ends_with("é…0"));
        let below = [0, 1].map(|at| type_name(&names[0], "a", at));
        assert!(below[0] != below[1] && below[0] != names[1], "{below:?}");
        // The beginning of one name is another whole one.
        let of = "t".repeat(TYPE_NAME_BYTES_MAX);
        let two = type_name("t", &of, 0);
        assert_ne!(type_name(&of, "a", 0), two);
    }
}

//! Kinds as data: the fields of objects, and everything that follows from them.
//!
//! Owns the arena of definitions and the engines that read it: [`decode`], [`encode`],
//! [`validate`], [`openapi`], equality and path lookup. Engines that custom kinds share read it through
//! [`crate::shape`]. It knows no kind by name; built-in kinds are generated data
//! ([`Schemas::parse`]). It must not know where objects are stored or served.
//!
//! The *canonical* tree of an object is the result of decoding it into the typed struct and
//! encoding that again: unknown members are dropped, and empty members are present or absent as
//! their fields declare.

pub mod decode;
pub mod encode;
mod equality;
pub(crate) mod go;
mod internal;
mod internal_text;
mod keys;
mod load;
mod names;
mod open;
pub mod openapi;
mod path;
pub mod proto;
mod scalars;
pub mod tags;
pub mod validate;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::value::{Map, Str, Value};
pub use internal::InternalField;
pub use load::LoadError;
pub use path::PathError;
use tags::Tag;

/// The position of a [`Definition`] in its [`Schemas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DefId(pub(crate) u32);

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// Any text.
    String,
    /// `true` or `false`.
    Bool,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// Any number.
    Float64,
    /// Bytes as standard base64.
    Bytes,
    /// A time in RFC 3339 to the second.
    Time,
    /// A time in RFC 3339 to the microsecond.
    MicroTime,
    /// A duration as Go writes it.
    Duration,
    /// A resource quantity.
    Quantity,
    /// A number of 32 bits or a text.
    IntOrString,
    /// An embedded object, kept as it was sent.
    Raw,
    /// Any JSON, kept as it was sent.
    Json,
    /// The set of managed fields, kept as it was sent.
    FieldsV1,
    /// An object that follows a definition.
    Ref(DefId),
    /// A list.
    List(Box<Type>),
    /// An object with free keys.
    Map(Box<Type>),
    /// An item of a list or map that may be `null`.
    Nullable(Box<Type>),
    /// A JSON schema or a boolean.
    SchemaOrBool(DefId),
    /// A JSON schema or a list of them.
    SchemaOrArray(DefId),
    /// A JSON schema or a list of texts.
    SchemaOrStrings(DefId),
}

impl Type {
    /// Returns true for the types that are Go structs and therefore never "empty".
    fn is_struct(&self) -> bool {
        matches!(
            self,
            Self::Time
                | Self::MicroTime
                | Self::Duration
                | Self::Quantity
                | Self::IntOrString
                | Self::Raw
                | Self::Json
                | Self::FieldsV1
                | Self::Ref(_)
                | Self::SchemaOrBool(_)
                | Self::SchemaOrArray(_)
                | Self::SchemaOrStrings(_)
        )
    }

    /// Returns true for lists, maps and bytes, whose zero value is `null`.
    fn is_collection(&self) -> bool {
        matches!(self, Self::List(_) | Self::Map(_) | Self::Bytes)
    }

    /// Returns the definition that objects of this type, or its items, follow.
    pub fn definition(&self) -> Option<DefId> {
        match self {
            Self::Ref(id)
            | Self::SchemaOrBool(id)
            | Self::SchemaOrArray(id)
            | Self::SchemaOrStrings(id) => Some(*id),
            Self::List(item) | Self::Map(item) | Self::Nullable(item) => item.definition(),
            _ => None,
        }
    }
}

/// The condition under which a field is left out of the canonical form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Omit {
    /// Never: an absent value is written as the zero value.
    #[default]
    Never,
    /// If the value is empty: false, 0, "", null, or a list or map without items. Never for an
    /// object.
    Empty,
    /// If the value is the zero value, objects included.
    Zero,
}

/// The choice whether a field distinguishes "absent" from "zero".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// Absent and zero are the same.
    #[default]
    Plain,
    /// A present zero is kept.
    Pointer,
}

/// The way in which the items of a list are identified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// They are not: the list is replaced as a whole.
    #[default]
    Atomic,
    /// Items are unique scalars.
    Set,
    /// Items are objects with these key members.
    Map(Vec<Str>),
}

/// The treatment of a field in strategic merge patches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// The strategies as declared, in order.
    pub strategies: Vec<Str>,
    /// The member that identifies items of a merged list; empty for lists of scalars.
    pub merge_key: Str,
}

impl Patch {
    /// The treatment without a declared strategy: objects are merged, other values are replaced.
    pub const PLAIN: Self = Self {
        strategies: Vec::new(),
        merge_key: Str::const_new(""),
    };
}

/// Facts about a field that only published documents and patches need.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// The name of the named type of the value, if it is not a built-in one.
    pub named: Option<Box<str>>,
    /// The Go type, as error texts show it, if it contains a named scalar, list or map.
    pub go_type: Option<Box<str>>,
    /// Go's name of the field, if it is not the field's name with a capital letter.
    pub go_name: Option<Box<str>>,
    /// Names of the embedded structs through which the field is reached, as error texts show it.
    pub embedded: Option<Box<str>>,
    /// The format that is published.
    pub format: Option<Box<str>>,
    /// The published default as JSON text, including marks for zero values.
    pub published_default: Option<Box<str>>,
    /// The published default, if it is not an object or a list.
    pub key_default: Option<Value>,
    /// The values that the published schema allows, as JSON text.
    pub values: Option<Box<str>>,
    /// `x-kubernetes-list-type` as declared.
    pub list_type: Option<Box<str>>,
    /// `x-kubernetes-list-map-keys` as declared.
    pub list_keys: Vec<Str>,
    /// `x-kubernetes-map-type` as declared.
    pub map_type: Option<Box<str>>,
    /// The number and wire type in protobuf.
    pub proto: Option<(u32, Box<str>)>,
    /// The numbers of the embedded messages around the field in protobuf, outermost first.
    pub proto_path: Vec<u32>,
}

/// One member of a [`Definition`].
#[derive(Clone, Debug)]
pub struct Field {
    /// The member's name.
    pub name: Str,
    /// The type of its value.
    pub ty: Type,
    /// The condition under which it is left out.
    pub omit: Omit,
    /// The choice whether absent differs from zero.
    pub presence: Presence,
    /// True if a write that sends an empty list or map means something else than one that sends none.
    pub empty_is_said: bool,
    /// True if that holds for it and for all lists and maps below it, to whoever counts changes or shows
    /// them.
    pub empties_count: bool,
    /// The constant that replaces an absent value.
    pub default: Option<Value>,
    /// The way in which its list is merged.
    pub list: ListType,
    /// Its treatment in strategic merge patches.
    pub patch: Patch,
    /// The declarations for its validation.
    pub tags: Vec<Tag>,
    /// Facts that only documents and patches need.
    pub notes: Box<Notes>,
    /// The text `"name":`, ready to be written.
    key: Box<[u8]>,
}

/// The group, version and kind under which a definition is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gvk {
    /// The group; empty for core.
    pub group: Box<str>,
    /// The version.
    pub version: Box<str>,
    /// The kind.
    pub kind: Box<str>,
}

/// The treatment of members that are not fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// They are dropped and reported.
    #[default]
    Drop,
    /// They are kept, and written behind the fields.
    Keep,
}

/// The order in which members are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// In the order in which the fields are declared.
    #[default]
    Declared,
    /// In the order of their names.
    Sorted,
}

/// A set of fields: one kind, or one type used by kinds.
#[derive(Clone, Debug, Default)]
pub struct Definition {
    /// The full name, such as `io.k8s.api.core.v1.Pod`.
    pub name: Box<str>,
    /// The fields in the order in which they are declared.
    pub fields: Vec<Field>,
    /// The kinds under which the definition is served.
    pub kinds: Vec<Gvk>,
    /// The treatment of other members.
    pub unknown: Unknown,
    /// The order in which members are written.
    pub order: Order,
    /// The declarations for validating the type itself.
    pub tags: Vec<Tag>,
    /// Names of fields that are published as required.
    pub required: Vec<Box<str>>,
    /// Declared unions, as JSON text.
    pub unions: Option<Box<str>>,
    /// Other published extensions, as JSON text.
    pub extensions: Option<Box<str>>,
    /// The Go type, package path included.
    pub go: Box<str>,
    /// True if kind and apiVersion are written before the fields.
    pub type_meta: bool,
    /// True if upstream's internal types contain the published type itself.
    pub shared: bool,
    /// The relation of the fields when objects are applied.
    pub map: crate::shape::MapType,
    /// Fields of upstream's internal type in order; `None` if they are those of this definition.
    pub internal: Option<Box<[InternalField]>>,
    /// The zero value.
    zero: Value,
    /// An index of the fields by name.
    names: names::Index,
    always: u16,
    pub(crate) defaulted: bool,
    pub(crate) checked: bool,
    /// The rules that depend on more than one field.
    related: Vec<validate::Relation>,
    keyless: bool,
    /// The order of the fields in protobuf, computed when it is first needed.
    proto_steps: OnceLock<Box<[proto::encode::Step]>>,
}

impl Definition {
    /// Returns the field `name`.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.place(name).map(|at| &self.fields[at])
    }

    /// Returns the last part of the name.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    /// Returns the canonical form of an object in which nothing is set.
    pub fn zero(&self) -> &Value {
        &self.zero
    }

    /// Returns the position of the field `name` among the declared ones.
    fn place(&self, name: &str) -> Option<usize> {
        self.names.find(name, |at| self.fields[at].name.as_str())
    }
}

/// All definitions, which may refer to each other.
#[derive(Clone, Debug, Default)]
pub struct Schemas {
    definitions: Vec<Definition>,
    by_name: HashMap<Box<str>, DefId>,
    by_kind: HashMap<Gvk, DefId>,
    number: u64,
}

/// Counts the different contents that schemas in this process have had.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl Schemas {
    /// Parses generated data.
    ///
    /// # Errors
    /// Returns an error if the text is not JSON of the expected form, or names a type that does not
    /// exist.
    pub fn parse(json: &[u8]) -> Result<Self, LoadError> {
        load::parse(json)
    }

    /// Adds the definitions of another generated file, which may refer to existing ones.
    ///
    /// # Errors
    /// See [`Schemas::parse`]. After an error the schemas must not be used.
    pub fn extend(&mut self, json: &[u8]) -> Result<(), LoadError> {
        load::extend(self, json)
    }

    /// Returns the definition at `id`.
    pub fn get(&self, id: DefId) -> &Definition {
        &self.definitions[id.0 as usize]
    }

    /// Returns the position of the definition with this full name.
    pub fn find(&self, name: &str) -> Option<DefId> {
        self.by_name.get(name).copied()
    }

    /// Returns the position of the definition that is served as a kind.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<DefId> {
        let wanted = Gvk {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
        };
        self.by_kind.get(&wanted).copied()
    }

    /// Returns all definitions in order of their positions.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (DefId, &Definition)> {
        self.definitions
            .iter()
            .enumerate()
            .map(|(at, definition)| (DefId(at as u32), definition))
    }

    /// Sets absent fields of an object to their constant defaults, see [`crate::shape::defaults`]. An object that has
    /// room for too many gets only some: it is larger than any that is stored.
    pub fn apply_defaults(&self, id: DefId, value: &mut Value) {
        let root = crate::shape::BuiltIn::root(self, id);
        let _ = crate::shape::defaults::apply(root, value);
    }

    /// Returns a number that identifies the content of these definitions within this process:
    /// copies have the same number until a definition is added to one of them.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of definitions.
    pub fn len(&self) -> usize {
        self.definitions.len()
    }

    /// Returns true if there are no definitions.
    pub fn is_empty(&self) -> bool {
        self.definitions.is_empty()
    }

    /// Reserves a position for a definition, so that others may refer to it before it is known.
    pub fn reserve(&mut self, name: impl Into<Box<str>>) -> DefId {
        let name = name.into();
        let id = DefId(u32::try_from(self.definitions.len()).expect("fewer than 2^32 definitions"));
        self.definitions.push(Definition {
            name: name.clone(),
            ..Definition::default()
        });
        self.by_name.insert(name, id);
        id
    }

    /// Fills a reserved position. [`Schemas::seal`] must be called before the schemas are used.
    pub fn fill(&mut self, id: DefId, definition: Definition) {
        for kind in &definition.kinds {
            self.by_kind.insert(kind.clone(), id);
        }
        self.definitions[id.0 as usize] = definition;
    }

    /// Adds a definition that refers to no later one. [`Schemas::seal`] must be called before the
    /// schemas are used.
    pub fn add(&mut self, definition: Definition) -> DefId {
        let id = self.reserve(definition.name.clone());
        self.fill(id, definition);
        id
    }

    /// Computes everything that follows from the fields: orders, zero values, and which parts need
    /// work.
    pub fn seal(&mut self) {
        self.seal_from(0);
    }

    /// Seals the definitions from the one at `first` on; those before it refer to none of them.
    fn seal_from(&mut self, first: usize) {
        self.number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        for definition in &mut self.definitions[first..] {
            definition.names =
                names::Index::of(definition.fields.iter().map(|field| field.name.as_str()));
            definition.zero = Value::Null;
            definition.always = 0;
            definition.related = definition.relations();
        }
        for at in first..self.definitions.len() {
            self.seal_zero(at, 0);
        }
        self.seal_reach(
            first,
            |field| field.default.is_some(),
            |_| false,
            |definition| &mut definition.defaulted,
        );
        self.seal_reach(
            first,
            |field| !field.tags.is_empty(),
            |definition| !definition.tags.is_empty(),
            |definition| &mut definition.checked,
        );
        self.seal_keys(first);
    }

    fn seal_zero(&mut self, at: usize, depth: usize) {
        if !self.definitions[at].zero.is_null() {
            return;
        }
        // Go does not allow a cycle of plain objects; a schema that has one gets empty objects.
        self.definitions[at].zero = Value::object();
        if depth > 64 {
            return;
        }
        let nested: Vec<DefId> = self.definitions[at]
            .fields
            .iter()
            .filter(|field| field.presence == Presence::Plain)
            .filter_map(|field| match field.ty {
                Type::Ref(id) => Some(id),
                _ => None,
            })
            .collect();
        for id in nested {
            self.seal_zero(id.0 as usize, depth + 1);
        }
        let definition = &self.definitions[at];
        let mut always = 0;
        let mut zero = Map::new();
        for field in &definition.fields {
            if self.written_when_absent(field) {
                always += 1;
                zero.insert(field.name.clone(), self.zero_of(field));
            }
        }
        self.definitions[at].always = always;
        self.definitions[at].zero = Value::Object(zero);
    }

    /// Returns true if the canonical form has this field even when it was not given.
    fn written_when_absent(&self, field: &Field) -> bool {
        match field.omit {
            Omit::Never => true,
            Omit::Empty => field.presence == Presence::Plain && field.ty.is_struct(),
            Omit::Zero => false,
        }
    }

    /// Returns the value that replaces an absent value of a field.
    pub fn zero_of(&self, field: &Field) -> Value {
        match field.presence {
            Presence::Pointer => Value::Null,
            Presence::Plain => self.zero(&field.ty),
        }
    }

    /// Returns the zero value of a type.
    pub fn zero(&self, ty: &Type) -> Value {
        match ty {
            Type::String => Value::String(Str::default()),
            Type::Bool => Value::Bool(false),
            Type::Int32 | Type::Int64 | Type::Float64 | Type::IntOrString => Value::Int(0),
            Type::Quantity => Value::String(Str::const_new("0")),
            Type::Duration => Value::String(Str::const_new("0s")),
            Type::Ref(id) => self.get(*id).zero.clone(),
            Type::SchemaOrBool(_) => Value::Bool(false),
            _ => Value::Null,
        }
    }

    fn seal_reach(
        &mut self,
        first: usize,
        field_needs: impl Fn(&Field) -> bool,
        type_needs: impl Fn(&Definition) -> bool,
        flag: impl Fn(&mut Definition) -> &mut bool,
    ) {
        // Collects the definitions that need work, and all that refer to them.
        let mut referrers: Vec<Vec<u32>> = vec![Vec::new(); self.definitions.len()];
        let mut reached: Vec<usize> = Vec::new();
        for at in 0..self.definitions.len() {
            let definition = &mut self.definitions[at];
            if at >= first {
                let needs = type_needs(definition) || definition.fields.iter().any(&field_needs);
                *flag(definition) = needs;
                let targets = definition
                    .fields
                    .iter()
                    .filter_map(|field| field.ty.definition());
                targets.for_each(|target| referrers[target.0 as usize].push(at as u32));
            }
            if *flag(definition) {
                reached.push(at);
            }
        }
        while let Some(at) = reached.pop() {
            for referrer in std::mem::take(&mut referrers[at]) {
                let mark = flag(&mut self.definitions[referrer as usize]);
                if !std::mem::replace(mark, true) {
                    reached.push(referrer as usize);
                }
            }
        }
    }
}

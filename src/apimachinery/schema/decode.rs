//! Turns parsed trees into canonical trees, exactly as a Go decode into the typed struct reads
//! them.
//!
//! Owns the rules of absent, null, zero and empty, the errors about wrong types and the reports
//! about unknown members. [`mod@crate::json`] owns syntax, repeated members included. Members are
//! visited in order of their names, as they arrive from YAML and from most clients. Errors that
//! depend on the order or the digits of JSON text are found by a second reading,
//! [`Schemas::explain`], which is made only if the first one found an error.

mod converted;
mod explain;
mod literals;
mod mode;
mod trail;

pub use literals::Literals;
pub use mode::{AsSent, Beyond, Empties, Numbers};

use super::scalars::{self, BadBytes, Scalar};
use super::{DefId, Definition, Field, ListType, Omit, Presence, Schemas, Type, Unknown, go};
use crate::json::write_float;
use crate::value::{Map, Str, Value};
use trail::{PathSegment, Trail};

/// The reason why an object cannot be read; the text is Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

/// A complaint of strict decoding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Problem {
    /// A member that is not a field.
    Unknown(String),
    /// A member that occurs twice.
    Duplicate(String),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, path) = match self {
            Self::Unknown(path) => ("unknown", path),
            Self::Duplicate(path) => ("duplicate", path),
        };
        write!(out, "{what} field {}", crate::quote::quote(path))
    }
}

/// Number of problems that are reported at most, so that a client cannot request a huge error.
const MAX_PROBLEMS: usize = 100;

/// Depth beyond which objects are refused, because decoding is recursive. No type of a built-in
/// kind is so deep.
const MAX_DEPTH: usize = 500;

/// Number of zero values that are filled in. Each has at least six bytes in the text of an object, so one that lacks some
/// is longer than the 3 MiB that are stored at most. With more, a body of a million empty items took 300 MB.
const ZEROS_MAX: usize = 1 << 19;

/// Returns the error text of strict decoding, if there are complaints.
pub fn strict_error(problems: &[Problem]) -> Option<String> {
    let texts: Vec<String> = problems.iter().map(Problem::to_string).collect();
    (!texts.is_empty()).then(|| format!("strict decoding error: {}", texts.join(", ")))
}

impl Schemas {
    /// Brings a parsed tree into canonical form. `kind` and `apiVersion` of the root are dropped.
    ///
    /// # Errors
    /// Returns an error if a value has a type that the field does not accept.
    pub fn decode(
        &self,
        id: DefId,
        value: &mut Value,
        empties: Empties,
    ) -> Result<Vec<Problem>, DecodeError> {
        self.decode_with(id, value, empties, Numbers::AsWritten)
            .map(|decoded| decoded.problems)
    }

    /// Decodes a tree with [`Empties::NullUnlessSaid`]. Returns true if one of these is in it.
    ///
    /// # Errors
    /// See [`Self::decode`].
    pub fn decode_unless_said(
        &self,
        id: DefId,
        value: &mut Value,
        numbers: Numbers,
    ) -> Result<bool, DecodeError> {
        self.decode_with(id, value, Empties::NullUnlessSaid, numbers)
            .map(|decoded| decoded.beyond == Beyond::Said)
    }

    /// Decodes a tree with [`Empties::AsSent`].
    ///
    /// # Errors
    /// See [`Self::decode`].
    pub fn decode_as_sent(
        &self,
        id: DefId,
        value: &mut Value,
        numbers: Numbers,
    ) -> Result<AsSent, DecodeError> {
        self.decode_with(id, value, Empties::AsSent, numbers)
    }

    /// Brings a tree into canonical form that has no `null` of a client: it was decoded before, or comes
    /// from a message in protobuf. A time in it that is there and `null` is Go's zero time, and stays.
    ///
    /// # Errors
    /// See [`Self::decode`].
    pub fn decode_again(
        &self,
        id: DefId,
        value: &mut Value,
        empties: Empties,
    ) -> Result<AsSent, DecodeError> {
        let mut decoder = Decoder::new(self, empties);
        decoder.keeps_zero_times = true;
        decoder.root(id, value)
    }

    fn decode_with(
        &self,
        id: DefId,
        value: &mut Value,
        empties: Empties,
        numbers: Numbers,
    ) -> Result<AsSent, DecodeError> {
        let mut decoder = Decoder::new(self, empties);
        decoder.numbers = numbers;
        decoder.root(id, value)
    }

    /// Returns true if a canonical value is the zero value of its type.
    pub(crate) fn is_zero(&self, ty: &Type, value: &Value) -> bool {
        match (ty, value) {
            (_, Value::Null) => true,
            (Type::Ref(id), Value::Object(_)) => value == self.get(*id).zero(),
            (Type::Quantity, Value::String(text)) => text == "0",
            (Type::Duration, Value::String(text)) => text == "0s",
            _ => is_empty(ty, value),
        }
    }
}

/// Returns true if a value is empty in the sense of Go's `omitempty`.
fn is_empty(ty: &Type, value: &Value) -> bool {
    match value {
        Value::Null => ty.is_collection() || matches!(ty, Type::Nullable(_)),
        Value::Bool(truth) => !truth && !ty.is_struct(),
        Value::Int(number) => *number == 0 && !ty.is_struct(),
        Value::Float(number) => *number == 0.0 && !ty.is_struct(),
        Value::String(text) => text.is_empty() && !ty.is_struct(),
        Value::Array(items) => items.is_empty() && ty.is_collection(),
        Value::Object(members) => members.is_empty() && ty.is_collection(),
    }
}

struct Decoder<'s> {
    schemas: &'s Schemas,
    empties: Empties,
    problems: Vec<Problem>,
    type_error: Option<DecodeError>,
    /// The depth of nested types that decode themselves and report nothing; zero outside of them.
    quiet: usize,
    depth: usize,
    /// The number of lists around the value that are compared as a whole.
    whole: usize,
    /// The number of fields around the value below which all empty lists and maps count as changes.
    counting: usize,
    /// What was kept that the stored form does not have.
    beyond: Beyond,
    /// The numbers that fields for whole numbers take.
    numbers: Numbers,
    /// True if a time that is there and null stays: see [`Schemas::decode_again`].
    keeps_zero_times: bool,
    /// The number of zero values that may still be filled in.
    zeros_left: usize,
    /// The JSON text of the value that is being decoded. Only [`Schemas::explain`] sets it, so that
    /// an error shows a number as the client wrote it.
    literal: Option<&'s str>,
}

type Outcome = Result<(), DecodeError>;

impl<'s> Decoder<'s> {
    fn new(schemas: &'s Schemas, empties: Empties) -> Self {
        Self {
            schemas,
            empties,
            problems: Vec::new(),
            type_error: None,
            quiet: 0,
            depth: 0,
            whole: 0,
            counting: 0,
            beyond: Beyond::Nothing,
            numbers: Numbers::AsWritten,
            keeps_zero_times: false,
            zeros_left: ZEROS_MAX,
            literal: None,
        }
    }

    /// Brings an object into canonical form, and returns what was found in it.
    fn root(mut self, id: DefId, value: &mut Value) -> Result<AsSent, DecodeError> {
        let definition = self.schemas.get(id);
        if let (true, Value::Object(members)) = (definition.type_meta, &mut *value) {
            members.remove("kind");
            members.remove("apiVersion");
        }
        if value.is_null() {
            *value = definition.zero().clone();
            return Ok(AsSent::default());
        }
        self.value(value, &Type::Ref(id), &Trail::ROOT)?;
        match self.type_error {
            Some(error) => Err(error),
            None => Ok(AsSent {
                problems: self.problems,
                beyond: self.beyond,
            }),
        }
    }

    /// Brings a value that is not null into canonical form. A value of the wrong type becomes null.
    fn value(&mut self, value: &mut Value, ty: &Type, trail: &Trail<'_>) -> Outcome {
        if self.numbers == Numbers::ByValue {
            scalars::make_whole(ty, value);
        }
        match (ty, &mut *value) {
            (Type::String, Value::String(_))
            | (Type::Bool, Value::Bool(_))
            | (Type::Int64, Value::Int(_)) => Ok(()),
            (Type::Raw | Type::Json | Type::FieldsV1, _) => Ok(()),
            (Type::Ref(id), Value::Object(members)) => {
                let definition = self.schemas.get(*id);
                self.object(members, definition, trail)
            }
            (Type::List(item), Value::Array(items)) => self.items(items, item, trail),
            (Type::Map(item), Value::Object(members)) => self.entries(members, item, trail),
            (Type::Int32, Value::Int(number)) if i32::try_from(*number).is_ok() => Ok(()),
            (Type::Float64, Value::Int(_) | Value::Float(_)) => Ok(()),
            (Type::Nullable(_), Value::Null) => Ok(()),
            (Type::Nullable(inner), _) => self.value(value, inner, trail),
            (Type::SchemaOrBool(id) | Type::SchemaOrArray(id) | Type::SchemaOrStrings(id), _) => {
                self.schema_or_else(value, ty, *id, trail)
            }
            (Type::Bytes, Value::String(_) | Value::Array(_)) => {
                self.bytes(value, trail);
                Ok(())
            }
            (
                Type::Time | Type::MicroTime | Type::Duration | Type::Quantity | Type::IntOrString,
                _,
            ) => self.scalar(value, ty, trail),
            _ => {
                let (number, name) = (
                    matches!(ty, Type::Int32 | Type::Int64),
                    self.type_name(ty, trail),
                );
                let text = match self.numbers {
                    Numbers::AsWritten => self.type_text(value, number, trail, &name),
                    Numbers::ByValue => converted::type_text(value, ty, &name),
                };
                self.save(DecodeError(text));
                *value = Value::Null;
                Ok(())
            }
        }
    }

    /// Brings an object with fields into canonical form, including null and absent fields.
    fn object(&mut self, members: &mut Map, definition: &Definition, trail: &Trail<'_>) -> Outcome {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(DecodeError("exceeded max depth".to_owned()));
        }
        let mut failed = None;
        let mut always = 0;
        members.retain(|name, value| {
            if failed.is_some() {
                return false;
            }
            match definition.field(name) {
                Some(field) => match self.field(value, definition, field, trail) {
                    Ok(kept) => {
                        always += u16::from(kept && self.schemas.written_when_absent(field));
                        kept
                    }
                    Err(error) => {
                        failed = Some(error);
                        false
                    }
                },
                None => self.stranger(name, value, definition, trail),
            }
        });
        self.depth -= 1;
        if let Some(error) = failed {
            return Err(error);
        }
        if always < definition.always {
            self.add_zeros(members, definition);
        }
        Ok(())
    }

    /// Fills in the fields that are written when they are absent, as far as there is room.
    fn add_zeros(&mut self, members: &mut Map, definition: &Definition) {
        let Value::Object(zero) = definition.zero() else {
            return;
        };
        if members.is_empty() {
            if self.take_zeros(zero.len()) {
                members.clone_from(zero);
            }
            return;
        }
        for (name, value) in zero.iter() {
            if !members.contains_key(name) && self.take_zeros(1) {
                members.insert(name, value.clone());
            }
        }
    }

    /// Returns whether so many further zero values may be filled in.
    fn take_zeros(&mut self, count: usize) -> bool {
        match self.zeros_left.checked_sub(count) {
            Some(left) => {
                self.zeros_left = left;
                true
            }
            None => false,
        }
    }

    /// Returns the zero value of an item, empty if there is no room for its fields.
    fn zero_item(&mut self, ty: &Type) -> Value {
        if let Type::Ref(id) = ty {
            let zero = self.schemas.get(*id).zero().as_object();
            if !self.take_zeros(zero.map_or(0, Map::len)) {
                return Value::object();
            }
        }
        self.schemas.zero(ty)
    }

    /// Handles a member that is not a field. Returns true if it is kept.
    fn stranger(
        &mut self,
        name: &str,
        value: &Value,
        definition: &Definition,
        trail: &Trail<'_>,
    ) -> bool {
        if definition.unknown == Unknown::Keep {
            return true;
        }
        if definition.type_meta && matches!(name, "kind" | "apiVersion") {
            self.type_meta(name, value, definition, trail);
            return !value.as_str().unwrap_or_default().is_empty();
        }
        if self.quiet == 0 && self.problems.len() < MAX_PROBLEMS {
            let path = trail.then(PathSegment::Key(name)).path();
            self.problems.push(Problem::Unknown(path));
        }
        false
    }

    /// Checks the `kind` or the `apiVersion` of an object within another one.
    fn type_meta(&mut self, name: &str, value: &Value, definition: &Definition, trail: &Trail<'_>) {
        if matches!(value, Value::Null | Value::String(_)) {
            return;
        }
        self.save(DecodeError(match self.numbers {
            Numbers::AsWritten => {
                let mut path = String::new();
                trail.fields(&mut path);
                let path = format!("{path}.TypeMeta.{name}");
                field_text(value.go_kind(), definition, &path, "string")
            }
            Numbers::ByValue => converted::type_text(value, &Type::String, "string"),
        }));
    }

    /// Brings a field's value into canonical form. Returns false if the field is left out.
    fn field(
        &mut self,
        value: &mut Value,
        definition: &Definition,
        field: &Field,
        trail: &Trail<'_>,
    ) -> Result<bool, DecodeError> {
        let is_whole = matches!(field.ty, Type::List(_)) && field.list == ListType::Atomic;
        // In a list that is compared as a whole they would make another list of it.
        let counts_empties = field.empties_count && self.whole == 0;
        self.whole += usize::from(is_whole);
        self.counting += usize::from(counts_empties);
        let is_given = !value.is_null();
        if is_given {
            self.value(
                value,
                &field.ty,
                &trail.then(PathSegment::Field(definition, field)),
            )?;
        } else if field.ty == Type::Duration && field.presence == Presence::Plain {
            self.scalar(
                value,
                &field.ty,
                &trail.then(PathSegment::Field(definition, field)),
            )?;
        }
        let counts = self.counting > 0;
        self.whole -= usize::from(is_whole);
        self.counting -= usize::from(counts_empties);
        if field.presence == Presence::Pointer {
            // A time that was given and is null now is Go's zero time, which JSON shows as null.
            let is_zero_time = matches!(field.ty, Type::Time | Type::MicroTime)
                && (is_given || self.keeps_zero_times);
            return Ok(!value.is_null() || field.omit == Omit::Never || is_zero_time);
        }
        if value.is_null() {
            *value = self.schemas.zero(&field.ty);
        } else if matches!(field.ty, Type::List(_) | Type::Map(_)) && is_empty(&field.ty, value) {
            let is_compared = field.omit == Omit::Never || self.whole > 0;
            let counts = counts && (self.empties == Empties::NullUnlessSaid || !is_compared);
            match self.empties {
                Empties::Keep => {}
                Empties::NullUnlessSaid | Empties::AsSent if field.empty_is_said || counts => {
                    self.beyond = Beyond::Said;
                    return Ok(true);
                }
                Empties::Null | Empties::NullUnlessSaid => *value = Value::Null,
                Empties::AsSent if is_compared => {
                    self.beyond = self.beyond.max(Beyond::Compared);
                    return Ok(true);
                }
                Empties::AsSent => {}
            }
        }
        Ok(match field.omit {
            Omit::Never => true,
            Omit::Empty => !is_empty(&field.ty, value),
            Omit::Zero => !self.schemas.is_zero(&field.ty, value),
        })
    }

    fn items(&mut self, items: &mut [Value], ty: &Type, trail: &Trail<'_>) -> Outcome {
        for (index, value) in items.iter_mut().enumerate() {
            self.item(value, ty, &trail.then(PathSegment::Index(index)))?;
        }
        Ok(())
    }

    fn entries(&mut self, members: &mut Map, ty: &Type, trail: &Trail<'_>) -> Outcome {
        for (key, value) in members.iter_mut() {
            self.item(value, ty, &trail.then(PathSegment::Key(key)))?;
        }
        Ok(())
    }

    fn item(&mut self, value: &mut Value, ty: &Type, trail: &Trail<'_>) -> Outcome {
        if !value.is_null() {
            self.value(value, ty, trail)?;
        }
        if value.is_null() && !matches!(ty, Type::Nullable(_)) {
            *value = self.zero_item(ty);
        }
        Ok(())
    }

    /// Decodes types that allow a JSON schema or something else. They report nothing.
    fn schema_or_else(
        &mut self,
        value: &mut Value,
        ty: &Type,
        id: DefId,
        trail: &Trail<'_>,
    ) -> Outcome {
        self.quiet += 1;
        let outcome = match (ty, &mut *value) {
            (_, Value::Object(members)) => self.object(members, self.schemas.get(id), trail),
            (Type::SchemaOrBool(_), Value::Bool(_)) => Ok(()),
            (Type::SchemaOrBool(_), _) => {
                Err(DecodeError("boolean or JSON schema expected".to_owned()))
            }
            (Type::SchemaOrArray(_), Value::Array(items)) if !items.is_empty() => {
                self.items(items, &Type::Ref(id), trail)
            }
            (Type::SchemaOrStrings(_), Value::Array(items)) if !items.is_empty() => {
                self.items(items, &Type::String, trail)
            }
            _ => {
                *value = Value::Null;
                Ok(())
            }
        };
        self.quiet -= 1;
        outcome
    }

    fn bytes(&mut self, value: &mut Value, trail: &Trail<'_>) {
        let text = match scalars::bytes(value) {
            Ok(()) => return,
            Err(bad) if self.numbers == Numbers::ByValue => converted::bytes_text(value, bad),
            Err(BadBytes::Text(text)) => text,
            Err(BadBytes::Item(at)) => self.type_text(&value[at], true, trail, "uint8"),
        };
        self.save(DecodeError(text));
        *value = Value::Null;
    }

    fn scalar(&mut self, value: &mut Value, ty: &Type, trail: &Trail<'_>) -> Outcome {
        let written = match (ty, &*value) {
            (Type::Quantity, Value::String(text)) if self.keeps_text() => text.clone(),
            _ => Str::default(),
        };
        match scalars::canonical(ty, value) {
            Ok(()) => {
                let text = written.trim();
                if !text.is_empty() && value.as_str() != Some(text) {
                    self.beyond = self.beyond.max(Beyond::Compared);
                    *value = Value::string(text);
                }
                Ok(())
            }
            Err(Scalar::Text(text)) => Err(DecodeError(text)),
            Err(Scalar::Type(expected)) => {
                // A converter hands a value that decodes itself to its decoder without its place.
                let trail = match self.numbers {
                    Numbers::AsWritten => trail,
                    Numbers::ByValue => &Trail::ROOT,
                };
                let text = self.type_text(value, expected == "int32", trail, expected);
                Err(DecodeError(text))
            }
        }
    }

    /// Returns true if a quantity is kept as it was written.
    fn keeps_text(&self) -> bool {
        self.empties == Empties::AsSent && self.whole > 0
    }

    fn save(&mut self, error: DecodeError) {
        self.type_error.get_or_insert(error);
    }

    fn type_name(&self, ty: &Type, trail: &Trail<'_>) -> String {
        match (trail.field(), ty) {
            (Some((_, field)), ty) => go::type_name(self.schemas, field, ty),
            (None, Type::Ref(id)) => go::struct_type(self.schemas.get(*id)),
            (None, _) => String::new(),
        }
    }

    fn type_text(&self, value: &Value, number: bool, trail: &Trail<'_>, expected: &str) -> String {
        let mut found = Str::from(value.go_kind());
        if number {
            let digits = |text: &&str| text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
            let literal = self.literal.filter(digits);
            match value {
                Value::Int(_) | Value::Float(_) if literal.is_some() => {
                    found = format!("number {}", literal.unwrap_or_default()).into();
                }
                Value::Int(integer) => found = format!("number {integer}").into(),
                Value::Float(float) => {
                    let mut text = b"number ".to_vec();
                    write_float(*float, &mut text);
                    found = Str::from_utf8_lossy(&text);
                }
                _ => {}
            }
        }
        match trail.field() {
            None => format!("json: cannot unmarshal {found} into Go value of type {expected}"),
            Some((definition, _)) => {
                let mut path = String::new();
                trail.fields(&mut path);
                field_text(&found, definition, &path, expected)
            }
        }
    }
}

/// Returns the error about a field with a value of the wrong type. `definition` is the struct that has the field.
fn field_text(found: &str, definition: &Definition, path: &str, expected: &str) -> String {
    let holder = go::struct_name(definition);
    format!(
        "json: cannot unmarshal {found} into Go struct field {holder}.{path} of type {expected}"
    )
}

//! The check of a value. Complaints that an update has not caused are dropped.

use indexmap::IndexMap;

use super::numbers::{is_json_integer, number};
use super::schema::{Additional, Bounds, Counterparts, Junctors, Schema};
use crate::complaints::{self, value_bytes};
use polyplane_apimachinery::complaints::Room;
use polyplane_apimachinery::field_error::{Bad, FieldError, FieldErrorKind, Path};
use polyplane_apimachinery::json;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_cel::{SearchFailed, WorkBudget};

/// What the last complaint says about a value that was not checked to its end.
const INCOMPLETE: &str = "to check all of it takes too much work, so the rest was not checked";
/// The work of a check of a value without its parts, in parts.
const NODE_PARTS: usize = 5;
/// The work of a complaint beside that of its texts, in parts. Required members that each of many objects lacks are
/// complained about without a look at a value.
const COMPLAINT_PARTS: usize = 20;
/// Units of work of a byte of a complaint: it is quoted, and copied some times.
const BYTE_WORK: u64 = 1;
/// The work of writing an allowed value into a complaint, in parts.
const ALLOWED_PARTS: usize = 20;

/// The values of a check.
#[derive(Clone, Copy, Debug)]
pub enum Change<'v> {
    /// A new value.
    Created(&'v Value),
    /// A value and the one that it replaces. What has not changed may stay invalid.
    Updated(&'v Value, &'v Value),
}

/// Returns the complaints about a value. Their fields are below `root`, if it is given; texts name
/// fields relative to the value. The work is taken from
/// `budget`; without it the check ends with a complaint.
pub fn validate(
    schema: &Schema,
    change: Change<'_>,
    root: Option<&str>,
    budget: &WorkBudget,
) -> Vec<FieldError> {
    let (value, old) = match change {
        Change::Created(value) => (value, None),
        Change::Updated(value, old) => (value, Some(old)),
    };
    let place = Place {
        path: "",
        root: root.unwrap_or(""),
        is_top: root.is_none(),
        budget,
    };
    let mut found = Found::default();
    node(schema, value, Old::of(old), place, &mut found);
    let mut errors: Vec<FieldError> = found.errors.into_values().collect();
    if budget.is_spent() {
        errors.push(place.general(INCOMPLETE.to_owned()).error);
    }
    errors
}

/// The value that is replaced, as far as it corresponds to the new one.
#[derive(Clone, Copy)]
enum Old<'v> {
    /// There is none, or it does not correspond.
    None,
    Value(&'v Value),
}

impl<'v> Old<'v> {
    fn of(old: Option<&'v Value>) -> Self {
        old.map_or(Self::None, Self::Value)
    }

    fn member(self, name: &str) -> Self {
        match self {
            Self::Value(old) => Self::of(old.get(name)),
            Self::None => Self::None,
        }
    }

    /// Returns the items with keys.
    fn items(self, schema: &'v Schema) -> Option<Counterparts<'v>> {
        match self {
            Self::Value(Value::Array(olds)) => schema.counterparts(olds),
            Self::Value(_) | Self::None => None,
        }
    }
}

/// The place of a value.
#[derive(Clone, Copy)]
pub(super) struct Place<'p> {
    /// The path as texts show it.
    pub(super) path: &'p str,
    /// The field above the value that is checked.
    root: &'p str,
    /// Whether the value that is checked is a whole object.
    is_top: bool,
    /// What the check may still take.
    budget: &'p WorkBudget,
}

impl Place<'_> {
    fn field(&self, path: &str) -> String {
        let path = path.strip_prefix('.').unwrap_or(path);
        match (self.root, path) {
            ("", "") => Path::NIL.to_string(),
            ("", path) => path.to_owned(),
            (root, "") => root.to_owned(),
            (root, path) => format!("{root}.{path}"),
        }
    }

    /// Returns a complaint about a field.
    fn complaint(&self, path: &str, error: FieldError, text: String) -> Complaint {
        let field = self.field(path);
        // A budget that is spent ends the check at the next value.
        let bytes = field.len() + text.len();
        let parts = self.budget.parts(COMPLAINT_PARTS);
        let _ = parts.and_then(|()| self.budget.work(BYTE_WORK * bytes as u64));
        let error = FieldError { field, ..error };
        Complaint { error, text }
    }

    /// Returns a value for a complaint. What is too large for the budget is not copied.
    fn shown(&self, value: &Value) -> Bad {
        match self.budget.read(value_bytes(value, complaints::BYTES_MAX)) {
            Ok(()) => value.clone().into(),
            Err(_) => Bad::Omitted,
        }
    }

    /// Like [`Self::shown`], for a text.
    fn shown_text(&self, text: &str) -> Bad {
        match self.budget.read(text.len()) {
            Ok(()) => text.into(),
            Err(_) => Bad::Omitted,
        }
    }

    /// Returns the complaint about a value, whose text begins with the path.
    fn error(&self, kind: FieldErrorKind, bad: impl Into<Bad>, text: &str) -> Complaint {
        let text = format!("{} in body {text}", self.path);
        let error = FieldError::new(kind, &Path::NIL, bad, text.clone());
        self.complaint(self.path, error, text)
    }

    pub(super) fn invalid(&self, bad: impl Into<Bad>, text: &str) -> Complaint {
        self.error(FieldErrorKind::Invalid, bad, text)
    }

    /// Returns the complaint about a value with a text of its own.
    pub(super) fn about(&self, bad: impl Into<Bad>, text: String) -> Complaint {
        let error = FieldError::new(FieldErrorKind::Invalid, &Path::NIL, bad, text.clone());
        self.complaint(self.path, error, text)
    }

    /// Returns a complaint that upstream makes without a field.
    pub(super) fn general(&self, text: String) -> Complaint {
        let error = FieldError::new(FieldErrorKind::Invalid, &Path::NIL, "", text.clone());
        self.complaint("", error, text)
    }
}

/// A complaint with the text by which upstream finds out whether it was made before.
#[derive(Clone, Debug)]
pub(super) struct Complaint {
    error: FieldError,
    text: String,
}

/// The complaints about a value, and the number of checks that were made. Upstream shows the
/// complaints of the alternative of which most checks were made.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// By the texts by which upstream finds out whether a complaint was made before.
    errors: IndexMap<String, FieldError>,
    said: Room,
    matches: usize,
}

impl Found {
    pub(super) fn add(&mut self, complaint: Complaint) {
        let Complaint { error, text } = complaint;
        if self.said.take(error.bytes()) {
            self.errors.entry(text).or_insert(error);
        }
    }

    fn merge(&mut self, other: Self) {
        self.matches += other.matches;
        if self.errors.is_empty() {
            self.errors = other.errors;
            self.said = other.said;
            return;
        }
        for (text, error) in other.errors {
            self.add(Complaint { error, text });
        }
    }

    fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }
}

/// Returns a type's name; that of nothing is `null`.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Int(_) => "integer",
        Value::Float(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Checks a value, and drops the complaints if it has not changed.
fn node(schema: &Schema, value: &Value, old: Old<'_>, place: Place<'_>, found: &mut Found) {
    let mut own = Found::default();
    plain(schema, value, old, place, &mut own);
    if !own.is_valid() && matches!(old, Old::Value(old) if schema.is_unchanged(value, old)) {
        // What is dropped has no part in the bound: else it would hide what the update has caused.
        own.errors.clear();
        own.said = Room::default();
    }
    found.merge(own);
}

fn plain(schema: &Schema, value: &Value, old: Old<'_>, place: Place<'_>, found: &mut Found) {
    // Alternatives in alternatives check one value many times.
    let path = place.budget.read(place.path.len());
    if path.and(place.budget.parts(NODE_PARTS)).is_err() {
        return;
    }
    if value.is_null() {
        if !schema.types.is_empty() && !schema.nullable {
            found.add(wrong_type(schema, value, place));
        } else {
            found.matches += 1;
        }
        enumeration(schema, value, place, found);
        return;
    }
    found.matches += 2;
    if !schema.types.is_empty() || schema.named_format().is_some() {
        types(schema, value, place, found);
    }
    if let Some(junctors) = &schema.junctors {
        junction(junctors, value, old, place, found);
    }
    match value {
        Value::String(text) => string(schema, text, place, found),
        Value::Int(_) | Value::Float(_) => {
            found.matches += 2;
            number(schema, value, place, found);
        }
        Value::Array(items) => {
            found.matches += 2;
            list(schema, items, old, place, found);
        }
        Value::Object(members) => {
            found.matches += 1;
            object(schema, members, old, place, found);
        }
        Value::Null | Value::Bool(_) => {}
    }
    found.matches += 1;
    enumeration(schema, value, place, found);
}

fn string(schema: &Schema, text: &Str, place: Place<'_>, found: &mut Found) {
    found.matches += 1;
    let bounds = schema.bounds.as_deref();
    let format = schema.format.filter(|format| format.is_of_text());
    // Alternatives may count and copy a long text again and again.
    let is_read = bounds.is_some() || format.is_some();
    if is_read && place.budget.read(text.len()).is_err() {
        return;
    }
    if let Some(bounds) = bounds {
        check_text(bounds, text, place, found);
    }
    if let Some(format) = format {
        found.matches += 1;
        if !format.fits(text) {
            let bad = place.shown_text(text);
            let text = format!("must be of type {}: {}", format.name(), quote(text));
            found.add(place.error(FieldErrorKind::TypeInvalid, bad, &text));
        }
    }
}

fn wrong_type(schema: &Schema, value: &Value, place: Place<'_>) -> Complaint {
    let word = type_of(value);
    let text = format!("must be of type {}: {}", schema.types, quote(word));
    place.error(FieldErrorKind::TypeInvalid, word, &text)
}

fn types(schema: &Schema, value: &Value, place: Place<'_>, found: &mut Found) {
    let word = type_of(value);
    let is_whole = matches!(value, Value::Float(number) if is_json_integer(*number));
    let numeric = schema.has_type("number") || schema.has_type("integer");
    let format = schema.named_format();
    if !numeric && format.is_some() && matches!(value, Value::String(_) | Value::Array(_)) {
        found.matches += 1;
        return;
    }
    let fits = schema.has_type(word)
        || is_whole && schema.has_type("integer")
        || word == "integer" && schema.has_type("number");
    if fits {
        found.matches += 1;
        return;
    }
    // Upstream compares the type in Go with the format then.
    let in_go = match value {
        Value::Int(_) => "int64",
        Value::Float(_) => "float64",
        _ => "",
    };
    let is_single = !matches!(value, Value::String(_) | Value::Array(_));
    let complaint = match format.filter(|format| is_single && *format != in_go) {
        Some(format) => {
            let text = format!("must be of type {format}: {}", quote(in_go));
            place.error(FieldErrorKind::TypeInvalid, in_go, &text)
        }
        None => wrong_type(schema, value, place),
    };
    found.add(complaint);
}

fn enumeration(schema: &Schema, value: &Value, place: Place<'_>, found: &mut Found) {
    let allowed = &schema.allowed;
    if allowed.is_empty() || place.budget.parts(allowed.len()).is_err() {
        return;
    }
    if allowed.iter().any(|known| equals(known, value)) {
        return;
    }
    // To write a value takes more than to compare it.
    let bytes = allowed.iter();
    let bytes = bytes.map(|known| value_bytes(known, complaints::BYTES_MAX));
    let bytes = bytes.sum::<usize>() as u64;
    let work = place.budget.parts(ALLOWED_PARTS * allowed.len());
    if work
        .and_then(|()| place.budget.work(BYTE_WORK * bytes))
        .is_err()
    {
        return;
    }
    let shown = schema.allowed.iter().map(|known| match known {
        Value::String(text) => text.to_string(),
        known => json::to_string(known),
    });
    let shown: Vec<String> = shown.collect();
    let error = FieldError::not_supported(&Path::NIL, place.shown(value), &shown);
    let text = format!("{} in body should be one of {shown:?}", place.path);
    found.add(place.complaint(place.path, error, text));
}

/// Returns whether an allowed value is the given one; numbers are equal whatever their kind.
fn equals(known: &Value, value: &Value) -> bool {
    match (known, value) {
        (Value::Int(known), Value::Float(value)) => *value as i64 == *known,
        (Value::Float(known), Value::Int(value)) => *known == *value as f64,
        (Value::Null, _) => false,
        _ => known == value,
    }
}

fn check_text(bounds: &Bounds, text: &str, place: Place<'_>, found: &mut Found) {
    let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(max) = bounds.length.max
        && length() > max
    {
        let error = FieldError::too_long(&Path::NIL, usize::try_from(max).unwrap_or(0));
        let text = format!("{} in body should be at most {max} chars long", place.path);
        return found.add(place.complaint(place.path, error, text));
    }
    if let Some(min) = bounds.length.min
        && length() < min
    {
        let bad = place.shown_text(text);
        return found.add(place.invalid(bad, &format!("should be at least {min} chars long")));
    }
    let Some(pattern) = &bounds.pattern else {
        return;
    };
    let wanted = pattern.text();
    let detail = match pattern.is_match(text, place.budget) {
        Ok(true) => return,
        Ok(false) => format!("should match '{wanted}'"),
        Err(SearchFailed::TooMuchWork(why)) => format!("should match '{wanted}', but {why}"),
        Err(why @ SearchFailed::Refused(_)) => {
            format!("should match '{wanted}, but pattern is invalid: {why}'")
        }
    };
    let bad = place.shown_text(text);
    found.add(place.invalid(bad, &detail));
}

fn list(schema: &Schema, items: &[Value], old: Old<'_>, place: Place<'_>, found: &mut Found) {
    if let Some(of) = &schema.items {
        let olds = old.items(schema);
        for (at, item) in items.iter().enumerate() {
            let old = olds.as_ref().and_then(|olds| olds.of(item));
            let path = complaints::item(place.path, at);
            let below = Place {
                path: &path,
                ..place
            };
            node(of, item, Old::of(old.map(|(old, _)| old)), below, found);
        }
    }
    let Some(bounds) = schema.bounds.as_deref() else {
        return;
    };
    let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(min) = bounds.items.min.filter(|min| size < *min) {
        found.add(place.invalid(size, &format!("should have at least {min} items")));
    }
    if let Some(max) = bounds.items.max.filter(|max| size > *max) {
        let text = format!("{} in body should have at most {max} items", place.path);
        found.add(too_many(place, items.len(), max, text));
    }
}

fn too_many(place: Place<'_>, size: usize, max: i64, text: String) -> Complaint {
    let max = usize::try_from(max).unwrap_or(0);
    let error = FieldError::too_many(&Path::NIL, size, max);
    place.complaint(place.path, error, text)
}

fn object(schema: &Schema, members: &Map, old: Old<'_>, place: Place<'_>, found: &mut Found) {
    // A list of small objects walks a wide schema once for each of them.
    let wide = schema.required.len() + schema.properties.len();
    if place.budget.parts(wide).is_err() {
        return;
    }
    if let Some(bounds) = schema.bounds.as_deref() {
        let size = i64::try_from(members.len()).unwrap_or(i64::MAX);
        if let Some(min) = bounds.properties.min.filter(|min| size < *min) {
            found.add(place.invalid(size, &format!("should have at least {min} properties")));
        }
        if let Some(max) = bounds.properties.max.filter(|max| size > *max) {
            let text = format!(
                "{} in body should have at most {max} properties",
                place.path
            );
            found.add(too_many(place, members.len(), max, text));
        }
    }
    for (name, value) in members.iter() {
        let known = schema.property(name);
        let (of, path) = match (known, &schema.additional) {
            (Some(_), _) | (None, Additional::Allowed) => continue,
            (None, Additional::Refused) => {
                let path = complaints::member(place.path, name);
                let text = format!("{path} in body is a forbidden property");
                let bad = place.shown_text(name);
                let error = FieldError::invalid(&Path::NIL, bad, text.clone());
                found.add(place.complaint(place.path, error, text));
                continue;
            }
            (None, Additional::Of(of)) => (of, complaints::member(place.path, name)),
        };
        let below = Place {
            path: &path,
            ..place
        };
        node(of, value, old.member(name), below, found);
    }
    for (name, of) in &schema.properties {
        let Some(value) = members.get(name) else {
            continue;
        };
        let path = match place.path {
            "" => complaints::step(name).into_owned(),
            path => complaints::member(path, name),
        };
        let below = Place {
            path: &path,
            ..place
        };
        // A change of these two cannot be seen: both objects are in one version.
        let is_meta = place.is_top && place.path.is_empty();
        let old = match is_meta && matches!(name.as_str(), "kind" | "apiVersion") {
            true => Old::None,
            false => old.member(name),
        };
        node(of, value, old, below, found);
    }
    missing(schema, members, place, found);
}

/// Complains about required members that are not there.
fn missing(schema: &Schema, members: &Map, place: Place<'_>, found: &mut Found) {
    let required = schema.required.iter();
    for name in required.filter(|name| members.get(name).is_none()) {
        if place.budget.is_spent() {
            return;
        }
        let path = complaints::member(place.path, name);
        let error = FieldError::required(&Path::NIL, "");
        let text = format!("{path} in body is required");
        found.add(place.complaint(&path, error, text));
    }
}

fn junction(junctors: &Junctors, value: &Value, old: Old<'_>, place: Place<'_>, found: &mut Found) {
    let of = |schema: &Schema| {
        let mut found = Found::default();
        plain(schema, value, old, place, &mut found);
        found
    };
    let shown = quote(place.path);
    found.matches += 1;
    if !junctors.any.is_empty() {
        let (best, valid) = alternatives(junctors.any.iter().map(of), Stop::AtFirst);
        if valid == 0 {
            let text = format!("{shown} must validate at least one schema (anyOf)");
            found.add(place.general(text));
        }
        found.merge(best);
    }
    if !junctors.one.is_empty() {
        let (best, valid) = alternatives(junctors.one.iter().map(of), Stop::Never);
        if valid == 1 {
            found.merge(best);
        } else {
            let found_text = match valid {
                0 => "Found none valid".to_owned(),
                count => format!("Found {count} valid alternatives"),
            };
            let text =
                format!("{shown} must validate one and only one schema (oneOf). {found_text}");
            found.add(place.general(text));
            if valid == 0 {
                found.merge(best);
            }
        }
    }
    if !junctors.all.is_empty() {
        let mut valid = 0;
        for schema in &junctors.all {
            let own = of(schema);
            valid += usize::from(own.is_valid());
            found.merge(own);
        }
        if valid != junctors.all.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            let text = format!("{shown} must validate all the schemas (allOf){none}");
            found.add(place.general(text));
        }
    }
    if junctors.not.as_ref().is_some_and(|not| of(not).is_valid()) {
        let text = format!("{shown} must not validate the schema (not)");
        found.add(place.general(text));
    }
}

/// Says when the search through alternatives ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    AtFirst,
    Never,
}

/// Returns the first valid alternative, else the one of which most checks were made, and the number
/// of valid ones.
fn alternatives(all: impl Iterator<Item = Found>, stop: Stop) -> (Found, usize) {
    let (mut best, mut valid): (Option<Found>, usize) = (None, 0);
    for found in all {
        if found.is_valid() {
            valid += 1;
            if valid == 1 {
                best = Some(found);
            }
            if stop == Stop::AtFirst {
                break;
            }
        } else if valid == 0
            && best
                .as_ref()
                .is_none_or(|best| found.matches > best.matches)
        {
            best = Some(found);
        }
    }
    (best.unwrap_or_default(), valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::complaints::below_long_names;
    use polyplane_apimachinery::complaints::COUNT_MAX;
    use polyplane_apimachinery::json;

    fn errors(schema: &Value, value: &Value) -> Vec<FieldError> {
        let schema = Schema::compile(schema).expect("it is shallow");
        validate(
            &schema,
            Change::Created(value),
            None,
            &WorkBudget::default(),
        )
    }

    #[test]
    fn defaults_of_another_type_are_compared_with_any_format() {
        let said = |schema: &Value, value: Value| {
            let schema = Schema::compile_for_defaults(schema).expect("it is shallow");
            let budget = WorkBudget::default();
            let found = validate(&schema, Change::Created(&value), None, &budget);
            let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
            texts.join(", ")
        };
        let of = |types: &str, format: &str| json!({"type": types, "format": format});
        let text = said(&of("integer", "float"), Value::Float(1e19));
        assert!(
            text.contains("must be of type float: \"float64\""),
            "{text}"
        );
        let text = said(&of("string", "int64"), Value::Int(1));
        assert!(
            text.contains("must be of type string: \"integer\""),
            "{text}"
        );
        assert_eq!(said(&of("boolean", "x"), "a".into()), "");
        assert_eq!(said(&of("integer", "float"), Value::Int(1)), "");
        // Values of objects are checked by formats that suit their types alone.
        let found = errors(&of("integer", "float"), &Value::Float(1.5));
        let text = found.first().map(ToString::to_string).unwrap_or_default();
        assert!(
            text.contains("must be of type integer: \"number\""),
            "{text}"
        );
    }

    fn array(items: impl Iterator<Item = i64>) -> Value {
        Value::Array(items.map(Value::Int).collect())
    }

    #[test]
    fn complaints_take_a_bounded_amount_of_memory() {
        let mut schema = json!({"type": "array", "items": {"type": "integer"}});
        schema.set(&["items", "enum"], array(0..10_000));
        let found = errors(&schema, &array(20_000..30_000));
        let bytes: usize = found.iter().map(|error| error.to_string().len()).sum();
        assert!(
            !found.is_empty() && bytes < 4 * complaints::BYTES_MAX,
            "{} {bytes}",
            found.len()
        );
        let schema = json!({"type": "array", "items": {"type": "string"}});
        let found = errors(&schema, &array(0..100_000)).len();
        assert_eq!(found, COUNT_MAX);
    }

    #[test]
    fn long_names_do_not_multiply_in_complaints() {
        let schema = json!({"type": "array", "items": {"type": "string"}});
        let (schema, object) = below_long_names(schema, array(0..10_000), 500_000);
        let found = errors(&schema, &object);
        let bytes: usize = found.iter().map(|error| error.to_string().len()).sum();
        assert!(
            found.len() > 100 && bytes < 4 * complaints::BYTES_MAX,
            "{bytes}"
        );
        let missing = json!({"type": "object", "required": [("n".repeat(500_000).as_str())]});
        let of_each = json!({"type": "array", "items": missing});
        let empty = Value::Array(vec![Value::object(); 10_000]);
        let found = errors(&of_each, &empty);
        let bytes: usize = found.iter().map(|error| error.to_string().len()).sum();
        assert!(
            found.len() > 100 && bytes < 4 * complaints::BYTES_MAX,
            "{bytes}"
        );
    }

    #[test]
    fn dropped_complaints_do_not_hide_what_an_update_breaks() {
        let list = json!({"type": "array", "items": {"type": "string"}});
        let schema = json!({"type": "object", "properties": {"a": list, "b": {"type": "string"}}});
        let object = |b: Value| json!({"a": (array(0..20_000)), "b": b});
        let (old, new) = (object("x".into()), object(1i64.into()));
        let known = Schema::compile(&schema).expect("it is shallow");
        let found = validate(
            &known,
            Change::Updated(&new, &old),
            None,
            &WorkBudget::default(),
        );
        let fields: Vec<&str> = found.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["b"]);
    }

    /// Returns whether a check ends because it would take too much work.
    fn is_incomplete(schema: &Value, value: &Value) -> bool {
        let found = errors(schema, value);
        let last = found.last().map(ToString::to_string).unwrap_or_default();
        last.contains(INCOMPLETE)
    }

    #[test]
    fn small_objects_of_a_wide_schema_take_the_budget() {
        let mut schema = json!({"type": "object"});
        let names = (0..20_000).map(|at| (format!("p{at}"), json!({"type": "string"})));
        schema.set(&["properties"], Value::Object(names.collect()));
        let list = |count: usize| Value::Array(vec![Value::object(); count]);
        let schema = json!({"type": "array", "items": schema});
        assert!(is_incomplete(&schema, &list(20_000)));
        assert!(errors(&schema, &list(10)).is_empty());
        let names = (0..20_000).map(|at| Value::from(format!("p{at}")));
        let mut wide = json!({"type": "object"});
        wide.set(&["required"], Value::Array(names.collect()));
        let schema = json!({"type": "array", "items": wide});
        assert!(is_incomplete(&schema, &list(20_000)));
    }

    #[test]
    fn alternatives_do_not_copy_a_long_text_without_end() {
        let branches = (0..20_000i64).map(|at| json!({"minLength": (10_000_000 + at)}));
        let mut schema = json!({"type": "string"});
        schema.set(&["anyOf"], Value::Array(branches.collect()));
        assert!(is_incomplete(&schema, &"x".repeat(1 << 20).into()));
        let long = ["a", "b"].map(|letter| Value::from(letter.repeat(1 << 19)));
        let mut items = json!({"type": "string"});
        items.set(&["enum"], Value::Array(long.to_vec()));
        let schema = json!({"type": "array", "items": items});
        let texts = (0..20_000).map(|at| Value::from(format!("t{at}")));
        assert!(is_incomplete(&schema, &Value::Array(texts.collect())));
    }

    #[test]
    fn alternatives_that_would_take_hours_end_with_a_complaint() {
        let branches = (0..20_000).map(|at| json!({"maximum": (-1 - at)}));
        let mut items = json!({"type": "integer"});
        items.set(&["anyOf"], Value::Array(branches.collect()));
        let mut schema = json!({"type": "array"});
        schema.set(&["items"], items);
        let found = errors(&schema, &array(0..50_000));
        let last = found.last().map(ToString::to_string).unwrap_or_default();
        assert!(last.contains(INCOMPLETE), "{last}");
    }
}

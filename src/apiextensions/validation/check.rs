//! The check of a value. Complaints that an update has not caused are dropped.

use indexmap::IndexMap;

use super::junction::junction;
use super::numbers::number;
use super::schema::{Additional, Bounds, Counterparts, Schema};
use super::types::{types, wrong_type};
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
        wanted: Wanted::Complaints,
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
pub(super) enum Old<'v> {
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

/// The purpose of a check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The complaints that the client gets.
    Complaints,
    /// Whether the value is allowed. No text is made, because all alternatives but one lose in a valid object.
    Verdict,
}

/// The place of a value.
#[derive(Clone, Copy)]
pub(super) struct Place<'p> {
    /// The path as texts show it.
    pub(super) path: &'p str,
    /// The field above the value that is checked.
    root: &'p str,
    /// Whether the value here is a whole object.
    is_top: bool,
    wanted: Wanted,
    /// What the check may still take.
    budget: &'p WorkBudget,
}

impl<'p> Place<'p> {
    /// Returns the same place for a check that makes no texts.
    pub(super) fn for_verdict(self) -> Self {
        Self {
            path: "",
            wanted: Wanted::Verdict,
            ..self
        }
    }

    /// Returns whether the client gets complaints of this check.
    pub(super) fn has_complaints(self) -> bool {
        self.wanted == Wanted::Complaints
    }

    /// Returns whether further checks cannot change the verdict. Those of a value with an older one go on, because
    /// upstream counts them if it excuses the value.
    pub(super) fn is_decided(self, found: &Found, old: Old<'_>) -> bool {
        !self.has_complaints() && !found.is_valid() && matches!(old, Old::None)
    }

    /// Returns the path of a part, which only complaints show.
    fn path_of(self, make: impl FnOnce() -> String) -> String {
        match self.wanted {
            Wanted::Complaints => make(),
            Wanted::Verdict => String::new(),
        }
    }

    /// Returns the place of a part.
    fn below<'q>(self, path: &'q str) -> Place<'q>
    where
        'p: 'q,
    {
        Place {
            path,
            is_top: false,
            ..self
        }
    }

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

    /// Takes the work of a complaint that shows the allowed values. Returns false if less is left.
    fn can_show(&self, allowed: &[Value]) -> bool {
        if !self.has_complaints() {
            return true;
        }
        // To write a value takes more than to compare it.
        let bytes = allowed.iter();
        let bytes = bytes.map(|known| value_bytes(known, complaints::BYTES_MAX));
        let bytes = bytes.sum::<usize>() as u64;
        let work = self.budget.parts(ALLOWED_PARTS * allowed.len());
        work.and_then(|()| self.budget.work(BYTE_WORK * bytes))
            .is_ok()
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
    pub(super) fn error(&self, kind: FieldErrorKind, bad: impl Into<Bad>, text: &str) -> Complaint {
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
    pub(super) matches: usize,
    /// Whether the value is refused, with complaints or without.
    is_refused: bool,
}

impl Found {
    /// Refuses the value. The complaint is made only if the client gets it.
    pub(super) fn refuse(&mut self, place: Place<'_>, complaint: impl FnOnce() -> Complaint) {
        self.is_refused = true;
        if place.has_complaints() {
            self.add(complaint());
        }
    }

    fn add(&mut self, complaint: Complaint) {
        let Complaint { error, text } = complaint;
        if self.said.take(error.bytes()) {
            self.errors.entry(text).or_insert(error);
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.matches += other.matches;
        self.is_refused |= other.is_refused;
        if self.errors.is_empty() {
            self.errors = other.errors;
            self.said = other.said;
            return;
        }
        for (text, error) in other.errors {
            self.add(Complaint { error, text });
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        !self.is_refused
    }

    /// Drops what was found about a value that was there before.
    fn excuse(&mut self) {
        self.errors.clear();
        // What is dropped has no part in the bound: else it would hide what the update has caused.
        self.said = Room::default();
        self.is_refused = false;
    }
}

/// Checks a value, and drops the complaints if it has not changed.
fn node(schema: &Schema, value: &Value, old: Old<'_>, place: Place<'_>, found: &mut Found) {
    let mut own = Found::default();
    plain(schema, value, old, place, &mut own);
    // Each of many alternatives may compare one large value.
    if let Old::Value(old) = old
        && !own.is_valid()
        && place.budget.read(value_bytes(value, usize::MAX)).is_ok()
        && schema.is_unchanged(value, old)
    {
        own.excuse();
    }
    found.merge(own);
}

/// Checks a value, whether it has changed or not.
pub(super) fn plain(
    schema: &Schema,
    value: &Value,
    old: Old<'_>,
    place: Place<'_>,
    found: &mut Found,
) {
    // Alternatives in alternatives check one value many times.
    let path = place.budget.read(place.path.len());
    if path.and(place.budget.parts(NODE_PARTS)).is_err() {
        return;
    }
    if value.is_null() {
        if !schema.types.is_empty() && !schema.nullable {
            found.refuse(place, || wrong_type(schema, value, place));
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
    if place.is_decided(found, old) {
        return;
    }
    if let Some(junctors) = &schema.junctors {
        junction(junctors, value, old, place, found);
    }
    if place.is_decided(found, old) {
        return;
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
    let counted = bounds.map_or(0, |_| text.len());
    let read = counted.saturating_add(format.map_or(0, |format| format.bytes_read(text)));
    if (bounds.is_some() || format.is_some()) && place.budget.read(read).is_err() {
        return;
    }
    if let Some(bounds) = bounds {
        check_text(bounds, text, place, found);
    }
    if let Some(format) = format {
        found.matches += 1;
        if !format.fits(text) {
            found.refuse(place, || {
                let bad = place.shown_text(text);
                let text = format!("must be of type {}: {}", format.name(), quote(text));
                place.error(FieldErrorKind::TypeInvalid, bad, &text)
            });
        }
    }
}

fn enumeration(schema: &Schema, value: &Value, place: Place<'_>, found: &mut Found) {
    let allowed = &schema.allowed;
    if allowed.is_empty() || place.budget.parts(allowed.len()).is_err() {
        return;
    }
    // Lists and objects may be equal to each allowed one up to their last part.
    let bytes = match value {
        Value::Array(_) | Value::Object(_) => value_bytes(value, usize::MAX),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => 0,
    };
    let work = place.budget.read(bytes.saturating_mul(allowed.len()));
    if work.is_err() || allowed.iter().any(|known| equals(known, value)) {
        return;
    }
    if !place.can_show(allowed) {
        return;
    }
    found.refuse(place, || {
        let shown = allowed.iter().map(|known| match known {
            Value::String(text) => text.to_string(),
            known => json::to_string(known),
        });
        let shown: Vec<String> = shown.collect();
        let error = FieldError::not_supported(&Path::NIL, place.shown(value), &shown);
        let text = format!("{} in body should be one of {shown:?}", place.path);
        place.complaint(place.path, error, text)
    });
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
        return found.refuse(place, || {
            let error = FieldError::too_long(&Path::NIL, usize::try_from(max).unwrap_or(0));
            let text = format!("{} in body should be at most {max} chars long", place.path);
            place.complaint(place.path, error, text)
        });
    }
    if let Some(min) = bounds.length.min
        && length() < min
    {
        return found.refuse(place, || {
            let bad = place.shown_text(text);
            place.invalid(bad, &format!("should be at least {min} chars long"))
        });
    }
    let Some(pattern) = &bounds.pattern else {
        return;
    };
    let matched = pattern.is_match(text, place.budget);
    if matches!(matched, Ok(true)) {
        return;
    }
    found.refuse(place, || {
        let wanted = pattern.text();
        let detail = match matched {
            Ok(_) => format!("should match '{wanted}'"),
            Err(SearchFailed::TooMuchWork(why)) => format!("should match '{wanted}', but {why}"),
            Err(why @ SearchFailed::Refused(_)) => {
                format!("should match '{wanted}, but pattern is invalid: {why}'")
            }
        };
        place.invalid(place.shown_text(text), &detail)
    });
}

fn list(schema: &Schema, items: &[Value], old: Old<'_>, place: Place<'_>, found: &mut Found) {
    if let Some(of) = &schema.items {
        let olds = old.items(schema);
        for (at, item) in items.iter().enumerate() {
            if place.is_decided(found, old) {
                return;
            }
            let old = olds.as_ref().and_then(|olds| olds.of(item));
            let path = place.path_of(|| complaints::item(place.path, at));
            let below = place.below(&path);
            node(of, item, Old::of(old.map(|(old, _)| old)), below, found);
        }
    }
    let Some(bounds) = schema.bounds.as_deref() else {
        return;
    };
    let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(min) = bounds.items.min.filter(|min| size < *min) {
        found.refuse(place, || {
            place.invalid(size, &format!("should have at least {min} items"))
        });
    }
    if let Some(max) = bounds.items.max.filter(|max| size > *max) {
        found.refuse(place, || {
            let text = format!("{} in body should have at most {max} items", place.path);
            too_many(place, items.len(), max, text)
        });
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
            found.refuse(place, || {
                place.invalid(size, &format!("should have at least {min} properties"))
            });
        }
        if let Some(max) = bounds.properties.max.filter(|max| size > *max) {
            found.refuse(place, || {
                let text = format!(
                    "{} in body should have at most {max} properties",
                    place.path
                );
                too_many(place, members.len(), max, text)
            });
        }
    }
    others(schema, members, old, place, found);
    for (name, of) in &schema.properties {
        if place.is_decided(found, old) {
            return;
        }
        let Some(value) = members.get(name) else {
            continue;
        };
        let path = place.path_of(|| match place.path {
            "" => complaints::step(name).into_owned(),
            path => complaints::member(path, name),
        });
        // A change of these two cannot be seen: both objects are in one version.
        let old = match place.is_top && matches!(name.as_str(), "kind" | "apiVersion") {
            true => Old::None,
            false => old.member(name),
        };
        node(of, value, old, place.below(&path), found);
    }
    missing(schema, members, place, found);
}

/// Checks the members that are not properties.
fn others(schema: &Schema, members: &Map, old: Old<'_>, place: Place<'_>, found: &mut Found) {
    // Each of many alternatives would walk a large object, although mostly all others are allowed.
    let is_free = matches!(schema.additional, Additional::Allowed);
    if is_free || place.budget.parts(members.len()).is_err() {
        return;
    }
    for (name, value) in members.iter() {
        if place.is_decided(found, old) {
            return;
        }
        if schema.property(name).is_some() {
            continue;
        }
        let Additional::Of(of) = &schema.additional else {
            found.refuse(place, || forbidden(name, place));
            continue;
        };
        let path = place.path_of(|| complaints::member(place.path, name));
        node(of, value, old.member(name), place.below(&path), found);
    }
}

fn forbidden(name: &str, place: Place<'_>) -> Complaint {
    let path = complaints::member(place.path, name);
    let text = format!("{path} in body is a forbidden property");
    let bad = place.shown_text(name);
    let error = FieldError::invalid(&Path::NIL, bad, text.clone());
    place.complaint(place.path, error, text)
}

/// Complains about required members that are not there.
fn missing(schema: &Schema, members: &Map, place: Place<'_>, found: &mut Found) {
    let required = schema.required.iter();
    for name in required.filter(|name| members.get(name).is_none()) {
        if place.budget.is_spent() {
            return;
        }
        found.refuse(place, || {
            let path = complaints::member(place.path, name);
            let error = FieldError::required(&Path::NIL, "");
            let text = format!("{path} in body is required");
            place.complaint(&path, error, text)
        });
        if !place.has_complaints() {
            return;
        }
    }
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

    /// Returns a schema of objects with a kind, whose alternatives say by the kind what is required.
    fn by_kind(alternatives: i64) -> Value {
        let branches = (0..alternatives).map(|at| {
            let kinds = (0..10).map(|kind| Value::from(format!("kind-{at}-{kind}")));
            let mut branch = json!({"required": ["kind"]});
            let kinds = Value::Array(kinds.collect());
            branch.set(&["properties", "kind", "enum"], kinds);
            branch
        });
        let mut schema = json!({"type": "object", "properties": {"kind": {"type": "string"}}});
        schema.set(&["oneOf"], Value::Array(branches.collect()));
        schema
    }

    #[test]
    fn alternatives_that_lose_in_a_valid_object_cost_no_texts() {
        let schema = json!({"type": "array", "items": (by_kind(20))});
        let items = (0..5_000).map(|at| json!({"kind": (format!("kind-{}-7", at % 20))}));
        let found = errors(&schema, &Value::Array(items.collect()));
        assert!(found.is_empty(), "{:?}", found.first());
    }

    #[test]
    fn a_value_that_no_alternative_allows_gets_the_complaints_of_one() {
        let texts = |schema: &Value, value: &Value| -> Vec<String> {
            let found = errors(schema, value);
            found.into_iter().map(|error| error.detail).collect()
        };
        let branches = json!([{"minLength": 3i64}, {"type": "integer"}]);
        let none = " in body should be at least 3 chars long";
        let any = json!({"type": "string", "anyOf": (branches.clone())});
        let said = "\"\" must validate at least one schema (anyOf)";
        assert_eq!(texts(&any, &"a".into()), [said, none]);
        let one = json!({"type": "string", "oneOf": (branches.clone())});
        let said = "\"\" must validate one and only one schema (oneOf). Found none valid";
        assert_eq!(texts(&one, &"a".into()), [said, none]);
        assert!(texts(&one, &"abc".into()).is_empty());
        let not = json!({"type": "string", "not": {"anyOf": (branches)}});
        assert!(texts(&not, &"a".into()).is_empty());
        let said = "\"\" must not validate the schema (not)";
        assert_eq!(texts(&not, &"abc".into()), [said]);
    }

    #[test]
    fn an_alternative_excuses_what_an_update_leaves_as_it_was() {
        let branch = json!({"properties": {"a": {"minLength": 5i64}}});
        let schema = json!({"type": "object", "anyOf": [(branch)]});
        let known = Schema::compile(&schema).expect("it is shallow");
        let is_allowed = |new: &Value, old: &Value| {
            let change = Change::Updated(new, old);
            validate(&known, change, None, &WorkBudget::default()).is_empty()
        };
        let old = json!({"a": "x", "b": 1i64});
        assert!(is_allowed(&json!({"a": "x", "b": 2i64}), &old));
        assert!(!is_allowed(&json!({"a": "y", "b": 1i64}), &old));
    }

    #[test]
    fn comparisons_of_large_values_take_the_budget() {
        let long = || Value::Array(vec![Value::from("x".repeat(1 << 20))]);
        let branch = json!({"properties": {"a": {"maxItems": 0i64}}});
        let mut schema = json!({"type": "object"});
        schema.set(&["oneOf"], Value::Array(vec![branch; 2_000]));
        let known = Schema::compile(&schema).expect("it is shallow");
        let object = |b: i64| json!({"a": (long()), "b": b});
        let (old, new, budget) = (object(1), object(2), WorkBudget::default());
        validate(&known, Change::Updated(&new, &old), None, &budget);
        assert!(budget.is_spent());
        let lists = |count: i64| {
            let begin = "x".repeat(10_000);
            let list = |at: i64| Value::Array(vec![Value::from(format!("{begin}{at:04}"))]);
            Value::Array((0..count).map(list).collect())
        };
        let mut items = json!({"type": "array"});
        items.set(&["enum"], lists(1_000));
        let schema = json!({"type": "array", "items": items});
        assert!(is_incomplete(&schema, &lists(400)));
        assert!(errors(&schema, &lists(10)).is_empty());
    }

    #[test]
    fn formats_of_a_long_text_take_the_budget() {
        let format = json!({"format": "duration"});
        let mut schema = json!({"type": "string"});
        schema.set(&["anyOf"], Value::Array(vec![format; 100]));
        assert!(is_incomplete(&schema, &"1 ".repeat(1 << 20).into()));
        assert!(errors(&schema, &"1 day".into()).is_empty());
    }

    #[test]
    fn formats_whose_checks_are_short_leave_the_budget_to_others() {
        let of = |junctor: &str, format: &str, count: usize| {
            let mut schema = Value::object();
            let branch = json!({"format": (format)});
            schema.set(&[junctor], Value::Array(vec![branch; count]));
            schema
        };
        let long = Value::from("A".repeat(1_500_000));
        assert!(errors(&of("allOf", "byte", 20), &long).is_empty());
        assert!(errors(&of("allOf", "password", 10_000), &long).is_empty());
        let none = json!({"not": (of("anyOf", "hostname", 10_000))});
        assert!(errors(&none, &long).is_empty());
    }

    /// Else the search for members that are not properties takes 10¹⁰ steps.
    #[test]
    fn alternatives_that_allow_all_members_do_not_walk_a_large_object() {
        let branch = json!({"required": ["x"]});
        let mut schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        schema.set(&["anyOf"], Value::Array(vec![branch; 50_000]));
        let members = (0..200_000i64).map(|at| (format!("m{at}"), Value::Int(at)));
        let object = Value::Object(members.collect());
        let said: Vec<String> = errors(&schema, &object)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("must validate at least one schema"));
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

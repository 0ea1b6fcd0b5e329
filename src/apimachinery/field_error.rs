//! Errors about one field of an object, with the kinds and texts of upstream's validation.
//!
//! Owns the name of a field ([`Path`]) and the text of a complaint ([`FieldError`]). Which checks
//! apply to which field is decided by the schema engine and the strategies.

use std::fmt;

use crate::complaints::{
    BYTES_MAX, BoundedText, PATH_BYTES_MAX, STEP_BYTES_MAX, shortened, value_bytes,
};
use crate::quote::quote;
use crate::value::Value;

/// The kind of an error about a field; it becomes the `reason` of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldErrorKind {
    /// The value names something that does not exist.
    NotFound,
    /// The field must have a value.
    Required,
    /// The value is used already.
    Duplicate,
    /// The value is malformed.
    Invalid,
    /// The value is not among the allowed ones.
    NotSupported,
    /// The field must not be set, or not to this value.
    Forbidden,
    /// The value is too long.
    TooLong,
    /// The value is too short.
    TooShort,
    /// The list has too many items.
    TooMany,
    /// The list has too few items.
    TooFew,
    /// The check itself failed with an error.
    Internal,
    /// The value is of the wrong type.
    TypeInvalid,
}

impl FieldErrorKind {
    /// Returns the machine-readable reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooShort => "FieldValueTooShort",
            Self::TooMany => "FieldValueTooMany",
            Self::TooFew => "FieldValueTooFew",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    /// Returns the words with which a message begins.
    pub fn words(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooShort => "Too short",
            Self::TooMany => "Too many",
            Self::TooFew => "Too few",
            Self::Internal => "Internal error",
        }
    }

    /// Returns true if messages of this kind show the bad value.
    fn shows_value(self) -> bool {
        match self {
            Self::Required | Self::Forbidden | Self::TooLong | Self::TooShort | Self::Internal => {
                false
            }
            Self::NotFound
            | Self::Duplicate
            | Self::Invalid
            | Self::NotSupported
            | Self::TooMany
            | Self::TooFew
            | Self::TypeInvalid => true,
        }
    }
}

/// The value that a message complains about.
#[derive(Clone, Debug, PartialEq)]
pub enum Bad {
    /// The message shows no value.
    Omitted,
    /// A value of a plain type. Text is quoted as Go quotes it, numbers are printed as Go prints
    /// them.
    Plain(Value),
    /// A value of a named type, which upstream shows as JSON even if it is text.
    Json(Value),
    /// The JSON of a value that only the engine which knows its fields can write.
    Shown(Box<str>),
    /// A value of a type that schemas define, or a list of such values. The check that refuses the
    /// value has no schemas: [`Schemas::show`](crate::schema::Schemas::show) writes the text
    /// afterwards.
    Typed {
        /// The name of the definition.
        definition: &'static str,
        /// The value, or the list of values.
        value: Value,
    },
}

impl<T: Into<Value>> From<T> for Bad {
    fn from(value: T) -> Self {
        Self::Plain(value.into())
    }
}

impl Bad {
    /// Returns about the bytes of the text, without writing it.
    fn bytes(&self) -> usize {
        match self {
            Self::Omitted => 0,
            Self::Shown(text) => text.len(),
            // Of the value itself, only what it refers to is text.
            Self::Plain(value) | Self::Json(value) | Self::Typed { value, .. } => {
                value_bytes(value, BYTES_MAX) - size_of::<Value>()
            }
        }
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Omitted => Ok(()),
            Self::Shown(text) => f.write_str(text),
            Self::Plain(Value::String(text)) => f.write_str(&quote(text)),
            Self::Plain(Value::Float(number)) => {
                let mut out = Vec::new();
                crate::json::write_float_verb(*number, &mut out);
                f.write_str(&String::from_utf8_lossy(&out))
            }
            Self::Plain(value) | Self::Json(value) => f.write_str(&crate::json::to_string(value)),
            Self::Typed { definition, value } => {
                debug_assert!(false, "no schemas have written the text of a {definition}");
                f.write_str(&crate::json::to_string(value))
            }
        }
    }
}

/// One complaint about one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The kind of the error.
    pub kind: FieldErrorKind,
    /// The path of the field: `spec.containers[0].name`, or `<nil>` for the object itself.
    pub field: String,
    /// The value that was found.
    pub bad: Bad,
    /// The rest of the sentence; may be empty.
    pub detail: String,
    /// True if a declaration of the schema makes the same complaint, perhaps in other words. Then
    /// the declaration's words are used.
    pub covered: bool,
}

impl FieldError {
    /// Creates an error of any kind; the other constructors are shorter.
    pub fn new(
        kind: FieldErrorKind,
        path: &Path<'_>,
        bad: impl Into<Bad>,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            field: path.text(),
            bad: bad.into(),
            detail: detail.into(),
            covered: false,
        }
    }

    /// Returns the same error, marked as one that a declaration of the schema makes too.
    #[must_use]
    pub fn covered(mut self) -> Self {
        self.covered = true;
        self
    }

    /// Reports that the value has the wrong type.
    pub fn type_invalid(path: &Path<'_>, bad: impl Into<Bad>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::TypeInvalid, path, bad, detail)
    }

    /// Reports that the value names something that does not exist.
    pub fn not_found(path: &Path<'_>, bad: impl Into<Bad>) -> Self {
        Self::new(FieldErrorKind::NotFound, path, bad, "")
    }

    /// Reports that the field must have a value.
    pub fn required(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Required, path, "", detail)
    }

    /// Reports that the value is used already.
    pub fn duplicate(path: &Path<'_>, bad: impl Into<Bad>) -> Self {
        Self::new(FieldErrorKind::Duplicate, path, bad, "")
    }

    /// Reports that the value is malformed.
    pub fn invalid(path: &Path<'_>, bad: impl Into<Bad>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Invalid, path, bad, detail)
    }

    /// Reports that the value is not one of `valid`, which are listed in the order given.
    pub fn not_supported<S: AsRef<str>>(path: &Path<'_>, bad: impl Into<Bad>, valid: &[S]) -> Self {
        let mut detail = String::new();
        for value in valid {
            detail.push_str(if detail.is_empty() {
                "supported values: "
            } else {
                ", "
            });
            detail.push_str(&quote(value.as_ref()));
        }
        Self::new(FieldErrorKind::NotSupported, path, bad, detail)
    }

    /// Reports the same as [`FieldError::not_supported`], with the values in sorted order, as
    /// upstream does if the allowed values are a set.
    pub fn not_supported_sorted<S: AsRef<str>>(
        path: &Path<'_>,
        bad: impl Into<Bad>,
        valid: &[S],
    ) -> Self {
        let mut valid: Vec<&str> = valid.iter().map(AsRef::as_ref).collect();
        valid.sort_unstable();
        Self::not_supported(path, bad, &valid)
    }

    /// Reports that the field must not be set, or not to this value.
    pub fn forbidden(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Forbidden, path, "", detail)
    }

    /// Reports that the value has more than `bytes_max` bytes.
    pub fn too_long(path: &Path<'_>, bytes_max: usize) -> Self {
        let detail = format!(
            "may not be more than {bytes_max} {}",
            plural(bytes_max, "byte", "bytes")
        );
        Self::new(FieldErrorKind::TooLong, path, "<value omitted>", detail)
    }

    /// Reports that the value has more than `characters_max` characters.
    pub fn too_long_characters(path: &Path<'_>, characters_max: usize) -> Self {
        let unit = plural(characters_max, "character", "characters");
        let detail = format!("may not be more than {characters_max} {unit}");
        Self::new(FieldErrorKind::TooLong, path, "<value omitted>", detail)
    }

    /// Reports that the value has fewer than `characters_min` characters.
    pub fn too_short(path: &Path<'_>, bad: impl Into<Bad>, characters_min: usize) -> Self {
        let unit = plural(characters_min, "character", "characters");
        let detail = format!("must be at least {characters_min} {unit}");
        Self::new(FieldErrorKind::TooShort, path, bad, detail)
    }

    /// Reports that the list has `items` items, more than `items_max`.
    pub fn too_many(path: &Path<'_>, items: usize, items_max: usize) -> Self {
        let detail = format!(
            "must have at most {items_max} {}",
            plural(items_max, "item", "items")
        );
        Self::new(FieldErrorKind::TooMany, path, count(items), detail)
    }

    /// Reports that the list has `items` items, fewer than `items_min`.
    pub fn too_few(path: &Path<'_>, items: usize, items_min: usize) -> Self {
        let detail = format!(
            "must have at least {items_min} {}",
            plural(items_min, "item", "items")
        );
        Self::new(FieldErrorKind::TooFew, path, count(items), detail)
    }

    /// Reports that the check itself failed.
    pub fn internal(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Internal, path, Bad::Omitted, detail)
    }

    /// Returns about the bytes of the whole message, without writing it.
    pub fn bytes(&self) -> usize {
        self.field.len() + self.bad.bytes() + self.detail.len()
    }

    /// Returns the message without the field's name: the message of a cause.
    pub fn body(&self) -> String {
        let mut body = String::from(self.kind.words());
        if self.kind.shows_value() && self.bad != Bad::Omitted {
            body.push_str(": ");
            body.push_str(&self.bad.to_string());
        }
        if !self.detail.is_empty() {
            body.push_str(": ");
            body.push_str(&self.detail);
        }
        body
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

impl std::error::Error for FieldError {}

/// Returns one message for a list of errors: the message of a single error, else all messages in
/// brackets, each once. `None` for an empty list.
pub fn aggregate(errors: &[FieldError]) -> Option<String> {
    let mut messages: Vec<String> = Vec::with_capacity(errors.len());
    let mut seen = std::collections::HashSet::new();
    for error in errors {
        let message = error.to_string();
        if seen.insert(message.clone()) {
            messages.push(message);
        }
    }
    match messages.as_slice() {
        [] => None,
        [single] => Some(single.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

fn plural(count: usize, one: &'static str, several: &'static str) -> &'static str {
    if count == 1 { one } else { several }
}

fn count(items: usize) -> i64 {
    i64::try_from(items).unwrap_or(i64::MAX)
}

/// The path of a field: a chain of elements on the stack, which becomes text only if there is a
/// complaint.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: PathElement<'a>,
}

#[derive(Clone, Copy, Debug)]
enum PathElement<'a> {
    Nothing,
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The path of the object itself, `<nil>` in messages. Paths of its fields begin with the
    /// field's name.
    pub const NIL: Path<'static> = Path {
        parent: None,
        step: PathElement::Nothing,
    };

    /// Creates the path of a field of the object; dots in the name may lead further down.
    pub const fn new(name: &'a str) -> Self {
        Self {
            parent: None,
            step: PathElement::Name(name),
        }
    }

    /// Returns the path of the field `name` below this path.
    #[must_use]
    pub const fn child<'b>(&'b self, name: &'b str) -> Path<'b> {
        Path {
            parent: Some(self),
            step: PathElement::Name(name),
        }
    }

    /// Returns the path of the item `index` of the list at this path.
    #[must_use]
    pub const fn index(&self, index: usize) -> Path<'_> {
        Path {
            parent: Some(self),
            step: PathElement::Index(index),
        }
    }

    /// Returns the path of the entry `key` of the map at this path.
    #[must_use]
    pub const fn key<'b>(&'b self, key: &'b str) -> Path<'b> {
        Path {
            parent: Some(self),
            step: PathElement::Key(key),
        }
    }

    /// Returns the path as texts show it. A step that is longer than 1 KiB, and a path that is longer than 8 KiB, is
    /// shortened: hundreds of complaints may show the same member name, which may take a whole body.
    fn text(&self) -> String {
        let mut out = BoundedText::new(PATH_BYTES_MAX);
        if !self.write(&mut out) {
            out.push("<nil>");
        }
        out.into_string()
    }

    /// Writes the elements of the path. Returns true if there were any.
    fn write(&self, out: &mut BoundedText) -> bool {
        let before = self.parent.is_some_and(|parent| parent.write(out));
        match self.step {
            PathElement::Nothing => return before,
            // Go prints an element without a name like the key of a map.
            PathElement::Name("") => out.push("[]"),
            // May be a whole path.
            PathElement::Name(name) if self.parent.is_none() => out.push(name),
            PathElement::Name(name) => {
                if before {
                    out.push(".");
                }
                out.push(&shortened(name, STEP_BYTES_MAX));
            }
            PathElement::Index(index) => out.push(&format!("[{index}]")),
            PathElement::Key(key) => {
                out.push("[");
                out.push(&shortened(key, STEP_BYTES_MAX));
                out.push("]");
            }
        }
        true
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn a_path_reads_as_upstream_prints_it() {
        let spec = Path::new("spec");
        let containers = spec.child("containers");
        let first = containers.index(0);
        assert_eq!(first.child("name").to_string(), "spec.containers[0].name");
        assert_eq!(spec.key("a/b").to_string(), "spec[a/b]");
        assert_eq!(Path::NIL.to_string(), "<nil>");
        assert_eq!(Path::NIL.child("key").to_string(), "key");
        assert_eq!(Path::NIL.index(1).child("x").to_string(), "[1].x");
        assert_eq!(Path::new("").to_string(), "[]");
    }

    #[test]
    fn long_steps_and_paths_are_shortened() {
        let name = "n".repeat(1 << 20);
        let fits = "f".repeat(STEP_BYTES_MAX);
        let spec = Path::new("spec");
        let cut = format!("{}…", "n".repeat(STEP_BYTES_MAX));
        assert_eq!(spec.child(&fits).to_string(), format!("spec.{fits}"));
        assert_eq!(
            spec.child(&name).index(7).to_string(),
            format!("spec.{cut}[7]")
        );
        assert_eq!(
            spec.key(&name).child("a").to_string(),
            format!("spec[{cut}].a")
        );
        let error = FieldError::required(&spec.child(&name), "");
        assert_eq!(error.field, format!("spec.{cut}"));
        fn deep(path: &Path<'_>, name: &str, levels: usize) -> String {
            match levels {
                0 => path.to_string(),
                _ => deep(&path.child(name), name, levels - 1),
            }
        }
        let text = deep(&spec, &name, 100);
        assert!(text.len() <= PATH_BYTES_MAX + "…".len() && text.ends_with('…'));
        assert!(text.starts_with(&format!("spec.{cut}.{cut}.")));
    }

    #[test]
    fn messages_read_as_upstream_prints_them() {
        let path = Path::new("spec.x");
        let cases = [
            (FieldError::required(&path, ""), "spec.x: Required value"),
            (
                FieldError::required(&path, "must be set"),
                "spec.x: Required value: must be set",
            ),
            (
                FieldError::invalid(&path, "a\"<b", "no"),
                r#"spec.x: Invalid value: "a\"<b": no"#,
            ),
            (
                FieldError::invalid(&path, Bad::Json("a<".into()), "no"),
                r#"spec.x: Invalid value: "a\u003c": no"#,
            ),
            (
                FieldError::invalid(&path, 7i64, "no"),
                "spec.x: Invalid value: 7: no",
            ),
            (
                FieldError::invalid(&path, 1e21, "no"),
                "spec.x: Invalid value: 1e+21: no",
            ),
            (
                FieldError::invalid(&path, 0.00001, "no"),
                "spec.x: Invalid value: 1e-05: no",
            ),
            (
                FieldError::invalid(&path, Value::Null, "no"),
                "spec.x: Invalid value: null: no",
            ),
            (
                FieldError::invalid(&path, json!({"a": [1i64]}), "no"),
                r#"spec.x: Invalid value: {"a":[1]}: no"#,
            ),
            (
                FieldError::invalid(&path, Bad::Omitted, "no"),
                "spec.x: Invalid value: no",
            ),
            (
                FieldError::not_supported_sorted(&path, "z", &["b", "a"]),
                r#"spec.x: Unsupported value: "z": supported values: "a", "b""#,
            ),
            (
                FieldError::not_supported::<&str>(&path, "z", &[]),
                r#"spec.x: Unsupported value: "z""#,
            ),
            (
                FieldError::too_long(&path, 1),
                "spec.x: Too long: may not be more than 1 byte",
            ),
            (
                FieldError::too_many(&path, 3, 2),
                "spec.x: Too many: 3: must have at most 2 items",
            ),
            (
                FieldError::too_few(&path, 0, 1),
                "spec.x: Too few: 0: must have at least 1 item",
            ),
            (
                FieldError::too_short(&path, "a", 2),
                "spec.x: Too short: must be at least 2 characters",
            ),
            (
                FieldError::duplicate(&path, "a"),
                r#"spec.x: Duplicate value: "a""#,
            ),
            (
                FieldError::not_found(&path, "a"),
                r#"spec.x: Not found: "a""#,
            ),
            (FieldError::forbidden(&path, "no"), "spec.x: Forbidden: no"),
            (
                FieldError::type_invalid(&path, true, "no"),
                "spec.x: Invalid value: true: no",
            ),
            (
                FieldError::internal(&path, "broken"),
                "spec.x: Internal error: broken",
            ),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn an_aggregate_names_every_message_once() {
        let path = Path::new("a");
        let one = FieldError::required(&path, "");
        let two = FieldError::forbidden(&path, "no");
        assert_eq!(aggregate(&[]), None);
        assert_eq!(
            aggregate(&[one.clone(), one.clone()]).as_deref(),
            Some("a: Required value")
        );
        assert_eq!(
            aggregate(&[one.clone(), two, one]).as_deref(),
            Some("[a: Required value, a: Forbidden: no]")
        );
    }
}

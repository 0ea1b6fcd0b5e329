//! JSON patch as the API server applies it.
//!
//! The API server's library is laxer than RFC 6902: indices may be negative, `replace` may add a
//! member, and the part of a path before its first slash is ignored. Its limits and texts are kept
//! here.

mod decode;
mod nesting;

use crate::json;
use crate::strconv::{NumberError, atoi};
use crate::value::{Value, Weight};

pub use decode::FieldCheck;
use nesting::Nesting;

/// Number of operations that one patch may have, as upstream limits it.
pub const OPERATIONS_MAX: usize = 10_000;
/// Bytes by which all copy operations together may make an object grow, as upstream limits it.
pub const COPIED_BYTES_MAX: usize = 3 << 20;
/// Values that all operations together may shift to make room or close a gap, which takes about a second.
const SHIFTED_MAX: usize = 200_000_000;

/// The reason why a patch cannot be read. All are answered as a bad request, except too many
/// operations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The body is not JSON.
    #[error("invalid JSON patch")]
    NotJson(#[source] json::JsonError),
    /// The body is not a list of operations. The text is upstream's and is shown to the client.
    #[error("{0}")]
    Shape(String),
    /// There are more operations than [`OPERATIONS_MAX`]: the request is too large.
    #[error("The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {0}")]
    TooMany(usize),
}

/// The reason why a patch does not fit the object. It is answered as unprocessable with this text,
/// which is that of upstream's library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ApplyError(pub String);

/// The reason why `path` or `from` of an operation cannot be used, with the text of upstream's
/// library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum OperandError {
    #[error("operation missing path field: missing value")]
    PathMissing,
    #[error("operation, missing from field: missing value")]
    FromMissing,
    /// It has this type instead of text.
    #[error("json: cannot unmarshal {0} into Go value of type string")]
    WrongType(&'static str),
}

/// The reason why a container lacks a member or does not accept one, with the text of upstream's
/// library.
#[derive(Debug, thiserror::Error)]
enum MemberError {
    /// The key is not an index of an array.
    #[error(transparent)]
    NoIndex(#[from] NumberError),
    /// The key of an item to be added is not an index of an array.
    #[error("value was not a proper array index: '{key}': {fault}")]
    NoNewIndex { key: String, fault: NumberError },
    /// The array has fewer items than the index.
    #[error("Unable to access invalid index: {0}: invalid index referenced")]
    OutOfBounds(i64),
    /// The object does not have the key that is to be removed.
    #[error("Unable to remove nonexistent key: {0}: missing value")]
    NoKey(String),
    /// Large lists and objects were changed too often at their beginning.
    #[error("the operations shift too many values")]
    Shifted,
    /// Values would lie deeper in one another than a body's may.
    #[error("exceeded max depth")]
    TooDeep,
}

/// A patch after parsing.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPatch {
    operations: Vec<Operation>,
    /// The complaints about unknown and repeated fields, for `fieldValidation`.
    pub strict_errors: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Operation {
    kind: String,
    path: Result<String, OperandError>,
    from: Result<String, OperandError>,
    /// The value; `None` if the operation has none, which counts as null.
    value: Option<Value>,
}

/// What the operations of a patch have taken.
#[derive(Debug, Default)]
struct Spent {
    copied_bytes: usize,
    /// Values that were moved to make room, or looked at to measure the object.
    shifted: usize,
}

impl Spent {
    /// Counts an item that is added or removed in front of `behind` others.
    fn shift(&mut self, behind: usize) -> Result<(), MemberError> {
        self.shifted = self.shifted.saturating_add(behind);
        match self.shifted > SHIFTED_MAX {
            true => Err(MemberError::Shifted),
            false => Ok(()),
        }
    }
}

impl JsonPatch {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// Returns an error if the body is not a list of operations, or is one of too many.
    pub fn parse(
        body: &[u8],
        limits: &json::Limits,
        check: FieldCheck,
    ) -> Result<Self, DecodeError> {
        decode::decode(body, limits, check)
    }

    /// Returns what the values of the operations take.
    #[must_use]
    pub fn weight(&self) -> Weight {
        let values = self.operations.iter();
        Weight::of_all(values.filter_map(|operation| operation.value.as_ref()))
    }

    /// Returns whether the patch may make an object larger by more than its own length.
    #[must_use]
    pub fn copies(&self) -> bool {
        let mut operations = self.operations.iter();
        operations.any(|operation| operation.kind == "copy")
    }

    /// Returns the object after all operations.
    ///
    /// # Errors
    /// Returns the error of the first operation that does not fit. The object is then lost, so pass
    /// a copy.
    pub fn apply(&self, mut document: Value) -> Result<Value, ApplyError> {
        let mut spent = Spent::default();
        let mut nesting = Nesting::of(&document);
        for operation in &self.operations {
            operation.apply(&mut document, &mut spent)?;
            nesting.check(operation, &document, &mut spent)?;
        }
        Ok(document)
    }
}

impl Operation {
    fn apply(&self, document: &mut Value, spent: &mut Spent) -> Result<(), ApplyError> {
        match self.kind.as_str() {
            "add" => self.add(document, spent),
            "remove" => self.remove(document, spent),
            "replace" => self.replace(document),
            "move" => self.move_value(document, spent),
            "test" => self.test(document),
            "copy" => self.copy(document, spent),
            other => Err(ApplyError(format!("Unexpected kind: {other}"))),
        }
    }

    fn value(&self) -> Value {
        self.value.clone().unwrap_or_default()
    }

    fn add(&self, document: &mut Value, spent: &mut Spent) -> Result<(), ApplyError> {
        let Ok(path) = &self.path else {
            return Err(ApplyError(
                "add operation failed to decode path: missing value".into(),
            ));
        };
        let Some((container, key)) = find(document, path) else {
            return Err(ApplyError(format!(
                "add operation does not apply: doc is missing path: \"{path}\": missing value"
            )));
        };
        add(container, &key, self.value(), spent)
            .map_err(|error| ApplyError(format!("error in add for path: '{path}': {error}")))
    }

    fn remove(&self, document: &mut Value, spent: &mut Spent) -> Result<(), ApplyError> {
        let Ok(path) = &self.path else {
            return Err(ApplyError(
                "remove operation failed to decode path: missing value".into(),
            ));
        };
        let Some((container, key)) = find(document, path) else {
            return Err(ApplyError(format!(
                "remove operation does not apply: doc is missing path: \"{path}\": missing value"
            )));
        };
        remove(container, &key, spent)
            .map(drop)
            .map_err(|error| ApplyError(format!("error in remove for path: '{path}': {error}")))
    }

    fn replace(&self, document: &mut Value) -> Result<(), ApplyError> {
        let path = self.path.as_ref().map_err(|error| {
            ApplyError(format!("replace operation failed to decode path: {error}"))
        })?;
        if path.is_empty() {
            return match &self.value {
                Some(value @ (Value::Object(_) | Value::Array(_))) => {
                    *document = value.clone();
                    Ok(())
                }
                // The odd ending is part of upstream's text.
                _ => Err(ApplyError(
                    "replace operation value must be object or array: %!w(<nil>)".into(),
                )),
            };
        }
        let missing = |what| {
            ApplyError(format!(
                "replace operation does not apply: doc is missing {what}: {path}: missing value"
            ))
        };
        let Some((container, key)) = find(document, path) else {
            return Err(missing("path"));
        };
        match container {
            Value::Object(map) => {
                map.insert(key, self.value());
            }
            container => {
                let items = container.as_array_mut().ok_or_else(|| missing("path"))?;
                let index = existing_index(&key, items.len()).map_err(|_| missing("key"))?;
                items[index] = self.value();
            }
        }
        Ok(())
    }

    fn move_value(&self, document: &mut Value, spent: &mut Spent) -> Result<(), ApplyError> {
        let from = self.from.as_ref().map_err(|error| {
            ApplyError(format!("move operation failed to decode from: {error}"))
        })?;
        let Some((container, key)) = find(document, from) else {
            return Err(ApplyError(format!(
                "move operation does not apply: doc is missing from path: {from}: missing value"
            )));
        };
        let failed = |key: &str, error: MemberError| {
            ApplyError(format!("error in move for path: '{key}': {error}"))
        };
        let value = remove(container, &key, spent).map_err(|error| failed(&key, error))?;
        let path = self.path.as_ref().map_err(|error| {
            ApplyError(format!("move operation failed to decode path: {error}"))
        })?;
        let Some((container, key)) = find(document, path) else {
            return Err(ApplyError(format!(
                "move operation does not apply: doc is missing destination path: {path}: missing value"
            )));
        };
        add(container, &key, value, spent).map_err(|error| failed(path, error))
    }

    fn test(&self, document: &mut Value) -> Result<(), ApplyError> {
        let path = self.path.as_ref().map_err(|error| {
            ApplyError(format!("test operation failed to decode path: {error}"))
        })?;
        let value = self.value();
        let equal = if path.is_empty() {
            *document == value
        } else {
            let Some((container, key)) = find(document, path) else {
                return Err(ApplyError(format!(
                    "test operation does not apply: is missing path: {path}: missing value"
                )));
            };
            let found = get(container, &key).map_err(|error| {
                ApplyError(format!("error in test for path: '{path}': {error}"))
            })?;
            *found.unwrap_or(&Value::Null) == value
        };
        if equal {
            Ok(())
        } else {
            Err(ApplyError(format!(
                "testing value {path} failed: test failed"
            )))
        }
    }

    fn copy(&self, document: &mut Value, spent: &mut Spent) -> Result<(), ApplyError> {
        let from = self.from.as_ref().map_err(|error| {
            ApplyError(format!("copy operation failed to decode from: {error}"))
        })?;
        let Some((container, key)) = find(document, from) else {
            return Err(ApplyError(format!(
                "copy operation does not apply: doc is missing from path: {from}: missing value"
            )));
        };
        let found = get(container, &key)
            .map_err(|error| ApplyError(format!("error in copy for from: '{from}': {error}")))?;
        let bytes = found.map_or(0, |value| json::to_vec(value).len());
        let over = spent.copied_bytes + bytes > COPIED_BYTES_MAX;
        // A value that is too large is only measured, not cloned.
        let value = if over {
            Value::Null
        } else {
            found.cloned().unwrap_or_default()
        };
        let Ok(path) = &self.path else {
            return Err(ApplyError(
                "copy operation failed to decode path: missing value".into(),
            ));
        };
        let Some((container, key)) = find(document, path) else {
            return Err(ApplyError(format!(
                "copy operation does not apply: doc is missing destination path: {path}: missing value"
            )));
        };
        spent.copied_bytes += bytes;
        if over {
            return Err(ApplyError(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {}, \
                 exceeding the limit {COPIED_BYTES_MAX}",
                spent.copied_bytes
            )));
        }
        add(container, &key, value, spent)
            .map_err(|error| ApplyError(format!("error while adding value during copy: {error}")))
    }
}

/// Returns the object or array in which the last part of `path` is looked up, and that part. The
/// text before the first slash is ignored.
fn find<'a>(document: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let mut parts = path.split('/').skip(1);
    let mut key = decode_part(parts.next()?);
    let mut container = document;
    for next in parts {
        container = match container {
            Value::Object(map) => map.get_mut(&key)?,
            Value::Array(items) => {
                let index = existing_index(&key, items.len()).ok()?;
                &mut items[index]
            }
            _ => return None,
        };
        key = decode_part(next);
    }
    matches!(container, Value::Object(_) | Value::Array(_)).then_some((container, key))
}

/// Returns a part of a path with its escapes resolved in one pass: `~1` is a slash, `~0` a tilde.
fn decode_part(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    let mut rest = part;
    while let Some(at) = rest.find('~') {
        out.push_str(&rest[..at]);
        let (decoded, length) = match rest.as_bytes().get(at + 1) {
            Some(b'1') => ('/', 2),
            Some(b'0') => ('~', 2),
            _ => ('~', 1),
        };
        out.push(decoded);
        rest = &rest[at + length..];
    }
    out + rest
}

fn get<'a>(container: &'a Value, key: &str) -> Result<Option<&'a Value>, MemberError> {
    match container {
        Value::Array(items) => existing_index(key, items.len()).map(|index| Some(&items[index])),
        container => Ok(container.get(key)),
    }
}

fn add(
    container: &mut Value,
    key: &str,
    value: Value,
    spent: &mut Spent,
) -> Result<(), MemberError> {
    let items = match container {
        Value::Array(items) => items,
        container => {
            let members = container.make_object();
            spent.shift(members.len())?;
            members.insert(key, value);
            return Ok(());
        }
    };
    if key == "-" {
        items.push(value);
        return Ok(());
    }
    let index = atoi(key).map_err(|fault| MemberError::NoNewIndex {
        key: key.to_owned(),
        fault,
    })?;
    let index = resolve_index(index, items.len() + 1)?;
    spent.shift(items.len() - index)?;
    items.insert(index, value);
    Ok(())
}

/// Takes a value out of an object or array.
fn remove(container: &mut Value, key: &str, spent: &mut Spent) -> Result<Value, MemberError> {
    match container {
        Value::Array(items) => {
            let index = existing_index(key, items.len())?;
            spent.shift(items.len() - index)?;
            Ok(items.remove(index))
        }
        container => {
            let members = container.make_object();
            spent.shift(members.len())?;
            let removed = members.remove(key);
            removed.ok_or_else(|| MemberError::NoKey(key.to_owned()))
        }
    }
}

fn existing_index(key: &str, length: usize) -> Result<usize, MemberError> {
    resolve_index(atoi(key)?, length)
}

/// Returns the position that an index means in an array of this `length`. A negative index counts
/// from the end.
fn resolve_index(index: i64, length: usize) -> Result<usize, MemberError> {
    let place = if index < 0 {
        index + i64::try_from(length).unwrap_or(i64::MAX)
    } else {
        index
    };
    match usize::try_from(place) {
        Ok(place) if place < length => Ok(place),
        _ => Err(MemberError::OutOfBounds(index)),
    }
}

#[cfg(test)]
mod tests;

//! Metadata of custom objects and of objects embedded in them: decoded as typed metadata is, by the
//! schema that all kinds have for it.

use super::Reading;
use crate::field_error::{FieldError, Path};
use crate::json;
use crate::schema::decode::{DecodeError, Empties, Problem};
use crate::schema::{DefId, Schemas};
use crate::shape::Shape;
use crate::shape::prune::{PATHS_MAX, Report};
use crate::value::{Map, Value};

/// The schema of metadata, and the treatment of members that do not match it.
#[derive(Clone, Copy)]
pub(super) struct Metadata<'s> {
    pub(super) schemas: &'s Schemas,
    pub(super) definition: DefId,
    pub(super) reading: Reading,
    /// Whether the paths of unknown members are noted. An object may embed a hundred thousand others, each with some.
    pub(super) report: Report,
}

impl Metadata<'_> {
    /// Brings metadata, which stands at `place`, into canonical form, and notes the paths of unknown members in
    /// `unknown`.
    ///
    /// # Errors
    /// Returns an error if it cannot be decoded. The value is then not changed.
    pub(super) fn read(
        self,
        value: &mut Value,
        place: &Path<'_>,
        unknown: &mut Vec<String>,
    ) -> Result<(), DecodeError> {
        let mut whole = value.clone();
        settle_numbers(&mut whole);
        match self.decode(&mut whole, place, unknown) {
            Ok(()) => *value = whole,
            Err(error) if self.reading == Reading::Request => return Err(error),
            Err(_) => *value = self.salvaged(value, place, unknown)?,
        }
        Ok(())
    }

    /// Returns the metadata after dropping the members that do not match.
    fn salvaged(
        self,
        value: &Value,
        place: &Path<'_>,
        unknown: &mut Vec<String>,
    ) -> Result<Value, DecodeError> {
        let Value::Object(members) = value else {
            return Err(DecodeError(format!(
                "invalid metadata: expected object, got {}",
                value.go_type()
            )));
        };
        let mut fitting = Map::new();
        for (name, member) in members.iter() {
            let mut alone = Value::Object([(name, member.clone())].into_iter().collect());
            settle_numbers(&mut alone);
            if self.decode(&mut alone, place, unknown).is_ok()
                && let Some(member) = alone.get_mut(name)
            {
                fitting.insert(name, member.take());
            }
        }
        Ok(Value::Object(fitting))
    }

    fn decode(
        self,
        value: &mut Value,
        place: &Path<'_>,
        unknown: &mut Vec<String>,
    ) -> Result<(), DecodeError> {
        let problems = self.schemas.decode(self.definition, value, Empties::Keep)?;
        // Upstream takes a zero time in untyped metadata for none.
        if value.get("deletionTimestamp").is_some_and(Value::is_null) {
            drop(value.remove(&["deletionTimestamp"]));
        }
        if self.report == Report::Paths {
            let left = PATHS_MAX.saturating_sub(unknown.len());
            let problems = problems.into_iter().take(left);
            unknown.extend(problems.map(|problem| match problem {
                Problem::Unknown(path) | Problem::Duplicate(path) => format!("{place}.{path}"),
            }));
        }
        Ok(())
    }

    /// Decodes kind, apiVersion and metadata of every embedded object.
    ///
    /// # Errors
    /// Returns an error if one of them does not match, unless such members are dropped.
    pub(super) fn coerce<'s, S: Shape<'s>>(
        self,
        shape: S,
        value: &mut Value,
        path: &Path<'_>,
        unknown: &mut Vec<String>,
    ) -> Result<(), FieldError> {
        match value {
            Value::Object(members) => {
                if shape.is_embedded() {
                    self.coerce_embedded(members, path, unknown)?;
                }
                for (name, value) in members.iter_mut() {
                    if shape.is_embedded() && name == "metadata" {
                        continue;
                    }
                    if let Some(child) = shape.child(name) {
                        self.coerce(child, value, &path.child(name), unknown)?;
                    } else if let Some(values) = shape.member(name) {
                        self.coerce(values, value, &path.key(name), unknown)?;
                    }
                }
                Ok(())
            }
            Value::Array(items) => {
                let Some(item) = shape.item() else {
                    return Ok(());
                };
                let mut items = items.iter_mut().enumerate();
                items.try_for_each(|(at, value)| self.coerce(item, value, &path.index(at), unknown))
            }
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {
                Ok(())
            }
        }
    }

    fn coerce_embedded(
        self,
        members: &mut Map,
        path: &Path<'_>,
        unknown: &mut Vec<String>,
    ) -> Result<(), FieldError> {
        for name in ["apiVersion", "kind"] {
            match members.get(name) {
                None | Some(Value::String(_)) => {}
                Some(_) if self.reading == Reading::Stored => drop(members.remove(name)),
                Some(other) => {
                    let place = path.child(name);
                    return Err(FieldError::invalid(
                        &place,
                        other.clone(),
                        "must be a string",
                    ));
                }
            }
        }
        let Some(metadata) = members.get_mut("metadata") else {
            return Ok(());
        };
        let place = path.child("metadata");
        match self.read(metadata, &place, unknown) {
            Err(error) if self.reading == Reading::Request => {
                let bad = metadata.clone();
                Err(FieldError::invalid(&place, bad, error.to_string()))
            }
            // Metadata that is not an object is kept, so that validation complains about it.
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Turns floats that are written like whole numbers into integers: upstream decodes typed metadata
/// from its own output of the untyped tree, so that `1.0` is an integer there.
fn settle_numbers(value: &mut Value) {
    match value {
        Value::Float(number) => {
            let mut text = Vec::new();
            json::write_float(*number, &mut text);
            let whole = std::str::from_utf8(&text)
                .ok()
                .and_then(|text| text.parse().ok());
            if let Some(whole) = whole {
                *value = Value::Int(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle_numbers),
        Value::Object(members) => members
            .iter_mut()
            .for_each(|(_, value)| settle_numbers(value)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::String(_) => {}
    }
}

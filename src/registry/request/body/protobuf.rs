//! Reading bodies in protobuf.
//!
//! As upstream: what the envelope says is found out first, and the message is then decoded as the kind that
//! the envelope names. An error of the envelope is one of a body that is unrecognized, an error of the
//! message one of an object of a known kind.

use super::named::{Named, named_by};
use super::{BodyError, Expected, cannot_be_handled, check_kind};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::schema::proto::{Envelope, ProtoError};
use polyplane_apimachinery::schema::{DefId, Schemas};
use polyplane_apimachinery::status::ApiError;

/// A message whose kind is known.
pub(super) struct Message<'a> {
    envelope: Envelope<'a>,
    named: Named,
}

impl<'a> Message<'a> {
    /// Reads the envelope of a body.
    ///
    /// # Errors
    /// Returns an error if there is none, or if its version is none.
    pub(super) fn open(body: &'a [u8]) -> Result<Self, BodyError> {
        let envelope = Envelope::open(body)?;
        let members = [
            ("kind", Value::String(envelope.kind.clone())),
            ("apiVersion", Value::String(envelope.api_version.clone())),
        ];
        let named = named_by(members.iter().map(|(name, value)| (*name, value)))?;
        Ok(Self { envelope, named })
    }

    /// Returns the envelope and the kind that it names.
    pub(super) fn into_parts(self) -> (Envelope<'a>, Named) {
        (self.envelope, self.named)
    }

    /// Decodes the message, which has to be of the `expected` kind. An envelope that names no kind has the
    /// expected one.
    ///
    /// # Errors
    /// Returns 400 with upstream's reason. A message of another known kind is decoded as one of that kind, and
    /// its error comes first.
    pub(super) fn decode(self, expected: Expected<'_>) -> Result<Value, ApiError> {
        let Self { envelope, named } = self;
        let named = named.or(expected);
        let schemas = expected.schemas;
        let is_expected = check_kind(&named, expected);
        let definition = match &is_expected {
            Ok(()) => Some(expected.definition),
            Err(_) => schemas.kind(&named.group, &named.version, &named.kind),
        };
        let Some(definition) = definition else {
            return is_expected.map(|()| Value::Null);
        };
        let tree = object((schemas, definition), envelope)
            .map_err(|error| cannot_be_handled(&named, expected, &error.to_string()))?;
        is_expected?;
        Ok(tree)
    }
}

/// Decodes the message of an envelope.
///
/// # Errors
/// See [`ProtoError`].
pub(super) fn object(
    (schemas, definition): (&Schemas, DefId),
    envelope: Envelope<'_>,
) -> Result<Value, ProtoError> {
    let mut tree = schemas.decode_proto(definition, envelope.raw)?;
    tree.set(&["kind"], envelope.kind);
    tree.set(&["apiVersion"], envelope.api_version);
    Ok(tree)
}

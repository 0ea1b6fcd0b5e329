//! Turns trees of custom objects into canonical trees.
//!
//! The order is upstream's and matters: metadata is decoded, unknown members are pruned,
//! meaningless nulls are dropped, embedded metadata is decoded, and then absent members get their
//! defaults. Numbers keep the type with which they were parsed: a whole number without fraction and
//! exponent is an integer, any other a float.

use super::metadata::Metadata;
use super::{SchemaNode, Structural};
use crate::field_error::{FieldError, Path};
use crate::schema::decode::{DecodeError, Problem};
use crate::schema::{DefId, Schemas};
use crate::shape::defaults::TooLarge;
use crate::shape::prune::{Report, Root};
use crate::shape::{defaults, nulls, prune};
use crate::value::Value;

/// The source of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// A client: malformed metadata is an error.
    Request,
    /// The store, to which it may have been written under another schema: malformed metadata is
    /// dropped, so that the object can be read.
    Stored,
}

/// Decodes objects of one version of a custom kind.
#[derive(Clone, Copy)]
pub struct Custom<'s> {
    schema: &'s Structural,
    schemas: &'s Schemas,
    metadata: DefId,
}

impl<'s> Custom<'s> {
    /// Creates a decoder for objects of `schema`, with `metadata` as `schemas` defines it.
    pub fn new(schema: &'s Structural, schemas: &'s Schemas, metadata: DefId) -> Self {
        Self {
            schema,
            schemas,
            metadata,
        }
    }

    /// Returns the shape of the whole object.
    pub fn shape(&self) -> SchemaNode<'s> {
        self.schema.root()
    }

    /// Brings a parsed tree into canonical form, without setting defaults. `kind` and `apiVersion`
    /// of the root are dropped. Returns the complaints of strict decoding if `report` requests
    /// them.
    ///
    /// # Errors
    /// Returns an error if the metadata of the object, or in a request of an embedded one, is
    /// malformed.
    pub fn decode(
        &self,
        value: &mut Value,
        reading: Reading,
        report: Report,
    ) -> Result<Vec<Problem>, DecodeError> {
        let Value::Object(members) = value else {
            return Err(DecodeError("a custom object must be an object".to_owned()));
        };
        members.remove("kind");
        members.remove("apiVersion");
        let metadata = Metadata {
            schemas: self.schemas,
            definition: self.metadata,
            reading,
            report,
        };
        let mut unknown = Vec::new();
        // Metadata is kept apart until the end, because no schema may change the metadata of a
        // resource.
        let mut own = members.remove("metadata");
        if let Some(own) = &mut own {
            metadata.read(own, &Path::new("metadata"), &mut unknown)?;
        }
        unknown.extend(prune::prune(self.shape(), value, Root::Resource, report));
        nulls::drop(self.shape(), value);
        let mut embedded = Vec::new();
        metadata
            .coerce(self.shape(), value, &Path::NIL, &mut embedded)
            .map_err(|error| DecodeError(error.to_string()))?;
        embedded.sort();
        unknown.extend(embedded);
        if let (Some(own), Value::Object(members)) = (own, value) {
            members.insert("metadata", own);
        }
        Ok(match report {
            Report::Nothing => Vec::new(),
            Report::Paths => unknown.into_iter().map(Problem::Unknown).collect(),
        })
    }

    /// Brings the metadata of a tree into canonical form and leaves everything else as it is.
    ///
    /// # Errors
    /// Returns an error if the metadata is malformed.
    pub fn decode_metadata(&self, value: &mut Value) -> Result<(), DecodeError> {
        let metadata = Metadata {
            schemas: self.schemas,
            definition: self.metadata,
            reading: Reading::Request,
            report: Report::Nothing,
        };
        match value.get_mut("metadata") {
            Some(own) => metadata.read(own, &Path::new("metadata"), &mut Vec::new()),
            None => Ok(()),
        }
    }

    /// Brings the kind, version and metadata of embedded objects into canonical form.
    ///
    /// # Errors
    /// Returns a complaint about the first of them that is malformed.
    pub fn coerce(&self, value: &mut Value, path: &Path<'_>) -> Result<(), FieldError> {
        self.coerce_at(self.shape(), value, path)
    }

    /// Does what [`Self::coerce`] does to a value that stands at `place` of the schema.
    ///
    /// # Errors
    /// See [`Self::coerce`].
    pub fn coerce_at(
        &self,
        place: SchemaNode<'_>,
        value: &mut Value,
        path: &Path<'_>,
    ) -> Result<(), FieldError> {
        let metadata = Metadata {
            schemas: self.schemas,
            definition: self.metadata,
            reading: Reading::Request,
            report: Report::Nothing,
        };
        metadata.coerce(place, value, path, &mut Vec::new())
    }

    /// Returns whether [`Self::default`] would change a value.
    pub fn lacks_defaults(&self, value: &Value) -> bool {
        defaults::lacks(self.shape(), value)
    }

    /// Sets absent members to their defaults, if their parents are present.
    ///
    /// # Errors
    /// Returns an error if the defaults take more than 8 MiB. No store takes an object of that size, and
    /// the server must not be brought to hold one.
    pub fn default(&self, value: &mut Value) -> Result<(), TooLarge> {
        defaults::apply(self.shape(), value)
    }
}

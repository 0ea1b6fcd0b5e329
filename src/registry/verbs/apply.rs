//! Server-side apply, a kind of PATCH: the body is what its manager wants the object to be.

use crate::plan::fields::{self, ManagedKind, Wanted};
use crate::plan::{Interrupted, Run};
use crate::request::body;
use crate::request::call::Call;
use crate::request::options::{FieldValidation, WriteOptions};
use crate::request::trees::{self, Source};
use polyplane_apimachinery::json::Limits;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::value::Weight;
use polyplane_apimachinery::{Value, yaml};

/// The object of an apply request after parsing. JSON is YAML, too.
pub struct Configuration {
    object: Value,
    /// The complaint of strict parsing about repeated keys.
    complaint: Option<String>,
}

impl Configuration {
    /// Reads the request's body.
    ///
    /// # Errors
    /// Returns 400 if it is not an object in YAML, and 429 if there is no memory for it.
    pub fn read(call: &Call<'_>) -> Result<Self, ApiError> {
        let parsed = yaml::parse(&call.request.body, &Limits::default())
            .map_err(|error| ApiError::bad_request(format!("error encoding patch: {error}")))?;
        let object = match parsed.value {
            Value::Null => Value::object(),
            object @ Value::Object(_) => object,
            other => {
                let kind = other.go_kind();
                return Err(ApiError::bad_request(format!(
                    "error decoding patch: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
                )));
            }
        };
        let text_bytes = trees::yaml_bytes(call.request.body.len());
        call.count_tree(Source::Body, text_bytes, || Weight::of(&object))?;
        Ok(Self {
            object,
            complaint: parsed.strict_error,
        })
    }

    /// Applies the object to the live one of a kind. Both are in the version of the request; the
    /// result is in canonical form and has the managers of its fields.
    ///
    /// # Errors
    /// Returns upstream's errors, or requests a reply that is needed first.
    pub(crate) fn apply(
        &self,
        run: &mut Run<'_>,
        mut kind: ManagedKind,
        live: Option<&Value>,
        options: &WriteOptions,
    ) -> Result<Value, Interrupted> {
        let wanted = Wanted {
            object: &self.object,
            manager: &options.field_manager,
            force: options.force,
        };
        let applied = fields::apply(run, &mut kind, live, wanted)?;
        match (&self.complaint, options.field_validation) {
            (None, _) | (_, FieldValidation::Ignore) => {}
            (Some(complaint), FieldValidation::Warn) => body::warn_of(run.call, complaint),
            (Some(complaint), FieldValidation::Strict) => {
                let text = format!(
                    "error strict decoding patch: error converting YAML to JSON: {complaint}"
                );
                return Err(ApiError::bad_request(text).into());
            }
        }
        Ok(applied)
    }
}

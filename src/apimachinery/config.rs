//! Reads configuration files strictly: an unknown field is an error, because somebody relies on it.
//! This module opens no file and does not know what a configuration means.

use crate::complaints::Complaints;
use crate::field_error::{FieldError, Path};
use crate::json::Limits;
use crate::{Value, yaml};

/// Longest configuration file, in bytes, as upstream.
const BYTES_MAX: usize = 10 << 20;
/// Depth of brackets in a configuration file.
const DEPTH_MAX: usize = 32;

/// The reason why a text is no configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The text is neither YAML nor JSON.
    #[error("it is not YAML: {0}")]
    Text(String),
    /// The document has another kind.
    #[error("it is {kind:?} of {version:?}, and not {wanted}")]
    Kind {
        /// The kind in the text.
        kind: String,
        /// The version in the text.
        version: String,
        /// What was expected.
        wanted: &'static str,
    },
    /// Fields are wrong.
    #[error("{}", shown(.0))]
    Fields(Complaints),
}

fn shown(errors: &[FieldError]) -> String {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    errors.join("; ")
}

/// Parses a document in which no key is repeated.
///
/// # Errors
/// Returns [`ConfigError::Text`] if it is neither YAML nor JSON, or repeats a key.
pub fn document(text: &[u8]) -> Result<Value, ConfigError> {
    let limits = Limits {
        depth_max: DEPTH_MAX,
        bytes_max: BYTES_MAX,
        ..Limits::default()
    };
    let parsed =
        yaml::parse(text, &limits).map_err(|error| ConfigError::Text(error.to_string()))?;
    match parsed.strict_error {
        Some(error) => Err(ConfigError::Text(error)),
        None => Ok(parsed.value),
    }
}

/// Returns what was read of a document.
///
/// # Errors
/// Returns [`ConfigError::Fields`] if there are errors.
pub fn finished<T>(read: T, errors: Complaints) -> Result<T, ConfigError> {
    match errors.is_empty() {
        true => Ok(read),
        false => Err(ConfigError::Fields(errors)),
    }
}

/// An object of a configuration, at its path.
#[derive(Clone, Copy)]
pub struct Section<'a> {
    /// The object; `null` counts as one without fields.
    pub value: &'a Value,
    /// The path of the object, for messages.
    pub path: &'a Path<'a>,
}

impl<'a> Section<'a> {
    /// Returns a whole document, if it has one of these kinds, each with its group-version.
    ///
    /// # Errors
    /// Returns [`ConfigError::Kind`] if it has another, with `wanted` as what was expected.
    pub fn of_kind(
        document: &'a Value,
        kinds: &[(&str, &str)],
        wanted: &'static str,
    ) -> Result<Self, ConfigError> {
        let (kind, version) = (document.str_at(&["kind"]), document.str_at(&["apiVersion"]));
        match kinds.contains(&(kind, version)) {
            true => Ok(Self {
                value: document,
                path: &Path::NIL,
            }),
            false => Err(ConfigError::Kind {
                kind: kind.to_owned(),
                version: version.to_owned(),
                wanted,
            }),
        }
    }
}

impl Section<'_> {
    /// Complains if the section is no object, or has other fields than these.
    pub fn only(&self, fields: &[&str], errors: &mut Complaints) {
        match self.value {
            Value::Null => {}
            Value::Object(members) => {
                for name in members.keys().filter(|name| !fields.contains(name)) {
                    let path = self.path.child(name);
                    errors.push(FieldError::forbidden(&path, "there is no such field"));
                }
            }
            _ => errors.push(FieldError::invalid(
                self.path,
                self.value.clone(),
                "must be an object",
            )),
        }
    }

    /// Returns a text; empty if it is missing.
    pub fn text(&self, name: &str, errors: &mut Complaints) -> String {
        match &self.value[name] {
            Value::Null => String::new(),
            Value::String(text) => text.to_string(),
            other => {
                let path = self.path.child(name);
                errors.push(FieldError::invalid(
                    &path,
                    other.clone(),
                    "must be a string",
                ));
                String::new()
            }
        }
    }

    /// Returns the items of a list; none if it is missing.
    pub fn items(&self, name: &str, errors: &mut Complaints) -> &[Value] {
        match &self.value[name] {
            Value::Null => &[],
            Value::Array(items) => items,
            other => {
                let path = self.path.child(name);
                errors.push(FieldError::invalid(&path, other.clone(), "must be a list"));
                &[]
            }
        }
    }

    /// Returns the texts of a list; none if it is missing.
    pub fn texts(&self, name: &str, errors: &mut Complaints) -> Vec<String> {
        let path = self.path.child(name);
        let mut texts = Vec::new();
        for (at, item) in self.items(name, errors).iter().enumerate() {
            match item {
                Value::String(text) => texts.push(text.to_string()),
                other => errors.push(FieldError::invalid(
                    &path.index(at),
                    other.clone(),
                    "must be a string",
                )),
            }
        }
        texts
    }
}

//! The group-versions that upstream knows, served by default or not.

use serde::Deserialize;

/// A group-version that upstream knows.
#[derive(Debug, Deserialize)]
pub struct ApiVersion {
    /// The API group; empty for core.
    pub group: String,
    /// The version.
    pub version: String,
    /// Whether upstream serves it by default; `None` if it never does.
    pub default: Option<bool>,
}

impl ApiVersion {
    /// Reads the generated list.
    ///
    /// # Errors
    /// Returns an error if the text does not have the form of the list.
    pub fn parse(text: &[u8]) -> serde_json::Result<Vec<Self>> {
        serde_json::from_slice(text)
    }
}

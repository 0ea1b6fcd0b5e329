//! The forms in which the plugin prints control planes.

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// The objects as JSON; several as a list.
    Json,
    /// The objects as YAML; several as documents.
    Yaml,
    /// Kind and name, a line each.
    Name,
}

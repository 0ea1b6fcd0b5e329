//! The file `AdmissionConfiguration` of `apiserver.config.k8s.io`: what plug-ins are told beside the objects.
//!
//! `PodSecurity` and `ResourceQuota` take a configuration. Those of other plug-ins have no effect, as
//! those of plug-ins that are off have none upstream. This module opens no file.

use crate::pod_security::PodSecurityConfig;
use crate::pod_tolerations::TolerationSeconds;
use crate::resource_quota::LimitedResources;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::config::{ConfigError, Section, document, finished};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Str, Value};

/// The group-versions of the kind, which have the same fields.
const KINDS: [(&str, &str); 2] = [
    ("AdmissionConfiguration", "apiserver.config.k8s.io/v1"),
    ("AdmissionConfiguration", "apiserver.k8s.io/v1alpha1"),
];
const WANTED: &str = "AdmissionConfiguration of apiserver.config.k8s.io/v1";

/// What plug-ins are told beside the objects. The default is that of a server without a file.
#[derive(Clone, Debug, Default)]
pub struct AdmissionConfig {
    pub(crate) pod_security: PodSecurityConfig,
    pub(crate) limited: LimitedResources,
    /// How long pods tolerate nodes. No file says it, but upstream's flags do.
    pub tolerations: TolerationSeconds,
    /// The entries of the file that have no effect, in its order.
    pub without_effect: Vec<IneffectiveEntry>,
}

/// An entry of a file that has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IneffectiveEntry {
    /// The plug-in takes no configuration, or is not there.
    #[error("plug-in {0:?} takes no configuration here")]
    Unused(Str),
    /// An earlier entry configures the plug-in.
    #[error("plug-in {0:?} is configured by an earlier entry")]
    Repeated(Str),
}

/// The reason why a file is no configuration of admission.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AdmissionConfigError {
    /// The file itself is wrong.
    #[error(transparent)]
    Document(ConfigError),
    /// A file that it names cannot be read.
    #[error("the configuration of {plugin}: {path}: {reason}")]
    File {
        /// The name of the plug-in.
        plugin: &'static str,
        /// The path as it is written.
        path: String,
        /// What happened.
        reason: String,
    },
    /// The configuration of one plug-in is wrong.
    #[error("the configuration of {plugin}: {place}")]
    Plugin {
        /// The name of the plug-in.
        plugin: &'static str,
        /// The field or the file with the configuration.
        place: String,
        /// What is wrong with it.
        #[source]
        source: ConfigError,
    },
}

impl AdmissionConfig {
    /// Reads a file. `read` returns the content of another file, by its path as it is written.
    ///
    /// # Errors
    /// Returns everything that is wrong with the file, or with the first configuration that is wrong.
    pub fn parse(
        text: &[u8],
        read: &dyn Fn(&str) -> Result<Vec<u8>, String>,
    ) -> Result<Self, AdmissionConfigError> {
        let document = document(text).map_err(AdmissionConfigError::Document)?;
        let entries = entries(&document).map_err(AdmissionConfigError::Document)?;
        let mut config = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for entry in &entries {
            let name = entry.name.as_str();
            if seen.contains(&name) {
                let repeated = IneffectiveEntry::Repeated(name.into());
                config.without_effect.push(repeated);
                continue;
            }
            seen.push(name);
            match name {
                "PodSecurity" => {
                    let parsed = entry.parsed("PodSecurity", read, PodSecurityConfig::of)?;
                    config.pod_security = parsed.unwrap_or_default();
                }
                "ResourceQuota" => {
                    let parsed = entry.parsed("ResourceQuota", read, LimitedResources::of)?;
                    config.limited = parsed.unwrap_or_default();
                }
                other => {
                    let unused = IneffectiveEntry::Unused(other.into());
                    config.without_effect.push(unused);
                }
            }
        }
        Ok(config)
    }
}

/// The entry of one plug-in.
struct Entry {
    /// Its position in the list.
    at: usize,
    name: String,
    /// The file with the configuration; empty for none.
    path: String,
    /// The configuration itself, which counts before the file.
    embedded: Option<Value>,
}

impl Entry {
    /// Returns the configuration, if the entry has one.
    fn parsed<T>(
        &self,
        plugin: &'static str,
        read: &dyn Fn(&str) -> Result<Vec<u8>, String>,
        of: impl Fn(&Value) -> Result<T, ConfigError>,
    ) -> Result<Option<T>, AdmissionConfigError> {
        let path = &self.path;
        let (place, parsed) = match &self.embedded {
            Some(embedded) => (format!("plugins[{}].configuration", self.at), of(embedded)),
            None if path.is_empty() => return Ok(None),
            None => {
                let text = read(path).map_err(|reason| AdmissionConfigError::File {
                    plugin,
                    path: path.clone(),
                    reason,
                })?;
                let parsed = document(&text).and_then(|document| of(&document));
                (path.clone(), parsed)
            }
        };
        let parsed = parsed.map_err(|source| AdmissionConfigError::Plugin {
            plugin,
            place,
            source,
        });
        parsed.map(Some)
    }
}

fn entries(document: &Value) -> Result<Vec<Entry>, ConfigError> {
    let root = Section::of_kind(document, &KINDS, WANTED)?;
    let mut errors = Complaints::default();
    root.only(&["apiVersion", "kind", "plugins"], &mut errors);
    let list = Path::new("plugins");
    let mut entries = Vec::new();
    for (at, value) in root.items("plugins", &mut errors).iter().enumerate() {
        let path = list.index(at);
        let section = Section { value, path: &path };
        section.only(&["name", "path", "configuration"], &mut errors);
        let name = section.text("name", &mut errors);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        let embedded = value.get("configuration");
        entries.push(Entry {
            at,
            name,
            path: section.text("path", &mut errors),
            embedded: embedded.filter(|embedded| !embedded.is_null()).cloned(),
        });
    }
    finished(entries, errors)
}

#[cfg(test)]
mod tests;

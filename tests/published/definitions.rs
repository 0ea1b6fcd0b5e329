//! The definitions that projects publish, as `tests/programs definitions` finds them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::golden::folder;

/// A published definition of a kind.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The project.
    pub project: String,
    /// The CustomResourceDefinition.
    pub object: Value,
}

/// A served version of a published kind.
#[derive(Clone, Debug)]
pub struct Version<'d> {
    /// The version's name.
    pub name: &'d str,
    /// The schema of objects.
    pub schema: &'d Value,
    /// Whether there is a status subresource.
    pub has_status: bool,
    /// Whether there is a scale subresource.
    pub has_scale: bool,
}

impl Definition {
    /// Returns the name of the definition.
    pub fn name(&self) -> &str {
        text(&self.object["metadata"]["name"])
    }

    /// Returns the API group.
    pub fn group(&self) -> &str {
        text(&self.object["spec"]["group"])
    }

    /// Returns whether the group is one of those that need an approval.
    pub fn is_protected(&self) -> bool {
        let group = self.group();
        let is_in = |suffix: &str| group.ends_with(suffix);
        is_in(".k8s.io") || is_in(".kubernetes.io")
    }

    /// Returns the kind.
    pub fn kind(&self) -> &str {
        text(&self.object["spec"]["names"]["kind"])
    }

    /// Returns the path of the collection in a version, with `{ns}` for the namespace.
    pub fn collection(&self, version: &str) -> String {
        let namespace = match text(&self.object["spec"]["scope"]) {
            "Namespaced" => "/namespaces/{ns}",
            _ => "",
        };
        let plural = text(&self.object["spec"]["names"]["plural"]);
        format!("/apis/{}/{version}{namespace}/{plural}", self.group())
    }

    /// Returns the served versions.
    pub fn served(&self) -> impl Iterator<Item = Version<'_>> {
        let versions = self.object["spec"]["versions"].as_array().into_iter();
        let served = versions
            .flatten()
            .filter(|version| version["served"] == true);
        served.map(|version| Version {
            name: text(&version["name"]),
            schema: &version["schema"]["openAPIV3Schema"],
            has_status: version["subresources"]["status"].is_object(),
            has_scale: version["subresources"]["scale"].is_object(),
        })
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns all published definitions, by project and file.
///
/// # Errors
/// Returns an error if they cannot be fetched or read.
pub fn load() -> Result<Vec<Definition>> {
    let found = Command::new(folder().join("programs"))
        .arg("definitions")
        .output()
        .context("cannot run tests/programs")?;
    let said = String::from_utf8_lossy(&found.stderr);
    ensure!(found.status.success(), "{}", said.trim());
    let mut all = Vec::new();
    for line in String::from_utf8(found.stdout)?.lines() {
        let (project, path) = line
            .split_once(' ')
            .context("tests/programs prints no path")?;
        all.extend(read(project, Path::new(path))?);
    }
    ensure!(!all.is_empty(), "no definitions");
    Ok(all)
}

fn read(project: &str, folder: &Path) -> Result<Vec<Definition>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(std::fs::DirEntry::file_name);
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file.path())?;
        for document in text.split("\n---\n") {
            let document = document.trim_start_matches("---\n");
            let object: Value = serde_saphyr::from_str(document)
                .with_context(|| format!("{} is not YAML", file.path().display()))?;
            if object["kind"] == "CustomResourceDefinition" {
                all.push(Definition {
                    project: project.to_owned(),
                    object,
                });
            }
        }
    }
    Ok(all)
}

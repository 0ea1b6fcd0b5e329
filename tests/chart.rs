//! The chart, rendered, linted and installed by the real helm.
//!
//! This module owns helm's environment, so that no file of the user is read or written. It does not
//! know what the chart contains.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::golden::folder;

/// The name under which the tests install the chart.
pub const RELEASE: &str = "ring";
/// The namespace in which the tests install the chart.
pub const NAMESPACE: &str = "planes";

/// helm, and the chart of this tree.
pub struct Chart {
    program: PathBuf,
    /// The folder for helm's caches and settings.
    home: tempfile::TempDir,
}

impl Chart {
    /// Finds helm with `tests/programs`.
    ///
    /// # Errors
    /// Returns an error if there is no helm and it cannot be built.
    pub fn find() -> Result<Self> {
        let found = Command::new(folder().join("programs"))
            .arg("helm")
            .stderr(Stdio::inherit())
            .output()?;
        let line = String::from_utf8(found.stdout)?;
        let program = line
            .trim()
            .strip_prefix("helm ")
            .context("tests/programs finds no helm")?;
        Ok(Self {
            program: program.into(),
            home: tempfile::tempdir()?,
        })
    }

    /// Returns the chart's folder.
    pub fn path() -> PathBuf {
        folder().join("../helm/polyplane")
    }

    /// Runs helm with these values.
    ///
    /// # Errors
    /// Returns an error if helm cannot be started.
    pub fn run(&self, arguments: &[&str], values: &Value) -> Result<Output> {
        let mut file = tempfile::NamedTempFile::with_suffix(".json")?;
        serde_json::to_writer(&mut file, values)?;
        let mut command = self.command(arguments);
        command.arg("--values").arg(file.path());
        command.output().context("cannot start helm")
    }

    /// Returns a command that runs helm in its own environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .args(["--namespace", NAMESPACE])
            .env_remove("KUBECONFIG")
            .env("HOME", self.home.path())
            .env("HELM_CACHE_HOME", self.home.path().join("cache"))
            .env("HELM_CONFIG_HOME", self.home.path().join("config"))
            .env("HELM_DATA_HOME", self.home.path().join("data"))
            .stdin(Stdio::null());
        command
    }

    /// Returns all manifests with these values over the chart's own.
    ///
    /// # Errors
    /// Returns an error with helm's message if helm refuses.
    pub fn render(&self, values: &Value) -> Result<String> {
        let output = self.template(values)?;
        if !output.status.success() {
            bail!("helm template {values}: {}", said(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Returns helm's message about values that it refuses.
    ///
    /// # Errors
    /// Returns an error if helm accepts them.
    pub fn refused(&self, values: &Value) -> Result<String> {
        let output = self.template(values)?;
        if output.status.success() {
            bail!("helm accepts {values}");
        }
        Ok(said(&output.stderr))
    }

    /// Runs `helm lint` with these values.
    ///
    /// # Errors
    /// Returns an error if helm finds a mistake or warns.
    pub fn lint(&self, values: &Value) -> Result<()> {
        let path = Self::path();
        let output = self.run(&["lint", "--strict", &path.to_string_lossy()], values)?;
        if !output.status.success() {
            bail!(
                "helm lint {values}: {}{}",
                said(&output.stdout),
                said(&output.stderr)
            );
        }
        Ok(())
    }

    fn template(&self, values: &Value) -> Result<Output> {
        let path = Self::path();
        self.run(&["template", RELEASE, &path.to_string_lossy()], values)
    }
}

/// Returns the smallest values with which the chart renders: the addresses of etcd.
pub fn on_etcd(endpoints: &[&str]) -> Value {
    json!({"etcd": {"endpoints": endpoints}})
}

/// Lays one tree of values over another.
pub fn over(base: &Value, more: &Value) -> Value {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            let mut merged = base.clone();
            for (key, value) in more {
                let below = merged.get(key).cloned().unwrap_or(Value::Null);
                merged.insert(key.clone(), over(&below, value));
            }
            Value::Object(merged)
        }
        (_, more) => more.clone(),
    }
}

/// Returns the chart's own values.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn default_values() -> Result<Value> {
    let path: &Path = &Chart::path().join("values.yaml");
    let text = std::fs::read_to_string(path)?;
    serde_saphyr::from_str(&text).context("values.yaml is not YAML")
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_laid_over_others_key_by_key() {
        let base = json!({"a": {"b": 1, "c": [1, 2]}, "d": 1});
        let more = json!({"a": {"c": [3]}, "e": null});
        let merged = json!({"a": {"b": 1, "c": [3]}, "d": 1, "e": null});
        assert_eq!(over(&base, &more), merged);
    }
}

//! The file that configures admission plug-ins, by the name of kube-apiserver's flag. This module does not
//! know what plug-ins do with it.

use crate::cli::limited_file;
use anyhow::Context;
use clap::Args;
use polyplane_admission::AdmissionConfig;
use std::path::{Path, PathBuf};

/// The flag, without its dashes.
pub const FLAG: &str = "admission-control-config-file";

/// Options of the admission plug-ins.
#[derive(Clone, Debug, Default, Args)]
pub struct AdmissionOptions {
    /// File with an AdmissionConfiguration of apiserver.config.k8s.io/v1, for the root and every control
    /// plane: the levels of PodSecurity for namespaces without labels, and what is exempt; what ResourceQuota
    /// lets nobody take without a quota. Configurations of other plug-ins have no effect.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_ADMISSION_CONTROL_CONFIG_FILE"
    )]
    pub admission_control_config_file: Option<PathBuf>,
}

impl AdmissionOptions {
    /// Reads the file, and those that it names.
    ///
    /// # Errors
    /// Returns an error that names the flag, the file and the field.
    pub fn open(&self) -> anyhow::Result<AdmissionConfig> {
        match &self.admission_control_config_file {
            None => Ok(AdmissionConfig::default()),
            Some(file) => read(file).with_context(|| format!("--{FLAG}")),
        }
    }
}

/// Reads a file, and those that it names: their paths are relative to its folder. What has no effect is named
/// in the log.
///
/// # Errors
/// Returns an error that names the file and the field.
pub fn read(file: &Path) -> anyhow::Result<AdmissionConfig> {
    let shown = || file.display().to_string();
    let folder = file.parent().unwrap_or(Path::new(""));
    let read_named = |name: &str| {
        let read = limited_file::read_config(&folder.join(name));
        read.map_err(|error| format!("{error:#}"))
    };
    let text = limited_file::read_config(file).with_context(shown)?;
    let config = AdmissionConfig::parse(&text, &read_named).with_context(shown)?;
    for entry in &config.without_effect {
        tracing::warn!("--{FLAG}: {}: {entry}", file.display());
    }
    Ok(config)
}

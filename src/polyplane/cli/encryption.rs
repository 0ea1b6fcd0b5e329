//! The flag of encryption at rest, by the name of kube-apiserver's. This module does not know how keys
//! are used.

use crate::cli::limited_file;
use anyhow::Context;
use clap::Args;
use polyplane_sealing::EncryptionConfig;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// Options of encryption at rest.
#[derive(Clone, Debug, Args)]
pub struct EncryptionOptions {
    /// File with an EncryptionConfiguration of apiserver.config.k8s.io/v1: the keys by which objects are
    /// encrypted in the store, and which resources are. Providers are aesgcm, aescbc and secretbox, whose
    /// keys are all used with AES-256-GCM, kms (v2) and identity; the first one writes, all read. It is
    /// read at the start. Every replica needs the same keys. Keep a copy: without the keys nothing of
    /// what they encrypted can be read.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_ENCRYPTION_PROVIDER_CONFIG"
    )]
    pub encryption_provider_config: Option<PathBuf>,
}

impl EncryptionOptions {
    /// Reads the file, if one is named.
    ///
    /// # Errors
    /// Returns an error that names the flag and what is wrong with the file, without its secrets.
    pub fn open(&self) -> anyhow::Result<Option<EncryptionConfig>> {
        let Some(file) = &self.encryption_provider_config else {
            return Ok(None);
        };
        let read = || {
            let text = Zeroizing::new(limited_file::read_config(file)?);
            Ok::<_, anyhow::Error>(EncryptionConfig::parse(&text)?)
        };
        let config = read();
        let config =
            config.with_context(|| format!("--encryption-provider-config: {}", file.display()))?;
        Ok(Some(config))
    }
}

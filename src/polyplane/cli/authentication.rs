//! The flags of delegated authentication, by the names of kube-apiserver's. This module does not know
//! how tokens are judged.

use crate::replica::access::Delegated;
use anyhow::{Context, bail};
use clap::Args;
use polyplane_auth::Authenticator;
use polyplane_delegated::oidc::{AnonymousConfig, AuthenticationConfig, JwtAuthenticator};
use polyplane_outbound::Caller;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 10 << 20;

/// Options of authentication by others, of the root's users.
#[derive(Clone, Debug, Default, Args)]
pub struct AuthenticationOptions {
    /// File with an AuthenticationConfiguration of apiserver.config.k8s.io/v1: the issuers of OpenID
    /// Connect whose tokens prove users of the root. In another control plane they are who its
    /// spec.access says.
    #[arg(long, value_name = "FILE", env = "POLYPLANE_AUTHENTICATION_CONFIG")]
    pub authentication_config: Option<PathBuf>,
}

impl AuthenticationOptions {
    /// Reads the files, and begins to look the issuers' keys up.
    ///
    /// # Errors
    /// Returns an error that names the flag whose file cannot be used.
    pub fn open(&self) -> anyhow::Result<Delegated> {
        let caller = Caller::new(Vec::new());
        let mut bearer = Vec::new();
        if let Some(file) = &self.authentication_config {
            let (config, shown) = (read(file), file.display());
            let config = config.and_then(|text| Ok(AuthenticationConfig::parse(&text, &[])?));
            let config = config.with_context(|| format!("--authentication-config: {shown}"))?;
            if config.anonymous == Some(AnonymousConfig::Everywhere) {
                bail!(
                    "--authentication-config: {shown}: anonymous.enabled: strangers may see health and \
                     version here, and nothing else"
                );
            }
            bearer = jwt_authenticators(config, &caller)
                .with_context(|| format!("--authentication-config: {shown}"))?;
        }
        Ok(Delegated {
            bearer,
            outbound: caller,
        })
    }
}

/// Returns the authenticators of the issuers of a configuration, and begins to look their keys up.
///
/// # Errors
/// Returns an error if a CA bundle cannot be used.
pub fn jwt_authenticators(
    config: AuthenticationConfig,
    caller: &Arc<Caller>,
) -> anyhow::Result<Vec<Arc<dyn Authenticator>>> {
    let operator = caller.of_operator();
    let mut made: Vec<Arc<dyn Authenticator>> = Vec::new();
    for jwt in config.jwt {
        let one = Arc::new(JwtAuthenticator::new(jwt, &operator)?);
        // It ends by the deadlines of its calls.
        tokio::spawn({
            let one = Arc::clone(&one);
            async move { one.warm().await }
        });
        made.push(one);
    }
    Ok(made)
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    std::fs::File::open(file)
        .and_then(|opened| opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut text))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        bail!("the file is longer than {FILE_BYTES_MAX} bytes");
    }
    Ok(text)
}

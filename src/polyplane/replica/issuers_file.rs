//! The file of `--authentication-config`. This module does not know how tokens are judged.

use crate::cli::limited_file;
use crate::replica::followed_file::{FollowedFile, Follower, Refused};
use anyhow::Context;
use polyplane_auth::AnonymousAccess;
use polyplane_delegated::oidc::{AuthenticationConfig, OperatorIssuers};
use polyplane_outbound::Caller;
use std::path::Path;
use std::sync::Arc;

const FLAG: &str = "authentication-config";
const ANONYMOUS: &str = "anonymous: Forbidden: changed from initial configuration file";

/// The file, with the issuers that it names.
pub struct IssuersFile {
    file: FollowedFile,
    /// The issuers of the server's own tokens, which the file may not name.
    own: Vec<String>,
    anonymous: Option<AnonymousAccess>,
    issuers: Arc<OperatorIssuers>,
}

impl IssuersFile {
    /// Reads the file, asks whether the issuers are there, and looks at the file at intervals from now on
    /// for as long as somebody holds it. `own` are the issuers of the server's own tokens.
    ///
    /// # Errors
    /// Returns what is wrong with the file.
    pub fn open(path: &Path, own: &[String], caller: &Arc<Caller>) -> anyhow::Result<Arc<Self>> {
        let shown = || path.display().to_string();
        let text = limited_file::read_config(path).with_context(shown)?;
        let config = parse(&text, own).map_err(anyhow::Error::msg);
        let config = config.with_context(shown)?;
        let issuers = OperatorIssuers::new(config.jwt, &caller.of_operator());
        let issuers = Arc::new(issuers.with_context(shown)?);
        let opened = Arc::new(Self {
            file: FollowedFile::new(path, (FLAG, "authentication"), text),
            own: own.to_vec(),
            anonymous: config.anonymous,
            issuers,
        });
        let issuers = Arc::clone(&opened.issuers);
        let follower = Arc::downgrade(&opened);
        tokio::spawn(async move {
            issuers.visit().await;
            drop(issuers);
            FollowedFile::follow(follower).await;
        });
        Ok(opened)
    }

    /// Returns where the file admits strangers; `None` if it does not say.
    pub fn anonymous(&self) -> Option<&AnonymousAccess> {
        self.anonymous.as_ref()
    }

    /// Returns the authenticator of the tokens of the issuers.
    pub fn issuers(&self) -> &Arc<OperatorIssuers> {
        &self.issuers
    }
}

impl Follower for IssuersFile {
    fn file(&self) -> &FollowedFile {
        &self.file
    }

    async fn replace(&self, text: &[u8]) -> Result<(), Refused> {
        let config = parse(text, &self.own).map_err(Refused::Wrong)?;
        if config.anonymous != self.anonymous {
            return Err(Refused::Wrong(ANONYMOUS.to_owned()));
        }
        let replaced = self.issuers.replace(config.jwt).await;
        replaced.map_err(|why| Refused::NotNow(why.to_string()))
    }
}

fn parse(text: &[u8], own: &[String]) -> Result<AuthenticationConfig, String> {
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    AuthenticationConfig::parse(text, &own).map_err(|error| error.to_string())
}

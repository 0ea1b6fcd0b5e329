//! The file of `--authentication-config`, and the metrics of its issuers. This module does not know how
//! tokens are judged.

use crate::cli::limited_file;
use crate::replica::followed_file::{FollowedFile, Follower, Refused, hash, shown};
use anyhow::Context;
use polyplane_auth::AnonymousAccess;
use polyplane_delegated::oidc::{AuthenticationConfig, OperatorIssuers};
use polyplane_outbound::Caller;
use polyplane_server::{Exposition, Kind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

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

/// Writes upstream's metrics of the keys of the operator's issuers, at the replica with this name.
pub fn expose_keys(issuers: &OperatorIssuers, replica: &str, out: &mut Exposition) {
    let id = hash(replica.as_bytes());
    let fetches = issuers.key_fetches().into_iter();
    let fetches = fetches.map(|(issuer, fetches)| (hash(issuer.as_bytes()), fetches));
    let fetches: Vec<_> = fetches.collect();
    let name = "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info";
    let help = "The newest keys of each issuer of the operator, by their hash.";
    out.family(name, Kind::Gauge, help);
    for (issuer, fetches) in &fetches {
        let Some(keys) = &fetches.keys else { continue };
        let keys = shown(keys);
        let labels = [
            ("apiserver_id_hash", id.as_str()),
            ("hash", keys.as_str()),
            ("jwt_issuer_hash", issuer.as_str()),
        ];
        out.sample(name, &labels, 1);
    }
    let name = "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds";
    let help = "When the keys of each issuer of the operator were last fetched, by result.";
    out.family(name, Kind::Gauge, help);
    for (issuer, fetches) in &fetches {
        for (result, time) in [("failure", fetches.failed), ("success", fetches.succeeded)] {
            let since = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
            let Some(since) = since else { continue };
            let labels = [
                ("apiserver_id_hash", id.as_str()),
                ("jwt_issuer_hash", issuer.as_str()),
                ("result", result),
            ];
            out.sample(name, &labels, since.as_secs_f64());
        }
    }
}

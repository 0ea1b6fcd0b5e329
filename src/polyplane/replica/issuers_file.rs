//! The file of `--authentication-config`, which is read again when it changes, as upstream does. This
//! module does not know how tokens are judged.

use crate::cli::limited_file;
use anyhow::Context;
use parking_lot::Mutex;
use polyplane_auth::{AnonymousAccess, digest_of, hex};
use polyplane_delegated::oidc::{AuthenticationConfig, OperatorIssuers};
use polyplane_outbound::Caller;
use polyplane_server::{Exposition, Kind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

/// Pause between two looks at the file, which read it as a whole.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const ANONYMOUS: &str = "anonymous: Forbidden: changed from initial configuration file";

/// The file, with the issuers that it names.
pub struct IssuersFile {
    path: PathBuf,
    /// The issuers of the server's own tokens, which the file may not name.
    own: Vec<String>,
    anonymous: Option<AnonymousAccess>,
    issuers: Arc<OperatorIssuers>,
    known: Mutex<Known>,
    succeeded: Reloads,
    failed: Reloads,
}

/// What is known of the content of the file.
#[derive(Default)]
struct Known {
    /// The newest text that was judged for good.
    text: Vec<u8>,
    /// The SHA-256 of the text that the issuers are from.
    used: String,
    /// The newest complaint, so that each is logged once.
    complaint: String,
}

/// How often the file was read again with one result, and when last.
#[derive(Debug, Default)]
struct Reloads {
    count: AtomicU64,
    /// Seconds since 1970.
    last: AtomicU64,
}

impl Reloads {
    fn count(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.last
            .store(now.unwrap_or_default().as_secs(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The reason why a changed file has no effect.
enum Refused {
    /// It is wrong, and stays so until it is changed.
    Wrong(String),
    /// It may have an effect later.
    NotNow(String),
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
        let file = Arc::new(Self {
            path: path.to_owned(),
            own: own.to_vec(),
            anonymous: config.anonymous,
            issuers,
            known: Mutex::new(Known {
                used: hash(&text),
                text,
                complaint: String::new(),
            }),
            succeeded: Reloads::default(),
            failed: Reloads::default(),
        });
        tokio::spawn(Self::follow(Arc::downgrade(&file)));
        Ok(file)
    }

    /// Returns where the file admits strangers; `None` if it does not say.
    pub fn anonymous(&self) -> Option<&AnonymousAccess> {
        self.anonymous.as_ref()
    }

    /// Returns the authenticator of the tokens of the issuers.
    pub fn issuers(&self) -> &Arc<OperatorIssuers> {
        &self.issuers
    }

    async fn follow(file: Weak<Self>) {
        if let Some(file) = file.upgrade() {
            file.issuers.visit().await;
        }
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(file) = file.upgrade() else {
                return;
            };
            file.look().await;
        }
    }

    async fn look(&self) {
        let path = self.path.clone();
        let read = move || limited_file::read_config(&path);
        let Ok(read) = tokio::task::spawn_blocking(read).await else {
            return;
        };
        let replaced = match read {
            Ok(text) if self.known.lock().text == text => return,
            Ok(text) => self.replace(text).await,
            Err(error) => Err(Refused::NotNow(format!("{error:#}"))),
        };
        let path = self.path.display();
        match replaced {
            Ok(()) => {
                self.succeeded.count();
                tracing::info!("--authentication-config: {path} was read again");
            }
            Err(Refused::Wrong(why) | Refused::NotNow(why)) => {
                self.failed.count();
                let complaint = std::mem::replace(&mut self.known.lock().complaint, why.clone());
                if complaint != why {
                    tracing::error!(
                        "--authentication-config: {path} has changed without effect: {why}"
                    );
                }
            }
        }
    }

    async fn replace(&self, text: Vec<u8>) -> Result<(), Refused> {
        let parsed = parse(&text, &self.own).and_then(|config| match config.anonymous {
            anonymous if anonymous == self.anonymous => Ok(config.jwt),
            _ => Err(ANONYMOUS.to_owned()),
        });
        let jwt = match parsed {
            Ok(jwt) => jwt,
            Err(why) => {
                self.known.lock().text = text;
                return Err(Refused::Wrong(why));
            }
        };
        let replaced = self.issuers.replace(jwt).await;
        replaced.map_err(|why| Refused::NotNow(why.to_string()))?;
        *self.known.lock() = Known {
            used: hash(&text),
            text,
            complaint: String::new(),
        };
        Ok(())
    }

    /// Writes upstream's metrics of the reading of the file, at the replica with this name.
    pub fn expose(&self, replica: &str, out: &mut Exposition) {
        let id = hash(replica.as_bytes());
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let results = [("failure", &self.failed), ("success", &self.succeeded)];
        let results = results.map(|(status, reloads)| {
            let labels = [("apiserver_id_hash", id.as_str()), ("status", status)];
            (labels, load(&reloads.count), load(&reloads.last))
        });
        let results = results.iter().filter(|(_, count, _)| *count > 0);
        let name =
            "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds";
        let help = "When the changed configuration of authentication was last read, by result.";
        out.family(name, Kind::Gauge, help);
        for (labels, _, last) in results.clone() {
            out.sample(name, labels, last);
        }
        let name = "apiserver_authentication_config_controller_automatic_reloads_total";
        let help = "How often the changed configuration of authentication was read, by result.";
        out.family(name, Kind::Counter, help);
        for (labels, count, _) in results {
            out.sample(name, labels, count);
        }
        let name = "apiserver_authentication_config_controller_last_config_info";
        let help = "The configuration of authentication in use, by its hash.";
        out.family(name, Kind::Gauge, help);
        let used = self.known.lock().used.clone();
        let labels = [("apiserver_id_hash", id.as_str()), ("hash", used.as_str())];
        out.sample(name, &labels, 1);
    }
}

fn parse(text: &[u8], own: &[String]) -> Result<AuthenticationConfig, String> {
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    AuthenticationConfig::parse(text, &own).map_err(|error| error.to_string())
}

/// Returns the hash of a text as upstream writes it.
fn hash(text: &[u8]) -> String {
    format!("sha256:{}", hex(&digest_of(text)))
}

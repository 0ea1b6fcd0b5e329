//! A file that is read again when it changes, as upstream reads the files of `--authentication-config` and
//! `--authorization-config`. This module does not know what the files mean.

use crate::cli::limited_file;
use parking_lot::Mutex;
use polyplane_auth::{digest_of, hex};
use polyplane_server::{Exposition, Kind};
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::{Duration, SystemTime};

/// Pause between two looks at the file, which read it as a whole.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The reason why a changed file has no effect.
pub enum Refused {
    /// It is wrong, and stays so until it is changed.
    Wrong(String),
    /// It may have an effect later.
    NotNow(String),
}

/// Who uses what a file says.
pub trait Follower: Send + Sync + 'static {
    /// Returns the file.
    fn file(&self) -> &FollowedFile;

    /// Makes a changed text of the file take effect.
    fn replace(&self, text: &[u8]) -> impl Future<Output = Result<(), Refused>> + Send;
}

/// A file, and what is known of it.
pub struct FollowedFile {
    path: PathBuf,
    /// The flag that names it, without its dashes: `authentication-config`.
    flag: &'static str,
    /// What it configures, as upstream's metrics name it.
    subject: &'static str,
    known: Mutex<Known>,
}

/// What is known of the content of the file.
struct Known {
    /// The newest text that was judged for good.
    text: Vec<u8>,
    /// The SHA-256 of the text in use.
    used: String,
    /// The newest complaint, so that each is logged once.
    complaint: String,
    succeeded: Reloads,
    failed: Reloads,
}

/// How often the file was read again with one result, and when last.
#[derive(Clone, Copy, Debug, Default)]
struct Reloads {
    count: u64,
    /// Since 1970.
    last: Duration,
}

impl Reloads {
    fn count(&mut self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.last = now.unwrap_or_default();
        self.count += 1;
    }
}

impl FollowedFile {
    /// Creates the record of a file whose text is in use.
    pub fn new(path: &Path, (flag, subject): (&'static str, &'static str), text: Vec<u8>) -> Self {
        Self {
            path: path.to_owned(),
            flag,
            subject,
            known: Mutex::new(Known {
                used: hash(&text),
                text,
                complaint: String::new(),
                succeeded: Reloads::default(),
                failed: Reloads::default(),
            }),
        }
    }

    /// Looks at the file at intervals for as long as somebody holds its follower.
    pub async fn follow<F: Follower>(follower: Weak<F>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(follower) = follower.upgrade() else {
                return;
            };
            follower.file().look(&*follower).await;
        }
    }

    async fn look<F: Follower>(&self, follower: &F) {
        let path = self.path.clone();
        let read = move || limited_file::read_config(&path);
        let Ok(read) = tokio::task::spawn_blocking(read).await else {
            return;
        };
        let replaced = match read {
            Ok(text) if self.is_judged(&text) => return,
            Ok(text) => match follower.replace(&text).await {
                Ok(()) => Ok(text),
                Err(Refused::Wrong(why)) => {
                    self.known.lock().text = text;
                    Err(why)
                }
                Err(Refused::NotNow(why)) => Err(why),
            },
            Err(error) => Err(format!("{error:#}")),
        };
        let (flag, path) = (self.flag, self.path.display());
        let mut known = self.known.lock();
        match replaced {
            Ok(text) => {
                known.succeeded.count();
                known.used = hash(&text);
                known.text = text;
                known.complaint.clear();
                tracing::info!("--{flag}: {path} was read again");
            }
            Err(why) => {
                // Once for each text that has no effect, however often it is tried.
                if known.complaint != why {
                    known.failed.count();
                    tracing::error!("--{flag}: {path} has changed without effect: {why}");
                    known.complaint = why;
                }
            }
        }
    }

    /// Returns whether a text was judged before, so that there is nothing to do.
    fn is_judged(&self, text: &[u8]) -> bool {
        let mut known = self.known.lock();
        let is_judged = known.text == text;
        if is_judged {
            // Should the file go away again, that is worth another line.
            known.complaint.clear();
        }
        is_judged
    }

    /// Writes upstream's metrics of the reading of the file, at the replica with this name.
    pub fn expose(&self, replica: &str, out: &mut Exposition) {
        let id = hash(replica.as_bytes());
        let (used, results) = {
            let known = self.known.lock();
            let results = [("failure", known.failed), ("success", known.succeeded)];
            (known.used.clone(), results)
        };
        let results = results.iter().filter(|(_, reloads)| reloads.count > 0);
        let results = results.map(|(status, reloads)| {
            let labels = [("apiserver_id_hash", id.as_str()), ("status", *status)];
            (labels, reloads)
        });
        let subject = self.subject;
        let prefix = format!("apiserver_{subject}_config_controller");
        let name = format!("{prefix}_automatic_reload_last_timestamp_seconds");
        let help = format!("When the changed configuration of {subject} was last read, by result.");
        out.family(&name, Kind::Gauge, &help);
        for (labels, reloads) in results.clone() {
            out.sample(&name, &labels, reloads.last.as_secs_f64());
        }
        let name = format!("{prefix}_automatic_reloads_total");
        let help = format!("How often the changed configuration of {subject} was read, by result.");
        out.family(&name, Kind::Counter, &help);
        for (labels, reloads) in results {
            out.sample(&name, &labels, reloads.count);
        }
        let name = format!("{prefix}_last_config_info");
        let help = format!("The configuration of {subject} in use, by its hash.");
        out.family(&name, Kind::Gauge, &help);
        let labels = [("apiserver_id_hash", id.as_str()), ("hash", used.as_str())];
        out.sample(&name, &labels, 1);
    }
}

/// Returns the hash of a text as upstream writes it.
pub fn hash(text: &[u8]) -> String {
    shown(&digest_of(text))
}

/// Returns a SHA-256 as upstream writes it.
pub fn shown(digest: &[u8]) -> String {
    format!("sha256:{}", hex(digest))
}

//! Files with one bearer token each: the administrator's, and the one that may read metrics. Both are read
//! again while the server runs. This module does not know what the tokens open.
//!
//! Invariant: no token becomes that of one file while it is that of the other. So who may read metrics is never
//! the administrator.

use anyhow::{Context, anyhow, bail};
use polyplane_auth::{MetricsToken, ReplaceableToken, SYSTEM_MASTERS, UserInfo};
use polyplane_pki::{Pki, TOKEN_BYTES, read_admin_token};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause between two reads of a file. A kubelet needs up to a minute to replace the file of a mounted
/// Secret, so a shorter pause gains nothing.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// What messages call the administrator's token.
const ADMIN: &str = "the administrator's token";
/// What messages call the token that may read metrics.
const METRICS: &str = "the metrics token";

/// The bearer tokens of a server itself. Its replicas in one process share them, so that each file is read
/// once.
#[derive(Clone)]
pub struct ServerTokens {
    /// The token that proves the administrator.
    pub admin: Arc<ReplaceableToken>,
    /// The token that may read metrics, if they have one of their own.
    pub metrics: Option<Arc<MetricsToken>>,
}

impl ServerTokens {
    /// Returns the administrator's token alone. If it is from a file, the file is read again for as long as
    /// somebody holds the token.
    pub fn of_admin(pki: &Pki) -> Self {
        let tokens = Self {
            admin: admin(pki),
            metrics: None,
        };
        tokio::spawn(follow(tokens.files(pki, None)));
        tokens
    }

    /// Returns the administrator's token and the one in the file `metrics`. The files are read again for as
    /// long as somebody holds their tokens.
    ///
    /// # Errors
    /// Returns an error if the file `metrics` contains no token, or the administrator's.
    pub fn with_metrics(pki: &Pki, metrics: &Path) -> anyhow::Result<Self> {
        let admin = admin(pki);
        let read = read_metrics(metrics, &admin).context("--metrics-token-file")?;
        let tokens = Self {
            admin,
            metrics: Some(Arc::new(read)),
        };
        tokio::spawn(follow(tokens.files(pki, Some(metrics))));
        Ok(tokens)
    }

    /// Returns the files of the tokens, of which `metrics` has the one for metrics.
    fn files(&self, pki: &Pki, metrics: Option<&Path>) -> Vec<TokenFile> {
        let admin_token = Arc::downgrade(&self.admin);
        let metrics_token = match &self.metrics {
            Some(metrics) => Arc::downgrade(metrics.token()),
            None => Weak::new(),
        };
        let admin = pki.admin_token_file().map(|path| TokenFile {
            path: path.to_owned(),
            name: ADMIN,
            read: |path| Ok(read_admin_token(path)?),
            token: Weak::clone(&admin_token),
            other: (METRICS, Weak::clone(&metrics_token)),
            complaint: String::new(),
        });
        let metrics = metrics.map(|path| TokenFile {
            path: path.to_owned(),
            name: METRICS,
            read: token_in,
            token: metrics_token,
            other: (ADMIN, admin_token),
            complaint: String::new(),
        });
        admin.into_iter().chain(metrics).collect()
    }
}

fn admin(pki: &Pki) -> Arc<ReplaceableToken> {
    let user = UserInfo::new("admin", &[SYSTEM_MASTERS]).authenticated();
    Arc::new(ReplaceableToken::new(pki.admin_token(), user))
}

fn read_metrics(path: &Path, admin: &ReplaceableToken) -> anyhow::Result<MetricsToken> {
    let token = token_in(path)?;
    if admin.is(&token) {
        return Err(in_both(path, ADMIN));
    }
    Ok(MetricsToken::new(&token))
}

/// Returns the complaint about a file whose token is that of the other file, which is called `other`.
fn in_both(path: &Path, other: &str) -> anyhow::Error {
    anyhow!(
        "{} holds {other} too; the administrator's may do everything, so give metrics a token of their own",
        path.display()
    )
}

/// Reads the files at intervals for as long as somebody holds one of their tokens, and uses other tokens as
/// soon as it finds them.
async fn follow(mut files: Vec<TokenFile>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if files.iter().all(|file| file.token.strong_count() == 0) {
            return;
        }
        // One after the other: if both have the same new token, the second is refused.
        for file in &mut files {
            file.look().await;
        }
    }
}

/// A file with one token.
struct TokenFile {
    path: PathBuf,
    /// What log lines call the token.
    name: &'static str,
    read: fn(&Path) -> anyhow::Result<String>,
    /// The token that follows the file.
    token: Weak<ReplaceableToken>,
    /// The token that must not be in this file too, and what messages call it.
    other: (&'static str, Weak<ReplaceableToken>),
    /// The newest complaint, so that each is logged once.
    complaint: String,
}

impl TokenFile {
    /// Reads the file. While it cannot be used, the earlier token stays valid.
    async fn look(&mut self) {
        let Some(token) = self.token.upgrade() else {
            return;
        };
        let (path, read, name) = (self.path.clone(), self.read, self.name);
        let Ok(found) = tokio::task::spawn_blocking(move || read(&path)).await else {
            return;
        };
        match found.and_then(|found| self.not_of_other(found)) {
            Ok(found) => {
                self.complaint.clear();
                if token.replace(&found) {
                    tracing::info!("{name} was replaced");
                }
            }
            Err(error) => {
                let complaint = format!("{error:#}");
                if self.complaint != complaint {
                    tracing::warn!("{name} stays as it was: {complaint}");
                    self.complaint = complaint;
                }
            }
        }
    }

    /// Returns the token that was found in the file, unless the other file has it.
    fn not_of_other(&self, found: String) -> anyhow::Result<String> {
        let (name, other) = &self.other;
        match other.upgrade() {
            Some(other) if other.is(&found) => Err(in_both(&self.path, name)),
            Some(_) | None => Ok(found),
        }
    }
}

fn token_in(path: &Path) -> anyhow::Result<String> {
    let (least, most) = (*TOKEN_BYTES.start(), *TOKEN_BYTES.end());
    let shown = path.display();
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(most as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {shown}"))?;
    if bytes.len() > most {
        bail!("{shown} is longer than {most} bytes, so it is no token");
    }
    let token = std::str::from_utf8(&bytes).with_context(|| format!("{shown} is not text"))?;
    let token = token.trim();
    if token.contains(char::is_whitespace) {
        bail!("{shown} holds more than one word; a token is one");
    }
    if token.len() < least {
        bail!(
            "{shown} holds {} characters; give a token of at least {least} random ones",
            token.len()
        );
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_auth::{Authentication, Authenticator as _, Credentials};
    use std::time::SystemTime;

    fn folder_with(text: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        std::fs::write(&path, text).expect("written");
        (folder, path)
    }

    #[test]
    fn a_file_without_a_token_of_its_own_is_refused() {
        let admin = ReplaceableToken::new("0123456789abcdef-admin", UserInfo::new("admin", &[]));
        for (text, word) in [
            (&b""[..], "0 characters"),
            (b"short\n", "5 characters"),
            (b"two words that are long", "more than one word"),
            (b"\xff\xfe0123456789abcdef", "not text"),
            (b"0123456789abcdef-admin\n", "the administrator's token"),
            (&[b'x'; 5000], "longer than"),
        ] {
            let (_folder, path) = folder_with(text);
            let refused = read_metrics(&path, &admin);
            let said = format!("{:#}", refused.err().expect("refused"));
            assert!(said.contains(word), "{said}");
        }
        let gone = read_metrics(Path::new("/nowhere/token"), &admin);
        assert!(format!("{:#}", gone.err().expect("refused")).contains("cannot read"));
    }

    async fn is_accepted(token: &ReplaceableToken, bearer: &str) -> bool {
        let credentials = Credentials {
            bearer: Some(bearer),
            chain: None,
            path: "/api",
            now: SystemTime::UNIX_EPOCH,
            source: 0,
        };
        let judged = token.authenticate(&credentials).await;
        matches!(judged, Authentication::User(_))
    }

    #[tokio::test]
    async fn a_changed_file_replaces_the_token_and_a_file_without_one_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let pki = Pki::load_or_create(folder.path()).expect("created");
        let tokens = ServerTokens::of_admin(&pki);
        let token = &tokens.admin;
        let mut files = tokens.files(&pki, None);
        let path = folder.path().join("admin.token");
        let mut known = pki.admin_token().to_owned();
        for (text, replaces) in [
            (Some("0123456789abcdef-first\n"), true),
            (Some("short"), false),
            (Some("two words that are long"), false),
            (None, false),
            (Some("0123456789abcdef-second"), true),
        ] {
            match text {
                Some(text) => std::fs::write(&path, text).expect("written"),
                None => std::fs::remove_file(&path).expect("it was there"),
            }
            files[0].look().await;
            if let (Some(text), true) = (text, replaces) {
                assert!(!is_accepted(token, &known).await, "{known}");
                text.trim().clone_into(&mut known);
            }
            assert!(is_accepted(token, &known).await, "{text:?}");
            assert_eq!(path.exists(), text.is_some(), "none is made");
        }
    }

    #[tokio::test]
    async fn a_token_of_one_file_is_not_taken_from_the_other() {
        const SCRAPER: &str = "0123456789abcdef-scraper";
        const NEXT: &str = "0123456789abcdef-next";
        let folder = tempfile::tempdir().expect("a folder");
        let pki = Pki::load_or_create(folder.path()).expect("created");
        let [admin_path, path] = ["admin.token", "metrics"].map(|name| folder.path().join(name));
        let write = |path: &Path, token: &str| std::fs::write(path, token).expect("written");
        let first = pki.admin_token();
        write(&path, first);
        let refused = ServerTokens::with_metrics(&pki, &path);
        let said = format!("{:#}", refused.err().expect("refused"));
        assert!(said.starts_with("--metrics-token-file"), "{said}");
        write(&path, SCRAPER);
        let tokens = ServerTokens::with_metrics(&pki, &path).expect("two tokens");
        let metrics = tokens.metrics.as_ref().expect("it has a file").token();
        let mut files = tokens.files(&pki, Some(&path));
        // What is written where, and what the administrator's and the metrics token are then.
        for (written, token, admin_is, metrics_is) in [
            (&admin_path, SCRAPER, first, SCRAPER),
            // The administrator's file is read first, and finds that metrics have its token still.
            (&path, NEXT, first, NEXT),
            (&path, NEXT, SCRAPER, NEXT),
            (&path, SCRAPER, SCRAPER, NEXT),
        ] {
            write(written, token);
            for file in &mut files {
                file.look().await;
            }
            assert!(tokens.admin.is(admin_is), "{admin_is}");
            assert!(metrics.is(metrics_is), "{metrics_is}");
        }
        assert!(files[0].complaint.is_empty(), "{}", files[0].complaint);
        assert!(files[1].complaint.contains(ADMIN), "{}", files[1].complaint);
    }
}

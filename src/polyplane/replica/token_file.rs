//! Files with one bearer token each: the administrator's, and the one that may read metrics. Both are read
//! again while the server runs. This module does not know what the tokens open.

use anyhow::{Context, bail};
use polyplane_auth::{MetricsToken, ReplaceableToken, SYSTEM_MASTERS, UserInfo};
use polyplane_pki::{Pki, read_admin_token};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause between two reads of a file. A kubelet needs up to a minute to replace the file of a mounted
/// Secret, so a shorter pause gains nothing.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Longest file with a metrics token, in bytes. A longer file is not a token.
const TOKEN_BYTES_MAX: usize = 4096;
/// Shortest token, in bytes. A shorter one can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// Returns the token that proves the administrator. If it is from a file, the file is read again for as
/// long as somebody holds the token.
pub fn admin(pki: &Pki) -> Arc<ReplaceableToken> {
    let user = UserInfo::new("admin", &[SYSTEM_MASTERS]).authenticated();
    let token = Arc::new(ReplaceableToken::new(pki.admin_token(), user));
    if let Some(file) = TokenFile::of_admin(pki) {
        tokio::spawn(file.follow(Arc::downgrade(&token)));
    }
    token
}

/// Reads the token that may read metrics. Its file is read again for as long as somebody holds the token.
///
/// # Errors
/// Returns an error if the file contains no token, or the administrator's.
pub fn metrics(path: &Path, admin_token: &str) -> anyhow::Result<Arc<MetricsToken>> {
    let token = token_in(path).context("--metrics-token-file")?;
    if token == admin_token {
        bail!(
            "--metrics-token-file: {} holds the administrator's token, which may do everything; give \
             metrics a token of their own",
            path.display()
        );
    }
    let token = Arc::new(MetricsToken::new(&token));
    let file = TokenFile::new(path, "the metrics token", token_in);
    tokio::spawn(file.follow(Arc::downgrade(token.token())));
    Ok(token)
}

/// A file with one token.
struct TokenFile {
    path: PathBuf,
    /// What log lines call the token.
    name: &'static str,
    read: fn(&Path) -> anyhow::Result<String>,
    /// Whether the log says already that the file cannot be used.
    complained: bool,
}

impl TokenFile {
    fn new(path: &Path, name: &'static str, read: fn(&Path) -> anyhow::Result<String>) -> Self {
        Self {
            path: path.to_owned(),
            name,
            read,
            complained: false,
        }
    }

    fn of_admin(pki: &Pki) -> Option<Self> {
        let path = pki.admin_token_file()?;
        Some(Self::new(path, "the administrator's token", |path| {
            Ok(read_admin_token(path)?)
        }))
    }

    /// Reads the file at intervals for as long as somebody holds `token`, and uses another token as soon
    /// as it finds one.
    async fn follow(mut self, token: Weak<ReplaceableToken>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(token) = token.upgrade() else {
                return;
            };
            self.look(&token).await;
        }
    }

    /// Reads the file. While it cannot be used, the earlier token stays valid.
    async fn look(&mut self, token: &ReplaceableToken) {
        let (path, read, name) = (self.path.clone(), self.read, self.name);
        match tokio::task::spawn_blocking(move || read(&path)).await {
            Ok(Ok(found)) => {
                self.complained = false;
                if token.replace(&found) {
                    tracing::info!("{name} was replaced");
                }
            }
            Ok(Err(error)) if !self.complained => {
                self.complained = true;
                tracing::warn!("{name} stays as it was: {error:#}");
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

fn token_in(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| {
            file.take(TOKEN_BYTES_MAX as u64 + 1)
                .read_to_end(&mut bytes)
        })
        .with_context(|| format!("cannot read {shown}"))?;
    if bytes.len() > TOKEN_BYTES_MAX {
        bail!("{shown} is longer than {TOKEN_BYTES_MAX} bytes, so it is no token");
    }
    let token = std::str::from_utf8(&bytes).with_context(|| format!("{shown} is not text"))?;
    let token = token.trim();
    if token.contains(char::is_whitespace) {
        bail!("{shown} holds more than one word; a token is one");
    }
    if token.len() < TOKEN_BYTES_MIN {
        bail!(
            "{shown} holds {} characters; give a token of at least {TOKEN_BYTES_MIN} random ones",
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
        for (text, word) in [
            (&b""[..], "0 characters"),
            (b"short\n", "5 characters"),
            (b"two words that are long", "more than one word"),
            (b"\xff\xfe0123456789abcdef", "not text"),
            (b"0123456789abcdef-admin\n", "the administrator's token"),
            (&[b'x'; 5000], "longer than"),
        ] {
            let (_folder, path) = folder_with(text);
            let refused = metrics(&path, "0123456789abcdef-admin");
            let said = format!("{:#}", refused.err().expect("refused"));
            assert!(
                said.contains(word) && said.contains("--metrics-token-file"),
                "{said}"
            );
        }
        let gone = metrics(Path::new("/nowhere/token"), "admin");
        assert!(format!("{:#}", gone.err().expect("refused")).contains("cannot read"));
    }

    async fn is_accepted(token: &ReplaceableToken, bearer: &str) -> bool {
        let credentials = Credentials {
            bearer: Some(bearer),
            chain: None,
            path: "/api",
            now: SystemTime::UNIX_EPOCH,
        };
        let judged = token.authenticate(&credentials).await;
        matches!(judged, Authentication::User(_))
    }

    #[tokio::test]
    async fn a_changed_file_replaces_the_token_and_a_file_without_one_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let pki = Pki::load_or_create(folder.path()).expect("created");
        let token = admin(&pki);
        let mut file = TokenFile::of_admin(&pki).expect("the folder has one");
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
            file.look(&token).await;
            if let (Some(text), true) = (text, replaces) {
                assert!(!is_accepted(&token, &known).await, "{known}");
                text.trim().clone_into(&mut known);
            }
            assert!(is_accepted(&token, &known).await, "{text:?}");
            assert_eq!(path.exists(), text.is_some(), "none is made");
        }
    }
}

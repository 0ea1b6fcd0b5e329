//! The credentials of this client, and the CA of the servers. Owns reading them from files, again on
//! each call: certificates expire and passwords change while the store is open.
//!
//! Must not know connections.

use std::fs;
use std::path::PathBuf;

use super::EtcdOptions;
use crate::error::OpenError;

/// A certificate, a key or a password, or where it is read from.
#[derive(Clone)]
pub enum Secret {
    /// This text, as long as the store is open.
    Given(Vec<u8>),
    /// The content of a file. It is read again every few seconds, and new content is used as soon as
    /// etcd accepts it.
    File(PathBuf),
}

impl From<Vec<u8>> for Secret {
    fn from(text: Vec<u8>) -> Self {
        Self::Given(text)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::Given(text.into_bytes())
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::Given(text.into())
    }
}

impl Secret {
    /// Returns whether the secret may change.
    fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

    fn read(&self) -> Result<Vec<u8>, OpenError> {
        match self {
            Self::Given(text) => Ok(text.clone()),
            Self::File(path) => fs::read(path).map_err(|error| OpenError::Options {
                reason: format!("{} cannot be read: {error}", path.display()),
            }),
        }
    }
}

/// The content of the files that the options name, at one moment.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Name and password.
    pub(super) user: Option<(String, String)>,
    /// The CA of the servers' certificates.
    pub(super) ca: Option<Vec<u8>>,
    /// The client's certificate and its key.
    pub(super) cert_and_key: Option<(Vec<u8>, Vec<u8>)>,
}

impl Credentials {
    /// Returns whether reading the credentials again may give others.
    pub(super) fn may_change(options: &EtcdOptions) -> bool {
        secrets(options).any(Secret::is_file)
    }

    /// Reads all credentials. Blocks while it reads files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or a password is not text.
    pub(super) fn read(options: &EtcdOptions) -> Result<Self, OpenError> {
        let tls = options.tls.as_ref();
        let ca = tls.and_then(|tls| tls.ca.as_ref());
        let cert_and_key = tls.and_then(|tls| tls.cert_and_key.as_ref());
        let user = options.user.as_ref().map(|(name, password)| {
            let text = String::from_utf8(password.read()?).map_err(|_| OpenError::Options {
                reason: format!("the password of {name} is not text"),
            })?;
            // Editors end a file with a line break, but no password ends with one.
            Ok((name.clone(), text.trim_end_matches(['\r', '\n']).to_owned()))
        });
        let pair = cert_and_key.map(|(cert, key)| Ok((cert.read()?, key.read()?)));
        Ok(Self {
            user: user.transpose()?,
            ca: ca.map(Secret::read).transpose()?,
            cert_and_key: pair.transpose()?,
        })
    }
}

fn secrets(options: &EtcdOptions) -> impl Iterator<Item = &Secret> {
    let password = options.user.iter().map(|(_, password)| password);
    let ca = options.tls.iter().flat_map(|tls| &tls.ca);
    let pair = options.tls.iter().flat_map(|tls| &tls.cert_and_key);
    let pair = pair.flat_map(|(cert, key)| [cert, key]);
    password.chain(ca).chain(pair)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::EtcdTls;

    #[test]
    fn files_are_read_each_time_and_given_text_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("written");
            Secret::File(path)
        };
        let given = EtcdOptions {
            user: Some(("planes".to_owned(), "word".into())),
            ..EtcdOptions::default()
        };
        assert!(!Credentials::may_change(&given));
        let options = EtcdOptions {
            user: Some(("planes".to_owned(), file("password", "one\n"))),
            tls: Some(EtcdTls {
                ca: Some("ca".into()),
                cert_and_key: Some((file("cert", "c1"), file("key", "k1"))),
                server_name: None,
            }),
            ..EtcdOptions::default()
        };
        assert!(Credentials::may_change(&options));
        let first = Credentials::read(&options).expect("read");
        assert_eq!(first.user, Some(("planes".to_owned(), "one".to_owned())));
        assert_eq!(first.cert_and_key, Some((b"c1".into(), b"k1".into())));
        assert!(Credentials::read(&options).is_ok_and(|again| again == first));
        file("password", "two");
        let second = Credentials::read(&options).expect("read");
        assert_eq!(second.user, Some(("planes".to_owned(), "two".to_owned())));
        assert!(second != first);
        fs::remove_file(folder.path().join("key")).expect("removed");
        let missing = Credentials::read(&options).map(|_| ());
        let reason = missing.expect_err("a file is missing").to_string();
        assert!(reason.contains("key cannot be read"), "{reason}");
    }
}

//! The file with the root secret, from which the keys of all control planes derive.
//!
//! Its one line has the number of the secret and its 32 random bytes in base64 (URL, no padding).

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use polyplane_auth::{RootSecret, SECRET_BYTES, SecretEpoch};
use zeroize::Zeroizing;

use crate::files::{lock, read_secret, write_private};
use crate::{PkiError, make_folder};

/// The name of the file in the certificate folder.
pub const ROOT_SECRET_FILE: &str = "root.secret";
/// The number of a root secret that this program makes.
const FIRST: SecretEpoch = SecretEpoch(1);

/// Reads a root secret; returns `None` if the file does not exist.
///
/// # Errors
/// Returns an error if the file cannot be read or does not have the form of a root secret.
pub fn read_root_secret(path: &Path) -> Result<Option<RootSecret>, PkiError> {
    let Some(text) = read_secret(path)?.map(Zeroizing::new) else {
        return Ok(None);
    };
    match parse(&text) {
        Some(secret) => Ok(Some(secret)),
        None => Err(PkiError::Damaged {
            path: path.to_owned(),
            holds: "a root secret, which is one line with a number and 43 characters of base64",
        }),
    }
}

/// Makes the root secret of a certificate folder, unless the folder has one.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn make_root_secret(folder: &Path) -> Result<(), PkiError> {
    make_folder(folder)?;
    let _alone = lock(folder);
    make_in(folder)
}

/// Makes the root secret, for callers that have locked the folder.
pub(crate) fn make_in(folder: &Path) -> Result<(), PkiError> {
    let path = folder.join(ROOT_SECRET_FILE);
    if path.exists() {
        return Ok(());
    }
    let mut secret = Zeroizing::new([0_u8; SECRET_BYTES]);
    aws_lc_rs::rand::fill(&mut *secret).map_err(|_| PkiError::Write {
        path: path.clone(),
        source: io::Error::other("the system gives no random bytes"),
    })?;
    let encoded = Zeroizing::new(URL_SAFE_NO_PAD.encode(secret.as_slice()));
    let line = Zeroizing::new(format!("{} {}\n", FIRST.0, *encoded));
    write_private(&path, line.as_bytes())
}

fn parse(text: &str) -> Option<RootSecret> {
    let mut words = text.split_ascii_whitespace();
    let (number, encoded) = (words.next()?, words.next()?);
    if words.next().is_some() {
        return None;
    }
    let number = number.parse().ok().filter(|number| *number > 0)?;
    let mut secret = Zeroizing::new([0_u8; SECRET_BYTES]);
    let length = URL_SAFE_NO_PAD.decode_slice(encoded, &mut *secret).ok()?;
    (length == SECRET_BYTES).then(|| RootSecret::new(SecretEpoch(number), &secret))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pki;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_folder_of_an_earlier_release_gets_a_root_secret_only_if_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(ROOT_SECRET_FILE);
        let fresh = Pki::load_or_create(folder.path()).expect("made");
        let first = fresh.root_secret().expect("made with the CA").check_value();
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_file(&path).expect("there");
        let earlier = Pki::load_or_create(folder.path()).expect("read");
        assert!(earlier.root_secret().is_none());
        make_root_secret(folder.path()).expect("made");
        make_root_secret(folder.path()).expect("kept");
        let read = |_| {
            let pki = Pki::load_or_create(folder.path()).expect("read");
            pki.root_secret().expect("made").check_value()
        };
        let [second, third] = [0, 1].map(read);
        assert_ne!(first, second);
        assert_eq!(second, third);
    }

    #[test]
    fn anything_but_one_secret_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        assert!(read_root_secret(&path).expect("no file").is_none());
        let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
        fs::write(&path, format!("7 {key}\n")).expect("written");
        let read = read_root_secret(&path).expect("read").expect("there");
        assert_eq!(read.epoch(), SecretEpoch(7));
        for text in [
            String::new(),
            key.to_owned(),
            format!("0 {key}"),
            format!("-1 {key}"),
            format!("1 {key}="),
            format!("1 {key}AA"),
            format!("1 {}", &key[1..]),
            format!("1 {key}\n2 {key}"),
        ] {
            fs::write(&path, &text).expect("written");
            let refused = read_root_secret(&path).err().expect("refused").to_string();
            assert!(
                refused.contains("one line with a number"),
                "{text}: {refused}"
            );
            assert!(!refused.contains(&key[1..]), "the secret is shown");
        }
    }
}

//! Certificates that the operator provides, and may replace while the server runs.
//!
//! There is no background task: a handshake checks the times of the files, unless another one has
//! just checked them. So new handshakes use new certificates, and an idle server does nothing.
//!
//! Invariant: a certificate and key that do not belong together, because the operator has replaced
//! only one of them so far, never replace a pair that does.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use polyplane_ring::ReplicaId;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::role::{RoleError, Unmarked, replica_of};
use crate::{PkiError, read};

/// Shortest time between two checks of the files. Less would cost system calls in every handshake.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A certificate file and the file of its key.
#[derive(Clone, Debug)]
pub(crate) struct PairFiles {
    certificate: PathBuf,
    key: PathBuf,
}

impl PairFiles {
    /// Finds `<stem>.crt` and `<stem>.key`; returns `None` if neither exists.
    ///
    /// # Errors
    /// Returns an error if only one of them exists.
    pub(crate) fn find(folder: &Path, stem: &str) -> Result<Option<Self>, PkiError> {
        let pair = Self {
            certificate: folder.join(format!("{stem}.crt")),
            key: folder.join(format!("{stem}.key")),
        };
        match (pair.certificate.exists(), pair.key.exists()) {
            (true, true) => Ok(Some(pair)),
            (false, false) => Ok(None),
            (true, false) => Err(PkiError::Half { path: pair.key }),
            (false, true) => Err(PkiError::Half {
                path: pair.certificate,
            }),
        }
    }

    /// Returns the pair of these files, which are not looked at yet.
    pub(crate) fn given(certificate: PathBuf, key: PathBuf) -> Self {
        Self { certificate, key }
    }

    /// Returns the certificate's file.
    pub(crate) fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// Returns the files to check for changes.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        vec![self.certificate.clone(), self.key.clone()]
    }

    /// Reads both files; the key must be that of the chain's first certificate.
    ///
    /// # Errors
    /// Returns an error if the files cannot be read or do not belong together.
    pub(crate) fn load(&self, provider: &CryptoProvider) -> Result<CertifiedKey, PkiError> {
        let chain = certificates(&self.certificate)?;
        let damaged = || PkiError::Damaged {
            path: self.key.clone(),
            holds: "a private key",
        };
        let text = read(&self.key)?.ok_or_else(damaged)?;
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| damaged())?;
        CertifiedKey::from_der(chain, key, provider).map_err(|source| PkiError::Mismatch {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })
    }
}

impl PairFiles {
    /// Reads both files of a peer certificate, which must have the role of a peer. Returns the replica that it
    /// names too, which may be [`SHARED_NAME`](crate::SHARED_NAME).
    ///
    /// # Errors
    /// Returns an error if [`load`](Self::load) does, or if the certificate is not that of a peer.
    pub(crate) fn load_peer(
        &self,
        unmarked: Unmarked,
        provider: &CryptoProvider,
    ) -> Result<(CertifiedKey, ReplicaId), PkiError> {
        let pair = self.load(provider)?;
        let unfit = |source| PkiError::Role {
            path: self.certificate.clone(),
            source,
        };
        let leaf = pair.cert.first().ok_or(RoleError::Unreadable);
        let named = leaf.and_then(|leaf| replica_of(leaf, unmarked));
        let named = named.map_err(unfit)?;
        Ok((pair, named))
    }
}

/// Reads the certificates of a PEM file, which must have at least one.
///
/// # Errors
/// Returns an error if the file is absent or cannot be read, or contains no certificate or a
/// damaged one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let damaged = || PkiError::Damaged {
        path: path.to_owned(),
        holds: "a certificate",
    };
    let text = read(path)?.ok_or_else(damaged)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let found = parsed.map_err(|_| damaged())?;
    if found.is_empty() {
        return Err(damaged());
    }
    Ok(found)
}

/// Detects that files changed.
pub(crate) struct Lookout {
    paths: Vec<PathBuf>,
    state: Mutex<State>,
}

struct State {
    looked: Instant,
    /// The stamps of the files whose content is in use.
    taken: Vec<Option<Stamp>>,
}

/// The properties that show that a file was changed or replaced. Links are followed: Kubernetes
/// replaces a mounted Secret by changing a link to the folder of its files, and the new files may
/// have the times and lengths of the old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    device: u64,
    inode: u64,
}

/// The stamps of the files at one moment.
pub(crate) struct Sight(Vec<Option<Stamp>>);

impl Lookout {
    /// Detects changes of `paths` from now on. Callers create this *before* they read the files, so
    /// that no change is missed.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let taken = stamps(&paths);
        Self {
            paths,
            state: Mutex::new(State {
                looked: Instant::now(),
                taken,
            }),
        }
    }

    /// Returns the new stamps, if a check is due and the files changed. The next check reports the
    /// change again unless the caller reports it as [`taken`](Self::taken).
    pub(crate) fn changed(&self) -> Option<Sight> {
        self.changed_after(LOOK_EVERY)
    }

    fn changed_after(&self, interval: Duration) -> Option<Sight> {
        let mut state = self.state.lock();
        if state.looked.elapsed() < interval {
            return None;
        }
        state.looked = Instant::now();
        let now = stamps(&self.paths);
        (now != state.taken).then_some(Sight(now))
    }

    /// Records that the files with these stamps are in use.
    pub(crate) fn taken(&self, sight: Sight) {
        self.state.lock().taken = sight.0;
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let metadata = fs::metadata(path).ok()?;
        Some(Stamp {
            modified: metadata.modified().ok(),
            length: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    };
    paths.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pki;

    #[test]
    fn a_change_is_seen_until_it_was_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "one").expect("written");
        let lookout = Lookout::new(vec![path.clone()]);
        assert!(lookout.changed_after(Duration::ZERO).is_none());
        fs::write(&path, "three").expect("written");
        assert!(lookout.changed().is_none(), "it is too early to look");
        assert!(lookout.changed_after(Duration::ZERO).is_some());
        let sight = lookout.changed_after(Duration::ZERO).expect("not taken");
        lookout.taken(sight);
        assert!(lookout.changed_after(Duration::ZERO).is_none());
    }

    /// The files as Kubernetes mounts a Secret: each file is a link through one link to a folder.
    #[test]
    fn a_mounted_secret_is_followed_and_left_as_it_is() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let made = tempfile::tempdir().expect("a folder");
        let pki = Pki::load_or_create(made.path()).expect("created");
        let mount = tempfile::tempdir().expect("a folder");
        let path = |name: &str| mount.path().join(name);
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let begun = SystemTime::now();
        let fill = |folder: &str| {
            let issued = pki
                .issue_serving(&["localhost".to_owned()])
                .expect("issued");
            fs::create_dir(path(folder)).expect("made");
            for (name, text) in [
                ("given.crt", &issued.certificate_pem),
                ("given.key", &issued.key_pem),
            ] {
                let path = path(folder).join(name);
                fs::write(&path, text).expect("written");
                fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("ours");
                // All files have the same time, so that only the link shows the change.
                let file = fs::File::options().append(true).open(&path).expect("there");
                file.set_modified(begun).expect("ours");
            }
            issued.chain
        };
        let first = fill("..1");
        symlink("..1", path("..data")).expect("made");
        for name in ["given.crt", "given.key"] {
            symlink(Path::new("..data").join(name), path(name)).expect("made");
        }
        let pair = PairFiles::find(mount.path(), "given")
            .expect("whole")
            .expect("there");
        let lookout = Lookout::new(pair.paths());
        assert_eq!(pair.load(&provider).expect("they fit").cert, first);
        assert!(lookout.changed_after(Duration::ZERO).is_none());
        let second = fill("..2");
        symlink("..2", path("..next")).expect("made");
        fs::rename(path("..next"), path("..data")).expect("renamed");
        assert!(lookout.changed_after(Duration::ZERO).is_some());
        assert_eq!(pair.load(&provider).expect("they fit").cert, second);
        for name in ["given.crt", "given.key"] {
            let mode =
                |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
            assert_eq!(mode(&path("..2").join(name)), 0o644);
            let link = fs::symlink_metadata(path(name)).expect("there");
            assert!(link.is_symlink());
        }
    }

    #[test]
    fn a_pair_is_whole_and_fits() {
        let folder = tempfile::tempdir().expect("a folder");
        let pki = Pki::load_or_create(folder.path()).expect("created");
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let path = |name: &str| folder.path().join(name);
        let found = |stem| PairFiles::find(folder.path(), stem);
        assert!(matches!(found("given"), Ok(None)));
        let names = ["localhost".to_owned()];
        let first = pki.issue_serving(&names).expect("issued");
        let other = pki.issue_serving(&names).expect("issued");
        fs::write(path("given.crt"), &first.certificate_pem).expect("written");
        let half = found("given");
        assert!(
            matches!(&half, Err(PkiError::Half { path }) if path.ends_with("given.key")),
            "{half:?}"
        );
        fs::write(path("given.key"), &other.key_pem).expect("written");
        let pair = found("given").expect("whole").expect("there");
        let mismatch = pair.load(&provider).map(|_| ());
        let mismatch = mismatch.expect_err("the key is another one's");
        assert!(matches!(mismatch, PkiError::Mismatch { .. }), "{mismatch}");
        for name in ["given.crt", "given.key"] {
            let named = path(name).display().to_string();
            assert!(mismatch.to_string().contains(&named), "{mismatch}");
        }
        fs::write(path("given.key"), &first.key_pem).expect("written");
        let loaded = pair.load(&provider).expect("they fit");
        assert_eq!(loaded.cert, first.chain);
    }
}

//! Reading and writing the files of the certificate folder.
//!
//! Files that this program creates are private, complete and durable. Other files are read through
//! links and never changed: a mounted Secret is a folder of links, which Kubernetes replaces
//! together, and other programs may need its files too.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};
use uuid::Uuid;

use crate::PkiError;

/// Longest file, in bytes. Without the limit a wrong link, such as one to a device, would fill the memory.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The mode of a private file, which only its owner can read and write.
const PRIVATE: u32 = 0o600;
/// The mode bits that concern users other than the owner.
const OF_OTHERS: u32 = 0o077;

/// Returns the text of a file, through links; `None` if the file does not exist. Changes nothing.
///
/// # Errors
/// Returns an error if the file cannot be read or is longer than 1 MiB.
pub(crate) fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match text_of(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn text_of(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    // In one piece: a text that has to grow would leave copies of a secret in the memory.
    let bytes = file.metadata()?.len().min(FILE_BYTES_MAX);
    let mut text = String::with_capacity(usize::try_from(bytes).unwrap_or_default());
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let why = format!("it is longer than {FILE_BYTES_MAX} bytes");
        return Err(io::Error::other(why));
    }
    Ok(text)
}

/// Returns the text of a secret file. A copy or a restore may have made the file readable for other
/// users; this function makes it private again and logs a warning, because others may have read it.
///
/// # Errors
/// Returns an error if the file cannot be read, or belongs to this user and cannot be made private.
pub(crate) fn read_secret(path: &Path) -> Result<Option<String>, PkiError> {
    let text = read(path)?;
    if text.is_some() {
        close_to_others(path).map_err(|source| PkiError::Write {
            path: path.to_owned(),
            source,
        })?;
    }
    Ok(text)
}

/// Makes a file private, unless it is a link or belongs to another user.
fn close_to_others(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let Ok(file) = options.open(path) else {
        // A link leads to a file of the operator, whose mode this program must not change.
        return Ok(());
    };
    let metadata = file.metadata()?;
    if metadata.permissions().mode() & OF_OTHERS == 0 {
        return Ok(());
    }
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || !metadata.is_file() {
        tracing::debug!(path = %path.display(), "other users can read this file, and it belongs to another user");
        return Ok(());
    }
    // Change the mode of the open file, because the path may name another file by now.
    match file.set_permissions(Permissions::from_mode(PRIVATE)) {
        Ok(()) => {
            tracing::warn!(path = %path.display(), "other users could read this file; it is private again");
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        Err(error) => Err(error),
    }
}

/// A new file beside the one that it will replace; removed when dropped before that.
struct Staged {
    path: PathBuf,
    is_done: bool,
}

impl Staged {
    /// Creates a file for this user only. Its name is new, so nobody can have prepared a link
    /// there.
    fn create(path: &Path) -> io::Result<(Self, File)> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", Uuid::new_v4().simple()));
        let staged = path.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(PRIVATE);
        let file = options.open(&staged)?;
        let staged = Self {
            path: staged,
            is_done: false,
        };
        Ok((staged, file))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_done {
            // The caller reports the error that led here.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Replaces `path` with `bytes`, readable by its owner only. After a power cut the file has its old
/// content or all of `bytes`; once this has returned, it has `bytes`. A link at `path` is replaced,
/// not followed.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), PkiError> {
    write_private_together([(path, bytes)])
}

/// Replaces files of one folder that need each other, each like [`write_private`]. All of them are
/// durable under temporary names before the first is renamed.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub(super) fn write_private_together<const N: usize>(
    files: [(&Path, &[u8]); N],
) -> Result<(), PkiError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| PkiError::Write { path, source }
    };
    let mut all = Vec::with_capacity(N);
    for (path, bytes) in files {
        all.push((path, stage(path, bytes).map_err(failed(path))?));
    }
    for (path, staged) in &mut all {
        fs::rename(&staged.path, *path).map_err(failed(path))?;
        staged.is_done = true;
    }
    match files.first() {
        Some((path, _)) => sync_folder_of(path).map_err(failed(path)),
        None => Ok(()),
    }
}

fn stage(path: &Path, bytes: &[u8]) -> io::Result<Staged> {
    let (staged, mut file) = Staged::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(staged)
}

/// Locks the folder until the result is dropped. Without the lock two processes that start with an
/// empty folder would each create a CA and distrust each other.
pub(super) fn lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
        Ok(()) => Some(file),
        Err(error) => {
            // For example a network file system without locks: continue without a lock.
            tracing::debug!(folder = %folder.display(), %error, "the folder cannot be locked");
            None
        }
    }
}

/// Makes the names in the folder of `path` durable.
///
/// # Errors
/// Returns the error of the system.
pub(super) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => return Ok(()),
    };
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("is there").permissions().mode() & 0o777
    }

    #[test]
    fn what_is_written_is_private_and_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        for text in ["one", "two"] {
            write_private(&path, text.as_bytes()).expect("written");
            assert_eq!(read(&path).expect("read").as_deref(), Some(text));
            assert_eq!(mode(&path), 0o600);
        }
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        // A folder is in the way: the attempt must leave nothing behind.
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).expect("made");
        fs::write(taken.join("x"), "x").expect("written");
        write_private(&taken, b"text").expect_err("a folder with a file is not replaced");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    }

    #[test]
    fn a_link_is_neither_followed_nor_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, link) = (folder.path().join("theirs"), folder.path().join("secret"));
        fs::write(&target, "theirs").expect("written");
        fs::set_permissions(&target, Permissions::from_mode(0o644)).expect("ours");
        symlink(&target, &link).expect("made");
        let text = read_secret(&link).expect("read");
        assert_eq!(text.as_deref(), Some("theirs"));
        assert_eq!(mode(&target), 0o644);
        write_private(&link, b"ours").expect("written");
        let is_link = |path: &Path| fs::symlink_metadata(path).expect("there").is_symlink();
        assert!(!is_link(&link));
        assert_eq!(read(&target).expect("read").as_deref(), Some("theirs"));
        assert_eq!(mode(&link), 0o600);
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("secret");
        symlink("/dev/zero", &link).expect("made");
        let refused = read_secret(&link).expect_err("it has no end");
        let PkiError::Read { source, .. } = refused else {
            panic!("{refused:?}");
        };
        assert!(source.to_string().contains("longer than"), "{source}");
    }

    #[test]
    fn an_own_secret_that_was_opened_is_closed_and_nothing_else_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let open = || {
            fs::write(&path, "text").expect("written");
            fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("ours");
        };
        open();
        read(&path).expect("read");
        assert_eq!(mode(&path), 0o644);
        read_secret(&path).expect("read");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(
            read_secret(&folder.path().join("none")).expect("read"),
            None
        );
    }
}

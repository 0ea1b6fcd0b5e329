//! The folder around sled's files: its lock, its format, and the proof that nothing in it was lost.
//!
//! * `lock` is held exclusively by the process that has the store open, and contains the process's
//!   id.
//! * `format` is a line of text, written before sled writes anything.
//! * `acked` holds the newest acknowledged revision. It is written after every batch and synced
//!   only from time to time, so it is a lower bound of the revisions that the tree must hold. sled
//!   silently drops what it takes for a torn tail; a tree behind this bound has lost acknowledged
//!   writes.
//! * `before-open/` holds a copy of sled's files while a store is being opened. sled overwrites
//!   what it takes for a torn tail, so the copy is opened first: a store that is refused as damaged
//!   stays as it was found. The copy is never moved back, so none of it has to be durable, and the
//!   next opening removes what a crash has left of it.
//!
//! Power may fail at any step. The names of the folders above are synced before `format` is
//! created, `format` before sled creates a file, and sled's files with their names before anything
//! can be read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock, statvfs};
use twox_hash::XxHash3_64;

use super::layout::be64;
use crate::error::OpenError;

/// The number of the format that this program writes, and the newest that it reads.
const FORMAT: u32 = 1;
const FORMAT_WORDS: &str = "polyplane-store sled";
/// Bytes behind the content of a sled snapshot: length and checksum.
const SNAPSHOT_FRAME_BYTES: usize = 12;
/// Bytes behind the content of sled's settings: a checksum.
const SETTINGS_FRAME_BYTES: usize = 4;
/// Bytes that must be free beside a copy so that sled can open it: sled fills up a segment, perhaps
/// starts another one, and writes a snapshot. With less room, a whole store on a full disk would
/// appear to be damaged.
const COPY_ROOM_BYTES: u64 = 8 * 1024 * 1024;

/// A folder that this process holds exclusively.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// The locked file; dropping it releases the lock. `None` after [`Self::unlock`].
    lock: Mutex<Option<File>>,
    acked: File,
}

impl Folder {
    /// Locks the folder, creates it if it does not exist, and checks its format.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(io_at(path))?;
        fs::read_dir(path).map_err(io_at(path))?;
        let lock = take_lock(path)?;
        check_format(path)?;
        if !path.join("db").exists() {
            // Files without a format are refused, so the format must be durable before sled creates
            // files. A predecessor may have written it and been killed before this sync.
            sync_folder(path)?;
        }
        let acked_path = path.join("acked");
        let acked = private(
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .read(true),
        )
        .open(&acked_path)
        .map_err(io_at(&acked_path))?;
        Ok(Self {
            path: path.to_owned(),
            lock: Mutex::new(Some(lock)),
            acked,
        })
    }

    /// Returns the path of the file with sled's data.
    pub(super) fn db_path(&self) -> PathBuf {
        self.path.join("db")
    }

    /// Returns the newest revision known to have been acknowledged; 0 for a new store.
    pub(super) fn acked(&self) -> Result<u64, OpenError> {
        let damaged = |reason: &str| OpenError::Damaged {
            reason: reason.to_owned(),
        };
        let mut bytes = [0; 16];
        match self.acked.metadata().map_err(io_at(&self.path))?.len() {
            0 => return Ok(0),
            16 => self
                .acked
                .read_exact_at(&mut bytes, 0)
                .map_err(io_at(&self.path))?,
            _ => return Err(damaged("the file acked has a wrong length")),
        }
        if bytes == [0; 16] {
            // A power cut may leave a file that was never synced with its length but without its
            // bytes.
            return Ok(0);
        }
        if XxHash3_64::oneshot(&bytes[..8]) != be64(&bytes, 8) {
            return Err(damaged("the file acked is altered"));
        }
        Ok(be64(&bytes, 0))
    }

    /// Records that everything up to a revision is durable and may be acknowledged.
    pub(super) fn set_acked(&self, revision: u64) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&revision.to_be_bytes());
        let own = XxHash3_64::oneshot(&bytes[..8]);
        bytes[8..].copy_from_slice(&own.to_be_bytes());
        self.acked.write_all_at(&bytes, 0)
    }

    /// Makes the recorded revision durable.
    pub(super) fn sync_acked(&self) -> io::Result<()> {
        self.acked.sync_data()
    }

    /// Makes the content of sled's data durable, if the file exists.
    pub(super) fn sync_data(&self) -> Result<(), OpenError> {
        let path = self.db_path();
        match File::open(&path).and_then(|file| file.sync_data()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Makes the names of files durable.
    pub(super) fn sync(&self) -> Result<(), OpenError> {
        sync_folder(&self.path)
    }

    /// Copies sled's files and returns the path of the copy, unless they are larger than a limit or
    /// there is no room: a store on a full disk must still be readable.
    pub(super) fn copy(&self, bytes_max: u64) -> Result<Option<PathBuf>, OpenError> {
        // An interrupted opening may have left a copy.
        self.drop_copy()?;
        let db_bytes = fs::metadata(self.db_path()).map_or(0, |metadata| metadata.len());
        if db_bytes == 0 || db_bytes > bytes_max {
            return Ok(None);
        }
        let copy = self.copy_path();
        if let Err(error) = self.copy_files(&copy, db_bytes) {
            tracing::warn!(%error, "the store is opened without trying a copy of its files first");
            self.drop_copy()?;
            return Ok(None);
        }
        Ok(Some(copy))
    }

    fn copy_files(&self, copy: &Path, db_bytes: u64) -> io::Result<()> {
        if !self.has_room(db_bytes + COPY_ROOM_BYTES)? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        fs::DirBuilder::new().mode(0o700).create(copy)?;
        for file in sled_files(&self.path)? {
            fs::copy(self.path.join(&file), copy.join(&file))?;
        }
        Ok(())
    }

    /// Returns whether the disk has enough room for sled to open the copy.
    pub(super) fn has_copy_room(&self) -> bool {
        self.has_room(COPY_ROOM_BYTES).unwrap_or(false)
    }

    fn has_room(&self, bytes: u64) -> io::Result<bool> {
        let stat = statvfs(&self.path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize) >= bytes)
    }

    /// Removes the copy, or what a crash left of it.
    pub(super) fn drop_copy(&self) -> Result<(), OpenError> {
        let copy = self.copy_path();
        match fs::remove_dir_all(&copy) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(&copy)(error)),
            _ => Ok(()),
        }
    }

    /// Releases the lock, so that another process may open the folder.
    pub(super) fn unlock(&self) {
        drop(self.lock.lock().take());
    }

    /// Returns the number of bytes of all files.
    pub(super) fn used_bytes(&self) -> u64 {
        let Ok(entries) = fs::read_dir(&self.path) else {
            return 0;
        };
        let sizes = entries.flatten().filter_map(|entry| entry.metadata().ok());
        sizes
            .filter(fs::Metadata::is_file)
            .map(|metadata| metadata.len())
            .sum()
    }

    fn copy_path(&self) -> PathBuf {
        self.path.join("before-open")
    }
}

/// Turns a system error into one that names the file, and distinguishes a full disk.
pub(super) fn io_at(path: &Path) -> impl Fn(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            OpenError::NoSpace { path: path.clone() }
        }
        _ => OpenError::Io {
            path: path.clone(),
            source,
        },
    }
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

fn sync_folder(path: &Path) -> Result<(), OpenError> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(io_at(path))
}

fn take_lock(folder: &Path) -> Result<File, OpenError> {
    let path = folder.join("lock");
    let mut options = OpenOptions::new();
    let mut file = private(options.create(true).truncate(false).read(true).write(true))
        .open(&path)
        .map_err(io_at(&path))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut text = String::new();
        let _ = file.read_to_string(&mut text);
        return Err(OpenError::Locked {
            path: folder.to_owned(),
            pid: text.trim().parse().ok(),
        });
    }
    // This only informs operators: a full disk must not prevent reading the store.
    let _ = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

fn check_format(folder: &Path) -> Result<(), OpenError> {
    let path = folder.join("format");
    let damaged = |reason: String| Err(OpenError::Damaged { reason });
    let text = match fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if folder.join("db").exists() {
                return damaged("the file format is missing".to_owned());
            }
            sync_names_above(folder).map_err(io_at(folder))?;
            return write_format(folder, &path);
        }
        Err(error) => return Err(io_at(&path)(error)),
    };
    let number = text.trim().strip_prefix(FORMAT_WORDS).map(str::trim);
    match number.and_then(|number| number.parse::<u32>().ok()) {
        Some(FORMAT) => Ok(()),
        Some(found) if found > FORMAT => Err(OpenError::Newer {
            found,
            supported: FORMAT,
        }),
        _ => damaged("the file format does not read as one".to_owned()),
    }
}

fn write_format(folder: &Path, path: &Path) -> Result<(), OpenError> {
    let fresh = folder.join("format.new");
    let mut options = OpenOptions::new();
    let written = private(options.create(true).truncate(true).write(true))
        .open(&fresh)
        .and_then(|mut file| {
            writeln!(file, "{FORMAT_WORDS} {FORMAT}")?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&fresh, path));
    written.map_err(io_at(path))
}

/// Makes the names of all folders on the path durable, not only of those that this process has
/// created, because a predecessor may have created some and been killed. For a folder with a format
/// this was done before.
fn sync_names_above(folder: &Path) -> io::Result<()> {
    let folder = fs::canonicalize(folder)?;
    let device = fs::metadata(&folder)?.dev();
    for above in folder.ancestors().skip(1) {
        if fs::metadata(above)?.dev() != device {
            break;
        }
        match File::open(above) {
            Ok(above) => above.sync_all()?,
            // This process may not read that folder, so it did not create it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes files of sled that are incomplete. Because of them sled would take the store for
/// damaged, but it writes both kinds again if they are missing:
///
/// * Snapshots, which sled leaves empty on a full disk. A snapshot only shortens the reading of the
///   log, and the log that is read without it is checked against the recorded revision too.
/// * Settings, which sled neither syncs nor replaces as a whole.
pub(super) fn drop_unfinished(folder: &Path) -> Result<(), OpenError> {
    for file in sled_files(folder).map_err(io_at(folder))? {
        let path = folder.join(&file);
        let frame = match file.as_str() {
            "db" => continue,
            "conf" => SETTINGS_FRAME_BYTES,
            _ => SNAPSHOT_FRAME_BYTES,
        };
        let is_finished = !file.ends_with(".generating")
            && is_whole(&fs::read(&path).map_err(io_at(&path))?, frame);
        if !is_finished {
            fs::remove_file(&path).map_err(io_at(&path))?;
        }
    }
    Ok(())
}

/// Returns whether the checksum in a frame is that of the content before the frame.
fn is_whole(bytes: &[u8], frame_bytes: usize) -> bool {
    let (content, frame) = bytes.split_at(bytes.len().saturating_sub(frame_bytes));
    !content.is_empty() && frame.ends_with(&crc32fast::hash(content).to_le_bytes())
}

/// Returns the names of the files that sled has created, without its blob folder, which stays
/// empty.
fn sled_files(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name == "db" || name == "conf" || name.starts_with("snap.") {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, RangeRequest, SledOptions, SledStore, Store, Txn};

    fn open(path: &Path) -> SledStore {
        let options = SledOptions {
            ballast_bytes: 0,
            ..SledOptions::default()
        };
        SledStore::open(path, options).expect("the store opens")
    }

    /// Creates a folder with a store of one key.
    async fn stored() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(folder.path());
        let op = Op::Put {
            key: "k".into(),
            value: "v".into(),
            lease: None,
        };
        let txn = Txn {
            compares: vec![],
            ops: vec![op],
        };
        store.commit(txn).await.expect("committed");
        store.close().await;
        folder
    }

    async fn has_its_key(folder: &Path) -> bool {
        let store = open(folder);
        let range = store.range(RangeRequest::between("", "")).await;
        store.close().await;
        range.expect("read").items.len() == 1
    }

    #[tokio::test]
    async fn a_copy_that_a_power_cut_left_empty_is_not_put_back() {
        let folder = stored().await;
        let copy = folder.path().join("before-open");
        fs::create_dir(&copy).expect("made");
        for name in ["db", "conf", "complete"] {
            fs::write(copy.join(name), b"").expect("written");
        }
        assert!(has_its_key(folder.path()).await);
        assert!(!copy.exists(), "an incomplete copy is removed");
    }

    #[tokio::test]
    async fn a_bound_that_has_a_length_and_no_bytes_is_none() {
        let folder = stored().await;
        fs::write(folder.path().join("acked"), [0; 16]).expect("written");
        assert!(has_its_key(folder.path()).await);
    }

    #[tokio::test]
    async fn settings_that_were_only_begun_are_no_damage() {
        let folder = stored().await;
        let conf = folder.path().join("conf");
        let whole = fs::read(&conf).expect("read");
        let begun = [
            vec![],
            vec![0; whole.len()],
            whole[..whole.len() - 3].to_vec(),
        ];
        for begun in begun {
            fs::write(&conf, &begun).expect("written");
            assert!(has_its_key(folder.path()).await);
            assert_eq!(fs::read(&conf).expect("read"), whole, "written again");
        }
    }

    #[tokio::test]
    async fn a_snapshot_that_was_never_synced_is_no_damage() {
        let folder = stored().await;
        open(folder.path()).close().await;
        let files = sled_files(folder.path()).expect("listed");
        let mut snapshots = files.iter().filter(|name| name.starts_with("snap."));
        let snapshot = folder.path().join(snapshots.next().expect("there is one"));
        let bytes = fs::read(&snapshot).expect("read").len();
        fs::write(&snapshot, vec![0; bytes]).expect("written");
        assert!(has_its_key(folder.path()).await);
    }
}

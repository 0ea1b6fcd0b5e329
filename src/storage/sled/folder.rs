//! The folder around sled's files: who may use it, which format it has, what must be in it.
//!
//! * `lock` is held exclusively by the process that has the store open, and names it.
//! * `format` is a line of text, written before sled writes anything.
//! * `acked` holds the newest acknowledged revision. It is written after every batch and synced
//!   only now and then: a lower bound of what the tree must hold. sled drops what it takes for a
//!   torn tail without a word; a tree behind this bound lost acknowledged writes.
//! * `before-open/` is a copy of sled's files, taken before sled opens them and gone once they
//!   proved whole: sled overwrites what it takes for a torn tail, and a store that is refused as
//!   damaged shall lie there as it was found.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use twox_hash::XxHash3_64;

use super::layout::be64;
use crate::error::OpenError;

/// The format this program writes, and the newest it reads.
const FORMAT: u32 = 1;
const FORMAT_WORDS: &str = "polyplane-store sled";
const COPY_MARK: &str = "complete";
/// What a snapshot of sled has around its content: length and checksum.
const SNAPSHOT_FRAME_BYTES: u64 = 12;

/// An exclusively held folder.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// Holds the lock for as long as it is there.
    lock: Mutex<Option<File>>,
    acked: File,
}

impl Folder {
    /// Takes the folder, makes it if it is not there, and checks its format.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let made = !path.exists();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(io_at(path))?;
        if made && let Some(parent) = path.parent().filter(|parent| parent.is_dir()) {
            sync_folder(parent)?;
        }
        fs::read_dir(path).map_err(io_at(path))?;
        let lock = take_lock(path)?;
        check_format(path)?;
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
        sync_folder(path)?;
        Ok(Self {
            path: path.to_owned(),
            lock: Mutex::new(Some(lock)),
            acked,
        })
    }

    /// The file with sled's data.
    pub(super) fn db_path(&self) -> PathBuf {
        self.path.join("db")
    }

    /// The newest revision known to have been acknowledged; 0 for a new store.
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
        if XxHash3_64::oneshot(&bytes[..8]) != be64(&bytes, 8) {
            return Err(damaged("the file acked is altered"));
        }
        Ok(be64(&bytes, 0))
    }

    /// Notes that everything up to a revision is durable and may be acknowledged.
    pub(super) fn set_acked(&self, revision: u64) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&revision.to_be_bytes());
        let own = XxHash3_64::oneshot(&bytes[..8]);
        bytes[8..].copy_from_slice(&own.to_be_bytes());
        self.acked.write_all_at(&bytes, 0)
    }

    /// Makes the bound durable.
    pub(super) fn sync_acked(&self) -> io::Result<()> {
        self.acked.sync_data()
    }

    /// Makes names of files durable.
    pub(super) fn sync(&self) -> Result<(), OpenError> {
        sync_folder(&self.path)
    }

    /// Puts back what an opening that did not come to its end had copied, if there is any.
    pub(super) fn restore_copy(&self) -> Result<(), OpenError> {
        let copy = self.copy_path();
        if copy.join(COPY_MARK).exists() {
            for file in sled_files(&self.path).map_err(io_at(&self.path))? {
                if !copy.join(&file).exists() {
                    fs::remove_file(self.path.join(&file)).map_err(io_at(&self.path))?;
                }
            }
            for file in sled_files(&copy).map_err(io_at(&copy))? {
                fs::rename(copy.join(&file), self.path.join(&file)).map_err(io_at(&copy))?;
            }
        }
        self.drop_copy()
    }

    /// Removes snapshots that were begun and never filled: on a full disk sled leaves one, and would
    /// take the store for damaged ever after. A snapshot only shortens the reading of the log, and
    /// what is read without it is checked against the bound like everything else.
    pub(super) fn drop_unfinished(&self) -> Result<(), OpenError> {
        for file in sled_files(&self.path).map_err(io_at(&self.path))? {
            let path = self.path.join(&file);
            let bytes = fs::metadata(&path).map_err(io_at(&path))?.len();
            let begun = file.ends_with(".generating") || bytes <= SNAPSHOT_FRAME_BYTES;
            if file.starts_with("snap.") && begun {
                fs::remove_file(&path).map_err(io_at(&path))?;
            }
        }
        Ok(())
    }

    /// Copies sled's files, unless they are larger than a limit or there is no room: a store on a
    /// full disk is still to be read.
    pub(super) fn copy(&self, bytes_max: u64) -> Result<(), OpenError> {
        let db_bytes = fs::metadata(self.db_path()).map_or(0, |metadata| metadata.len());
        if db_bytes == 0 || db_bytes > bytes_max {
            return Ok(());
        }
        if let Err(error) = self.copy_files() {
            tracing::warn!(%error, "the store is opened without a copy of its files");
            return self.drop_copy();
        }
        Ok(())
    }

    fn copy_files(&self) -> io::Result<()> {
        let copy = self.copy_path();
        fs::DirBuilder::new().mode(0o700).create(&copy)?;
        for file in sled_files(&self.path)? {
            fs::copy(self.path.join(&file), copy.join(&file))?;
        }
        File::create(copy.join(COPY_MARK))?;
        Ok(())
    }

    /// Drops the copy: the files have proved whole.
    pub(super) fn drop_copy(&self) -> Result<(), OpenError> {
        let copy = self.copy_path();
        if !copy.exists() {
            return Ok(());
        }
        // The mark first: half a copy must never be put back.
        let _ = fs::remove_file(copy.join(COPY_MARK));
        fs::remove_dir_all(&copy).map_err(io_at(&copy))
    }

    /// Lets another process have the folder.
    pub(super) fn unlock(&self) {
        drop(self.lock.lock().take());
    }

    /// Bytes of all files.
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

/// Makes an error of the system one that names a file, and tells a full disk from the rest.
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
    // Only a help for people; a full disk must not keep a store from being read.
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
    written.map_err(io_at(path))?;
    sync_folder(folder)
}

/// Names of the files that sled made, without its blob folder, which stays empty.
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

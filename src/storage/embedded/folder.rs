//! The folder around an engine's files: its lock, its format, and the proof that nothing in it was
//! lost.
//!
//! * `lock` is held exclusively by the process that has the store open, and contains the process's
//!   id. The system locks a file and no path: if the folder is removed or moved while it is open, another process
//!   may begin a store at the path. So the path is compared again and again ([`Folder::check`]), and once
//!   it leads elsewhere the store has failed for good.
//! * `format` is a line of text that names the engine, written before the engine writes anything. If a copy
//!   creates the folder, the line says so until the copy has put its record: a kill before that leaves a
//!   store without a key, which a server would take for a new one.
//! * `acked` holds the newest acknowledged revision. It is written after every batch and synced
//!   only from time to time, so it is a lower bound of the revisions that the engine must hold.
//!   Engines silently drop what they take for a torn tail; one behind this bound has lost
//!   acknowledged writes.
//!
//! Power may fail at any step. The names of the folders above are synced before `format` is
//! created, `format` before the engine creates a file, and the engine's files with their names
//! before anything can be read.
//!
//! A sync may fail at any time. The kernel then marks the pages that it covered as clean: they stay in
//! memory with the new content, no later sync writes them, and only descriptors that were open before
//! report the failure, once each. A process that opens the store after the death of the one whose sync has
//! failed can notice nothing, and that process may have died in the sync without noticing it either. So an
//! opening first has the kernel drop its clean pages of all files, and reads what the disk has: it begins
//! as after a power cut, for which the files are ordered anyway. A mark next to the files would have to be
//! set before each sync, and each kill would then cost a rewrite of the whole store. What is dirty stays in
//! memory, and is written or reported by the next sync.
//!
//! Invariant: knows engines only by their [`Format`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Advice, FlockOperation, fadvise, flock};
use twox_hash::XxHash3_64;

use super::be64;
use crate::error::OpenError;

/// Number of groups between two syncs of the acknowledged revision. With more, a loss of the newest
/// groups could go unnoticed after a power cut.
const ACKED_SYNC_GROUPS: u64 = 256;

/// The name of the file that is locked.
const LOCK: &str = "lock";

/// The first word of every `format`.
const FORMAT_WORD: &str = "polyplane-store";
/// The last word of a `format` while only a copy may open the folder. Programs that do not know the word
/// refuse the folder too, as damaged.
const COPY_WORD: &str = "copy";

/// How the folders of an engine differ from those of other engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    /// The engine, as `format` and people name it.
    pub(crate) engine: &'static str,
    /// The number of the format that this program writes, and the newest that it reads.
    pub(crate) newest: u32,
    /// The file or folder with the engine's data.
    pub(crate) data: &'static str,
}

/// Folders of [`crate::SledStore`].
pub(crate) const SLED: Format = Format {
    engine: "sled",
    newest: 1,
    data: "db",
};

/// Folders of [`crate::FjallStore`].
pub(crate) const FJALL: Format = Format {
    engine: "fjall",
    newest: 1,
    data: "fjall",
};

/// All engines.
const FORMATS: [Format; 2] = [SLED, FJALL];

/// What a `format` says.
struct FoundFormat<'a> {
    engine: &'a str,
    number: u32,
    /// Whether a copy has created the folder and has not put its record yet.
    is_copy_target: bool,
}

/// The path of a folder leads to none any more, or to another one. What is written then is lost, or damages
/// the store that another process has begun there. It does not help if the folder comes back: in the meantime another
/// process may have opened it.
// Not which folder that is: whoever writes to a plane gets this text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the folder of the store was removed or replaced while this server ran: nothing can be written any more; stop \
     this server"
)]
pub(crate) struct Lost;

impl Lost {
    /// Returns this as the reason why the store of a folder was not opened again.
    pub(crate) fn at_opening(self, path: &Path) -> OpenError {
        io_at(path)(io::Error::other(self))
    }
}

/// A folder that this process holds exclusively.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// The folder itself, wherever it is moved.
    opened: File,
    /// The locked file; dropping it releases the lock. `None` after [`Self::unlock`].
    lock: Mutex<Option<File>>,
    /// True once a check has found that the path leads elsewhere.
    is_lost: AtomicBool,
    acked: File,
    /// Number of groups that were acknowledged.
    acked_groups: AtomicU64,
}

impl Folder {
    /// Locks the folder, creates it if it does not exist, and checks its format. `is_copy_target` says that
    /// the caller is a copy, which will write the store.
    pub(crate) fn open(
        path: &Path,
        format: Format,
        is_copy_target: bool,
    ) -> Result<Self, OpenError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(io_at(path))?;
        fs::read_dir(path).map_err(io_at(path))?;
        let opened = File::open(path).map_err(io_at(path))?;
        let lock = take_lock(path)?;
        drop_cached(path).map_err(io_at(path))?;
        check_format(path, format, is_copy_target)?;
        if !exists(&path.join(format.data))? {
            // Files without a format are refused, so the format must be durable before the engine
            // creates files. A predecessor may have written it and been killed before this sync.
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
            opened,
            lock: Mutex::new(Some(lock)),
            is_lost: AtomicBool::new(false),
            acked,
            acked_groups: AtomicU64::new(0),
        })
    }

    /// Checks that the path still leads to the locked file, before anything is created or replaced by its path and
    /// before anything is acknowledged. A folder that was lost once stays lost; one that is closed is not checked.
    pub(crate) fn check(&self) -> Result<(), Lost> {
        if !self.is_lost() && self.leads_elsewhere() {
            self.is_lost.store(true, Ordering::SeqCst);
        }
        match self.is_lost() {
            true => Err(Lost),
            false => Ok(()),
        }
    }

    /// Returns whether a check has found that the folder is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    fn leads_elsewhere(&self) -> bool {
        match self.has_lock(&self.path) {
            Ok(has_lock) => !has_lock,
            // Other errors may pass, and say nothing about what is there.
            Err(error) => matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ),
        }
    }

    /// Returns whether a path is that of the folder with the locked file.
    fn has_lock(&self, path: &Path) -> io::Result<bool> {
        let lock = self.lock.lock();
        let Some(lock) = lock.as_ref() else {
            return Ok(true);
        };
        let (held, found) = (lock.metadata()?, fs::metadata(path.join(LOCK))?);
        Ok((held.dev(), held.ino()) == (found.dev(), found.ino()))
    }

    /// Returns a path that leads to this folder wherever it is moved, and nowhere once it is removed: threads of an
    /// engine that still work then cannot write to a folder in its place. Where the system has no such paths it is
    /// the plain one. It leads to the folder as long as this value lives.
    pub(crate) fn fixed_path(&self) -> PathBuf {
        let descriptor = self.opened.as_raw_fd().to_string();
        let fixed = Path::new("/proc/self/fd").join(descriptor);
        match self.has_lock(&fixed) {
            Ok(true) => fixed,
            Ok(false) | Err(_) => self.path.clone(),
        }
    }

    /// Returns the newest revision known to have been acknowledged; 0 for a new store.
    pub(crate) fn acked(&self) -> Result<u64, OpenError> {
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

    /// Records that everything up to a revision is durable and may be acknowledged, after each group
    /// of transactions. A failure is logged only: the next group records a newer revision.
    pub(crate) fn acknowledge(&self, revision: u64) {
        if let Err(error) = self.set_acked(revision) {
            tracing::warn!(%error, "the acknowledged revision was not recorded");
        }
        let groups = self.acked_groups.fetch_add(1, Ordering::Relaxed) + 1;
        if groups.is_multiple_of(ACKED_SYNC_GROUPS) {
            let _ = self.sync_acked();
        }
    }

    fn set_acked(&self, revision: u64) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&revision.to_be_bytes());
        let own = XxHash3_64::oneshot(&bytes[..8]);
        bytes[8..].copy_from_slice(&own.to_be_bytes());
        self.acked.write_all_at(&bytes, 0)
    }

    /// Makes the recorded revision durable.
    pub(crate) fn sync_acked(&self) -> io::Result<()> {
        self.acked.sync_data()
    }

    /// Makes the names of files durable.
    pub(crate) fn sync(&self) -> Result<(), OpenError> {
        sync_folder(&self.path)
    }

    /// Releases the lock, so that another process may open the folder.
    pub(crate) fn unlock(&self) {
        drop(self.lock.lock().take());
    }

    /// Returns the number of bytes of all files.
    pub(crate) fn used_bytes(&self) -> u64 {
        bytes_below(&self.path)
    }
}

/// Turns a system error into one that names the file, and distinguishes a full disk.
pub(crate) fn io_at(path: &Path) -> impl Fn(io::Error) -> OpenError {
    let path = path.to_owned();
    move |error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let path = path.clone();
            let shortfall = None;
            OpenError::NoSpace { path, shortfall }
        }
        _ => OpenError::Io {
            path: path.clone(),
            error,
        },
    }
}

/// Returns whether a file or folder is there. One that the system cannot look up is an error: a store that
/// is taken to be absent would be created.
fn exists(path: &Path) -> Result<bool, OpenError> {
    path.try_exists().map_err(io_at(path))
}

/// Has the kernel drop its clean pages of all files in a folder; see the module.
fn drop_cached(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if is_foreign(&error) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            drop_cached(&entry.path())?;
        } else if kind.is_file() {
            let file = match File::open(entry.path()) {
                Err(error) if is_foreign(&error) => continue,
                file => file?,
            };
            if let Err(error) = fadvise(&file, 0, None, Advice::DontNeed) {
                tracing::debug!(%error, "the file system keeps its pages in memory");
            }
        }
    }
    Ok(())
}

/// Returns whether a file that cannot be opened is not the store's: `lost+found`, if the folder is the root of a
/// file system, or one that somebody removes.
fn is_foreign(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::PermissionDenied || kind == io::ErrorKind::NotFound
}

fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        // The space that the file takes on disk: journals get their length in advance and have holes.
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
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
    let path = folder.join(LOCK);
    let mut options = OpenOptions::new();
    let mut file = private(options.create(true).truncate(false).read(true).write(true))
        .open(&path)
        .map_err(io_at(&path))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(locked(folder, &mut file));
    }
    // This only informs operators: a full disk must not prevent reading the store.
    let _ = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

/// Returns the error for a folder whose lock file another process has locked.
fn locked(folder: &Path, lock: &mut File) -> OpenError {
    let mut text = String::new();
    let _ = lock.read_to_string(&mut text);
    OpenError::Locked {
        path: folder.to_owned(),
        pid: text.trim().parse().ok(),
    }
}

/// Checks that no process has the store in a folder open, and creates nothing. For messages alone: while this looks,
/// another process may be refused the store.
///
/// # Errors
/// Returns [`OpenError::Locked`] if a process has it open, and another error if the lock cannot be read.
pub fn check_unlocked(folder: &Path) -> Result<(), OpenError> {
    let path = folder.join(LOCK);
    let mut lock = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(io_at(&path))?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(()),
        Err(_) => Err(locked(folder, &mut lock)),
    }
}

fn check_format(folder: &Path, own: Format, is_copy_target: bool) -> Result<(), OpenError> {
    let path = folder.join("format");
    let damaged = |reason: &str| {
        Err(OpenError::Damaged {
            reason: reason.to_owned(),
        })
    };
    let Some(text) = read_format(&path)? else {
        for format in FORMATS {
            if exists(&folder.join(format.data))? {
                return damaged("the file format is missing");
            }
        }
        sync_names_above(folder).map_err(io_at(folder))?;
        let new = FoundFormat {
            engine: own.engine,
            number: own.newest,
            is_copy_target,
        };
        return write_format(folder, &new);
    };
    let Some(found) = parse_format(&text) else {
        return damaged("the file format does not read as one");
    };
    if found.engine != own.engine {
        return Err(OpenError::OtherEngine {
            path: folder.to_owned(),
            found: found.engine.to_owned(),
            used: own.engine,
        });
    }
    if found.number > own.newest {
        return Err(OpenError::Newer {
            found: found.number,
            supported: own.newest,
        });
    }
    if found.is_copy_target && !is_copy_target {
        let path = folder.to_owned();
        return Err(OpenError::UnfinishedCopy { path });
    }
    match found.number {
        0 => damaged("the file format does not read as one"),
        _ => Ok(()),
    }
}

/// Lets everybody open the store in a folder, if a copy has created it: the copy's record is in the store by
/// now and says how far it is. The caller has the store open.
///
/// # Errors
/// Returns an error if the file `format` cannot be read or written.
pub fn copy_has_begun(folder: &Path) -> Result<(), OpenError> {
    let text = read_format(&folder.join("format"))?;
    match text.as_deref().and_then(parse_format) {
        Some(found) if found.is_copy_target => {
            let begun = FoundFormat {
                is_copy_target: false,
                ..found
            };
            write_format(folder, &begun)?;
            // Before the copy goes on: with the old format again, a complete copy would be refused.
            sync_folder(folder)
        }
        _ => Ok(()),
    }
}

/// Returns the engine that created the store in a folder, as the folder's format names it; `None` if
/// there is no store in it.
///
/// # Errors
/// Returns an error if the file `format` exists and cannot be read.
pub fn engine_of(folder: &Path) -> Result<Option<String>, OpenError> {
    let text = read_format(&folder.join("format"))?;
    let parsed = text.as_deref().and_then(parse_format);
    Ok(parsed.map(|found| found.engine.to_owned()))
}

fn read_format(path: &Path) -> Result<Option<String>, OpenError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_at(path)(error)),
    }
}

fn parse_format(text: &str) -> Option<FoundFormat<'_>> {
    let text = text.strip_prefix(FORMAT_WORD)?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let (engine, number, is_copy_target) = match words[..] {
        [engine, number] => (engine, number, false),
        [engine, number, COPY_WORD] => (engine, number, true),
        _ => return None,
    };
    Some(FoundFormat {
        engine,
        number: number.parse().ok()?,
        is_copy_target,
    })
}

fn write_format(folder: &Path, format: &FoundFormat<'_>) -> Result<(), OpenError> {
    let (path, fresh) = (folder.join("format"), folder.join("format.new"));
    let FoundFormat { engine, number, .. } = format;
    let copy = match format.is_copy_target {
        true => format!(" {COPY_WORD}"),
        false => String::new(),
    };
    let mut options = OpenOptions::new();
    let written = private(options.create(true).truncate(true).write(true))
        .open(&fresh)
        .and_then(|mut file| {
            writeln!(file, "{FORMAT_WORD} {engine} {number}{copy}")?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&fresh, &path));
    written.map_err(io_at(&path))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_fixed_path_never_leads_to_another_folder() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("store");
        let folder = Folder::open(&path, FJALL, false).expect("opened");
        let fixed = folder.fixed_path();
        let moved = root.path().join("moved");
        fs::rename(&path, &moved).expect("moved");
        let new = Folder::open(&path, FJALL, false).expect("opened");
        fs::write(fixed.join("table"), "x").expect("written");
        assert!(moved.join("table").exists());
        assert!(!path.join("table").exists());
        assert_eq!((folder.check(), new.check()), (Err(Lost), Ok(())));
        fs::remove_dir_all(&moved).expect("removed");
        fs::write(fixed.join("table"), "x").expect_err("it is gone");
    }

    #[test]
    fn a_folder_that_was_lost_stays_lost_and_a_closed_one_is_not_missed() {
        let root = tempfile::tempdir().expect("a folder");
        let (path, moved) = (root.path().join("store"), root.path().join("moved"));
        let folder = Folder::open(&path, FJALL, false).expect("opened");
        assert_eq!(folder.check(), Ok(()));
        fs::rename(&path, &moved).expect("moved");
        assert_eq!(folder.check(), Err(Lost));
        fs::rename(&moved, &path).expect("moved back");
        assert_eq!(folder.check(), Err(Lost), "others may have had its path");
        drop(folder);
        let folder = Folder::open(&path, FJALL, false).expect("opened");
        folder.unlock();
        fs::remove_dir_all(&path).expect("removed");
        assert_eq!(folder.check(), Ok(()));
    }
}

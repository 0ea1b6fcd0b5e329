//! What fjall does not check of its files, checked before it opens them.
//!
//! From the source of fjall 3.1.13 and lsm-tree 3.1.10:
//!
//! * A journal (`N.jnl`) is a sequence of batches: a start, the items, an end with a checksum over the
//!   items and a trailer. fjall ends its reading at the first entry that does not parse, and cuts the
//!   file there without an error (`journal::reader`): fine for a torn tail, a loss anywhere else. But
//!   a tail that was torn so that all its entries parse, only with other bytes, makes it refuse the
//!   store (`journal::batch_reader`: `ChecksumMismatch`, `InsufficientLength`): a power cut can leave
//!   that. So the batches are read here first. What is behind the last whole batch is cut off if it
//!   can be a torn tail: in the newest journal that is not empty, with no whole batch behind it, and with
//!   nothing missing that was acknowledged. Otherwise the store is refused, and left as it was found.
//! * A worker seals a journal and begins the next one without asking whether the last write to it failed
//!   (`worker_pool`), and no write follows such a failure. So behind a torn journal there may be an empty
//!   one.
//! * A tree's `current` names its manifest `vN` with a checksum that is not compared
//!   (lsm-tree's `version::recovery`), and tables that the manifest does not name are deleted. A tree without
//!   `current` is deleted as a whole (fjall's `recovery`). Both are checked here.
//! * Folders are synced by whoever changes them, so only what a killed predecessor did may be
//!   volatile. [`sync_folders`] makes it durable before something is deleted that it replaces, or
//!   written to it.

use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use twox_hash::{XxHash3_64, XxHash3_128};

use super::record::{HEAD_KEY, Head};
use crate::embedded::folder::io_at;
use crate::error::OpenError;

/// The number of the keyspace `state`, the first that is made in a database.
pub(super) const STATE_ID: u64 = 1;
/// The keyspaces of a store, by number: fjall's own, `state` and `log`.
const TREES: [&str; 3] = ["0", "1", "2"];

/// Bytes read at a time.
const READ_BYTES: usize = 256 * 1024;
const TAG_START: u8 = 1;
const TAG_ITEM: u8 = 2;
const TAG_END: u8 = 3;
/// Bytes of an item between its tag and its key: two bytes of kinds, the keyspace (le64), the lengths
/// of the key (le16), of the value (le32) and of the value as it is stored (le32).
const ITEM_BYTES: usize = 20;
const TRAILER: &[u8; 4] = b"FJL\x03";

/// A journal and how far it is whole.
pub(super) struct Journal {
    path: PathBuf,
    /// The end of the last whole batch.
    end: u64,
    /// The content behind that end.
    rest: Rest,
    /// The newest head in it.
    head: Option<Head>,
}

/// The content of a journal behind the whole batches at its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Nothing, or space taken in advance.
    Empty,
    /// A part of a batch, or anything else, and no whole batch.
    Torn,
    /// Something, and then a whole batch.
    Altered,
}

/// Reads all journals of a database and refuses it if they lack what was acknowledged. Changes
/// nothing.
pub(super) fn check(database: &Path, acked: u64) -> Result<Vec<Journal>, OpenError> {
    let numbered = paths(database)?;
    let mut journals = Vec::with_capacity(numbered.len());
    for path in numbered {
        let journal = read(&path).map_err(io_at(&path))?;
        journals.push(journal);
    }
    if journals.is_empty() {
        return damaged("there is no journal".to_owned());
    }
    // Those before it were synced as a whole before a batch was written to it.
    let sealed = &journals[..newest_written(&journals)];
    let torn = sealed.iter().find(|journal| journal.rest == Rest::Torn);
    let altered = journals
        .iter()
        .find(|journal| journal.rest == Rest::Altered);
    if let Some(journal) = torn.or(altered) {
        let (path, end) = (journal.path.display(), journal.end);
        return damaged(format!("{path} is altered behind byte {end}"));
    }
    // A head that is in the tables only is compared once they are open.
    let newest = journals
        .iter()
        .filter_map(|journal| journal.head)
        .next_back();
    match newest {
        Some(head) if head.revision < acked => damaged(format!(
            "revision {acked} was acknowledged and the newest one found is {}",
            head.revision
        )),
        _ => Ok(journals),
    }
}

/// Returns the paths of all journals, oldest first.
fn paths(database: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let mut numbered = Vec::new();
    for entry in fs::read_dir(database).map_err(io_at(database))? {
        let path = entry.map_err(io_at(database))?.path();
        if path.extension().is_none_or(|extension| extension != "jnl") {
            continue;
        }
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let number: u64 = match stem.and_then(|stem| stem.parse().ok()) {
            Some(number) => number,
            None => return damaged(format!("{} is no journal", path.display())),
        };
        numbered.push((number, path));
    }
    numbered.sort();
    Ok(numbered.into_iter().map(|(_, path)| path).collect())
}

/// Returns the index of the newest journal that is not empty; of the newest if all are.
fn newest_written(journals: &[Journal]) -> usize {
    let is_written = |journal: &Journal| journal.end > 0 || journal.rest != Rest::Empty;
    let newest = journals.iter().rposition(is_written);
    newest.unwrap_or(journals.len().saturating_sub(1))
}

/// Returns the bytes that the journals take on the disk: they get their length in advance, as a hole.
pub(super) fn used_bytes(database: &Path) -> Result<u64, OpenError> {
    let mut bytes = 0;
    for path in paths(database)? {
        match fs::metadata(&path) {
            Ok(file) => bytes += file.blocks() * 512,
            // The worker has just deleted it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_at(&path)(error)),
        }
    }
    Ok(bytes)
}

/// Empties the journals of a database that is not open and of which everything lies in tables.
pub(super) fn clear(database: &Path) -> Result<(), OpenError> {
    let paths = paths(database)?;
    let Some((newest, sealed)) = paths.split_last() else {
        return damaged("there is no journal".to_owned());
    };
    for path in sealed {
        fs::remove_file(path).map_err(io_at(path))?;
    }
    // Before the newest is emptied: a sealed one that came back would be taken for the newest that is not empty.
    sync_folder(database)?;
    let emptied = OpenOptions::new().write(true).open(newest);
    let emptied = emptied.and_then(|file| {
        file.set_len(0)?;
        file.sync_all()
    });
    emptied.map_err(io_at(newest))?;
    sync_folder(database)
}

/// Cuts off what is behind the last whole batch: a torn tail, or space that was taken in advance.
pub(super) fn cut(journals: &[Journal]) -> Result<(), OpenError> {
    for journal in journals {
        let cut = || {
            let file = OpenOptions::new().write(true).open(&journal.path)?;
            if file.metadata()?.len() > journal.end {
                file.set_len(journal.end)?;
                file.sync_all()?;
            }
            io::Result::Ok(())
        };
        cut().map_err(io_at(&journal.path))?;
    }
    Ok(())
}

/// Writes the newest journal that is not empty over itself, so that what a failed sync left in memory only,
/// marked as clean by the kernel, is written and synced again. The database must not be open.
pub(super) fn rewrite(database: &Path) -> Result<(), OpenError> {
    let journals = check(database, 0)?;
    for journal in &journals[newest_written(&journals)..] {
        rewrite_one(journal).map_err(io_at(&journal.path))?;
    }
    Ok(())
}

fn rewrite_one(journal: &Journal) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&journal.path)?;
    let mut block = vec![0; READ_BYTES];
    let mut at = 0;
    while at < journal.end {
        let left = usize::try_from(journal.end - at).unwrap_or(READ_BYTES);
        let read = file.read_at(&mut block[..left.min(READ_BYTES)], at)?;
        if read == 0 {
            break;
        }
        file.write_all_at(&block[..read], at)?;
        at += u64::try_from(read).expect("a block is small");
    }
    file.sync_all()
}

fn damaged<T>(reason: String) -> Result<T, OpenError> {
    Err(OpenError::Damaged { reason })
}

/// Reads a journal up to the first batch that is not whole.
fn read(path: &Path) -> io::Result<Journal> {
    let file = File::open(path)?;
    let left = file.metadata()?.len();
    let mut batches = Batches::new(BufReader::with_capacity(READ_BYTES, file), left);
    let mut journal = Journal {
        path: path.to_owned(),
        end: 0,
        rest: Rest::Empty,
        head: None,
    };
    loop {
        match batches.next()? {
            Batch::Whole => {
                journal.end = left - batches.left;
                journal.head = batches.head.or(journal.head);
            }
            Batch::None => return Ok(journal),
            Batch::Torn => break,
        }
    }
    let mut rest = Vec::new();
    let mut file = batches.file.into_inner();
    file.seek(SeekFrom::Start(journal.end))?;
    file.read_to_end(&mut rest)?;
    journal.rest = match has_batch(&rest)? {
        true => Rest::Altered,
        false => Rest::Torn,
    };
    Ok(journal)
}

/// Returns whether a whole batch begins anywhere in `bytes`.
fn has_batch(bytes: &[u8]) -> io::Result<bool> {
    for (at, byte) in bytes.iter().enumerate() {
        let rest = &bytes[at..];
        if *byte == TAG_START {
            let left = u64::try_from(rest.len()).expect("it is in memory");
            if matches!(Batches::new(rest, left).next()?, Batch::Whole) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

enum Batch {
    Whole,
    /// There is none: the end of the file, or space taken in advance.
    None,
    Torn,
}

struct Batches<R> {
    file: R,
    /// Bytes that were not read yet.
    left: u64,
    /// The head that the batch under way sets.
    head: Option<Head>,
}

impl<R: Read> Batches<R> {
    fn new(file: R, left: u64) -> Self {
        let head = None;
        Self { file, left, head }
    }

    fn take<const BYTES: usize>(&mut self) -> io::Result<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let length = u64::try_from(bytes.len()).expect("it is in memory");
        if length > self.left {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= length;
        self.file.read_exact(bytes)
    }

    fn next(&mut self) -> io::Result<Batch> {
        match self.batch() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Batch::Torn),
            result => result,
        }
    }

    fn batch(&mut self) -> io::Result<Batch> {
        self.head = None;
        if self.left == 0 {
            return Ok(Batch::None);
        }
        match self.take()? {
            [TAG_START] => {}
            [0] => return Ok(Batch::None),
            [_] => return Ok(Batch::Torn),
        }
        let items = u32::from_le_bytes(self.take()?);
        let _: [u8; 8] = self.take()?;
        let mut hash = XxHash3_64::default();
        let mut item = Vec::new();
        for _ in 0..items {
            let [tag] = self.take()?;
            if tag != TAG_ITEM || !self.item(&mut item)? {
                return Ok(Batch::Torn);
            }
            hash.write(&[tag]);
            hash.write(&item);
        }
        let [tag] = self.take()?;
        let checksum = u64::from_le_bytes(self.take()?);
        let trailer: [u8; 4] = self.take()?;
        if tag == TAG_END && checksum == hash.finish() && trailer == *TRAILER {
            Ok(Batch::Whole)
        } else {
            Ok(Batch::Torn)
        }
    }

    /// Reads an item without its tag. False if it cannot be one.
    fn item(&mut self, item: &mut Vec<u8>) -> io::Result<bool> {
        let head: [u8; ITEM_BYTES] = self.take()?;
        let number = |at: usize, bytes: usize| {
            let read = head[at..at + bytes].iter().rev();
            read.fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let key_bytes = usize::try_from(number(10, 2)).unwrap_or(usize::MAX);
        let value_bytes = usize::try_from(number(16, 4)).unwrap_or(usize::MAX);
        let bytes = key_bytes + value_bytes;
        if u64::try_from(bytes).is_ok_and(|bytes| bytes > self.left) {
            return Ok(false);
        }
        item.clear();
        item.extend_from_slice(&head);
        item.resize(ITEM_BYTES + bytes, 0);
        self.fill(&mut item[ITEM_BYTES..])?;
        let (key, value) = item[ITEM_BYTES..].split_at(key_bytes);
        if number(2, 8) == STATE_ID && key == HEAD_KEY {
            self.head = Head::parse(value).ok();
        }
        Ok(true)
    }
}

/// Compares the manifest of each tree with its checksum.
pub(super) fn check_manifests(database: &Path) -> Result<(), OpenError> {
    for tree in TREES {
        let folder = database.join("keyspaces").join(tree);
        let path = folder.join("current");
        let current = match fs::read(&path) {
            Ok(current) => current,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return damaged(format!("{} is missing", path.display()));
            }
            Err(error) => return Err(io_at(&path)(error)),
        };
        let Some((number, checksum)) = parse_current(&current) else {
            return damaged(format!("{} does not parse", path.display()));
        };
        let path = folder.join(format!("v{number}"));
        let manifest = match fs::read(&path) {
            Ok(manifest) => manifest,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return damaged(format!("{} is missing", path.display()));
            }
            Err(error) => return Err(io_at(&path)(error)),
        };
        if XxHash3_128::oneshot(&manifest) != checksum {
            return damaged(format!("{} is altered", path.display()));
        }
    }
    Ok(())
}

/// Number (le64), checksum (le128), kind of the checksum.
fn parse_current(bytes: &[u8]) -> Option<(u64, u128)> {
    let (number, rest) = bytes.split_first_chunk()?;
    let (checksum, kind) = rest.split_first_chunk()?;
    let numbers = (u64::from_le_bytes(*number), u128::from_le_bytes(*checksum));
    (kind == [0]).then_some(numbers)
}

/// Makes durable the names of the newest journal and manifests, which a killed predecessor may have
/// left volatile. The names of tables are durable before a manifest has them.
pub(super) fn sync_folders(database: &Path) -> Result<(), OpenError> {
    sync_folder(database)?;
    for tree in TREES {
        sync_folder(&database.join("keyspaces").join(tree))?;
    }
    Ok(())
}

/// Makes a database durable that was just made: the names of its keyspaces, which fjall does not sync.
pub(super) fn sync_new(database: &Path) -> Result<(), OpenError> {
    sync_folder(&database.join("keyspaces"))?;
    sync_folder(database)
}

fn sync_folder(path: &Path) -> Result<(), OpenError> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(io_at(path))
}

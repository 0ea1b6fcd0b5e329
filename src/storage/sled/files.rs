//! sled's own files in the store's folder.
//!
//! `before-open/` holds a copy of sled's files while a store is being opened. sled overwrites what it
//! takes for a torn tail, so the copy is opened first: a store that is refused as damaged stays as it
//! was found. The copy is never moved back, so none of it has to be durable, and the next opening
//! removes what a crash has left of it.
//!
//! `snap.*` is a part of the store: what sled's pages were when it was last opened. Once it is
//! written, sled overwrites segments of `db` that hold nothing any more, also among those from which
//! it finds the end of its log. Without the snapshot it would take the first of them for that end.
//! sled syncs no name and deletes the older snapshot by itself, so `kept.snap.*` is a copy of the
//! older one until the newer is durable.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use crate::embedded::folder::{Folder, io_at};
use crate::error::OpenError;

/// Bytes behind the content of a sled snapshot: length and checksum.
const SNAPSHOT_FRAME_BYTES: usize = 12;
/// Bytes behind the content of sled's settings: a checksum.
const SETTINGS_FRAME_BYTES: usize = 4;
/// Bytes that must be free beside a copy so that sled can open it: sled fills up a segment, perhaps
/// starts another one, and writes a snapshot. With less room, a whole store on a full disk would
/// appear to be damaged.
const COPY_ROOM_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes that must be free beside two snapshots for the copy of one: names, and what else is written.
const SNAPSHOT_ROOM_BYTES: u64 = 1024 * 1024;
/// Begins the names of snapshots.
const SNAPSHOT: &str = "snap.";
/// Ends the names of snapshots that are being written.
const GENERATING: &str = ".generating";
/// Begins the names of copies of snapshots, before the name of the snapshot.
const KEPT: &str = "kept.";

impl Folder {
    /// Returns the path of the file with sled's data.
    pub(super) fn db_path(&self) -> PathBuf {
        self.path.join("db")
    }

    /// Makes the content of sled's data durable, if the file exists.
    pub(super) fn sync_data(&self) -> Result<(), OpenError> {
        let path = self.db_path();
        match File::open(&path).and_then(|file| file.sync_data()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Copies sled's files and returns the path of the copy, unless they are larger than a limit or
    /// there is no room: a store on a full disk must still be readable.
    pub(super) fn copy(&self, bytes_max: u64) -> Result<Option<PathBuf>, OpenError> {
        // An interrupted opening may have left a copy.
        self.drop_copy()?;
        let path = self.db_path();
        let db_bytes = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(io_at(&path))?.len(),
        };
        if db_bytes == 0 || db_bytes > bytes_max || self.has_blobs()? {
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
        // As `restore_snapshot` would do it.
        if newest(copy, SNAPSHOT)?.is_none()
            && let Some(kept) = newest(&self.path, KEPT)?
        {
            let snapshot = copy.join(kept.trim_start_matches(KEPT));
            fs::copy(self.path.join(&kept), snapshot)?;
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

    fn copy_path(&self) -> PathBuf {
        self.path.join("before-open")
    }

    /// Puts the copy of a snapshot back if a power cut has left no other that is whole.
    pub(super) fn restore_snapshot(&self) -> Result<(), OpenError> {
        let io = io_at(&self.path);
        if newest(&self.path, SNAPSHOT).map_err(&io)?.is_some() {
            return Ok(());
        }
        let Some(kept) = newest(&self.path, KEPT).map_err(&io)? else {
            return Ok(());
        };
        let snapshot = self.path.join(kept.trim_start_matches(KEPT));
        fs::rename(self.path.join(&kept), snapshot).map_err(&io)
    }

    /// Copies the newest snapshot, which sled may replace. A store on a full disk is opened without.
    pub(super) fn keep_snapshot(&self) -> Result<(), OpenError> {
        let io = io_at(&self.path);
        let Some(snapshot) = newest(&self.path, SNAPSHOT).map_err(&io)? else {
            return Ok(());
        };
        let kept = self.path.join(format!("{KEPT}{snapshot}"));
        let snapshot = self.path.join(&snapshot);
        let bytes = fs::metadata(&snapshot).map_err(&io)?.len();
        // sled needs as much for the new one.
        if !self
            .has_room(2 * bytes + SNAPSHOT_ROOM_BYTES)
            .map_err(&io)?
        {
            tracing::warn!("the disk is full: the store is opened without a copy of its snapshot");
            return Ok(());
        }
        let copied = fs::copy(&snapshot, &kept)
            .and_then(|_| File::open(&kept))
            .and_then(|file| file.sync_data());
        match copied.map_err(io) {
            Ok(()) => self.sync(),
            Err(error) => {
                // A part of it would take the room that sled needs.
                let _ = fs::remove_file(&kept);
                match error {
                    OpenError::NoSpace { .. } => {
                        tracing::warn!(%error, "the store is opened without a copy of its snapshot");
                        Ok(())
                    }
                    error => Err(error),
                }
            }
        }
    }

    /// Makes all snapshots durable with their names.
    pub(super) fn sync_snapshots(&self) -> Result<(), OpenError> {
        for name in named(&self.path, SNAPSHOT).map_err(io_at(&self.path))? {
            let path = self.path.join(name);
            File::open(&path)
                .and_then(|file| file.sync_data())
                .map_err(io_at(&path))?;
        }
        self.sync()
    }

    /// Removes copies of snapshots, once a snapshot is durable.
    pub(super) fn drop_kept(&self) -> Result<(), OpenError> {
        for name in named(&self.path, KEPT).map_err(io_at(&self.path))? {
            let path = self.path.join(name);
            fs::remove_file(&path).map_err(io_at(&path))?;
        }
        Ok(())
    }

    /// Returns whether sled has put pages into files of their own, which it does with those of very long
    /// keys. Such a store is opened as sled does it.
    pub(super) fn has_blobs(&self) -> Result<bool, OpenError> {
        let path = self.blobs_path();
        match fs::read_dir(&path) {
            Ok(mut entries) => Ok(entries.next().is_some()),
            // A file is in its place if the last opening was cut short.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(io_at(&path)(error)),
        }
    }

    /// Returns the paths of all files that sled may read when it opens the store.
    pub(super) fn sled_paths(&self) -> Result<Vec<PathBuf>, OpenError> {
        let io = io_at(&self.path);
        let mut names = sled_files(&self.path).map_err(&io)?;
        names.extend(named(&self.path, KEPT).map_err(io)?);
        Ok(names.iter().map(|name| self.path.join(name)).collect())
    }

    /// Puts a file where sled expects its folder of blobs, which stays empty. sled lists that folder
    /// between writing a snapshot and overwriting segments, and fails there.
    pub(super) fn block_blobs(&self) -> Result<(), OpenError> {
        let path = self.blobs_path();
        match fs::remove_dir(&path) {
            // The last opening was cut short.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_at(&path)(error));
            }
            _ => {}
        }
        File::create(&path).map(drop).map_err(io_at(&path))
    }

    /// Makes the folder of blobs again.
    pub(super) fn unblock_blobs(&self) -> Result<(), OpenError> {
        let path = self.blobs_path();
        fs::remove_file(&path)
            .and_then(|()| fs::DirBuilder::new().mode(0o700).create(&path))
            .map_err(io_at(&path))
    }

    fn blobs_path(&self) -> PathBuf {
        self.path.join("blobs")
    }
}

/// Removes files of sled that are incomplete; not before a copy of the store without them was found whole,
/// if there is one. Because of them sled would take the store for
/// damaged, but it writes both kinds again if they are missing:
///
/// * Snapshots, which sled leaves empty on a full disk, and a power cut before they are durable. The
///   older one is still there.
/// * Settings, which sled neither syncs nor replaces as a whole.
pub(super) fn drop_unfinished(folder: &Path) -> Result<(), OpenError> {
    for file in sled_files(folder).map_err(io_at(folder))? {
        let path = folder.join(&file);
        let frame = match file.as_str() {
            "db" => continue,
            "conf" => SETTINGS_FRAME_BYTES,
            _ => SNAPSHOT_FRAME_BYTES,
        };
        let is_finished =
            !file.ends_with(GENERATING) && is_whole(&fs::read(&path).map_err(io_at(&path))?, frame);
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
    let mut names = named(folder, SNAPSHOT)?;
    for other in ["db", "conf"] {
        if folder.join(other).try_exists()? {
            names.push(other.to_owned());
        }
    }
    Ok(names)
}

/// Returns the names in a folder that begin with `prefix`.
fn named(folder: &Path, prefix: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Returns the name of the newest whole snapshot among those that begin with `prefix`: names end with
/// a position in the log, in hexadecimal digits of one length. One that does not have its name yet does not
/// count, because it is removed.
fn newest(folder: &Path, prefix: &str) -> io::Result<Option<String>> {
    let mut names = named(folder, prefix)?;
    names.retain(|name| !name.ends_with(GENERATING));
    names.sort_unstable();
    while let Some(name) = names.pop() {
        if is_whole(&fs::read(folder.join(&name))?, SNAPSHOT_FRAME_BYTES) {
            return Ok(Some(name));
        }
    }
    Ok(None)
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

    #[tokio::test]
    async fn a_copy_of_a_snapshot_is_put_back_if_there_is_no_other() {
        let folder = stored().await;
        open(folder.path()).close().await;
        let snapshot = newest(folder.path(), SNAPSHOT).expect("listed");
        let snapshot = folder.path().join(snapshot.expect("there is one"));
        let whole = fs::read(&snapshot).expect("read");
        let kept = folder.path().join(format!("{KEPT}snap.00000000000000FF"));
        fs::write(&kept, &whole).expect("written");
        fs::write(&snapshot, &whole[..whole.len() - 1]).expect("torn");
        assert!(has_its_key(folder.path()).await);
        assert!(!kept.exists(), "one that is durable is enough");
        let snapshots = named(folder.path(), SNAPSHOT).expect("listed");
        assert_eq!(snapshots, ["snap.00000000000000FF"]);
    }

    #[tokio::test]
    async fn a_store_that_is_refused_keeps_its_broken_snapshot() {
        let folder = stored().await;
        open(folder.path()).close().await;
        let snapshot = newest(folder.path(), SNAPSHOT).expect("listed");
        let snapshot = folder.path().join(snapshot.expect("there is one"));
        let whole = fs::read(&snapshot).expect("read");
        let broken = &whole[..whole.len() - 1];
        fs::write(&snapshot, broken).expect("torn");
        let db = folder.path().join("db");
        let mut bytes = fs::read(&db).expect("read");
        bytes.fill(0);
        fs::write(&db, &bytes).expect("written");
        let options = SledOptions {
            ballast_bytes: 0,
            ..SledOptions::default()
        };
        let opened = SledStore::open(folder.path(), options);
        assert!(matches!(opened, Err(OpenError::Damaged { .. })));
        assert_eq!(fs::read(&snapshot).expect("it is there"), broken);
        assert_eq!(fs::read(&db).expect("it is there"), bytes);
    }

    #[tokio::test]
    async fn an_opening_that_was_cut_between_its_steps_is_done_again() {
        let folder = stored().await;
        let blobs = folder.path().join("blobs");
        fs::remove_dir(&blobs).expect("it is empty");
        fs::write(&blobs, b"").expect("written");
        assert!(has_its_key(folder.path()).await);
        assert!(blobs.is_dir(), "sled has its folder again");
    }
}

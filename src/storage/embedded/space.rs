//! Disk space: writes are refused before the disk is full, and a ballast file helps if the disk
//! fills up nevertheless.
//!
//! The store is nearly full, see [`NearlyFull`], when less than the reserve is free beyond what is kept
//! free, or while a merge waits for room that the engine soon cannot do without. It stops being nearly full when twice
//! the reserve is. It is full, and refuses every batch, when a small one does not fit ([`SMALL_BATCH_BYTES`]), until a
//! part of the reserve is free again ([`MARGIN_PART`]). A batch that is refused because it is large changes neither.
//!
//! An engine is unusable after its first I/O error, so free space is checked before a batch is
//! written. Other programs may still use the space in between. Then the ballast file is deleted, so that
//! the store can be opened again on a full disk.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate};

use super::Disk;
use crate::error::{OpenError, Shortfall};
use crate::nearly_full::{NearlyFull, WaitingMerge};

/// Part of the reserve that must be free for a full store to take writes again. Without it the store would
/// turn from full to not full and back with each file that another program changes.
const MARGIN_PART: u64 = 4;

/// Size of a batch that a store which is not full has room for. With a smaller one, a store could call itself
/// writable and refuse the renewal of a record.
const SMALL_BATCH_BYTES: u64 = 64 * 1024;

/// The name of the ballast file.
const BALLAST: &str = "ballast";

/// What the engine has to do beside a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pending {
    /// Bytes in memory that are yet to be written.
    pub(crate) bytes: u64,
    /// The free bytes for which a merge of tables waits that has to be done before the engine can take much more. The
    /// store is nearly full meanwhile.
    pub(crate) merge_bytes: Option<u64>,
}

/// How much room the store keeps free.
pub(crate) struct SpaceOptions {
    /// Size of the ballast file.
    pub(crate) ballast_bytes: u64,
    /// Bytes that writes leave free.
    pub(crate) reserve_bytes: u64,
    /// Bytes that the engine may take at once beside a batch.
    pub(crate) growth_bytes: u64,
    /// The disk.
    pub(crate) disk: Arc<dyn Disk>,
}

impl SpaceOptions {
    /// Returns the bytes that stay free.
    fn kept_bytes(&self, has_ballast: bool) -> u64 {
        let missing = if has_ballast { 0 } else { self.ballast_bytes };
        self.growth_bytes + self.reserve_bytes + missing
    }

    fn has_ballast(&self, ballast_path: &Path) -> bool {
        let held = std::fs::metadata(ballast_path).map_or(0, |metadata| metadata.len());
        held >= self.ballast_bytes
    }

    /// Adds to the error with which the store of a folder was not opened how much room there is, and how much
    /// the store needs. The folder may not exist.
    pub(crate) fn measured(&self, folder: &Path, error: OpenError) -> OpenError {
        match error {
            OpenError::NoSpace {
                path,
                shortfall: None,
            } => {
                let shortfall = self.shortfall(folder);
                OpenError::NoSpace { path, shortfall }
            }
            error => error,
        }
    }

    fn shortfall(&self, folder: &Path) -> Option<Shortfall> {
        let mut folders = folder.ancestors();
        let free_bytes = folders.find_map(|above| self.disk.free_bytes(above).ok())?;
        let has_ballast = self.has_ballast(&folder.join(BALLAST));
        Some(Shortfall {
            free_bytes,
            needed_bytes: self.kept_bytes(has_ballast),
        })
    }
}

/// The reason why a batch cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Shortage {
    #[error("the free disk space cannot be determined: {0}")]
    Unknown(io::Error),
    // Not which folder that is: whoever writes to a plane gets this text.
    #[error("{available} bytes are free on the disk, {needed} are needed")]
    TooLittle { available: u64, needed: u64 },
    #[error("{available} bytes are free on the disk, {needed} are needed to merge tables")]
    Merge { available: u64, needed: u64 },
}

impl Shortage {
    /// Returns this shortage as the reason why the store of a folder was not opened.
    pub(crate) fn at_opening(self, path: &Path) -> OpenError {
        match self {
            Self::Unknown(error) => OpenError::Io {
                path: path.to_owned(),
                error,
            },
            Self::TooLittle { available, needed } | Self::Merge { available, needed } => {
                OpenError::NoSpace {
                    path: path.to_owned(),
                    shortfall: Some(Shortfall {
                        free_bytes: available,
                        needed_bytes: needed,
                    }),
                }
            }
        }
    }
}

/// The disk space of one folder.
pub(crate) struct Space {
    folder: PathBuf,
    ballast_path: PathBuf,
    ballast: bool,
    nearly_full: Arc<NearlyFull>,
    free: Arc<LastKnown>,
    /// True if the last check found no room for a small batch.
    is_full: bool,
    options: SpaceOptions,
}

/// A number of bytes that the file system is asked for again and again. While it returns an error, the last
/// number counts: with none in its place, a disk would appear to be full, or a file to be empty.
#[derive(Debug, Default)]
pub(crate) struct LastKnown {
    bytes: AtomicU64,
    is_outdated: AtomicBool,
}

impl LastKnown {
    /// Takes over what was found, and returns what counts. Logs the first error in a row.
    pub(crate) fn note<E: Display>(&self, what: &str, found: Result<u64, E>) -> u64 {
        match found {
            Ok(bytes) => self.set(bytes),
            Err(error) if !self.is_outdated.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "cannot determine {what}; what was last known counts");
            }
            Err(_) => {}
        }
        self.bytes.load(Ordering::Relaxed)
    }

    fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.is_outdated.store(false, Ordering::Relaxed);
    }
}

/// The free space of a folder, as an engine's own threads see it.
#[derive(Clone)]
pub(crate) struct Gauge {
    folder: PathBuf,
    disk: Arc<dyn Disk>,
    nearly_full: Arc<NearlyFull>,
    free: Arc<LastKnown>,
    /// Bytes that writes leave free, the engine's growth included.
    pub(crate) kept_bytes: u64,
    /// Bytes below which beside those the store is nearly full.
    pub(crate) reserve_bytes: u64,
}

impl Gauge {
    /// Returns the free bytes; the last known ones if they cannot be determined.
    pub(crate) fn free_bytes(&self) -> u64 {
        let found = self.disk.free_bytes(&self.folder);
        self.free.note("the free bytes of the store's disk", found)
    }

    /// Returns whether the store is nearly full.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.nearly_full.get()
    }
}

impl Space {
    /// Creates the ballast file if there is room for it.
    pub(crate) fn new(folder: &Path, options: SpaceOptions) -> Self {
        let ballast_path = folder.join(BALLAST);
        let mut space = Self {
            folder: folder.to_owned(),
            ballast: options.has_ballast(&ballast_path),
            ballast_path,
            nearly_full: Arc::default(),
            free: Arc::default(),
            is_full: false,
            options,
        };
        space.take_ballast();
        space
    }

    /// Returns the flag that each check sets.
    pub(crate) fn nearly_full(&self) -> Arc<NearlyFull> {
        Arc::clone(&self.nearly_full)
    }

    /// Returns whether the last check found no room for a small batch.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns a view of the free space for the engine's own threads.
    pub(crate) fn gauge(&self) -> Gauge {
        Gauge {
            folder: self.folder.clone(),
            disk: Arc::clone(&self.options.disk),
            nearly_full: Arc::clone(&self.nearly_full),
            free: Arc::clone(&self.free),
            kept_bytes: self.options.kept_bytes(true),
            reserve_bytes: self.options.reserve_bytes,
        }
    }

    /// Checks that a batch of this many bytes fits, the engine's own overhead included.
    pub(crate) fn check(&mut self, batch_bytes: usize) -> Result<(), Shortage> {
        self.check_beside(batch_bytes, Pending::default())
    }

    /// Checks that a batch of this many bytes fits, beside what the engine has yet to write.
    pub(crate) fn check_beside(
        &mut self,
        batch_bytes: usize,
        pending: Pending,
    ) -> Result<(), Shortage> {
        if !self.ballast {
            self.take_ballast();
        }
        let batch = u64::try_from(batch_bytes).unwrap_or(u64::MAX / 4);
        let options = &self.options;
        let kept = options.kept_bytes(self.ballast);
        let kept = kept.saturating_add(pending.bytes);
        let available = self.available().map_err(Shortage::Unknown)?;
        match pending.merge_bytes {
            Some(wanted_bytes) => self.nearly_full.note_merge(WaitingMerge {
                wanted_bytes,
                free_bytes: available,
            }),
            None => {
                let left = available.saturating_sub(kept);
                self.nearly_full.note(left, options.reserve_bytes);
            }
        }
        let margin = match self.is_full {
            true => options.reserve_bytes / MARGIN_PART,
            false => 0,
        };
        let small = kept.saturating_add(2 * SMALL_BATCH_BYTES + margin);
        let was_full = std::mem::replace(&mut self.is_full, available < small);
        let least = if was_full && self.is_full {
            small
        } else {
            kept
        };
        let needed = least.saturating_add(batch.saturating_mul(2));
        if available < needed {
            return Err(Shortage::TooLittle { available, needed });
        }
        Ok(())
    }

    /// Deletes the ballast file, which frees its space.
    pub(crate) fn release_ballast(&mut self) {
        if std::fs::remove_file(&self.ballast_path).is_ok() {
            tracing::warn!(
                "the disk is full; deleted the store's ballast file to keep the store readable"
            );
        }
        self.ballast = false;
    }

    fn take_ballast(&mut self) {
        if self.ballast || self.options.ballast_bytes == 0 {
            return;
        }
        let wanted = self.options.ballast_bytes * 2 + self.options.reserve_bytes;
        if self.available().is_ok_and(|available| available < wanted) {
            return;
        }
        match preallocate(&self.ballast_path, self.options.ballast_bytes) {
            Ok(()) => self.ballast = true,
            Err(error) => {
                tracing::warn!(%error, "cannot create the store's ballast file");
                let _ = std::fs::remove_file(&self.ballast_path);
            }
        }
    }

    fn available(&self) -> io::Result<u64> {
        let available = self.options.disk.free_bytes(&self.folder)?;
        self.free.set(available);
        Ok(available)
    }
}

fn preallocate(path: &Path, bytes: u64) -> io::Result<()> {
    let file: File = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .open(path)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Revision;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;

    /// A disk with so many free bytes; with [`UNKNOWN`] it does not say how many.
    #[derive(Default)]
    struct Free(AtomicU64);

    const UNKNOWN: u64 = u64::MAX;

    impl Disk for Free {
        fn after_sync(&self, _head: Revision) -> io::Result<()> {
            Ok(())
        }

        fn free_bytes(&self, _folder: &Path) -> io::Result<u64> {
            match self.0.load(Ordering::SeqCst) {
                UNKNOWN => Err(io::Error::other("no answer")),
                bytes => Ok(bytes),
            }
        }
    }

    /// Options that keep 5 MiB free.
    fn options(disk: &Arc<Free>) -> SpaceOptions {
        SpaceOptions {
            ballast_bytes: 0,
            reserve_bytes: 4 * MIB,
            growth_bytes: MIB,
            disk: Arc::clone(disk) as Arc<dyn Disk>,
        }
    }

    fn space(disk: &Arc<Free>) -> Space {
        Space::new(Path::new("/nowhere"), options(disk))
    }

    #[test]
    fn a_disk_that_does_not_answer_is_not_taken_for_a_full_one() {
        let disk = Arc::new(Free::default());
        disk.0.store(8 * MIB, Ordering::SeqCst);
        let mut space = space(&disk);
        space.check(0).expect("it fits");
        let gauge = space.gauge();
        disk.0.store(UNKNOWN, Ordering::SeqCst);
        assert_eq!(gauge.free_bytes(), 8 * MIB);
        assert!(matches!(space.check(0), Err(Shortage::Unknown(_))));
        disk.0.store(7 * MIB, Ordering::SeqCst);
        assert_eq!(gauge.free_bytes(), 7 * MIB);
        disk.0.store(UNKNOWN, Ordering::SeqCst);
        assert_eq!(gauge.free_bytes(), 7 * MIB);
    }

    #[test]
    fn a_start_without_room_says_how_much_is_free_and_how_much_is_needed() {
        let disk = Arc::new(Free::default());
        disk.0.store(3 * MIB, Ordering::SeqCst);
        let folder = Path::new("/nowhere/store");
        let refused = space(&disk).check(0).expect_err("it keeps 5 MiB");
        // As the system reports it while the folder is created.
        let failed = crate::embedded::folder::io_at(folder)(io::ErrorKind::StorageFull.into());
        let failed = SpaceOptions {
            ballast_bytes: MIB,
            ..options(&disk)
        }
        .measured(folder, failed);
        for (error, needed) in [(refused.at_opening(folder), 5 * MIB), (failed, 6 * MIB)] {
            let wanted = format!(
                "no space left on the disk of the store at /nowhere/store: 3145728 bytes are free, at least \
                 {needed} are needed; free some and start again"
            );
            assert_eq!(error.to_string(), wanted);
        }
    }

    #[test]
    fn a_large_batch_that_does_not_fit_does_not_make_the_store_full() {
        let disk = Arc::new(Free::default());
        let mut space = space(&disk);
        disk.0.store(8 * MIB, Ordering::SeqCst);
        let refused = space.check(2 << 20).expect_err("it writes 4 MiB");
        assert_eq!(
            refused.to_string(),
            "8388608 bytes are free on the disk, 9437184 are needed"
        );
        assert!(!space.is_full());
        space.check(1 << 20).expect("it writes 2 MiB");
        let pending = Pending {
            bytes: 3 * MIB,
            merge_bytes: None,
        };
        space
            .check_beside(1 << 20, pending)
            .expect_err("of 3 MiB beside those of memory");
        assert!(space.is_full(), "memory alone takes it");
    }

    #[test]
    fn a_merge_that_waits_makes_the_store_nearly_full_whatever_is_free() {
        let disk = Arc::new(Free::default());
        let mut space = space(&disk);
        let mut is_nearly_full = |free_bytes, merge_bytes| {
            disk.0.store(free_bytes, Ordering::SeqCst);
            let pending = Pending {
                bytes: 0,
                merge_bytes,
            };
            space.check_beside(0, pending).expect("it fits");
            space.nearly_full().get()
        };
        assert!(!is_nearly_full(500 * MIB, None));
        assert!(is_nearly_full(500 * MIB, Some(832 * MIB)));
        assert!(!is_nearly_full(500 * MIB, None), "it goes on");
    }

    #[test]
    fn a_full_store_takes_writes_again_with_room_for_more_than_one() {
        let disk = Arc::new(Free::default());
        let mut space = space(&disk);
        let mut fits = |free_bytes| {
            disk.0.store(free_bytes, Ordering::SeqCst);
            space.check(0).is_ok()
        };
        assert!(fits(5 * MIB + 200 * KIB));
        assert!(fits(5 * MIB + 100 * KIB), "the last one");
        for _ in 0..3 {
            assert!(!fits(5 * MIB + 100 * KIB));
            assert!(!fits(6 * MIB));
        }
        assert!(fits(6 * MIB + 200 * KIB));
        assert!(fits(5 * MIB + 200 * KIB));
    }
}

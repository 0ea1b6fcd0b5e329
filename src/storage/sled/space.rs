//! Disk space: writes are refused before the disk is full, and a ballast file helps if the disk
//! fills up nevertheless.
//!
//! sled's tree is unusable after its first I/O error, so free space is checked before a batch is
//! written. Other programs may still use the space in between. Then the ballast file is deleted, so that
//! the store can be opened again on a full disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

use super::Disk;

/// Bytes by which sled grows its file.
const SEGMENT_BYTES: u64 = 512 * 1024;

/// Why a batch is not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Shortage {
    #[error("the free disk space cannot be determined: {0}")]
    Unknown(io::Error),
    #[error("{available} bytes are free on the disk of {}, {needed} are needed", folder.display())]
    TooLittle {
        folder: PathBuf,
        available: u64,
        needed: u64,
    },
}

/// The disk space of one folder.
pub(super) struct Space {
    folder: PathBuf,
    ballast_path: PathBuf,
    ballast_bytes: u64,
    reserve_bytes: u64,
    ballast: bool,
    disk: Arc<dyn Disk>,
}

impl Space {
    /// Creates the ballast file if there is room for it.
    pub(super) fn new(folder: &Path, options: &super::SledOptions) -> Self {
        let (ballast_bytes, reserve_bytes) = (options.ballast_bytes, options.reserve_bytes);
        let disk = Arc::clone(&options.disk);
        let ballast_path = folder.join("ballast");
        let held = std::fs::metadata(&ballast_path).map_or(0, |metadata| metadata.len());
        let ballast = held >= ballast_bytes;
        let folder = folder.to_owned();
        let mut space = Self {
            folder,
            ballast_path,
            ballast_bytes,
            reserve_bytes,
            ballast,
            disk,
        };
        space.take_ballast();
        space
    }

    /// Checks that a batch of this many bytes fits, sled's own overhead included.
    pub(super) fn check(&mut self, batch_bytes: usize) -> Result<(), Shortage> {
        if !self.ballast {
            self.take_ballast();
        }
        let batch = u64::try_from(batch_bytes).unwrap_or(u64::MAX / 4);
        let missing = if self.ballast { 0 } else { self.ballast_bytes };
        let needed = batch.saturating_mul(2) + 2 * SEGMENT_BYTES + self.reserve_bytes + missing;
        let available = self.available().map_err(Shortage::Unknown)?;
        if available < needed {
            return Err(Shortage::TooLittle {
                folder: self.folder.clone(),
                available,
                needed,
            });
        }
        Ok(())
    }

    /// Deletes the ballast file, which frees its space.
    pub(super) fn release_ballast(&mut self) {
        if std::fs::remove_file(&self.ballast_path).is_ok() {
            tracing::warn!(
                "the disk is full; deleted the store's ballast file to keep the store readable"
            );
        }
        self.ballast = false;
    }

    fn take_ballast(&mut self) {
        if self.ballast || self.ballast_bytes == 0 {
            return;
        }
        let wanted = self.ballast_bytes * 2 + self.reserve_bytes;
        if self.available().is_ok_and(|available| available < wanted) {
            return;
        }
        match preallocate(&self.ballast_path, self.ballast_bytes) {
            Ok(()) => self.ballast = true,
            Err(error) => {
                tracing::warn!(%error, "cannot create the store's ballast file");
                let _ = std::fs::remove_file(&self.ballast_path);
            }
        }
    }

    fn available(&self) -> io::Result<u64> {
        self.disk.free_bytes(&self.folder)
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

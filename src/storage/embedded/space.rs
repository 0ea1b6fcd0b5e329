//! Disk space: writes are refused before the disk is full, and a ballast file helps if the disk
//! fills up nevertheless.
//!
//! The store is nearly full, see [`NearlyFull`], when less than the reserve is free beyond what a batch
//! needs. It stops being nearly full when twice the reserve is.
//!
//! An engine is unusable after its first I/O error, so free space is checked before a batch is
//! written. Other programs may still use the space in between. Then the ballast file is deleted, so that
//! the store can be opened again on a full disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

use super::Disk;
use crate::error::OpenError;
use crate::nearly_full::NearlyFull;

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

/// The reason why a batch cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Shortage {
    #[error("the free disk space cannot be determined: {0}")]
    Unknown(io::Error),
    // Not which folder that is: whoever writes to a plane gets this text.
    #[error("{available} bytes are free on the disk, {needed} are needed")]
    TooLittle {
        folder: PathBuf,
        available: u64,
        needed: u64,
    },
}

impl Shortage {
    /// Returns this shortage as the reason why the store of a folder was not opened.
    pub(crate) fn at_opening(self, path: &Path) -> OpenError {
        match self {
            Self::Unknown(source) => OpenError::Io {
                path: path.to_owned(),
                source,
            },
            Self::TooLittle { folder, .. } => OpenError::NoSpace { path: folder },
        }
    }
}

/// The disk space of one folder.
pub(crate) struct Space {
    folder: PathBuf,
    ballast_path: PathBuf,
    ballast: bool,
    nearly_full: Arc<NearlyFull>,
    options: SpaceOptions,
}

impl Space {
    /// Creates the ballast file if there is room for it.
    pub(crate) fn new(folder: &Path, options: SpaceOptions) -> Self {
        let ballast_path = folder.join("ballast");
        let held = std::fs::metadata(&ballast_path).map_or(0, |metadata| metadata.len());
        let mut space = Self {
            folder: folder.to_owned(),
            ballast_path,
            ballast: held >= options.ballast_bytes,
            nearly_full: Arc::default(),
            options,
        };
        space.take_ballast();
        space
    }

    /// Returns the flag that each check sets.
    pub(crate) fn nearly_full(&self) -> Arc<NearlyFull> {
        Arc::clone(&self.nearly_full)
    }

    /// Checks that a batch of this many bytes fits, the engine's own overhead included.
    pub(crate) fn check(&mut self, batch_bytes: usize) -> Result<(), Shortage> {
        if !self.ballast {
            self.take_ballast();
        }
        let batch = u64::try_from(batch_bytes).unwrap_or(u64::MAX / 4);
        let options = &self.options;
        let missing = if self.ballast {
            0
        } else {
            options.ballast_bytes
        };
        let kept = options.growth_bytes + options.reserve_bytes + missing;
        let needed = batch.saturating_mul(2) + kept;
        let available = self.available().map_err(Shortage::Unknown)?;
        self.nearly_full
            .note(available.saturating_sub(needed), options.reserve_bytes);
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
        self.options.disk.free_bytes(&self.folder)
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

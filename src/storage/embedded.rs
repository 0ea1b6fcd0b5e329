//! What the embedded engines share: the folder with its lock and format, room on the disk, threads for
//! reads, the state that callers and the writer see, and the front that is a [`crate::Store`].
//!
//! Invariant: knows no engine's files or records.

pub(crate) mod folder;
pub(crate) mod front;
pub(crate) mod jobs;
pub(crate) mod readers;
pub(crate) mod space;
pub(crate) mod state;
pub(crate) mod values;

use std::io;
use std::path::Path;

use rustix::fs::statvfs;

use crate::store::Revision;

/// The operations that the store requires of its disk besides reading and writing files.
/// [`SystemDisk`] is the real one; tests replace it by a disk that fails.
pub trait Disk: Send + Sync + 'static {
    /// Called after a group up to `head` was synced, before any of its transactions is
    /// acknowledged.
    ///
    /// # Errors
    /// Returns an error that the store treats as a failure of the sync.
    fn after_sync(&self, head: Revision) -> io::Result<()>;

    /// Returns the number of bytes that are free for the files of a folder.
    ///
    /// # Errors
    /// Returns an error if the system does not return them.
    fn free_bytes(&self, folder: &Path) -> io::Result<u64>;
}

/// The disk of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn after_sync(&self, _head: Revision) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        let stat = statvfs(folder)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Returns the eight bytes at an offset, which the caller has checked, as a number.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(out)
}

/// Returns the text of an engine's panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the engine panicked: {}", text.unwrap_or("without a text"))
}

#[cfg(test)]
mod tests;

//! The state that the writer, the readers and the callers of one store share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::engine::{Engine, panic_text};
use super::folder::Folder;
use super::scan::ScanError;
use crate::error::ReadError;
use crate::lease::LeaseTable;
use crate::store::{Health, Revision};

/// The shared state. `published` and `floor` only grow.
pub(super) struct StoreState {
    pub(super) folder: Folder,
    /// The opened tree; `None` after closing, and while the tree could not be opened again. Readers
    /// hold the lock for one page; the writer locks it exclusively to open the tree again.
    pub(super) engine: RwLock<Option<Engine>>,
    /// Number of times that the tree was opened. A reader reports with it which opening it found
    /// broken.
    pub(super) openings: AtomicU64,
    /// The newest durable revision.
    pub(super) published: AtomicU64,
    /// The oldest revision that can be read. It is raised before older versions are dropped.
    pub(super) floor: AtomicU64,
    pub(super) health: Mutex<Health>,
    pub(super) leases: Mutex<LeaseTable>,
    pub(super) closed: AtomicBool,
}

impl StoreState {
    pub(super) fn head(&self) -> Revision {
        Revision(self.published.load(Ordering::SeqCst))
    }

    pub(super) fn floor(&self) -> Revision {
        Revision(self.floor.load(Ordering::SeqCst))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn set_health(&self, health: Health) {
        let mut known = self.health.lock();
        if *known != health {
            match &health {
                Health::Ok => tracing::info!("the store takes writes again"),
                Health::ReadOnly { reason } => tracing::warn!(reason, "the store is read only"),
                Health::Failed { reason } => tracing::error!(reason, "the store has failed"),
            }
            *known = health;
        }
    }

    /// Runs a read on the tree as of `at`, or as of now, and makes sure that no version that it
    /// needed was dropped in the meantime.
    pub(super) fn read<T>(
        &self,
        at: Option<Revision>,
        read: impl Fn(&sled::Db, u64) -> Result<T, ScanError>,
    ) -> Result<T, ReadError> {
        loop {
            let engine = self.engine.read();
            let Some(tree) = engine.as_ref() else {
                return Err(self.not_open());
            };
            let head = self.head();
            let revision = at.unwrap_or(head);
            if revision > head {
                return Err(ReadError::Future { head });
            }
            self.check_floor(revision)?;
            let result = catch_unwind(AssertUnwindSafe(|| read(&tree.db, revision.0)))
                .map_err(|panic| ReadError::Corrupt(panic_text(&*panic)))?;
            match self.check_floor(revision) {
                Ok(()) => return result.map_err(ReadError::from),
                // The newest version was dropped while it was read: the read is repeated.
                Err(_) if at.is_none() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn check_floor(&self, revision: Revision) -> Result<(), ReadError> {
        let floor = self.floor();
        if revision < floor {
            Err(ReadError::Compacted { floor })
        } else {
            Ok(())
        }
    }

    fn not_open(&self) -> ReadError {
        if self.is_closed() {
            return ReadError::Closed;
        }
        match &*self.health.lock() {
            Health::Ok => ReadError::Unavailable("the store is being opened again".to_owned()),
            Health::ReadOnly { reason } | Health::Failed { reason } => {
                ReadError::Unavailable(reason.clone())
            }
        }
    }
}

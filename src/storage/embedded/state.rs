//! The state that the writer, the readers and the callers of one store share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::folder::{Folder, Lost};
use super::panic_text;
use crate::error::ReadError;
use crate::lease::LeaseTable;
use crate::nearly_full::NearlyFull;
use crate::store::{Health, Revision};

/// The shared state. `published` and `floor` only grow.
pub(crate) struct StoreState<E> {
    /// The opened engine; `None` after closing, and while the engine could not be opened again. Readers
    /// hold the lock for one page; the writer locks it exclusively to open the engine again.
    pub(crate) engine: RwLock<Option<E>>,
    /// Dropped after the engine, which may use [`Folder::fixed_path`].
    pub(crate) folder: Folder,
    /// Number of times that the engine was opened. A reader reports with it which opening it found
    /// broken.
    pub(crate) openings: AtomicU64,
    /// The newest durable revision.
    pub(crate) published: AtomicU64,
    /// The oldest revision that can be read. It is raised before older versions are dropped.
    pub(crate) floor: AtomicU64,
    pub(crate) health: Mutex<Health>,
    /// The flag of [`super::space::Space`].
    pub(crate) nearly_full: Arc<NearlyFull>,
    pub(crate) leases: Mutex<LeaseTable>,
    pub(crate) closed: AtomicBool,
}

impl<E> StoreState<E> {
    /// Returns the state of a store that was just opened.
    pub(crate) fn new(
        folder: Folder,
        engine: E,
        (head, floor): (u64, u64),
        leases: LeaseTable,
        nearly_full: Arc<NearlyFull>,
    ) -> Self {
        Self {
            engine: RwLock::new(Some(engine)),
            folder,
            openings: AtomicU64::new(0),
            published: AtomicU64::new(head),
            floor: AtomicU64::new(floor),
            health: Mutex::new(Health::Ok),
            nearly_full,
            leases: Mutex::new(leases),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn head(&self) -> Revision {
        Revision(self.published.load(Ordering::SeqCst))
    }

    pub(crate) fn floor(&self) -> Revision {
        Revision(self.floor.load(Ordering::SeqCst))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Checks that the store's folder is the one that was opened. If it is not, the store has failed.
    pub(crate) fn check_folder(&self) -> Result<(), Lost> {
        let checked = self.folder.check();
        if let Err(lost) = checked {
            let reason = lost.to_string();
            self.set_health(Health::Failed { reason });
        }
        checked
    }

    pub(crate) fn set_health(&self, health: Health) {
        let mut known = self.health.lock();
        let health = match self.folder.is_lost() {
            // Nothing mends that, whatever else is found.
            true => Health::Failed {
                reason: Lost.to_string(),
            },
            false => health,
        };
        let is_news = match (&*known, &health) {
            // The reason names the free bytes, which change with each look at the disk.
            (Health::ReadOnly { .. }, Health::ReadOnly { .. }) => false,
            (known, health) => known != health,
        };
        if is_news {
            match &health {
                Health::Ok => tracing::info!("the store accepts writes again"),
                Health::ReadOnly { reason } => tracing::warn!(reason, "the store is read only"),
                Health::Failed { reason } => {
                    let folder = self.folder.path.display();
                    tracing::error!(reason, %folder, "the store has failed");
                }
            }
        }
        *known = health;
    }

    /// Returns why transactions are refused while the engine is not open.
    pub(crate) fn refusal(&self) -> String {
        match &*self.health.lock() {
            Health::Ok => "the store is being opened again".to_owned(),
            Health::ReadOnly { reason } | Health::Failed { reason } => reason.clone(),
        }
    }

    /// Runs a read on the engine as of `at`, or as of now, and makes sure that no version that it
    /// needed was dropped in the meantime.
    pub(crate) fn read<T>(
        &self,
        at: Option<Revision>,
        read: impl Fn(&E, Revision) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        loop {
            let engine = self.engine.read();
            let Some(opened) = engine.as_ref() else {
                return Err(self.not_open());
            };
            let head = self.head();
            let revision = at.unwrap_or(head);
            if revision > head {
                return Err(ReadError::Future { head });
            }
            match self.check_floor(revision) {
                Ok(()) => {}
                // The writer is about to publish a newer revision, and has given up all history.
                Err(_) if at.is_none() => {
                    drop(engine);
                    std::thread::yield_now();
                    continue;
                }
                Err(error) => return Err(error),
            }
            let result = catch_unwind(AssertUnwindSafe(|| read(opened, revision)))
                .unwrap_or_else(|panic| Err(ReadError::Corrupt(panic_text(&*panic))));
            match self.check_floor(revision) {
                Ok(()) => return result,
                // The newest version was compacted during the read, so the read is repeated.
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

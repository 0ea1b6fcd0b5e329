//! The place of one plane at this replica: asleep, waking or awake, and its fence. Owns the stages
//! and who may change them; must not know how a plane is taken or let go.
//!
//! Invariant: of one plane there is at most one slot that may hold its fence. Whoever takes, hands
//! off or deletes holds `busy` all the while; a slot leaves the map only when nothing is under way.

use crate::directory::birth::Birth;
use crate::planes::WakeError;
use crate::planes::fence_driver::{FenceDriver, RingGuard};
use parking_lot::Mutex;
use polyplane_fencing::{Load, Time};
use polyplane_plane::Plane;
use polyplane_storage::Revision;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

/// What those who wait for a plane are told.
pub(crate) type WakeResult = Result<Arc<Plane>, WakeError>;

/// One plane at this replica.
pub(crate) struct PlaneSlot {
    pub(crate) birth: Birth,
    pub(crate) fence: Arc<FenceDriver>,
    stage: Mutex<Stage>,
    busy: Arc<AsyncMutex<()>>,
    /// Seconds since this process began at which the plane was last used.
    used: AtomicU64,
    /// A hand-off is under way or waits for its turn.
    leaving: AtomicBool,
}

enum Stage {
    /// Nothing is in memory.
    Asleep,
    /// A task takes it or loads it.
    Waking(watch::Receiver<Option<WakeResult>>),
    Awake(AwakePlane),
    /// The slot is out of the map: whoever still has it looks there again.
    Gone,
}

/// A plane in memory.
#[derive(Clone)]
pub(crate) struct AwakePlane {
    pub(crate) plane: Arc<Plane>,
    pub(crate) guard: Arc<RingGuard>,
}

/// A tenure with what loading its plane needs.
#[derive(Clone)]
pub(crate) struct NewTenure {
    pub(crate) guard: Arc<RingGuard>,
    /// The revision of the acquire.
    pub(crate) acquired: Revision,
    /// Nothing is answered before.
    pub(crate) serve_from: Time,
    /// Where the state comes from.
    pub(crate) load: Load,
}

/// What somebody who wants the plane is to do.
pub(crate) enum WakeStep {
    /// Here it is.
    Ready(Arc<Plane>),
    /// Wait for this.
    WaitForWake(watch::Receiver<Option<WakeResult>>),
    /// Wake it, and tell this. What was in memory has lost its tenure and is to be ended.
    Start {
        tell: watch::Sender<Option<WakeResult>>,
        told: watch::Receiver<Option<WakeResult>>,
        lost: Option<AwakePlane>,
    },
    /// A task decides right now whether the plane stays: wait until the slot is not busy, then look
    /// again.
    WaitForTask,
    /// Look into the map again.
    LookAgain,
}

impl PlaneSlot {
    /// A slot that holds nothing.
    pub(crate) fn new(birth: Birth, fence: Arc<FenceDriver>) -> Arc<Self> {
        Arc::new(Self {
            birth,
            fence,
            stage: Mutex::new(Stage::Asleep),
            busy: Arc::default(),
            used: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
        })
    }

    /// What to do to get the plane.
    pub(crate) fn begin_wake(&self, seconds: u64) -> WakeStep {
        self.used.store(seconds, Ordering::Relaxed);
        let mut stage = self.stage.lock();
        match &*stage {
            Stage::Awake(awake) if awake.guard.holds() => {
                return WakeStep::Ready(Arc::clone(&awake.plane));
            }
            // Its last word was sent, and the plane goes on if that turns out not to be said.
            Stage::Awake(_) if self.busy.try_lock().is_err() => return WakeStep::WaitForTask,
            Stage::Waking(told) => return WakeStep::WaitForWake(told.clone()),
            Stage::Gone => return WakeStep::LookAgain,
            Stage::Asleep | Stage::Awake(_) => {}
        }
        let (tell, told) = watch::channel(None);
        let was = std::mem::replace(&mut *stage, Stage::Waking(told.clone()));
        let lost = match was {
            Stage::Awake(awake) => Some(awake),
            Stage::Asleep | Stage::Waking(_) | Stage::Gone => None,
        };
        WakeStep::Start { tell, told, lost }
    }

    /// The plane, if it is awake and held.
    pub(crate) fn awake(&self) -> Option<AwakePlane> {
        match &*self.stage.lock() {
            Stage::Awake(awake) if awake.guard.holds() => Some(awake.clone()),
            Stage::Awake(_) | Stage::Asleep | Stage::Waking(_) | Stage::Gone => None,
        }
    }

    /// A plane in memory whose tenure has ended; nothing is in memory from now on.
    pub(crate) fn take_lost_plane(&self) -> Option<AwakePlane> {
        let lost = match &*self.stage.lock() {
            Stage::Awake(awake) => !awake.guard.holds(),
            Stage::Asleep | Stage::Waking(_) | Stage::Gone => false,
        };
        // Whoever is busy with it deals with it.
        let _busy = self.try_busy().filter(|_| lost)?;
        self.take_awake()
    }

    /// Whether the plane is here: held, or being taken.
    pub(crate) fn is_here(&self) -> bool {
        let waking = matches!(&*self.stage.lock(), Stage::Waking(_));
        let lives = !self.fence.life().over().is_cancelled();
        lives && (waking || self.fence.holds())
    }

    /// The plane is in memory from now on.
    pub(crate) fn set_awake(&self, awake: AwakePlane) {
        *self.stage.lock() = Stage::Awake(awake);
    }

    /// Nothing is in memory from now on; returns what was.
    pub(crate) fn take_awake(&self) -> Option<AwakePlane> {
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Asleep) {
            Stage::Awake(awake) => Some(awake),
            Stage::Asleep => None,
            other @ (Stage::Waking(_) | Stage::Gone) => {
                *stage = other;
                None
            }
        }
    }

    /// A wake came to nothing.
    pub(crate) fn abandon_wake(&self) {
        let mut stage = self.stage.lock();
        if matches!(&*stage, Stage::Waking(_)) {
            *stage = Stage::Asleep;
        }
    }

    /// Marks the slot as out of the map, if nothing is held, under way or waited for.
    pub(crate) fn retire_if_idle(&self) -> bool {
        let mut stage = self.stage.lock();
        let idle = match &*stage {
            Stage::Asleep => true,
            Stage::Awake(awake) => !awake.guard.holds(),
            Stage::Waking(_) | Stage::Gone => false,
        };
        let free = idle && !self.fence.holds() && self.busy.try_lock().is_ok();
        if free {
            *stage = Stage::Gone;
        }
        free
    }

    /// Waits for the right to take, hand off or delete.
    pub(crate) async fn busy(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.busy).lock_owned().await
    }

    /// The same if nobody has it.
    pub(crate) fn try_busy(&self) -> Option<OwnedMutexGuard<()>> {
        Arc::clone(&self.busy).try_lock_owned().ok()
    }

    /// Somebody uses the plane.
    pub(crate) fn touch(&self, seconds: u64) {
        self.used.store(seconds, Ordering::Relaxed);
    }

    /// Seconds since this process began at which the plane was last used.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Begins a hand-off, unless one is under way.
    pub(crate) fn begin_leaving(&self) -> bool {
        !self.leaving.swap(true, Ordering::AcqRel)
    }

    /// The hand-off has ended, well or not.
    pub(crate) fn end_leaving(&self) {
        self.leaving.store(false, Ordering::Release);
    }
}

//! The slot of one plane at this replica: whether it is asleep, waking or awake, and its fence.
//! Owns these stages and the lock for changing them; must not know how a plane is acquired or
//! released.
//!
//! Invariant: at most one slot of a plane may hold its fence. A task that acquires, hands off or
//! deletes the plane holds `busy` until it is done. A slot is removed from the map only while no
//! task holds `busy`.

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

/// The result of a wake, for every call that waits for it.
pub(crate) type WakeResult = Result<Arc<Plane>, WakeError>;

/// One plane at this replica.
pub(crate) struct PlaneSlot {
    pub(crate) birth: Birth,
    pub(crate) fence: Arc<FenceDriver>,
    stage: Mutex<Stage>,
    busy: Arc<AsyncMutex<()>>,
    /// The time at which the plane was last used, in seconds since this process began.
    used: AtomicU64,
    /// True while a hand-off is under way or waits for a permit.
    leaving: AtomicBool,
}

enum Stage {
    /// The plane is not in memory.
    Asleep,
    /// A task acquires or loads the plane.
    Waking(watch::Receiver<Option<WakeResult>>),
    Awake(AwakePlane),
    /// The slot was removed from the map: look it up there again.
    Gone,
}

/// A plane in memory.
#[derive(Clone)]
pub(crate) struct AwakePlane {
    pub(crate) plane: Arc<Plane>,
    pub(crate) guard: Arc<RingGuard>,
}

/// A tenure that has just been opened, with the facts that loading its plane needs.
#[derive(Clone)]
pub(crate) struct NewTenure {
    pub(crate) guard: Arc<RingGuard>,
    /// The revision of the acquire.
    pub(crate) acquired: Revision,
    /// The time before which no answer may be sent.
    pub(crate) serve_from: Time,
    /// The source of the plane's state.
    pub(crate) load: Load,
}

/// The next step of a call that needs the plane.
pub(crate) enum WakeStep {
    /// The plane is awake.
    Ready(Arc<Plane>),
    /// A task is already waking it: wait for its result.
    WaitForWake(watch::Receiver<Option<WakeResult>>),
    /// Wake it and send the result to `wake_result`. `lost` is a plane in memory whose tenure has
    /// ended: end it.
    Start {
        wake_result: watch::Sender<Option<WakeResult>>,
        woken: watch::Receiver<Option<WakeResult>>,
        lost: Option<AwakePlane>,
    },
    /// A task is deciding whether the plane stays: wait until it is done, then call again.
    WaitForTask,
    /// The slot is no longer in the map: look it up there again.
    LookAgain,
}

impl PlaneSlot {
    /// Creates a slot that holds nothing.
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

    /// Marks the plane as used and returns the caller's next step.
    pub(crate) fn begin_wake(&self, seconds: u64) -> WakeStep {
        self.used.store(seconds, Ordering::Relaxed);
        let mut stage = self.stage.lock();
        match &*stage {
            Stage::Awake(awake) if awake.guard.holds() => {
                return WakeStep::Ready(Arc::clone(&awake.plane));
            }
            // Its release was sent, but the plane continues if the store refused it.
            Stage::Awake(_) if self.busy.try_lock().is_err() => return WakeStep::WaitForTask,
            Stage::Waking(woken) => return WakeStep::WaitForWake(woken.clone()),
            Stage::Gone => return WakeStep::LookAgain,
            Stage::Asleep | Stage::Awake(_) => {}
        }
        let (wake_result, woken) = watch::channel(None);
        let was = std::mem::replace(&mut *stage, Stage::Waking(woken.clone()));
        let lost = match was {
            Stage::Awake(awake) => Some(awake),
            Stage::Asleep | Stage::Waking(_) | Stage::Gone => None,
        };
        WakeStep::Start {
            wake_result,
            woken,
            lost,
        }
    }

    /// Returns the plane, if it is awake and its tenure is open.
    pub(crate) fn awake(&self) -> Option<AwakePlane> {
        match &*self.stage.lock() {
            Stage::Awake(awake) if awake.guard.holds() => Some(awake.clone()),
            Stage::Awake(_) | Stage::Asleep | Stage::Waking(_) | Stage::Gone => None,
        }
    }

    /// Removes a plane whose tenure has ended from memory and returns it.
    pub(crate) fn take_lost_plane(&self) -> Option<AwakePlane> {
        let lost = match &*self.stage.lock() {
            Stage::Awake(awake) => !awake.guard.holds(),
            Stage::Asleep | Stage::Waking(_) | Stage::Gone => false,
        };
        // A task that works on the slot ends the plane itself.
        let _busy = self.try_busy().filter(|_| lost)?;
        self.take_awake()
    }

    /// Returns whether the plane is here: held, or being acquired.
    pub(crate) fn is_here(&self) -> bool {
        let waking = matches!(&*self.stage.lock(), Stage::Waking(_));
        let lives = !self.fence.life().over().is_cancelled();
        lives && (waking || self.fence.holds())
    }

    /// Puts the plane into memory.
    pub(crate) fn set_awake(&self, awake: AwakePlane) {
        *self.stage.lock() = Stage::Awake(awake);
    }

    /// Removes the plane from memory and returns it, if it is there.
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

    /// Ends a wake that failed: the plane is asleep again.
    pub(crate) fn abandon_wake(&self) {
        let mut stage = self.stage.lock();
        if matches!(&*stage, Stage::Waking(_)) {
            *stage = Stage::Asleep;
        }
    }

    /// Marks the slot as removed, if it holds nothing, no task works on it and no call waits for
    /// it.
    pub(crate) fn retire_if_idle(&self) -> bool {
        let mut stage = self.stage.lock();
        // A plane in memory whose tenure has ended must be ended first, or its watches stay open.
        let idle = matches!(&*stage, Stage::Asleep);
        let free = idle && !self.fence.holds() && self.busy.try_lock().is_ok();
        if free {
            *stage = Stage::Gone;
        }
        free
    }

    /// Waits for the exclusive right to acquire, hand off or delete the plane.
    pub(crate) async fn busy(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.busy).lock_owned().await
    }

    /// Returns the exclusive right to acquire, hand off or delete the plane, unless a task has it.
    /// Does not wait.
    pub(crate) fn try_busy(&self) -> Option<OwnedMutexGuard<()>> {
        Arc::clone(&self.busy).try_lock_owned().ok()
    }

    /// Marks the plane as used.
    pub(crate) fn touch(&self, seconds: u64) {
        self.used.store(seconds, Ordering::Relaxed);
    }

    /// Returns the time at which the plane was last used, in seconds since this process began.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Begins a hand-off, unless one is under way.
    pub(crate) fn begin_leaving(self: Arc<Self>) -> Option<Leaving> {
        let is_first = !self.leaving.swap(true, Ordering::AcqRel);
        is_first.then(|| Leaving(self))
    }
}

/// A plane whose hand-off is under way: it ends with this, whatever its outcome, and after a panic too. A plane that
/// counts as leaving for ever would never be handed off.
pub(crate) struct Leaving(pub(crate) Arc<PlaneSlot>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leaving.store(false, Ordering::Release);
    }
}

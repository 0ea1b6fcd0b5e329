//! Finds out when a store that refuses writes accepts them again, for all its planes in this
//! process.
//!
//! One read-only plane puts its fence, with backoff. Once the store accepts that put, all planes
//! resume. A plane has no timer of its own, and recovery does not wait for a client's next write.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::end_with_panic::EndWithPanic;
use crate::guard::{BarrierError, Intake};
use crate::plane::Plane;

/// Wait before the first probe after a refusal. It doubles up to `WAIT_MAX`, so that a store
/// without room is not flooded.
const WAIT_FIRST: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The read-only planes of one store. The task that probes exists only while there are any.
#[derive(Default)]
pub(crate) struct Prober {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// The planes in the order in which they probe.
    planes: VecDeque<Weak<Plane>>,
    /// The addresses of these planes. A weak pointer keeps its allocation, so no other plane gets
    /// the same address.
    known: HashSet<usize>,
    probing: bool,
}

impl Waiting {
    /// Adds a plane at the end, unless it is in the list already.
    fn add(&mut self, plane: Weak<Plane>) {
        if self.known.insert(plane.as_ptr().addr()) {
            self.planes.push_back(plane);
        }
    }

    /// Removes and returns the plane that probes next.
    fn take(&mut self) -> Option<Weak<Plane>> {
        let plane = self.planes.pop_front()?;
        self.known.remove(&plane.as_ptr().addr());
        Some(plane)
    }
}

impl Prober {
    /// Probes for a read-only plane until it accepts writes again or has ended. Adding a plane
    /// twice does no harm.
    pub(crate) fn add(self: &Arc<Self>, plane: &Arc<Plane>) {
        let mut waiting = self.waiting.lock();
        waiting.add(Arc::downgrade(plane));
        if !waiting.probing {
            waiting.probing = true;
            let prober = Arc::clone(self);
            // The task ends by itself as soon as no plane is read-only.
            tokio::spawn(async move { prober.probe().await });
        }
    }

    async fn probe(self: Arc<Self>) {
        let _end_with_it = EndWithPanic("the prober of a store that takes no writes");
        let mut wait = WAIT_FIRST;
        loop {
            sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
            let Some(plane) = self.next() else {
                return;
            };
            match plane.guard().probe().await {
                Ok(()) => {
                    tracing::info!("the store accepts writes again");
                    plane.permits_changed();
                    self.release_all();
                    // The remaining planes have unsettled probes of their own, and the store
                    // answers again.
                    wait = WAIT_FIRST;
                }
                Err(BarrierError::Lost) => {}
                Err(BarrierError::Rejected(error) | BarrierError::Unavailable(error)) => {
                    tracing::debug!(error, "the store does not accept writes yet");
                }
            }
        }
    }

    /// Returns the plane that probes next; `None` ends the task.
    fn next(&self) -> Option<Arc<Plane>> {
        let mut waiting = self.waiting.lock();
        for _ in 0..waiting.planes.len() {
            let Some(plane) = waiting.take() else {
                break;
            };
            let Some(alive) = plane.upgrade() else {
                continue;
            };
            if waits(&alive) {
                waiting.add(plane);
                return Some(alive);
            }
        }
        waiting.probing = false;
        None
    }

    /// Resumes every plane that has no unsettled probe of its own, because the store has accepted a
    /// probe.
    fn release_all(&self) {
        let planes: Vec<Arc<Plane>> = {
            let waiting = self.waiting.lock();
            waiting.planes.iter().filter_map(Weak::upgrade).collect()
        };
        for plane in planes {
            plane.guard().store_writable();
            plane.permits_changed();
        }
    }
}

/// Returns whether a plane still waits for the store. A plane that is being released counts,
/// because its release may be called off.
fn waits(plane: &Plane) -> bool {
    match plane.guard().intake() {
        Intake::ReadOnly | Intake::Wait => true,
        Intake::Open | Intake::Ended => false,
    }
}

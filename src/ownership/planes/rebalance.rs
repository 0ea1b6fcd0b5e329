//! Follows the ring in the background: hands off planes that other members are designated for, and
//! ends the planes of lives that are over. At the root's owner it also keeps the store in order: it
//! compacts history that is too old for any request, raises the level floor and removes left
//! fences. Must not know how a plane is released.

use crate::planes::plane_slot::{Leaving, PlaneSlot};
use crate::planes::release::HandOffOutcome;
use crate::planes::{Planes, ROOT};
use polyplane_fencing::Event;
use polyplane_plane::Ended;
use polyplane_ring::Standing;
use polyplane_storage::{Health, Revision};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// Pause between two checks of all planes while the view does not change. A check costs no store
/// read.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pause between two checks of what a drain waits for. A longer one would delay the end of the process.
const DRAIN_LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest pause between two rounds of that upkeep. It is shorter if the kept history is short.
const UPKEEP_EVERY: Duration = Duration::from_secs(10);
/// Pause between two searches for left fences. It may be long, because a left fence does no harm.
const SWEEP_EVERY: Duration = Duration::from_secs(6 * 3600);
/// Number of samples of the store's revision that cover the kept history. Compaction goes to the
/// oldest sample, so more samples keep the history closer to its limit.
const SAMPLES: u32 = 10;

/// Starts the rebalancing task. It ends with the planes.
pub(crate) fn start(planes: &Arc<Planes>) {
    let closing = planes.closing().clone();
    let mut views = planes.ring().view_changes();
    let weak = Arc::downgrade(planes);
    tokio::spawn(async move {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut upkeep = StoreUpkeep::default();
        loop {
            let over = match weak.upgrade() {
                Some(planes) => planes.ring().over(),
                None => return,
            };
            // A cancelled token is ready at once, so it is awaited only while there is a life.
            let newcomer = over.is_cancelled();
            tokio::select! {
                // The end is polled first, then changes, then routine.
                biased;
                () = closing.cancelled() => return,
                () = over.cancelled(), if !newcomer => {}
                changed = views.changed() => if changed.is_err() { return },
                _ = ticks.tick() => {}
            }
            let Some(planes) = weak.upgrade() else {
                return;
            };
            planes.end_dead();
            planes.hand_off_misplaced();
            tokio::select! {
                // The end of the life is polled first: a store that hangs must not keep lost planes
                // in memory.
                biased;
                () = over.cancelled(), if !newcomer => {}
                () = upkeep.run(&planes) => {}
            }
        }
    });
}

/// Hands planes off as soon as their pins designate another member. The task ends with the planes.
pub(crate) fn follow_pins(planes: Weak<Planes>, mut pins: watch::Receiver<u64>) {
    tokio::spawn(async move {
        while pins.changed().await.is_ok() {
            let Some(planes) = planes.upgrade() else {
                return;
            };
            if planes.closing().is_cancelled() {
                return;
            }
            planes.hand_off_misplaced();
        }
    });
}

/// Ends the plane of a slot whose life is over. The next holder acquires its fence.
pub(crate) fn end_slot(slot: Arc<PlaneSlot>) {
    slot.fence.step(Event::MemberLost);
    if let Some(awake) = slot.take_awake() {
        awake.plane.end(Ended::Lost);
    }
}

impl Planes {
    /// Ends every plane that was acquired in a life that is over, and every plane whose fence was
    /// lost.
    fn end_dead(&self) {
        for slot in self.slots() {
            if slot.fence.life().over().is_cancelled() {
                self.drop_dead(&slot);
                end_slot(slot);
            } else if self.end_if_lost(&slot) {
                self.drop_if_idle(&slot);
            }
        }
    }

    /// Ends the plane of a slot whose tenure was lost, unless a task works on the slot. Returns whether
    /// there was such a plane.
    pub(crate) fn end_if_lost(&self, slot: &PlaneSlot) -> bool {
        let Some(lost) = slot.take_lost_plane() else {
            return false;
        };
        self.metrics().conflict();
        lost.plane.end(Ended::Lost);
        true
    }

    /// Hands off every plane that another member is designated for, the root last. Only a few
    /// hand-offs run at a time; the others wait for a permit. While the store takes no writes none is
    /// begun: each would pause its plane, until the store refuses the release.
    pub(crate) fn hand_off_misplaced(&self) {
        if !self.store_takes_writes() {
            return;
        }
        let mut misplaced: Vec<Arc<PlaneSlot>> = self.slots();
        misplaced.retain(|slot| slot.fence.holds() && self.is_misplaced(slot));
        let tenants = misplaced.iter().any(|slot| slot.birth.id != ROOT);
        for slot in misplaced {
            if tenants && slot.birth.id == ROOT {
                continue;
            }
            let Some(planes) = self.shared() else {
                return;
            };
            if let Some(leaving) = slot.begin_leaving() {
                tokio::spawn(planes.hand_off_one(leaving));
            }
        }
    }

    fn is_misplaced(&self, slot: &PlaneSlot) -> bool {
        let designated = self.designated(&slot.birth);
        designated.is_some_and(|member| member.id != *self.ring().id())
    }

    async fn hand_off_one(self: Arc<Self>, leaving: Leaving) {
        let slot = &leaving.0;
        let place = tokio::select! {
            // Closing is polled first: it releases every plane itself.
            biased;
            () = self.closing().cancelled() => None,
            place = self.hand_off_permits().acquire() => place.ok(),
        };
        // The view may have changed while this waited for a permit.
        let designated = self.designated(&slot.birth);
        let successor = designated.filter(|member| member.id != *self.ring().id());
        let was_awake = slot.awake().is_some();
        if let (Some(place), Some(successor)) = (place, successor) {
            let parted = self.hand_off(slot, Some(&successor)).await;
            drop(place);
            match parted {
                HandOffOutcome::Released if was_awake => {
                    self.notify_successor(slot, &successor).await
                }
                HandOffOutcome::Released => {}
                HandOffOutcome::Kept(reason) => {
                    tracing::info!(plane = slot.birth.id, %reason, "a plane was not handed off");
                }
            }
        }
    }

    /// Hands every plane over. Puts Draining into the member key, hands planes in use to their
    /// successors, releases the others in bulk, and hands over the root last. Returns whether no
    /// plane is held at the deadline. The replica stays a member and forwards requests until
    /// [`Planes::close`].
    ///
    /// On a full store, a replica that holds planes uses all the time: no other one can acquire them
    /// before there is space, so until then only this one can answer for them.
    pub async fn drain(&self, deadline: Instant) -> bool {
        let announced = tokio::select! {
            // The announcement first: once it is in the store, the drain takes its usual way.
            biased;
            announced = tokio::time::timeout_at(deadline, self.ring().announce_drain()) => announced,
            () = self.holds_nothing_on_a_full_store() => return true,
        };
        if announced.is_err() {
            return false;
        }
        let mut views = self.ring().view_changes();
        loop {
            let own = self.ring().own_member();
            let seen = own.is_none_or(|own| own.standing == Standing::Draining);
            if seen {
                if self.store_takes_writes() {
                    self.release_unused(deadline).await;
                    self.hand_off_misplaced();
                }
                let held = self.slots();
                if !held.iter().any(|slot| slot.fence.holds()) {
                    return true;
                }
                if self.is_last()
                    && self.store_takes_writes()
                    && let Some(planes) = self.shared()
                {
                    // No member is left that accepts planes.
                    let release = async move { planes.release_all(held).await };
                    return release_by(deadline, release).await;
                }
            }
            let looked = Instant::now() + DRAIN_LOOK_EVERY;
            if looked >= deadline {
                return false;
            }
            // Everything is checked again, whichever of the two ends the wait.
            let _ = tokio::time::timeout_at(looked, views.changed()).await;
        }
    }

    /// Waits until the store is full and this replica holds no plane. It acquires none then, so its
    /// member key, which cannot be put, need not say Draining before it is removed.
    async fn holds_nothing_on_a_full_store(&self) {
        loop {
            let is_full = !self.store_takes_writes();
            if is_full && !self.slots().iter().any(|slot| slot.fence.holds()) {
                return;
            }
            sleep(DRAIN_LOOK_EVERY).await;
        }
    }

    /// Returns whether the store takes writes, as far as it is known. A store that does not answer counts
    /// as one that does: what it does not answer is repeated until it does.
    pub(crate) fn store_takes_writes(&self) -> bool {
        !matches!(self.store().health(), Health::ReadOnly { .. })
    }

    /// Returns whether every member is draining, so that no member accepts planes.
    #[must_use]
    pub fn is_last(&self) -> bool {
        let view = self.ring().view();
        view.members()
            .all(|member| member.standing == Standing::Draining)
    }

    /// Releases planes that have no watcher and no queued write, many fences at once.
    async fn release_unused(&self, deadline: Instant) {
        let unused = |slot: &Arc<PlaneSlot>| match slot.awake() {
            Some(awake) => {
                let stats = awake.plane.stats();
                stats.watchers == 0 && stats.queued == 0 && slot.birth.id != ROOT
            }
            None => false,
        };
        let slots: Vec<Arc<PlaneSlot>> = self.slots().into_iter().filter(unused).collect();
        let misplaced: Vec<Arc<PlaneSlot>> = slots
            .into_iter()
            .filter(|slot| self.is_misplaced(slot))
            .collect();
        if let Some(planes) = self.shared()
            && !misplaced.is_empty()
        {
            release_by(
                deadline,
                async move { planes.put_to_sleep(misplaced).await },
            )
            .await;
        }
    }
}

/// Waits for a release until the deadline. Returns whether it ended by then. It runs on a task of its
/// own, so that a release which has begun is finished even after the deadline.
async fn release_by(deadline: Instant, release: impl Future<Output = ()> + Send + 'static) -> bool {
    let released = tokio::time::timeout_at(deadline, tokio::spawn(release)).await;
    matches!(released, Ok(Ok(())))
}

/// The upkeep of the store that the root's owner does from time to time.
#[derive(Default)]
struct StoreUpkeep {
    looked: Option<Instant>,
    /// The store's revision at earlier times, oldest first.
    samples: VecDeque<(Instant, Revision)>,
    /// The level that all members have, and since when they have had it.
    level: Option<(u32, Instant)>,
    /// The time at which this owner last searched for left fences.
    swept: Option<Instant>,
}

impl StoreUpkeep {
    async fn run(&mut self, planes: &Arc<Planes>) {
        let now = Instant::now();
        let owner = planes
            .known(ROOT)
            .is_some_and(|slot| slot.awake().is_some());
        if !owner {
            self.samples.clear();
            self.level = None;
            self.swept = None;
            return;
        }
        let history = planes.ring().options().history;
        let every = UPKEEP_EVERY.min(history / SAMPLES);
        if self.looked.is_some_and(|looked| now < looked + every) {
            return;
        }
        self.looked = Some(now);
        self.compact(planes, now).await;
        self.raise_floor(planes, now).await;
        self.sweep_fences(planes, now).await;
    }

    /// Removes left fences: once after the root was acquired, then rarely.
    async fn sweep_fences(&mut self, planes: &Planes, now: Instant) {
        if self.swept.is_some_and(|swept| now < swept + SWEEP_EVERY) {
            return;
        }
        match planes.sweep_fences().await {
            Ok(_) => self.swept = Some(now),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::debug!(error, "the search for fences of deleted planes failed");
            }
        }
    }

    /// Compacts to the newest sample that is older than the history to be kept. Needs no compare: a
    /// late request can only name an older revision (PROTOCOL 14).
    async fn compact(&mut self, planes: &Planes, now: Instant) {
        let history = planes.ring().options().history;
        let newest = self.samples.back();
        let due = newest.is_none_or(|(at, _)| now >= *at + history / SAMPLES);
        if due {
            match planes.store().revision().await {
                Ok(revision) => self.samples.push_back((now, revision)),
                Err(error) => tracing::debug!(%error, "the store's revision is not known"),
            }
        }
        let mut below = None;
        while let Some((at, revision)) = self.samples.front().copied()
            && now >= at + history
        {
            below = Some(revision);
            self.samples.pop_front();
        }
        if let Some(below) = below {
            match planes.store().compact(below).await {
                Ok(()) => tracing::debug!(%below, "compacted"),
                Err(error) => tracing::debug!(%error, "history was not compacted"),
            }
        }
    }

    /// Raises the store's floor to the level that all members have had for long enough.
    async fn raise_floor(&mut self, planes: &Planes, now: Instant) {
        let Some(level) = planes.ring().level_of_all() else {
            return;
        };
        let level = level.number;
        let since = match self.level {
            Some((known, since)) if known == level => since,
            Some(_) | None => now,
        };
        self.level = Some((level, since));
        if now < since + planes.ring().options().raise_floor_after {
            return;
        }
        if let Err(error) = planes.raise_floor().await {
            let error: &dyn std::error::Error = &error;
            tracing::debug!(error, "the level floor was not raised");
        }
    }
}

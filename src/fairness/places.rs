//! Places to work in, of which there are only so many.
//!
//! A place that becomes free goes to whoever is next by [`Turns`]: to the plane that has used the least.
//! The queue holds one channel for each that waits.
//!
//! Work cannot be interrupted, and the work of one plane may take long. So a plane that has no place gets a further
//! one when it has waited for [`LEND_AFTER`], as long as there are not twice as many taken as there are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::meter::PlaneMeter;
use crate::turns::{Started, Turns, VirtualTime};

/// How long a plane waits for its first place. With less, planes that all have work would use more threads than there
/// are CPUs for it; with more, a plane waits longer for the work of others.
const LEND_AFTER: Duration = Duration::from_millis(50);

/// The places that all planes share.
#[derive(Debug)]
pub struct Places {
    time: Arc<VirtualTime>,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    taken: usize,
    /// The number of places, as whoever came last said.
    places: usize,
    queue: Turns<oneshot::Sender<Place>>,
}

/// The right to work. Dropping it lets the next one in, and takes back what the plane was charged in
/// advance, unless [`Place::settle`] has replaced that by the cost.
#[derive(Debug)]
pub struct Place {
    /// `None` once the place belongs to somebody else.
    places: Option<Arc<Places>>,
    meter: Arc<PlaneMeter>,
    /// `None` once the cost is known.
    started: Option<Started>,
}

impl Place {
    /// Corrects the plane's account by what the work cost, in nanoseconds. Later calls do nothing.
    pub fn settle(&mut self, cost: u64) {
        if let Some(started) = self.started.take() {
            self.meter.flow().settle(started, cost);
        }
    }

    fn give_back(&mut self) {
        if let Some(started) = self.started.take() {
            self.meter.flow().give_back(started);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.meter.places().fetch_sub(1, Ordering::Relaxed);
        self.give_back();
        if let Some(places) = self.places.take() {
            places.leave();
        }
    }
}

impl Places {
    /// Creates places that are given in this virtual time.
    #[must_use]
    pub fn new(time: Arc<VirtualTime>) -> Arc<Self> {
        Arc::new(Self {
            time,
            inside: Mutex::default(),
        })
    }

    /// Returns the virtual time in which the places are given.
    #[must_use]
    pub fn time(&self) -> &Arc<VirtualTime> {
        &self.time
    }

    /// Returns how many wait for a place.
    pub fn waiting(&self) -> usize {
        self.inside.lock().queue.len()
    }

    /// Returns how many places are taken.
    pub fn taken(&self) -> usize {
        self.inside.lock().taken
    }

    /// Waits for one of `places` places. If there are fewer than before, those above are not given
    /// again.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the place to the next one.
    ///
    /// # Panics
    /// Never: the queue drops no sender before it has sent.
    pub async fn enter(self: &Arc<Self>, meter: &Arc<PlaneMeter>, places: usize) -> Place {
        let waiting = {
            let mut inside = self.inside.lock();
            inside.places = places;
            if inside.taken < places {
                inside.taken += 1;
                return self.place(meter, meter.flow().start(&self.time));
            }
            let (sender, waiting) = oneshot::channel();
            inside.queue.push(meter, sender, &self.time);
            waiting
        };
        let mut waiting = waiting;
        loop {
            tokio::select! {
                given = &mut waiting => {
                    return given.expect("the queue drops no sender before it has sent");
                }
                () = tokio::time::sleep(LEND_AFTER) => {
                    if let Some(place) = self.lend(meter) {
                        waiting.close();
                        let is_wanted = |sender: &oneshot::Sender<Place>| !sender.is_closed();
                        self.inside.lock().queue.leave(meter, is_wanted);
                        return place;
                    }
                }
            }
        }
    }

    /// Returns a place beyond those that there are, for a plane that has none.
    fn lend(self: &Arc<Self>, meter: &Arc<PlaneMeter>) -> Option<Place> {
        let mut inside = self.inside.lock();
        let has_none = meter.places().load(Ordering::Relaxed) == 0;
        let may_lend = has_none && inside.taken < 2 * inside.places;
        may_lend.then(|| {
            inside.taken += 1;
            self.place(meter, meter.flow().start(&self.time))
        })
    }

    fn place(self: &Arc<Self>, meter: &Arc<PlaneMeter>, started: Started) -> Place {
        meter.places().fetch_add(1, Ordering::Relaxed);
        Place {
            places: Some(Arc::clone(self)),
            meter: Arc::clone(meter),
            started: Some(started),
        }
    }

    /// Gives a place that became free to whoever goes next.
    fn leave(self: &Arc<Self>) {
        loop {
            let (meter, sender, started) = {
                let mut inside = self.inside.lock();
                let is_over = inside.taken > inside.places;
                let next = match is_over {
                    true => None,
                    false => inside.queue.pop(&self.time),
                };
                let Some(next) = next else {
                    inside.taken -= 1;
                    return;
                };
                next
            };
            let Err(mut unwanted) = sender.send(self.place(&meter, started)) else {
                return;
            };
            // Nobody waits for it any more, so the place stays here for the next one.
            unwanted.give_back();
            unwanted.places = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Arc<Places> {
        Places::new(Arc::default())
    }

    fn meters() -> [Arc<PlaneMeter>; 2] {
        [Arc::default(), Arc::default()]
    }

    async fn until_waiting(places: &Places, count: usize) {
        while places.waiting() < count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_plane_with_little_work_does_not_wait_for_all_of_another() {
        for (count, limit) in [(1, 5), (2, 10)] {
            let (places, [flood, modest]) = (places(), meters());
            let mut held = Vec::new();
            for _ in 0..count {
                held.push(places.enter(&flood, count).await);
            }
            let order: Arc<Mutex<Vec<usize>>> = Arc::default();
            let planes = std::iter::repeat_n(&flood, 200).chain([&modest]);
            let runs: Vec<_> = planes
                .enumerate()
                .map(|(at, meter)| {
                    let (places, meter) = (Arc::clone(&places), Arc::clone(meter));
                    let order = Arc::clone(&order);
                    tokio::spawn(async move {
                        let place = places.enter(&meter, count).await;
                        order.lock().push(at);
                        drop(place);
                    })
                })
                .collect();
            until_waiting(&places, 201).await;
            drop(held);
            for run in runs {
                run.await.expect("no panic");
            }
            let place = order.lock().iter().position(|at| *at == 200);
            assert!(place.is_some_and(|place| place < limit), "{place:?}");
            assert_eq!(places.taken(), 0);
        }
    }

    #[tokio::test]
    async fn a_plane_without_a_place_does_not_wait_for_the_end_of_long_work() {
        let (places, [long, other]) = (places(), meters());
        let held = places.enter(&long, 1).await;
        let lent = places.enter(&other, 1).await;
        assert_eq!((places.taken(), places.waiting()), (2, 0));
        // Neither gets a second one.
        for meter in [&long, &other] {
            let wait = LEND_AFTER * 2;
            let second = tokio::time::timeout(wait, places.enter(meter, 1)).await;
            assert!(second.is_err(), "{second:?}");
        }
        drop(lent);
        assert_eq!(places.taken(), 1);
        drop(held);
        assert_eq!(places.taken(), 0);
    }

    #[tokio::test]
    async fn who_stops_waiting_leaves_the_place_to_the_next_one() {
        let (places, [one, other]) = (places(), meters());
        let held = places.enter(&one, 1).await;
        let spawn = |meter: &Arc<PlaneMeter>| {
            let (places, meter) = (Arc::clone(&places), Arc::clone(meter));
            tokio::spawn(async move { drop(places.enter(&meter, 1).await) })
        };
        let (gone, stays) = (spawn(&one), spawn(&other));
        until_waiting(&places, 2).await;
        gone.abort();
        drop(gone.await);
        drop(held);
        stays.await.expect("it gets the place");
        assert_eq!(places.taken(), 0);
    }

    #[tokio::test]
    async fn places_that_are_too_many_are_not_given_again() {
        let (places, [alone, other]) = (places(), meters());
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(places.enter(&alone, 4).await);
        }
        let comes = {
            let (places, other) = (Arc::clone(&places), Arc::clone(&other));
            tokio::spawn(async move { drop(places.enter(&other, 2).await) })
        };
        until_waiting(&places, 1).await;
        held.truncate(2);
        assert_eq!((places.taken(), places.waiting()), (2, 1));
        held.clear();
        comes.await.expect("it gets a place");
        assert_eq!(places.taken(), 0);
    }
}

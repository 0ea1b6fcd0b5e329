//! Places to work in, of which there are only so many.
//!
//! A place that becomes free goes to whoever is next by [`Turns`]: to the plane that has used the least.
//! The queue holds one channel for each that waits.
//!
//! Work cannot be interrupted, and the work of one plane may take long. So a further place is lent when a plane that
//! has none has waited for [`LEND_AFTER`], up to [`LENT_TIMES`] as many as there are, and once a plane has waited for a
//! second up to the factor that [`Places::new`] is given. It goes to the plane that has used the least of those that
//! have none. If each request took what is free when its own time is over, a plane with very many requests would nearly
//! always be the first, and one with a single request would wait for most of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::meter::PlaneMeter;
use crate::turns::{Started, Turns, VirtualTime};

/// How long a plane waits for its first place. With less, planes that all have work would use more threads than there
/// are CPUs for it; with more, a plane waits longer for the work of others.
const LEND_AFTER: Duration = Duration::from_millis(50);
/// How many times as many places as there are may be taken before a plane is late. With more, long work would leave
/// little of the CPUs to short work; with fewer, there would be no thread for a plane that has none.
const LENT_TIMES: usize = 2;
/// Waits of [`LEND_AFTER`] in a row after which a plane is late: a second. With fewer, there would be more threads for
/// work that is merely long; with more, a plane waits longer for work that does not end.
const LATE_WAITS: usize = 20;

/// The places that all planes share.
#[derive(Debug)]
pub struct Places {
    time: Arc<VirtualTime>,
    /// How many times as many places as there are may be taken once a plane has had none for [`LATE_WAITS`].
    times_max: usize,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    taken: usize,
    /// The number of places, as whoever came last said.
    places: usize,
    queue: Turns<oneshot::Sender<Place>>,
    /// How many places each plane has that has any, by the address of its meter, which its places hold. Not counted with
    /// the meter: a plane has places of other kinds too.
    held: HashMap<usize, usize>,
}

impl Inside {
    fn hold(&mut self, meter: &PlaneMeter) {
        *self.held.entry(key(meter)).or_default() += 1;
    }

    fn release(&mut self, meter: &PlaneMeter) {
        let key = key(meter);
        if let Some(count) = self.held.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&key);
            }
        }
    }
}

/// The right to work. Dropping it lets the next one in, and takes back what the plane was charged in
/// advance, unless [`Place::charge_actual`] has replaced that by the cost.
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
    pub fn charge_actual(&mut self, cost: u64) {
        if let Some(started) = self.started.take() {
            self.meter.flow().charge_actual(started, cost);
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
        self.give_back();
        if let Some(places) = self.places.take() {
            places.leave(&self.meter);
        }
    }
}

impl Places {
    /// Creates places that are given in this virtual time. At most `times_max` times as many as there are will ever be
    /// taken: those beyond are lent to planes that have none and have waited.
    #[must_use]
    pub fn new(time: Arc<VirtualTime>, times_max: usize) -> Arc<Self> {
        Arc::new(Self {
            time,
            times_max,
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
        let mut waiting = {
            let mut inside = self.inside.lock();
            inside.places = places;
            if inside.taken < places {
                inside.taken += 1;
                inside.hold(meter);
                return self.place(meter, meter.flow().start(&self.time));
            }
            let (sender, given) = oneshot::channel();
            inside.queue.push(meter, sender, &self.time);
            Queued {
                places: self,
                meter,
                given,
            }
        };
        let mut waits = 0;
        loop {
            tokio::select! {
                // The place first: with one, nothing needs to be lent.
                biased;
                given = &mut waiting.given => {
                    return given.expect("the queue drops no sender before it has sent");
                }
                () = tokio::time::sleep(LEND_AFTER) => {
                    waits = match self.has_none(meter) {
                        true => waits + 1,
                        false => 0,
                    };
                    if waits > 0 {
                        self.lend(waits);
                    }
                }
            }
        }
    }

    /// Gives a place beyond those that there are to whoever goes next among the planes that have none, because one of
    /// them has waited so many times for [`LEND_AFTER`].
    fn lend(self: &Arc<Self>, waits: usize) {
        let times = match waits < LATE_WAITS {
            true => LENT_TIMES.min(self.times_max),
            false => self.times_max,
        };
        while let Some((sender, place)) = self.next_lent(times) {
            if send_lent(sender, place) {
                return;
            }
        }
    }

    /// Takes a place beyond those that there are for whoever goes next among the planes that have none; `None` if so
    /// many times as many are taken as there are, or no such plane waits.
    fn next_lent(self: &Arc<Self>, times: usize) -> Option<(oneshot::Sender<Place>, Place)> {
        let mut inside = self.inside.lock();
        if inside.taken >= inside.places.saturating_mul(times) {
            return None;
        }
        let Inside { queue, held, .. } = &mut *inside;
        let has_none = |meter: &PlaneMeter| !held.contains_key(&key(meter));
        let (meter, sender, started) = queue.pop_among(&self.time, has_none)?;
        inside.taken += 1;
        inside.hold(&meter);
        Some((sender, self.place(&meter, started)))
    }

    /// Returns whether a plane has no place.
    fn has_none(&self, meter: &PlaneMeter) -> bool {
        !self.inside.lock().held.contains_key(&key(meter))
    }

    fn place(self: &Arc<Self>, meter: &Arc<PlaneMeter>, started: Started) -> Place {
        Place {
            places: Some(Arc::clone(self)),
            meter: Arc::clone(meter),
            started: Some(started),
        }
    }

    /// Drops a place for which nobody waits any more, without letting the next one in.
    fn discard(&self, mut unwanted: Place) {
        unwanted.places = None;
        self.inside.lock().release(&unwanted.meter);
    }

    /// Gives the place of a plane, which became free, to whoever goes next.
    fn leave(self: &Arc<Self>, meter: &PlaneMeter) {
        self.inside.lock().release(meter);
        loop {
            let (sender, place) = {
                let mut inside = self.inside.lock();
                let is_over = inside.taken > inside.places;
                let next = match is_over {
                    true => None,
                    false => inside.queue.pop(&self.time),
                };
                let Some((meter, sender, started)) = next else {
                    inside.taken -= 1;
                    return;
                };
                inside.hold(&meter);
                (sender, self.place(&meter, started))
            };
            let Err(unwanted) = sender.send(place) else {
                return;
            };
            // The place stays here for the next one.
            self.discard(unwanted);
        }
    }
}

/// Sends a place that is lent, with nothing locked. Returns false if nobody waits for it any more. It is then dropped as
/// any other: another may have come back meanwhile, and only under the lock is it known which of them is beyond those
/// that there are.
fn send_lent(sender: oneshot::Sender<Place>, place: Place) -> bool {
    sender.send(place).is_ok()
}

/// A place in the queue. Dropping it leaves the queue.
struct Queued<'a> {
    places: &'a Places,
    meter: &'a Arc<PlaneMeter>,
    given: oneshot::Receiver<Place>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.given.is_terminated() {
            return;
        }
        self.given.close();
        // If a place has come meanwhile, the channel drops it, which lets the next one in.
        if self.given.is_empty() {
            let is_wanted = |sender: &oneshot::Sender<Place>| !sender.is_closed();
            let mut inside = self.places.inside.lock();
            inside.queue.leave(self.meter, is_wanted);
        }
    }
}

/// Returns a number that no other plane with a place has.
fn key(meter: &PlaneMeter) -> usize {
    std::ptr::from_ref(meter).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES_MAX: usize = 3;

    fn places() -> Arc<Places> {
        Places::new(Arc::default(), TIMES_MAX)
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

    /// Takes a place, works for a second, and notes for whom.
    fn work(
        places: &Arc<Places>,
        meter: &Arc<PlaneMeter>,
        served: &Arc<Mutex<Vec<usize>>>,
    ) -> tokio::task::JoinHandle<()> {
        let (places, meter) = (Arc::clone(places), Arc::clone(meter));
        let served = Arc::clone(served);
        tokio::spawn(async move {
            let mut place = places.enter(&meter, 1).await;
            served.lock().push(Arc::as_ptr(&meter).addr());
            tokio::time::sleep(Duration::from_secs(1)).await;
            place.charge_actual(1_000_000_000);
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_lent_place_goes_to_the_plane_that_has_used_the_least() {
        let (places, served) = (places(), Arc::default());
        let floods: Vec<Arc<PlaneMeter>> = (0..3).map(|_| Arc::default()).collect();
        let modest = Arc::default();
        let mut tasks = Vec::new();
        for _ in 0..20 {
            tasks.extend(floods.iter().map(|flood| work(&places, flood, &served)));
        }
        // All floods have had a place by now, and two of them have one.
        while served.lock().len() < 5 {
            tokio::time::sleep(LEND_AFTER).await;
        }
        let before = served.lock().len();
        work(&places, &modest, &served).await.expect("no panic");
        let own = Arc::as_ptr(&modest).addr();
        let place = served.lock().iter().position(|plane| *plane == own);
        assert!(place.is_some_and(|place| place < before + 4), "{place:?}");
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plane_gets_a_place_beside_others_whose_work_does_not_end() {
        let places = places();
        let mut held = Vec::new();
        for _ in 0..TIMES_MAX {
            let meter = Arc::default();
            let entered = tokio::time::timeout(Duration::from_secs(10), places.enter(&meter, 1));
            held.push(entered.await.expect("one is lent"));
        }
        // Not without end: there must be a CPU for short work.
        let meter = Arc::default();
        let entered = tokio::time::timeout(Duration::from_secs(10), places.enter(&meter, 1));
        assert!(entered.await.is_err());
        drop(held);
        assert_eq!(places.taken(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plane_with_a_place_of_another_kind_is_lent_one() {
        let (places, others, [long, plane]) = (places(), places(), meters());
        let held = places.enter(&long, 1).await;
        let of_other_kind = others.enter(&plane, 1).await;
        let entered = tokio::time::timeout(Duration::from_secs(10), places.enter(&plane, 1));
        let lent = entered.await.expect("one is lent");
        drop((held, of_other_kind, lent));
        assert_eq!((places.taken(), others.taken()), (0, 0));
        for places in [places, others] {
            assert!(places.inside.lock().held.is_empty());
        }
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
    async fn who_stops_waiting_leaves_the_queue() {
        let (places, [plane, _]) = (places(), meters());
        // With a place, the plane is lent none.
        let held = places.enter(&plane, 1).await;
        let waits: Vec<_> = (0..100)
            .map(|_| {
                let (places, plane) = (Arc::clone(&places), Arc::clone(&plane));
                tokio::spawn(async move { drop(places.enter(&plane, 1).await) })
            })
            .collect();
        until_waiting(&places, 100).await;
        for gone in waits {
            gone.abort();
            drop(gone.await);
        }
        assert_eq!((places.taken(), places.waiting()), (1, 0));
        drop(held);
        assert_eq!(places.taken(), 0);
    }

    #[tokio::test]
    async fn a_lent_place_that_nobody_wants_goes_to_the_next_one_if_another_came_back() {
        let (places, [plane, gone]) = (places(), meters());
        let held = places.enter(&plane, 1).await;
        let wait = |meter: &Arc<PlaneMeter>| {
            let (sender, given) = oneshot::channel();
            places.inside.lock().queue.push(meter, sender, &places.time);
            given
        };
        let mut waits = wait(&plane);
        drop(wait(&gone));
        let (sender, lent) = places.next_lent(LENT_TIMES).expect("one has none");
        assert_eq!((places.taken(), places.waiting()), (2, 1));
        // More are taken than there are, so it lets nobody in.
        drop(held);
        assert_eq!((places.taken(), places.waiting()), (1, 1));
        assert!(!send_lent(sender, lent));
        let place = waits.try_recv().expect("it is given the place");
        assert_eq!((places.taken(), places.waiting()), (1, 0));
        drop(place);
        assert_eq!(places.taken(), 0);
        assert!(places.inside.lock().held.is_empty());
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

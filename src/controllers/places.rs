//! The places in which reconcilers run, and what a run costs its plane.
//!
//! A place that becomes free goes to the plane that has used the least of the replica, as the turns of
//! requests do: so a plane with very much work, such as the dependents of an owner that is gone, delays
//! that of another plane by little. What a run takes is charged to the plane, whose requests then wait
//! for it too.
//!
//! Invariant: knows no reconciler.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use polyplane_fairness::{PlaneMeter, Started, Turns, VirtualTime};
use tokio::sync::oneshot;

/// The places of all planes.
#[derive(Debug)]
pub(crate) struct Places {
    time: Arc<VirtualTime>,
    inside: Mutex<Inside>,
}

#[derive(Debug)]
struct Inside {
    free: usize,
    queue: Turns<oneshot::Sender<Place>>,
}

/// The right to run. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Place {
    /// `None` once the place belongs to somebody else.
    places: Option<Arc<Places>>,
    meter: Arc<PlaneMeter>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(places) = self.places.take() {
            places.leave();
        }
    }
}

impl Place {
    /// Does the work of the plane, and charges the plane for each poll of it.
    pub(crate) async fn charged<T>(&self, mut work: BoxFuture<'_, T>) -> T {
        poll_fn(|context| {
            let began = Instant::now();
            let polled = work.as_mut().poll(context);
            let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.meter.charge(nanos);
            self.meter.flow().charge(nanos);
            polled
        })
        .await
    }
}

impl Places {
    /// Creates so many places.
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            time: Arc::default(),
            inside: Mutex::new(Inside {
                free: places,
                queue: Turns::default(),
            }),
        })
    }

    /// Returns the virtual time in which the places are given.
    pub(crate) fn time(&self) -> Arc<VirtualTime> {
        Arc::clone(&self.time)
    }

    /// Waits for a place.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the place to the next one.
    pub(crate) async fn enter(self: &Arc<Self>, meter: &Arc<PlaneMeter>) -> Place {
        let waiting = {
            let mut inside = self.inside.lock();
            if inside.free > 0 {
                inside.free -= 1;
                return self.place(meter, meter.flow().start(&self.time));
            }
            let (sender, waiting) = oneshot::channel();
            inside.queue.push(meter, sender, &self.time);
            waiting
        };
        waiting
            .await
            .expect("the queue drops no sender before it has sent")
    }

    /// Makes a place. What a run costs is charged while it runs, and must not change what a request of the
    /// plane is expected to cost, so the account is settled as expected.
    fn place(self: &Arc<Self>, meter: &Arc<PlaneMeter>, started: Started) -> Place {
        let expected = started.expected();
        meter.flow().settle(started, expected);
        Place {
            places: Some(Arc::clone(self)),
            meter: Arc::clone(meter),
        }
    }

    /// Gives a place that became free to whoever goes next.
    fn leave(self: &Arc<Self>) {
        loop {
            let (meter, sender, started) = {
                let mut inside = self.inside.lock();
                let Some(next) = inside.queue.pop(&self.time) else {
                    inside.free += 1;
                    return;
                };
                next
            };
            let Err(mut unwanted) = sender.send(self.place(&meter, started)) else {
                return;
            };
            // Nobody waits for it any more, so the place stays here for the next one.
            unwanted.places = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn enough(places: &Places, waiting: usize) {
        while places.inside.lock().queue.len() < waiting {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_plane_with_little_work_does_not_wait_for_all_of_another() {
        let places = Places::new(2);
        let (busy, modest): (Arc<PlaneMeter>, Arc<PlaneMeter>) = (Arc::default(), Arc::default());
        let held = [places.enter(&busy).await, places.enter(&busy).await];
        let order: Arc<Mutex<Vec<usize>>> = Arc::default();
        let work = std::iter::repeat_n(&busy, 200).chain([&modest]);
        let runs: Vec<_> = work
            .enumerate()
            .map(|(at, meter)| {
                let (places, meter) = (Arc::clone(&places), Arc::clone(meter));
                let order = Arc::clone(&order);
                tokio::spawn(async move {
                    let place = places.enter(&meter).await;
                    let work = Box::pin(async { order.lock().push(at) });
                    place.charged(work).await;
                })
            })
            .collect();
        enough(&places, 201).await;
        drop(held);
        for run in runs {
            run.await.expect("no panic");
        }
        let place = order.lock().iter().position(|at| *at == 200);
        assert!(place.is_some_and(|place| place < 10), "{place:?}");
        assert_eq!(places.inside.lock().free, 2);
        assert!(busy.usage().cpu_nanos > 0);
    }

    #[tokio::test]
    async fn who_stops_waiting_leaves_the_place_to_the_next_one() {
        let places = Places::new(1);
        let meter = Arc::<PlaneMeter>::default();
        let held = places.enter(&meter).await;
        let spawn = || {
            let (places, meter) = (Arc::clone(&places), Arc::clone(&meter));
            tokio::spawn(async move { drop(places.enter(&meter).await) })
        };
        let (gone, stays) = (spawn(), spawn());
        enough(&places, 2).await;
        gone.abort();
        drop(gone.await);
        drop(held);
        stays.await.expect("it gets the place");
        assert_eq!(places.inside.lock().free, 1);
    }
}

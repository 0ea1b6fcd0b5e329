//! What a connection costs its planes beside the work of their requests: frames, encryption and system calls.
//!
//! Requests and pieces of answers are measured where they are made, and charged to their planes there. An event of a
//! watch is made in a few microseconds, and costs its connection several times that. A plane with thousands of watches
//! would thus have several times its share, at the cost of the others. So each poll of a connection's task is measured
//! as a whole. What is not charged by then is divided among the planes for which the connection has worked, in
//! proportion to that work. A request that has moved to a task of its own is measured in the same way there.
//!
//! Invariant: no measured time is charged twice. What is charged within a poll is noted with [`note`], in whatever
//! module that is. What was charged by an estimate, such as a nanosecond for each byte of an answer, is worked off in
//! the polls that follow, but not in another task: the sending of a list that has a task of its own counts a little
//! more than once.

use std::cell::RefCell;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use polyplane_fairness::{CpuTimer, PlaneMeter, Precision};

/// The most that is kept as charged in advance, in nanoseconds: estimates for an answer of some megabytes.
const AHEAD_MAX: u64 = 10_000_000;

thread_local! {
    /// The poll that is measured on this thread.
    static MEASURED: RefCell<Option<Measured>> = const { RefCell::new(None) };
}

/// The cost of a task that works for several planes.
#[derive(Default)]
pub(crate) struct ConnectionCost {
    /// The planes of the last poll in which any is known. They pay for the polls after it too, until there are
    /// others: the socket has room again, say, or the answer is another replica's, whose pieces say nothing of their plane.
    /// While there are none, nobody pays: a stranger's connection has the
    /// limits of strangers.
    planes: Parts,
    /// True if `planes` are those of the last poll.
    is_fresh: bool,
    /// Nanoseconds that are charged already and were not spent in the polls so far.
    ahead: u64,
    /// What requests with tasks of their own have done since the last poll: the connection sends it. `None` before
    /// there is one.
    elsewhere: Option<Arc<Mutex<Parts>>>,
}

/// The parts of planes in some work.
#[derive(Default)]
struct Parts(Vec<Part>);

/// The part of one plane in the work of a poll.
struct Part {
    meter: Arc<PlaneMeter>,
    nanos: u64,
}

/// What is known of a poll.
#[derive(Default)]
struct Measured {
    /// The nanoseconds that are charged already.
    charged: u64,
    planes: Parts,
    /// True once `planes` are those of this poll, and not those of an earlier one.
    has_planes: bool,
    elsewhere: Option<Arc<Mutex<Parts>>>,
}

/// Notes, in the poll of a connection, that a part of it is charged already, and to which plane. Has no effect
/// elsewhere.
pub(crate) fn note(plane: Option<&Arc<PlaneMeter>>, nanos: u64) {
    MEASURED.with_borrow_mut(|measured| {
        if let Some(measured) = measured {
            measured.add(plane, nanos);
        }
    });
}

/// Returns the work of a request that leaves its connection's task, in whose poll this is called. Its plane is charged
/// for what the new task does beside the request, and then for its part in what the connection does to send it.
pub(crate) fn charged<F: Future + Unpin>(mut work: F) -> impl Future<Output = F::Output> {
    let connection = MEASURED.with_borrow_mut(|measured| {
        let measured = measured.as_mut()?;
        Some(Arc::clone(measured.elsewhere.get_or_insert_default()))
    });
    async move {
        let mut cost = ConnectionCost::default();
        poll_fn(|context| {
            // Only long work moves, so that exact clocks cost little.
            let (polled, _) = cost.poll(Precision::Exact, Pin::new(&mut work), context);
            if let Some(connection) = connection.as_ref().filter(|_| cost.is_fresh) {
                connection.lock().add_all(&cost.planes);
            }
            polled
        })
        .await
    }
}

impl ConnectionCost {
    /// Polls the task's work, and charges the planes for what is not charged in it. Returns the nanoseconds that the
    /// task took beside what was charged in this poll.
    pub(crate) fn poll<F: Future>(
        &mut self,
        precision: Precision,
        work: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> (Poll<F::Output>, u64) {
        let measured = Measured {
            planes: mem::take(&mut self.planes),
            elsewhere: self.elsewhere.take(),
            ..Measured::default()
        };
        // A poll that has panicked may have left another one.
        MEASURED.set(Some(measured));
        let timer = CpuTimer::start(precision);
        let polled = work.poll(context);
        let spent = timer.stop().cpu_nanos;
        let Some(mut measured) = MEASURED.take() else {
            return (polled, 0);
        };
        measured.add_elsewhere();
        let beside = spent.saturating_sub(measured.charged);
        let paid = measured.charged.saturating_add(self.ahead);
        let rest = spent.saturating_sub(paid);
        self.ahead = paid.saturating_sub(spent).min(AHEAD_MAX);
        self.planes = measured.planes;
        self.is_fresh = measured.has_planes;
        self.elsewhere = measured.elsewhere;
        self.planes.0.retain(|part| part.nanos > 0);
        self.planes.charge(rest);
        (polled, beside)
    }
}

impl Parts {
    /// Divides a cost among the planes.
    fn charge(&self, nanos: u64) {
        if let [only] = &self.0[..] {
            return only.charge(nanos);
        }
        let all: u128 = self.0.iter().map(|part| u128::from(part.nanos)).sum();
        for part in &self.0 {
            let due = u128::from(nanos) * u128::from(part.nanos) / all;
            part.charge(u64::try_from(due).unwrap_or(nanos));
        }
    }

    fn add(&mut self, plane: &Arc<PlaneMeter>, nanos: u64) {
        // At least one, because a clock may stand still, and the plane pays nevertheless.
        let nanos = nanos.max(1);
        let known = |part: &&mut Part| Arc::ptr_eq(&part.meter, plane);
        if let Some(part) = self.0.iter_mut().find(known) {
            part.nanos = part.nanos.saturating_add(nanos);
            return;
        }
        self.0.push(Part {
            meter: Arc::clone(plane),
            nanos,
        });
    }

    fn add_all(&mut self, others: &Self) {
        for part in &others.0 {
            self.add(&part.meter, part.nanos);
        }
    }
}

impl Part {
    fn charge(&self, nanos: u64) {
        self.meter.charge(nanos);
        self.meter.flow().charge(nanos);
    }
}

impl Measured {
    fn add(&mut self, plane: Option<&Arc<PlaneMeter>>, nanos: u64) {
        self.charged = self.charged.saturating_add(nanos);
        if let Some(plane) = plane {
            self.planes_of_this_poll().add(plane, nanos);
        }
    }

    /// Adds what other tasks have done for the connection since its last poll. They have charged it.
    fn add_elsewhere(&mut self) {
        let done = self
            .elsewhere
            .as_ref()
            .map(|done| mem::take(&mut *done.lock()));
        if let Some(done) = done.filter(|done| !done.0.is_empty()) {
            self.planes_of_this_poll().add_all(&done);
        }
    }

    fn planes_of_this_poll(&mut self) -> &mut Parts {
        if !self.has_planes {
            // Kept in their places: most connections work for one plane only, and this needs no memory.
            for part in &mut self.planes.0 {
                part.nanos = 0;
            }
            self.has_planes = true;
        }
        &mut self.planes
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    /// Polls once for these planes, which are charged so many nanoseconds in it. Returns what was charged beside.
    fn poll_for(cost: &mut ConnectionCost, planes: &[(&Arc<PlaneMeter>, u64)]) -> u64 {
        let mut context = Context::from_waker(Waker::noop());
        let work = poll_fn(|_| {
            for &(meter, nanos) in planes {
                note(Some(meter), nanos);
            }
            work_for_a_while();
            Poll::Ready(())
        });
        let (polled, nanos) = cost.poll(Precision::Rough, pin!(work), &mut context);
        assert!(polled.is_ready());
        nanos
    }

    /// Works until a clock has moved, so that there is something to charge.
    fn work_for_a_while() {
        let began = std::time::Instant::now();
        while began.elapsed().as_micros() < 20 {
            std::hint::spin_loop();
        }
    }

    fn charged_to(meter: &Arc<PlaneMeter>) -> u64 {
        meter.usage().cpu_nanos
    }

    #[test]
    fn a_plane_pays_for_its_connection_beside_its_requests() {
        let (plane, mut cost) = (Arc::<PlaneMeter>::default(), ConnectionCost::default());
        let nanos = poll_for(&mut cost, &[(&plane, 1)]);
        assert!(nanos > 0);
        assert_eq!(charged_to(&plane), nanos);
        // Nothing says for whom this one is.
        let later = poll_for(&mut cost, &[]);
        assert!(later > 0);
        assert_eq!(charged_to(&plane), nanos + later);
    }

    #[test]
    fn what_is_charged_within_a_poll_is_not_charged_again() {
        let (plane, mut cost) = (Arc::<PlaneMeter>::default(), ConnectionCost::default());
        assert_eq!(poll_for(&mut cost, &[(&plane, u64::MAX)]), 0);
        assert_eq!(charged_to(&plane), 0);
    }

    #[test]
    fn planes_of_one_connection_share_what_it_costs_by_their_work() {
        let (one, other) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
        let mut cost = ConnectionCost::default();
        let parts = [(&one, 3), (&other, 1), (&one, 6)];
        let nanos = poll_for(&mut cost, &parts);
        assert_eq!(charged_to(&one), nanos * 9 / 10);
        assert_eq!(charged_to(&other), nanos / 10);
        // The next poll is for one of them alone.
        let later = poll_for(&mut cost, &[(&other, 1)]);
        assert_eq!(charged_to(&one), nanos * 9 / 10);
        assert_eq!(charged_to(&other), nanos / 10 + later);
        assert_eq!(Arc::strong_count(&one), 1, "the connection forgets it");
    }

    #[test]
    fn what_is_noted_outside_of_a_connection_is_kept_by_nobody() {
        let plane = Arc::<PlaneMeter>::default();
        note(Some(&plane), 1);
        assert_eq!(Arc::strong_count(&plane), 1);
    }

    #[test]
    fn what_is_charged_in_advance_is_worked_off_later() {
        let (plane, mut cost) = (Arc::<PlaneMeter>::default(), ConnectionCost::default());
        assert_eq!(poll_for(&mut cost, &[(&plane, AHEAD_MAX)]), 0);
        assert!(poll_for(&mut cost, &[]) > 0, "it is time of a connection");
        assert_eq!(charged_to(&plane), 0);
        cost.ahead = 1;
        assert!(poll_for(&mut cost, &[]) > 0);
        assert!(charged_to(&plane) > 0);
    }

    #[test]
    fn the_plane_whose_request_has_moved_pays_for_its_connection() {
        let (one, moved) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
        let mut cost = ConnectionCost::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut tasks = Vec::new();
        let work = poll_fn(|_| {
            note(Some(&one), 1);
            let moved = Arc::clone(&moved);
            tasks.push(Box::pin(charged(poll_fn(move |_| {
                note(Some(&moved), 1_000_000_000);
                Poll::<()>::Pending
            }))));
            Poll::Ready(())
        });
        assert!(
            cost.poll(Precision::Rough, pin!(work), &mut context)
                .0
                .is_ready()
        );
        let before = charged_to(&one);
        for task in &mut tasks {
            assert!(task.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(charged_to(&moved), 0, "it has charged itself");
        let later = poll_for(&mut cost, &[]);
        assert_eq!(charged_to(&one), before);
        assert_eq!(charged_to(&moved), later);
    }

    #[tokio::test]
    async fn a_request_in_a_task_of_its_own_pays_for_the_task() {
        let plane = Arc::<PlaneMeter>::default();
        let noted = Arc::clone(&plane);
        charged(Box::pin(async move {
            note(Some(&noted), 1);
            work_for_a_while();
            ready(()).await;
        }))
        .await;
        assert!(charged_to(&plane) > 0);
    }
}

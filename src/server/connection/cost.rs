//! What a connection costs its planes beside the work of their requests: frames, encryption and system calls.
//!
//! Requests and pieces of answers are measured where they are made, and charged to their planes there. An event of a
//! watch is made in a few microseconds, and costs its connection several times that. A plane with thousands of watches
//! would thus have several times its share, at the cost of the others. So each poll of a connection's task is measured
//! as a whole. What is not charged by then is divided among the planes for which the connection has worked, in
//! proportion to that work. A request that has moved to a task of its own is measured in the same way there.
//!
//! A connection between replicas carries the requests of many planes. At the owner it is paid for as a client's is: each
//! request has a task of its own. The replica that forwards does no work for a request but that of the connection, so
//! there the planes pay by frames and bytes ([`Shares::add`]).
//!
//! Invariant: no measured time is charged twice. What is charged within a poll is noted with [`note`], in whatever
//! module that is. What was charged by an estimate, such as a nanosecond for each byte of an answer, is worked off in
//! the polls that follow: those of the connection, if a request with a task of its own was charged.

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
/// What a plane pays for a connection at once, in nanoseconds: several polls. With less, threads that poll connections of
/// one plane would struggle for its account; with more, very many connections would owe too much together.
const PAID_AT_ONCE: u64 = 20_000;

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
    /// What others have done since the last poll. `None` before there is anything.
    elsewhere: Option<Arc<Shares>>,
    /// True if the connection leads to another replica. Its planes pay for one poll more, and not for all that come
    /// until there are others: it also carries what replicas tell each other.
    is_between_replicas: bool,
}

/// What a connection has to do for planes, as those know who are not its task: requests with tasks of their own, and who
/// sends over a connection to another replica.
#[derive(Default)]
pub(crate) struct Shares(Mutex<Elsewhere>);

#[derive(Default)]
struct Elsewhere {
    planes: Parts,
    /// Nanoseconds that are charged already for what the connection does.
    ahead: u64,
}

/// The parts of planes in some work.
#[derive(Default)]
struct Parts(Vec<Part>);

/// The part of one plane in the work of a poll.
struct Part {
    meter: Arc<PlaneMeter>,
    nanos: u64,
    /// What the plane has to pay and has not paid yet, in nanoseconds. It pays the rest when the part is dropped.
    due: u64,
}

/// What is known of a poll.
#[derive(Default)]
struct Measured {
    /// The nanoseconds that are charged already.
    charged: u64,
    planes: Parts,
    /// True once `planes` are those of this poll, and not those of an earlier one.
    has_planes: bool,
    elsewhere: Option<Arc<Shares>>,
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
/// `precision` returns how closely a poll is to be measured.
pub(crate) fn charged<F: Future + Unpin>(
    precision: impl Fn() -> Precision,
    mut work: F,
) -> impl Future<Output = F::Output> {
    let connection = MEASURED.with_borrow_mut(|measured| {
        let measured = measured.as_mut()?;
        Some(Arc::clone(measured.elsewhere.get_or_insert_default()))
    });
    async move {
        let mut cost = ConnectionCost::default();
        poll_fn(|context| {
            let (polled, _) = cost.poll(precision(), Pin::new(&mut work), context);
            if let Some(connection) = &connection {
                cost.hand_over(connection);
            }
            polled
        })
        .await
    }
}

impl Shares {
    /// Adds work that the connection has to do for a plane. The unit is the caller's choice, but one for all.
    pub(crate) fn add(&self, plane: &Arc<PlaneMeter>, work: u64) {
        self.0.lock().planes.add(plane, work);
    }
}

impl ConnectionCost {
    /// Creates the cost of a connection to another replica.
    pub(crate) fn between_replicas(elsewhere: &Arc<Shares>) -> Self {
        Self {
            elsewhere: Some(Arc::clone(elsewhere)),
            is_between_replicas: true,
            ..Self::default()
        }
    }

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
        let ahead = self.ahead.saturating_add(measured.add_elsewhere());
        let beside = spent.saturating_sub(measured.charged);
        let paid = measured.charged.saturating_add(ahead);
        let rest = spent.saturating_sub(paid);
        self.ahead = paid.saturating_sub(spent).min(AHEAD_MAX);
        self.planes = measured.planes;
        self.is_fresh = measured.has_planes;
        self.elsewhere = measured.elsewhere;
        self.planes.0.retain(|part| part.nanos > 0);
        self.planes.charge(rest);
        if self.is_between_replicas && !self.is_fresh {
            self.planes.0.clear();
        }
        (polled, beside)
    }

    /// Hands over to the connection what the task has done for it in this poll, and what is charged in advance.
    fn hand_over(&mut self, connection: &Shares) {
        if !self.is_fresh && self.ahead == 0 {
            return;
        }
        let mut elsewhere = connection.0.lock();
        if self.is_fresh {
            elsewhere.planes.add_all(&self.planes);
        }
        let ahead = mem::take(&mut self.ahead);
        elsewhere.ahead = elsewhere.ahead.saturating_add(ahead);
    }
}

impl Parts {
    /// Divides a cost among the planes.
    fn charge(&mut self, nanos: u64) {
        if let [only] = &mut self.0[..] {
            return only.charge(nanos);
        }
        let all: u128 = self.0.iter().map(|part| u128::from(part.nanos)).sum();
        for part in &mut self.0 {
            let due = u128::from(nanos) * u128::from(part.nanos) / all;
            part.charge(u64::try_from(due).unwrap_or(nanos));
        }
    }

    fn add(&mut self, plane: &Arc<PlaneMeter>, nanos: u64) {
        // At least one, because a clock may stand still, and the plane pays nevertheless.
        let nanos = nanos.max(1);
        // In the order of their addresses, because a connection between replicas may have very many.
        let address = |meter: &Arc<PlaneMeter>| Arc::as_ptr(meter).addr();
        let own = address(plane);
        match self
            .0
            .binary_search_by_key(&own, |part| address(&part.meter))
        {
            Ok(at) => self.0[at].nanos = self.0[at].nanos.saturating_add(nanos),
            Err(at) => {
                let part = Part {
                    meter: Arc::clone(plane),
                    nanos,
                    due: 0,
                };
                self.0.insert(at, part);
            }
        }
    }

    fn add_all(&mut self, others: &Self) {
        for part in &others.0 {
            self.add(&part.meter, part.nanos);
        }
    }
}

impl Part {
    fn charge(&mut self, nanos: u64) {
        self.due = self.due.saturating_add(nanos);
        if self.due >= PAID_AT_ONCE {
            self.pay();
        }
    }

    fn pay(&mut self) {
        let due = mem::take(&mut self.due);
        if due > 0 {
            self.meter.charge(due);
            self.meter.flow().charge(due);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.pay();
    }
}

impl Measured {
    fn add(&mut self, plane: Option<&Arc<PlaneMeter>>, nanos: u64) {
        self.charged = self.charged.saturating_add(nanos);
        if let Some(plane) = plane {
            self.planes_of_this_poll().add(plane, nanos);
        }
    }

    /// Adds what others have done for the connection since its last poll. Returns the nanoseconds that they have charged
    /// in advance.
    fn add_elsewhere(&mut self) -> u64 {
        let Some(elsewhere) = self.elsewhere.take() else {
            return 0;
        };
        let ahead = {
            let mut done = elsewhere.0.lock();
            if !done.planes.0.is_empty() {
                self.planes_of_this_poll().add_all(&done.planes);
                done.planes.0.clear();
            }
            mem::take(&mut done.ahead)
        };
        self.elsewhere = Some(elsewhere);
        ahead
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
        cost.planes.0.iter_mut().for_each(Part::pay);
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
            let work = poll_fn(move |_| {
                note(Some(&moved), 1);
                work_for_a_while();
                Poll::<()>::Pending
            });
            tasks.push(Box::pin(charged(|| Precision::Exact, work)));
            work_for_a_while();
            Poll::Ready(())
        });
        let (polled, _) = cost.poll(Precision::Rough, pin!(work), &mut context);
        assert!(polled.is_ready());
        for task in &mut tasks {
            assert!(task.as_mut().poll(&mut context).is_pending());
        }
        // So that it pays for its own task.
        drop(tasks);
        let before = charged_to(&moved);
        let later = poll_for(&mut cost, &[]);
        assert_eq!(charged_to(&moved), before + later);
        // The first one has paid for the first poll alone.
        let of_first = charged_to(&one);
        poll_for(&mut cost, &[]);
        assert_eq!(charged_to(&one), of_first);
    }

    #[test]
    fn what_a_moved_request_is_charged_in_advance_its_connection_works_off() {
        let plane = Arc::<PlaneMeter>::default();
        let mut cost = ConnectionCost::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut tasks = Vec::new();
        let work = poll_fn(|_| {
            let plane = Arc::clone(&plane);
            let work = poll_fn(move |_| {
                note(Some(&plane), AHEAD_MAX);
                Poll::Ready(())
            });
            tasks.push(Box::pin(charged(|| Precision::Exact, work)));
            Poll::Ready(())
        });
        let (polled, _) = cost.poll(Precision::Rough, pin!(work), &mut context);
        assert!(polled.is_ready());
        for mut task in tasks {
            assert!(task.as_mut().poll(&mut context).is_ready());
        }
        assert!(poll_for(&mut cost, &[]) > 0);
        assert_eq!(charged_to(&plane), 0);
    }

    #[test]
    fn planes_of_a_connection_between_replicas_share_what_it_costs_by_what_it_moves() {
        let planes: [Arc<PlaneMeter>; 3] = std::array::from_fn(|_| Arc::default());
        let shares = Arc::<Shares>::default();
        let mut cost = ConnectionCost::between_replicas(&shares);
        for (plane, work) in planes.iter().zip([1, 5, 4]) {
            shares.add(plane, work);
        }
        let nanos = poll_for(&mut cost, &[]);
        assert!(nanos > 0);
        assert_eq!(
            planes.each_ref().map(charged_to),
            [1, 5, 4].map(|part| nanos * part / 10)
        );
    }

    #[test]
    fn planes_pay_for_no_more_than_one_poll_of_what_replicas_tell_each_other() {
        let plane = Arc::<PlaneMeter>::default();
        let shares = Arc::<Shares>::default();
        let mut cost = ConnectionCost::between_replicas(&shares);
        shares.add(&plane, 1);
        let paid = poll_for(&mut cost, &[]) + poll_for(&mut cost, &[]);
        assert_eq!(charged_to(&plane), paid);
        for _ in 0..10 {
            assert!(poll_for(&mut cost, &[]) > 0, "it is time of a connection");
        }
        assert_eq!(charged_to(&plane), paid);
        assert_eq!(Arc::strong_count(&plane), 1, "the connection forgets it");
    }

    #[test]
    fn what_a_connection_owes_is_paid_with_its_end() {
        let plane = Arc::<PlaneMeter>::default();
        let mut part = Part {
            meter: Arc::clone(&plane),
            nanos: 1,
            due: 0,
        };
        part.charge(PAID_AT_ONCE - 1);
        assert_eq!(charged_to(&plane), 0);
        part.charge(1);
        assert_eq!(charged_to(&plane), PAID_AT_ONCE);
        part.charge(7);
        drop(part);
        assert_eq!(charged_to(&plane), PAID_AT_ONCE + 7);
    }

    #[tokio::test]
    async fn a_request_in_a_task_of_its_own_pays_for_the_task() {
        let plane = Arc::<PlaneMeter>::default();
        let noted = Arc::clone(&plane);
        let work = Box::pin(async move {
            note(Some(&noted), 1);
            work_for_a_while();
            ready(()).await;
        });
        charged(|| Precision::Exact, work).await;
        assert!(charged_to(&plane) > 0);
    }
}

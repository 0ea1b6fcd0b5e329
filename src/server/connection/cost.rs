//! What a connection costs its planes beside the work of their requests: frames, encryption and system calls.
//!
//! Requests and pieces of answers are measured where they are made, and charged to their planes there. An event of a
//! watch is made in a few microseconds, and costs its connection several times that. A plane with thousands of watches
//! would thus have several times its share, at the cost of the others. So each poll of a connection's task is measured
//! as a whole. What is not charged by then is divided among the planes for which the connection has worked, in
//! proportion to that work. A request that has moved to a task of its own is measured in the same way there.
//!
//! Invariant: no time is charged twice. What is charged within a poll is noted with [`note`], in whatever
//! module that is.

use std::cell::RefCell;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use polyplane_fairness::{CpuTimer, PlaneMeter, Precision};

thread_local! {
    /// The poll that is measured on this thread.
    static MEASURED: RefCell<Option<Measured>> = const { RefCell::new(None) };
}

/// The cost of a task that works for several planes.
#[derive(Default)]
pub(crate) struct ConnectionCost {
    /// The planes of the last poll in which any is known. They pay for the polls after it too, until there are
    /// others: the socket has room again, say. While there are none, nobody pays: a stranger's connection has the
    /// limits of strangers.
    planes: Vec<Part>,
}

/// The part of one plane in the work of a poll.
struct Part {
    meter: Arc<PlaneMeter>,
    nanos: u64,
}

/// What is known of a poll.
struct Measured {
    /// The nanoseconds that are charged already.
    charged: u64,
    planes: Vec<Part>,
    /// True once `planes` are those of this poll, and not those of an earlier one.
    has_planes: bool,
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

/// Does the work of a request in a task of its own, and charges its plane for what the task does beside the request.
pub(crate) async fn charged<F: Future + Unpin>(mut work: F) -> F::Output {
    let mut cost = ConnectionCost::default();
    poll_fn(|context| {
        let (polled, _) = cost.poll(Precision::Rough, Pin::new(&mut work), context);
        polled
    })
    .await
}

impl ConnectionCost {
    /// Polls the task's work, and charges the planes for what is not charged in it. Returns these nanoseconds too.
    pub(crate) fn poll<F: Future>(
        &mut self,
        precision: Precision,
        work: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> (Poll<F::Output>, u64) {
        let measured = Measured {
            charged: 0,
            planes: mem::take(&mut self.planes),
            has_planes: false,
        };
        // A poll that has panicked may have left another one.
        MEASURED.set(Some(measured));
        let timer = CpuTimer::start(precision);
        let polled = work.poll(context);
        let spent = timer.stop().cpu_nanos;
        let Some(measured) = MEASURED.take() else {
            return (polled, 0);
        };
        let rest = spent.saturating_sub(measured.charged);
        self.planes = measured.planes;
        self.planes.retain(|part| part.nanos > 0);
        self.charge(rest);
        (polled, rest)
    }

    /// Divides a cost among the planes.
    fn charge(&self, nanos: u64) {
        if let [only] = &self.planes[..] {
            return only.charge(nanos);
        }
        let all: u128 = self.planes.iter().map(|part| u128::from(part.nanos)).sum();
        for part in &self.planes {
            let due = u128::from(nanos) * u128::from(part.nanos) / all;
            part.charge(u64::try_from(due).unwrap_or(nanos));
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
        let Some(plane) = plane else {
            return;
        };
        if !self.has_planes {
            // Kept in their places: most connections work for one plane only, and this needs no memory.
            for part in &mut self.planes {
                part.nanos = 0;
            }
            self.has_planes = true;
        }
        // At least one, because a clock may stand still, and the plane pays nevertheless.
        let nanos = nanos.max(1);
        let known = |part: &&mut Part| Arc::ptr_eq(&part.meter, plane);
        if let Some(part) = self.planes.iter_mut().find(known) {
            part.nanos = part.nanos.saturating_add(nanos);
            return;
        }
        self.planes.push(Part {
            meter: Arc::clone(plane),
            nanos,
        });
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

//! The requests of one HTTP/2 connection, which run in the connection's own task.
//!
//! Most requests take a few polls of some microseconds. In tasks of their own they would cost an allocation
//! and wake-ups of other worker threads, and the threads would struggle for the connection's state. A request for
//! which others must not wait moves to a task of its own: with work on long lists and large objects
//! ([`move_to_own_task`]), and with a write while the connection has other requests, because its commit may hold
//! up the thread that begins it ([`move_to_own_task_unless_alone`]). After [`TURN_MAX`] the other tasks of the
//! worker thread go first. A request whose answer is cut is dropped, wherever it runs: that resets its stream, and
//! the connection frees what it has of the answer. One whose client still sends its body is kept for a moment after its
//! answer, because its stream is reset with it.
//!
//! Invariant: when [`Requests::poll_beside`] is pending, every wake-up since the last polls wakes the task.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_util::Stream as _;
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use hyper::rt::Executor;
use parking_lot::Mutex;
use polyplane_fairness::Precision;

use crate::connection::cost::charged;
use crate::connection::unread::{Sending, UnreadAnswers};

/// The time that the requests of a connection take before the other tasks of the worker thread go first. With
/// more, these would wait longer; with less, more of the time would go into turns.
const TURN_MAX: Duration = Duration::from_micros(200);

thread_local! {
    /// Where the request runs that this thread polls.
    static PLACE: Cell<Place> = const { Cell::new(Place::OwnTask) };
    /// The answer to the request that a connection begins next on this thread.
    static NEXT: Cell<Option<Arc<Sending>>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a task of its own, or no request is polled.
    OwnTask,
    /// In its connection's task, as the only request of the connection.
    Alone,
    /// In its connection's task, while the connection has other requests.
    BesideOthers,
    /// In its connection's task, from which it moves to a task of its own after this poll.
    Moving,
}

/// Moves the request to a task of its own, if it runs in its connection's task: for work of which nothing says that
/// it is short.
pub(crate) async fn move_to_own_task() {
    move_if(|place| place != Place::OwnTask).await;
}

/// Moves the request to a task of its own, if it runs in its connection's task and the connection has other
/// requests.
pub(crate) async fn move_to_own_task_unless_alone() {
    move_if(|place| matches!(place, Place::BesideOthers | Place::Moving)).await;
}

async fn move_if(moves: impl Fn(Place) -> bool) {
    poll_fn(|_| {
        if moves(PLACE.get()) {
            // Nothing has to wake it: it is polled again in its task at once.
            PLACE.set(Place::Moving);
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

/// Returns the answer to the request that a connection is about to begin: hyper calls the service for a request, and
/// then at once [`BeginsRequests::execute`] with what polls the request and sends its answer.
pub(crate) fn answer_of_next() -> Arc<Sending> {
    let sending = Arc::<Sending>::default();
    NEXT.set(Some(Arc::clone(&sending)));
    sending
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The requests of one connection that run in its task.
pub(crate) struct Requests {
    begun: Arc<Begun>,
    under_way: FuturesUnordered<Request>,
    waker: Arc<TurnWaker>,
}

/// Begins the requests of a connection.
#[derive(Clone)]
pub(crate) struct BeginsRequests(Arc<Begun>);

/// What the requests of a connection have in common.
#[derive(Default)]
struct Begun {
    /// The requests that were begun and not polled yet.
    requests: Mutex<Vec<Work>>,
    /// The number of requests that were begun and have not ended, in the connection's task or in their own.
    count: AtomicUsize,
    turn: Mutex<Option<Instant>>,
    /// True once the turn has taken its time.
    is_turn_over: AtomicBool,
    unread: Arc<UnreadAnswers>,
}

impl Begun {
    fn begin_turn(&self) {
        *self.turn.lock() = Some(Instant::now());
        self.is_turn_over.store(false, Ordering::Relaxed);
    }

    fn is_turn_over(&self) -> bool {
        self.is_turn_over.load(Ordering::Relaxed)
    }

    /// Looks whether the turn has taken its time.
    fn look_at_clock(&self) {
        let is_late = self
            .turn
            .lock()
            .is_some_and(|turn| turn.elapsed() > TURN_MAX);
        // Without budget everything is pending and wakes itself.
        if is_late || !tokio::task::coop::has_budget_remaining() {
            self.is_turn_over.store(true, Ordering::Relaxed);
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for BeginsRequests {
    /// The connection calls this, and is polled together with its requests. Nothing else would poll the request.
    fn execute(&self, request: F) {
        let counted = Counted::new(&self.0);
        let sending = NEXT.take().unwrap_or_default();
        let unread = Arc::clone(&self.0.unread);
        let work = Box::pin(async move {
            let mut request = pin!(request);
            poll_fn(|context| {
                if sending.is_cut() {
                    return Poll::Ready(());
                }
                let polled = request.as_mut().poll(context);
                if polled.is_pending() && sending.is_unread() {
                    unread.list(&sending);
                    return sending.poll_cut(context);
                }
                polled
            })
            .await;
            drop(counted);
            // The end of the request, which is kept until then, resets the stream.
            if let Some(delay) = sending.take_delay() {
                delay.passed().await;
            }
        });
        self.0.requests.lock().push(work);
    }
}

/// A request that has not ended.
struct Counted(Arc<Begun>);

impl Counted {
    fn new(begun: &Arc<Begun>) -> Self {
        begun.count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(begun))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that runs in its connection's task.
struct Request {
    begun: Arc<Begun>,
    /// `None` once it has ended or moved.
    work: Option<Work>,
}

impl Request {
    /// Polls the work. Returns true if it goes on in the connection's task.
    fn poll_work(&mut self, context: &mut Context<'_>) -> bool {
        let Some(work) = &mut self.work else {
            return false;
        };
        let is_alone = self.begun.count.load(Ordering::Relaxed) == 1;
        PLACE.set(match is_alone {
            true => Place::Alone,
            false => Place::BesideOthers,
        });
        // As in a task: a panic ends the request, not the connection.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        let place = PLACE.replace(Place::OwnTask);
        match polled {
            Ok(Poll::Pending) if place == Place::Moving => {
                // Only long work moves, so that exact clocks cost little.
                let precision = || Precision::Exact;
                let work = self.work.take();
                work.map(|work| tokio::spawn(charged(precision, work)));
            }
            Ok(Poll::Pending) => return true,
            Ok(Poll::Ready(())) | Err(_) => self.end(),
        }
        false
    }

    /// Drops the work. As in a task, a panic in that ends nothing else.
    fn end(&mut self) {
        let work = self.work.take();
        // The panic has been reported.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(work)));
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.end();
    }
}

impl Future for Request {
    /// The request itself, if it goes on in the connection's task and the turn is over.
    type Output = Option<Request>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self>> {
        let goes_on = self.poll_work(context);
        self.begun.look_at_clock();
        match goes_on {
            false => Poll::Ready(None),
            true if self.begun.is_turn_over() => Poll::Ready(Some(Self {
                begun: Arc::clone(&self.begun),
                work: self.work.take(),
            })),
            true => Poll::Pending,
        }
    }
}

/// Wakes the task of a connection. A wake-up within a turn is part of the turn.
#[derive(Default)]
struct TurnWaker {
    task: AtomicWaker,
    state: AtomicU8,
}

/// The state while the task is polled.
const IN_TURN: u8 = 1;
/// The bit that says that something was woken.
const WOKEN: u8 = 2;

impl TurnWaker {
    fn begin(&self, task: &Waker) {
        self.task.register(task);
        self.state.store(IN_TURN, Ordering::SeqCst);
    }

    /// Ends the turn, unless something was woken in it. Then the turn goes on, and this returns false.
    fn end(&self) -> bool {
        let state = &self.state;
        let ended = state.compare_exchange(IN_TURN, 0, Ordering::SeqCst, Ordering::SeqCst);
        if ended.is_err() {
            // Swapped, to see what the threads that woke it have written.
            state.swap(IN_TURN, Ordering::SeqCst);
        }
        ended.is_ok()
    }

    /// Ends the turn and wakes the task.
    fn pause(&self, task: &Waker) {
        self.state.swap(0, Ordering::SeqCst);
        task.wake_by_ref();
    }
}

impl Wake for TurnWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.fetch_or(WOKEN, Ordering::SeqCst) & IN_TURN == 0 {
            self.task.wake();
        }
    }
}

impl Requests {
    /// Creates the requests of a connection, none so far.
    pub(crate) fn new() -> Self {
        Self {
            begun: Arc::default(),
            under_way: FuturesUnordered::new(),
            waker: Arc::default(),
        }
    }

    /// Returns what begins the requests.
    pub(crate) fn begins(&self) -> BeginsRequests {
        BeginsRequests(Arc::clone(&self.begun))
    }

    /// Returns the answers that their client does not read.
    pub(crate) fn unread(&self) -> Arc<UnreadAnswers> {
        Arc::clone(&self.begun.unread)
    }

    /// Polls the connection and its requests until none of them can go on, or until they have had their turn.
    ///
    /// # Cancel safety
    /// The next poll continues. Dropping this ends the requests, but for those that have moved.
    pub(crate) fn poll_beside<C: Future>(
        &mut self,
        mut connection: Pin<&mut C>,
        context: &mut Context<'_>,
    ) -> Poll<C::Output> {
        let waker = Waker::from(Arc::clone(&self.waker));
        let mut within = Context::from_waker(&waker);
        self.waker.begin(context.waker());
        let mut has_begun = false;
        loop {
            if let Poll::Ready(done) = connection.as_mut().poll(&mut within) {
                return Poll::Ready(done);
            }
            if !has_begun {
                // Behind the first poll, which may read and encrypt very much: the requests have their time.
                self.begun.begin_turn();
                has_begun = true;
            }
            self.poll_requests(&mut within);
            if self.begun.is_turn_over() {
                self.waker.pause(context.waker());
                return Poll::Pending;
            }
            if self.waker.end() {
                return Poll::Pending;
            }
            self.begun.look_at_clock();
        }
    }

    fn poll_requests(&mut self, context: &mut Context<'_>) {
        let begun = std::mem::take(&mut *self.begun.requests.lock());
        for work in begun {
            self.under_way.push(Request {
                begun: Arc::clone(&self.begun),
                work: Some(work),
            });
        }
        // Nothing is taken from its queue once the turn is over: it would go to the back.
        while !self.begun.is_turn_over() {
            match Pin::new(&mut self.under_way).poll_next(context) {
                Poll::Ready(Some(None)) => {}
                // It is polled once more, which registers its new waker.
                Poll::Ready(Some(Some(request))) => self.under_way.push(request),
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }
}

impl Drop for Requests {
    /// Drops the requests that were begun and not polled: each of them holds what holds them.
    fn drop(&mut self) {
        let requests = std::mem::take(&mut *self.begun.requests.lock());
        drop(requests);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::thread;

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::mpsc;

    use super::*;

    /// Works for as long as a turn takes.
    fn take_a_turn() {
        let begin = Instant::now();
        while begin.elapsed() <= TURN_MAX {
            std::hint::spin_loop();
        }
    }

    /// A runtime whose tasks run on another thread than the test, which is the connection's task.
    fn runtime() -> Runtime {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build();
        runtime.expect("a runtime")
    }

    /// Runs the works as requests of one connection. Returns whether each that has ended did so in the connection's
    /// task, in order, once `ends` of them have.
    fn ended_in_connection(ends: usize, works: Vec<Work>) -> Vec<bool> {
        let here = thread::current().id();
        let (ended, mut ends_seen) = mpsc::channel(works.len());
        let mut requests = Requests::new();
        let begins = requests.begins();
        for work in works {
            let ended = ended.clone();
            begins.execute(async move {
                work.await;
                let in_connection = thread::current().id() == here;
                ended.try_send(in_connection).expect("there is room");
            });
        }
        let mut seen = Vec::new();
        runtime().block_on(async {
            let connection = poll_fn(|context| {
                while let Poll::Ready(Some(in_connection)) = ends_seen.poll_recv(context) {
                    seen.push(in_connection);
                }
                match seen.len() == ends {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            });
            let mut connection = std::pin::pin!(connection);
            poll_fn(|context| requests.poll_beside(connection.as_mut(), context)).await;
        });
        seen
    }

    #[test]
    fn a_request_runs_in_its_connections_task_unless_it_moves() {
        let ended = |work: Work| ended_in_connection(1, vec![work]);
        assert_eq!(ended(Box::pin(async {})), [true]);
        assert_eq!(ended(Box::pin(tokio::task::yield_now())), [true]);
        assert_eq!(ended(Box::pin(move_to_own_task())), [false]);
        let unless_alone = Box::pin(move_to_own_task_unless_alone());
        assert_eq!(ended(unless_alone), [true], "it is alone");
        let twice = async {
            move_to_own_task().await;
            move_to_own_task().await;
        };
        assert_eq!(ended(Box::pin(twice)), [false]);
    }

    #[test]
    fn a_write_beside_other_requests_moves_to_a_task_of_its_own() {
        let works: Vec<Work> = vec![
            Box::pin(pending()),
            Box::pin(move_to_own_task_unless_alone()),
        ];
        assert_eq!(ended_in_connection(1, works), [false]);
    }

    #[test]
    fn a_panic_ends_the_request_and_not_its_connection() {
        let works: Vec<Work> = vec![
            Box::pin(async { panic!("this request fails") }),
            Box::pin(async {}),
        ];
        assert_eq!(ended_in_connection(1, works), [true]);
    }

    #[test]
    fn requests_that_take_longer_than_a_turn_all_end() {
        let long = || -> Work {
            Box::pin(async {
                for _ in 0..3 {
                    take_a_turn();
                    tokio::task::yield_now().await;
                }
            })
        };
        let works = (0..20).map(|_| long()).collect();
        assert_eq!(ended_in_connection(20, works), [true; 20]);
    }

    /// One of them has its turn at a time, and for each that ends another one begins.
    #[test]
    fn requests_of_a_busy_connection_end_in_the_order_of_their_begin() {
        const COUNT: usize = 40;
        let (ended, mut ends) = mpsc::channel(COUNT);
        let mut requests = Requests::new();
        let begins = requests.begins();
        let mut next = 0;
        let mut begin = || {
            let (ended, number) = (ended.clone(), next);
            next += 1;
            begins.execute(async move {
                take_a_turn();
                ended.try_send(number).expect("there is room");
            });
        };
        for _ in 0..4 {
            begin();
        }
        let mut order = Vec::new();
        runtime().block_on(async {
            let connection = poll_fn(|context| {
                while let Poll::Ready(Some(number)) = ends.poll_recv(context) {
                    order.push(number);
                    begin();
                }
                match order.len() < COUNT {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            });
            let mut connection = std::pin::pin!(connection);
            poll_fn(|context| requests.poll_beside(connection.as_mut(), context)).await;
        });
        assert_eq!(order, (0..order.len()).collect::<Vec<_>>());
    }

    #[test]
    fn a_write_beside_requests_that_have_moved_moves_too() {
        let moved = async {
            move_to_own_task().await;
            pending::<()>().await;
        };
        let works: Vec<Work> = vec![Box::pin(moved), Box::pin(move_to_own_task_unless_alone())];
        assert_eq!(ended_in_connection(1, works), [false]);
    }

    #[test]
    fn a_panic_when_a_request_is_dropped_ends_nothing_else() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("this request cannot be dropped");
            }
        }
        let held = Panics;
        let works: Vec<Work> = vec![
            Box::pin(async move {
                let _held = &held;
            }),
            Box::pin(async {}),
        ];
        assert_eq!(ended_in_connection(1, works), [true]);
    }

    #[test]
    fn requests_that_use_up_the_budget_of_a_poll_all_end() {
        let busy = || -> Work {
            Box::pin(async {
                for _ in 0..1000 {
                    tokio::task::consume_budget().await;
                }
            })
        };
        let works = (0..5).map(|_| busy()).collect();
        assert_eq!(ended_in_connection(5, works), [true; 5]);
    }

    #[test]
    fn requests_that_were_never_polled_are_dropped_with_their_connection() {
        let held = Arc::new(());
        let requests = Requests::new();
        let begins = requests.begins();
        let (own, itself) = (Arc::clone(&held), begins.clone());
        begins.execute(async move { drop((own, itself)) });
        drop((requests, begins));
        assert_eq!(Arc::strong_count(&held), 1);
    }
}

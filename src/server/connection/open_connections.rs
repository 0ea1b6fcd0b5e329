//! Limits how many client connections are open, and decides when the server ends one.
//!
//! A connection is unproven until one of its requests proves who its client is. Unproven
//! connections have a limit of their own beside the limit of proven ones. So they never take the
//! place of a proven client, and the probes of kubelets and load balancers, which show no
//! credential, are accepted however many clients are connected. At the limit of unproven
//! connections the oldest one is aborted for the newest, so that no client can keep others out by
//! holding connections open.
//!
//! Invariant: a connection counts against exactly one of the two limits, from its accept until its
//! task ends.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use polyplane_fairness::{Connected, PlaneMeter, TIMES_FREE};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::answer::respond::Reply;
use crate::connection::counted_body::{CountedBody, Sent};
use crate::connection::strange_heads::{SharedRoom, StrangeHeads};
use crate::connection::unread::Swept;
use crate::operations::drain::Drain;
use crate::operations::exposition::{Exposition, Kind};
use crate::request::doorway::Source;
use crate::request::limits::Limits;
use crate::request::seats::{Seat, Seats};
use crate::watch::packed::Packs;

/// Longest time between the graceful close of a connection and its abort. Without it a client that
/// never reads would keep its connection.
const LEAVING_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes of a stranger's bodies that are read before the client gets their room back. With less, there would be a frame
/// for each few bytes; with more, the client would wait with the room of a whole frame free.
const RETURNED_BYTES_MIN: u32 = 16 * 1024;

/// All connections of clients.
#[derive(Debug)]
pub(crate) struct OpenConnections {
    proven: Arc<Seats>,
    unproven_max: usize,
    unproven: Mutex<Unproven>,
    /// The room for heads that unproven connections share.
    heads: Arc<SharedRoom>,
    /// The number of unproven connections that were aborted for newer ones.
    evicted: AtomicU64,
    /// The number of answers that were cut because their clients did not read them.
    cut: AtomicU64,
    /// How many of them were watches.
    cut_watches: AtomicU64,
    /// The number of connections that ended because their clients flooded them with frames.
    flooding: Arc<AtomicU64>,
}

/// The unproven connections, oldest first.
#[derive(Debug, Default)]
struct Unproven {
    next: u64,
    /// The handle that aborts the connection's task, by the connection's number; `None` until
    /// [`OpenConnections::attach`].
    open: BTreeMap<u64, Option<AbortHandle>>,
}

/// One open connection, which counts against a limit until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    all: Arc<OpenConnections>,
    number: u64,
    accepted: Instant,
    /// Set by the first request that proves its client. The connection counts in the share of the plane that
    /// this request was for, unless that is the root.
    proven: OnceLock<(Seat, Option<Connected>)>,
    /// The bytes of bodies that were read while it was unproven, and whose room the client does not have back.
    read: AtomicU32,
    /// The task that gives the client room for bodies.
    room_waker: AtomicWaker,
    /// The heads of HTTP/2 that take room while it is unproven.
    heads: Arc<StrangeHeads>,
    requests: Arc<Requests>,
}

impl OpenConnections {
    pub(crate) fn new(connections_max: usize, unproven_max: usize) -> Arc<Self> {
        Arc::new(Self {
            proven: Seats::new(connections_max),
            unproven_max,
            unproven: Mutex::default(),
            heads: Arc::default(),
            evicted: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            cut_watches: AtomicU64::new(0),
            flooding: Arc::default(),
        })
    }

    /// Counts a new connection from a source, and aborts the oldest unproven one if there are too many.
    pub(crate) fn accept(self: &Arc<Self>, source: Source) -> OpenConnection {
        let mut unproven = self.unproven.lock();
        if unproven.open.len() >= self.unproven_max {
            let oldest = unproven.open.iter().find_map(|(number, task)| {
                let task = task.as_ref()?;
                Some((*number, task.clone()))
            });
            if let Some((number, task)) = oldest {
                unproven.open.remove(&number);
                task.abort();
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
        let number = unproven.next;
        unproven.next += 1;
        unproven.open.insert(number, None);
        OpenConnection {
            all: Arc::clone(self),
            number,
            accepted: Instant::now(),
            proven: OnceLock::new(),
            read: AtomicU32::new(0),
            room_waker: AtomicWaker::new(),
            heads: StrangeHeads::new(&self.heads, source),
            requests: Arc::default(),
        }
    }

    /// Sets the task to abort. A connection that is proven by then is never aborted for another.
    pub(crate) fn attach(&self, number: u64, task: AbortHandle) {
        if let Some(unknown) = self.unproven.lock().open.get_mut(&number) {
            *unknown = Some(task);
        }
    }

    pub(crate) fn expose(&self, out: &mut Exposition) {
        let unproven = self.unproven();
        for (name, help, value) in [
            (
                "polyplane_connections",
                "Open connections.",
                self.proven.taken() + unproven,
            ),
            (
                "polyplane_unproven_connections",
                "Open connections that have proven nobody.",
                unproven,
            ),
        ] {
            out.family(name, Kind::Gauge, help);
            out.sample(name, &[], value);
        }
        for (name, help, counter) in [
            (
                "polyplane_evicted_connections_total",
                "Unproven connections cut off for newer ones.",
                &self.evicted,
            ),
            (
                "polyplane_cut_answers_total",
                "Answers whose streams or connections were ended because nobody read them.",
                &self.cut,
            ),
            (
                "polyplane_unread_watches_total",
                "Watches among the answers that were ended because nobody read them.",
                &self.cut_watches,
            ),
            (
                "polyplane_flooding_connections_total",
                "Connections ended because of too many frames that carry no request, or of too many resets.",
                &*self.flooding,
            ),
        ] {
            out.family(name, Kind::Counter, help);
            out.sample(name, &[], counter.load(Ordering::Relaxed));
        }
    }

    /// Returns how many unproven connections are open.
    fn unproven(&self) -> usize {
        self.unproven.lock().open.len()
    }
}

impl OpenConnection {
    /// Returns the connection's number, for [`OpenConnections::attach`].
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Counts the connection as proven, in the share of the plane of this meter. Returns false if the limit
    /// of proven connections is reached, or if others would find too few left.
    pub(crate) fn mark_proven(&self, plane: Option<&Arc<PlaneMeter>>) -> bool {
        if self.is_proven() {
            return true;
        }
        let Some(seat) = self.all.proven.take() else {
            return false;
        };
        // The connection's own seat counts as free.
        let free = self.all.proven.free() + 1;
        let share = plane.map(|meter| meter.connect(free, TIMES_FREE));
        match share {
            Some(None) => return false,
            share => self.take_seat(seat, share.flatten()),
        }
        true
    }

    /// Counts the connection as proven, even above the limit. For requests about this replica:
    /// health and metrics are needed most when the server is full.
    pub(crate) fn mark_proven_anyway(&self) {
        if !self.is_proven() {
            self.take_seat(self.all.proven.take_anyway(), None);
        }
    }

    fn take_seat(&self, seat: Seat, share: Option<Connected>) {
        if self.proven.set((seat, share)).is_ok() {
            self.all.unproven.lock().open.remove(&self.number);
            self.heads.end();
            self.room_waker.wake();
        }
    }

    /// Returns the heads of the connection that take room while it is unproven.
    pub(crate) fn heads(&self) -> &Arc<StrangeHeads> {
        &self.heads
    }

    /// Returns how much of the room for bodies that is held back the client may have now. This task is woken when that
    /// may be more.
    pub(crate) fn room(&self, held: u32, task: &Waker) -> u32 {
        // First, so that no wake-up is missed.
        self.room_waker.register(task);
        if self.is_proven() {
            return held;
        }
        if self.read.load(Ordering::Relaxed) < RETURNED_BYTES_MIN {
            return 0;
        }
        self.read.swap(0, Ordering::Relaxed).min(held)
    }

    /// Gives the client back the room of bytes of a body that were read. A connection that is proven has all room.
    pub(crate) fn return_room(&self, bytes: usize) {
        if self.is_proven() {
            return;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let before = self.read.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) >= RETURNED_BYTES_MIN {
            self.room_waker.wake();
        }
    }

    /// Counts the answers that a look has cut.
    pub(crate) fn count_cut(&self, swept: Swept) {
        let add = |counter: &AtomicU64, answers: usize| {
            let answers = u64::try_from(answers).unwrap_or(u64::MAX);
            counter.fetch_add(answers, Ordering::Relaxed);
        };
        add(&self.all.cut, swept.cut);
        add(&self.all.cut_watches, swept.watches);
    }

    /// Returns the counter of connections whose clients flood them with frames.
    pub(crate) fn flooding(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.all.flooding)
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.proven.get().is_some()
    }

    /// Returns whether no request of the connection is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.are_idle()
    }

    /// Returns the counter of the connection's requests.
    pub(crate) fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.requests)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if !self.is_proven() {
            self.all.unproven.lock().open.remove(&self.number);
        }
    }
}

/// The requests of one connection, from their heads to the ends of their answers' bodies.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    begun: AtomicUsize,
    ended: AtomicUsize,
    /// The number of answers whose bodies are not handed to the connection yet.
    unread: AtomicUsize,
    /// Notified if the client has to open a new connection for further requests.
    away: Notify,
}

impl Requests {
    /// Counts a request until its answer's body is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        self.begun.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(self))
    }

    /// Makes the connection take no more requests. Those in flight go on, watches too.
    pub(crate) fn send_away(&self) {
        self.away.notify_one();
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns whether no request is in flight and none has begun since the counter of begun
    /// requests was `begun`.
    fn are_idle_since(&self, begun: usize) -> bool {
        let ended = self.ended.load(Ordering::Relaxed);
        self.begun() == begun && ended == begun
    }

    fn are_idle(&self) -> bool {
        self.are_idle_since(self.begun())
    }
}

/// A request in flight. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Requests>);

/// An answer that is not read to its end. Dropping this ends its request.
#[derive(Debug)]
pub(crate) struct Unread(UnderWay);

impl Drop for Unread {
    fn drop(&mut self) {
        self.0.0.unread.fetch_sub(1, Ordering::Relaxed);
    }
}

impl UnderWay {
    /// Returns the number of answers of the connection that wait for room.
    pub(crate) fn unread(&self) -> usize {
        self.0.unread.load(Ordering::Relaxed)
    }

    /// Returns the reply with a body that counts the request as in flight until the body is
    /// dropped.
    pub(crate) fn with(self, reply: Reply, sent: Sent) -> http::Response<CountedBody> {
        self.0.unread.fetch_add(1, Ordering::Relaxed);
        let packs = reply.extensions().get::<Packs>().is_some();
        reply.map(|body| CountedBody::new(body, packs, sent, Unread(self)))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// The way in which a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Accept no new request, answer those in flight, and close.
    Graceful,
    /// Close at once.
    Abort,
}

/// The stages of a connection on the way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No request has been proven.
    Unproven,
    /// A request was proven; `begun` requests had begun when the timer was set.
    Serving { begun: usize },
    /// The connection closes because it is idle, or because the client has to open a new one.
    Leaving,
    /// The connection closes because the server stops.
    Stopping,
}

/// Decides when a connection has to end: an unproven one after a fixed time, a proven one after a
/// long idle time, all of them when the server stops.
pub(crate) struct Lifetime<'a> {
    open: &'a OpenConnection,
    limits: &'a Limits,
    drain: &'a Drain,
    stage: Stage,
    timer: Pin<Box<Sleep>>,
}

impl<'a> Lifetime<'a> {
    pub(crate) fn new(open: &'a OpenConnection, limits: &'a Limits, drain: &'a Drain) -> Self {
        Self {
            open,
            limits,
            drain,
            stage: Stage::Unproven,
            timer: Box::pin(sleep_until(open.accepted + limits.unproven_time_max)),
        }
    }

    /// Waits until the connection has to close, or has to close faster than before.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the next call continues.
    pub(crate) async fn next(&mut self) -> Closing {
        if self.stage == Stage::Stopping {
            // There is no limit for the connection here, because the server limits the time of its
            // drain.
            self.drain.aborting().cancelled().await;
            return Closing::Abort;
        }
        loop {
            tokio::select! {
                // First: a server that stops closes all connections, whatever their own timers say.
                biased;
                () = self.drain.closing().cancelled() => {
                    self.stage = Stage::Stopping;
                    return Closing::Graceful;
                }
                () = self.open.requests.away.notified(), if self.stage != Stage::Leaving => {
                    self.stage = Stage::Leaving;
                    self.timer.as_mut().reset(Instant::now() + LEAVING_TIME_MAX);
                    return Closing::Graceful;
                }
                () = self.timer.as_mut() => {
                    if let Some(step) = self.on_time() {
                        return step;
                    }
                }
            }
        }
    }

    fn on_time(&mut self) -> Option<Closing> {
        let is_proven = self.open.is_proven();
        let requests = &self.open.requests;
        let step = match self.stage {
            Stage::Unproven if !is_proven => Some(Closing::Graceful),
            Stage::Serving { begun } if requests.are_idle_since(begun) => Some(Closing::Graceful),
            // The server does not wait for requests of an unproven client.
            Stage::Leaving if !is_proven || requests.are_idle() => Some(Closing::Abort),
            Stage::Unproven | Stage::Serving { .. } | Stage::Leaving | Stage::Stopping => None,
        };
        let time = if step.is_some() || self.stage == Stage::Leaving {
            self.stage = Stage::Leaving;
            LEAVING_TIME_MAX
        } else {
            self.stage = Stage::Serving {
                begun: requests.begun(),
            };
            self.limits.idle_time_max
        };
        self.timer.as_mut().reset(Instant::now() + time);
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(all: &Arc<OpenConnections>) -> (OpenConnection, tokio::task::JoinHandle<()>) {
        let open = all.accept(Source::of(None));
        let task = tokio::spawn(std::future::pending());
        all.attach(open.number(), task.abort_handle());
        (open, task)
    }

    #[tokio::test]
    async fn the_oldest_unproven_connection_makes_room_and_no_proven_one_does() {
        let all = OpenConnections::new(1, 2);
        let (proven, proven_task) = open(&all);
        assert!(proven.mark_proven(None) && proven.mark_proven(None));
        let (first, first_task) = open(&all);
        let (second, second_task) = open(&all);
        assert_eq!((all.unproven(), all.proven.taken()), (2, 1));
        assert!(
            !second.mark_proven(None),
            "there is room for one that is proven"
        );
        let (third, _) = open(&all);
        assert!(first_task.await.expect_err("cut off").is_cancelled());
        assert!(!proven_task.is_finished() && !second_task.is_finished());
        assert_eq!(all.evicted.load(Ordering::Relaxed), 1);
        // A connection that requests health or metrics always finds room.
        second.mark_proven_anyway();
        assert_eq!((all.unproven(), all.proven.taken()), (1, 2));
        drop((proven, first, second, third));
        assert_eq!((all.unproven(), all.proven.taken()), (0, 0));
    }

    #[tokio::test]
    async fn a_plane_with_many_connections_leaves_some_to_others() {
        let all = OpenConnections::new(90, 1);
        let (greedy, modest) = (Arc::default(), Arc::default());
        let connect = |plane| {
            let one = all.accept(Source::of(None));
            one.mark_proven(Some(plane)).then_some(one)
        };
        let mut open: Vec<_> = std::iter::from_fn(|| connect(&greedy)).collect();
        assert!((78..=82).contains(&open.len()), "{}", open.len());
        assert!(connect(&modest).is_some());
        drop(open.pop());
        assert!(connect(&greedy).is_some(), "a place that came back");
        drop(open);
        assert_eq!(all.proven.taken(), 0);
        assert!(connect(&greedy).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_unproven_connection_is_closed_and_then_aborted() {
        let (all, drain) = (OpenConnections::new(1, 1), Drain::new());
        let limits = Limits::default();
        let (open, _) = open(&all);
        let begun = Instant::now();
        let _request = open.requests().begin();
        let mut lifetime = Lifetime::new(&open, &limits, &drain);
        assert_eq!(lifetime.next().await, Closing::Graceful);
        assert_eq!(
            begun.elapsed().as_secs(),
            limits.unproven_time_max.as_secs()
        );
        assert_eq!(lifetime.next().await, Closing::Abort);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_nobody_uses_it() {
        let (all, drain) = (OpenConnections::new(1, 1), Drain::new());
        let limits = Limits::default();
        let (open, _) = open(&all);
        assert!(open.mark_proven(None));
        let mut lifetime = Lifetime::new(&open, &limits, &drain);
        // A watch may be silent for any time without making its connection idle.
        let watch = open.requests().begin();
        let idle = tokio::time::timeout(limits.idle_time_max * 20, lifetime.next()).await;
        assert!(idle.is_err(), "{idle:?}");
        drop(watch);
        let left = Instant::now();
        assert_eq!(lifetime.next().await, Closing::Graceful);
        assert!(left.elapsed() <= limits.idle_time_max * 2);
        // A request that came at the last moment is answered.
        let late = open.requests().begin();
        let cut = tokio::time::timeout(LEAVING_TIME_MAX * 3, lifetime.next()).await;
        assert!(cut.is_err(), "{cut:?}");
        drop(late);
        assert_eq!(lifetime.next().await, Closing::Abort);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_sent_away_keeps_its_watches() {
        let (all, drain) = (OpenConnections::new(1, 1), Drain::new());
        let limits = Limits::default();
        let (open, _) = open(&all);
        assert!(open.mark_proven(None));
        let watch = open.requests().begin();
        open.requests().send_away();
        let mut lifetime = Lifetime::new(&open, &limits, &drain);
        assert_eq!(lifetime.next().await, Closing::Graceful);
        open.requests().send_away();
        let waiting = tokio::time::timeout(limits.idle_time_max * 9, lifetime.next()).await;
        assert!(waiting.is_err(), "{waiting:?}");
        drop(watch);
        assert_eq!(lifetime.next().await, Closing::Abort);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_who_is_sent_away_does_not_stay() {
        let (all, drain) = (OpenConnections::new(1, 1), Drain::new());
        let limits = Limits::default();
        let (open, _) = open(&all);
        let _request = open.requests().begin();
        open.requests().send_away();
        let mut lifetime = Lifetime::new(&open, &limits, &drain);
        assert_eq!(lifetime.next().await, Closing::Graceful);
        assert_eq!(lifetime.next().await, Closing::Abort);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_closes_and_cuts_off() {
        let (all, drain) = (OpenConnections::new(1, 1), Drain::new());
        let limits = Limits::default();
        let (open, _) = open(&all);
        let mut lifetime = Lifetime::new(&open, &limits, &drain);
        drain.close();
        assert_eq!(lifetime.next().await, Closing::Graceful);
        let waiting = tokio::time::timeout(limits.idle_time_max * 9, lifetime.next()).await;
        assert!(waiting.is_err(), "{waiting:?}");
        drain.abort();
        assert_eq!(lifetime.next().await, Closing::Abort);
    }
}

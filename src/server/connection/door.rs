//! Which connections may be open, and when one has to end by itself.
//!
//! A connection is a stranger's until one of its requests is proven. Strangers have a bound of
//! their own beside the bound for everybody else: they never take the place of somebody proven, and
//! the probes of kubelets and load balancers, which show no credential, get in however many clients
//! are connected. At the strangers' bound the oldest is cut off for the newest, so no stranger keeps
//! others out by staying.
//!
//! Invariant: a connection counts in exactly one of the two, from its accept until its task ends.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::answer::body::{BodyEnd, ResponseBody};
use crate::answer::respond::Reply;
use crate::operations::drain::Drain;
use crate::operations::exposition::{Exposition, Kind};
use crate::request::limits::{Limits, Seat, Seats};

/// How long a connection that was asked to close may take before it is cut off.
const LEAVING_TIME_MAX: Duration = Duration::from_secs(5);

/// All connections of clients.
#[derive(Debug)]
pub(crate) struct Door {
    proven: Arc<Seats>,
    strangers_max: usize,
    strangers: Mutex<Strangers>,
    /// Strangers cut off for newer ones.
    evicted: AtomicU64,
}

/// The connections that have proven nobody, oldest first.
#[derive(Debug, Default)]
struct Strangers {
    next: u64,
    /// What cuts each off; absent until its task is known.
    open: BTreeMap<u64, Option<AbortHandle>>,
}

/// One connection's place.
#[derive(Debug)]
pub(crate) struct Entry {
    door: Arc<Door>,
    number: u64,
    accepted: Instant,
    /// There once a request was proven.
    proven: OnceLock<Seat>,
    requests: Arc<Requests>,
}

impl Door {
    pub(crate) fn new(connections_max: usize, strangers_max: usize) -> Arc<Self> {
        Arc::new(Self {
            proven: Seats::new(connections_max),
            strangers_max,
            strangers: Mutex::default(),
            evicted: AtomicU64::new(0),
        })
    }

    /// Takes in a new connection, for which the oldest stranger may have to go.
    pub(crate) fn enter(self: &Arc<Self>) -> Entry {
        let mut strangers = self.strangers.lock();
        if strangers.open.len() >= self.strangers_max {
            let oldest = strangers.open.iter().find_map(|(number, task)| {
                let task = task.as_ref()?;
                Some((*number, task.clone()))
            });
            if let Some((number, task)) = oldest {
                strangers.open.remove(&number);
                task.abort();
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
        let number = strangers.next;
        strangers.next += 1;
        strangers.open.insert(number, None);
        Entry {
            door: Arc::clone(self),
            number,
            accepted: Instant::now(),
            proven: OnceLock::new(),
            requests: Arc::default(),
        }
    }

    /// Says what cuts a connection off. One that is no stranger any more is never cut off.
    pub(crate) fn attach(&self, number: u64, task: AbortHandle) {
        if let Some(unknown) = self.strangers.lock().open.get_mut(&number) {
            *unknown = Some(task);
        }
    }

    pub(crate) fn expose(&self, out: &mut Exposition) {
        let strangers = self.strangers();
        for (name, help, value) in [
            (
                "polyplane_connections",
                "Open connections.",
                self.proven.taken() + strangers,
            ),
            (
                "polyplane_unproven_connections",
                "Open connections that have proven nobody.",
                strangers,
            ),
        ] {
            out.family(name, Kind::Gauge, help);
            out.sample(name, &[], value);
        }
        let name = "polyplane_evicted_connections_total";
        let help = "Unproven connections cut off for newer ones.";
        out.family(name, Kind::Counter, help);
        out.sample(name, &[], self.evicted.load(Ordering::Relaxed));
    }

    /// Open connections that have proven nobody.
    fn strangers(&self) -> usize {
        self.strangers.lock().open.len()
    }
}

impl Entry {
    /// Which connection it is, for [`Door::attach`].
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Somebody was proven: the connection is no stranger's any more. False if there are as many
    /// others as there may be.
    pub(crate) fn admit(&self) -> bool {
        self.is_proven() || self.door.proven.take().is_some_and(|seat| self.sit(seat))
    }

    /// The same for whoever asks about this replica, which must work best when there is no room.
    pub(crate) fn admit_anyway(&self) {
        if !self.is_proven() {
            self.sit(self.door.proven.take_anyway());
        }
    }

    fn sit(&self, seat: Seat) -> bool {
        if self.proven.set(seat).is_ok() {
            self.door.strangers.lock().open.remove(&self.number);
        }
        true
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.proven.get().is_some()
    }

    /// What counts its requests.
    pub(crate) fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.requests)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_proven() {
            self.door.strangers.lock().open.remove(&self.number);
        }
    }
}

/// The requests of one connection, from their heads to the ends of their answers' bodies.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Requests {
    /// Counts a request until its answer's body is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        self.begun.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(self))
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether none is under way, and none has begun since so many had.
    fn are_idle_since(&self, begun: usize) -> bool {
        let ended = self.ended.load(Ordering::Relaxed);
        self.begun() == begun && ended == begun
    }

    fn are_idle(&self) -> bool {
        self.are_idle_since(self.begun())
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Requests>);

impl UnderWay {
    /// The reply, whose body counts as under way until it is dropped.
    pub(crate) fn with(self, reply: Reply) -> http::Response<CountedBody> {
        reply.map(|body| CountedBody {
            body,
            _under_way: self,
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// The body of an answer, for as long as its connection is busy with it.
pub(crate) struct CountedBody {
    body: ResponseBody,
    _under_way: UnderWay,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = BodyEnd;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What a connection has to do about its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Take no new request, answer what is under way, and close.
    Close,
    /// End now.
    Cut,
}

/// Where a connection stands on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nobody has been proven so far.
    Stranger,
    /// Somebody has; so many requests had begun when the timer was set.
    Serving { begun: usize },
    /// It was asked to close because nobody uses it.
    Leaving,
    /// It was asked to close because the server stops.
    Stopping,
}

/// Says when a connection has to end: a stranger's after some time, any other when it has had no
/// request for long, all of them when the server stops.
pub(crate) struct Term<'a> {
    entry: &'a Entry,
    limits: &'a Limits,
    drain: &'a Drain,
    stage: Stage,
    timer: Pin<Box<Sleep>>,
}

impl<'a> Term<'a> {
    pub(crate) fn new(entry: &'a Entry, limits: &'a Limits, drain: &'a Drain) -> Self {
        Self {
            entry,
            limits,
            drain,
            stage: Stage::Stranger,
            timer: Box::pin(sleep_until(entry.accepted + limits.unproven_time_max)),
        }
    }

    /// Waits for the next step.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; another one goes on.
    pub(crate) async fn next(&mut self) -> Step {
        if self.stage == Stage::Stopping {
            // How long this may take is the server's to say.
            self.drain.aborting().cancelled().await;
            return Step::Cut;
        }
        loop {
            tokio::select! {
                // A server that stops ends all; cutting off begins with closing.
                biased;
                () = self.drain.closing().cancelled() => {
                    self.stage = Stage::Stopping;
                    return Step::Close;
                }
                () = self.timer.as_mut() => {
                    if let Some(step) = self.on_time() {
                        return step;
                    }
                }
            }
        }
    }

    fn on_time(&mut self) -> Option<Step> {
        let is_proven = self.entry.is_proven();
        let requests = &self.entry.requests;
        let step = match self.stage {
            Stage::Stranger if !is_proven => Some(Step::Close),
            Stage::Serving { begun } if requests.are_idle_since(begun) => Some(Step::Close),
            // What a stranger has under way is worth nothing.
            Stage::Leaving if !is_proven || requests.are_idle() => Some(Step::Cut),
            Stage::Stranger | Stage::Serving { .. } | Stage::Leaving | Stage::Stopping => None,
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

    fn entry(door: &Arc<Door>) -> (Entry, tokio::task::JoinHandle<()>) {
        let entry = door.enter();
        let task = tokio::spawn(std::future::pending());
        door.attach(entry.number(), task.abort_handle());
        (entry, task)
    }

    #[tokio::test]
    async fn the_oldest_stranger_makes_room_and_nobody_proven_does() {
        let door = Door::new(1, 2);
        let (proven, proven_task) = entry(&door);
        assert!(proven.admit() && proven.admit());
        let (first, first_task) = entry(&door);
        let (second, second_task) = entry(&door);
        assert_eq!((door.strangers(), door.proven.taken()), (2, 1));
        assert!(!second.admit(), "there is room for one that is proven");
        let (third, _) = entry(&door);
        assert!(first_task.await.expect_err("cut off").is_cancelled());
        assert!(!proven_task.is_finished() && !second_task.is_finished());
        assert_eq!(door.evicted.load(Ordering::Relaxed), 1);
        // Whoever asks about the replica itself always has room.
        second.admit_anyway();
        assert_eq!((door.strangers(), door.proven.taken()), (1, 2));
        drop((proven, first, second, third));
        assert_eq!((door.strangers(), door.proven.taken()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_is_closed_and_then_cut_off() {
        let (door, drain) = (Door::new(1, 1), Drain::new());
        let limits = Limits::default();
        let (entry, _) = entry(&door);
        let begun = Instant::now();
        let _request = entry.requests().begin();
        let mut term = Term::new(&entry, &limits, &drain);
        assert_eq!(term.next().await, Step::Close);
        assert_eq!(
            begun.elapsed().as_secs(),
            limits.unproven_time_max.as_secs()
        );
        assert_eq!(term.next().await, Step::Cut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_nobody_uses_it() {
        let (door, drain) = (Door::new(1, 1), Drain::new());
        let limits = Limits::default();
        let (entry, _) = entry(&door);
        assert!(entry.admit());
        let mut term = Term::new(&entry, &limits, &drain);
        // A watch may be silent for as long as it likes.
        let watch = entry.requests().begin();
        let idle = tokio::time::timeout(limits.idle_time_max * 20, term.next()).await;
        assert!(idle.is_err(), "{idle:?}");
        drop(watch);
        let left = Instant::now();
        assert_eq!(term.next().await, Step::Close);
        assert!(left.elapsed() <= limits.idle_time_max * 2);
        // A request that came at the last moment is answered.
        let late = entry.requests().begin();
        let cut = tokio::time::timeout(LEAVING_TIME_MAX * 3, term.next()).await;
        assert!(cut.is_err(), "{cut:?}");
        drop(late);
        assert_eq!(term.next().await, Step::Cut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_closes_and_cuts_off() {
        let (door, drain) = (Door::new(1, 1), Drain::new());
        let limits = Limits::default();
        let (entry, _) = entry(&door);
        let mut term = Term::new(&entry, &limits, &drain);
        drain.close();
        assert_eq!(term.next().await, Step::Close);
        let waiting = tokio::time::timeout(limits.idle_time_max * 9, term.next()).await;
        assert!(waiting.is_err(), "{waiting:?}");
        drain.abort();
        assert_eq!(term.next().await, Step::Cut);
    }
}

//! Planes take turns at a busy replica, so that each gets a fair share of its CPU time.
//!
//! A request is carried out in one burst of work, from the call of the registry until it waits for
//! something or is answered; a document about the plane's kinds is made in one burst, a long answer is
//! written in one for each piece, and a watch in one for the events that it has. Before a burst, a
//! request takes its turn. As long as one plane alone uses the replica, or there is time to spare, a
//! turn costs a few atomic operations. When the bursts of several planes and their connections have
//! taken [`ROUND_NANOS`] of each worker thread, the gate closes: requests then queue, and go
//! on in the order of [`Turns`], a round's worth at a time. Before each round the runtime polls the tasks
//! that are ready, so that what has arrived by then is in the queue when it is decided who goes next. A
//! request thus waits for little more than a round of others that arrived before it, and not for all of
//! them. The next round begins when a worker thread would have nothing to do.
//!
//! Invariant: if the gate is closed, a task is about to begin the next round, or at least as many
//! requests as there are worker threads have their turn, and will end it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use polyplane_apimachinery::status::ApiError;
use polyplane_fairness::{
    CpuTimer, Moment, PlaneMeter, Precision, Spent, Started, Turns, VirtualTime,
};
use polyplane_registry::{Answer, ResourceRequest, Verb};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::backend::PlaneApi;
use crate::connection::requests::{move_to_own_task, move_to_own_task_unless_alone};
use crate::operations::exposition::{Exposition, Kind};
use crate::pipeline::Pipeline;
use crate::request::charge::Charge;
use crate::request::heavy::is_heavy;

/// CPU time of one round on one worker thread, in nanoseconds. A shorter one would spend more of the
/// time on turns; for as long as a round a request may wait for others that came before it.
const ROUND_NANOS: u64 = 500_000;
/// Requests of one round for each worker thread, at most, so that a round of cheap requests is not
/// much longer than expected.
const ROUND_REQUESTS: usize = 32;
/// How long the replica counts as shared after two planes have used it in turn, in nanoseconds.
/// Shorter, and a plane that asks once in a while would find a queue of others each time.
const SHARED_NANOS: u64 = 1_000_000_000;

/// Gives planes their turns.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The number of worker threads.
    workers: usize,
    time: Arc<VirtualTime>,
    /// The plane that has asked last, as the address of its meter.
    last: AtomicUsize,
    /// The time until which the replica counts as shared.
    shared_until: AtomicU64,
    /// CPU time of bursts, and of connections beside them, since the last round.
    spent: AtomicU64,
    closed: AtomicBool,
    /// True while a task is about to begin the next round.
    is_beginning: AtomicBool,
    /// Requests that a round has given their turns and that have not ended them. Pieces of answers are not
    /// counted: a connection whose client does not read may leave one alone for long.
    outstanding: AtomicUsize,
    queue: Mutex<Turns<Waiting>>,
    /// Bursts that had to wait for their turn.
    waited: AtomicU64,
}

/// A burst that waits for its turn.
#[derive(Debug)]
struct Waiting {
    sender: oneshot::Sender<Turn>,
    kind: Work,
}

/// What is done in a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A request, whose task goes on as soon as it has its turn.
    Request,
    /// A piece of an answer, which is written when the connection asks for it.
    Piece,
}

/// The right to one burst of work.
#[derive(Debug)]
pub(crate) struct Turn {
    gate: Arc<Gate>,
    meter: Arc<PlaneMeter>,
    /// `None` once the burst has ended.
    started: Option<Started>,
    /// True if the next round waits for this turn to end.
    is_awaited: bool,
    /// The time at which the gate was asked, or the round began.
    at: Moment,
}

/// The answer of the gate.
pub(crate) enum Asked {
    /// Go on.
    Now(Turn),
    /// Wait for this.
    Later(Queued),
}

/// A burst's place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Queued {
    gate: Arc<Gate>,
    meter: Arc<PlaneMeter>,
    turn: oneshot::Receiver<Turn>,
    is_over: bool,
}

impl Future for Queued {
    type Output = Result<Turn, oneshot::error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let turn = ready!(Pin::new(&mut self.turn).poll(context));
        self.is_over = true;
        Poll::Ready(turn)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.turn.close();
        // If the turn has come meanwhile, it ends with the channel.
        if self.turn.is_empty() {
            let is_wanted = |waiting: &Waiting| !waiting.sender.is_closed();
            self.gate.queue.lock().leave(&self.meter, is_wanted);
        }
    }
}

impl Turn {
    /// Returns the plane that has the turn.
    pub(crate) fn meter(&self) -> &Arc<PlaneMeter> {
        &self.meter
    }

    /// Notes what the burst took of its thread.
    pub(crate) fn note_stretch(&self, spent: Spent) {
        self.meter.note_stretch(spent, self.at);
    }

    /// Ends the burst, which took `cost` nanoseconds and is all that its turn was for.
    pub(crate) fn end(mut self, cost: u64) {
        self.over(cost, |meter, started| {
            meter.flow().charge_actual(started, cost);
            meter.flow().end_turn(cost);
        });
    }

    /// Ends the burst of a request, which took `cost` nanoseconds. The plane pays for the whole request
    /// when that ends.
    fn end_burst(mut self, cost: u64, charge: &Charge<'_>) {
        self.over(cost, |meter, started| {
            charge.pay_at_end(meter, started, cost);
            meter.flow().end_turn(cost);
        });
    }

    /// Ends the turn, unless it has ended. `pay` corrects the plane's account.
    fn over(&mut self, cost: u64, pay: impl FnOnce(&Arc<PlaneMeter>, Started)) {
        if let Some(started) = self.started.take() {
            pay(&self.meter, started);
            self.gate.ended(cost, self.is_awaited, self.at);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.over(0, |meter, started| meter.flow().give_back(started));
    }
}

/// Carries out `work` in a turn, which ends when the work first waits.
async fn burst<F: Future + Unpin>(turn: Turn, charge: &Charge<'_>, work: F) -> F::Output {
    let (mut turn, mut work) = (Some(turn), pin!(work));
    poll_fn(|context| {
        let precision = match &turn {
            Some(turn) => turn.gate.precision_for(&turn.meter, turn.at),
            None => charge.precision(),
        };
        let timer = CpuTimer::start(precision);
        let polled = work.as_mut().poll(context);
        if let Some(turn) = turn.take() {
            let spent = timer.stop();
            turn.note_stretch(spent);
            turn.end_burst(spent.cpu_nanos, charge);
        }
        polled
    })
    .await
}

impl Pipeline<'_> {
    /// Lets the registry carry a request out in a turn of its plane, or aside if it takes long.
    pub(crate) async fn in_turn(
        &self,
        plane: &dyn PlaneApi,
        meter: &Arc<PlaneMeter>,
        request: ResourceRequest,
    ) -> Result<Answer, ApiError> {
        match request.verb {
            Verb::List | Verb::DeleteCollection => move_to_own_task().await,
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => {
                move_to_own_task_unless_alone().await;
            }
            Verb::Get | Verb::Watch | Verb::Connect => {}
        }
        let is_heavy = is_heavy(&request, || plane.object_bytes(&request));
        self.in_turn_or_aside(meter, is_heavy, plane.handle(request))
            .await
    }

    /// Carries out work of a plane in a turn of it, or aside: if it is heavy, or if work of the plane takes long.
    pub(crate) async fn in_turn_or_aside<F: Future + Unpin>(
        &self,
        meter: &Arc<PlaneMeter>,
        is_heavy: bool,
        work: F,
    ) -> F::Output {
        if is_heavy || meter.works_aside(self.state.now()) {
            let is_shared = || self.state.gate.is_shared(meter, self.state.now());
            let done = self
                .state
                .heavy
                .carry_out(meter, self.charge, is_shared, work);
            // Boxed, because the future of a request with a small body is smaller.
            return Box::pin(done).await;
        }
        let turn = self.state.gate.enter(meter, self.state.now()).await;
        burst(turn, self.charge, work).await
    }
}

impl Gate {
    /// Creates an open gate for a runtime with this many worker threads.
    pub(crate) fn new(workers: usize, time: Arc<VirtualTime>) -> Arc<Self> {
        Arc::new(Self {
            workers: workers.max(1),
            time,
            last: AtomicUsize::new(0),
            shared_until: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            is_beginning: AtomicBool::new(false),
            outstanding: AtomicUsize::new(0),
            queue: Mutex::default(),
            waited: AtomicU64::new(0),
        })
    }

    /// Returns the virtual time of all planes at this replica.
    pub(crate) fn time(&self) -> &Arc<VirtualTime> {
        &self.time
    }

    /// Returns how closely work has to be measured now: while planes wait for their turns, what one is
    /// charged too much delays it.
    pub(crate) fn precision(&self) -> Precision {
        match self.closed.load(Ordering::Relaxed) {
            true => Precision::Exact,
            false => Precision::Rough,
        }
    }

    /// As [`Self::precision`], for a turn of a plane: also if some of its work seemed to take long, which the next turn
    /// is to confirm or not.
    pub(crate) fn precision_for(&self, meter: &PlaneMeter, now: Moment) -> Precision {
        match meter.is_suspect(now) {
            true => Precision::Exact,
            false => self.precision(),
        }
    }

    /// Notes that a plane uses the replica, and returns whether others do so too.
    pub(crate) fn is_shared(&self, meter: &Arc<PlaneMeter>, now: Moment) -> bool {
        self.note(meter, now);
        self.shared_until.load(Ordering::Relaxed) >= now.0
    }

    /// Waits for the turn of a plane.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the turn to the next one.
    pub(crate) async fn enter(self: &Arc<Self>, meter: &Arc<PlaneMeter>, now: Moment) -> Turn {
        match self.ask(meter, Work::Request, now) {
            Asked::Now(turn) => turn,
            Asked::Later(waiting) => {
                // The requests of a round run on all threads, not in one connection's task.
                move_to_own_task().await;
                waiting.await.unwrap_or_else(|_| self.begin(meter, now))
            }
        }
    }

    /// Waits for the turn of a piece of an answer. `place` is where the caller keeps its place in the queue.
    pub(crate) fn poll_piece(
        self: &Arc<Self>,
        meter: &Arc<PlaneMeter>,
        place: &mut Option<Queued>,
        context: &mut Context<'_>,
        now: Moment,
    ) -> Poll<Turn> {
        let waiting = match place {
            Some(waiting) => waiting,
            None => match self.ask(meter, Work::Piece, now) {
                Asked::Now(turn) => return Poll::Ready(turn),
                Asked::Later(waiting) => place.insert(waiting),
            },
        };
        let turn = ready!(Pin::new(waiting).poll(context));
        *place = None;
        Poll::Ready(turn.unwrap_or_else(|_| self.begin(meter, now)))
    }

    /// Returns the turn of a plane, or a place in the queue for it.
    fn ask(self: &Arc<Self>, meter: &Arc<PlaneMeter>, kind: Work, now: Moment) -> Asked {
        self.note(meter, now);
        if !self.closed.load(Ordering::Relaxed) {
            return Asked::Now(self.begin(meter, now));
        }
        let mut queue = self.queue.lock();
        // Again under the lock, under which the gate opens: or the request would wait in a queue that
        // nobody empties.
        if !self.closed.load(Ordering::Relaxed) {
            drop(queue);
            return Asked::Now(self.begin(meter, now));
        }
        let (sender, turn) = oneshot::channel();
        queue.push(meter, Waiting { sender, kind }, &self.time);
        self.waited.fetch_add(1, Ordering::Relaxed);
        Asked::Later(Queued {
            gate: Arc::clone(self),
            meter: Arc::clone(meter),
            turn,
            is_over: false,
        })
    }

    fn begin(self: &Arc<Self>, meter: &Arc<PlaneMeter>, now: Moment) -> Turn {
        Turn {
            gate: Arc::clone(self),
            meter: Arc::clone(meter),
            started: Some(meter.flow().start(&self.time)),
            is_awaited: false,
            at: now,
        }
    }

    /// Notes that a plane uses the replica.
    fn note(&self, meter: &Arc<PlaneMeter>, now: Moment) {
        let own = Arc::as_ptr(meter).addr();
        let last = self.last.load(Ordering::Relaxed);
        if last == own {
            return;
        }
        self.last.store(own, Ordering::Relaxed);
        if last != 0 {
            let until = now.plus(SHARED_NANOS);
            self.shared_until.store(until.0, Ordering::Relaxed);
        }
    }

    /// Counts a burst that has ended.
    fn ended(self: &Arc<Self>, cost: u64, is_awaited: bool, at: Moment) {
        if is_awaited {
            if self.outstanding.fetch_sub(1, Ordering::AcqRel) <= self.workers {
                self.begin_round(at);
            }
            return;
        }
        self.count(cost, || at);
    }

    /// Counts CPU time of planes since the last round: that of bursts, and what connections take beside them. With
    /// bursts alone, the small events of very many watches would go on for several rounds before the gate closes.
    pub(crate) fn count(self: &Arc<Self>, cost: u64, now: impl FnOnce() -> Moment) {
        let spent = self.spent.fetch_add(cost, Ordering::Relaxed) + cost;
        if spent < self.round_nanos() {
            return;
        }
        let at = now();
        if self.shared_until.load(Ordering::Relaxed) < at.0 {
            // One plane alone: nobody waits for it.
            self.spent.store(0, Ordering::Relaxed);
        } else if !self.closed.swap(true, Ordering::Relaxed) {
            self.begin_round(at);
        }
    }

    fn round_nanos(&self) -> u64 {
        ROUND_NANOS * self.workers as u64
    }

    /// Begins the next round, once the runtime has polled the tasks that are ready now.
    fn begin_round(self: &Arc<Self>, at: Moment) {
        if self.is_beginning.swap(true, Ordering::AcqRel) {
            return;
        }
        let gate = Arc::clone(self);
        // Without a runtime the server has ended, and nobody waits.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                tokio::task::yield_now().await;
                gate.next_round(at);
            });
        }
    }

    /// Gives the next turns, or opens the gate if nobody waits.
    fn next_round(self: &Arc<Self>, at: Moment) {
        let mut round = Vec::new();
        {
            let mut queue = self.queue.lock();
            // First, so that whoever ends a turn from now on begins another round.
            self.is_beginning.store(false, Ordering::Release);
            self.spent.store(0, Ordering::Relaxed);
            self.time.note_competing(queue.planes());
            if queue.is_empty() {
                self.closed.store(false, Ordering::Relaxed);
                return;
            }
            let running = self.outstanding.load(Ordering::Acquire);
            let (mut expected, requests_max) = (0, ROUND_REQUESTS * self.workers);
            while (expected < self.round_nanos() || running + round.len() < self.workers)
                && round.len() < requests_max
            {
                let Some((meter, waiting, started)) = queue.pop(&self.time) else {
                    break;
                };
                expected += meter.flow().expected_of_turn();
                let turn = Turn {
                    gate: Arc::clone(self),
                    meter,
                    started: Some(started),
                    is_awaited: waiting.kind == Work::Request,
                    at,
                };
                round.push((waiting.sender, turn));
            }
        }
        let awaited = round.iter().filter(|(_, turn)| turn.is_awaited).count();
        // Before any turn is given, because the last ones to end begin the next round.
        let running = self.outstanding.fetch_add(awaited, Ordering::AcqRel) + awaited;
        for (sender, turn) in round {
            // If the request is gone, its turn comes back and ends here.
            drop(sender.send(turn));
        }
        if running < self.workers {
            self.begin_round(at);
        }
    }

    pub(crate) fn expose(&self, out: &mut Exposition) {
        let name = "polyplane_requests_queued";
        let help =
            "Requests and pieces of long answers that wait for the turn of their control plane.";
        out.family(name, Kind::Gauge, help);
        out.sample(name, &[], self.queue.lock().len());
        let name = "polyplane_requests_queued_total";
        let help = "Requests and pieces of long answers that had to wait for a turn.";
        out.family(name, Kind::Counter, help);
        out.sample(name, &[], self.waited.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets tasks of the planes go through the gate, all ready at once, and returns the order in which
    /// they had their turns. Costs are what the tasks say, so that the test needs no time.
    async fn order(gate: &Arc<Gate>, tasks: &[(&Arc<PlaneMeter>, u64)]) -> Vec<usize> {
        let order: Arc<Mutex<Vec<usize>>> = Arc::default();
        let tasks: Vec<_> = tasks
            .iter()
            .enumerate()
            .map(|(at, (meter, cost))| {
                let (gate, meter, cost) = (Arc::clone(gate), Arc::clone(meter), *cost);
                let order = Arc::clone(&order);
                tokio::spawn(async move {
                    let turn = gate.enter(&meter, Moment(1)).await;
                    order.lock().push(at);
                    turn.end(cost);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        order.lock().clone()
    }

    #[tokio::test]
    async fn whoever_comes_last_waits_for_a_round_and_not_for_the_flood() {
        let gate = Gate::new(1, Arc::default());
        let (flood, modest) = (Arc::default(), Arc::default());
        let mut tasks = vec![(&modest, 30_000)];
        tasks.extend(std::iter::repeat_n((&flood, 400_000), 500));
        tasks.push((&modest, 30_000));
        let order = order(&gate, &tasks).await;
        let place = order.iter().position(|at| *at == 501).expect("it ran");
        assert!(place < 50, "{place}");
        assert_eq!(order.len(), 502);
        assert!(gate.queue.lock().is_empty());
        // The task that finds that nobody waits opens the gate.
        while gate.closed.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn one_plane_alone_never_waits() {
        let gate = Gate::new(1, Arc::default());
        let alone = Arc::default();
        let tasks = vec![(&alone, 400_000); 500];
        let order = order(&gate, &tasks).await;
        assert!(order.is_sorted());
        assert_eq!(gate.waited.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn what_connections_take_closes_the_gate_too() {
        let gate = Gate::new(1, Arc::default());
        let (a, b): (Arc<PlaneMeter>, Arc<PlaneMeter>) = (Arc::default(), Arc::default());
        gate.enter(&a, Moment(1)).await.end(1);
        gate.enter(&b, Moment(1)).await.end(1);
        assert!(!gate.closed.load(Ordering::Relaxed));
        gate.count(ROUND_NANOS, || Moment(1));
        assert!(gate.closed.load(Ordering::Relaxed));
        // Nobody waits, so the next round opens it.
        while gate.closed.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_plane_that_goes_away_in_debt_leaves_nothing_and_holds_up_nobody() {
        let gate = Gate::new(1, Arc::default());
        let (flood, modest): (Arc<PlaneMeter>, Arc<PlaneMeter>) = (Arc::default(), Arc::default());
        gate.enter(&modest, Moment(1)).await.end(1);
        // An hour of CPU time in debt.
        gate.enter(&flood, Moment(1)).await.end(3_600_000_000_000);
        let mut waiting = Vec::new();
        for _ in 0..100 {
            let asked = [&flood, &modest].map(|meter| gate.ask(meter, Work::Request, Moment(1)));
            let [Asked::Later(of_flood), Asked::Later(of_modest)] = asked else {
                panic!("the gate is open");
            };
            waiting.push(of_flood);
            waiting.push(of_modest);
            // Its clients come and go, and each leaves.
            let gone = gate.ask(&flood, Work::Request, Moment(1));
            drop(gone);
        }
        assert!(
            gate.queue.lock().len() <= 300,
            "{}",
            gate.queue.lock().len()
        );
        let mut of_modest = Vec::new();
        for (at, queued) in waiting.into_iter().enumerate() {
            if at % 2 == 1 {
                of_modest.push(queued);
            }
        }
        assert_eq!(gate.queue.lock().len(), 100);
        assert_eq!(Arc::strong_count(&flood), 1, "nothing knows the plane");
        for queued in of_modest {
            queued.await.expect("its turn").end(30_000);
        }
        assert!(gate.queue.lock().is_empty());
    }

    #[tokio::test]
    async fn a_request_that_goes_away_leaves_its_turn() {
        let gate = Gate::new(1, Arc::default());
        let (a, b): (Arc<PlaneMeter>, Arc<PlaneMeter>) = (Arc::default(), Arc::default());
        gate.enter(&b, Moment(1)).await.end(1);
        gate.enter(&a, Moment(1)).await.end(ROUND_NANOS);
        // The gate is closed now, until this task waits.
        let (Asked::Later(gone), Asked::Later(stays)) = (
            gate.ask(&a, Work::Request, Moment(1)),
            gate.ask(&b, Work::Request, Moment(1)),
        ) else {
            panic!("the gate is open");
        };
        drop(gone);
        stays.await.expect("its turn").end(1);
        assert_eq!(order(&gate, &[(&a, 1), (&b, 1)]).await.len(), 2);
        assert!(gate.queue.lock().is_empty());
    }
}

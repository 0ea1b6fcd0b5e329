//! What a request costs, charged to its plane when the request ends.
//!
//! The CPU time of each poll of the request's future is added up, and so is that of each piece of a long answer
//! or a watch. Work that others do for the request later, on tasks that serve many requests, is charged by bytes: the
//! commit of a write, and the encryption and sending of an answer, and the decryption of a body. What a client's
//! connection takes beyond that is measured there ([`crate::connection::cost`]).

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use polyplane_fairness::{CpuTimer, Moment, PlaneMeter, Precision, Spent, Started};
use polyplane_registry::StreamEnd;

use crate::answer::body::{Coding, SliceStream};
use crate::connection::cost;
use crate::operations::exposition::{Exposition, Kind};
use crate::request::flow::FlowSeat;
use crate::request::turn::{Gate, Queued, Turn};
use crate::server_state::ServerState;

/// CPU time of the commit of one write beside its bytes, in nanoseconds: an estimate, from what a
/// CREATE beside other requests takes above a GET. Shares between planes need only its order of magnitude.
const COMMIT_NANOS: u64 = 20_000;
/// CPU time of the commit of one byte, in nanoseconds.
const COMMIT_NANOS_PER_BYTE: u64 = 8;
/// CPU time of sending one byte, in nanoseconds: encryption, frames and copies.
const SEND_NANOS_PER_BYTE: u64 = 1;
/// CPU time of waking a watch, in nanoseconds: an estimate, of what the commit does for each watch of its resource and of
/// what the runtime does until the watch's task runs.
const WAKE_NANOS: u64 = 300;
/// CPU time of compressing one byte, in nanoseconds: an estimate. What is compressed is written by the
/// connection.
const COMPRESS_NANOS_PER_BYTE: u64 = 5;
/// CPU time of receiving one byte, in nanoseconds: decryption, frames and copies.
const RECEIVE_NANOS_PER_BYTE: u64 = 1;
/// Bounds from which on polls are counted as long, in nanoseconds. No poll should be: whatever waits in
/// the queue of its worker thread waits as long.
const LONG_NANOS: [u64; 4] = [1_000_000, 4_000_000, 16_000_000, 64_000_000];

/// Counts the polls of requests that held up a worker thread.
#[derive(Debug, Default)]
pub(crate) struct LongPolls([AtomicU64; LONG_NANOS.len()]);

impl LongPolls {
    /// Counts a poll.
    fn note(&self, nanos: u64) {
        for (bound, count) in LONG_NANOS.iter().zip(&self.0) {
            if nanos < *bound {
                return;
            }
            ServerState::count(count);
        }
    }

    pub(crate) fn expose(&self, out: &mut Exposition) {
        let name = "polyplane_long_polls_total";
        let help = "Polls of requests that held up a worker thread for at least so long.";
        out.family(name, Kind::Counter, help);
        for (bound, count) in LONG_NANOS.iter().zip(&self.0) {
            let millis = (bound / 1_000_000).to_string();
            out.sample(name, &[("millis", &millis)], count.load(Ordering::Relaxed));
        }
    }
}

/// The cost of one request so far. Dropping it charges the plane; a request whose plane is not known,
/// because nobody was proven, is charged to `unproven`.
pub(crate) struct Charge<'a> {
    nanos: AtomicU64,
    /// The part of it that was spent in turns, which the plane's flow knows already.
    nanos_in_turns: AtomicU64,
    /// The wall time of what the present poll has done aside, without the worker thread.
    nanos_aside: AtomicU64,
    plane: OnceLock<Arc<PlaneMeter>>,
    /// The request's turn, whose expected cost the plane's flow has been charged for all of the request.
    started: OnceLock<Started>,
    unproven: &'a PlaneMeter,
    long_polls: &'a LongPolls,
    gate: &'a Gate,
}

impl<'a> Charge<'a> {
    pub(crate) fn new(unproven: &'a PlaneMeter, long_polls: &'a LongPolls, gate: &'a Gate) -> Self {
        Self {
            nanos: AtomicU64::new(0),
            nanos_in_turns: AtomicU64::new(0),
            nanos_aside: AtomicU64::new(0),
            plane: OnceLock::new(),
            started: OnceLock::new(),
            unproven,
            long_polls,
            gate,
        }
    }

    /// Names the plane to charge. The first name stays: a request that is sent again, because the
    /// plane has moved, is charged once.
    pub(crate) fn to(&self, meter: &Arc<PlaneMeter>) {
        self.plane.get_or_init(|| Arc::clone(meter));
    }

    /// Returns the plane to charge, if it is known.
    pub(crate) fn plane(&self) -> Option<&Arc<PlaneMeter>> {
        self.plane.get()
    }

    /// Returns how closely the request's work has to be measured now.
    pub(crate) fn precision(&self) -> Precision {
        self.gate.precision()
    }

    /// Polls a part of the request and adds the CPU time that it takes.
    pub(crate) fn poll<F: Future>(
        &self,
        future: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let timer = CpuTimer::start(self.precision());
        let polled = future.poll(context);
        let spent = timer.stop();
        self.add(spent.cpu_nanos);
        cost::note(self.plane.get(), spent.cpu_nanos);
        let aside = self.nanos_aside.load(Ordering::Relaxed);
        if aside > 0 {
            self.nanos_aside.store(0, Ordering::Relaxed);
        }
        self.long_polls.note(spent.wall_nanos.saturating_sub(aside));
        polled
    }

    /// Notes that a part of what is polled was done aside, in a turn of its own kind.
    pub(crate) fn aside(&self, spent: Spent) {
        self.nanos_aside
            .fetch_add(spent.wall_nanos, Ordering::Relaxed);
        self.in_turn(spent.cpu_nanos);
    }

    /// Notes that a part of what is polled was spent in a turn.
    pub(crate) fn in_turn(&self, nanos: u64) {
        self.nanos_in_turns.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Notes that the request had its turn, which took `nanos` of it so far. The turn is charged
    /// what the whole request cost: the plane would else go on, at each turn, as if nothing but the turns
    /// cost anything, and what is charged later is forgiven to a plane that has nothing waiting then.
    pub(crate) fn pay_at_end(&self, meter: &Arc<PlaneMeter>, started: Started, nanos: u64) {
        let is_charged = |plane: &Arc<PlaneMeter>| Arc::ptr_eq(plane, meter);
        let kept = match self.plane.get().is_some_and(is_charged) {
            true => self.started.set(started),
            false => Err(started),
        };
        // A request that is tried again has a second turn.
        if let Err(started) = kept {
            meter.flow().charge_actual(started, nanos);
            self.in_turn(nanos);
        }
    }

    /// Adds the cost of the commit of a write with a body of this length.
    pub(crate) fn commit(&self, bytes: usize) {
        self.add(COMMIT_NANOS + COMMIT_NANOS_PER_BYTE * bytes as u64);
    }

    /// Adds the cost of receiving a body of this length.
    pub(crate) fn receive(&self, bytes: usize) {
        self.add_for_connection(RECEIVE_NANOS_PER_BYTE * bytes as u64);
    }

    /// Adds the cost of sending an answer.
    pub(crate) fn send(&self, bytes: u64) {
        self.add_for_connection(SEND_NANOS_PER_BYTE * bytes);
    }

    /// Adds the cost of compressing an answer of this length.
    pub(crate) fn compress(&self, bytes: usize) {
        self.add_for_connection(COMPRESS_NANOS_PER_BYTE * bytes as u64);
    }

    /// Adds a cost of the connection, which then does not charge it again.
    fn add_for_connection(&self, nanos: u64) {
        self.add(nanos);
        cost::note(None, nanos);
    }

    fn add(&self, nanos: u64) {
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        let meter = self.plane.get().map_or(self.unproven, |meter| &**meter);
        let nanos = *self.nanos.get_mut();
        meter.charge(nanos);
        let nanos = nanos.saturating_sub(*self.nanos_in_turns.get_mut());
        match self.started.take() {
            Some(started) => meter.flow().charge_actual(started, nanos),
            None => meter.flow().charge(nanos),
        }
    }
}

/// A turn in which a piece of an answer is written, and the time since its begin.
pub(crate) struct PieceTurn {
    turn: Turn,
    timer: CpuTimer,
}

impl PieceTurn {
    /// Waits for the turn of the next piece. `place` is where the caller keeps its place in the queue.
    pub(crate) fn poll(
        gate: &Arc<Gate>,
        meter: &Arc<PlaneMeter>,
        place: &mut Option<Queued>,
        context: &mut Context<'_>,
        now: Moment,
    ) -> Poll<Self> {
        let turn = ready!(gate.poll_piece(meter, place, context, now));
        let timer = CpuTimer::start(gate.precision_for(meter, now));
        Poll::Ready(Self { turn, timer })
    }

    /// Ends the turn, in which this piece of a watch was written, and charges its plane. A turn without a piece costs
    /// too: in it a watch has looked at events that do not concern it, and something has to wake it again.
    pub(crate) fn end_of_watch<E>(self, piece: &Poll<Option<Result<Bytes, E>>>) {
        let elsewhere = match piece {
            Poll::Ready(_) => 0,
            Poll::Pending => WAKE_NANOS,
        };
        self.end_in(Coding::Identity, piece, elsewhere);
    }

    /// Ends the turn, in which this piece was written, and after which it is coded, and charges its plane for both, and
    /// for so many nanoseconds that are spent elsewhere than in the connection's task.
    fn end_in<E>(self, coding: Coding, piece: &Poll<Option<Result<Bytes, E>>>, elsewhere: u64) {
        let bytes = match piece {
            Poll::Ready(Some(Ok(bytes))) => bytes.len(),
            Poll::Ready(Some(Err(_)) | None) | Poll::Pending => 0,
        };
        let per_byte = match coding {
            Coding::Identity => SEND_NANOS_PER_BYTE,
            Coding::Gzip => SEND_NANOS_PER_BYTE + COMPRESS_NANOS_PER_BYTE,
        };
        let spent = self.timer.stop();
        self.turn.note_stretch(spent);
        let nanos = spent.cpu_nanos + per_byte * bytes as u64;
        let meter = self.turn.meter();
        meter.charge(nanos + elsewhere);
        cost::note(Some(meter), nanos);
        self.turn.end(nanos + elsewhere);
    }
}

/// Charges a plane for a long answer while it is written and coded, which happens after the request's
/// own future has ended, and lets the answer wait for the plane's turn before each piece. The request keeps
/// the seats of its priority level until then.
pub(crate) fn charged(
    (stream, coding): (SliceStream, Coding),
    state: &Arc<ServerState>,
    meter: &Arc<PlaneMeter>,
    seat: Option<Arc<FlowSeat>>,
) -> SliceStream {
    Box::pin(ChargedStream {
        _seat: seat,
        stream,
        coding,
        meter: Arc::clone(meter),
        place: None,
        state: Arc::clone(state),
    })
}

struct ChargedStream {
    /// The seats of the request at its priority level, until the answer is written.
    _seat: Option<Arc<FlowSeat>>,
    stream: SliceStream,
    /// How the connection codes what the stream brings.
    coding: Coding,
    meter: Arc<PlaneMeter>,
    /// The place in the queue for the turn of the next piece.
    place: Option<Queued>,
    state: Arc<ServerState>,
}

impl Stream for ChargedStream {
    type Item = Result<Bytes, StreamEnd>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let (gate, now) = (&this.state.gate, this.state.now());
        let turn = PieceTurn::poll(gate, &this.meter, &mut this.place, context, now);
        let turn = ready!(turn);
        let polled = this.stream.as_mut().poll_next(context);
        turn.end_in(this.coding, &polled, 0);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plane_pays_for_what_is_compressed() {
        let (unproven, long_polls) = (PlaneMeter::default(), LongPolls::default());
        let gate = Gate::new(1, Arc::default());
        let plane: Arc<PlaneMeter> = Arc::default();
        let charge = Charge::new(&unproven, &long_polls, &gate);
        charge.to(&plane);
        charge.compress(1000);
        drop(charge);
        assert_eq!(plane.usage().cpu_nanos, 1000 * COMPRESS_NANOS_PER_BYTE);
    }

    #[tokio::test]
    async fn a_piece_that_is_compressed_costs_more_than_it_took() {
        let gate = Gate::new(1, Arc::default());
        let plane: Arc<PlaneMeter> = Arc::default();
        let piece = Poll::Ready(Some(Ok::<_, StreamEnd>(Bytes::from(vec![b'x'; 1_000_000]))));
        let mut context = Context::from_waker(std::task::Waker::noop());
        let turn = PieceTurn::poll(&gate, &plane, &mut None, &mut context, Moment(1));
        let Poll::Ready(turn) = turn else {
            panic!("nobody else waits");
        };
        let least = 1_000_000 * (SEND_NANOS_PER_BYTE + COMPRESS_NANOS_PER_BYTE);
        turn.end_in(Coding::Gzip, &piece, 0);
        assert!(plane.usage().cpu_nanos >= least);
    }

    #[tokio::test]
    async fn a_piece_of_a_plane_that_is_suspect_is_measured_exactly() {
        let gate = Gate::new(1, Arc::default());
        let plane: Arc<PlaneMeter> = Arc::default();
        let seems_long = Spent {
            wall_nanos: 1_000_000_000,
            cpu_nanos: 1_000_000_000,
            is_exact: false,
        };
        plane.note_stretch(seems_long, Moment(1));
        let mut context = Context::from_waker(std::task::Waker::noop());
        let turn = PieceTurn::poll(&gate, &plane, &mut None, &mut context, Moment(1));
        let Poll::Ready(turn) = turn else {
            panic!("nobody else waits");
        };
        // Longer than what is taken for exact without asking the kernel.
        let began = std::time::Instant::now();
        while began.elapsed() < std::time::Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        // Nothing else has measured this thread.
        assert!(turn.timer.stop().is_exact);
    }

    #[tokio::test]
    async fn a_plane_pays_for_each_time_that_one_of_its_watches_is_woken() {
        const WATCHES: u64 = 1000;
        let gate = Gate::new(1, Arc::default());
        let plane: Arc<PlaneMeter> = Arc::default();
        let mut context = Context::from_waker(std::task::Waker::noop());
        for _ in 0..WATCHES {
            let turn = PieceTurn::poll(&gate, &plane, &mut None, &mut context, Moment(1));
            let Poll::Ready(turn) = turn else {
                panic!("nobody else waits");
            };
            turn.end_of_watch(&Poll::<Option<Result<Bytes, StreamEnd>>>::Pending);
        }
        assert!(plane.usage().cpu_nanos >= WATCHES * WAKE_NANOS);
    }
}

//! Work for clients that have not proven who they are: handshakes, and the proofs themselves.
//!
//! Among the planes that take turns, all this work is one plane. Beside very many busy planes it has an
//! eighth of the replica's time: newcomers do not stand still there, and a flood of bad credentials takes
//! no more than that. Within it, each source address is a flow of its own, so a flood from one address
//! leaves room for newcomers from others. Sources are hashed into [`SOURCES`] flows with a key that nobody
//! knows; nothing is kept for an address.
//!
//! Of one connection at most one poll waits here; the others wait in its [`Lane`]. So a newcomer waits for
//! one poll of each connection from its address, however many requests they carry. That matters where all
//! clients have the address of a node or of a load balancer, and for the probes of a kubelet there.
//!
//! Every poll of the work takes a place and a turn anew. A client that sends its handshake byte by
//! byte therefore cannot have the dear part of it done out of turn, and who sends nothing holds
//! nothing.
//!
//! Invariant: the lock here is taken for unproven work only, and never while anything is awaited.

use std::array;
use std::future::poll_fn;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use parking_lot::Mutex;
use polyplane_fairness::{CpuTimer, Moment, PlaneMeter, Started, Turns, VirtualTime};
use tokio::sync::oneshot;

use crate::connection::Connection;
use crate::request::turn::Gate;

/// Flows of source addresses. With fewer, more newcomers would share the flow of a flood.
const SOURCES: usize = 256;
/// Polls of one flow that wait for a place, each of another connection: about a second's work. With more, a
/// newcomer of the same address would wait longer; with fewer than there may be unproven connections, those
/// could shut it out.
const WAITING_MAX: u32 = 16_384;
/// Places for each worker thread. With more, a newcomer waits for more work of a flood; with fewer,
/// a round of the gate may have less to do than there are threads.
const PLACES: usize = 2;

/// Where the unproven requests of one connection wait, first come first served, until no other of them
/// waits in the doorway.
pub(crate) type Lane = tokio::sync::Mutex<()>;

/// Where a client comes from: its address. The addresses of one network of IPv6 are one source, because a
/// client may choose among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source(u64);

impl Source {
    pub(crate) fn of(address: Option<IpAddr>) -> Self {
        Self(match address.map(|address| address.to_canonical()) {
            None => 0,
            Some(IpAddr::V4(address)) => u64::from(address.to_bits()),
            Some(IpAddr::V6(address)) => (address.to_bits() >> 64) as u64,
        })
    }
}

/// Lets unproven work in.
#[derive(Debug)]
pub(crate) struct Doorway {
    gate: Arc<Gate>,
    /// The account of all unproven work among the planes.
    meter: Arc<PlaneMeter>,
    time: VirtualTime,
    sources: [Arc<PlaneMeter>; SOURCES],
    hasher: RandomState,
    places: usize,
    inside: Mutex<Inside>,
}

#[derive(Debug)]
struct Inside {
    taken: usize,
    /// Flows with senders to those that wait in them.
    queue: Turns<(usize, oneshot::Sender<Place>)>,
    /// For each flow, how many wait.
    waiting: [u32; SOURCES],
}

/// Too much work of one source waits already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many unproven requests of one source address wait")]
pub(crate) struct Crowded;

/// The right to one poll. Dropping it lets the next one in.
#[derive(Debug)]
struct Place {
    /// `None` once the place belongs to somebody else.
    doorway: Option<Arc<Doorway>>,
    source: usize,
    /// `None` once the cost is known.
    started: Option<Started>,
}

impl Place {
    /// Ends the poll, which took `nanos`.
    fn end(mut self, nanos: u64) {
        if let (Some(doorway), Some(started)) = (&self.doorway, self.started.take()) {
            doorway.sources[self.source]
                .flow()
                .charge_actual(started, nanos);
        }
    }

    fn give_back(&mut self) {
        if let (Some(doorway), Some(started)) = (&self.doorway, self.started.take()) {
            doorway.sources[self.source].flow().give_back(started);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_back();
        if let Some(doorway) = self.doorway.take() {
            doorway.leave();
        }
    }
}

impl Doorway {
    /// Creates a doorway in front of a gate, for a runtime with this many worker threads. `meter` becomes the
    /// account of all unproven work.
    pub(crate) fn new(gate: &Arc<Gate>, meter: &Arc<PlaneMeter>, workers: usize) -> Arc<Self> {
        meter.flow().reserve();
        Arc::new(Self {
            gate: Arc::clone(gate),
            meter: Arc::clone(meter),
            time: VirtualTime::default(),
            sources: array::from_fn(|_| Arc::default()),
            hasher: RandomState::new(),
            places: PLACES * workers.max(1),
            inside: Mutex::new(Inside {
                taken: 0,
                queue: Turns::default(),
                waiting: [0; SOURCES],
            }),
        })
    }

    /// Carries out the work of a client at `source`, on the connection with this lane. Returns its result,
    /// and the time of its polls in nanoseconds.
    ///
    /// # Errors
    /// Returns an error if too much work of that source waits. The work is dropped then.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and leaves its place to the next one.
    pub(crate) async fn work<F: Future + Unpin>(
        self: &Arc<Self>,
        (source, lane): (Option<IpAddr>, &Lane),
        now: impl Fn() -> Moment,
        mut work: F,
    ) -> Result<(F::Output, u64), Crowded> {
        let source = self.source(source);
        let mut total = 0;
        loop {
            // Only for this poll, so that work which waits for the network holds nobody up.
            let first = lane.lock().await;
            let place = self.enter(source).await?;
            let turn = self.gate.enter(&self.meter, now()).await;
            let timer = CpuTimer::start(self.gate.precision());
            let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut work).poll(context))).await;
            let nanos = timer.stop().cpu_nanos;
            total += nanos;
            turn.end(nanos);
            place.end(nanos);
            drop(first);
            match polled {
                Poll::Ready(done) => return Ok((done, total)),
                Poll::Pending => woken().await,
            }
        }
    }

    /// Returns the flow of the client of a connection.
    pub(crate) fn source_of(&self, connection: &Connection) -> usize {
        self.source(connection.doorway_entry().0)
    }

    /// Returns the flow of an address.
    fn source(&self, address: Option<IpAddr>) -> usize {
        (self.hasher.hash_one(Source::of(address)) % SOURCES as u64) as usize
    }

    async fn enter(self: &Arc<Self>, source: usize) -> Result<Place, Crowded> {
        let waiting = {
            let mut inside = self.inside.lock();
            if inside.taken < self.places {
                inside.taken += 1;
                let started = self.sources[source].flow().start(&self.time);
                return Ok(self.place(source, started));
            }
            if inside.waiting[source] >= WAITING_MAX {
                return Err(Crowded);
            }
            inside.waiting[source] += 1;
            let (sender, waiting) = oneshot::channel();
            let waiter = (source, sender);
            inside.queue.push(&self.sources[source], waiter, &self.time);
            waiting
        };
        waiting.await.map_err(|_| Crowded)
    }

    fn place(self: &Arc<Self>, source: usize, started: Started) -> Place {
        Place {
            doorway: Some(Arc::clone(self)),
            source,
            started: Some(started),
        }
    }

    /// Gives a place that became free to whoever goes next.
    fn leave(self: &Arc<Self>) {
        loop {
            let (source, sender, started) = {
                let mut inside = self.inside.lock();
                let Some((_, (source, sender), started)) = inside.queue.pop(&self.time) else {
                    inside.taken -= 1;
                    return;
                };
                inside.waiting[source] -= 1;
                (source, sender, started)
            };
            let Err(mut unwanted) = sender.send(self.place(source, started)) else {
                return;
            };
            // The client has gone, so the place stays here for the next one.
            unwanted.give_back();
            unwanted.doorway = None;
        }
    }
}

/// Waits until the task is woken once more.
pub(crate) async fn woken() {
    let mut has_slept = false;
    poll_fn(|_| match std::mem::replace(&mut has_slept, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use polyplane_auth::Credentials;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const NOW: fn() -> Moment = || Moment(1);

    fn doorway() -> Arc<Doorway> {
        Doorway::new(&Gate::new(1, Arc::default()), &Arc::default(), 1)
    }

    /// Returns two addresses with flows of their own.
    fn two_sources(doorway: &Doorway) -> [Option<IpAddr>; 2] {
        let first = IpAddr::from([10, 0, 0, 1]);
        let mut others = (2..=255).map(|last| IpAddr::from([10, 0, 0, last]));
        let flow = doorway.source(Some(first));
        let other = others.find(|other| doorway.source(Some(*other)) != flow);
        [Some(first), other]
    }

    /// Begins work of 300 requests of `flood`, then one of `newcomer`. Returns how many of the flood were
    /// served before the newcomer.
    async fn served_before(
        doorway: &Arc<Doorway>,
        [flood, newcomer]: [Option<IpAddr>; 2],
        lanes: usize,
    ) -> usize {
        const FLOOD: usize = 300;
        let held = [doorway.enter(0).await, doorway.enter(0).await];
        let served = Arc::<AtomicUsize>::default();
        let lanes = Vec::from_iter((0..lanes).map(|_| Arc::<Lane>::default()));
        let flood = (0..FLOOD).map(|number| (flood, Arc::clone(&lanes[number % lanes.len()])));
        let mut clients = Vec::new();
        for (source, lane) in flood.chain([(newcomer, Arc::default())]) {
            let (doorway, served) = (Arc::clone(doorway), Arc::clone(&served));
            clients.push(tokio::spawn(async move {
                let turn = || served.fetch_add(1, Ordering::Relaxed);
                let work = std::pin::pin!(async { turn() });
                let worked = doorway.work((source, &lane), NOW, work).await;
                worked.expect("there is room").0
            }));
        }
        while doorway.inside.lock().queue.len() < lanes.len() + 1 {
            tokio::task::yield_now().await;
        }
        drop(held);
        let newcomer = clients.pop().expect("the last one").await;
        for client in clients {
            client.await.expect("no panic");
        }
        assert_eq!(served.load(Ordering::Relaxed), FLOOD + 1);
        assert_eq!(doorway.inside.lock().taken, 0);
        newcomer.expect("no panic")
    }

    #[test]
    fn no_client_is_of_the_source_of_token_reviews() {
        let doorway = doorway();
        let addresses = (0..=255).map(|last| Some(IpAddr::from([10, 0, 0, last])));
        for address in addresses.chain([None]) {
            assert_ne!(doorway.source(address), Credentials::NO_SOURCE);
        }
    }

    #[tokio::test]
    async fn a_newcomer_waits_for_the_places_and_not_for_the_flood_of_another_address() {
        let doorway = doorway();
        let sources = two_sources(&doorway);
        assert!(served_before(&doorway, sources, 300).await < 10);
    }

    #[tokio::test]
    async fn a_newcomer_waits_for_one_request_of_each_connection_of_its_address() {
        const CONNECTIONS: usize = 6;
        let before = served_before(&doorway(), [None; 2], CONNECTIONS).await;
        assert!(before < 3 * CONNECTIONS, "{before} of 300");
    }

    #[tokio::test]
    async fn newcomers_do_not_stand_still_where_very_many_planes_are_busy() {
        const PLANES: usize = 300;
        const PROOFS: usize = 20;
        let doorway = doorway();
        let turns = Arc::<AtomicUsize>::default();
        let busy = (0..PLANES).map(|_| {
            let (gate, turns) = (Arc::clone(&doorway.gate), Arc::clone(&turns));
            let plane = Arc::<PlaneMeter>::default();
            tokio::spawn(async move {
                loop {
                    gate.enter(&plane, NOW()).await.end(200_000);
                    turns.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        });
        let busy = Vec::from_iter(busy);
        while doorway.gate.time().competing() < PLANES / 2 {
            tokio::task::yield_now().await;
        }
        let before = turns.load(Ordering::Relaxed);
        for _ in 0..PROOFS {
            // As long as a proof takes, at least.
            let proof = std::pin::pin!(async {
                let began = std::time::Instant::now();
                while began.elapsed() < std::time::Duration::from_micros(500) {}
            });
            doorway
                .work((None, &Lane::default()), NOW, proof)
                .await
                .expect("there is room");
        }
        let meanwhile = turns.load(Ordering::Relaxed) - before;
        // With the share of one plane the proofs would wait for more than ten times as many.
        assert!(meanwhile < PROOFS * PLANES / 4, "{meanwhile} turns");
        busy.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn what_waits_of_one_source_is_bounded_and_shuts_nobody_else_out() {
        let doorway = doorway();
        let [flood, other] = two_sources(&doorway);
        let (flood, other) = (doorway.source(flood), doorway.source(other));
        let held = [doorway.enter(flood).await, doorway.enter(flood).await];
        let mut waiting = Vec::new();
        for _ in 0..WAITING_MAX {
            let mut enter = Box::pin(doorway.enter(flood));
            assert!(enter.as_mut().now_or_never().is_none());
            waiting.push(enter);
        }
        assert_eq!(doorway.enter(flood).await.err(), Some(Crowded));
        let mut newcomer = Box::pin(doorway.enter(other));
        assert!(newcomer.as_mut().now_or_never().is_none());
        // Those that go away make room.
        drop(waiting);
        drop(held);
        assert!(newcomer.await.is_ok());
        assert!(doorway.enter(flood).await.is_ok());
        assert_eq!(doorway.inside.lock().waiting, [0; SOURCES]);
        assert_eq!(doorway.inside.lock().taken, 0);
    }

    #[tokio::test]
    async fn who_waits_for_the_network_holds_no_place() {
        let doorway = doorway();
        let (sender, receiver) = oneshot::channel();
        let slow = {
            let doorway = Arc::clone(&doorway);
            tokio::spawn(async move { doorway.work((None, &Lane::default()), NOW, receiver).await })
        };
        tokio::task::yield_now().await;
        assert_eq!(doorway.inside.lock().taken, 0);
        assert!(
            doorway
                .work((None, &Lane::default()), NOW, std::future::ready(1))
                .await
                .is_ok()
        );
        sender.send(7).expect("it waits");
        let (done, _) = slow.await.expect("no panic").expect("there is room");
        assert_eq!(done, Ok(7));
    }

    #[test]
    fn an_address_of_ipv6_cannot_choose_its_flow() {
        let doorway = doorway();
        let flow = |text: &str| doorway.source(text.parse().ok());
        assert_eq!(flow("2001:db8::1"), flow("2001:db8::ffff:1"));
        assert_eq!(flow("::ffff:10.0.0.1"), flow("10.0.0.1"));
    }
}

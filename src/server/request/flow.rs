//! Priority and fairness inside a plane, at its owner: which flow schema a request belongs to, and when
//! its priority level has seats for it.
//!
//! What is decided is in [`polyplane_fairness::levels`]; this file has the state of all planes, the
//! requests that wait, and the headers. A plane has state here only while it has requests in flight. It
//! is found by the address of the plane's meter, which these requests hold, so that an idle plane costs
//! nothing, and one with seats to spare a short lock.
//!
//! A request that waits has read no body and keeps its seat at the replica, so that the requests that
//! wait are bounded as those in flight are, and each plane's part of them. It waits for at most a quarter
//! of its time. As upstream, a watch leaves its seats after its initial events (`beginning`), and tunnels
//! take none. Unlike upstream, a change takes no seats for the time in which watchers get its event: frames
//! are made once for all watchers, and their cost is charged to the plane.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Uri};
use parking_lot::Mutex;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{Attributes, UserInfo};
use polyplane_fairness::PlaneMeter;
use polyplane_fairness::levels::{
    Arrival, Dispatcher, Left, LevelKind, Levels, Rejection, RejectionReason, Ticket,
};
use polyplane_plane::Snapshot;
use polyplane_registry::flows::{self, FlowClass};
use polyplane_registry::request::parameters::{RESOURCE_VERSION, SEND_INITIAL_EVENTS};
use polyplane_registry::{AnswerBody, Verb};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::answer::respond::Refusal;
use crate::backend::PlaneApi;
use crate::operations::flow_metrics::{FlowMetrics, FlowSeries, Reason};
use crate::pipeline::Pipeline;
use crate::request::authorize::Requested;
use crate::request::beginning::Beginning;
use crate::request::charge::charged;
use crate::request::request_info::RequestInfo;
use crate::request::seats::Seats;
use crate::server_state::ServerState;

/// Number of parts of the state, each with a lock of its own.
const SHARDS: usize = 64;
/// Groups of pairs of uids that are kept as headers. A pair has its place in one of them.
const UID_GROUPS: usize = 2048;
/// Pairs in one group, at most. The oldest makes room for a new one. With fewer, busy planes whose pairs
/// meet in a group would take them from each other, and look theirs up for each request: of two objects,
/// which costs as much as a read.
const UIDS_IN_GROUP: usize = 4;
/// Requests for which an idle plane's memory has room that is kept for the next plane, at most.
const SPARE_MAX: usize = 64;
/// Longest time for which a request waits for seats.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The uids of a flow schema and of its priority level, as headers.
pub(crate) type FlowUids = [HeaderValue; 2];

/// The requests of all planes by priority level.
#[derive(Debug)]
pub(crate) struct Flows {
    /// The seats of each plane; `None` if there is no priority and fairness.
    seats: Option<u32>,
    shards: Box<[Mutex<Shard>]>,
    uids: Box<[Mutex<VecDeque<KnownUids>>]>,
    hasher: RandomState,
    pub(crate) metrics: FlowMetrics,
}

#[derive(Debug, Default)]
struct Shard {
    /// The planes with requests, by the address of their meter.
    planes: HashMap<usize, Dispatcher<FlowRequest>>,
    /// The memory of the last plane that became idle, for the next one that does not stay so.
    spare: Option<Dispatcher<FlowRequest>>,
}

/// The uids of a class in one plane.
#[derive(Debug)]
struct KnownUids {
    /// The number of the plane as it was opened.
    plane: u64,
    /// Held so that no other class gets its address.
    class: Arc<FlowClass>,
    uids: FlowUids,
}

/// What is kept with a request while it is in flight or waits.
#[derive(Debug)]
pub(crate) struct FlowRequest {
    pub(crate) class: Arc<FlowClass>,
    pub(crate) user: Arc<UserInfo>,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    /// Tells the request that it may go on.
    wake: Option<oneshot::Sender<()>>,
}

/// What a request is classified as, and its seats.
#[derive(Debug, Default)]
pub(crate) struct FlowPlace {
    pub(crate) uids: Option<FlowUids>,
    pub(crate) seat: Option<Arc<FlowSeat>>,
    /// How long the request has waited for its seats.
    pub(crate) queued: Duration,
}

/// The seats of a request at its priority level. Dropping it ends the request there.
pub(crate) struct FlowSeat {
    state: Arc<ServerState>,
    meter: Arc<PlaneMeter>,
    /// `None` once the request has waited in vain.
    ticket: Option<Ticket>,
    series: FlowSeries,
    seats: u32,
    is_waiting: bool,
}

/// The seats of a request at the replica and at its priority level, as the registry leaves them.
#[derive(Debug)]
pub(crate) struct BothSeats {
    pub(crate) outer: Arc<Seats>,
    pub(crate) flow: Arc<FlowSeat>,
}

/// A classified request.
struct Classified {
    class: Arc<FlowClass>,
    levels: Arc<Levels>,
    uids: FlowUids,
    hash: u64,
    seats: u32,
}

impl fmt::Debug for FlowSeat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seat = out.debug_struct("FlowSeat");
        seat.field("ticket", &self.ticket);
        seat.field("seats", &self.seats).finish_non_exhaustive()
    }
}

fn wake(request: &mut FlowRequest) {
    if let Some(sender) = request.wake.take() {
        // A request that is gone gives its seats back by itself.
        let _ = sender.send(());
    }
}

impl Flows {
    /// Creates the state of a server with one plane, or with many.
    pub(crate) fn new(seats: Option<u32>, is_single: bool) -> Self {
        Self {
            seats,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            uids: (0..UID_GROUPS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            metrics: FlowMetrics::new(is_single),
        }
    }

    pub(crate) fn seats(&self) -> Option<u32> {
        self.seats
    }

    /// Calls `read` with the state of a plane; `None` if it has no requests.
    pub(crate) fn of_plane<R>(
        &self,
        meter: &Arc<PlaneMeter>,
        read: impl FnOnce(Option<&Dispatcher<FlowRequest>>) -> R,
    ) -> R {
        let key = Arc::as_ptr(meter).addr();
        read(self.shard(key).lock().planes.get(&key))
    }

    /// Calls `visit` with the state of each plane that has requests.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&Dispatcher<FlowRequest>)) {
        for shard in &self.shards {
            shard.lock().planes.values().for_each(&mut visit);
        }
    }

    fn shard(&self, key: usize) -> &Mutex<Shard> {
        // The lowest bits of an address say nothing.
        let mixed = (key as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.shards[usize::try_from(mixed).unwrap_or(0) % SHARDS]
    }

    /// Calls `change` with the state of a plane, which it makes if need be and takes away if the plane has
    /// become idle.
    fn change<R>(
        &self,
        meter: &Arc<PlaneMeter>,
        change: impl FnOnce(&mut Dispatcher<FlowRequest>) -> R,
    ) -> R {
        let key = Arc::as_ptr(meter).addr();
        let mut shard = self.shard(key).lock();
        let Shard { planes, spare } = &mut *shard;
        let seats = self.seats.unwrap_or(0);
        let plane = planes
            .entry(key)
            .or_insert_with(|| spare.take().unwrap_or_else(|| Dispatcher::new(seats)));
        let changed = change(plane);
        if plane.is_idle() {
            let idle = planes.remove(&key);
            *spare = idle.filter(|plane| plane.capacity() <= SPARE_MAX);
        }
        changed
    }

    /// Returns the uids of a class in the plane of a cut, as headers.
    fn uids(&self, cut: &Snapshot, class: &Arc<FlowClass>) -> FlowUids {
        let plane = cut.plane_number();
        let place = self.hasher.hash_one((plane, Arc::as_ptr(class).addr()));
        let place = usize::try_from(place % UID_GROUPS as u64).unwrap_or(0);
        let mut group = self.uids[place].lock();
        let is_same = |known: &&KnownUids| known.plane == plane && Arc::ptr_eq(&known.class, class);
        if let Some(known) = group.iter().find(is_same) {
            return known.uids.clone();
        }
        let none = HeaderValue::from_static("");
        let header = |uid: &str| HeaderValue::from_str(uid).unwrap_or_else(|_| none.clone());
        let uids = class.uids(cut).each_ref().map(|uid| header(uid));
        if group.len() >= UIDS_IN_GROUP {
            group.pop_front();
        }
        group.push_back(KnownUids {
            plane,
            class: Arc::clone(class),
            uids: uids.clone(),
        });
        uids
    }
}

impl Pipeline<'_> {
    /// Classifies a request, and waits for seats of its priority level.
    ///
    /// # Errors
    /// Returns 429 if the level has no seats in time.
    ///
    /// # Cancel safety
    /// Dropping the future takes the request out of its queue.
    pub(crate) async fn take_flow_seat(
        &mut self,
        plane: &dyn PlaneApi,
        meter: &Arc<PlaneMeter>,
        user: &Arc<UserInfo>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let Some(classified) = self.classify(plane, user) else {
            return Ok(());
        };
        self.flow.uids = Some(classified.uids.clone());
        let metrics = &self.state.flows.metrics;
        let series = metrics.series(&classified.class);
        let entered = self.enter(meter, user, &classified);
        let (ticket, receiver) = entered.map_err(|rejection| {
            let reason = match rejection.reason {
                RejectionReason::ConcurrencyLimit => Reason::ConcurrencyLimit,
                RejectionReason::QueueFull => Reason::QueueFull,
            };
            metrics.rejected(&series, reason);
            metrics.waited(&series, false, Duration::ZERO);
            Refusal::Busy(rejection.retry_after_seconds)
        })?;
        let mut seat = FlowSeat {
            state: Arc::clone(self.state),
            meter: Arc::clone(meter),
            ticket: Some(ticket),
            series: series.clone(),
            seats: classified.seats,
            is_waiting: receiver.is_some(),
        };
        let mut waited = Duration::ZERO;
        if let Some(receiver) = receiver {
            metrics.queued(&series, seat.seats, 1);
            let began = Instant::now();
            let received = Self::until(self.wait_end(deadline), receiver).await;
            waited = began.elapsed();
            self.flow.queued = waited;
            if !received && let Some(seconds) = seat.give_up() {
                metrics.waited(&series, false, waited);
                return Err(Refusal::Busy(seconds));
            }
            seat.is_waiting = false;
            metrics.queued(&series, seat.seats, -1);
        }
        metrics.dispatched(&series, seat.seats);
        if classified.class.level().kind != LevelKind::Exempt {
            metrics.waited(&series, true, waited);
        }
        self.flow.seat = Some(Arc::new(seat));
        Ok(())
    }

    /// Waits until the request may go on, at most until a time. Returns whether it may.
    async fn until(end: Instant, receiver: oneshot::Receiver<()>) -> bool {
        tokio::time::timeout_at(end, receiver).await.is_ok()
    }

    /// Returns until when the request may wait: for a quarter of its time.
    fn wait_end(&self, deadline: Instant) -> Instant {
        let began = Instant::from_std(self.started);
        let whole = deadline.saturating_duration_since(began);
        began + (whole / 4).min(WAIT_MAX)
    }

    fn enter(
        &self,
        meter: &Arc<PlaneMeter>,
        user: &Arc<UserInfo>,
        classified: &Classified,
    ) -> Result<(Ticket, Option<oneshot::Receiver<()>>), Rejection> {
        let request = FlowRequest {
            class: Arc::clone(&classified.class),
            user: Arc::clone(user),
            method: self.parts.method.clone(),
            uri: self.parts.uri.clone(),
            wake: None,
        };
        let arrival = Arrival {
            config: &classified.levels,
            level: classified.class.level(),
            hash: classified.hash,
            seats: classified.seats,
        };
        let now = self.state.now();
        self.state.flows.change(meter, |plane| {
            let (ticket, goes_on) = plane.enter(now, arrival, request, &mut wake)?;
            let waits = (!goes_on).then(oneshot::channel);
            let receiver = waits.and_then(|(sender, receiver)| {
                plane.kept_mut(ticket)?.wake = Some(sender);
                Some(receiver)
            });
            Ok((ticket, receiver))
        })
    }

    /// Returns what a request is classified as; `None` for one that takes no seats.
    fn classify(&self, plane: &dyn PlaneApi, user: &UserInfo) -> Option<Classified> {
        let flows = &self.state.flows;
        let plane_seats = flows.seats?;
        if let RequestInfo::Resource(info) = self.info
            && info.is_long_running()
            && info.verb != Some(Verb::Watch)
        {
            return None;
        }
        let cut = plane.state()?;
        let requested = Requested::of(self.info, self.query, &self.parts.method);
        let attributes = Attributes {
            user,
            verb: &requested.verb,
            subject: requested.subject(),
        };
        let index = flows::index_of(&cut);
        let (class, levels) = (index.classify(&attributes), index.levels());
        let level = class.level();
        let hash = match level.kind {
            LevelKind::Queue(_) => {
                let namespace = match self.info {
                    RequestInfo::Resource(info) => info.namespace,
                    RequestInfo::Path(_) => "",
                };
                let flow = class.distinguisher(&user.name, namespace);
                flows.hasher.hash_one((class.schema(), flow))
            }
            LevelKind::Exempt | LevelKind::Reject => 0,
        };
        let seats = self.width(&cut, plane, &attributes);
        Some(Classified {
            uids: flows.uids(&cut, class),
            hash,
            seats: seats.min(levels.seats_per_request_max(level, plane_seats)),
            class: Arc::clone(class),
            levels: Arc::clone(levels),
        })
    }

    /// Lets an answer that is written piece by piece keep the seats of its request: a list to its end, and a
    /// watch until its initial events are written or its client does not read them.
    pub(crate) fn with_seats(&mut self, body: AnswerBody, meter: &Arc<PlaneMeter>) -> AnswerBody {
        match body {
            AnswerBody::Stream(stream) => {
                let seat = self.flow.seat.take();
                let coding = self.client.coding(None);
                AnswerBody::Stream(charged((stream, coding), self.state, meter, seat))
            }
            AnswerBody::Watch(stream) if self.begins_with_a_list() => {
                AnswerBody::Watch(match self.flow.seat.take() {
                    Some(seat) => Box::pin(Beginning::new(stream, seat)),
                    None => stream,
                })
            }
            other => other,
        }
    }

    /// Returns whether the request lists a collection, or is a watch that begins with its objects.
    fn begins_with_a_list(&self) -> bool {
        let RequestInfo::Resource(info) = self.info else {
            return false;
        };
        match info.verb {
            Some(Verb::List) => true,
            Some(Verb::Watch) => {
                let begins_anew = matches!(RESOURCE_VERSION.read(self.query), "" | "0");
                begins_anew || SEND_INITIAL_EVENTS.read(self.query) == Some(true)
            }
            _ => false,
        }
    }

    /// Returns the seats of a request, before its level limits them.
    fn width(&self, cut: &Snapshot, plane: &dyn PlaneApi, attributes: &Attributes<'_>) -> u32 {
        if !self.begins_with_a_list() {
            return 1;
        }
        flows::seats_of_list(cut, &plane.kinds(), attributes.subject, self.query)
    }
}

impl FlowSeat {
    /// Takes the request out of its queue. Returns after how many seconds its client may retry; `None` if
    /// it may go on after all.
    fn give_up(&mut self) -> Option<u32> {
        let now = self.state.now();
        let ticket = self.ticket?;
        let seconds = self.state.flows.change(&self.meter, |plane| {
            if !plane.is_waiting(ticket) {
                return None;
            }
            plane.leave(now, ticket, Left::TimedOut, &mut wake)
        })?;
        self.ticket = None;
        let metrics = &self.state.flows.metrics;
        metrics.rejected(&self.series, Reason::TimeOut);
        Some(seconds)
    }
}

impl Drop for FlowSeat {
    fn drop(&mut self) {
        let now = self.state.now();
        let flows = &self.state.flows;
        let left = self.ticket.and_then(|ticket| {
            flows.change(&self.meter, |plane| {
                plane.leave(now, ticket, Left::Cancelled, &mut wake)
            })
        });
        match self.is_waiting {
            true => {
                flows.metrics.queued(&self.series, self.seats, -1);
                if left.is_some() {
                    flows.metrics.rejected(&self.series, Reason::Cancelled);
                }
            }
            false => flows.metrics.ended(&self.series, self.seats),
        }
    }
}

impl polyplane_registry::Seats for BothSeats {
    fn leave(&self) -> Result<(), ApiError> {
        polyplane_registry::Seats::leave(&*self.outer)?;
        let seat = &*self.flow;
        if let Some(ticket) = seat.ticket {
            let (now, flows) = (seat.state.now(), &seat.state.flows);
            flows.change(&seat.meter, |plane| plane.stand(now, ticket, &mut wake));
        }
        Ok(())
    }

    fn return_to(&self) {
        polyplane_registry::Seats::return_to(&*self.outer);
        let seat = &*self.flow;
        if let Some(ticket) = seat.ticket {
            let (now, flows) = (seat.state.now(), &seat.state.flows);
            flows.change(&seat.meter, |plane| plane.sit(now, ticket));
        }
    }
}

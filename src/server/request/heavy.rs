//! Work that may take a thread for milliseconds: a large body, or a short one that may say much (YAML with
//! anchors, a JSON patch that copies); large objects that a request changes, deletes or shows in another form; the
//! OpenAPI documents of many definitions; and, for a while, all work of a plane of which some took long.
//!
//! On a worker thread, everything that waits in that thread's queue would wait for it: requests of
//! other planes, their connections, renewals of leases. So each poll of such work is done *aside*: the
//! runtime lets another thread go on with the queue meanwhile, and the kernel divides the CPUs between
//! them. While several planes use the replica, half as many polls as there are worker threads are done
//! aside at a time, so that the others have a CPU left; a plane alone may use all. [`Places`] are given
//! in the same virtual time as the gate's turns: a plane that sends large bodies goes behind the others
//! there too.
//!
//! A poll takes a place anew each time, so work that waits for the store or a webhook holds none.
//!
//! Which requests are heavy is known before they begin, from lengths, types of bodies and paths. A list needs no
//! such test: after about a millisecond of work it lets others go on.
//!
//! Invariant: a request with a small body, which cannot make much of it, for a small object comes here only if its plane
//! has held up a worker thread lately ([`PlaneMeter::note_stretch`]).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use polyplane_fairness::{CpuTimer, Place, Places, PlaneMeter, VirtualTime};
use polyplane_registry::{ResourceRequest, Verb};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::connection::requests::move_to_own_task;
use crate::operations::exposition::{Exposition, Kind};
use crate::request::charge::Charge;
use crate::request::doorway::woken;

/// Bytes of a body from which on its work is done aside: about a quarter of a millisecond of it. With
/// more, such a body would hold up a worker thread; with less, changing threads would cost a good part of
/// what the work does.
pub(crate) const HEAVY_BYTES: usize = 32 << 10;
/// How many times as many polls as there are places may be done aside once a plane has had no place for a second. With
/// more, long work would leave little of the CPUs to short work; with fewer, work that does not end would hold up planes
/// that have none.
const ASIDE_TIMES_MAX: usize = 3;

/// The places for heavy work.
#[derive(Debug)]
pub(crate) struct HeavyWork {
    workers: usize,
    places: Arc<Places>,
    /// Polls that were done aside.
    done: AtomicU64,
}

/// Lets another thread go on with the tasks that wait for this one. A runtime of one thread has no other.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    let has_workers = |runtime: Handle| runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
    if Handle::try_current().is_ok_and(has_workers) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// Polls the work on this thread, without the tasks that wait for it, and charges what that cost.
fn poll<F: Future>(
    mut place: Place,
    charge: &Charge<'_>,
    work: Pin<&mut F>,
    context: &mut Context<'_>,
) -> Poll<F::Output> {
    let timer = CpuTimer::start(charge.precision());
    let polled = aside(|| work.poll(context));
    let spent = timer.stop();
    charge.aside(spent);
    place.charge_actual(spent.cpu_nanos);
    polled
}

impl HeavyWork {
    /// Creates the places for a runtime with this many worker threads. `time` is that of the gate.
    pub(crate) fn new(time: &Arc<VirtualTime>, workers: usize) -> Self {
        Self {
            workers: workers.max(1),
            places: Places::new(Arc::clone(time), ASIDE_TIMES_MAX),
            done: AtomicU64::new(0),
        }
    }

    /// Carries out the work of a plane, and returns its result. `is_shared` returns whether other planes
    /// use the replica too.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and leaves its place to the next one.
    pub(crate) async fn carry_out<F: Future + Unpin>(
        &self,
        meter: &Arc<PlaneMeter>,
        charge: &Charge<'_>,
        is_shared: impl Fn() -> bool,
        mut work: F,
    ) -> F::Output {
        move_to_own_task().await;
        loop {
            let places = match is_shared() {
                true => self.workers.div_ceil(2),
                false => self.workers,
            };
            let mut place = Some(self.places.enter(meter, places).await);
            self.done.fetch_add(1, Ordering::Relaxed);
            let polled = poll_fn(|context| {
                let place = place
                    .take()
                    .expect("this future is ready at its first poll");
                Poll::Ready(poll(place, charge, Pin::new(&mut work), context))
            });
            match polled.await {
                Poll::Ready(done) => return done,
                Poll::Pending => woken().await,
            }
        }
    }

    pub(crate) fn expose(&self, out: &mut Exposition) {
        let name = "polyplane_heavy_work_queued";
        let help = "Requests that wait for a thread because they, or others of their plane lately, take it for long.";
        out.family(name, Kind::Gauge, help);
        out.sample(name, &[], self.places.waiting());
        let name = "polyplane_heavy_work_total";
        let help = "Polls that were done aside because their requests, or others of the plane lately, take a thread for long.";
        out.family(name, Kind::Counter, help);
        out.sample(name, &[], self.done.load(Ordering::Relaxed));
    }
}

/// Returns whether the work of a request is heavy. `object_bytes` returns the length of the objects that it
/// reads; it is called only for requests whose work depends on it.
pub(crate) fn is_heavy(request: &ResourceRequest, object_bytes: impl FnOnce() -> usize) -> bool {
    let (body, content_type) = (&request.body, request.content_type.as_deref());
    // A scale is made of the whole object.
    let reads_objects = request.subresource.as_deref() == Some("scale")
        || reads_objects(request.verb, request.name.is_some(), &request.accept);
    body.len() >= HEAVY_BYTES
        || content_type.is_some_and(|content_type| may_grow(content_type, body))
        || reads_objects && object_bytes() >= HEAVY_BYTES
}

/// Returns whether a short body may say much: parts of YAML may stand in many places, and a JSON patch may copy.
fn may_grow(content_type: &str, body: &[u8]) -> bool {
    // First, as most bodies are of this type.
    if content_type == "application/json" {
        return false;
    }
    let media = content_type.split(';').next().unwrap_or("").trim();
    if media == "application/json-patch+json" {
        // The name of an operation may be written with escapes.
        return body.contains(&b'\\') || body.windows(4).any(|letters| letters == b"copy");
    }
    let syntax = media.as_bytes().last_chunk::<4>();
    syntax.is_some_and(|syntax| syntax.eq_ignore_ascii_case(b"yaml")) && body.contains(&b'&')
}

/// Returns whether a request reads objects and does more with them than to send them as they are stored.
fn reads_objects(verb: Verb, has_name: bool, accept: &str) -> bool {
    match verb {
        Verb::Get => [";", "yaml", "protobuf"]
            .iter()
            .any(|form| accept.contains(form)),
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => has_name,
        Verb::DeleteCollection => true,
        Verb::List | Verb::Watch | Verb::Connect => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::charge::LongPolls;
    use crate::request::turn::Gate;
    use parking_lot::Mutex;
    use std::sync::mpsc;
    use std::time::Duration;
    use tokio::sync::oneshot;

    fn meters() -> [Arc<PlaneMeter>; 2] {
        [Arc::default(), Arc::default()]
    }

    fn heavy() -> Arc<HeavyWork> {
        Arc::new(HeavyWork::new(&Arc::default(), 2))
    }

    /// Carries out `work`, which is done at its first poll.
    async fn carry_out<T: Unpin>(
        heavy: &Arc<HeavyWork>,
        meter: &Arc<PlaneMeter>,
        work: impl FnOnce() -> T + Unpin,
    ) -> T {
        let (unproven, long) = (PlaneMeter::default(), LongPolls::default());
        let mut work = Some(work);
        let once = poll_fn(|_| Poll::Ready(work.take().map(|work| work())));
        let gate = Gate::new(1, Arc::default());
        let charge = Charge::new(&unproven, &long, &gate);
        let done = heavy.carry_out(meter, &charge, || true, once).await;
        done.expect("it is polled once")
    }

    /// The only worker thread waits inside the heavy work for a task that waits in that thread's queue:
    /// without another thread neither would go on.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn tasks_of_a_worker_thread_do_not_wait_for_heavy_work() {
        let (heavy, [plane, _]) = (heavy(), meters());
        let (sender, receiver) = mpsc::channel();
        let heavy_task = tokio::spawn(async move {
            let small = tokio::spawn(async move { sender.send(()) });
            let wait = move || receiver.recv_timeout(Duration::from_secs(20));
            let waited = carry_out(&heavy, &plane, wait).await;
            drop(small.await);
            waited
        });
        assert_eq!(heavy_task.await.expect("no panic"), Ok(()));
    }

    #[tokio::test]
    async fn a_plane_with_one_large_body_does_not_wait_for_all_of_another() {
        let (heavy, [flood, modest]) = (heavy(), meters());
        let order: Arc<Mutex<Vec<usize>>> = Arc::default();
        let held = heavy.places.enter(&flood, 1).await;
        let planes = std::iter::repeat_n(&flood, 50).chain([&modest]);
        let tasks: Vec<_> = planes
            .enumerate()
            .map(|(at, meter)| {
                let (heavy, meter, order) =
                    (Arc::clone(&heavy), Arc::clone(meter), Arc::clone(&order));
                tokio::spawn(async move {
                    carry_out(&heavy, &meter, || order.lock().push(at)).await;
                })
            })
            .collect();
        while heavy.places.waiting() < 51 {
            tokio::task::yield_now().await;
        }
        drop(held);
        for task in tasks {
            task.await.expect("no panic");
        }
        let place = order.lock().iter().position(|at| *at == 50);
        assert!(place.is_some_and(|place| place < 5), "{place:?}");
        assert_eq!(heavy.places.taken(), 0);
    }

    #[tokio::test]
    async fn a_plane_alone_uses_all_places_and_planes_together_half_of_them() {
        let (heavy, [plane, other]) = (HeavyWork::new(&Arc::default(), 4), meters());
        let (unproven, long) = (PlaneMeter::default(), LongPolls::default());
        let gate = Gate::new(1, Arc::default());
        let charge = Charge::new(&unproven, &long, &gate);
        for (held, is_shared, goes_on) in [(1, true, true), (2, true, false), (3, false, true)] {
            let mut taken = Vec::new();
            for _ in 0..held {
                taken.push(heavy.places.enter(&plane, 4).await);
            }
            let work = std::future::ready(());
            let done = heavy.carry_out(&other, &charge, || is_shared, work);
            let mut done = Box::pin(done);
            assert_eq!(
                futures_util::poll!(done.as_mut()).is_ready(),
                goes_on,
                "{held}"
            );
        }
        assert_eq!(heavy.places.taken(), 0);
    }

    /// A client may reset its stream while the work runs. If another request took the place then, clients that
    /// send and reset would have any amount of work done at a time.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_whose_client_has_gone_keeps_its_place_to_its_end() {
        let (heavy, [plane, _]) = (heavy(), meters());
        let (begun, has_begun) = oneshot::channel();
        let (sender, receiver) = mpsc::channel();
        let task = {
            let (heavy, plane) = (Arc::clone(&heavy), Arc::clone(&plane));
            tokio::spawn(async move {
                let work = move || {
                    let _ = begun.send(());
                    receiver.recv_timeout(Duration::from_secs(20))
                };
                carry_out(&heavy, &plane, work).await
            })
        };
        has_begun.await.expect("the work runs");
        // As hyper does with the task of a stream that was reset.
        task.abort();
        assert_eq!(heavy.places.taken(), 1);
        sender.send(()).expect("the work goes on");
        drop(task.await);
        assert_eq!(heavy.places.taken(), 0);
    }

    #[tokio::test]
    async fn what_waits_for_others_holds_no_place() {
        let (heavy, [plane, _]) = (heavy(), meters());
        let (sender, receiver) = oneshot::channel();
        let slow = {
            let (heavy, plane) = (Arc::clone(&heavy), Arc::clone(&plane));
            tokio::spawn(async move {
                let (unproven, long) = (PlaneMeter::default(), LongPolls::default());
                let gate = Gate::new(1, Arc::default());
                let charge = Charge::new(&unproven, &long, &gate);
                heavy.carry_out(&plane, &charge, || true, receiver).await
            })
        };
        tokio::task::yield_now().await;
        assert_eq!(heavy.places.taken(), 0);
        assert_eq!(carry_out(&heavy, &plane, || 1).await, 1);
        sender.send(7).expect("it waits");
        assert_eq!(slow.await.expect("no panic"), Ok(7));
    }

    #[test]
    fn what_reads_objects_depends_on_their_size() {
        for (verb, has_name, accept, reads) in [
            (Verb::Get, true, "application/json", false),
            (Verb::Get, true, "application/yaml", true),
            (
                Verb::Get,
                true,
                "application/json;as=Table;v=v1;g=meta.k8s.io",
                true,
            ),
            (Verb::Get, true, "application/vnd.kubernetes.protobuf", true),
            (Verb::Create, false, "", false),
            (Verb::Create, true, "", true),
            (Verb::Patch, true, "", true),
            (Verb::Delete, true, "", true),
            (Verb::List, false, "application/yaml", false),
            (Verb::DeleteCollection, false, "", true),
        ] {
            assert_eq!(
                reads_objects(verb, has_name, accept),
                reads,
                "{verb:?} {accept}"
            );
        }
    }

    #[test]
    fn short_bodies_that_may_say_much_are_heavy() {
        const JSON_PATCH: &str = "application/json-patch+json";
        for (content_type, body, grows) in [
            (
                "application/json",
                r#"{"data":{"k":"copy & paste\n"}}"#,
                false,
            ),
            (
                JSON_PATCH,
                r#"[{"op":"add","path":"/a","value":"b"}]"#,
                false,
            ),
            (
                JSON_PATCH,
                r#"[{"op":"copy","from":"/a","path":"/b"}]"#,
                true,
            ),
            (
                JSON_PATCH,
                r#"[{"op":"c\u006fpy","from":"/a","path":"/b"}]"#,
                true,
            ),
            ("application/apply-patch+yaml", "data: {k: v}", false),
            (
                "application/apply-patch+yaml",
                "data: {k: &a [], l: *a}",
                true,
            ),
            (
                "Application/YAML; charset=utf-8",
                "data: {k: &a [], l: *a}",
                true,
            ),
            ("application/vnd.kubernetes.protobuf", "k8s\0&\\copy", false),
            ("", "&", false),
        ] {
            let found = may_grow(content_type, body.as_bytes());
            assert_eq!(found, grows, "{content_type} {body}");
        }
    }
}

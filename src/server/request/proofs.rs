//! Bounds the proofs that wait: for the owner of a plane, or for a plane that wakes.
//!
//! Unproven work takes turns in the [doorway](super::doorway), but who waits there for something else holds
//! no place in it, so the number of those is bounded here: for each plane, for all, and for each source
//! address a part of both, so that a flood from one address leaves room for others.
//!
//! A proof gives its place back when it is woken, before it waits in the doorway for its next poll. Otherwise
//! a flood that waits there would hold places as long as it likes, although nobody is asked for it any more.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use polyplane_apimachinery::Str;

use crate::request::doorway::Source;

/// Proofs of one plane that wait at a time. With more, strangers at one plane could keep the clients of
/// others out; with fewer, nodes that join at once would have to try again.
const OF_PLANE_MAX: usize = 64;
/// Proofs of one plane and one source that wait at a time. With more, a few addresses could keep all others
/// out of the plane; with fewer, nodes behind one address that join at once would have to try again.
const OF_SOURCE_AT_PLANE_MAX: usize = OF_PLANE_MAX / 4;
/// Proofs of all planes that wait at a time. With more, strangers could fill memory and the links to peers.
const ALL_MAX: usize = 1024;
/// Proofs of one source, at all planes, that wait at a time. With more, a few addresses could keep all others
/// out of every plane.
const OF_SOURCE_MAX: usize = ALL_MAX / 4;

/// The proofs that wait, counted by group, without the groups of which none waits.
#[derive(Debug, Default)]
pub(crate) struct Proofs(Mutex<HashMap<Group, usize>>);

/// Proofs that one bound is for. A plane is named by its id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Group {
    All,
    OfSource(Source),
    OfPlane(Str),
    OfSourceAtPlane(Source, Str),
}

impl Group {
    fn max(&self) -> usize {
        match self {
            Self::All => ALL_MAX,
            Self::OfSource(_) => OF_SOURCE_MAX,
            Self::OfPlane(_) => OF_PLANE_MAX,
            Self::OfSourceAtPlane(..) => OF_SOURCE_AT_PLANE_MAX,
        }
    }
}

/// A proof that waits, until this is dropped.
#[derive(Debug)]
struct WaitingProof {
    proofs: Arc<Proofs>,
    groups: [Group; 4],
}

impl Proofs {
    /// Carries out a proof for a plane. The proof holds a place while it waits, until it is woken. Returns
    /// `None` if it has to wait and too many do; the proof is not begun then, or is to be dropped.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the place to another proof.
    pub(crate) async fn wait<F: Future>(
        self: &Arc<Self>,
        plane: &str,
        source: Source,
        mut proof: Pin<&mut F>,
    ) -> Option<F::Output> {
        let place = LeftAtEnd(Arc::default());
        let waker = Waker::from(Arc::clone(&place.0));
        let mut has_begun = false;
        poll_fn(|context| {
            place.0.task.register(context.waker());
            let has_place = place.0.hold(|| self.begin(plane, source));
            // Once begun, the proof is polled without a place too, because its answer may be there.
            if !has_place && !has_begun {
                return Poll::Ready(None);
            }
            has_begun = true;
            match proof.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending if has_place => Poll::Pending,
                Poll::Pending => Poll::Ready(None),
            }
        })
        .await
    }

    /// Returns how many wait.
    pub(crate) fn waiting(&self) -> usize {
        let counts = self.0.lock();
        counts.get(&Group::All).copied().unwrap_or_default()
    }

    /// Counts a proof for a plane; returns `None` if too many wait.
    fn begin(self: &Arc<Self>, plane: &str, source: Source) -> Option<WaitingProof> {
        let groups = [
            Group::All,
            Group::OfSource(source),
            Group::OfPlane(plane.into()),
            Group::OfSourceAtPlane(source, plane.into()),
        ];
        let mut counts = self.0.lock();
        let is_full = |group: &Group| counts.get(group).is_some_and(|count| *count >= group.max());
        if groups.iter().any(is_full) {
            return None;
        }
        for group in &groups {
            *counts.entry(group.clone()).or_default() += 1;
        }
        drop(counts);
        Some(WaitingProof {
            proofs: Arc::clone(self),
            groups,
        })
    }
}

impl Drop for WaitingProof {
    fn drop(&mut self) {
        let mut counts = self.proofs.0.lock();
        for group in &self.groups {
            if let Some(count) = counts.get_mut(group) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(group);
                }
            }
        }
    }
}

/// The place of one proof. As the waker of the proof it gives the place back.
#[derive(Debug, Default)]
struct Place {
    /// `None` while the proof does not wait.
    held: Mutex<Option<WaitingProof>>,
    /// Wakes the task of the proof.
    task: AtomicWaker,
}

impl Place {
    /// Takes the place unless it is held, and returns whether it is held now.
    fn hold(&self, begin: impl FnOnce() -> Option<WaitingProof>) -> bool {
        let mut held = self.held.lock();
        if held.is_none() {
            *held = begin();
        }
        held.is_some()
    }

    fn leave(&self) {
        let left = self.held.lock().take();
        drop(left);
    }
}

impl Wake for Place {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.leave();
        self.task.wake();
    }
}

/// Gives the place back when the proof ends or its caller goes away. What the proof has waited for may
/// keep the waker for longer.
struct LeftAtEnd(Arc<Place>);

impl Drop for LeftAtEnd {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    fn source(number: u32) -> Source {
        Source::of(Some(IpAddr::from(Ipv4Addr::from(number))))
    }

    /// Returns as many proofs of the plane as can wait, each from another source.
    fn fill(proofs: &Arc<Proofs>, plane: &str) -> Vec<WaitingProof> {
        let sources = (1000..).take(OF_PLANE_MAX + 5).map(source);
        Vec::from_iter(sources.filter_map(|source| proofs.begin(plane, source)))
    }

    #[test]
    fn proofs_that_wait_are_bounded_for_a_plane_and_for_all_and_leave_nothing_behind() {
        let proofs = Arc::<Proofs>::default();
        let of_one = fill(&proofs, "one");
        assert_eq!(of_one.len(), OF_PLANE_MAX);
        let others = (0..)
            .take(ALL_MAX)
            .map(|number| (format!("plane-{number}"), source(number)));
        let others = others.filter_map(|(plane, source)| proofs.begin(&plane, source));
        let others = Vec::from_iter(others);
        assert_eq!(of_one.len() + others.len(), ALL_MAX);
        drop(of_one);
        assert!(proofs.begin("one", source(1)).is_some());
        drop(others);
        assert_eq!(proofs.waiting(), 0);
        assert!(proofs.0.lock().is_empty());
    }

    #[test]
    fn one_source_cannot_take_the_last_places_of_a_plane_or_of_all() {
        let proofs = Arc::<Proofs>::default();
        let (flood, other) = (source(1), source(2));
        let at_one = (0..OF_PLANE_MAX).filter_map(|_| proofs.begin("one", flood));
        let at_one = Vec::from_iter(at_one);
        assert_eq!(at_one.len(), OF_SOURCE_AT_PLANE_MAX);
        assert!(proofs.begin("one", other).is_some());
        let elsewhere = (0..ALL_MAX).map(|number| format!("plane-{number}"));
        let elsewhere = elsewhere.filter_map(|plane| proofs.begin(&plane, flood));
        let elsewhere = Vec::from_iter(elsewhere);
        assert_eq!(at_one.len() + elsewhere.len(), OF_SOURCE_MAX);
        assert!(proofs.begin("one", other).is_some());
        // What ends makes room for the same source.
        drop(at_one);
        assert!(proofs.begin("one", flood).is_some());
    }

    #[test]
    fn a_place_is_free_once_the_answer_is_there_and_the_answer_counts_without_one() {
        let proofs = Arc::<Proofs>::default();
        let (sender, mut answer) = oneshot::channel();
        let mut asking = Box::pin(proofs.wait("one", source(1), Pin::new(&mut answer)));
        assert!(asking.as_mut().now_or_never().is_none());
        assert_eq!(proofs.waiting(), 1);
        sender.send(7).expect("it waits");
        // Not polled yet, as if it had to wait in the doorway.
        assert_eq!(proofs.waiting(), 0);
        let others = fill(&proofs, "one");
        assert_eq!(others.len(), OF_PLANE_MAX);
        assert_eq!(asking.as_mut().now_or_never(), Some(Some(Ok(7))));
        assert_eq!(proofs.waiting(), OF_PLANE_MAX);
    }

    #[test]
    fn a_proof_that_waits_once_more_needs_a_place_again() {
        let proofs = Arc::<Proofs>::default();
        for is_full in [false, true] {
            let (first_sender, first) = oneshot::channel();
            let (_second_sender, second) = oneshot::channel::<()>();
            let mut proof = Box::pin(async {
                first.await.expect("it was sent");
                second.await
            });
            let mut asking = Box::pin(proofs.wait("one", source(1), proof.as_mut()));
            assert!(asking.as_mut().now_or_never().is_none());
            first_sender.send(()).expect("it waits");
            let others = match is_full {
                true => fill(&proofs, "one"),
                false => Vec::new(),
            };
            match is_full {
                true => assert_eq!(asking.as_mut().now_or_never(), Some(None)),
                false => {
                    assert!(asking.as_mut().now_or_never().is_none());
                    assert_eq!(proofs.waiting(), 1);
                }
            }
            // The caller goes away.
            drop(asking);
            assert_eq!(proofs.waiting(), others.len());
        }
    }
}

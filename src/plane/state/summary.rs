//! A summary of objects by their bodies, which each root carries: the index of roles is one.
//!
//! The embedder knows what a summary is: it passes a [`Summarize`] to [`crate::Plane::open`]. Unlike
//! an [`Index`](crate::Index) it is read as a whole, and unlike an [`Overlay`](crate::Overlay) it
//! follows from bodies. A root of the past has the summary of the newest one.
//!
//! Invariant: a summary is a pure function of the objects in its root, in whatever order they were
//! put and removed. Two roots share one summary only if no summarized object differs between them.

use std::any::Any;
use std::sync::Arc;

use crate::key::Key;

/// A summary of one root, which never changes.
pub type Summary = Arc<dyn Any + Send + Sync>;

/// Makes summaries. One for all planes of a process.
pub trait Summarize: Send + Sync + 'static {
    /// Returns whether objects of the key's resource belong to the summary.
    fn covers(&self, key: &Key) -> bool;

    /// Returns the summary of a root without objects.
    fn empty(&self) -> Summary;

    /// Returns the summary of the root in which one object has this body, or none any more. The
    /// body may lack `resourceVersion`. Runs inside the sequencer: it must be a pure function that
    /// never panics, and a change should cost what it changes, not what there is.
    fn next(&self, summary: &Summary, key: &Key, body: Option<&[u8]>) -> Summary;
}

/// What summarizes the objects of a plane, if anything does.
#[derive(Clone, Default)]
pub(crate) struct Summarizer(pub(crate) Option<Arc<dyn Summarize>>);

impl Summarizer {
    pub(crate) fn of(&self, key: &Key) -> Option<&dyn Summarize> {
        self.0.as_deref().filter(|summarize| summarize.covers(key))
    }

    pub(crate) fn empty(&self) -> Option<Summary> {
        self.0.as_deref().map(Summarize::empty)
    }

    /// Returns whether two are the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(two)) => std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(two)),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

/// Returns whether two summaries are one.
pub(crate) fn is_same(one: Option<&Summary>, two: Option<&Summary>) -> bool {
    match (one, two) {
        (Some(one), Some(two)) => std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(two)),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

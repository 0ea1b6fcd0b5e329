//! Who is told of what a plane publishes, whoever wrote it and whether or not the writer still waits.

use std::sync::Arc;

use crate::history::event::Event;
use crate::plane::Plane;

/// Told of every event that the plane's owner writes: commits of requests, of reconcilers, and of
/// layer steps.
pub trait Observer: Send + Sync + 'static {
    /// These events of one commit were just published. Called in the order of commits, on the way of
    /// the next one: must not wait.
    fn published(&self, plane: &Arc<Plane>, events: &[Arc<Event>]);
}

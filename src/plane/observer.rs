//! Notification of what a plane publishes, whether or not the caller of a write still waits.

use std::sync::Arc;

use crate::history::event::Event;
use crate::plane::Plane;

/// An observer that a plane notifies of every event its owner writes: commits of requests, of
/// reconcilers and of layer steps.
pub trait Observer: Send + Sync + 'static {
    /// Notifies the observer that the events of one commit were published. The plane calls this in
    /// the order of commits. The next commit waits for the return, so an implementation must not
    /// block.
    fn published(&self, plane: &Arc<Plane>, events: &[Arc<Event>]);
}

//! Notification of what a plane publishes, whether or not the caller of a write still waits.

use std::sync::Arc;

use crate::history::event::Event;
use crate::plane::Plane;

/// Is notified of every event that the plane's owner writes: commits of requests, of reconcilers and
/// of layer steps.
pub trait Observer: Send + Sync + 'static {
    /// The events of one commit were published. Called in the order of commits. The next commit waits
    /// for the return, so an implementation must not block.
    fn published(&self, plane: &Arc<Plane>, events: &[Arc<Event>]);
}

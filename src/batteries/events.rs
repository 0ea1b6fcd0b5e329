//! Behaviour of the kinds of `events.k8s.io`.
//!
//! The group is a second view of the Events that `core` stores.

use crate::battery::{Battery, Kind};
use crate::core::event::Event;
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "events.k8s.io",
    kinds: &[Kind::new("events", || Arc::new(Event::Events))],
    indexes: &[],
};

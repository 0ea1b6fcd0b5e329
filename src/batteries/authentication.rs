//! Behaviour of the kinds of `authentication.k8s.io`.
//!
//! Reviews are answered and never stored: no strategy prepares or validates them.

use crate::battery::{Battery, Kind};
use polyplane_registry::strategy::Plain;
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "authentication.k8s.io",
    kinds: &[
        Kind::new("selfsubjectreviews", || Arc::new(Plain)),
        Kind::new("tokenreviews", || Arc::new(Plain)),
    ],
    indexes: &[],
};

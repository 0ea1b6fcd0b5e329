//! Behaviour of the kinds of `authorization.k8s.io`.
//!
//! Reviews are answered and never stored: no strategy prepares or validates them.

use crate::battery::{Battery, Kind};
use polyplane_registry::strategy::Plain;
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "authorization.k8s.io",
    kinds: &[
        Kind::new("localsubjectaccessreviews", || Arc::new(Plain)),
        Kind::new("selfsubjectaccessreviews", || Arc::new(Plain)),
        Kind::new("selfsubjectrulesreviews", || Arc::new(Plain)),
        Kind::new("subjectaccessreviews", || Arc::new(Plain)),
    ],
    indexes: &[],
};

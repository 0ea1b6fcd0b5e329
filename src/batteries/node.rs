//! Behaviour of the kinds of `node.k8s.io`.

pub mod runtime_class;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "node.k8s.io",
    kinds: &[Kind::new("runtimeclasses", || {
        Arc::new(runtime_class::RuntimeClass)
    })],
    indexes: &[],
};

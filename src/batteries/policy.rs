//! Behaviour of the kinds of `policy`.

pub mod pod_disruption_budget;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "policy",
    kinds: &[Kind::new("poddisruptionbudgets", || {
        Arc::new(pod_disruption_budget::PodDisruptionBudget)
    })],
    indexes: &[],
};

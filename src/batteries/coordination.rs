//! Behaviour of the kinds of `coordination.k8s.io`.

pub mod lease;
pub mod lease_candidate;
mod semantic_version;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "coordination.k8s.io",
    kinds: &[
        Kind::new("leases", || Arc::new(lease::Lease)),
        Kind::new("leasecandidates", || {
            Arc::new(lease_candidate::LeaseCandidate)
        }),
    ],
    indexes: &[],
};

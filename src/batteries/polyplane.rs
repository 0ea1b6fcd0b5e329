//! Behaviour of the kinds of `polyplane.dev`.
//!
//! Only the root plane serves them. Their rows and schemas are written by hand in the form
//! of the generated ones.

pub mod access;
pub mod authentication;
pub mod control_plane;
pub mod controllers;
pub mod fence;
pub mod limits;
pub mod suspension;

use crate::battery::{Battery, Kind};
use polyplane_apimachinery::field_error::{FieldError, Path};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "polyplane.dev",
    kinds: &[
        Kind::new("controlplanes", || Arc::new(control_plane::ControlPlane)),
        Kind::new("fences", || Arc::new(fence::Fence)),
    ],
    indexes: &[|| Arc::new(control_plane::PlaneIds)],
};

/// Returns the refusal of a field that programs of an earlier release, which may still join the ring,
/// would ignore.
fn not_read_by_all(path: &Path) -> FieldError {
    let why = "replicas of an earlier release, which would ignore it, may still join the ring: \
               see `kubectl plane ring`, and its --raise-floor";
    FieldError::forbidden(path, why)
}

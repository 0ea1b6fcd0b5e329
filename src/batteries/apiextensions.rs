//! Behaviour of the kinds of `apiextensions.k8s.io`.

pub mod custom_resource_definition;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "apiextensions.k8s.io",
    kinds: &[Kind::new("customresourcedefinitions", || {
        Arc::new(custom_resource_definition::CustomResourceDefinition)
    })],
    indexes: &[|| Arc::new(custom_resource_definition::status::AcceptedNames)],
};

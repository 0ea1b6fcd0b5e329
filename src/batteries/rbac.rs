//! Behaviour of the kinds of `rbac.authorization.k8s.io`.

pub mod role;
pub mod role_binding;

use crate::battery::{Battery, Kind};
use polyplane_registry::Scope;
use role::Role;
use role_binding::RoleBinding;
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "rbac.authorization.k8s.io",
    kinds: &[
        Kind::new("roles", || {
            Arc::new(Role {
                scope: Scope::Namespaced,
            })
        }),
        Kind::new("clusterroles", || {
            Arc::new(Role {
                scope: Scope::Cluster,
            })
        }),
        Kind::new("rolebindings", || {
            Arc::new(RoleBinding {
                scope: Scope::Namespaced,
            })
        }),
        Kind::new("clusterrolebindings", || {
            Arc::new(RoleBinding {
                scope: Scope::Cluster,
            })
        }),
    ],
    indexes: &[],
};

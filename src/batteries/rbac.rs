//! Behaviour of the kinds of `rbac.authorization.k8s.io`.

pub mod role;
pub mod role_binding;

use polyplane_registry::Scope;
use polyplane_registry::Strategy;
use role::Role;
use role_binding::RoleBinding;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "roles" => Arc::new(Role {
            scope: Scope::Namespaced,
        }),
        "clusterroles" => Arc::new(Role {
            scope: Scope::Cluster,
        }),
        "rolebindings" => Arc::new(RoleBinding {
            scope: Scope::Namespaced,
        }),
        "clusterrolebindings" => Arc::new(RoleBinding {
            scope: Scope::Cluster,
        }),
        _ => return None,
    };
    Some(strategy)
}

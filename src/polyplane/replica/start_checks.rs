//! Health checks with the names that upstream gives to the parts of its start, for clients that wait for one of
//! them. This module does not know when a replica has started.
//!
//! What they promise is true of every plane: it is born with its roles, namespaces, priority classes, flow
//! schemas and APIServices of built-in groups, and it wakes with its definitions loaded. Parts that a plane does
//! not have, such as those of the aggregator, have no check.

use polyplane_server::{CheckScope, HealthCheck};
use std::iter;
use std::sync::Arc;

/// The names, in upstream's order.
const NAMES: [&str; 15] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kubernetes-service-cidr-controller",
    "autoregister-completion",
];

/// Returns the checks, which pass once the replica has started.
pub fn start_checks(has_started: impl Fn() -> bool + Send + Sync + 'static) -> Vec<HealthCheck> {
    let has_started = Arc::new(has_started);
    let check = |name, scope| {
        let has_started = Arc::clone(&has_started);
        HealthCheck {
            name,
            scope,
            check: Arc::new(move || match has_started() {
                true => Ok(()),
                false => Err("not finished".to_owned()),
            }),
        }
    };
    let synced = check("informer-sync", CheckScope::ReadyOnly);
    let others = NAMES.map(|name| check(name, CheckScope::Start));
    iter::once(synced).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn checks_of_the_start_pass_once_it_is_over() {
        let started = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&started);
        let checks = start_checks(move || seen.load(Ordering::SeqCst));
        let passing = || {
            checks
                .iter()
                .filter(|check| (check.check)().is_ok())
                .count()
        };
        assert_eq!(passing(), 0);
        started.store(true, Ordering::SeqCst);
        assert_eq!(passing(), NAMES.len() + 1);
    }
}

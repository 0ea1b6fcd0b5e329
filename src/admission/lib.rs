//! The built-in admission plug-ins: those that upstream has on by default, in upstream's order.
//!
//! A plug-in sees one write and the state that the write is prepared against, and changes the
//! object, refuses it, or names the facts that the write rests on. It does no I/O and keeps
//! nothing between two writes. Webhooks and policies are not here; they join the same chain. What a file
//! says about plug-ins is an [`AdmissionConfig`].
//!
//! Invariant: what a plug-in adds to an object is complete, so the chain needs no second round of
//! defaults ([`Mutated::Completed`](polyplane_registry::plan::Mutated)).

mod certificates;
mod config;
mod ingress_class;
mod limit_ranger;
mod node_declared_features;
mod node_restriction;
mod node_taint;
mod objects;
mod plane_access;
mod pod_group_protection;
mod pod_resize;
mod pod_resources;
mod pod_security;
mod pod_tolerations;
mod pod_topology;
mod policy_params;
mod priority;
mod resource_claim_status;
mod resource_quota;
mod role_escalation;
mod runtime_class;
mod service_account;
mod storage_class;
mod storage_in_use;
mod volume_claim_resize;

pub use config::{AdmissionConfig, AdmissionConfigError, IneffectiveEntry};
pub use pod_tolerations::TolerationSeconds;

use polyplane_apimachinery::Value;
use polyplane_plane::{Index, IndexId, Snapshot};
use polyplane_registry::{Admission, Kinds};
use std::sync::Arc;

/// The position of the index of usage among those that planes are opened with: behind those of all
/// batteries.
fn usage() -> IndexId {
    IndexId(polyplane_batteries::indexes().len())
}

/// Returns the indexes that planes are opened with, in the order of their [`IndexId`]: those of the
/// batteries, and the one that quotas are counted with.
pub fn indexes() -> Vec<Arc<dyn Index>> {
    let mut indexes = polyplane_batteries::indexes();
    indexes.push(Arc::new(resource_quota::UsageIndex));
    indexes
}

/// Returns the status of a quota in a state of its plane: its limits, and what the objects of its
/// namespace take at `now`, in seconds since 1970.
///
/// The usage has only resources that something counts: objects of `kinds`, and what these take.
pub fn quota_status(cut: &Snapshot, kinds: &Kinds, quota: &Value, now: i64) -> Value {
    resource_quota::status(cut, usage(), kinds, (quota, now))
}

/// Returns the plug-ins of a server without a configuration of theirs. See [`configured`].
pub fn built_in() -> Vec<Arc<dyn Admission>> {
    configured(&AdmissionConfig::default())
}

/// Returns the plug-ins, in the order in which they act. `NamespaceLifecycle`, the first of
/// upstream's, is part of every plan of a write.
pub fn configured(config: &AdmissionConfig) -> Vec<Arc<dyn Admission>> {
    let pod_security = pod_security::PodSecurity::new(config.pod_security.clone());
    let resource_quota = resource_quota::ResourceQuota {
        limited: config.limited.clone(),
        index: usage(),
    };
    vec![
        Arc::new(limit_ranger::LimitRanger),
        Arc::new(service_account::ServiceAccount),
        Arc::new(node_restriction::NodeRestriction),
        Arc::new(node_taint::TaintNodesByCondition),
        Arc::new(pod_security),
        Arc::new(priority::Priority),
        Arc::new(pod_tolerations::DefaultTolerationSeconds(
            config.tolerations,
        )),
        Arc::new(storage_class::DefaultStorageClass),
        Arc::new(storage_in_use::StorageObjectInUseProtection),
        Arc::new(pod_group_protection::PodGroupProtection),
        Arc::new(volume_claim_resize::PersistentVolumeClaimResize),
        Arc::new(runtime_class::RuntimeClass),
        Arc::new(certificates::approval::CertificateApproval),
        Arc::new(certificates::signing::CertificateSigning),
        Arc::new(certificates::attest::ClusterTrustBundleAttest),
        Arc::new(certificates::subject::CertificateSubjectRestriction),
        Arc::new(ingress_class::DefaultIngressClass),
        Arc::new(pod_topology::PodTopologyLabels),
        Arc::new(node_declared_features::NodeDeclaredFeatureValidator),
        Arc::new(pod_resize::PodResizeValidator),
        // Of the root plane's own kind.
        Arc::new(plane_access::PlaneAccess),
        // Part of upstream's storage of these kinds, which admission has changed by then.
        Arc::new(role_escalation::RoleEscalation),
        Arc::new(resource_claim_status::ResourceClaimStatus),
        Arc::new(certificates::pod_signing::PodCertificateSigning),
        Arc::new(policy_params::PolicyParams),
        Arc::new(resource_quota),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_registry::plan::Measured;

    /// Plug-ins that upstream does not have.
    const OWN: [&str; 5] = [
        "PlaneAccess",
        "RoleEscalation",
        "ResourceClaimStatus",
        "PodCertificateSigning",
        "PolicyParams",
    ];

    #[test]
    fn plug_ins_that_upstream_has_are_measured_and_no_others() {
        for plugin in built_in() {
            let is_measured = plugin.measured() != Measured::NEVER;
            let name = plugin.name();
            assert_eq!(is_measured, !OWN.contains(&name), "{name}");
        }
    }
}

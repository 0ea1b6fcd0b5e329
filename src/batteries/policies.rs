//! Behaviour of the kinds of policies.

pub mod admission_binding;
pub mod admission_policy;
pub mod admission_rules;
pub mod flow_schema;
pub mod keys;
pub mod pod_certificate;
pub mod pod_disruption_budget;
pub mod priority_level;
pub mod role;
pub mod role_binding;
pub mod signing_request;
pub mod trust_bundle;
pub mod webhooks;

use admission_policy::AdmissionPolicy;
use polyplane_registry::{Scope, Strategy};
use std::sync::Arc;

/// The behaviour of a resource of these groups; `None` if it is none of these kinds.
pub fn strategy(group: &str, resource: &str) -> Option<Arc<dyn Strategy>> {
    Some(match (group, resource) {
        ("policy", "poddisruptionbudgets") => Arc::new(pod_disruption_budget::PodDisruptionBudget),
        ("rbac.authorization.k8s.io", "roles") => Arc::new(role::Role {
            scope: Scope::Namespaced,
        }),
        ("rbac.authorization.k8s.io", "clusterroles") => Arc::new(role::Role {
            scope: Scope::Cluster,
        }),
        ("rbac.authorization.k8s.io", "rolebindings") => Arc::new(role_binding::RoleBinding {
            scope: Scope::Namespaced,
        }),
        ("rbac.authorization.k8s.io", "clusterrolebindings") => {
            Arc::new(role_binding::RoleBinding {
                scope: Scope::Cluster,
            })
        }
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => Arc::new(flow_schema::FlowSchema),
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => {
            Arc::new(priority_level::PriorityLevelConfiguration)
        }
        ("certificates.k8s.io", "certificatesigningrequests") => {
            Arc::new(signing_request::SigningRequest)
        }
        ("certificates.k8s.io", "clustertrustbundles") => Arc::new(trust_bundle::TrustBundle),
        ("certificates.k8s.io", "podcertificaterequests") => {
            Arc::new(pod_certificate::PodCertificate)
        }
        ("admissionregistration.k8s.io", resource) => return admission(resource),
        _ => return None,
    })
}

fn admission(resource: &str) -> Option<Arc<dyn Strategy>> {
    Some(match resource {
        "validatingwebhookconfigurations" | "mutatingwebhookconfigurations" => {
            Arc::new(webhooks::WebhookConfiguration)
        }
        "validatingadmissionpolicies" => Arc::new(AdmissionPolicy::Validating),
        "mutatingadmissionpolicies" => Arc::new(AdmissionPolicy::Mutating),
        "validatingadmissionpolicybindings" => Arc::new(admission_binding::AdmissionBinding {
            policy: AdmissionPolicy::Validating,
        }),
        "mutatingadmissionpolicybindings" => Arc::new(admission_binding::AdmissionBinding {
            policy: AdmissionPolicy::Mutating,
        }),
        _ => return None,
    })
}

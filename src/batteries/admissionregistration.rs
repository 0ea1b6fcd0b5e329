//! Behaviour of the kinds of `admissionregistration.k8s.io`.

pub mod admission_policy;
pub mod admission_policy_binding;
pub mod match_rules;
pub mod webhook_configuration;

use admission_policy::AdmissionPolicy;
use admission_policy_binding::AdmissionBinding;
use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "validatingwebhookconfigurations" => Arc::new(webhook_configuration::WebhookConfiguration),
        "mutatingwebhookconfigurations" => Arc::new(webhook_configuration::WebhookConfiguration),
        "validatingadmissionpolicies" => Arc::new(AdmissionPolicy::Validating),
        "mutatingadmissionpolicies" => Arc::new(AdmissionPolicy::Mutating),
        "validatingadmissionpolicybindings" => Arc::new(AdmissionBinding {
            policy: AdmissionPolicy::Validating,
        }),
        "mutatingadmissionpolicybindings" => Arc::new(AdmissionBinding {
            policy: AdmissionPolicy::Mutating,
        }),
        _ => return None,
    };
    Some(strategy)
}

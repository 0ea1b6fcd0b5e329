//! Behaviour of the kinds of `admissionregistration.k8s.io`.

pub mod admission_policy;
pub mod admission_policy_binding;
mod expressions;
pub mod match_rules;
pub mod webhook_configuration;

use crate::battery::{Battery, Kind};
use admission_policy::AdmissionPolicy;
use admission_policy_binding::AdmissionBinding;
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "admissionregistration.k8s.io",
    kinds: &[
        Kind::new("validatingwebhookconfigurations", || {
            Arc::new(webhook_configuration::WebhookConfiguration)
        }),
        Kind::new("mutatingwebhookconfigurations", || {
            Arc::new(webhook_configuration::WebhookConfiguration)
        }),
        Kind::new("validatingadmissionpolicies", || {
            Arc::new(AdmissionPolicy::Validating)
        }),
        Kind::new("mutatingadmissionpolicies", || {
            Arc::new(AdmissionPolicy::Mutating)
        }),
        Kind::new("validatingadmissionpolicybindings", || {
            Arc::new(AdmissionBinding {
                policy: AdmissionPolicy::Validating,
            })
        }),
        Kind::new("mutatingadmissionpolicybindings", || {
            Arc::new(AdmissionBinding {
                policy: AdmissionPolicy::Mutating,
            })
        }),
    ],
    indexes: &[],
};

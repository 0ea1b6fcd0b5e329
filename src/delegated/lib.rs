//! Authentication and authorization that servers of others decide: issuers of OpenID Connect, and
//! webhooks for tokens and for access.
//!
//! The files that configure them are upstream's: `AuthenticationConfiguration` and
//! `AuthorizationConfiguration` of `apiserver.config.k8s.io`, and kubeconfigs that name a webhook.
//!
//! Invariant: what a stranger sends causes at most a bounded number of calls, whatever it is. A token of
//! an issuer causes a call only if its keys are unknown or old, and no more often than once in
//! [`oidc::REFRESH_PAUSE`]; a token for a webhook has a place among a bounded number, or is put off.

pub mod authorization;
pub mod oidc;
pub mod webhook;

mod halves;

pub use polyplane_apimachinery::config::ConfigError;

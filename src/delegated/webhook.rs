//! Webhooks of the operator: one that says whom a token proves, one that says who may do what.
//!
//! A kubeconfig names the webhook, as upstream. Answers are cached for the times that the operator
//! chooses; they are the only decisions here that may be that old.

mod access_review;
mod cache;
mod conditions;
mod kubeconfig;
mod places;
mod review;
mod token_review;

pub use access_review::{AccessWebhook, OnFailure};
pub use conditions::MatchConditions;
pub use kubeconfig::{KubeconfigError, WebhookServer};
pub use review::ReviewVersion;
pub use token_review::{OwnIssuers, TokenWebhook};

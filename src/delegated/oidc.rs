//! OpenID Connect: tokens that other issuers sign, by upstream's `AuthenticationConfiguration`.
//!
//! [`AuthenticationConfig`] is the file; [`JwtAuthenticator`] accepts the tokens of one of its issuers.
//! The issuer's keys are looked up through the outbound caller and kept; requests verify with what is
//! known, and wait for a look-up only if nothing is known yet or a key is new.

mod authenticator;
mod bounds;
mod claims;
mod config;
pub(crate) mod expressions;
mod keys;
mod operator_issuers;
mod plane_issuers;
mod provider;
mod token;
mod validation;
mod verdicts;

pub use authenticator::JwtAuthenticator;
pub use config::{AuthenticationConfig, IssuerConfig, JwtConfig};
pub use keys::{IssuerKey, KeySet};
pub use operator_issuers::{NotReplaced, OperatorIssuers};
pub use plane_issuers::{KnownIssuers, PlaneIssuers, ReservedUser};
pub use provider::{KeyFetches, REFRESH_PAUSE};
pub use token::TokenRefused;

//! Authenticators and authorizers: who makes a request, and whether they may.
//!
//! Both are small traits that return a verdict *now* if memory is enough and *later* if they have
//! to call something outside (see [`Verdict`]), so that the common request allocates no future. An
//! authenticator sees [`Credentials`] and nothing else of the request; an authorizer sees
//! [`Attributes`].
//!
//! Invariant: nothing in this crate reads a store, a socket or a header. Callers pass in the parsed
//! parts of a request.

pub mod authenticator;
pub mod authorizer;
mod bootstrap_token;
mod digest;
pub mod front_proxy;
pub mod jws;
pub mod key_files;
pub mod keys;
mod named_ca;
pub mod plane_access;
pub mod rbac;
mod renewal;
pub mod service_account;
pub mod token;
pub mod token_file;
pub mod user;
mod verdict;
pub mod x509;

#[cfg(test)]
mod conformance;

pub use authenticator::{
    Anonymous, AnonymousAccess, Authentication, Authenticator, CertificateFault, Credentials,
    Denied, UnionAuthenticator,
};
pub use authorizer::{
    AllowAll, AlwaysDeny, Attributes, Authorizer, Decision, DenyAll, ForForeigners, Forbidden,
    HealthRules, METRICS_PATH, Masters, MetricsRules, PublicRules, Subject,
};
pub use bootstrap_token::BootstrapToken;
pub use digest::{Digest, digest_of, hex};
pub use front_proxy::{FrontProxy, FrontProxyHeaders};
pub use keys::{
    CheckValue, DerivedKey, KeyGeneration, P256Key, Purpose, RootSecret, SECRET_BYTES, SecretEpoch,
};
pub use named_ca::{NamedCa, NamedCaError, NamedClients, ReservedUser};
pub use plane_access::{
    AccessRecord, Entry, Grant, Grantee, OwnAuthenticators, PlaneAccess, ROOT_USER_PREFIX,
    Revocation, RootAuthenticators,
};
pub use renewal::{RENEWAL_EXTENSION, Renewal};
pub use token::{MetricsToken, ReplaceableToken, StaticToken, StaticTokens};
pub use user::{
    ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, ANONYMOUS, CREDENTIAL_ID, METRICS_READERS, NODE_PREFIX,
    NODES, SYSTEM_MASTERS, UserInfo, service_account_of,
};
pub use verdict::Verdict;
pub use x509::{
    Anchor, ChainIdentity, ChainJudge, ClientCa, ClientChain, OwnCertificate, X509Error,
};

//! Role-based access control: what Roles, ClusterRoles and their bindings allow.
//!
//! [`index::Index`] holds the roles and bindings of one plane and is changed by one object at a
//! time. From it come
//! - decisions ([`index::Index::authorize`]), which cost about a microsecond and allocate nothing;
//! - the rules of a user ([`index::Index::rules_for`]), for SelfSubjectRulesReview;
//! - the refusal of a role that grants more than its author holds
//!   ([`index::Index::confirm_no_escalation`]);
//! - the rules that aggregated ClusterRoles must have ([`index::Index::aggregations`]).
//!
//! The answers and texts are upstream's. Field and label selectors of a request decide nothing here:
//! rules know no selectors, and a `metadata.name` in a field selector arrives as the name.
//!
//! Invariant: everything here is a pure function of the roles and bindings. This module must not
//! know requests, stores, or how a plane carries its index.

pub mod aggregation;
pub mod binding;
pub mod decision;
pub mod escalation;
pub mod index;
pub mod policy_rule;
pub mod review;
pub mod role;
mod scope;
mod subject_bindings;

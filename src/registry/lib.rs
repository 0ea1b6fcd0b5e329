//! The verbs for any kind that has a row: create, get, list, update, patch, delete and watch over
//! one plane. Knows objects and verbs, not HTTP; media types and query parameters are part of the
//! Kubernetes API and therefore known here.
//!
//! [`Registry::handle`] is the entry point. A read uses one consistent cut of the plane. A write is
//! prepared against the newest accepted state, sequenced with the claims it rests on, and prepared
//! again if one of them failed (see [`mod@write`]). Every write passes the same stages (see
//! [`plan`]).
//!
//! A [`Call`] holds all that a verb may use: the tenant with its kinds, whose strategies and converters
//! get the call again, and the [`Services`], whose authority and admission do too. So `request`,
//! `kinds`, `strategy`, `services`, `authority`, `answer` and `write` use each other in circles, and so
//! do the stages in `plan`, each of which takes the value of the one before and may interrupt the run.

pub mod answer;
pub mod authority;
pub mod complaints;
mod deprecated;
pub mod dispatch;
pub mod environment;
pub mod flows;
pub mod kinds;
pub mod metadata;
pub mod metrics;
pub mod plan;
pub mod request;
pub mod roles;
pub mod select;
pub mod service_ranges;
pub mod services;
pub mod settings;
pub mod strategy;
mod summary;
pub mod tokens;
pub mod verbs;
pub mod write;

#[cfg(test)]
mod tests;

pub use answer::{Answer, AnswerBody, Outcome, StreamEnd, WatchChunk, WatchProgress, WatchStream};
pub use authority::{
    AccessCheck, AsOf, Authority, ChainedAuthorizer, CheckedAccess, GrantedAccess, PlaneAuthorizer,
    ReplaceableAuthorizers,
};
pub use dispatch::Registry;
pub use kinds::document_id::DocumentId;
pub use kinds::feature_gates::Features;
pub use kinds::served::{ServedGroup, ServedGroups, ServedVersion};
pub use kinds::table::{KindTable, Resource, Scope};
pub use kinds::{Defined, Kinds, KindsId, Requester};
pub use plan::Admission;
pub use request::call::{Call, Tenant};
pub use request::{Annotations, ResourceRequest, Seats, TokenReviewer, Verb, WriteRate};
pub use roles::Roles;
pub use services::{Observer, Services};
pub use settings::{BirthLayer, PlaneSettings, Shared, SwitchedOff};
pub use strategy::Strategy;
pub use summary::PlaneSummaries;
pub use tokens::TokenIssuers;
pub use verbs::components::Components;
pub use verbs::connect::{ConnectMode, ConnectTarget, NodeAddress, TargetServer, no_address};
pub use verbs::credential::IssueCredential;
pub use verbs::external::{ExternalObject, ExternalObjects, ExternalRange, ExternalReply};

//! What a verb means for a kind: create, get, list, update, patch, delete and watch over one
//! plane, for any kind that has a row. Knows objects and verbs, not HTTP; media types and query
//! parameters are part of the Kubernetes API and therefore known here.
//!
//! [`Registry::handle`] is the way in. A read takes one consistent cut of the plane; a write is
//! prepared against the newest accepted state, sequenced with the claims it rests on, and
//! prepared again if one of them failed (see [`mod@write`]). Every write goes through the same stages
//! (see [`plan`]).

pub mod answer;
pub mod authority;
pub mod body;
pub mod call;
pub mod connect;
pub mod convert;
pub mod create;
pub mod delete;
pub mod document_id;
pub mod environment;
pub mod evict;
pub mod external;
pub mod features;
mod frame;
pub mod kind;
pub mod kinds;
pub mod list;
pub mod list_writer;
pub mod long;
pub mod metadata;
pub mod negotiate;
pub mod object;
pub mod options;
pub mod parameters;
pub mod patch;
pub mod plan;
pub mod prepare;
pub mod request;
pub mod reviews;
pub mod select;
pub mod services;
pub mod strategy;
pub mod subresource;
pub mod update;
pub mod view;
pub mod watch;
pub mod write;

pub mod dispatch;

#[cfg(test)]
mod tests;

pub use answer::{Answer, AnswerBody, Liveness, Outcome, StreamEnd};
pub use authority::{AsOf, Authority, Gate, Judge, Permit, PlaneAuthorizer};
pub use call::{Call, Tenant};
pub use dispatch::Registry;
pub use document_id::DocumentId;
pub use external::{ExternalObject, ExternalObjects, ExternalRange, ExternalReply};
pub use features::Features;
pub use kind::{KindTable, Resource, Scope};
pub use kinds::{Defined, Kinds, KindsId};
pub use plan::Admission;
pub use request::{ResourceRequest, Seats, Verb};
pub use services::{Observer, Services};
pub use strategy::{BirthLayer, PlaneSettings, Strategy};

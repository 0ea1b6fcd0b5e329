//! Audit: who did what, in the form of upstream's `audit.k8s.io/v1`.
//!
//! A [`Policy`] says for each request how much is recorded; an [`Event`] is one stage of one request;
//! the [`Auditor`] has both and a [`Log`], which writes one line an event to a file or to standard
//! output.
//!
//! The owner of a plane records its requests, so no request is recorded twice. Events wait in one
//! bounded queue, in a share for each plane: a plane that floods it loses its own events first, and
//! an event says how many were lost. No request waits for the log.
//!
//! Must not know HTTP, nor how a request is carried out.

mod auditor;
mod event;
mod log;
mod policy;
mod queue;
mod rotation;

pub use auditor::{AuditMetrics, Auditor, LEVELS};
pub use event::{Event, Object, Outcome, Stage};
pub use log::{Log, LogError, LogOptions};
pub use policy::{Level, Plan, Policy, PolicyError};

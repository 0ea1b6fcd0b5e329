//! Audit: who did what, in the form of upstream's `audit.k8s.io/v1`.
//!
//! A [`Policy`] says for each request how much is recorded; an [`Event`] is what is known of one
//! request, of which each stage is a line; the [`Auditor`] has the policy and the backends: a [`Log`],
//! which writes lines to a file or to standard output, and a [`Webhook`], which posts them.
//!
//! The owner of a plane records its requests, so no request is recorded twice. In front of each
//! backend events wait in one bounded queue, in a share for each plane: a plane that floods it loses
//! its own events first, and an event says how many were lost. Whether requests wait is the backend's
//! [`Mode`].
//!
//! Must not know how a request arrives, nor how it is carried out.

mod auditor;
mod bodies;
mod event;
mod legacy;
mod log;
mod policy;
mod queue;
mod rotation;
mod sink;
mod webhook;

pub use auditor::{AuditMetrics, Auditor, Backend, LEVELS, NotRecorded, Recorded};
pub use bodies::{BODY_BYTES_MAX, shown_status};
pub use event::{Event, Head, Object, Outcome, PlaneName, Sources, Stage};
pub use log::{Format, Log, LogError, LogOptions};
pub use policy::{Level, Plan, Policy, PolicyError};
pub use sink::{BatchOptions, Mode, SinkOptions, Throttle, Truncation};
pub use webhook::{Webhook, WebhookOptions};

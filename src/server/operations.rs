//! What operators see and ask for: health, metrics, reports, and how a server stops.

pub(crate) mod drain;
pub(crate) mod exposition;
pub(crate) mod health;
pub(crate) mod local;
pub(crate) mod metrics;
pub(crate) mod observe;

//! The interface for operators: health, metrics, reports, and stopping the server.

pub(crate) mod access_metrics;
pub(crate) mod certificate_metrics;
pub(crate) mod drain;
pub(crate) mod exposition;
pub(crate) mod flow_dump;
pub(crate) mod flow_metrics;
pub(crate) mod health;
pub(crate) mod local;
pub(crate) mod metrics;
pub(crate) mod observe;
pub(crate) mod plane_metrics;
pub(crate) mod status_pages;

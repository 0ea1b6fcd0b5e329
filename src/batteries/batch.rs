//! Behaviour of the kinds of `batch`.

pub mod cron_job;
pub mod job;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "batch",
    kinds: &[
        Kind::new("cronjobs", || Arc::new(cron_job::CronJob)),
        Kind::new("jobs", || Arc::new(job::Job)),
    ],
    indexes: &[],
};

//! Behaviour of the kinds of `batch`.

pub mod cron_job;
pub mod job;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "cronjobs" => Arc::new(cron_job::CronJob),
        "jobs" => Arc::new(job::Job),
        _ => return None,
    };
    Some(strategy)
}

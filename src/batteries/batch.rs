//! Behaviour of the kinds of batch and autoscaling.

mod autoscaler;
mod cron_job;
mod cron_schedule;
mod job;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of these groups; `None` if it is none of these kinds.
pub fn strategy(group: &str, version: &str, resource: &str) -> Option<Arc<dyn Strategy>> {
    match (group, version, resource) {
        ("batch", _, "jobs") => Some(Arc::new(job::Job)),
        ("batch", _, "cronjobs") => Some(Arc::new(cron_job::CronJob)),
        ("autoscaling", "v1", "horizontalpodautoscalers") => {
            Some(Arc::new(autoscaler::Autoscaler::Converted))
        }
        ("autoscaling", _, "horizontalpodautoscalers") => {
            Some(Arc::new(autoscaler::Autoscaler::Stored))
        }
        _ => None,
    }
}

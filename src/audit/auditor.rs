//! The auditor: the policy, the log, and what is counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use polyplane_auth::Attributes;

use crate::event::{Event, Stage};
use crate::log::Log;
use crate::policy::{Level, Plan, Policy};

/// Names of the levels, in the order of [`AuditMetrics::requests`].
pub const LEVELS: [&str; 4] = ["None", "Metadata", "Request", "RequestResponse"];

/// What an auditor has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuditMetrics {
    /// Requests by the level that the policy gives them.
    pub requests: [u64; 4],
    /// Events made.
    pub events: u64,
    /// Events lost because too many waited.
    pub lost: u64,
    /// Events that the file system refused.
    pub failed: u64,
}

/// Records requests.
pub struct Auditor {
    policy: Policy,
    log: Log,
    requests: [AtomicU64; 4],
    events: AtomicU64,
}

impl Auditor {
    /// Creates an auditor.
    #[must_use]
    pub fn new(policy: Policy, log: Log) -> Self {
        Self {
            policy,
            log,
            requests: Default::default(),
            events: AtomicU64::new(0),
        }
    }

    /// Returns what is recorded of a request; `None` for nothing.
    #[must_use]
    pub fn plan(&self, request: &Attributes<'_>) -> Option<Plan> {
        let plan = self.policy.plan(request);
        self.requests[plan.level as usize].fetch_add(1, Ordering::Relaxed);
        (plan.level != Level::None).then_some(plan)
    }

    /// Records a stage of a request.
    pub fn record(&self, event: &Event, stage: Stage, now: SystemTime) {
        self.events.fetch_add(1, Ordering::Relaxed);
        self.log.add(&event.plane, event.line(stage, now));
    }

    /// Returns what was counted.
    #[must_use]
    pub fn metrics(&self) -> AuditMetrics {
        let (lost, failed) = self.log.losses();
        let requests = [0, 1, 2, 3].map(|level| self.requests[level].load(Ordering::Relaxed));
        AuditMetrics {
            requests,
            events: self.events.load(Ordering::Relaxed),
            lost,
            failed,
        }
    }

    /// Writes what waits. Blocks until the file system has taken it.
    pub fn close(&self) {
        self.log.close();
    }
}

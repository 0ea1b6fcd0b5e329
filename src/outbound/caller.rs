//! The places of calls, and what is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use crate::address::{Allowed, Network, Reach};
use crate::target::CallError;

/// Calls in flight of the process. Each holds a connection and an answer.
const OF_PROCESS_MAX: usize = 512;
/// Calls in flight of one plane.
const OF_PLANE_MAX: usize = 64;

/// What was counted, of all planes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboundMetrics {
    /// Calls that a target answered, whatever the status.
    pub answered: u64,
    /// Calls that failed: no connection, no answer in time, an answer that is too long.
    pub failed: u64,
    /// Calls that were not tried because the target had failed too often.
    pub open: u64,
    /// Calls that were not tried because too many were under way.
    pub busy: u64,
    /// Calls whose target has no address that may be called.
    pub refused: u64,
    /// Calls under way.
    pub in_flight: u64,
}

/// The caller of a process.
#[derive(Debug)]
pub struct Caller {
    pub(crate) seats: Semaphore,
    networks: Arc<[Network]>,
    hosts: Vec<String>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    answered: AtomicU64,
    failed: AtomicU64,
    open: AtomicU64,
    busy: AtomicU64,
    refused: AtomicU64,
}

impl Caller {
    /// Creates a caller. Targets that planes name may be in `allowed` beside the public Internet.
    #[must_use]
    pub fn new(allowed: Vec<Allowed>) -> Arc<Self> {
        let (mut networks, mut hosts) = (Vec::new(), Vec::new());
        for one in allowed {
            match one {
                Allowed::Network(network) => networks.push(network),
                Allowed::Host(host) => hosts.push(host),
            }
        }
        Arc::new(Self {
            seats: Semaphore::new(OF_PROCESS_MAX),
            networks: networks.into(),
            hosts,
            counters: Counters::default(),
        })
    }

    /// Returns the caller for what the operator's files name.
    #[must_use]
    pub fn of_operator(self: &Arc<Self>) -> Arc<PlaneCaller> {
        self.with_reach(Reach::Anywhere)
    }

    /// Returns the caller for what the configuration of one plane names.
    #[must_use]
    pub fn of_plane(self: &Arc<Self>) -> Arc<PlaneCaller> {
        self.with_reach(Reach::Public(Arc::clone(&self.networks)))
    }

    fn with_reach(self: &Arc<Self>, reach: Reach) -> Arc<PlaneCaller> {
        Arc::new(PlaneCaller {
            caller: Arc::clone(self),
            seats: Semaphore::new(OF_PLANE_MAX),
            reach,
        })
    }

    /// Returns what was counted.
    #[must_use]
    pub fn metrics(&self) -> OutboundMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OutboundMetrics {
            answered: read(&self.counters.answered),
            failed: read(&self.counters.failed),
            open: read(&self.counters.open),
            busy: read(&self.counters.busy),
            refused: read(&self.counters.refused),
            in_flight: (OF_PROCESS_MAX - self.seats.available_permits()) as u64,
        }
    }

    pub(crate) fn count(&self, error: Option<&CallError>) {
        let counters = &self.counters;
        let counter = match error {
            None => &counters.answered,
            Some(CallError::Open(_)) => &counters.open,
            Some(CallError::Busy) => &counters.busy,
            Some(CallError::Address(_)) => &counters.refused,
            Some(CallError::Deadline | CallError::TooLong(_) | CallError::Transport(_)) => {
                &counters.failed
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The calls of one plane: their places, and the addresses that they may have.
#[derive(Debug)]
pub struct PlaneCaller {
    pub(crate) caller: Arc<Caller>,
    pub(crate) seats: Semaphore,
    pub(crate) reach: Reach,
}

impl PlaneCaller {
    /// Returns which addresses the target of this host may have. The connector follows no redirect, so
    /// a target has one host.
    pub(crate) fn reach_of(&self, host: &str) -> Reach {
        let is_host = |known: &String| known.eq_ignore_ascii_case(host);
        match self.caller.hosts.iter().any(is_host) {
            true => Reach::Anywhere,
            false => self.reach.clone(),
        }
    }
}

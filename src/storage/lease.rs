//! Leases of the embedded engines: rows in memory, which end by the process's clock.
//!
//! Knows which keys are attached to which lease and when a lease ends. The engine deletes the keys
//! in a transaction, so that the deletion has its place in the commit order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::error::{CommitError, Rejection};
use crate::store::{LeaseId, Op, Txn};

/// A clock that never goes back. Only differences of its times have a meaning.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The machine's clock since boot, which also runs while the machine is suspended.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(
            now.tv_sec.unsigned_abs(),
            u32::try_from(now.tv_nsec).unwrap_or(0),
        )
    }
}

/// A clock that moves only by [`ManualClock::advance`], for tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

struct Lease {
    ttl: Duration,
    deadline: Duration,
    keys: BTreeSet<Bytes>,
}

/// All leases of an engine. The engine reports every put and delete to it.
pub(crate) struct LeaseTable {
    next: i64,
    leases: BTreeMap<LeaseId, Lease>,
    by_key: HashMap<Bytes, LeaseId>,
}

impl LeaseTable {
    /// Creates an empty table whose ids begin at `first`.
    pub(crate) fn new(first: i64) -> Self {
        Self {
            next: first.max(1),
            leases: BTreeMap::new(),
            by_key: HashMap::new(),
        }
    }

    pub(crate) fn grant(&mut self, ttl: Duration, now: Duration) -> LeaseId {
        let id = LeaseId(self.next);
        self.next += 1;
        let lease = Lease {
            ttl,
            deadline: now + ttl,
            keys: BTreeSet::new(),
        };
        self.leases.insert(id, lease);
        id
    }

    /// Renews a lease that has not ended. A lease past its deadline has ended, whether or not it
    /// was removed.
    pub(crate) fn keep_alive(&mut self, id: LeaseId, now: Duration) -> bool {
        match self.leases.get_mut(&id) {
            Some(lease) if lease.deadline > now => {
                lease.deadline = now + lease.ttl;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn has(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// Attaches a key to a lease, or detaches it with `None`.
    pub(crate) fn attach(&mut self, key: &Bytes, lease: Option<LeaseId>) {
        if self.by_key.is_empty() && lease.is_none() {
            return;
        }
        if let Some(old) = self.by_key.remove(key)
            && let Some(row) = self.leases.get_mut(&old)
        {
            row.keys.remove(key);
        }
        if let Some(id) = lease
            && let Some(row) = self.leases.get_mut(&id)
        {
            row.keys.insert(key.clone());
            self.by_key.insert(key.clone(), id);
        }
    }

    /// Checks that every lease that a transaction puts keys on exists and is not among those that end
    /// before it.
    pub(crate) fn check(&self, txn: &Txn, ending: &[LeaseId]) -> Result<(), CommitError> {
        let leases = txn.ops.iter().filter_map(|op| match op {
            Op::Put { lease, .. } => *lease,
            Op::Delete { .. } => None,
        });
        for lease in leases {
            if ending.contains(&lease) || !self.has(lease) {
                let rejection = Rejection::NoLease(lease.0.to_string());
                return Err(CommitError::Rejected(rejection));
            }
        }
        Ok(())
    }

    /// Attaches the keys that a group of transactions has put, and removes the leases that it has ended.
    pub(crate) fn apply(&mut self, attached: Vec<(Bytes, Option<LeaseId>)>, ended: Vec<LeaseId>) {
        for (key, lease) in attached {
            self.attach(&key, lease);
        }
        for lease in ended {
            self.remove(lease);
        }
    }

    /// Detaches all keys. The caller attaches them again as needed.
    pub(crate) fn detach_all(&mut self) {
        self.by_key.clear();
        for lease in self.leases.values_mut() {
            lease.keys.clear();
        }
    }

    /// Returns the time at which the next lease ends, if there is a lease.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.leases.values().map(|lease| lease.deadline).min()
    }

    /// Returns the leases that have ended and are still in the table.
    pub(crate) fn expired(&self, now: Duration) -> Vec<LeaseId> {
        let ended = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.deadline <= now);
        ended.map(|(id, _)| *id).collect()
    }

    /// Returns the keys that are attached to a lease; `None` if there is no such lease.
    pub(crate) fn keys(&self, id: LeaseId) -> Option<Vec<Bytes>> {
        self.leases
            .get(&id)
            .map(|lease| lease.keys.iter().cloned().collect())
    }

    /// Removes a lease after its keys were deleted.
    pub(crate) fn remove(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        for key in lease.keys {
            self.by_key.remove(&key);
        }
    }
}

/// Returns a first lease id that no earlier opening of the same store can have used, unless the
/// clock was set back by years.
pub(crate) fn first_lease_id() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = now.map_or(1, |since| since.as_micros());
    i64::try_from(micros).unwrap_or(1)
}

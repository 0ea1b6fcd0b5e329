//! etcd's quota.
//!
//! A reply that the space is used up does not say that nothing was done: the transaction that
//! crosses the quota *is* done, and answered like those after it that are not. The reply does say
//! that the transaction is settled: it was turned away before it was proposed, or it was decided,
//! so nothing of it lands later. Hence looking is enough here, other than after a lost reply: if
//! none of its keys was put since before it was sent, it was not done. If one was put with its
//! value, the outcome is unknown, as it may have been another's.
//!
//! While the alarm is known to be raised, transactions with puts are not sent at all.

use parking_lot::Mutex;

use crate::store::Health;

/// How etcd names the alarms in a member's status.
const NO_SPACE: &str = "NOSPACE";
const CORRUPT: &str = "CORRUPT";

/// Whether the quota or an alarm is in the way.
pub(super) struct Space {
    health: Mutex<Health>,
}

impl Default for Space {
    fn default() -> Self {
        Self {
            health: Mutex::new(Health::Ok),
        }
    }
}

impl Space {
    pub(super) fn health(&self) -> Health {
        self.health.lock().clone()
    }

    /// Why nothing can be put, if that is known.
    pub(super) fn full(&self) -> Option<String> {
        match &*self.health.lock() {
            Health::ReadOnly { reason } => Some(reason.clone()),
            Health::Ok | Health::Failed { .. } => None,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(*self.health.lock(), Health::ReadOnly { .. })
    }

    pub(super) fn fill(&self, text: &str) {
        let mut health = self.health.lock();
        if *health == Health::Ok {
            tracing::warn!(text, "etcd's quota is used up: writes are rejected");
            *health = Health::ReadOnly {
                reason: format!("no space: {text}"),
            };
        }
    }

    /// The alarm is gone.
    pub(super) fn free(&self) {
        let mut health = self.health.lock();
        if *health != Health::Ok {
            tracing::info!("etcd takes writes again");
            *health = Health::Ok;
        }
    }

    /// Takes in what a member's status says. That an alarm is over it need not know yet.
    pub(super) fn note(&self, errors: &[String]) {
        let corrupt = errors.iter().find(|error| error.contains(CORRUPT));
        if let Some(text) = corrupt {
            *self.health.lock() = Health::Failed {
                reason: format!("etcd found damage: {text}"),
            };
        } else if let Some(text) = errors.iter().find(|error| error.contains(NO_SPACE)) {
            self.fill(text);
        } else if matches!(*self.health.lock(), Health::Failed { .. }) {
            self.free();
        }
    }
}

//! The quota of etcd's database.
//!
//! A "no space" reply does not prove that nothing was applied: the transaction that exceeds the
//! quota *is* applied, and gets the same reply as those after it that are not. But it does prove
//! that the outcome is final: the transaction was refused before it was proposed, or it was
//! decided. So, unlike after a lost reply, a read is enough to settle it. If none of its keys was
//! put since before it was sent, it was not applied. If one was put with the transaction's value,
//! the outcome is unknown, because another transaction may have put that.
//!
//! While the alarm is known to be raised, transactions with puts are not sent at all.

use parking_lot::Mutex;

use crate::store::Health;

/// The name of the alarm about a used-up quota, in a member's status.
const NO_SPACE: &str = "NOSPACE";
const CORRUPT: &str = "CORRUPT";
/// What a transaction is told that is not sent. Not which member raised the alarm: whoever writes to a
/// plane gets this text.
const USED_UP: &str = "the quota of etcd is used up (NOSPACE)";

/// The answer to whether a used-up quota or an alarm prevents writes.
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

    /// Returns the reason why puts are refused, if an alarm is known.
    pub(super) fn full(&self) -> Option<String> {
        self.is_full().then(|| USED_UP.to_owned())
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(*self.health.lock(), Health::ReadOnly { .. })
    }

    pub(super) fn fill(&self, text: &str) {
        let mut health = self.health.lock();
        if *health == Health::Ok {
            tracing::warn!(
                text,
                "etcd's quota is used up: reads go on, writes and deletions are refused, and no plane wakes; \
                 compact and defragment etcd or raise its quota, and then disarm the alarm"
            );
            *health = Health::ReadOnly {
                reason: format!("no space: {USED_UP}"),
            };
        }
    }

    /// Records that the alarm is cleared.
    pub(super) fn free(&self) {
        let mut health = self.health.lock();
        if *health != Health::Ok {
            tracing::info!("etcd accepts writes again");
            *health = Health::Ok;
        }
    }

    /// Processes the alarms in a member's status. A missing alarm proves nothing, because the
    /// member may lag behind.
    pub(super) fn note(&self, errors: &[String]) {
        let corrupt = errors.iter().find(|error| error.contains(CORRUPT));
        if let Some(text) = corrupt {
            *self.health.lock() = Health::Failed {
                reason: format!("etcd reports damaged data: {text}"),
            };
        } else if let Some(text) = errors.iter().find(|error| error.contains(NO_SPACE)) {
            self.fill(text);
        } else if matches!(*self.health.lock(), Health::Failed { .. }) {
            self.free();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_told_without_the_member_that_raised_it() {
        let space = Space::default();
        assert_eq!(space.full(), None);
        space.note(&["memberID:3319814642761637952 alarm:NOSPACE ".to_owned()]);
        let why = space.full().expect("it is full");
        assert_eq!(why, "the quota of etcd is used up (NOSPACE)");
        let reason = format!("no space: {why}");
        assert_eq!(space.health(), Health::ReadOnly { reason });
        // A member that does not know the alarm yet proves nothing.
        space.note(&[]);
        assert!(space.is_full());
        space.free();
        assert_eq!((space.full(), space.health()), (None, Health::Ok));
    }
}

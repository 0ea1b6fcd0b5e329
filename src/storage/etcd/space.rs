//! The quota of etcd's database.
//!
//! A "no space" reply does not prove that nothing was applied: the transaction that exceeds the
//! quota *is* applied, and gets the same reply as those after it that are not. But it does prove
//! that the outcome is final: the transaction was refused before it was proposed, or it was
//! decided. So, unlike after a lost reply, a read is enough to settle it. If none of its keys was
//! put since before it was sent, it was not applied. If one was put with the transaction's value,
//! it may have been applied, or another transaction may have put that: the caller gets
//! [`CommitError::Undisclosed`](crate::CommitError::Undisclosed). etcd raises the alarm by a proposal
//! of its own, so all transactions that it has proposed before that are applied and get this reply.
//!
//! While the alarm is known to be raised, transactions with puts are not sent at all.
//!
//! etcd compares the size of its file with the quota. The file does not shrink when keys are deleted and
//! compacted; instead, new data takes the freed pages inside it. So the store is nearly full, see
//! [`NearlyFull`], when the pages in use leave less than a 20th of the quota, or when the file leaves no
//! room for a transaction. The former ends when they leave a tenth, the latter with a defragmentation or
//! a larger quota. Only etcd 3.6 and newer tell their quota.

use parking_lot::Mutex;

use crate::nearly_full::NearlyFull;
use crate::store::Health;

/// The name of the alarm about a used-up quota, in a member's status.
const NO_SPACE: &str = "NOSPACE";
const CORRUPT: &str = "CORRUPT";
/// What a transaction is told that is not sent. Not which member raised the alarm: whoever writes to a
/// plane gets this text.
const USED_UP: &str = "the quota of etcd is used up (NOSPACE)";
/// What the operator can do about it.
const REMEDY: &str = "compact and defragment etcd or raise its quota, and then disarm the alarm";

/// The part of the quota that is kept for writes which make room: one in this many bytes.
const KEPT_PART: u64 = 20;
/// Bytes that the file of the database may still grow by, at least, or the next large transaction would
/// raise the alarm, however many pages inside the file are free. More than etcd takes the largest
/// transaction to be.
const TXN_COST_MAX: u64 = 2 << 20;

/// The size of a member's database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DatabaseSize {
    /// Bytes of the file.
    pub(super) file_bytes: u64,
    /// Bytes of the pages that are in use in it.
    pub(super) in_use_bytes: u64,
    /// The most bytes that the file may have; 0 if that is not known.
    pub(super) quota_bytes: u64,
}

/// The answer to whether a used-up quota or an alarm prevents writes.
pub(super) struct Space {
    health: Mutex<Health>,
    nearly_full: NearlyFull,
}

impl Default for Space {
    fn default() -> Self {
        Self {
            health: Mutex::new(Health::Ok),
            nearly_full: NearlyFull::default(),
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

    /// Returns what the operator can do so that puts are accepted again, if an alarm is known.
    pub(super) fn remedy(&self) -> Option<&'static str> {
        self.is_full().then_some(REMEDY)
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(*self.health.lock(), Health::ReadOnly { .. })
    }

    pub(super) fn is_nearly_full(&self) -> bool {
        self.nearly_full.get()
    }

    /// Processes the size of a member's database.
    pub(super) fn note_size(&self, size: DatabaseSize) {
        let DatabaseSize {
            file_bytes,
            in_use_bytes,
            quota_bytes,
        } = size;
        let left_bytes = match quota_bytes.saturating_sub(file_bytes) {
            growth if growth < TXN_COST_MAX => 0,
            _ => quota_bytes.saturating_sub(in_use_bytes),
        };
        // Without a quota the limit is 0 as well, and nothing is less than that.
        self.nearly_full.note(left_bytes, quota_bytes / KEPT_PART);
    }

    pub(super) fn fill(&self, text: &str) {
        let mut health = self.health.lock();
        if *health == Health::Ok {
            tracing::warn!(
                text,
                "etcd's quota is used up: reads go on, writes and deletions are refused, no plane wakes, \
                 and no replica joins; {REMEDY}"
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
        assert_eq!((space.full(), space.remedy()), (None, None));
        space.note(&["memberID:3319814642761637952 alarm:NOSPACE ".to_owned()]);
        let why = space.full().expect("it is full");
        assert_eq!(why, "the quota of etcd is used up (NOSPACE)");
        let reason = format!("no space: {why}");
        assert_eq!(space.health(), Health::ReadOnly { reason });
        let remedy = space.remedy().expect("somebody has to act");
        assert!(remedy.contains("disarm the alarm"), "{remedy}");
        // A member that does not know the alarm yet proves nothing.
        space.note(&[]);
        assert!(space.is_full());
        space.free();
        assert_eq!((space.full(), space.health()), (None, Health::Ok));
        assert_eq!(space.remedy(), None);
    }

    #[test]
    fn the_quota_is_nearly_used_up_when_few_pages_or_no_transaction_fit() {
        const MIB: u64 = 1 << 20;
        let space = Space::default();
        let after = |file: u64, in_use: u64, quota: u64| {
            space.note_size(DatabaseSize {
                file_bytes: file * MIB,
                in_use_bytes: in_use * MIB,
                quota_bytes: quota * MIB,
            });
            space.is_nearly_full()
        };
        // Members before 3.6 do not tell the quota.
        assert!(!after(5000, 5000, 0));
        assert!(!after(900, 900, 1000));
        assert!(after(955, 951, 1000));
        // Compacted, but not yet a tenth of the quota.
        assert!(after(960, 910, 1000));
        assert!(!after(960, 890, 1000));
        // The file has free pages, but a large transaction may not fit into them.
        assert!(!after(998, 200, 1000));
        assert!(after(999, 200, 1000));
        assert!(after(999, 100, 1000));
        // Defragmented.
        assert!(!after(100, 100, 1000));
        // Transactions are sent all the time.
        assert_eq!(space.health(), Health::Ok);
    }
}

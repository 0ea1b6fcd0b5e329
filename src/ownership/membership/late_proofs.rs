//! Proofs that come too late to be of use. A proof counts from the sending of its read (PROTOCOL 11),
//! so if the store takes longer to answer than the read lease lasts, the replica is a healthy member
//! and answers nothing.
//!
//! Owns when late proofs, and none at all, are a state and not a stall, and what is said about them. Must not decide
//! whether an answer is allowed: the read lease does.

use crate::log_limit::LogLimit;
use crate::membership::state::RingState;
use parking_lot::Mutex;
use polyplane_fencing::{Duration, Time};

/// Number of late proofs in a row, each by a read that was sent after the proof before it, from
/// which on the replica reports them. With fewer, one stall of the store would count, because all
/// reads in flight are then answered late.
const LATE_MIN: u32 = 3;
/// How long no proof may come before the replica reports it. Less would take replicas out of service while etcd
/// elects a leader, which takes up to three seconds.
const LAPSED_MIN: std::time::Duration = std::time::Duration::from_secs(5);
/// The recommended read lease is this many times what a proof takes. A shorter one would leave no
/// room for answers that take longer than usual.
const LEASE_SHARE: u64 = 4;
/// The recommended margin is this part of the read lease. A tenth is the least that is allowed.
const MARGIN_SHARE: u64 = 5;
/// Recommended times are multiples of this number of milliseconds, because nobody needs more digits.
const STEP_MILLIS: u64 = 100;

/// The newest proofs of one kind, and how many of them came too late.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LateProofs {
    /// The time from the newest read's sending to its proof.
    took: Duration,
    /// The read lease at that time.
    lease: Duration,
    /// Number of late proofs since the process began.
    late: u64,
    /// Number of late proofs in a row.
    in_a_row: u32,
    /// The time of the last proof that counted for the row.
    counted: Option<Time>,
    limit: LogLimit,
    is_reported: bool,
}

/// A change or a state that the log should show.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Report {
    /// Proofs come too late, for this reason.
    Late(String),
    /// Proofs come in time again.
    InTime,
}

impl LateProofs {
    /// Returns the time from the newest read's sending to its proof.
    pub(crate) fn took(&self) -> Duration {
        self.took
    }

    /// Returns the number of late proofs since the process began.
    pub(crate) fn late(&self) -> u64 {
        self.late
    }

    /// Returns why proofs are of no use and what to do; `None` while they are.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.in_a_row < LATE_MIN {
            return None;
        }
        let (took, lease) = (millis(self.took), millis(self.lease));
        let rounded = |millis: u64| millis.div_ceil(STEP_MILLIS) * STEP_MILLIS;
        let read_lease = rounded(took * LEASE_SHARE);
        let margin = rounded(read_lease / MARGIN_SHARE);
        Some(format!(
            "it takes {took} ms to learn the state of the store, and the read lease lasts {lease} ms, so \
             no request can be answered: move the replicas closer to the store, or run `kubectl plane \
             terms --read-lease {read_lease} --margin {margin}` at a replica itself, for example through \
             `kubectl port-forward`, because none is ready"
        ))
    }

    /// Counts a proof that was made now by a read that was sent at `sent`.
    fn count(&mut self, sent: Time, now: Time, lease: Duration) -> Option<Report> {
        self.took = now.since(sent);
        self.lease = lease;
        if self.took < lease {
            self.in_a_row = 0;
            self.counted = None;
            return std::mem::take(&mut self.is_reported).then_some(Report::InTime);
        }
        self.late += 1;
        if self.counted.is_none_or(|counted| sent >= counted) {
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.counted = Some(now);
        }
        let problem = self.problem()?;
        if !self.limit.is_due(now) {
            return None;
        }
        self.is_reported = true;
        Some(Report::Late(problem))
    }
}

/// Returns why a replica answers nothing whose read lease ran out this long ago; `None` if that may be a stall.
pub(crate) fn lapsed(ago: std::time::Duration) -> Option<String> {
    (ago >= LAPSED_MIN).then(|| {
        format!(
            "the store has not renewed the read lease for {} s, so no request can be answered; the check \
             etcd may say why",
            ago.as_secs()
        )
    })
}

/// Counts a proof that was made now by a read that was sent at `sent`, and logs if proofs come too
/// late.
pub(crate) fn count(shared: &RingState, proofs: &Mutex<LateProofs>, sent: Time) {
    let lease = shared.machine.lock().lease().length();
    let now = shared.now();
    let report = proofs.lock().count(sent, now, lease);
    match report {
        Some(Report::Late(why)) => tracing::warn!("{why}"),
        Some(Report::InTime) => tracing::info!("the store answers within the read lease again"),
        None => {}
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(300);

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    /// Counts proofs, each given as the times at which its read was sent and it was made.
    fn counted(proofs: &mut LateProofs, times: &[(u64, u64)]) -> Vec<Option<Report>> {
        let count = |(sent, now): &(u64, u64)| proofs.count(at(*sent), at(*now), LEASE);
        times.iter().map(count).collect()
    }

    #[test]
    fn a_store_that_is_too_far_away_is_reported_with_the_command_that_helps() {
        let mut proofs = LateProofs::default();
        let reports = counted(
            &mut proofs,
            &[(0, 320), (320, 640), (640, 960), (960, 1280)],
        );
        assert_eq!(reports[..2], [None, None]);
        assert_eq!(reports[3], None, "the log is not filled");
        let Some(Report::Late(why)) = &reports[2] else {
            panic!("the third is not reported: {reports:?}");
        };
        for words in ["320 ms", "300 ms", "--read-lease 1300 --margin 300"] {
            assert!(why.contains(words), "{why}");
        }
        assert_eq!(proofs.problem().as_ref(), Some(why));
        assert_eq!(
            (proofs.late(), proofs.took()),
            (4, Duration::from_millis(320))
        );
        let later = counted(&mut proofs, &[(61_000, 61_320), (61_320, 61_400)]);
        assert!(matches!(later[0], Some(Report::Late(_))), "{later:?}");
        assert_eq!(later[1], Some(Report::InTime));
        assert_eq!(proofs.problem(), None);
    }

    #[test]
    fn one_stall_of_the_store_counts_once_however_many_reads_are_in_flight() {
        let mut proofs = LateProofs::default();
        let stalled = [
            (0, 2000),
            (100, 2000),
            (200, 2001),
            (300, 2001),
            (1990, 2001),
        ];
        assert_eq!(counted(&mut proofs, &stalled), vec![None; 5]);
        assert_eq!((proofs.problem(), proofs.late()), (None, 4));
        // The last of them was in time and has ended the row.
        assert_eq!(
            counted(&mut proofs, &[(2100, 2500), (2500, 2900)]),
            [None, None]
        );
        assert_eq!(proofs.problem(), None);
    }

    #[test]
    fn a_store_that_proves_nothing_is_reported_only_after_longer_than_an_election_takes() {
        let lapsed = |secs| lapsed(std::time::Duration::from_secs(secs));
        assert_eq!((lapsed(0), lapsed(4)), (None, None));
        let said = lapsed(7).expect("it is reported");
        assert!(said.contains("for 7 s"), "{said}");
    }
}

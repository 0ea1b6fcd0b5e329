//! A rate of events in a second, kept as one time stamp (the generic cell rate algorithm).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Moment;

/// One second, the burst that a rate allows. With a shorter one a client that sends its requests in
/// bunches would be refused below its rate.
const SECOND: u64 = 1_000_000_000;

/// Counts events against a rate. A second's worth of events may come at once.
#[derive(Debug, Default)]
pub struct RateLimit {
    /// The time at which everything that was taken is paid for. It is up to a second in the future;
    /// a time in the past means that nothing is owed.
    paid_at: AtomicU64,
}

impl RateLimit {
    /// Takes one event, if fewer than `per_second` were taken in the second before `now`.
    ///
    /// # Errors
    /// Returns the nanoseconds until there is room for one more.
    pub fn take(&self, now: Moment, per_second: u64) -> Result<(), u64> {
        // A rate of zero allows nothing, and says to come again in a second.
        let cost = SECOND.checked_div(per_second).ok_or(SECOND)?;
        let mut paid_at = self.paid_at.load(Ordering::Relaxed);
        loop {
            let next = paid_at.max(now.0).saturating_add(cost);
            let end = now.0.saturating_add(SECOND);
            if next > end {
                return Err(next - end);
            }
            let swapped = self.paid_at.compare_exchange_weak(
                paid_at,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swapped {
                Ok(_) => return Ok(()),
                Err(found) => paid_at = found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_is_a_second_s_worth_and_then_the_rate_holds() {
        let limit = RateLimit::default();
        let start = Moment(5 * SECOND);
        let at_once = (0..100).filter(|_| limit.take(start, 10).is_ok()).count();
        assert_eq!(at_once, 10);
        assert_eq!(limit.take(start, 10), Err(SECOND / 10));
        assert_eq!(limit.take(start.plus(SECOND / 10), 10), Ok(()));
        assert!(limit.take(start.plus(SECOND / 10), 10).is_err());
        assert_eq!(limit.take(start, 0), Err(SECOND));
    }

    #[test]
    fn a_lower_rate_holds_from_the_next_event_on() {
        let limit = RateLimit::default();
        let start = Moment(SECOND);
        for _ in 0..100 {
            limit.take(start, 100).expect("within the rate");
        }
        let wait = limit.take(start, 1).expect_err("all is used");
        assert_eq!(wait, SECOND);
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_its_rate_and_one_burst(
            rate in 1_u64..500,
            gaps in proptest::collection::vec(0_u64..50_000_000, 1..400),
        ) {
            let limit = RateLimit::default();
            let mut now = Moment(7 * SECOND);
            let mut taken = Vec::new();
            for gap in gaps {
                now = now.plus(gap);
                match limit.take(now, rate) {
                    Ok(()) => taken.push(now.0),
                    // Whoever waits as long as it is told to is not refused again.
                    Err(wait) => {
                        now = now.plus(wait);
                        prop_assert!(limit.take(now, rate).is_ok());
                        taken.push(now.0);
                    }
                }
            }
            let cost = SECOND / rate;
            for (at, first) in taken.iter().enumerate() {
                for (count, last) in taken[at..].iter().enumerate() {
                    let allowed = (last - first + SECOND) / cost;
                    prop_assert!((count as u64) <= allowed);
                }
            }
        }
    }
}

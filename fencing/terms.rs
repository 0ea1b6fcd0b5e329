//! The lease terms: how long one proof of life lasts, how long a taker waits it out, and how both
//! change while replicas serve. Owns which terms each replica follows while the store's record
//! names two.
//!
//! A change takes three steps. The record names the next terms beside the current ones. From then
//! on each member answers by the shorter read lease and waits out the longer one, and confirms this
//! ([`crate::member`]). Once all have confirmed, the next terms become the current ones. Invariant:
//! no replica waits for less time than another may still answer (PROTOCOL 8).

use core::fmt;

use crate::rules::{Rule, Rules};
use crate::time::Duration;

/// The read lease R and the drift margin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseTerms {
    read_lease: Duration,
    margin: Duration,
}

/// The error that a read lease or a margin is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the read lease and its margin must both be longer than zero")]
pub struct InvalidTerms;

impl LeaseTerms {
    /// Returns the terms with a read lease R and a drift margin.
    ///
    /// # Errors
    /// Returns an error if either is zero.
    pub const fn new(read_lease: Duration, margin: Duration) -> Result<Self, InvalidTerms> {
        if read_lease.as_nanos() == 0 || margin.as_nanos() == 0 {
            return Err(InvalidTerms);
        }
        Ok(Self { read_lease, margin })
    }

    /// Returns R: the time for which one proof of life lets a replica answer from memory.
    pub const fn read_lease(self) -> Duration {
        self.read_lease
    }

    /// Returns the time that a taker waits beyond R, for clocks of unequal rate.
    pub const fn margin(self) -> Duration {
        self.margin
    }

    /// Returns the time that a taker waits after it saw that the former holder is gone.
    pub fn wait(self) -> Duration {
        self.read_lease + self.margin
    }
}

impl Default for LeaseTerms {
    /// Returns a read lease of 300 ms and a margin of 100 ms.
    fn default() -> Self {
        Self {
            read_lease: Duration::from_millis(300),
            margin: Duration::from_millis(100),
        }
    }
}

impl fmt::Display for LeaseTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |duration: Duration| duration.as_nanos() / 1_000_000;
        let (read_lease, margin) = (millis(self.read_lease), millis(self.margin));
        write!(f, "read lease {read_lease} ms, margin {margin} ms")
    }
}

/// The store's record of the lease terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The terms that were agreed last.
    pub current: LeaseTerms,
    /// The terms that become the current ones once every member follows both; `None` if no change
    /// is under way.
    pub next: Option<LeaseTerms>,
}

impl Terms {
    /// Returns a record with these terms and no change under way.
    pub const fn settled(current: LeaseTerms) -> Self {
        Self {
            current,
            next: None,
        }
    }

    /// Returns R for a replica that knows this record: during a change the shorter of the two,
    /// because others may wait by either.
    pub fn read_lease(&self, rules: Rules) -> Duration {
        let current = self.current.read_lease();
        match self.next {
            Some(next) if rules.keep(Rule::ChangeAnswersByShorter) => {
                current.min(next.read_lease())
            }
            Some(_) | None => current,
        }
    }

    /// Returns the terms that a taker which knows this record waits out: during a change the longer
    /// ones, because others may answer by either.
    pub fn wait(&self, rules: Rules) -> LeaseTerms {
        match self.next {
            Some(next) if rules.keep(Rule::ChangeWaitsByLonger) => {
                match next.wait() > self.current.wait() {
                    true => next,
                    false => self.current,
                }
            }
            Some(_) | None => self.current,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(read_lease: u64, margin: u64) -> LeaseTerms {
        let length = Duration::from_nanos;
        LeaseTerms::new(length(read_lease), length(margin)).expect("neither is zero")
    }

    #[test]
    fn during_a_change_answers_go_by_the_shorter_and_waits_by_the_longer() {
        let rules = Rules::default();
        let (short, long) = (terms(2, 4), terms(5, 2));
        for (current, next) in [(short, long), (long, short)] {
            let changing = Terms {
                current,
                next: Some(next),
            };
            assert_eq!(changing.read_lease(rules), Duration::from_nanos(2));
            assert_eq!(changing.wait(rules), long);
            let settled = Terms::settled(next);
            assert_eq!(settled.read_lease(rules), next.read_lease());
            assert_eq!(settled.wait(rules), next);
        }
    }
}
